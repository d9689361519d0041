"""The penalised normal equation of function-on-function regression, solved by simultaneous diagonalisation.

In coordinates (colonnade.curves) the model is y = z W, and W minimises the squared error with three penalties: on
roughness of the coefficient surface in the input's time, in the output's time, and in both:

    (G + ls Ox) W + lt W Oy + lst Ox W Oy = C      G = Z'Z / (n - 1),  C = Z'Y / (n - 1)

Only I and Oy stand on the right of W, so that with A1 = G + ls Ox and A2 = lt I + lst Ox it is

    A1 W + A2 W Oy = C

and two eigenproblems make it diagonal: P'A1P = I, P'A2P = diag(a), V'OyV = diag(m). Then
W = P [(P'CV) / (1 + a m')] V', whose divisors lie above 1. One factorisation serves any number of right-hand sides.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np

from colonnade.curves import Basis, Operator
from colonnade.curves.basis import FloatArray
from colonnade.errors import DataError
from colonnade.parameters import Limit, check_parameters, number, truth


@dataclass(frozen=True)
class Penalties:
    """How strongly roughness of a coefficient surface is punished, and what roughness is.

    Attributes:
        s: The weight of roughness in the input's time.
        t: In the output's time.
        st: In both.
        relative: Whether the three are multiples of where data and penalty weigh the same, so that neither the unit of
            time nor the scale of the curves changes what they mean.
        operator_s: What roughness is in the input's time: the order of a derivative, or weights of derivatives.
        operator_t: What it is in the output's time.

    >>> Penalties(s=0.05, t=0.05).st
    0.0
    """

    limits: ClassVar[Mapping[str, Limit]] = {"s": number(0), "t": number(0), "st": number(0), "relative": truth()}

    s: float = 0.0
    t: float = 0.0
    st: float = 0.0
    relative: bool = False
    operator_s: Operator = 2
    operator_t: Operator = 2

    def __post_init__(self) -> None:
        """Refuse a reward for roughness."""
        check_parameters(self)

    def roughness(self, x: Basis, y: Basis) -> SurfaceRoughness:
        """The roughness that is punished, for inputs and outputs in two bases."""
        return SurfaceRoughness.of(x, y, self.operator_s, self.operator_t)

    def absolute(self, gram: FloatArray, roughness: SurfaceRoughness) -> Penalties:
        """The same penalties in the units of the data.

        Args:
            gram: The mean of the squared inputs, of any number of features: only its mean eigenvalue matters.
            roughness: The whitened roughness of inputs and outputs.
        """
        if not self.relative:
            return self
        data = float(np.trace(gram)) / len(gram)
        x, y = (max(float(np.trace(omega)) / len(omega), 1e-300) for omega in (roughness.x, roughness.y))
        return Penalties(self.s * data / x, self.t * data / y, self.st * data / (x * y))


@dataclass(frozen=True)
class SurfaceRoughness:
    """The whitened roughness of inputs and outputs, for one operator each.

    >>> from colonnade.curves import BSplines
    >>> SurfaceRoughness.of(BSplines((0, 1), 5), BSplines((0, 1), 6)).x.shape
    (5, 5)
    """

    x: FloatArray
    y: FloatArray

    @classmethod
    def of(cls, x: Basis, y: Basis, operator_s: Operator = 2, operator_t: Operator = 2) -> SurfaceRoughness:
        """The roughness of a pair of bases."""
        return cls(x.whitened_penalty(operator_s), y.whitened_penalty(operator_t))

    def of_inputs(self, n: int) -> FloatArray:
        """The roughness of several inputs side by side."""
        return np.asarray(np.kron(np.eye(n), self.x), np.float64)

    @cached_property
    def rotation(self) -> tuple[FloatArray, FloatArray]:
        """The eigenvalues of the outputs' roughness, none below zero, and its eigenvectors."""
        values, vectors = np.linalg.eigh(self.y)
        return np.maximum(values, 0.0), vectors


