"""Models that several parties train together: a room for each family."""

from colonnade._lazy import attach as _attach

__getattr__, __dir__, __all__ = _attach(__name__, __file__)
