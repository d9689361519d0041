"""scikit-fda's objects in and out; the extra `fda`."""

from __future__ import annotations

from typing import Any

import numpy as np

from colonnade.curves.basis import Basis, BSplines, FloatArray, Fourier
from colonnade.curves.smoothing import smooth_grid
from colonnade.errors import DataError, MissingExtra


def to_skfda(coefficients: FloatArray, basis: Basis) -> Any:
    """The curves as an `FDataBasis`, or an `FDataGrid` where scikit-fda lacks the basis."""
    skfda = _skfda()
    if isinstance(basis, BSplines):
        theirs = skfda.representation.basis.BSplineBasis(
            domain_range=basis.domain, n_basis=basis.size, order=basis.order, knots=list(basis.breaks)
        )
        return skfda.FDataBasis(theirs, coefficients)
    starts_at_zero = basis.domain[0] == 0
    if isinstance(basis, Fourier) and starts_at_zero:
        theirs = skfda.representation.basis.FourierBasis(
            domain_range=basis.domain, n_basis=basis.size, period=basis.period
        )
        return skfda.FDataBasis(theirs, coefficients)
    grid = np.linspace(*basis.domain, max(201, 10 * basis.size))
    return skfda.FDataGrid(coefficients @ basis.evaluate(grid).T, grid)


def from_skfda(data: Any, basis: Basis | None) -> tuple[FloatArray, Basis, float | None]:
    """Coefficients of an `FDataBasis`, or of an `FDataGrid` that is smoothed; their basis; the penalty if smoothed."""
    skfda = _skfda()
    if not isinstance(data, skfda.FDataBasis | skfda.FDataGrid) or data.dim_domain != 1 or data.dim_codomain != 1:
        raise DataError(
            "Functions of one variable with one value were expected, as scikit-fda's FDataBasis or FDataGrid, but a "
            f"{type(data).__name__} came. Convert it, or take one of its dimensions."
        )
    if isinstance(data, skfda.FDataGrid):
        if basis is None:
            raise DataError("An FDataGrid has no basis to keep, and none was given. Name one with basis=.")
        return _smoothed(data.data_matrix[..., 0], data.grid_points[0], basis)
    theirs = data.basis
    domain = tuple(float(end) for end in theirs.domain_range[0])
    if isinstance(theirs, skfda.representation.basis.BSplineBasis):
        inner = tuple(float(knot) for knot in theirs.knots[1:-1])
        ours: Basis = BSplines((domain[0], domain[1]), theirs.n_basis, theirs.order, inner)
        even = BSplines(ours.domain, ours.size, theirs.order)
        # Equally spaced knots are left to the basis, so that it equals one that was made without scikit-fda.
        same = np.allclose(even.breaks, [domain[0], *inner, domain[1]], rtol=0, atol=1e-12 * (domain[1] - domain[0]))
        return np.asarray(data.coefficients), even if same else ours, None
    if isinstance(theirs, skfda.representation.basis.FourierBasis) and domain[0] == 0:
        period = None if np.isclose(theirs.period, domain[1]) else float(theirs.period)
        return np.asarray(data.coefficients), Fourier((domain[0], domain[1]), theirs.n_basis, period), None
    if basis is None:
        raise DataError(
            f"scikit-fda's {type(theirs).__name__} has no counterpart here, and no basis was given. "
            "Name one with basis=, and the functions are smoothed into it."
        )
    grid = np.linspace(domain[0], domain[1], max(201, 10 * basis.size))
    return _smoothed(data(grid)[..., 0], grid, basis)


def _smoothed(values: FloatArray, grid: FloatArray, basis: Basis) -> tuple[FloatArray, Basis, float]:
    coefficients, roughness = smooth_grid(np.asarray(values, np.float64), np.asarray(grid), basis, "gcv", 2)
    return coefficients, basis, roughness


def _skfda() -> Any:
    try:
        import skfda
    except ImportError as error:
        raise MissingExtra("fda", "Exchanging curves with scikit-fda") from error
    return skfda
