"""Plans, and many runs of them."""
