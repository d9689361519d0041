"""What a defence is: the base class, and what its hooks are told."""

from colonnade.runtime.hooks import At, Defence

__all__ = ["At", "Defence"]
