"""Tampering: a party that returns gradients returns those of a loss of its own, and so trains its peers' networks.

    feature party                             dishonest party
         Embedding(batch) ─────────────────────────▶
         ◀──────────────────────────── Gradient(batch)        of a loss that rebuilds columns

The dishonest party runs the honest protocol and holds one more hook, beside its defences. The hook notes the embeddings
that arrive and changes the gradients that leave. Kinds, shapes, types and counts of messages stay as they are; only the
numbers in gradients differ. What gradients are sent is the business of an `Objective`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from colonnade.attacks.base import Grant, Guess, Inapplicable, View
from colonnade.attacks.points import Points
from colonnade.models.networks.messages import Embedding, Gradient
from colonnade.parameters import choice
from colonnade.runtime.context import HookContext, Tensor
from colonnade.runtime.party import Defence, Party
from colonnade.runtime.protocol import Protocol
from colonnade.tables.encode import filled_with_labels
from colonnade.wire.message import Float32Array, Float64Array, Int64Array

Fill: TypeAlias = Literal["zero", "honest"]
FILL = choice("zero", "honest")
HIDDEN = 64
"""The units of a hidden layer in an attacker's networks."""


@dataclass(frozen=True)
class Batch:
    """What a dishonest party has of some rows.

    Attributes:
        embeddings: By peer, as they arrived; zeros where a peer does not hold a row.
        own: The party's own columns and labels, as numbers.
        epoch: In which epoch of training.
    """

    rows: Int64Array
    embeddings: dict[str, Tensor]
    own: Tensor
    epoch: int = 0

    def joined(self) -> Tensor:
        """All embeddings beside the party's own columns and labels."""
        return torch.cat([*self.embeddings.values(), self.own], dim=1)


class Objective(ABC):
    """What a dishonest party wants its peers' networks to learn."""

    @abstractmethod
    def begin(self, first: Batch, random: torch.Generator) -> None:
        """Make the networks that the first batch's widths ask for."""

    @abstractmethod
    def learn(self, batch: Batch) -> NDArray[np.bool_]:
        """Take a step, leave gradients in the batch's embeddings, and say which rows have one."""

    @abstractmethod
    def rebuild(self, batch: Batch) -> Tensor:
        """What the trained networks make of some rows: the numbers of their records."""


class Watching(Defence):
    """A hook that notes the last embedding of every row, in training and in predictions, and changes nothing.

    Args:
        own: The party's own columns and labels, row by row; None if it has none.
    """

    def __init__(self, own: Float64Array | None) -> None:
        self.own = own
        self.seen: dict[str, Float32Array] = {}

    def incoming(self, tensor: Tensor, at: HookContext) -> Tensor:
        if at.message is Embedding and at.peer is not None:
            values = tensor.detach().cpu().numpy()
            n_rows, width = int(at.rows.max(initial=-1)) + 1, values.shape[1]
            known = self.seen.get(at.peer, np.zeros((0, width), np.float32))
            if len(known) < n_rows:
                more = np.full((n_rows - len(known), width), np.nan, np.float32)
                known = self.seen[at.peer] = np.concatenate([known, more])
            known[at.rows] = values
        return tensor

    def affects_predictions(self, sent: Any) -> bool:
        return False

    def points(self, owner: str) -> Points:
        """The last embedding of every row that the owner ever sent, beside the party's own columns and labels."""
        seen = self.seen[owner]
        rows = np.flatnonzero(np.isfinite(seen).all(axis=1))
        return Points(rows, np.concatenate([seen[rows].astype(np.float64), self._own(rows)], axis=1))

    def batch(self, rows: Int64Array, epoch: int = 0, *, wants_gradients: bool = False) -> Batch:
        """What the party has of some rows."""
        embeddings = {}
        for peer, seen in self.seen.items():
            values = np.zeros((len(rows), seen.shape[1]), np.float32)
            inside = rows < len(seen)
            values[inside] = np.nan_to_num(seen[rows[inside]])
            embeddings[peer] = torch.from_numpy(values).requires_grad_(wants_gradients)
        return Batch(rows, embeddings, torch.from_numpy(self._own(rows).astype(np.float32)), epoch)

    def _own(self, rows: Int64Array) -> Float64Array:
        return np.zeros((len(rows), 0)) if self.own is None else self.own[rows]