class PenalisedSolver:
    """A1 W + A2 W Oy = C, factored once for any number of right-hand sides C.

    With `gram_y` the equation is A1 W My + A2 W Oy = C, which is that of raw coefficients.

    Args:
        a1: Symmetric and positive definite.
        a2: Symmetric and positive semidefinite.
        omega_y: Symmetric and positive semidefinite.
        gram_y: Symmetric and positive definite; the identity if None.

    >>> solver = PenalisedSolver(2 * np.eye(3), np.eye(3), np.eye(2))
    >>> round(float(solver.solve(np.full((3, 2), 6.0))[0, 0]), 9)
    2.0
    """

    def __init__(self, a1: FloatArray, a2: FloatArray, omega_y: FloatArray, gram_y: FloatArray | None = None) -> None:
        from scipy.linalg import LinAlgError, eigh

        try:
            weights, self._left = eigh(a2, a1)
            roughness, self._right = eigh(omega_y, gram_y)
        except LinAlgError as error:
            raise DataError(
                "The penalised equation needs more information than these rows hold: its matrix is singular. "
                "Raise the penalties, or bring more rows than the basis has functions."
            ) from error
        self._divisors = 1 + np.outer(np.maximum(weights, 0.0), np.maximum(roughness, 0.0))

    def solve(self, c: FloatArray) -> FloatArray:
        """The solution for one right-hand side."""
        # `dot` of small arrays takes half as long as the operator @, which looks for loops over further axes.
        turned = self._left.T.dot(c).dot(self._right)
        turned /= self._divisors
        return np.asarray(self._left.dot(turned).dot(self._right.T))


def solve_penalised(
    gram: FloatArray, cross: FloatArray, omega_x: FloatArray, omega_y: FloatArray, penalties: Penalties
) -> FloatArray:
    """The coefficients of one input, or of several side by side: W of (G + ls Ox) W + lt W Oy + lst Ox W Oy = C.

    Raises `DataError` if the Gram matrix G with its penalty is singular.
    """
    used = penalties.absolute(gram, SurfaceRoughness(omega_x, omega_y))
    a1 = gram + used.s * omega_x
    a2 = used.t * np.eye(len(gram)) + used.st * omega_x
    return PenalisedSolver(a1, a2, omega_y).solve(cross)


class BlockSolver:
    """The equations of many inputs, each by itself and all at once: one increment of every feature per boosting step.

    Outputs are rotated by the eigenvectors of their roughness, so that columns do not mix. Penalties are absolute.
    Blocks may have any number of axes before those of the matrix.
    """

    def __init__(self, blocks: FloatArray, omega_x: FloatArray, roughness_y: FloatArray, penalties: Penalties) -> None:
        values, vectors = np.linalg.eigh(blocks + penalties.s * omega_x)
        if (values <= values.shape[-1] * np.finfo(float).eps * values[..., -1:]).any():
            raise DataError(
                "Every feature's equation needs more information than these rows hold: a matrix is singular. "
                "Raise the penalties, or bring more rows than the basis has functions."
            )
        self.left, weights = vectors / np.sqrt(values)[..., None, :], penalties.t / values
        if penalties.st:
            a2 = penalties.t * np.eye(blocks.shape[-1]) + penalties.st * omega_x
            weights, vectors = np.linalg.eigh(self.left.swapaxes(-1, -2) @ a2 @ self.left)
            self.left = self.left @ vectors
        self.left_t = np.ascontiguousarray(self.left.swapaxes(-1, -2))
        self.gains = 1 / (1 + np.maximum(weights, 0.0)[..., None] * roughness_y)

    def solve(self, cross: FloatArray) -> FloatArray:
        """Every feature's solution for its own right-hand side, shape (features, size, outputs)."""
        return np.asarray(self.left @ ((self.left_t @ cross) * self.gains))
