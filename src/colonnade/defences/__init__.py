"""Defences: what a party does, on its own side, to what it learns from, sends or accepts."""

from colonnade._lazy import attach as _attach

__getattr__, __dir__, __all__ = _attach(__name__, __file__)