class Tampering(Watching):
    """A hook that sends the gradients of an objective.

    Args:
        objective: What the peers' networks are to learn.
        own: The party's own columns and labels, row by row; None if it has none.
        seed: Of the objective's own randomness.
        fill: What rows get that the objective leaves alone: zeros, as published, or the honest gradient.
        matched: Whether changed rows are made as long as honest ones on average.
    """

    acts_on = (Gradient,)

    def __init__(
        self, objective: Objective, own: Float64Array | None, *, seed: int, fill: Fill = "honest", matched: bool = False
    ) -> None:
        super().__init__(own)
        self.objective, self.seed, self.fill, self.matched = objective, seed, fill, matched
        self._step: tuple[int, int] | None = None
        self._arrived: list[Int64Array] = []
        self._batch = Batch(np.zeros(0, np.int64), {}, torch.zeros(0, 0))
        self._changed = np.zeros(0, np.bool_)

    def incoming(self, tensor: Tensor, at: HookContext) -> Tensor:
        if at.message is Embedding and at.phase == "train":
            self._arrived.append(at.rows)
        return super().incoming(tensor, at)

    def outgoing(self, tensor: Tensor, at: HookContext) -> Tensor:
        if at.message is not Gradient or at.peer not in self.seen:
            return tensor
        if self._step != (at.epoch, at.step):
            self._learn(at.epoch)
            self._step = at.epoch, at.step
        places = np.searchsorted(self._batch.rows, at.rows)
        gradient, changed = self._batch.embeddings[at.peer].grad, torch.from_numpy(self._changed[places])
        honest = tensor if self.fill == "honest" else torch.zeros_like(tensor)
        if gradient is None or not changed.any():
            return honest
        found, changed = gradient[torch.from_numpy(places)].to(tensor), changed.to(tensor.device)
        if self.matched:
            found = found * tensor.norm(dim=1).mean() / found[changed].norm(dim=1).mean().clamp_min(1e-12)
        return torch.where(changed[:, None], found, honest)

    def _learn(self, epoch: int) -> None:
        """Let the objective learn from what arrived since the last step."""
        self._batch = self.batch(np.unique(np.concatenate(self._arrived)), epoch, wants_gradients=True)
        self._arrived = []
        if self._step is None:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(self.seed)
                self.objective.begin(self._batch, torch.Generator().manual_seed(self.seed))
        self._changed = self.objective.learn(self._batch)


def played(party: Party, honest: Protocol[Any], hook: Watching) -> None:
    """Take part in a run with one more hook."""
    honest(replace(party, defences=(*party.defences, hook)))


def own_numbers(party: Party) -> Float64Array | None:
    """A party's own columns and labels as numbers; None if it has no table."""
    return None if party.table is None else filled_with_labels(party.table)


def rebuilt(hook: Tampering, grant: Grant) -> Guess:
    """What the objective's networks make of every row that the owner ever sent an embedding of."""
    rows = hook.points(grant.owner).rows
    with torch.no_grad():
        values = hook.objective.rebuild(hook.batch(rows)).numpy().astype(np.float64)
    return Guess(rows, values=np.nan_to_num(values))


def why_no_gradients_sent(view: View) -> str | None:
    """Why an attacker has no gradients to tamper with; None if it has."""
    owner = view.grant.owner
    if owner not in view.peers(Embedding, sent=False):
        return Inapplicable(f"it received no embeddings from {owner}")
    return None if owner in view.peers(Gradient, sent=True) else Inapplicable(f"it sent {owner} no gradients")


def descend(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    """One step of an optimizer; gradients stay where the loss leads beyond its networks."""
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()


@dataclass(frozen=True)
class Ranges:
    """The range of each number of a record, as known records show it; objectives compute in units of it."""

    low: Tensor
    span: Tensor

    @classmethod
    def of(cls, records: Float64Array) -> Ranges:
        """The ranges that some records show."""
        low, high = torch.from_numpy(records.min(axis=0)).float(), torch.from_numpy(records.max(axis=0)).float()
        return cls(low, torch.where(high > low, high - low, torch.ones_like(low)))

    def scaled(self, records: Float64Array) -> Tensor:
        """Records in units of their ranges."""
        return (torch.from_numpy(records).float() - self.low) / self.span

    def restored(self, scaled: Tensor) -> Tensor:
        """Records in their own units."""
        return scaled * self.span + self.low
