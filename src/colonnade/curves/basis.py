"""Bases: functions on an interval, with exact Gram and penalty matrices.

Integrals of products are computed by quadrature that is exact for them: Gauss and Legendre's on each piece of a
piecewise polynomial, equally spaced points over the period of a trigonometric polynomial.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, ClassVar, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from colonnade.errors import DataError, PlanError

FloatArray: TypeAlias = NDArray[np.float64]
Operator: TypeAlias = int | Sequence[float | Callable[[FloatArray], FloatArray]]
"""A linear differential operator: D^m for an integer m, else weights w of w[0] + w[1] D + ... + w[m] D^m.

Weights are numbers, or smooth functions of the argument, with which penalties are nearly exact.
"""


@dataclass(frozen=True)
class Basis(ABC):
    """Functions on an interval whose combinations are curves."""

    domain: tuple[float, float]
    size: int

    kind: ClassVar[str]

    def __post_init__(self) -> None:
        low, high = self.domain
        if not (math.isfinite(low) and math.isfinite(high) and low < high):
            raise PlanError(f"A basis needs an interval from low to high, but got {self.domain}. Correct the domain.")
        if self.size < 1:
            raise PlanError(f"A basis needs at least one function, but its size is {self.size}. Choose a larger size.")
        object.__setattr__(self, "domain", (float(low), float(high)))

    @abstractmethod
    def evaluate(self, points: ArrayLike, derivative: int = 0) -> FloatArray:
        """The functions, or a derivative of them, at some points: one row per point, one column per function."""

    @abstractmethod
    def quadrature(self, extra: int = 0) -> tuple[FloatArray, FloatArray]:
        """Points and weights that integrate products of two functions of the basis, or their derivatives, exactly.

        Args:
            extra: How many more points a piece has, for products that are not of the basis alone.
        """

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """The basis as plain data, from which `basis_of` makes it again."""

    def apply(self, operator: Operator, points: FloatArray) -> FloatArray:
        """A linear differential operator applied to the functions, at some points."""
        if isinstance(operator, int):
            return self.evaluate(points, derivative=operator)
        total = np.zeros((len(points), self.size))
        for order, weight in enumerate(operator):
            factor = np.asarray(weight(points))[:, None] if callable(weight) else weight
            total += factor * self.evaluate(points, derivative=order)
        return total

    @cached_property
    def gram(self) -> FloatArray:
        """The inner products of the functions."""
        return self.penalty(0)

    def penalty(self, operator: Operator = 2) -> FloatArray:
        """The inner products of the functions after a linear differential operator; 2 gives the usual roughness."""
        _check_operator(operator)
        varies = not isinstance(operator, int) and any(callable(weight) for weight in operator)
        points, weights = self.quadrature(extra=8 if varies else 0)
        values = self.apply(operator, points)
        product = (values * weights[:, None]).T @ values
        return (product + product.T) / 2

    @cached_property
    def root(self) -> FloatArray:
        """The symmetric square root of the Gram matrix: coefficients times it are coordinates."""
        return self._gram_to(0.5)

    @cached_property
    def inverse_root(self) -> FloatArray:
        """The inverse of `root`: coordinates times it are coefficients."""
        return self._gram_to(-0.5)

    def whitened_penalty(self, operator: Operator = 2) -> FloatArray:
        """The penalty in coordinates: M^(-1/2) Omega M^(-1/2)."""
        if isinstance(operator, int) and operator in self._whitened:
            return self._whitened[operator]
        product = self.inverse_root @ self.penalty(operator) @ self.inverse_root
        found = (product + product.T) / 2
        if isinstance(operator, int):
            self._whitened[operator] = found
        return found

    @cached_property
    def _whitened(self) -> dict[int, FloatArray]:
        return {}

    def _gram_to(self, power: float) -> FloatArray:
        values, vectors = np.linalg.eigh(self.gram)
        if values[0] <= 1e-12 * values[-1]:
            raise PlanError(
                f"The {self.size} functions of a basis should be linearly independent, but these are not. "
                "Use fewer functions, or others."
            )
        return np.asarray((vectors * values**power) @ vectors.T)

    def _inside(self, points: ArrayLike) -> FloatArray:
        flat = np.atleast_1d(np.asarray(points, dtype=np.float64))
        low, high = self.domain
        slack = 1e-9 * (high - low)
        outside = int(np.count_nonzero(~((flat >= low - slack) & (flat <= high + slack))))
        if outside:
            raise DataError(
                f"Curves on [{low:g}, {high:g}] can be evaluated there only, but {outside} of {flat.size} points lie "
                "outside or are missing. Widen the domain of the basis or leave these points out."
            )
        return np.clip(flat, low, high)


@dataclass(frozen=True)
class BSplines(Basis):
    """Splines: piecewise polynomials that join smoothly at equally spaced knots, or at given ones.

    Args:
        order: One more than the degree of the pieces; 4 for cubic splines.
        knots: Where pieces meet inside of the interval; size - order of them.

    Example:
        >>> BSplines((0, 100), 20).gram.shape
        (20, 20)
    """

    order: int = 4
    knots: tuple[float, ...] | None = None

    kind = "b-splines"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.order <= self.size:
            raise PlanError(
                f"Splines of order {self.order} need a size of {self.order} or more, but size is {self.size}. "
                "Raise the size or lower the order."
            )
        if self.knots is None:
            return
        inner = (self.domain[0], *self.knots, self.domain[1])
        if len(self.knots) != self.size - self.order or any(a > b for a, b in pairwise(inner)):
            raise PlanError(
                f"{self.size} splines of order {self.order} need {self.size - self.order} rising knots inside of "
                f"{self.domain}, but got {len(self.knots)} knots. Correct the knots or the size."
            )
        object.__setattr__(self, "knots", tuple(float(knot) for knot in self.knots))

    @classmethod
    def with_knots(cls, domain: tuple[float, float], size: int, order: int, knots: Sequence[float]) -> BSplines:
        """Splines with these knots; where the knots are equally spaced, the same as splines made without any."""
        even = cls(domain, size, order)
        is_even = np.allclose(even.breaks[1:-1], knots, rtol=0, atol=1e-9 * (domain[1] - domain[0]))
        return even if is_even else cls(domain, size, order, tuple(knots))

    @cached_property
    def breaks(self) -> FloatArray:
        """The ends of the pieces."""
        low, high = self.domain
        if self.knots is None:
            return np.linspace(low, high, self.size - self.order + 2)
        return np.array([low, *self.knots, high])

    def evaluate(self, points: ArrayLike, derivative: int = 0) -> FloatArray:
        from scipy.interpolate import BSpline

        inside = self._inside(points)
        if derivative >= self.order:
            return np.zeros((len(inside), self.size))
        edges = self.breaks[[0] * (self.order - 1)], self.breaks, self.breaks[[-1] * (self.order - 1)]
        splines = BSpline(np.concatenate(edges), np.eye(self.size), self.order - 1)
        return np.asarray(splines(inside, nu=derivative))

    def quadrature(self, extra: int = 0) -> tuple[FloatArray, FloatArray]:
        """Gauss and Legendre's points on each piece; as many as the order are exact for products."""
        return _piecewise(np.unique(self.breaks), self.order + extra)

    def describe(self) -> dict[str, Any]:
        knots = None if self.knots is None else list(self.knots)
        return {"kind": self.kind, "domain": list(self.domain), "size": self.size, "order": self.order, "knots": knots}


