"""Experiments: questions that are answered by measuring many runs, written down in docs/results."""
