"""scikit-fda's objects in and out; the extra `fda`."""

from __future__ import annotations

from typing import Any

import numpy as np

from colonnade.curves.basis import Basis, BSplines, Fourier
from colonnade.curves.curves import Curves
from colonnade.errors import DataError, MissingExtra


def to_skfda(curves: Curves) -> Any:
    """The curves as an `FDataBasis`, or an `FDataGrid` where scikit-fda lacks the basis."""
    skfda = _skfda()
    basis = curves.basis
    if isinstance(basis, BSplines):
        theirs = skfda.representation.basis.BSplineBasis(
            domain_range=basis.domain, n_basis=basis.size, order=basis.order, knots=list(basis.breaks)
        )
        return skfda.FDataBasis(theirs, curves.coefficients)
    starts_at_zero = basis.domain[0] == 0
    if isinstance(basis, Fourier) and starts_at_zero:
        theirs = skfda.representation.basis.FourierBasis(
            domain_range=basis.domain, n_basis=basis.size, period=basis.period
        )
        return skfda.FDataBasis(theirs, curves.coefficients)
    grid = np.linspace(*basis.domain, max(201, 10 * basis.size))
    return skfda.FDataGrid(curves.evaluate(grid), grid)


def from_skfda(data: Any, basis: Basis | None) -> Curves:
    """Curves from an `FDataBasis`, or from an `FDataGrid` smoothed into a basis."""
    skfda = _skfda()
    if not isinstance(data, skfda.FDataBasis | skfda.FDataGrid) or data.dim_domain != 1 or data.dim_codomain != 1:
        raise DataError(
            "Functions of one variable with one value were expected, as scikit-fda's FDataBasis or FDataGrid, but a "
            f"{type(data).__name__} came. Convert it, or take one of its dimensions."
        )
    if isinstance(data, skfda.FDataGrid):
        if basis is None:
            raise DataError("An FDataGrid has no basis to keep, and none was given. Name one with basis=.")
        return Curves.smooth(data.data_matrix[..., 0], data.grid_points[0], basis)
    theirs = data.basis
    domain = tuple(float(end) for end in theirs.domain_range[0])
    if isinstance(theirs, skfda.representation.basis.BSplineBasis):
        inner = tuple(float(knot) for knot in theirs.knots[1:-1])
        ours: Basis = BSplines((domain[0], domain[1]), theirs.n_basis, theirs.order, inner)
        even = BSplines(ours.domain, ours.size, theirs.order)
        # Equally spaced knots are left to the basis, so that it equals one that was made without scikit-fda.
        same = np.allclose(even.breaks, [domain[0], *inner, domain[1]], rtol=0, atol=1e-12 * (domain[1] - domain[0]))
        return Curves(np.asarray(data.coefficients), even if same else ours)
    if isinstance(theirs, skfda.representation.basis.FourierBasis) and domain[0] == 0:
        period = None if np.isclose(theirs.period, domain[1]) else float(theirs.period)
        return Curves(np.asarray(data.coefficients), Fourier((domain[0], domain[1]), theirs.n_basis, period))
    if basis is None:
        raise DataError(
            f"scikit-fda's {type(theirs).__name__} has no counterpart here, and no basis was given. "
            "Name one with basis=, and the functions are smoothed into it."
        )
    grid = np.linspace(domain[0], domain[1], max(201, 10 * basis.size))
    return Curves.smooth(data(grid)[..., 0], grid, basis)


def _skfda() -> Any:
    try:
        import skfda
    except ImportError as error:
        raise MissingExtra("fda", "Exchanging curves with scikit-fda") from error
    return skfda
