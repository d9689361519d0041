"""Points: one vector per row, made from what an attacker sent or received."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from colonnade.attacks.view import Grant, View
from colonnade.models.networks.messages import Embedding, Gradient
from colonnade.parameters import choice
from colonnade.wire.message import Float64Array, Int64Array

When: TypeAlias = Literal["mean", "first", "last"]
WHEN = choice("mean", "first", "last")


@dataclass(frozen=True)
class Points:
    """A vector for each of some rows, which are sorted.

    >>> Points(np.array([3, 7]), np.array([[0.0, 3.0], [4.0, 0.0]])).directions().values.tolist()
    [[0.0, 1.0], [1.0, 0.0]]
    """

    rows: Int64Array
    values: Float64Array

    @classmethod
    def of_embeddings(cls, view: View, *, received_from: str | None = None) -> Points:
        """The last embedding of each row that the attacker sent, or received from a peer."""
        return cls._of_messages(view, Embedding, sent=received_from is None, when="last", peer=received_from)

    @classmethod
    def of_gradients(cls, view: View, when: When) -> Points:
        """The gradient that the attacker received for each row: its mean over epochs, the first or the last one."""
        if when != "mean":
            return cls._of_messages(view, Gradient, sent=False, when=when)
        peers = view.peers(Gradient, sent=False)
        return cls._joined([view.row_means(Gradient, peer=peer, sent=False).astype(np.float64) for peer in peers])

    @classmethod
    def _of_messages(
        cls,
        view: View,
        kind: type[Embedding] | type[Gradient],
        *,
        sent: bool,
        when: Literal["first", "last"],
        peer: str | None = None,
    ) -> Points:
        lines = []
        for each in view.peers(kind, sent=sent) if peer is None else (peer,):
            messages = view.messages(kind, sent=sent, peer=each)
            found = [(each.rows, each.message.values) for each in messages if each.rows is not None]
            if not found:
                continue
            by_row = np.full((max(int(rows.max()) for rows, _ in found) + 1, found[0][1].shape[1]), np.nan)
            # What is written later stays.
            for rows, values in reversed(found) if when == "first" else found:
                by_row[rows] = values
            lines.append(by_row)
        return cls._joined(lines)

    @classmethod
    def _joined(cls, lines: list[Float64Array]) -> Points:
        """The rows that have finite numbers on every line, with the lines' numbers side by side."""
        n_rows = min((len(line) for line in lines), default=0)
        joined = np.concatenate([line[:n_rows] for line in lines], axis=1) if lines else np.zeros((0, 0))
        rows = np.flatnonzero(np.isfinite(joined).all(axis=1))
        return cls(rows, joined[rows])

    def directions(self) -> Points:
        """The same rows with vectors of length 1, where they have a length."""
        lengths = np.linalg.norm(self.values, axis=1, keepdims=True)
        return Points(self.rows, self.values / np.where(lengths > 0, lengths, 1))

    def standardised(self) -> Points:
        """The same rows with coordinates of mean 0 and variance 1, where they vary."""
        spread = self.values.std(axis=0)
        return Points(self.rows, (self.values - self.values.mean(axis=0)) / np.where(spread > 0, spread, 1))

    def known(self, grant: Grant) -> tuple[Int64Array, Int64Array]:
        """Where among the points the granted rows are, and their classes."""
        has_point = np.isin(grant.rows, self.rows)
        return np.searchsorted(self.rows, grant.rows[has_point]), grant.labels[has_point]

    def why_not(self, grant: Grant, *, known: bool = True) -> str | None:
        """Why these points tell nothing about classes; None if they may."""
        if not len(self.rows):
            return "nothing that could be compared was kept of any row"
        if known and len(np.unique(self.known(grant)[1])) < grant.n_classes:
            return "nothing was kept of the known rows of some class"
        return None


def distances(points: Float64Array, others: Float64Array) -> Float64Array:
    """How far each point is from each of some others."""
    from scipy.spatial.distance import cdist

    return np.asarray(cdist(points, others))


def cluster_votes(
    member: Int64Array, known: Int64Array, classes: Int64Array, far: Float64Array, n: int
) -> Float64Array:
    """How many known rows of each of n classes are in each cluster; half a row more for the nearest known row's class.

    `far` says how far each cluster is from each known row.
    """
    votes = np.zeros((len(far), n))
    np.add.at(votes, (member[known], classes), 1)
    votes[np.arange(len(far)), classes[far.argmin(axis=1)]] += 0.5
    return votes


def why_no_gradients(view: View) -> str | None:
    """Why there are no gradients to look at; None if there are."""
    return None if view.peers(Gradient, sent=False) else f"{view.party} received no {Gradient.kind}"
