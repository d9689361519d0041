"""Active inversion: known records become the target of a network that all parties train together.

    rows that are known     gradient of  mean over known rows of the batch |h(z, x0, y) - x|²
    other rows              zero, as published, or the honest gradient
    afterwards              x = h(z, x0, y), or a ridge regression from z, x0 and y to the known records

The feature parties' networks learn to send embeddings from which columns can be rebuilt. Most of the power lies in the
pairs of embedding and known record, which a passive attacker has as well (`passive`): compare with that. The network h
is a weak read-out in the time of a run; the regression is a better one. Zeros betray the attack to anyone who looks.
The honest gradient in their place costs the attacker little. Gradients of known rows as long as honest ones are harder
to see, and cost most of the gain.

Vu et al. 2023, "Active data reconstruction attacks in vertical federated learning".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray

from colonnade.attacks.base import ActiveAttack, Grant, Guess, Needs, View
from colonnade.attacks.columns.passive import KNOWN_RECORDS, ridge_guess
from colonnade.attacks.columns.tampering import (
    FILL,
    HIDDEN,
    Batch,
    Fill,
    Objective,
    Ranges,
    Tampering,
    descend,
    own_numbers,
    played,
    rebuilt,
    why_no_gradients_sent,
)
from colonnade.models.networks.messages import Embedding, Gradient
from colonnade.models.networks.modules import perceptron
from colonnade.parameters import Limit, check_parameters, choice, truth
from colonnade.runtime.context import Tensor
from colonnade.runtime.party import Party
from colonnade.runtime.protocol import Protocol
from colonnade.secret import Secret
from colonnade.wire.message import Int64Array

RATE, DECAY = 1e-3, 1e-5


class ActiveInversion(ActiveAttack):
    """Gradients of known records make the owner's network send what rebuilds its columns.

    Args:
        fill: What rows that are not known get: "zero", as published, or the "honest" gradient.
        matched: Whether gradients of known rows are made as long as honest ones, so that nobody sees them.
        read_out: A "ridge" regression on the embeddings of known records, or the "network" that was trained.

    >>> ActiveInversion(fill="zero", read_out="network").needs.known_records
    50
    """

    needs = Needs(messages=(Embedding, Gradient), known_records=KNOWN_RECORDS, inference_rows=True)
    about = Secret.FEATURES
    limits: ClassVar[Mapping[str, Limit]] = {
        "fill": FILL,
        "matched": truth(),
        "read_out": choice("ridge", "network"),
    }

    def __init__(
        self, *, fill: Fill = "honest", matched: bool = False, read_out: Literal["ridge", "network"] = "ridge"
    ) -> None:
        self.fill, self.matched, self.read_out = fill, matched, read_out
        check_parameters(self)

    @classmethod
    def variants(cls) -> Sequence[Self]:
        return cls(), cls(fill="zero"), cls(matched=True)

    def why_not(self, view: View) -> str | None:
        return why_no_gradients_sent(view)

    def play(self, party: Party, honest: Protocol[Any], grant: Grant) -> Guess:
        hook = self.tampered(party, honest, grant)
        return rebuilt(hook, grant) if self.read_out == "network" else ridge_guess(hook.points(grant.owner), grant)

    def tampered(self, party: Party, honest: Protocol[Any], grant: Grant) -> Tampering:
        """The hook after the run, from which every read-out can be had."""
        seed = party.random.seed("attack", type(self).__name__)
        hook = Tampering(_Inversion(grant), own_numbers(party), seed=seed, fill=self.fill, matched=self.matched)
        played(party, honest, hook)
        return hook


class _Inversion(Objective):
    """A network from embeddings to records, trained on known rows; so are the networks that made the embeddings."""

    def __init__(self, grant: Grant) -> None:
        order = np.argsort(grant.rows)
        self.known: Int64Array = grant.rows[order]
        self.ranges = Ranges.of(grant.records)
        self.records = self.ranges.scaled(grant.records[order])

    def begin(self, first: Batch, random: torch.Generator) -> None:
        self.network = perceptron(first.joined().shape[1], (HIDDEN,), self.records.shape[1])
        self.optimizer = torch.optim.Adam(self.network.parameters(), RATE, weight_decay=DECAY)

    def learn(self, batch: Batch) -> NDArray[np.bool_]:
        is_known = np.isin(batch.rows, self.known)
        if is_known.any():
            wanted = self.records[torch.from_numpy(np.searchsorted(self.known, batch.rows[is_known]))]
            found = self.network(batch.joined()[torch.from_numpy(is_known)])
            descend(self.optimizer, ((found - wanted) ** 2).sum(dim=1).mean())
        return is_known

    def rebuild(self, batch: Batch) -> Tensor:
        found: Tensor = self.ranges.restored(self.network(batch.joined()))
        return found
