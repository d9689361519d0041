"""Defence and At: the points of a run where a party may intervene on its own side."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias, TypeVar

from colonnade.errors import PlanError
from colonnade.secret import Secret
from colonnade.storage import Tree
from colonnade.wire.message import Int64Array, Message

if TYPE_CHECKING:
    import torch

    from colonnade.runtime.party import Party

    Tensor: TypeAlias = torch.Tensor
else:
    Tensor: TypeAlias = Any


T = TypeVar("T")
Phase: TypeAlias = Literal["train", "validate", "predict"]
Sides: TypeAlias = Mapping[str, tuple[frozenset[str], tuple[type[Message], ...]]]
"""For every role, the hooks that a protocol calls on its side, and the kinds that go through `outgoing` there."""


@dataclass(frozen=True)
class At:
    """Where in the run a hook is called, with its owner's values only.

    Within a run `phase`, `epoch`, `step`, `peer` and `track` together name one call, so noise drawn by them is drawn
    once.

    Attributes:
        track: "federated" for the track whose gradients go to feature parties, "local" for one that never leaves.
        own: The party's own embeddings by name: "embedding" of an only bottom; "public" and "private" of two.
        received: The peers' embeddings, by peer; at the label party in U-shape, which gets none, the server's output.
        held: Which rows a peer holds, by peer, where not all hold all; in the place of the others `received` has zeros.
        gradient_if: The gradient about to be sent, if the labels of the batch were others.
        inputs: The party's own columns of the batch, as its bottom reads them.
        outputs: What this track makes of the batch: logits, or predictions of a regression.
        n_classes: How many classes there are, where the party knows and the task is a classification.
    """

    step: int
    epoch: int
    rows: Int64Array
    phase: Phase
    peer: str | None = None
    message: type[Message] | None = None
    track: Literal["federated", "local"] = "federated"
    labels: Tensor | None = None
    own: Mapping[str, Tensor] = field(default_factory=dict)
    received: Mapping[str, Tensor] = field(default_factory=dict)
    held: Mapping[str, Tensor] = field(default_factory=dict)
    gradient_if: Callable[[Tensor], Tensor] | None = None
    inputs: Tensor | None = None
    outputs: Tensor | None = None
    n_classes: int | None = None

    def each_received(self) -> Iterator[tuple[Tensor, At]]:
        """What was received of each peer, and the same `At`, about no other rows than those that the peer holds."""
        for peer in self.received:
            at = self.about(self.held[peer]) if peer in self.held else self
            if len(at.rows):
                yield at.received[peer], at

    def about(self, kept: Tensor) -> At:
        """The same, about some of the rows only.

        Args:
            kept: Of each row, whether it is one of them.
        """

        def cut(tensor: Tensor | None) -> Tensor | None:
            return None if tensor is None else tensor[kept]

        asked, labels = self.gradient_if, self.labels

        def gradient_if(others: Tensor) -> Tensor:
            assert asked is not None
            assert labels is not None
            return asked(labels.masked_scatter(kept, others))[kept]

        return replace(
            self,
            rows=self.rows[kept.cpu().numpy()],
            labels=cut(labels),
            own={name: tensor[kept] for name, tensor in self.own.items()},
            received={peer: tensor[kept] for peer, tensor in self.received.items()},
            held={peer: tensor[kept] for peer, tensor in self.held.items()},
            gradient_if=None if asked is None else gradient_if,
            inputs=cut(self.inputs),
            outputs=cut(self.outputs),
        )


class Defence:
    """What a party does, on its own side, to what it learns from, sends or accepts.

    Every hook defaults to no change. Defences are held by a party and applied in order.

    >>> class Halve(Defence):
    ...     def outgoing(self, tensor, at):
    ...         return tensor / 2
    >>> sorted(Halve().overridden())
    ['outgoing']
    """

    acts_on: ClassVar[tuple[type[Message], ...]] = ()
    """The kinds of messages it changes before they leave; empty if it may be any."""
    reads_labels: ClassVar[bool] = False
    """Whether it is of use only where labels are."""

    @property
    def name(self) -> str:
        """What the message ledger calls it."""
        return type(self).__name__

    def before_run(self, party: Party) -> None:
        """Called once, before the first step."""

    def labels(self, labels: Tensor, at: At) -> Tensor:
        """The labels the party learns from."""
        return labels

    def outgoing(self, tensor: Tensor, at: At) -> Tensor:
        """An embedding or a gradient about to be sent."""
        return tensor

    def incoming(self, tensor: Tensor, at: At) -> Tensor:
        """One that has just arrived; a guard looks here."""
        return tensor

    def loss(self, loss: Tensor, at: At) -> Tensor:
        """The loss the party minimises."""
        return loss

    def prediction(self, prediction: Tensor, at: At) -> Tensor:
        """A prediction about to be used or given away."""
        return prediction

    def modules(self) -> Sequence[Any]:
        """Networks to be trained together with the owner's model."""
        return ()

    def state(self) -> Tree:
        """What the defence needs in order to go on after a crash."""
        return {}

    def restore(self, tree: Tree) -> None:
        """Go back to what `state` said."""

    def overridden(self) -> frozenset[str]:
        """The hooks this defence makes use of."""
        return frozenset(name for name in HOOKS if getattr(type(self), name) is not getattr(Defence, name))

    def shapes_predictions(self, sent: Sequence[type[Message]]) -> bool:
        """Whether predictions depend on it, and so need it as it was when training ended.

        Args:
            sent: The kinds of messages that go through `outgoing` on its side.
        """
        hooks = self.overridden()
        # What is sent to predict is about features. Gradients are not, and are sent in training only.
        about_features = [kind for kind in sent if Secret.FEATURES in kind.reveals]
        changes_them = any(not self.acts_on or kind in self.acts_on for kind in about_features)
        return bool(hooks & {"incoming", "prediction", "modules"}) or ("outgoing" in hooks and changes_them)


HOOKS = ("labels", "outgoing", "incoming", "loss", "prediction", "modules")


def prepare(
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


def place_of(defence: Defence, party: Party) -> int:
    """Where a defence stands among its party's: by this, two of a kind draw different numbers."""
    return next((place for place, held in enumerate(party.defences) if held is defence), 0)


def applied(defences: Sequence[Defence], hook: str, value: T, at: At) -> tuple[T, tuple[str, ...]]:
    """What is left of a value after a hook of all defences, and the names of those that changed it."""
    names = []
    for defence in defences:
        given, value = value, getattr(defence, hook)(value, at)
        if value is not given:
            names.append(defence.name)
    return value, tuple(names)


def applied_where(
    held: Tensor | None, defences: Sequence[Defence], hook: str, value: Tensor, at: At
) -> tuple[Tensor, tuple[str, ...]]:
    """The same of a tensor of which defences see no other rows than those held; the others stay as they are.

    Args:
        held: Of each row, whether it is held; None if all are.
        defences: Those of the party.
        hook: Which of their hooks.
        value: One row per sample.
        at: Where it is called.
    """
    if held is None:
        return applied(defences, hook, value, at)
    if not held.any():
        return value, ()
    changed, names = applied(defences, hook, value[held], at.about(held))
    return (value.index_put((held,), changed), names) if names else (value, ())
