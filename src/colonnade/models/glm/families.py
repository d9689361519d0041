"""Families: what labels mean in linear, logistic and Poisson regression, and their quadratic approximations.

                exact loss                        pseudo-response t              curvature c     exact where
    linear      (u - y)^2                         (y - centre) / scale           2               everywhere
    logistic    log(1 + exp(-y u)), y = +-1       2 y                            1/4             u = 0
    Poisson     exp(u) - y u                      y / mean - 1, about log mean   mean            u = log mean

Only c/2 (u - t)^2 is minimised where all that can be encrypted is linear: the second-order Taylor approximation. On
shares, gradients are those of the exact loss but for the mean, which is read from a table (`MeanTable`) in steps of
1/16: the logistic function between -8 and 8, 0 and 1 beyond, off by at most 0.008 for a row and by far less on average;
and for Poisson regression exp up to 4 above the mean rate's logarithm, off by at most 3.2 % for a row, and exp(4) mean
rates beyond.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, log, log2
from typing import Any

import numpy as np
from numpy.typing import NDArray

from colonnade.errors import DataError
from colonnade.models.base import require_classes
from colonnade.wire.message import Float64Array


@dataclass(frozen=True)
class Quadratic:
    """A loss as a parabola over each row's score.

    Attributes:
        values: The pseudo-responses, in units of `scale` and from `centre`.
        curvature: Twice the factor of the squares.
        scale: What the score is multiplied by.
        centre: What is added to it.
        constant: What the loss has besides the squares.
    """

    values: Float64Array
    curvature: float
    scale: float = 1.0
    centre: float = 0.0
    constant: float = 0.0

    def loss(self, squares: float, n_rows: int) -> float:
        """The mean loss per row, given the sum of squared residuals."""
        return (self.curvature / 2 * squares * self.scale**2 + self.constant) / n_rows


@dataclass(frozen=True)
class SharedLoss:
    """A loss as it is known on shares: its gradient is `factor` times the columns times mean less label.

    Attributes:
        labels: What the mean is compared with.
        factor: What the difference is multiplied by.
        curvature: How strongly the loss bends at most.
    """

    labels: Float64Array
    factor: float
    curvature: float


@dataclass(frozen=True)
class MeanTable:
    """The mean as a table over scores, for shares: 0 below the table, `above` beyond it.

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
        cls, function: Callable[[Float64Array], Float64Array], first: float, *, step_bits: int = 4, place_bits: int = 8
    ) -> MeanTable:
        """The table of a function from a score on: its values in the middle of the intervals."""
        middles = first + np.ldexp(np.arange(2**place_bits) + 0.5, -step_bits)
        end = np.array([first + 2.0 ** (place_bits - step_bits)])
        return cls(first, step_bits, function(middles), float(function(end)[0]))

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
        quadratic: The loss as a parabola, from such numbers.
        on_shares: The loss on shares, from such numbers and the parabola.
        mean: The link's inverse.
        table: The link's inverse on shares, relative to the mean rate; None where it is the identity.
        bend: How strongly the loss of a row bends at a usual score, which all parties know.
        shrinkage: What the penalty adds to the gradient of the mean loss for each unit of a coefficient, from alpha
            and the sum of all rows' weights.
        approximation: How the loss is approximated where only sums are encrypted, in words.
    """

    name: str
    checked: Callable[[NDArray[Any], str], Float64Array]
    quadratic: Callable[[Float64Array], Quadratic]
    on_shares: Callable[[Float64Array, Quadratic], SharedLoss]
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


def _signs(labels: NDArray[Any], owner: str) -> Float64Array:
    classes = require_classes(labels, owner)
    if len(classes) > 2:
        raise DataError(
            f"{owner}'s labels should be of two classes for logistic regression, but there are {len(classes)}. "
            "Join some of them or use another model."
        )
    return np.where(labels == classes[1], 1.0, -1.0)


def _linear(labels: Float64Array) -> Quadratic:
    centre = float(labels.mean())
    largest = float(np.abs(labels - centre).max(initial=0.0))
    scale = 2.0 ** ceil(log2(largest / 4)) if largest > 0 else 1.0
    return Quadratic((labels - centre) / scale, 2.0, scale, centre)


def _logistic(signs: Float64Array) -> Quadratic:
    return Quadratic(2 * signs, 0.25, constant=len(signs) * (log(2) - 0.5))


def _poisson(counts: Float64Array) -> Quadratic:
    mean = float(counts.mean())
    values = counts / mean - 1
    constant = float((mean - counts * log(mean) - mean / 2 * values**2).sum())
    return Quadratic(values, mean, centre=log(mean), constant=constant)


def _sigmoid(scores: Float64Array) -> Float64Array:
    return np.asarray(0.5 * (1 + np.tanh(scores / 2)))


LINEAR = Family(
    name="linear",
    checked=_numbers,
    quadratic=_linear,
    on_shares=lambda labels, target: SharedLoss(target.values, target.curvature, target.curvature),
    mean=lambda scores: scores,
    table=None,
    bend=2.0,
    shrinkage=lambda alpha, total: 2 * alpha / total,
    approximation="exact",
)
LOGISTIC = Family(
    name="logistic",
    checked=_signs,
    quadratic=_logistic,
    on_shares=lambda signs, target: SharedLoss((signs + 1) / 2, 1.0, target.curvature),
    mean=_sigmoid,
    table=MeanTable.of(_sigmoid, -8.0),
    bend=0.25,
    shrinkage=lambda alpha, total: alpha / total,
    approximation="second-order Taylor approximation at score 0",
)
POISSON = Family(
    name="Poisson",
    checked=_counts,
    quadratic=_poisson,
    # exp bends more the larger the rate: four times the mean rate is taken as the most.
    on_shares=lambda counts, target: SharedLoss(counts / target.curvature, target.curvature, 4 * target.curvature),
    mean=np.exp,
    table=MeanTable.of(np.exp, -12.0),
    bend=1.0,
    shrinkage=lambda alpha, total: alpha,
    approximation="second-order Taylor approximation at the mean rate",
)
