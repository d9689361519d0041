"""Families: what labels mean in linear, logistic and Poisson regression, and where their means come from.

                loss of a row                     label t                        mean m          gradient
    linear      (u - y)^2                         (y - centre) / scale           u               2 (m - t)
    logistic    log(1 + exp(u)) - y u             y, 0 or 1                      logistic(u)     m - t
    Poisson     exp(u) - y u                      y / mean                       exp(u)          mean (m - t)

The score u counts from `centre`, in units of `scale`. With more than two classes there is one logistic model for each
class against all others. Scores are shared between two parties, so a mean other than u is read from a table
(`MeanTable`) in steps of 1/16: the logistic function between -8 and 8, 0 and 1 beyond, off by at most 0.008 for a row
and by far less on average; and for Poisson regression exp up to 4 above the mean rate's logarithm, off by at most 3.2 %
for a row, and exp(4) mean rates beyond.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, exp, log, log2
from typing import Any

import numpy as np
from numpy.typing import NDArray

from colonnade.errors import DataError
from colonnade.models.base import require_classes
from colonnade.wire.message import Float64Array


@dataclass(frozen=True)
class RegressionLoss:
    """A loss by its gradient: `factor` times the columns times mean less label.

    Attributes:
        labels: What means are compared with, (models, rows): one model, or one for each of more than two classes.
        factor: What the difference is multiplied by.
        curvature: How strongly the loss bends at most.
        scale: What the score is multiplied by.
        centre: What is added to it.
    """

    labels: Float64Array
    factor: float
    curvature: float
    scale: float = 1.0
    centre: float = 0.0


@dataclass(frozen=True)
class MeanTable:
    """The mean as a table over shared scores: 0 below the table, `above` beyond it.

    Attributes:
        first: Where the table begins.
        step_bits: An interval of the table is 2^-step_bits long.
        values: The mean in each interval, a power of two of them.
        above: The mean of scores above the table.
    """

    first: float
    step_bits: int
    values: Float64Array
    above: float

    @classmethod
    def of(
        cls,
        function: Callable[[Float64Array], Float64Array],
        first: float,
        above: float,
        *,
        step_bits: int = 4,
        place_bits: int = 8,
    ) -> MeanTable:
        """The table of a function from a score on: its values in the middle of the intervals."""
        middles = first + np.ldexp(np.arange(2**place_bits) + 0.5, -step_bits)
        return cls(first, step_bits, function(middles), above)

    def __call__(self, scores: Float64Array) -> Float64Array:
        """The mean at scores."""
        places = np.floor(np.ldexp(scores - self.first, self.step_bits)).astype(np.int64)
        bounded = np.r_[0.0, self.values, self.above]
        return np.asarray(bounded[np.clip(places + 1, 0, len(bounded) - 1)])


@dataclass(frozen=True)
class Family:
    """What labels mean to a generalised linear model.

    Attributes:
        name: What it is called.
        checked: Labels as numbers, refused where they do not belong to the family.
        loss: The loss, from such numbers.
        mean: The link's inverse.
        table: The link's inverse as it is looked up, relative to the mean rate; None where it is the identity.
        bend: How strongly the loss of a row bends at a usual score, which all parties know.
        shrinkage: What the penalty adds to the gradient of the mean loss for each unit of a coefficient, from alpha
            and the sum of all rows' weights.
        approximation: How close means are to the exact ones, in words.
    """

    name: str
    checked: Callable[[NDArray[Any], str], Float64Array]
    loss: Callable[[Float64Array], RegressionLoss]
    mean: Callable[[Float64Array], Float64Array]
    table: MeanTable | None
    bend: float
    shrinkage: Callable[[float, float], float]
    approximation: str


def _numbers(labels: NDArray[Any], owner: str) -> Float64Array:
    try:
        numbers = np.asarray(labels, np.float64)
    except (TypeError, ValueError) as error:
        raise DataError(
            f"{owner}'s labels should be numbers for a regression, but are {labels.dtype}. Name another label column."
        ) from error
    if not np.isfinite(numbers).all():
        count = int((~np.isfinite(numbers)).sum())
        raise DataError(
            f"{owner}'s labels should be finite, but {count:,} of {len(numbers):,} are not. Remove these rows."
        )
    return numbers


def _counts(labels: NDArray[Any], owner: str) -> Float64Array:
    numbers = _numbers(labels, owner)
    negative = int((numbers < 0).sum())
    if negative or not numbers.any():
        what = f"{negative:,} of {len(numbers):,} are negative" if negative else "all are 0"
        raise DataError(
            f"{owner}'s labels should be counts, 0 or more and not all 0, for Poisson regression, but {what}. "
            "Use linear regression or another label column."
        )
    return numbers


def _codes(labels: NDArray[Any], owner: str) -> Float64Array:
    classes = require_classes(labels, owner)
    return np.searchsorted(classes, labels).astype(np.float64)


def _linear(labels: Float64Array) -> RegressionLoss:
    centre = float(labels.mean())
    largest = float(np.abs(labels - centre).max(initial=0.0))
    scale = 2.0 ** ceil(log2(largest / 4)) if largest > 0 else 1.0
    return RegressionLoss((labels - centre)[None] / scale, 2.0, 2.0, scale, centre)


def _logistic(codes: Float64Array) -> RegressionLoss:
    n_classes = int(codes.max()) + 1
    # Of more than two classes each one is told from all others.
    labels = codes[None] if n_classes == 2 else (codes == np.arange(n_classes)[:, None]).astype(np.float64)
    return RegressionLoss(labels, 1.0, 0.25)


def _poisson(counts: Float64Array) -> RegressionLoss:
    mean = float(counts.mean())
    # exp bends more the larger the rate: four times the mean rate is taken as the most.
    return RegressionLoss(counts[None] / mean, mean, 4 * mean, centre=log(mean))


def _sigmoid(scores: Float64Array) -> Float64Array:
    return np.asarray(0.5 * (1 + np.tanh(scores / 2)))


LINEAR = Family(
    name="linear",
    checked=_numbers,
    loss=_linear,
    mean=lambda scores: scores,
    table=None,
    bend=2.0,
    shrinkage=lambda alpha, total: 2 * alpha / total,
    approximation="exact but for fixed point",
)
LOGISTIC = Family(
    name="logistic",
    checked=_codes,
    loss=_logistic,
    mean=_sigmoid,
    table=MeanTable.of(_sigmoid, -8.0, above=1.0),
    bend=0.25,
    shrinkage=lambda alpha, total: alpha / total,
    approximation="a row's mean is off by at most 0.008",
)
POISSON = Family(
    name="Poisson",
    checked=_counts,
    loss=_poisson,
    mean=np.exp,
    table=MeanTable.of(np.exp, -12.0, above=exp(4.0)),
    bend=1.0,
    shrinkage=lambda alpha, total: alpha,
    approximation="a row's rate is off by at most 3.2 %, and rates above 54 mean rates count as 54",
)
