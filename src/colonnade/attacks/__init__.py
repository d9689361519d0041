"""Attacks: what a curious or dishonest party could find out about the others."""

from colonnade._lazy import attach as _attach

__getattr__, __dir__, __all__ = _attach(__name__, __file__)