@dataclass(frozen=True)
class Fourier(Basis):
    """A constant and pairs of sines and cosines, orthonormal over one period.

    Args:
        size: An odd number.
        period: The length of the interval if None.

    Example:
        >>> import numpy as np
        >>> bool(np.allclose(Fourier((0, 365), 15).gram, np.eye(15)))
        True
    """

    period: float | None = None

    kind = "fourier"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.size % 2 == 0:
            raise PlanError(
                f"A Fourier basis has a constant and pairs, hence an odd size, but its size is {self.size}. "
                f"Use {self.size + 1}."
            )
        if self.period is not None and not 0 < self.period < math.inf:
            raise PlanError(f"The period of a Fourier basis should be positive, but is {self.period}. Correct period.")

    def evaluate(self, points: ArrayLike, derivative: int = 0) -> FloatArray:
        inside, period = self._inside(points), self._period
        values = np.zeros((len(inside), self.size))
        values[:, 0] = 0.0 if derivative else 1 / math.sqrt(period)
        for pair in range(1, self.size // 2 + 1):
            frequency = 2 * math.pi * pair / period
            scale = math.sqrt(2 / period) * frequency**derivative
            # Each derivative shifts a sine by a quarter of its period.
            angle = frequency * (inside - self.domain[0]) + derivative * math.pi / 2
            if self.domain[0]:
                angle += frequency * self.domain[0]
            values[:, 2 * pair - 1], values[:, 2 * pair] = scale * np.sin(angle), scale * np.cos(angle)
        return values

    def quadrature(self, extra: int = 0) -> tuple[FloatArray, FloatArray]:
        """Equally spaced points where the interval is one period, else Gauss and Legendre's on short pieces."""
        low, high = self.domain
        if not extra and math.isclose(high - low, self._period, rel_tol=1e-12):
            # Exact for trigonometric polynomials of a degree below the number of points; a product has size - 1.
            n = 2 * self.size
            return low + (high - low) * np.arange(n) / n, np.full(n, (high - low) / n)
        pieces = max(8, math.ceil(2 * self.size * (high - low) / self._period))
        return _piecewise(np.linspace(low, high, pieces + 1), 12 + extra)

    @property
    def _period(self) -> float:
        return self.domain[1] - self.domain[0] if self.period is None else self.period

    def describe(self) -> dict[str, Any]:
        return {"kind": self.kind, "domain": list(self.domain), "size": self.size, "period": self.period}


@dataclass(frozen=True)
class Tabulated(Basis):
    """A user's functions, given by their values at rising points and joined by cubic pieces between them.

    Being piecewise polynomials, they have exact Gram and penalty matrices and can be stored and sent.

    Example:
        >>> import numpy as np
        >>> basis = Tabulated.of(lambda t: np.stack([np.ones_like(t), np.exp(-t)], axis=1), (0, 5))
        >>> basis.size, round(float(basis.gram[0, 0]), 6)
        (2, 5.0)
    """

    points: tuple[float, ...] = ()
    values: tuple[tuple[float, ...], ...] = ()

    kind = "tabulated"

    def __post_init__(self) -> None:
        super().__post_init__()
        table = np.array(self.values, dtype=np.float64)
        rising = len(self.points) >= 4 and bool((np.diff(self.points) > 0).all())
        spans = (
            rising and math.isclose(self.points[0], self.domain[0]) and math.isclose(self.points[-1], self.domain[1])
        )
        if not spans or table.shape != (len(self.points), self.size) or not np.isfinite(table).all():
            raise PlanError(
                f"A tabulated basis needs finite values of its {self.size} functions at four or more rising points "
                f"from {self.domain[0]:g} to {self.domain[1]:g}, but got {len(self.points)} points and values of shape "
                f"{table.shape}. Correct the table."
            )

    @classmethod
    def of(cls, functions: Callable[[FloatArray], FloatArray], domain: tuple[float, float], n: int = 201) -> Tabulated:
        """A basis from a callable at n equally spaced points: one row of values per point, one column per function."""
        points = np.linspace(*domain, n)
        values = np.asarray(functions(points), dtype=np.float64)
        if values.ndim != 2 or len(values) != n:
            raise PlanError(
                f"A basis needs one row of values for each of {n} points, but the callable gave shape {values.shape}. "
                "Return one column per function."
            )
        return cls(domain, values.shape[1], tuple(points.tolist()), tuple(map(tuple, values.tolist())))

    @cached_property
    def _splines(self) -> Any:
        from scipy.interpolate import CubicSpline

        return CubicSpline(np.array(self.points), np.array(self.values))

    def evaluate(self, points: ArrayLike, derivative: int = 0) -> FloatArray:
        inside = self._inside(points)
        return np.zeros((len(inside), self.size)) if derivative > 3 else np.asarray(self._splines(inside, derivative))

    def quadrature(self, extra: int = 0) -> tuple[FloatArray, FloatArray]:
        return _piecewise(np.array(self.points), 4 + extra)

    def describe(self) -> dict[str, Any]:
        values = [list(row) for row in self.values]
        return {"kind": self.kind, "domain": list(self.domain), "size": self.size, "points": list(self.points)} | {
            "values": values
        }


def basis_of(description: Mapping[str, Any]) -> Basis:
    """The basis that `Basis.describe` described.

    Example:
        >>> basis_of(Fourier((0, 1), 3).describe())
        Fourier(domain=(0.0, 1.0), size=3, period=None)
    """
    kinds: dict[str, Callable[..., Basis]] = {each.kind: each for each in (BSplines, Fourier, Tabulated)}
    try:
        fields = dict(description)
        make = kinds[fields.pop("kind")]
        fields["domain"] = tuple(fields["domain"])
        for name in ("knots", "points"):
            if fields.get(name) is not None:
                fields[name] = tuple(fields[name])
        if "values" in fields:
            fields["values"] = tuple(map(tuple, fields["values"]))
        return make(**fields)
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(
            f"The description of a basis was expected, one of {', '.join(kinds)}, but it cannot be understood "
            f"({type(error).__name__}). Write the curves again with this version."
        ) from error


def _check_operator(operator: Operator) -> None:
    if isinstance(operator, int):
        if operator < 0:
            raise PlanError(f"A derivative is of order 0 or more, but the operator is {operator}. Correct it.")
    elif not operator:
        raise PlanError("A differential operator needs at least one weight, but it is empty. Give one per derivative.")


def _piecewise(breaks: FloatArray, n: int) -> tuple[FloatArray, FloatArray]:
    """Gauss and Legendre's points and weights, n on each piece: exact for polynomials up to degree 2n - 1 there."""
    nodes, weights = np.polynomial.legendre.leggauss(n)
    middle, half = (breaks[1:] + breaks[:-1]) / 2, np.diff(breaks) / 2
    return (middle[:, None] + half[:, None] * nodes).ravel(), (half[:, None] * weights).ravel()
