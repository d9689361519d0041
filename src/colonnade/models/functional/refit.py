"""Fits without boosting: selected features jointly, and their surfaces with small singular values taken off."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from colonnade.curves.basis import FloatArray
from colonnade.models.functional.moments import Moments
from colonnade.models.functional.solve import Penalties, SurfaceRoughness, solve_penalised


def joint_fit(
    moments: Moments, roughness: SurfaceRoughness, penalties: Penalties, features: Sequence[int] | None = None
) -> FloatArray:
    """The penalised least squares of all outputs on some features at once, shape (all features, size, outputs).

    Args:
        moments: Fit to train on.
        roughness: Of inputs and outputs.
        penalties: Absolute ones.
        features: Which features; all if None.
    """
    n_features, size = moments.noise.shape[:2]
    chosen = np.arange(n_features) if features is None else np.asarray(sorted(set(features)), dtype=np.int64)
    fitted = np.zeros((n_features, size, moments.cross.shape[1]))
    if not len(chosen):
        return fitted
    kept = (chosen[:, None] * size + np.arange(size)).ravel()
    omega = roughness.of_inputs(len(chosen))
    gram = moments.gram[np.ix_(kept, kept)]
    gram, cross = (gram + gram.T) / (2 * moments.freedom), moments.cross[kept] / moments.freedom
    solved = solve_penalised(gram, cross, omega, roughness.y, penalties)
    fitted[chosen] = solved.reshape(len(chosen), size, -1)
    return fitted


def low_rank(fitted: FloatArray, moments: Moments, unbiased: Moments) -> FloatArray:
    """The fit with small singular values of each feature's coefficients taken off, and large ones shrunk.

    Taken in units in which a feature's inputs have variance 1, its coefficients have noise of about sqrt(v / m) in each
    entry, with v the variance left in the outputs and m the degrees of freedom left. The largest singular value of such
    noise is about 2 sqrt(size) times that, and what is no larger is taken off. Larger ones become
    sqrt(s^2 - threshold^2).

    Args:
        fitted: A joint fit, shape (features, size, outputs).
        moments: What it was fitted to.
        unbiased: The same moments unrepaired, by which the error is judged.
    """
    features, size, outputs = fitted.shape
    used = [j for j in range(features) if fitted[j].any()]
    freedom = moments.freedom - len(used) * size
    if not used or freedom < 1:
        return fitted
    variance = max(unbiased.squared_error(fitted), 0.0) / (freedom * outputs)
    threshold = 2 * np.sqrt(max(size, outputs)) * np.sqrt(variance / freedom)
    blocks, shrunk = moments.blocks / moments.freedom, np.zeros_like(fitted)
    for j in used:
        root = np.linalg.cholesky(blocks[j] + 1e-12 * np.trace(blocks[j]) * np.eye(size))
        left, values, right = np.linalg.svd(root.T @ fitted[j], full_matrices=False)
        kept = np.sqrt(np.maximum(values**2 - threshold**2, 0.0))
        shrunk[j] = np.linalg.solve(root.T, (left * kept) @ right)
    return shrunk
