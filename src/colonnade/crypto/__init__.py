"""Encrypted arithmetic: numbers in, numbers out; no network, no party."""
