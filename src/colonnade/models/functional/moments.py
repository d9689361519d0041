"""Moments: all that a fit needs of the rows, corrected for the noise that was added to them on purpose.

With released inputs Z = clip(z) + e, e ~ N(0, Sigma), and centring by the noisy means,

    E[Z'Z] = z'z + (n - 1) Sigma,      E[Z'Y] = z'y,      E|Y - Z W|^2 = |y - z W|^2 + (n - 1) tr(W' Sigma W)

so that G = Z'Z - (n - 1) blkdiag(Sigma) is unbiased. It need not be positive; `for_training` repairs it jointly over
all features, which the blocks by themselves must not be: updates of residuals with an indefinite matrix diverge.
Scores and cross-validation use the unrepaired matrix, which is unbiased.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce

import numpy as np

from colonnade.curves.basis import FloatArray


@dataclass(frozen=True, eq=False)
class Products:
    """Z'Z of the inputs Z of all features side by side: of one set of rows, or the sum over several.

    No more is formed than is asked for, and that once: a boosting path asks for the products of a few features, and
    fits to nearly the same rows share most of their sets.

    Attributes:
        n_features: How many features share the columns equally.
        inputs: Z, while it has fewer rows than columns.
        product: Z'Z where Z is not kept.
        parts: The products of the sets, where there are several.

    >>> Products.of(2, np.array([[1.0, 2.0]])).whole.tolist()
    [[1.0, 2.0], [2.0, 4.0]]
    """

    n_features: int
    inputs: FloatArray | None = None
    product: FloatArray | None = None
    parts: tuple[Products, ...] = ()
    _columns: dict[int, FloatArray] = field(default_factory=dict, init=False, repr=False)

    @classmethod
    def of(cls, n_features: int, inputs: FloatArray) -> Products:
        """The products of inputs, which are kept if that takes less room."""
        if len(inputs) < inputs.shape[1]:
            return cls(n_features, inputs)
        return cls(n_features, product=inputs.T @ inputs)

    @cached_property
    def stacked(self) -> FloatArray | None:
        """Z, if it is kept and has fewer rows than columns."""
        if not self.parts:
            return self.inputs
        pieces = [each for part in self.parts if (each := part.stacked) is not None]
        is_wide = len(pieces) == len(self.parts) and sum(map(len, pieces)) < pieces[0].shape[1]
        return np.concatenate(pieces) if is_wide else None

    @cached_property
    def whole(self) -> FloatArray:
        """All of Z'Z."""
        if self.product is not None:
            return self.product
        if self.stacked is not None:
            return self.stacked.T @ self.stacked
        return reduce(np.add, [part.whole for part in self.parts])

    @cached_property
    def blocks(self) -> FloatArray:
        """The products of each feature with itself."""
        n = self.n_features
        if self.parts:
            return reduce(np.add, [part.blocks for part in self.parts])
        if self.inputs is not None:
            by_feature = self.inputs.reshape(len(self.inputs), n, -1).transpose(1, 2, 0)
            return by_feature @ by_feature.transpose(0, 2, 1)
        size = len(self.whole) // n
        return np.asarray(self.whole.reshape(n, size, n, size)[np.arange(n), :, np.arange(n)])

    def columns_of(self, feature: int) -> FloatArray:
        """The products of all features with one, shape (features, size, size)."""
        if feature not in self._columns:
            self._columns[feature] = self._formed(feature)
        return self._columns[feature]

    def _formed(self, feature: int) -> FloatArray:
        if self.parts:
            return reduce(np.add, [part.columns_of(feature) for part in self.parts])
        own = self._numbers_of(feature)
        found = own if self.inputs is None else np.asarray(self.inputs.T @ own)
        return found.reshape(self.n_features, -1, own.shape[1])

    def block(self, one: int, other: int) -> FloatArray:
        """The products of two features."""
        if other in self._columns or self.product is not None:
            return np.asarray(self.columns_of(other)[one])
        if self.parts:
            return reduce(np.add, [part.block(one, other) for part in self.parts])
        return np.asarray(self._numbers_of(one).T @ self._numbers_of(other))

    def _numbers_of(self, feature: int) -> FloatArray:
        full = self.whole if self.inputs is None else self.inputs
        size = full.shape[1] // self.n_features
        return full[:, feature * size : (feature + 1) * size]

    @property
    def trace(self) -> float:
        """The sum of all squares."""
        if self.parts:
            return sum(part.trace for part in self.parts)
        return float(np.trace(self.whole) if self.inputs is None else np.vdot(self.inputs, self.inputs))


