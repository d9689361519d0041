"""Attacks: what a curious or dishonest party could find out about the others."""

from colonnade._lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
