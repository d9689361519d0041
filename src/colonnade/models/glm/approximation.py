"""Approximation: how far the means that training takes may be from the exact ones, family by family.

A mean is exact at the score that the parties compute, but for four things:

    score      the sum of all parties' parts, in fixed point: off by at most s
    table      the value in the middle of an interval stands for the whole interval, of half the length h
    classes    of K > 2 classes, the logarithm of a sum of K - 1 rates passes through a table of softplus D times
    value      half a unit in the last place of a mean

    linear     s
    logistic   h / 4, as the logistic function is no steeper, and 1 / (1 + exp(8)) beyond the table
    classes    the score less this logarithm is off by e, D times what softplus is off and K s; a mean is off by
               (h + e) / 4, the last one by (exp(h + e) - 1) (1 - 1 / (K - 1)) and what the others miss beyond the table
    Poisson    exp(h + s) - 1 of the rate; exp(-12) mean rates below the table; above, rates count as exp(4) mean rates

The slope p (1 - p) of the logistic function changes by a factor of at most exp(x) over a distance x, and summed over
all classes but the last it is at most 1 - 1 / (K - 1). How many scores lie beyond a table nobody learns in training.
Parties round their columns too: each knows what that does to its own part of a score, and nothing of others' parts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil, exp, expm1, floor, log10

import numpy as np

from colonnade.models.glm.families import CLASS_MEANS, SOFTPLUS, Family, MeanTable
from colonnade.wire.message import Float64Array


@dataclass(frozen=True)
class Approximation:
    """How far the means that training took may be from the exact means at the same scores.

    A mean m is taken as a number that is off by at most `absolute` + `relative` * m. Numbers count in probabilities in
    logistic regression, in mean rates in Poisson regression, and in linear regression in the largest distance between
    a label and the mean of all labels.

    Attributes:
        family: "linear", "logistic" or "Poisson".
        absolute: How far a mean is off at most, apart from the relative part.
        relative: As a share of the mean; 0 but in Poisson regression.
        last_class: Of more than two classes, how far the mean of the last class is off at most; None otherwise.
        largest: Means above this count as this; None where there is no such number.
        own_score: How far this party's part of a score is off at most at the end of training, because its columns are
            rounded; where gradients have noise, against its clipped columns. Others' parts add to this. The arbiter
            has no part.
        labels_beyond: At the label party, the share of its labels that are above `largest`; None elsewhere, and where
            there is no such number.

    >>> print(Approximation("logistic", absolute=0.00782, own_score=0.0012))
    A row's mean is off by at most 0.0079; this party's part of a score by at most 0.0012, as its columns are rounded.
    """

    family: str
    absolute: float
    relative: float = 0.0
    last_class: float | None = None
    largest: float | None = None
    own_score: float = 0.0
    labels_beyond: float | None = None

    @classmethod
    def of(
        cls, family: Family, n_outputs: int, *, score_off: float, mean_bits: int, own_score: float = 0.0
    ) -> Approximation:
        """What a training may be off by.

        Args:
            family: The family.
            n_outputs: How many models are trained: one, or one for each class but the last.
            score_off: How far the sum of all parties' parts of a score is off in fixed point: half a unit in the last
                place, or more.
            mean_bits: How many bits means have behind the point.
            own_score: How far this party's part of a score is off, because its columns are rounded.
        """
        table, mean_off = family.table, 2.0 ** -(mean_bits + 1)
        if table is None:
            # The label that is furthest from the mean of all is more than 2 in the units of scores.
            return cls(family.name, score_off / 2, own_score=own_score / 2)
        if n_outputs > 1:
            absolute, last = _of_classes(n_outputs + 1, score_off, mean_off)
            return cls(family.name, absolute, last_class=last, own_score=own_score)
        if table.is_bounded:
            absolute = max(_within(table) + score_off / 4, _beyond(table)) + mean_off
            return cls(family.name, absolute, own_score=own_score)
        lower, upper = table.ends
        relative = float(np.maximum(table.values / lower - 1, 1 - table.values / upper).max())
        relative = (1 + relative) * exp(score_off) - 1
        absolute = float(lower[0]) * exp(score_off) + mean_off
        return cls(family.name, absolute, relative, largest=table.above, own_score=own_score)

    def beside(self, labels: Float64Array) -> Approximation:
        """The same at the label party, which sees how many of its labels are above the largest mean."""
        beyond = None if self.largest is None else float((labels > self.largest).mean())
        return replace(self, labels_beyond=beyond)

    def __str__(self) -> str:
        most, own = _rounded_up(self.absolute), _rounded_up(self.own_score)
        if self.family == "linear":
            found = f"A row's mean is off by at most {most} of the largest distance between a label and the mean label"
            own += " of this distance"
        elif self.largest is None:
            found = f"A row's mean is off by at most {most}"
            if self.last_class is not None:
                found += f" in each class but the last, and by {_rounded_up(self.last_class)} in the last"
        else:
            most = f"{_rounded_up(100 * self.relative)} % and {most} mean rates"
            found = f"A row's rate is off by at most {most}; rates above {self.largest:.1f} mean rates count as "
            found += f"{self.largest:.1f}{self._labels}"
        return f"{found}; {_OWN.format(own)}." if self.own_score else f"{found}."

    @property
    def _labels(self) -> str:
        if self.labels_beyond is None:
            return ""
        share = f"{_rounded_up(100 * self.labels_beyond)} % of the labels are" if self.labels_beyond else "no label is"
        return f", and {share} above"


_OWN = "this party's part of a score by at most {}, as its columns are rounded"


def _within(table: MeanTable) -> float:
    """How far the values of a table are from its function at most; the function is monotone in each interval."""
    return max(float(np.abs(table.values - ends).max()) for ends in table.ends)


def _beyond(table: MeanTable) -> float:
    """How far the function is at most from 0 below the table, and from the last value above it."""
    lower, upper = table.ends
    return float(max(abs(lower[0]), abs(upper[-1] - table.above)))


def _of_classes(n_classes: int, score_off: float, mean_off: float) -> tuple[float, float]:
    """How far means are off of each class but the last, and of the last."""
    # A share is loaded without the cryptography of shared scores.
    from colonnade.models.glm.means import log_sums_of_others

    deepest = float(log_sums_of_others(np.zeros((n_classes, 1)), lambda a, b: np.maximum(a, b) + 1).max())
    # Words of softplus's table have as many bits as scores, so that these are off by no less than half a unit.
    off = deepest * (max(_within(SOFTPLUS), _beyond(SOFTPLUS)) + score_off) + n_classes * score_off
    half, beyond = 2.0 ** -(CLASS_MEANS.step_bits + 1), _beyond(CLASS_MEANS) * exp(off)
    most = max(_within(CLASS_MEANS) + off / 4, beyond) + mean_off
    last = expm1(half + off) * (1 - 1 / (n_classes - 1)) + (n_classes - 1) * (beyond + mean_off)
    return min(most, 1.0), min(last, 1.0)


def _rounded_up(value: float) -> str:
    """A number with two digits, never less than it is.

    >>> _rounded_up(0.00781), _rounded_up(3.17), _rounded_up(0.0)
    ('0.0079', '3.2', '0')
    """
    if value <= 0:
        return "0"
    unit = 10.0 ** (floor(log10(value)) - 1)
    return f"{ceil(value / unit) * unit:.2g}"
