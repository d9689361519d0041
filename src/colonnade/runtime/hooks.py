"""How a protocol calls the hooks of a party's defences, and refuses those that would do nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from colonnade.errors import PlanError
from colonnade.runtime.party import Defence, Party
from colonnade.wire.message import Message

if TYPE_CHECKING:
    from colonnade.runtime.context import HookContext, Tensor

T = TypeVar("T")
Sides: TypeAlias = Mapping[str, tuple[frozenset[str], tuple[type[Message], ...]]]
"""For every role, the hooks that a protocol calls on its side, and the kinds that go through `outgoing` there."""


def prepare_defences(
    party: Party,
    called: frozenset[str],
    sent: tuple[type[Message], ...],
    protocol: str,
    sides: Sides | None = None,
) -> None:
    """Ready a party's defences, refusing those that would silently do nothing.

    Args:
        party: The party about to run.
        called: The hooks that the protocol calls on this party's side.
        sent: The kinds of messages that go through `outgoing` on this party's side.
        protocol: What the protocol is called in the message.
        sides: Both for every role, to say who could hold what this party cannot.
    """
    for defence in party.defences:
        idle = _idle(defence, called, sent, party.name, protocol)
        if idle is not None:
            where = " or ".join(_HOLDERS[role] for role in holders_of(defence, sides or {}))
            advice = f"Give it to {where}, or leave it out." if where else "Leave it out: no party here could hold it."
            raise PlanError(f"{party.name} holds {defence.name}, which {idle}. {advice}")
        defence.before_run(party)


def holders_of(defence: Defence, sides: Sides) -> list[str]:
    """The roles on whose side a defence would do all that it does."""
    return [role for role, (called, sent) in sides.items() if _idle(defence, called, sent, role, "") is None]


_HOLDERS = {"label": "the label party", "feature": "a feature party", "server": "the server"}


def _idle(
    defence: Defence, called: frozenset[str], sent: tuple[type[Message], ...], party: str, protocol: str
) -> str | None:
    """Why a defence would do nothing on a party's side; None where it would not."""
    unasked = sorted(defence.overridden() - called)
    if unasked:
        return f"acts on {', '.join(unasked)}, but {protocol} never asks for that on {party}'s side"
    if defence.reads_labels and "labels" not in called:
        return f"reads labels, but in {protocol} {party} has none"
    if defence.acts_on and not set(defence.acts_on) & set(sent):
        kinds = ", ".join(message.kind for message in defence.acts_on)
        return f"acts on {kinds}, but in {protocol} {party} sends none"
    return None


def index_of(defence: Defence, party: Party) -> int:
    """Where a defence stands among its party's: by this, two of a kind draw different numbers."""
    return next((place for place, held in enumerate(party.defences) if held is defence), 0)


def is_used(hook: str, defences: Sequence[Defence]) -> bool:
    """Whether a defence makes use of a hook; where none does, what the hook would be shown need not be made."""
    return any(getattr(type(defence), hook) is not getattr(Defence, hook) for defence in defences)


def applied(defences: Sequence[Defence], hook: str, value: T, at: HookContext) -> tuple[T, tuple[str, ...]]:
    """What is left of a value after a hook of all defences, and the names of those that changed it."""
    names = []
    for defence in defences:
        given, value = value, getattr(defence, hook)(value, at)
        if value is not given:
            names.append(defence.name)
    return value, tuple(names)


def applied_where(
    held: Tensor | None, defences: Sequence[Defence], hook: str, value: Tensor, at: HookContext
) -> tuple[Tensor, tuple[str, ...]]:
    """Like `applied`, but defences see only rows where `held` is true; other rows pass unchanged."""
    if held is None:
        return applied(defences, hook, value, at)
    if not held.any():
        return value, ()
    changed, names = applied(defences, hook, value[held], at.about(held))
    return (value.index_put((held,), changed), names) if names else (value, ())
