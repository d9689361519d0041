"""Points: one vector per row, made from what an attacker sent or received, in which classes may lie apart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from colonnade.attacks.base import Grant
from colonnade.attacks.view import View
from colonnade.models.networks.messages import Embedding, Gradient
from colonnade.wire.message import Float64Array, Int64Array

When: TypeAlias = Literal["mean", "first", "last"]


@dataclass(frozen=True)
class Points:
    """A vector for each of some rows, which are sorted.

    >>> Points(np.array([3, 7]), np.array([[0.0, 3.0], [4.0, 0.0]])).directions().values.tolist()
    [[0.0, 1.0], [1.0, 0.0]]
    """

    rows: Int64Array
    values: Float64Array

    @classmethod
    def of_embeddings(cls, view: View) -> Points:
        """The last embedding that the attacker sent of each row."""
        return cls._of_messages(view, Embedding, sent=True, when="last")

    @classmethod
    def of_gradients(cls, view: View, when: When) -> Points:
        """The gradient that the attacker received for each row: its mean over epochs, the first or the last one."""
        if when != "mean":
            return cls._of_messages(view, Gradient, sent=False, when=when)
        return cls._finite(view.row_means(Gradient, sent=False).astype(np.float64))

    @classmethod
    def _of_messages(
        cls, view: View, kind: type[Embedding] | type[Gradient], *, sent: bool, when: Literal["first", "last"]
    ) -> Points:
        found = [
            (recorded.rows, recorded.message.values)
            for recorded in view.messages(kind, sent=sent)
            if recorded.rows is not None
        ]
        if not found:
            return cls(np.zeros(0, np.int64), np.zeros((0, 0)))
        by_row = np.full((max(int(rows.max()) for rows, _ in found) + 1, found[0][1].shape[1]), np.nan)
        # What is written later stays.
        for rows, values in reversed(found) if when == "first" else found:
            by_row[rows] = values
        return cls._finite(by_row)

    @classmethod
    def _finite(cls, by_row: Float64Array) -> Points:
        rows = np.flatnonzero(np.isfinite(by_row).all(axis=1))
        return cls(rows, by_row[rows])

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

    def unfit(self, grant: Grant) -> str | None:
        """Why nothing can be told from these points; None if something may be."""
        if not len(self.rows):
            return "nothing that could be compared was kept of any row"
        if len(np.unique(self.known(grant)[1])) < grant.n_classes:
            return "nothing was kept of the known rows of some class"
        return None
