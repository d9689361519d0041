"""Moments: all that a fit needs of the rows, corrected for the noise that was added to them on purpose.

With released inputs Z = clip(z) + e, e ~ N(0, Sigma), and centring by the noisy means,

    E[Z'Z] = z'z + (n - 1) Sigma,      E[Z'Y] = z'y,      E|Y - Z W|^2 = |y - z W|^2 + (n - 1) tr(W' Sigma W)

so that G = Z'Z - (n - 1) blkdiag(Sigma) is unbiased. It need not be positive; `for_training` repairs it jointly over
all features, which the blocks by themselves must not be: updates of residuals with an indefinite matrix diverge.
Scores and cross-validation use the unrepaired matrix, which is unbiased.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from colonnade.curves.basis import FloatArray


@dataclass(frozen=True)
class Moments:
    """Sums over rows, centred: inputs with inputs, inputs with outputs, outputs with themselves.

    Attributes:
        gram: Z'Z less the noise, (features x size) squared.
        cross: Z'Y.
        total: The squared length of all outputs.
        freedom: How many rows, less one for each set that was centred by itself.
        noise: What one degree of freedom of the released inputs has of noise: a diagonal block per feature.
        probes: Z'E for random signs E, where degrees of freedom are to be estimated; no columns otherwise.

    >>> z, y = np.random.default_rng(0).normal(size=(2, 9, 3))
    >>> form_moments(z[:, None], y).gram.shape
    (3, 3)
    """

    gram: FloatArray
    cross: FloatArray
    total: float
    freedom: int
    noise: FloatArray
    probes: FloatArray

    def __add__(self, other: Moments) -> Moments:
        """The moments of both sets of rows, each centred by itself."""
        return Moments(
            self.gram + other.gram,
            self.cross + other.cross,
            self.total + other.total,
            self.freedom + other.freedom,
            self.noise,
            self.probes + other.probes,
        )

    def rotated(self, rotation: FloatArray) -> Moments:
        """The same with outputs turned; random signs that are turned are as good as they were."""
        return replace(self, cross=self.cross @ rotation)

    @property
    def blocks(self) -> FloatArray:
        """The diagonal blocks of the Gram matrix, one per feature."""
        n, size = self.noise.shape[:2]
        shaped = self.gram.reshape(n, size, n, size)
        return np.ascontiguousarray(shaped[np.arange(n), :, np.arange(n)])

    def squared_error(self, w: FloatArray) -> float:
        """The squared error of coefficients, shape (features, size, outputs)."""
        flat = w.reshape(-1, w.shape[2])
        return self.total + float((flat * (self.gram @ flat - 2 * self.cross)).sum())

    def for_training(self, correction: float = 1.0, *, floor: float = 1e-3) -> Moments:
        """The same with a Gram matrix that is positive; all of the noise taken off is unbiased, less of it shrinks."""
        if not self.noise.any():
            return self
        left, level = (1 - correction) * self.freedom, self.noise[0, 0, 0]
        if correction == 0 or (self.noise != level * np.eye(self.noise.shape[1])).any():
            changed = replace(self, gram=_add_blocks(self.gram, left * self.noise))
            if correction == 0:
                return changed
            values, vectors = changed._spectrum
        else:
            # Noise that is the same in all directions moves eigenvalues only.
            values, vectors = self._spectrum
            values = values + left * level
        return replace(self, gram=(vectors * np.maximum(values, floor * self.freedom)) @ vectors.T)

    @cached_property
    def _spectrum(self) -> tuple[FloatArray, FloatArray]:
        values, vectors = np.linalg.eigh((self.gram + self.gram.T) / 2)
        return values, vectors


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
    gram = flat.T @ flat
    if noise.any():
        gram = _add_blocks(gram, -(n - 1) * noise)
    probes = flat.T @ (np.zeros((n, 0)) if signs is None else signs)
    return Moments(gram, flat.T @ centred, float((centred**2).sum()), n - 1, noise, probes)


def _add_blocks(gram: FloatArray, blocks: FloatArray) -> FloatArray:
    n, size = blocks.shape[:2]
    changed = gram.copy()
    changed.reshape(n, size, n, size)[np.arange(n), :, np.arange(n)] += blocks
    return changed
