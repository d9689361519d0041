"""Curves: a set of functions, each a row of coefficients in one basis; and the Arrow type of a column of curves."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike

from colonnade.curves.basis import Basis, BSplines, FloatArray, Fourier, Operator, basis_of
from colonnade.curves.smoothing import Roughness, smooth_grid, smooth_samples
from colonnade.errors import DataError, imported

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_DRAWN = 100


class CurvesType(pa.ExtensionType):  # type: ignore[misc]
    """A column of curves: a fixed number of coefficients in a basis that the type itself names.

    >>> from colonnade.curves import BSplines
    >>> CurvesType(BSplines((0, 24), 8)).basis.size
    8
    """

    def __init__(self, basis: Basis) -> None:
        self.basis = basis
        super().__init__(pa.list_(pa.float64(), basis.size), "colonnade.curves")

    def __arrow_ext_serialize__(self) -> bytes:
        return description_of(self.basis)

    @classmethod
    def __arrow_ext_deserialize__(cls, storage_type: pa.DataType, serialized: bytes) -> CurvesType:
        return _described_type(serialized)

    def __reduce__(self) -> tuple[type[CurvesType], tuple[Basis]]:
        return CurvesType, (self.basis,)


@lru_cache(maxsize=256)
def description_of(basis: Basis) -> bytes:
    """A basis in words that `described_basis` reads."""
    return json.dumps(basis.describe(), sort_keys=True).encode()


@lru_cache(maxsize=256)
def described_basis(serialized: bytes) -> Basis:
    """The basis that `description_of` described: the same object each time, so that its matrices are formed once."""
    return basis_of(json.loads(serialized))


@lru_cache(maxsize=256)
def _described_type(serialized: bytes) -> CurvesType:
    """The type that a basis gives a column; Arrow asks whenever a column is touched."""
    return CurvesType(described_basis(serialized))


_EXAMPLE = json.loads('{"kind": "fourier", "domain": [0, 1], "size": 1, "period": null}')
# Registered once for the process, so that files with such columns are read back as what they are.
pa.register_extension_type(CurvesType(basis_of(_EXAMPLE)))


@dataclass(frozen=True, eq=False)
class Curves:
    """A set of functions, each a row of coefficients in one basis.

    Attributes:
        coefficients: One row per curve.
        basis: What the coefficients belong to.
        roughness: The penalty they were smoothed with, if they were.

    Example:
        >>> import numpy as np
        >>> from colonnade.curves import BSplines
        >>> hours = np.arange(24.0)
        >>> days = np.sin(np.outer([1.0, 2.0], hours / 4))
        >>> curves = Curves.smooth(days, hours, BSplines((0, 23), 12))
        >>> len(curves), bool(np.abs(curves.evaluate(hours) - days).max() < 0.01)
        (2, True)
    """

    coefficients: FloatArray
    basis: Basis
    roughness: float | None = None

    def __post_init__(self) -> None:
        coefficients = np.asarray(self.coefficients, dtype=np.float64)
        if coefficients.ndim != 2 or coefficients.shape[1] != self.basis.size:
            raise DataError(
                f"Curves in a basis of {self.basis.size} functions need as many coefficients each, but the array has "
                f"shape {coefficients.shape}. Give one row per curve."
            )
        object.__setattr__(self, "coefficients", coefficients)

    @classmethod
    def smooth(
        cls, values: ArrayLike, grid: ArrayLike, basis: Basis, *, roughness: Roughness = "gcv", operator: Operator = 2
    ) -> Curves:
        """Curves from values on a common grid, one row per curve; NaN is a missing value.

        Args:
            values: The values.
            grid: The points, rising.
            basis: The basis.
            roughness: How strongly roughness is punished; "gcv" finds it by generalised cross-validation.
            operator: What roughness is: the squared length of the curve after this differential operator.

        Raises:
            DataError: The grid or a value is not usable, or a curve has too few points.
        """
        arrays = np.asarray(values, np.float64), np.asarray(grid, np.float64)
        coefficients, used = smooth_grid(*arrays, basis, roughness, operator)
        return cls(coefficients, basis, used)

    @classmethod
    def smooth_irregular(
        cls,
        times: Sequence[ArrayLike],
        values: Sequence[ArrayLike],
        basis: Basis,
        *,
        roughness: Roughness = "gcv",
        operator: Operator = 2,
    ) -> Curves:
        """Curves that were seen each at points of its own; see `smooth`."""
        arrays = [np.asarray(at, np.float64) for at in times], [np.asarray(seen, np.float64) for seen in values]
        coefficients, used = smooth_samples(*arrays, basis, roughness, operator)
        return cls(coefficients, basis, used)

    @classmethod
    def of_coordinates(cls, coordinates: FloatArray, basis: Basis) -> Curves:
        """The curves that have these coordinates."""
        return cls(coordinates @ basis.inverse_root, basis)

    @classmethod
    def of_arrow(cls, column: pa.ChunkedArray | pa.Array) -> Curves:
        """The curves of a column, which stay in Arrow's memory where they can; a missing curve has NaN coefficients."""
        curves_type: CurvesType = column.type
        chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
        if len(chunks) == 1 and not chunks[0].null_count:
            storage, size = chunks[0].storage, curves_type.basis.size
            flat = storage.values.slice(storage.offset * size, len(storage) * size)
            return cls(np.asarray(flat, dtype=np.float64).reshape(-1, size), curves_type.basis)
        rows = np.full((len(column), curves_type.basis.size), np.nan)
        start = 0
        for chunk in chunks:
            flat = np.asarray(chunk.storage.flatten(), dtype=np.float64).reshape(-1, curves_type.basis.size)
            valid = np.asarray(chunk.is_valid()) if chunk.null_count else slice(None)
            rows[start : start + len(chunk)][valid] = flat
            start += len(chunk)
        return cls(rows, curves_type.basis)

    def to_arrow(self) -> pa.ExtensionArray:
        """The curves as a column."""
        flat = pa.array(np.ascontiguousarray(self.coefficients).ravel())
        storage = pa.FixedSizeListArray.from_arrays(flat, self.basis.size)
        return pa.ExtensionArray.from_storage(CurvesType(self.basis), storage)

    def __arrow_array__(self, type: pa.DataType | None = None) -> pa.Array:
        """Hand the curves to Arrow, so that they can stand among a table's columns."""
        return self.to_arrow()

    @cached_property
    def coordinates(self) -> FloatArray:
        """Rows whose lengths and inner products are those of the curves in L2."""
        return np.asarray(self.coefficients @ self.basis.root)

    def evaluate(self, points: ArrayLike, derivative: int = 0) -> FloatArray:
        """The curves, or a derivative of them, at some points: one row per curve."""
        return np.asarray(self.coefficients @ self.basis.evaluate(points, derivative).T)

    def take(self, rows: ArrayLike) -> Curves:
        """Some of the curves, in the given order."""
        return Curves(self.coefficients[np.asarray(rows)], self.basis, self.roughness)

    def __len__(self) -> int:
        return len(self.coefficients)

    def __repr__(self) -> str:
        low, high = self.basis.domain
        return f"Curves({len(self):,} curves on [{low:g}, {high:g}], {self.basis.size} {self.basis.kind})"

    def to_skfda(self) -> Any:
        """The curves as a scikit-fda `FDataBasis`, or an `FDataGrid` where scikit-fda lacks the basis."""
        skfda, basis = _skfda(), self.basis
        bases, common = skfda.representation.basis, {"domain_range": basis.domain, "n_basis": basis.size}
        if isinstance(basis, BSplines):
            theirs = bases.BSplineBasis(**common, order=basis.order, knots=list(basis.breaks))
        elif isinstance(basis, Fourier) and basis.domain[0] == 0:
            theirs = bases.FourierBasis(**common, period=basis.period)
        else:
            grid = np.linspace(*basis.domain, max(201, 10 * basis.size))
            return skfda.FDataGrid(self.evaluate(grid), grid)
        return skfda.FDataBasis(theirs, self.coefficients)

    @classmethod
    def from_skfda(cls, data: Any, basis: Basis | None = None) -> Curves:
        """Curves from a scikit-fda object of functions of one variable.

        Args:
            data: An `FDataBasis`, or an `FDataGrid`, which is smoothed.
            basis: The basis for an `FDataGrid`.
        """
        skfda = _skfda()
        if not isinstance(data, skfda.FDataBasis | skfda.FDataGrid) or data.dim_domain != 1 or data.dim_codomain != 1:
            raise DataError(
                "Functions of one variable with one value were expected, as scikit-fda's FDataBasis or FDataGrid, but "
                f"a {type(data).__name__} came. Convert it, or take one of its dimensions."
            )
        if isinstance(data, skfda.FDataGrid):
            if basis is None:
                raise DataError("An FDataGrid has no basis to keep, and none was given. Name one with basis=.")
            return cls.smooth(data.data_matrix[..., 0], data.grid_points[0], basis)
        theirs, bases = data.basis, skfda.representation.basis
        low, high = (float(end) for end in theirs.domain_range[0])
        if isinstance(theirs, bases.BSplineBasis):
            knots = [float(knot) for knot in theirs.knots[1:-1]]
            return cls(data.coefficients, BSplines.with_knots((low, high), theirs.n_basis, theirs.order, knots))
        if isinstance(theirs, bases.FourierBasis) and low == 0:
            period = None if np.isclose(theirs.period, high) else float(theirs.period)
            return cls(data.coefficients, Fourier((low, high), theirs.n_basis, period))
        if basis is None:
            raise DataError(
                f"scikit-fda's {type(theirs).__name__} has no counterpart here, and no basis was given. "
                "Name one with basis=, and the functions are smoothed into it."
            )
        grid = np.linspace(low, high, max(201, 10 * basis.size))
        return cls.smooth(data(grid)[..., 0], grid, basis)

    def plot(self, ax: Axes | None = None, *, rows: ArrayLike | None = None, n_points: int = 200, **style: Any) -> Axes:
        """Draw the curves.

        Args:
            ax: Where to draw; new axes if None.
            rows: Which curves; the first 100 if None.
            n_points: How many points of each are drawn.
            style: What matplotlib's `plot` takes.
        """
        from colonnade.curves.plots import new_axes

        ax = new_axes() if ax is None else ax
        grid = np.linspace(*self.basis.domain, n_points)
        drawn = self.take(np.arange(min(len(self), MOST_DRAWN)) if rows is None else rows)
        ax.plot(grid, drawn.evaluate(grid).T, **{"linewidth": 0.8, "alpha": 0.6, **style})
        return ax


def _skfda() -> Any:
    return imported("skfda", "fda", "Exchanging curves with scikit-fda")
