"""Families: what labels mean in linear, logistic and Poisson regression, and where their means come from.

                loss of a row                     label t                        mean m          gradient
    linear      (u - y)^2                         (y - centre) / scale           u               2 (m - t)
    logistic    log(1 + exp(u)) - y u             y, 0 or 1                      logistic(u)     m - t
    Poisson     exp(u) - y u                      y / mean                       exp(u)          mean (m - t)

The score u counts from `centre`, in units of `scale`. Scores are shared between two parties, so a mean other than u is
read from a table (`MeanTable`) in steps of 1/16: the logistic function between -8 and 8, 0 and 1 beyond, off by at most
0.008 for a row and by far less on average; and for Poisson regression exp up to 4 above the mean rate's logarithm, off
by at most 3.2 % for a row, and exp(4) mean rates beyond.

K > 2 classes are a softmax: class k has a score u_k, and its mean is exp(u_k) over the sum of all exp(u_j). The
residuals of a row add up to 0, and so do its scores from the first step on, so that K - 1 models are trained, and the
last class follows from these (`of_all_classes`). The mean is the logistic function of u_k less the logarithm of the sum
over all other classes, in steps of 1/32 (`CLASS_MEANS`). The logarithm of exp(a) + exp(b) is b + softplus(a - b), and
softplus(x) is the positive part of x plus a table (`SOFTPLUS`). With three classes a mean is off by at most 0.008 for a
row, with up to 16 by at most 0.03; the last class takes up what the others miss.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, exp, log, log2
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from colonnade.errors import DataError
from colonnade.models.base import require_classes
from colonnade.wire.message import Float64Array

D = TypeVar("D", bound=np.generic)


@dataclass(frozen=True)
class RegressionLoss:
    """A loss by its gradient: `factor` times the columns times mean less label.

    Attributes:
        labels: What means are compared with, (models, rows): one model, or one for each class but the last.
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
    """A function as a table over shared scores: 0 below the table, `above` beyond it.

    Attributes:
        first: Where the table begins.
        step_bits: An interval of the table is 2^-step_bits long.
        values: The function in each interval, a power of two of them.
        above: The function of scores above the table.
        function: The function itself, monotone in each interval and beyond the table.
        ramp: Whether a score above 0 is added; `above` is then 0.
    """

    first: float
    step_bits: int
    values: Float64Array
    above: float
    function: Callable[[Float64Array], Float64Array]
    ramp: bool = False

    @classmethod
    def of(
        cls,
        function: Callable[[Float64Array], Float64Array],
        first: float,
        above: float,
        *,
        step_bits: int = 4,
        place_bits: int = 8,
        ramp: bool = False,
    ) -> MeanTable:
        """The table of a function from a score on: its values in the middle of the intervals."""
        middles = first + np.ldexp(np.arange(2**place_bits) + 0.5, -step_bits)
        return cls(first, step_bits, function(middles), above, function, ramp)

    @property
    def ends(self) -> tuple[Float64Array, Float64Array]:
        """The function at the lower and at the upper end of each interval."""
        found = self.function(self.first + np.ldexp(np.arange(len(self.values) + 1.0), -self.step_bits))
        return found[:-1], found[1:]

    @property
    def is_bounded(self) -> bool:
        """Whether the function has a largest value; otherwise `above` stands for all that is larger."""
        return bool(np.isfinite(self.function(np.array([np.inf]))[0]))

    def __call__(self, scores: Float64Array) -> Float64Array:
        """The function at scores."""
        places = np.floor(np.ldexp(scores - self.first, self.step_bits)).astype(np.int64)
        bounded = np.r_[0.0, self.values, self.above]
        found = bounded[np.clip(places + 1, 0, len(bounded) - 1)]
        return np.asarray(found + np.maximum(scores, 0.0) if self.ramp else found)


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
    if n_classes == 2:
        return RegressionLoss(codes[None], 1.0, 0.25)
    # The means p of a row's classes bend by diag(p) - p p', which has no eigenvalue above a half.
    return RegressionLoss((codes == np.arange(n_classes - 1)[:, None]).astype(np.float64), 1.0, 0.5)


def _poisson(counts: Float64Array) -> RegressionLoss:
    mean = float(counts.mean())
    # exp bends more the larger the rate: four times the mean rate is taken as the most.
    return RegressionLoss(counts[None] / mean, mean, 4 * mean, centre=log(mean))


def _sigmoid(scores: Float64Array) -> Float64Array:
    return np.asarray(0.5 * (1 + np.tanh(scores / 2)))


def of_all_classes(found: NDArray[D]) -> NDArray[D]:
    """Numbers of all models (models, ...), with those of the last class where there is more than one model.

    >>> of_all_classes(np.array([[1.0], [2.0]])).ravel().tolist()
    [1.0, 2.0, -3.0]
    """
    if len(found) == 1:
        return found
    last: NDArray[D] = -found.sum(axis=0, keepdims=True, dtype=found.dtype)
    return np.concatenate([found, last])


SOFTPLUS = MeanTable.of(lambda scores: np.log1p(np.exp(-np.abs(scores))), -8.0, above=0.0, ramp=True)
CLASS_MEANS = MeanTable.of(_sigmoid, -8.0, above=1.0, step_bits=5, place_bits=9)

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
    approximation="a row's mean is off by at most 0.008, with more than three classes by up to 0.03",
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
