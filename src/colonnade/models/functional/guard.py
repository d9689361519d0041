"""The label party's rows in parts, and what rows that a fit has not seen say about it, through noise that is known.

A fit scaled by c gains on unseen rows, over predicting their mean,

    2 c a - c^2 b        a = <y, f>,   b = |f|^2,   f = z w of inputs without noise

so that the best factor is a / b. Released inputs give both without bias, b once the noise that f carries is taken off:
centred by their own mean, n rows carry n - 1 times tr(w' Sigma w). Under much noise they say little of b, the small
difference of two large sums: inputs may vary far more along a fit than on average, and a fit that is taken too large
is worse than the mean. So both are also taken from their unfavourable ends, three standard errors away. The factor is
a / b, at most 1, and at most the largest by which a fit would gain at those ends. Where none would, the mean is
predicted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from colonnade.curves.basis import FloatArray
from colonnade.models.functional.exchange import NewInputs
from colonnade.models.functional.moments import Moments, form_moments
from colonnade.wire.message import Int64Array

FOLDS = 5
# In how many standard errors a fit must gain: chance exceeds three once in 700 times, and several fits are judged.
CAUTION = 3.0
# A fit that has no good part, and hardly any length, is no worse than so many times as bad.
_FAR = 1e9


@dataclass(frozen=True)
class TrainingRows:
    """The label party's rows: inputs and outputs in coordinates, and their parts.

    A part is a fold and a half. Halves judge each other within a fit; folds judge fits, because judging chooses, and
    what was chosen by a half is not judged honestly by that half.
    """

    z: FloatArray
    y: FloatArray
    noise: FloatArray
    parts: Mapping[tuple[int, str], Int64Array]
    signs: FloatArray | None = None
    _sums: dict[tuple[str, int | None], Moments] = field(default_factory=dict, init=False, repr=False)

    @classmethod
    def of(
        cls, z: FloatArray, y: FloatArray, noise: FloatArray, order: Int64Array, signs: FloatArray | None
    ) -> TrainingRows:
        """Rows dealt out to parts in a given order; without noise there is nothing for folds to judge."""
        n_folds = FOLDS if noise.any() else 1
        cells = [(fold, half) for fold in range(n_folds) for half in "AB"]
        dealt = np.array_split(order, len(cells))
        return cls(z, y, noise, {cell: np.sort(rows) for cell, rows in zip(cells, dealt, strict=True)}, signs)

    @property
    def folds(self) -> range:
        """The numbers of the folds."""
        return range(len(self.parts) // 2)

    def half(self, half: str) -> Int64Array:
        """The rows of one half."""
        return np.concatenate([rows for (_, name), rows in self.parts.items() if name == half])

    @cached_property
    def _moments(self) -> dict[tuple[int, str], Moments]:
        signs = self.signs
        return {
            cell: form_moments(self.z[rows], self.y[rows], self.noise, None if signs is None else signs[rows])
            for cell, rows in self.parts.items()
        }

    def moments(self, which: str, *, without: int | None = None) -> Moments:
        """The moments of half A, of half B or of both (F), perhaps without the rows of a fold.

        Those of the last fold are kept, because several fits ask for them.
        """
        if any(fold != without for _, fold in self._sums):
            self._sums.clear()
        if (which, without) not in self._sums:
            if which == "F":
                found = [self.moments(half, without=without) for half in "AB"]
            else:
                found = [m for (fold, half), m in self._moments.items() if half == which and fold != without]
            self._sums[which, without] = Moments.pooled(found)
        return self._sums[which, without]

    @cached_property
    def variance_over_noise(self) -> float:
        """What all inputs vary in all, over all noise that is in them."""
        total, freedom = np.sum([(m.trace, m.freedom) for m in self._moments.values()], axis=0)
        noise = float(np.trace(self.noise, axis1=1, axis2=2).sum())
        return float(max(total / freedom, 0.0) / noise)

    def corrections(self) -> tuple[float, ...]:
        """How much of the noise might be taken off: all of it, none, half, or all but a little.

        What is left acts as a ridge. Under much noise a good one is not half of the noise but as large as what the
        inputs themselves vary, or ten times that.
        """
        near_all = (1 - self.variance_over_noise, 1 - 10 * self.variance_over_noise)
        return tuple(dict.fromkeys((1.0, *(each for each in near_all if each > 0.5), 0.5, 0.0)))

    def judge(self, fits: Sequence[FloatArray], inputs: NewInputs) -> GuardVerdict:
        """What each fold says about coefficients that were fitted without it; fits of the first folds come first.

        With inputs "released" new inputs will carry noise as these do, and what it adds to an error counts.
        """
        products, squares = [], []
        for fold, w in enumerate(fits):
            noise = float(np.vdot(w, self.noise @ w))
            for half in "AB":
                rows = self.parts[fold, half]
                n = len(rows)
                z, y = self.z[rows].reshape(n, -1), self.y[rows]
                fitted = (z - z.mean(axis=0)) @ w.reshape(-1, w.shape[2])
                taken_off = noise * (1 - 1 / n) if inputs == "partial" else 0.0
                products.append(((y - y.mean(axis=0)) * fitted).sum(axis=1))
                squares.append((fitted**2).sum(axis=1) - taken_off)
        return GuardVerdict.of(np.concatenate(products), np.concatenate(squares))


@dataclass(frozen=True)
class GuardVerdict:
    """What unseen rows say about a fit.

    Attributes:
        gain: What the fit as it is gains over the mean, without bias.
        factor: How much of it to take; none if what it gains is not significant.
        merit: What its best part gains, judged with some caution: the larger, the better is the fit.
    """

    gain: float
    factor: float
    merit: float

    @classmethod
    def of(cls, products: FloatArray, squares: FloatArray) -> GuardVerdict:
        """The verdict of rows: products of their outputs and fits, and squares of their fits, noise taken off.

        >>> rows = np.random.default_rng(0).normal(size=(2, 400)) + 3
        >>> round(GuardVerdict.of(rows[0], 2 * rows[1]).factor, 1)
        0.5
        """
        a, b = float(products.sum()), float(squares.sum())
        a_error, b_error = (float(np.sqrt(len(each)) * each.std(ddof=1)) for each in (products, squares))
        least, most = a - CAUTION * a_error, b + CAUTION * b_error
        factor = min(1.0, 2 * least / most, a / b if b > 0 else np.inf) if least > 0 < most else 0.0
        # One standard error away, what the best part of a fit gains; what has no good part is the worse the larger.
        likely, wide = a - a_error, max(b + b_error, 1e-300)
        part = float(np.clip(likely / wide, -_FAR, 1.0))
        merit = 2 * part * likely - part**2 * wide
        return cls(2 * a - b, factor, merit if likely > 0 else -merit)
