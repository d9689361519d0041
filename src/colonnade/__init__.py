"""Colonnade: vertical federated learning that measures what each party could learn about the others."""

from colonnade._lazy import attach as _attach

__getattr__, __dir__, __all__ = _attach(__name__, __file__)
