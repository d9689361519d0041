"""Smoothing: from values on grids to coefficients, with a roughness penalty chosen by generalised cross-validation.

The coefficients of a curve with values x at points t minimise |x - Phi c|^2 + lambda c' Omega c. The same lambda serves
all curves of a set; GCV(lambda) = n |x - Phi c|^2 / (n - df)^2, added up over the curves (Craven & Wahba 1979).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

import numpy as np

from colonnade.curves.basis import Basis, FloatArray, Operator
from colonnade.errors import DataError, PlanError

Roughness: TypeAlias = float | Literal["gcv"]

# Candidates for lambda, as multiples of where data and penalty weigh the same.
_LOWEST, _HIGHEST = -9.0, 6.0


class Pattern:
    """The curves that were seen at the same points, and the pencil that smooths them for every lambda."""

    def __init__(self, basis: Basis, points: FloatArray, values: FloatArray, penalty: FloatArray, scale: float) -> None:
        from scipy.linalg import eigh

        self.values = values
        design = basis.evaluate(points)
        data = design.T @ design
        # With P'(data + r Omega)P = I both are diagonal, however few points there are.
        shares, self._directions = eigh(data, data + scale * penalty)
        self._shares = np.clip(shares, 0.0, 1.0)
        self._projected = values @ design @ self._directions
        self._design = design @ self._directions

    def gains(self, ratio: float) -> FloatArray:
        """How much of each direction is kept at lambda = ratio times the scale."""
        return np.asarray(1 / (self._shares + ratio * (1 - self._shares)))

    def coefficients(self, ratio: float) -> FloatArray:
        """The smoothed curves."""
        return np.asarray((self._projected * self.gains(ratio)) @ self._directions.T)

    def gcv(self, ratio: float) -> float:
        """The generalised cross-validation of these curves, added up."""
        n = self.values.shape[1]
        gains = self.gains(ratio)
        left = n - float((self._shares * gains).sum())
        if left <= 1e-8 * n:
            return float("inf")
        residuals = self.values - (self._projected * gains) @ self._design.T
        return float(n * (residuals**2).sum() / left**2)


def smooth_grid(
    values: FloatArray, grid: FloatArray, basis: Basis, roughness: Roughness, operator: Operator
) -> tuple[FloatArray, float]:
    """Coefficients of curves on a common grid, in which NaN is a missing value, and the lambda that made them."""
    _check_shapes(values, grid)
    seen = np.isfinite(values)
    if infinite := int(np.isinf(values).any(axis=1).sum()):
        raise DataError(
            f"The values of curves should be finite or missing, but {infinite} of {len(values)} curves have infinite "
            "ones. Make them missing or leave the curves out."
        )
    masks, which = np.unique(seen, axis=0, return_inverse=True)
    groups = [np.flatnonzero(which == number) for number in range(len(masks))]
    parts = [(rows, grid[mask], values[np.ix_(rows, mask)]) for rows, mask in zip(groups, masks, strict=True)]
    return _smoothed(parts, len(values), basis, roughness, operator)


def smooth_samples(
    times: Sequence[FloatArray], values: Sequence[FloatArray], basis: Basis, roughness: Roughness, operator: Operator
) -> tuple[FloatArray, float]:
    """Coefficients of curves that were seen at points of their own, and the lambda that made them."""
    if len(times) != len(values):
        raise DataError(
            f"Irregular curves need as many lists of times as of values, but there are {len(times)} and {len(values)}. "
            "Give both for every curve."
        )
    parts = []
    for row, (at, seen) in enumerate(zip(times, values, strict=True)):
        at, seen = np.asarray(at, np.float64), np.asarray(seen, np.float64)
        if at.shape != seen.shape or at.ndim != 1:
            raise DataError(
                f"Each irregular curve needs one value per time, but curve {row} has {at.size} times and {seen.size} "
                "values. Correct it or leave it out."
            )
        kept = ~np.isnan(seen)
        if not np.isfinite(seen[kept]).all():
            raise DataError(
                f"The values of curves should be finite or missing, but curve {row} has infinite ones. "
                "Make them missing or leave the curve out."
            )
        parts.append((np.array([row]), at[kept], seen[kept][None]))
    return _smoothed(parts, len(times), basis, roughness, operator)


def _smoothed(
    parts: Sequence[tuple[np.ndarray, FloatArray, FloatArray]],
    n: int,
    basis: Basis,
    roughness: Roughness,
    operator: Operator,
) -> tuple[FloatArray, float]:
    if roughness != "gcv" and not (isinstance(roughness, int | float) and 0 <= roughness < np.inf):
        raise PlanError(f"The roughness penalty should be 'gcv' or a number from 0, but is {roughness!r}. Correct it.")
    penalty = basis.penalty(operator)
    needed = basis.size - int(np.linalg.matrix_rank(penalty, hermitian=True)) if roughness else basis.size
    short = sum(len(rows) for rows, points, _ in parts if len(np.unique(points)) < max(needed, 1))
    if short:
        raise DataError(
            f"A curve needs at least {max(needed, 1)} observed points to be smoothed, but {short} of {n} curves have "
            "fewer. Leave these curves out, or use a smaller basis."
        )
    # Where data and penalty weigh the same: a scale that a change of units or grids does not move.
    design = np.concatenate([basis.evaluate(points) for _, points, _ in parts])
    weight = float((design**2).sum()) / len(parts)
    scale = weight / max(float(np.trace(penalty)), 1e-300)
    patterns = [Pattern(basis, points, values, penalty, scale) for _, points, values in parts]
    ratio = _best_ratio(patterns) if roughness == "gcv" else float(roughness) / scale
    coefficients = np.empty((n, basis.size))
    for (rows, _, _), pattern in zip(parts, patterns, strict=True):
        coefficients[rows] = pattern.coefficients(ratio)
    return coefficients, ratio * scale


def _best_ratio(patterns: Sequence[Pattern]) -> float:
    from scipy.optimize import minimize_scalar

    def total(exponent: float) -> float:
        return sum(pattern.gcv(10.0**exponent) for pattern in patterns)

    candidates = np.linspace(_LOWEST, _HIGHEST, 31)
    scores = [total(exponent) for exponent in candidates]
    best = int(np.argmin(scores))
    low, high = candidates[max(best - 1, 0)], candidates[min(best + 1, len(candidates) - 1)]
    found = minimize_scalar(total, bounds=(low, high), method="bounded", options={"xatol": 1e-3})
    exponent = float(found.x) if found.fun <= scores[best] else float(candidates[best])
    return float(10.0**exponent)


def _check_shapes(values: FloatArray, grid: FloatArray) -> None:
    if values.ndim != 2 or grid.ndim != 1 or values.shape[1] != len(grid):
        raise DataError(
            f"Curves on a grid of {grid.size} points need one row per curve and one column per point, but the values "
            f"have shape {values.shape}. Transpose them, or give each curve's own times with Curves.smooth_irregular."
        )
    if not (np.isfinite(grid).all() and (np.diff(grid) > 0).all()):
        raise DataError("The points of a grid should rise and be finite, but these do not. Sort them and drop repeats.")
