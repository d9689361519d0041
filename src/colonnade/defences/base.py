"""Defence: the base class, and the context that its hooks get."""

from colonnade.runtime.context import HookContext
from colonnade.runtime.party import Defence

__all__ = ["Defence", "HookContext"]