@dataclass(frozen=True)
class Moments:
    """Sums over rows, centred: inputs with inputs, inputs with outputs, outputs with themselves.

    The Gram matrix is Z'Z with a block for each feature added on the diagonal: what takes the noise off, or what keeps
    the matrix positive.

    Attributes:
        products: Z'Z.
        added: The blocks, shape (features, size, size).
        cross: Z'Y.
        total: The squared length of all outputs.
        freedom: How many rows, less one for each set that was centred by itself.
        noise: What one degree of freedom of the released inputs has of noise: a diagonal block per feature.
        probes: Z'E for random signs E, where degrees of freedom are to be estimated; no columns otherwise.

    >>> z, y = np.random.default_rng(0).normal(size=(2, 9, 3))
    >>> form_moments(z[:, None], y).gram.shape
    (3, 3)
    """

    products: Products
    added: FloatArray
    cross: FloatArray
    total: float
    freedom: int
    noise: FloatArray
    probes: FloatArray

    @classmethod
    def pooled(cls, some: Sequence[Moments]) -> Moments:
        """The moments of several sets of rows, each centred by itself."""
        return cls(
            Products(len(some[0].noise), parts=tuple(each.products for each in some)),
            reduce(np.add, [each.added for each in some]),
            reduce(np.add, [each.cross for each in some]),
            sum(each.total for each in some),
            sum(each.freedom for each in some),
            some[0].noise,
            reduce(np.add, [each.probes for each in some]),
        )

    def __add__(self, other: Moments) -> Moments:
        """The moments of both sets of rows, each centred by itself."""
        return Moments.pooled((self, other))

    def rotated(self, rotation: FloatArray) -> Moments:
        """The same with outputs turned; random signs that are turned are as good as they were."""
        return replace(self, cross=self.cross @ rotation)

    @cached_property
    def gram(self) -> FloatArray:
        """The Gram matrix, (features x size) squared."""
        formed = self.products.whole.copy()
        n, size = self.added.shape[:2]
        formed.reshape(n, size, n, size)[np.arange(n), :, np.arange(n)] += self.added
        return formed

    @property
    def blocks(self) -> FloatArray:
        """The diagonal blocks of the Gram matrix, one per feature."""
        return self.products.blocks + self.added

    def block(self, one: int, other: int) -> FloatArray:
        """The block of two features in the Gram matrix."""
        found = self.products.block(one, other)
        return found + self.added[one] if one == other else found

    @property
    def trace(self) -> float:
        """The trace of the Gram matrix."""
        return self.products.trace + float(np.trace(self.added, axis1=1, axis2=2).sum())

    def squared_error(self, w: FloatArray) -> float:
        """The squared error of coefficients, shape (features, size, outputs)."""
        flat = w.reshape(-1, w.shape[2])
        return self.total + float((flat * (self.gram @ flat - 2 * self.cross)).sum())

    def for_training(self, correction: float = 1.0, *, floor: float = 1e-3) -> Moments:
        """The same with a Gram matrix that is positive; all of the noise taken off is unbiased, less of it shrinks."""
        if not self.noise.any():
            return self
        left, level, unit = (1 - correction) * self.freedom, self.noise[0, 0, 0], np.eye(self.noise.shape[1])
        changed = replace(self, added=self.added + left * self.noise)
        if correction == 0:
            return changed
        if (self.noise == level * unit).all():
            # Noise that is the same in all directions moves eigenvalues only.
            values, vectors = self._spectrum
            values = values + left * level
        else:
            values, vectors = np.linalg.eigh(changed.gram)
        least = floor * self.freedom
        # Eigenvalues rise.
        first = int(np.searchsorted(values, least, side="right"))
        root = vectors[:, first:] * np.sqrt(values[first:] - least)
        added = np.broadcast_to(least * unit, self.noise.shape)
        return replace(self, products=Products.of(len(self.noise), root.T), added=added)

    @cached_property
    def _spectrum(self) -> tuple[FloatArray, FloatArray]:
        """Eigenvalues and eigenvectors of the Gram matrix, perhaps without those of directions that no input has.

        For noise that is the same in all directions: the eigenvectors are then those of Z'Z, which are found sooner
        from ZZ' while it is smaller.
        """
        inputs = self.products.stacked
        if inputs is None:
            values, vectors = np.linalg.eigh(self.gram)
            return values, vectors
        squares, weights = np.linalg.eigh(inputs @ inputs.T)
        first = int(np.searchsorted(squares, 1e-12 * squares[-1], side="right"))
        return (
            squares[first:] - self.freedom * self.noise[0, 0, 0],
            inputs.T @ (weights[:, first:] / np.sqrt(squares[first:])),
        )


def form_moments(
    z: FloatArray, y: FloatArray, noise: FloatArray | None = None, signs: FloatArray | None = None
) -> Moments:
    """The moments of some rows, centred by their own means and corrected for noise.

    Args:
        z: Released inputs in coordinates, shape (rows, features, size).
        y: Outputs in coordinates, shape (rows, outputs).
        noise: The covariance of the noise of each feature, shape (features, size, size); none if None.
        signs: Random signs, one row per row and as many columns as there are outputs for each probe; none if None.
    """
    n, features, size = z.shape
    flat = z.reshape(n, features * size)
    flat = flat - flat.mean(axis=0)
    centred = y - y.mean(axis=0)
    noise = np.zeros((features, size, size)) if noise is None else noise
    probes = flat.T @ (np.zeros((n, 0)) if signs is None else signs)
    total = float((centred**2).sum())
    return Moments(Products.of(features, flat), -(n - 1) * noise, flat.T @ centred, total, n - 1, noise, probes)
