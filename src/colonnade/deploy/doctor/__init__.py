"""The doctor: what would go wrong, found before a run begins."""
