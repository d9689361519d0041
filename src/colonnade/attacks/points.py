"""Points: one vector per row, made from what an attacker sent or received."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np

from colonnade.attacks.base import Inapplicable
from colonnade.attacks.view import Grant, View
from colonnade.models.networks.messages import Embedding, Gradient
from colonnade.parameters import choice
from colonnade.tables.encode import filled
from colonnade.wire.message import Float64Array, Int64Array
from colonnade.wire.recording.recording import Recorded

When: TypeAlias = Literal["mean", "first", "last"]
WHENS: tuple[When, ...] = ("mean", "first", "last")
WHEN = choice(*WHENS)
KNOWN_PER_CLASS = 4
"""How many labels of each class an attack is told that learns from a few."""
FITTED_ROWS = 20_000
"""Models are fitted to at most this many rows, and then asked about all rows."""
LANDMARKS = 2_000
"""At most this many rows are compared with one another; the others follow the nearest of these."""
BLOCK = 10_000
"""What takes much memory for each row is computed for so many rows at a time."""
RESTARTS, ITERATIONS = 5, 50


@dataclass(frozen=True)
class Points:
    """A vector for each of some rows, which are sorted.

    >>> Points(np.array([3, 7]), np.array([[0.0, 3.0], [4.0, 0.0]])).directions().values.tolist()
    [[0.0, 1.0], [1.0, 0.0]]
    """

    rows: Int64Array
    values: Float64Array

    @classmethod
    def of_embeddings(cls, view: View, when: When = "last", *, received_from: str | None = None) -> Points:
        """The last embedding of each row that the attacker sent, or received from a peer; or the first, or the mean."""
        return cls._of_messages(view, Embedding, sent=received_from is None, when=when, peer=received_from)

    @classmethod
    def of_gradients(cls, view: View, when: When) -> Points:
        """The gradient that the attacker received for each row: its mean over epochs, the first or the last one."""
        return cls._of_messages(view, Gradient, sent=False, when=when)

    @classmethod
    def _of_messages(
        cls, view: View, kind: type[Embedding] | type[Gradient], *, sent: bool, when: When, peer: str | None = None
    ) -> Points:
        lines: list[Float64Array | None] = []
        for each in view.peers(kind, sent=sent) if peer is None else (peer,):
            if when == "mean":
                lines.append(view.row_means(kind, peer=each, sent=sent).astype(np.float64))
            else:
                lines.append(_by_row(view.messages(kind, sent=sent, peer=each), when))
        return cls._joined([line for line in lines if line is not None])

    @classmethod
    def _joined(cls, lines: list[Float64Array]) -> Points:
        """The rows that have finite numbers on every line, with the lines' numbers side by side."""
        n_rows = min((len(line) for line in lines), default=0)
        joined = np.concatenate([line[:n_rows] for line in lines], axis=1) if lines else np.zeros((0, 0))
        rows = np.flatnonzero(np.isfinite(joined).all(axis=1))
        return cls(rows, joined[rows])

    @classmethod
    def of_columns(cls, view: View) -> Points:
        """The attacker's own columns as standardised numbers, for every row.

        Where no column varies, there is one of zeros, so that attacks which fit a model to columns need not ask.
        """
        table = view.own.table
        columns = filled(table)
        return cls(np.arange(len(table)), columns if columns.shape[1] else np.zeros((len(table), 1)))

    def beside(self, other: Points) -> Points:
        """The rows that both have, with the numbers of both side by side."""
        rows = np.intersect1d(self.rows, other.rows)
        return Points(rows, np.concatenate([self.at(rows), other.at(rows)], axis=1))

    def at(self, rows: Int64Array) -> Float64Array:
        """The vectors of some of the rows."""
        return self.values[np.searchsorted(self.rows, rows)]

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


def _by_row(messages: Iterator[Recorded[Any]], when: Literal["first", "last"]) -> Float64Array | None:
    """The first or the last vector of each row, NaN where there is none; read one message at a time."""
    by_row: Float64Array | None = None
    for recorded in messages:
        rows, values = recorded.rows, recorded.message.values
        if rows is None:
            continue
        if by_row is None:
            by_row = np.zeros((0, values.shape[1]))
        missing = int(rows.max(initial=-1)) + 1 - len(by_row)
        if missing > 0:
            # By half as much again: growing row by row would copy the table for every message.
            by_row = np.pad(by_row, ((0, max(missing, len(by_row) // 2)), (0, 0)), constant_values=np.nan)
        if when == "first":
            is_new = np.isnan(by_row[rows]).all(axis=1)
            rows, values = rows[is_new], values[is_new]
        by_row[rows] = values
    return by_row


def distances(points: Float64Array, others: Float64Array) -> Float64Array:
    """How far each point is from each of some others."""
    from scipy.spatial.distance import cdist

    return np.asarray(cdist(points, others))


def chosen_rows(n: int, most: int, known: Int64Array, random: np.random.Generator) -> Int64Array:
    """All of n rows, or at most so many at random, the known ones among them; in order."""
    if n <= most:
        return np.arange(n)
    others = np.setdiff1d(np.arange(n), known)
    return np.union1d(known, random.choice(others, most - len(known), replace=False))


def k_means(
    points: Float64Array, n: int, random: np.random.Generator, *, restarts: int = RESTARTS
) -> tuple[Int64Array, Float64Array]:
    """Which cluster each point is in, and the clusters' centres: the best of several starts."""
    from sklearn.cluster import KMeans

    fitted = points[chosen_rows(len(points), FITTED_ROWS, np.zeros(0, np.int64), random)]
    with warnings.catch_warnings():
        # A defence may leave fewer different points than clusters.
        warnings.filterwarnings("ignore", message="Number of distinct clusters")
        seed = int(random.integers(2**31))
        model = KMeans(n, n_init=restarts, max_iter=ITERATIONS, random_state=seed).fit(fitted)
    return model.predict(points).astype(np.int64), model.cluster_centers_


def cluster_names(member: Int64Array, known: Int64Array, classes: Int64Array, far: Float64Array, n: int) -> Int64Array:
    """A class for each cluster; the arguments are those of `cluster_votes`.

    As many clusters as classes: one each, so that known rows are as near as possible (Hungarian matching). More: the
    majority of its known rows names a cluster, or else the nearest known row.
    """
    if len(far) != n:
        return np.asarray(cluster_votes(member, known, classes, far, n).argmax(axis=1))
    from scipy.optimize import linear_sum_assignment

    costs = np.stack([far[:, classes == k].mean(axis=1) for k in range(n)], axis=1)
    return np.asarray(linear_sum_assignment(costs)[1])


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
    return None if view.peers(Gradient, sent=False) else Inapplicable(f"{view.party} received no {Gradient.kind}")
