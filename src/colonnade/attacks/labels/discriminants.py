"""Discriminants: classifiers by class means and spreads, fitted to guessed classes, and asked about other rows.

A row is judged by models that were not fitted to it (cross-fitting): otherwise a guess would confirm itself.
"""

from __future__ import annotations

import numpy as np

from colonnade.attacks.points import FITTED_ROWS, Points, chosen_rows
from colonnade.wire.message import Float64Array, Int64Array

FOLDS = 3
SHRINKAGE = 0.1
# No row counts for more or less than this, as a logarithm.
FURTHEST = 12.0
ROUNDS = 30
COMPONENTS = 16


def log_normalised(values: Float64Array) -> Float64Array:
    """Logarithms of weights as logarithms of probabilities, row by row."""
    from scipy.special import logsumexp

    return np.asarray(values - logsumexp(values, axis=1, keepdims=True))


def discriminant(x: Float64Array, weights: Float64Array, asked: Float64Array, *, own: bool = False) -> Float64Array:
    """Log-likelihoods (rows, classes) of asked rows under one normal distribution per class.

    Args:
        x: The rows that classes were guessed for.
        weights: How much each of these rows belongs to each class.
        asked: The rows to judge.
        own: Whether each class has a covariance of its own; they share one otherwise.
    """
    sizes = np.maximum(weights.sum(axis=0), 1e-9)
    means = (weights.T @ x) / sizes[:, None]
    spreads = [((w[:, None] * (x - mean)).T @ (x - mean)) for w, mean in zip(weights.T, means, strict=True)]
    if not own:
        spreads = [np.sum(spreads, axis=0) / sizes.sum()] * len(means)
    else:
        spreads = [spread / size for spread, size in zip(spreads, sizes, strict=True)]
    found = []
    for mean, spread in zip(means, spreads, strict=True):
        width = len(spread)
        scale = max(float(np.trace(spread)) / width, 1e-12)
        shrunk = (1 - SHRINKAGE) * spread + SHRINKAGE * scale * np.eye(width)
        root = np.linalg.cholesky(shrunk)
        away = np.linalg.solve(root, (asked - mean).T)
        found.append(-0.5 * (away**2).sum(axis=0) - np.log(np.diag(root)).sum())
    likelihoods = np.stack(found, axis=1)
    # A class that nothing belongs to has no distribution.
    return np.where(sizes < 1, likelihoods.min(initial=0.0) - FURTHEST, likelihoods)


def cross_fitted(x: Float64Array, weights: Float64Array, random: np.random.Generator) -> Float64Array:
    """Log-probabilities of classes for each row, by discriminants that were fitted to the other rows' guesses."""
    fold = random.integers(FOLDS, size=len(x))
    found = np.zeros_like(weights)
    for number in range(FOLDS):
        others = np.flatnonzero(fold != number)
        others = others[chosen_rows(len(others), FITTED_ROWS, np.zeros(0, np.int64), random)]
        found[fold == number] = discriminant(x[others], weights[others], x[fold == number])
    return np.maximum(log_normalised(found), -FURTHEST)


def mixture(
    x: Float64Array,
    start: Float64Array,
    known: Int64Array,
    labels: Int64Array,
    random: np.random.Generator,
    *,
    own: bool = False,
) -> tuple[Float64Array, float]:
    """Fit one normal distribution per class by expectation-maximisation; known rows keep their classes.

    All classes count as equally likely: with shares of their own, one class would come to explain all rows.

    Returns:
        Log-probabilities (rows, classes) of all rows, and the mean log-likelihood of the rows fitted to.
    """
    fitted = chosen_rows(len(x), FITTED_ROWS, known, random)
    at, n_classes = np.searchsorted(fitted, known), start.shape[1]
    weights = start[fitted].copy()
    weights[at] = np.eye(n_classes)[labels]
    before = -np.inf
    for _ in range(ROUNDS):
        found = discriminant(x[fitted], weights, x[fitted], own=own)
        likelihood = float(np.logaddexp.reduce(found, axis=1).mean())
        weights = np.exp(log_normalised(found))
        weights[at] = np.eye(n_classes)[labels]
        if likelihood - before < 1e-4:
            break
        before = likelihood
    return log_normalised(discriminant(x[fitted], weights, x, own=own)), likelihood


def foretold(x: Float64Array, classes: Int64Array, n_classes: int, random: np.random.Generator) -> Float64Array:
    """Every row's chance of each class, by a regression on its numbers that was not shown the row's class."""
    import warnings

    from sklearn.linear_model import LogisticRegression

    found = np.full((len(classes), n_classes), 1 / n_classes)
    fold = random.integers(FOLDS, size=len(x))
    for number in range(FOLDS):
        shown = np.flatnonzero(fold != number)
        shown = shown[chosen_rows(len(shown), FITTED_ROWS, np.zeros(0, np.int64), random)]
        if len(np.unique(classes[shown])) < 2:
            continue
        with warnings.catch_warnings():
            # It runs at fixed effort; what has not converged counts as it is.
            warnings.simplefilter("ignore")
            regression = LogisticRegression(C=0.1, max_iter=100).fit(x[shown], classes[shown])
        asked = np.flatnonzero(fold == number)
        found[np.ix_(asked, regression.classes_)] = regression.predict_proba(x[asked])
    return found


def compressed(points: Points) -> Points:
    """The same rows on their principal components, whitened; at most 16 of them, and one of zeros if no row differs."""
    from scipy.linalg import eigh

    centred = points.values - points.values.mean(axis=0)
    width = centred.shape[1]
    values, directions = eigh(
        centred.T @ centred / len(centred), subset_by_index=(max(0, width - COMPONENTS), width - 1)
    )
    kept = values > 1e-9 * max(float(values[-1]), 1e-300)
    # Eigenvalues come in rising order: the last one is the largest.
    kept[-1] = True
    return Points(points.rows, centred @ (directions[:, kept] / np.sqrt(np.maximum(values[kept], 1e-300))))
