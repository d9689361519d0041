"""The label party's rows in parts, and what rows that a fit has not seen say about it, through noise that is known.

A fit scaled by c gains on unseen rows, over predicting their mean,

    2 c a - c^2 b        a = <y, f>,   b = |f|^2,   f = z w of inputs without noise

so that the best factor is a / b. Released inputs give both without bias, b once the noise that f carries is taken off:
centred by their own mean, n rows carry n - 1 times tr(w' Sigma w). Of a they say much. Of b they say little under much
noise, because it is the small difference of two large sums. The noise itself says more: if inputs varied in all
directions in proportion to their noise, b were tr(w' Sigma w) times the ratio r of all their variance to all the noise,
which is known well. That value is taken as far as the rows do not refute it: moved into the interval of three standard
errors around what they say. The factor is (a - 2 standard errors) / b, at most 1, and none where that is not positive:
then the mean is predicted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from colonnade.curves.basis import FloatArray
from colonnade.models.functional.exchange import NewInputs
from colonnade.models.functional.moments import Moments, form_moments
from colonnade.wire.message import Int64Array

FOLDS = 3
# What is gained must be significant: two standard errors are the usual 95 %.
SIGNIFICANT = 2.0
REFUTED = 3.0


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

    def moments(self, half: str, *, without: int | None = None) -> Moments:
        """The moments of one half, perhaps without the rows of a fold."""
        found = [m for (fold, name), m in self._moments.items() if name == half and fold != without]
        total = found[0]
        for each in found[1:]:
            total = total + each
        return total

    @cached_property
    def variance_over_noise(self) -> float:
        """What all inputs vary in all, over all noise that is in them."""
        moments = self.moments("A") + self.moments("B")
        noise = float(np.trace(self.noise, axis1=1, axis2=2).sum())
        return max(float(np.trace(moments.gram)) / moments.freedom, 0.0) / noise

    def corrections(self) -> tuple[float, ...]:
        """How much of the noise might be taken off: all of it, none, half, or all but a little.

        What is left acts as a ridge. Under much noise a good one is not half of the noise but as large as what the
        inputs themselves vary, or ten times that.
        """
        near_all = (1 - self.variance_over_noise, 1 - 10 * self.variance_over_noise)
        return tuple(dict.fromkeys((1.0, *(each for each in near_all if each > 0.5), 0.5, 0.0)))

    def judge(self, fits: Sequence[FloatArray], inputs: NewInputs) -> GuardVerdict:
        """What each fold says about coefficients that were fitted without it.

        With inputs "released" new inputs will carry noise as these do, and what it adds to an error counts.
        """
        products, squares, expected = [], [], 0.0
        for fold, w in zip(self.folds, fits, strict=True):
            noise = float(np.einsum("jqk,jqr,jrk->", w, self.noise, w))
            for half in "AB":
                rows = self.parts[fold, half]
                n = len(rows)
                z, y = self.z[rows] - self.z[rows].mean(axis=0), self.y[rows] - self.y[rows].mean(axis=0)
                fitted = z.reshape(n, -1) @ w.reshape(-1, w.shape[2])
                taken_off = noise * (1 - 1 / n) if inputs == "partial" else 0.0
                products.append((y * fitted).sum(axis=1))
                squares.append((fitted**2).sum(axis=1) - taken_off)
                expected += n * noise * (self.variance_over_noise + (inputs == "released"))
        return GuardVerdict.of(np.concatenate(products), np.concatenate(squares), expected)


@dataclass(frozen=True)
class GuardVerdict:
    """What unseen rows say about a fit.

    Attributes:
        gain: What the fit as it is gains over the mean, without bias.
        factor: How much of it to take; none if what it gains is not significant.
        sure_gain: What so much of it gains, judged with caution.
    """

    gain: float
    factor: float
    sure_gain: float

    @classmethod
    def of(cls, products: FloatArray, squares: FloatArray, expected: float) -> GuardVerdict:
        """The verdict of rows: products of their outputs and fits, and squares of their fits, noise taken off.

        `expected` is what the squares were in all if inputs varied in proportion to their noise.

        >>> rows = np.random.default_rng(0).normal(size=(2, 400)) + 3
        >>> round(GuardVerdict.of(rows[0], 2 * rows[1], 2400.0).factor, 1)
        0.5
        """
        root = np.sqrt(len(products))
        a = float(products.sum() - SIGNIFICANT * products.std(ddof=1) * root)
        told, reach = float(squares.sum()), REFUTED * float(squares.std(ddof=1)) * float(root)
        b = min(max(expected, told - reach), told + reach)
        factor = min(1.0, a / b) if a > 0 < b else 0.0
        return cls(float(2 * products.sum() - told), factor, 2 * factor * a - factor**2 * b)
