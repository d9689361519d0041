"""Generalised linear models on encrypted or shared numbers."""
