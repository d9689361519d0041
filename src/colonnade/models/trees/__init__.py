"""Boosted trees across parties: bins, splits, and one `grow` over any source of sums."""
