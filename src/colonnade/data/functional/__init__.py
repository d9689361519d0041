"""Curves for simulation: a generator, and folders of R data."""
