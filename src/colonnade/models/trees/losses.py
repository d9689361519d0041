"""Losses of boosted trees, with the gradients and hessians of xgboost, and these as whole numbers.

                scores    prediction p      gradient        hessian                      xgboost's objective
    logistic    1         1 / (1 + e^-u)    p - y           p (1 - p), at least 1e-16    binary:logistic
    softmax     K         e^u_k / sum       p_k - [y = k]   2 p_k (1 - p_k), at least    multi:softprob
                                                            1e-16
    squared     1         u                 u - y           1                            reg:squarederror
    Poisson     1         e^u               p - y           p e^max_delta_step           count:poisson

Each score has one tree a round. Trees see whole numbers only (`Gradients`), so that sums are exact in every order and
under every encryption.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import floor, log2
from typing import ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from colonnade.errors import DataError, Overflow
from colonnade.wire.message import Float64Array, Int64Array

LEAST_HESSIAN = 1e-16
MOST_TOTAL = 2**32 - 1
"""What the absolute values of all gradients, and all hessians, sum to at most: a slot of an encrypted number."""
MOST_FRACTION_BITS = 40
MOST_REAL_TOTAL = 2.0**500
"""What absolute values sum to at most as reals: gains have squares of sums."""


class Loss(Protocol):
    """What is boosted; `n_scores` trees are grown a round."""

    @property
    def n_scores(self) -> int:
        """How many scores a row has."""

    def start(self, labels: Float64Array, weights: Float64Array) -> Float64Array:
        """The scores (n_scores,) that all rows begin with."""

    def gradients(self, scores: Float64Array, labels: Float64Array) -> tuple[Float64Array, Float64Array]:
        """Gradients and hessians (rows, n_scores) at scores of the same shape, without weights."""

    def values(self, scores: Float64Array, labels: Float64Array) -> Float64Array:
        """The loss of each row (rows,), up to what depends on labels alone."""

    def predicted(self, scores: Float64Array) -> Float64Array:
        """Predictions from scores: probabilities, or means."""


@dataclass(frozen=True)
class Logistic:
    """Two classes, 0 and 1."""

    n_scores: ClassVar[int] = 1

    def start(self, labels: Float64Array, weights: Float64Array) -> Float64Array:
        """The log-odds of the weighted mean."""
        mean = float(np.average(labels, weights=weights))
        if not 0 < mean < 1:
            raise DataError(f"The labels should have two classes, but all are {labels[0]:g}. Bring rows of both.")
        return np.array([np.log(mean / (1 - mean))])

    def gradients(self, scores: Float64Array, labels: Float64Array) -> tuple[Float64Array, Float64Array]:
        """Gradients and hessians (rows, 1)."""
        p = self.predicted(scores)
        return p - labels[:, None], np.maximum(p * (1 - p), LEAST_HESSIAN)

    def values(self, scores: Float64Array, labels: Float64Array) -> Float64Array:
        """Cross-entropy."""
        return np.asarray(np.logaddexp(0, scores[:, 0]) - labels * scores[:, 0], np.float64)

    def predicted(self, scores: Float64Array) -> Float64Array:
        """Probabilities of class 1."""
        with np.errstate(over="ignore"):
            out: Float64Array = 1 / (1 + np.exp(-scores))
        return out


@dataclass(frozen=True)
class Softmax:
    """Several classes, 0 to K - 1."""

    n_classes: int

    @property
    def n_scores(self) -> int:
        """One for each class."""
        return self.n_classes

    def start(self, labels: Float64Array, weights: Float64Array) -> Float64Array:
        """The logarithms of the classes' weighted shares, which sum to 0."""
        shares = np.bincount(labels.astype(np.int64), weights, self.n_classes)
        if not (shares > 0).all():
            empty = int(np.flatnonzero(shares <= 0)[0])
            raise DataError(f"Each of {self.n_classes} classes needs rows, but class {empty} has none. Bring some.")
        logs = np.log(shares)
        return np.asarray(logs - logs.mean(), np.float64)

    def gradients(self, scores: Float64Array, labels: Float64Array) -> tuple[Float64Array, Float64Array]:
        """Gradients and hessians (rows, K)."""
        p = self.predicted(scores)
        return p - (labels[:, None] == np.arange(self.n_classes)), np.maximum(2 * p * (1 - p), LEAST_HESSIAN)

    def values(self, scores: Float64Array, labels: Float64Array) -> Float64Array:
        """Cross-entropy."""
        moved = scores - scores.max(axis=1, keepdims=True)
        own = np.take_along_axis(moved, labels.astype(np.int64)[:, None], axis=1)[:, 0]
        return np.asarray(np.log(np.exp(moved).sum(axis=1)) - own, np.float64)

    def predicted(self, scores: Float64Array) -> Float64Array:
        """Probabilities of the classes."""
        raised = np.exp(scores - scores.max(axis=1, keepdims=True))
        return np.asarray(raised / raised.sum(axis=1, keepdims=True), np.float64)


