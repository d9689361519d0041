"""Defence: the base class, and the context that its hooks get."""

from colonnade.runtime.hooks import At, Defence

__all__ = ["At", "Defence"]
