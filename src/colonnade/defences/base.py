"""Defence: the base class, the context that its hooks get, and what defences of classes ask of a run."""

from colonnade.errors import PlanError
from colonnade.runtime.context import HookContext
from colonnade.runtime.party import Defence

__all__ = ["Defence", "HookContext", "classes_of"]


def classes_of(at: HookContext, use: str) -> int:
    """How many classes the run has. An error says what the defence would use the classes for."""
    if at.n_classes is None:
        raise PlanError(
            f"{use}, but the labels of this run are measurements. Leave the defence out, or train a classifier."
        )
    return at.n_classes