@dataclass(frozen=True)
class Squared:
    """Numbers."""

    n_scores: ClassVar[int] = 1

    def start(self, labels: Float64Array, weights: Float64Array) -> Float64Array:
        """The weighted mean."""
        return np.array([np.average(labels, weights=weights)])

    def gradients(self, scores: Float64Array, labels: Float64Array) -> tuple[Float64Array, Float64Array]:
        """Gradients and hessians (rows, 1)."""
        return scores - labels[:, None], np.ones_like(scores)

    def values(self, scores: Float64Array, labels: Float64Array) -> Float64Array:
        """Squared differences."""
        return np.asarray((scores[:, 0] - labels) ** 2, np.float64)

    def predicted(self, scores: Float64Array) -> Float64Array:
        """The scores themselves."""
        return scores


@dataclass(frozen=True)
class Poisson:
    """Counts; the hessian is larger than the true one, as xgboost's is, so that steps stay small.

    Attributes:
        max_delta_step: The largest weight of a leaf; with 0 the hessian is the true one.
    """

    max_delta_step: float = 0.7
    n_scores: ClassVar[int] = 1

    def start(self, labels: Float64Array, weights: Float64Array) -> Float64Array:
        """The logarithm of the weighted mean."""
        mean = float(np.average(labels, weights=weights))
        if (labels < 0).any() or mean <= 0:
            raise DataError(
                "Labels of a Poisson loss should be counts, not all of them 0, and are not. Choose another loss."
            )
        return np.array([np.log(mean)])

    def gradients(self, scores: Float64Array, labels: Float64Array) -> tuple[Float64Array, Float64Array]:
        """Gradients and hessians (rows, 1)."""
        p = np.exp(scores)
        return p - labels[:, None], p * np.exp(self.max_delta_step)

    def values(self, scores: Float64Array, labels: Float64Array) -> Float64Array:
        """The negative logarithm of Poisson's probability."""
        return np.asarray(np.exp(scores[:, 0]) - labels * scores[:, 0], np.float64)

    def predicted(self, scores: Float64Array) -> Float64Array:
        """Mean counts."""
        return np.asarray(np.exp(scores), np.float64)


@dataclass(frozen=True)
class Gradients:
    """Gradients and hessians of one tree as whole numbers, with the bits behind the point of each.

    >>> numbers = Gradients.of(np.array([0.5, -0.25]), np.array([0.25, 0.25]), most_total=64)
    >>> numbers.g.tolist(), numbers.g_bits, numbers.h.tolist(), numbers.h_bits
    ([32, -16], 6, [32, 32], 7)
    """

    g: Int64Array
    h: Int64Array
    g_bits: int
    h_bits: int

    @classmethod
    def of(cls, g: Float64Array, h: Float64Array, *, most_total: int = MOST_TOTAL) -> Gradients:
        """Round to as many bits as sums of all rows allow.

        Raises:
            Overflow: A number is infinite or not a number, or too large for its square.
        """
        (whole_g, g_bits), (whole_h, h_bits) = _whole(g, most_total, "gradients"), _whole(h, most_total, "hessians")
        return cls(whole_g, whole_h, g_bits, h_bits)

    def reals(self, sums: NDArray[np.int64]) -> Float64Array:
        """Sums (..., 2) of gradients and of hessians as reals; a power of two divides them, so nothing is rounded."""
        return np.asarray(np.ldexp(sums.astype(np.float64), np.array([-self.g_bits, -self.h_bits])), np.float64)


def _whole(values: Float64Array, most_total: int, what: str) -> tuple[Int64Array, int]:
    """Numbers times the largest power of two with which their absolute values sum to at most `most_total`."""
    with np.errstate(over="ignore"):
        total = float(np.abs(values).sum())
    if not total <= MOST_REAL_TOTAL:
        raise Overflow(
            f"The {what} of a tree should be finite numbers with finite squares, but their absolute values sum to "
            f"{total:g}. Lower learning_rate, or scale labels and weights down."
        )
    # The smallest total that says anything: below it there are more bits than are ever used.
    total = max(total, most_total * 2.0 ** -(MOST_FRACTION_BITS + 1))
    bits = min(MOST_FRACTION_BITS, floor(log2(most_total / total)))
    while True:
        whole = np.rint(np.ldexp(values, bits)).astype(np.int64)
        # Rounding may add half a unit for each row.
        if int(np.abs(whole).sum()) <= most_total:
            return whole, bits
        bits -= 1
