"""Clusters and neighbours: rows of one class lie close together, in embeddings and in gradients.

With a few known labels, a row takes the class of the known row nearest to it; or all rows are cut into clusters, and
each cluster takes a class so that known rows lie as near as possible to the clusters of their classes. The audit also
scores the clusters under the names that suit them best, which takes no known labels at all.

Liu and Lyu 2022, "Clustering label inference attack against practical split learning", arXiv 2203.05222.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from colonnade.attacks.base import Attack, Grant, Guess, Needs, View
from colonnade.attacks.points import WHEN, Points, When, cluster_votes, distances, why_no_gradients
from colonnade.models.networks.messages import Embedding, Gradient
from colonnade.parameters import Limit, check_parameters, count
from colonnade.wire.message import Float64Array, Int64Array

KNOWN_PER_CLASS = 4
RESTARTS = 5
ITERATIONS = 50


class _Geometric(Attack):
    """An attack on points, one vector for each row: gradients of some epoch, or embeddings where `when` is None."""

    angular: bool
    when: When | None = None

    def why_not(self, view: View) -> str | None:
        none = None if self.when is None else why_no_gradients(view)
        return none or self._points(view).why_not(view.grant)

    def _points(self, view: View) -> Points:
        points = Points.of_embeddings(view) if self.when is None else Points.of_gradients(view, self.when)
        return points.directions() if self.angular else points


class _Clusters(_Geometric):
    """Cuts the points into clusters by k-means and names them by Hungarian matching with known rows."""

    per_class: int

    def why_not(self, view: View) -> str | None:
        n_points, n_clusters = len(self._points(view).rows), self.per_class * view.grant.n_classes
        if 0 < n_points < n_clusters:
            return f"{n_points} rows make no {n_clusters} clusters"
        return super().why_not(view)

    def guess(self, view: View) -> Guess:
        points = self._points(view)
        n_clusters = self.per_class * view.grant.n_classes
        member, centres = _k_means(points.values, n_clusters, seed=int(view.random.integers(2**31)))
        return Guess(points.rows, classes=_names(points, member, centres, view.grant)[member])


class _Nearest(_Geometric):
    """A row has the class of the known row that is nearest to it."""

    def guess(self, view: View) -> Guess:
        points = self._points(view)
        known, classes = points.known(view.grant)
        nearest = distances(points.values, points.values[known]).argmin(axis=1)
        return Guess(points.rows, classes=classes[nearest])


class EmbeddingClusters(_Clusters):
    """Clusters of the attacker's own embeddings, which training drew towards the classes, are the classes.

    Args:
        per_class: Clusters per class; more than one finds classes of several parts.
        angular: Compare directions rather than places.

    >>> EmbeddingClusters(per_class=2).needs.known_labels
    4
    """

    needs = Needs(messages=(Embedding,), known_labels=KNOWN_PER_CLASS)
    limits: ClassVar[Mapping[str, Limit]] = {"per_class": count()}

    def __init__(self, *, per_class: int = 1, angular: bool = True) -> None:
        self.per_class, self.angular = per_class, angular
        check_parameters(self)


class GradientClusters(_Clusters):
    """Clusters of the gradients that the attacker received are the classes.

    Args:
        per_class: Clusters per class; more than one finds classes of several parts.
        when: A row's mean gradient over all epochs, its first, or its last.
        angular: Compare directions rather than places.

    >>> GradientClusters(when="first").needs.messages[0].kind
    'split/gradient'
    """

    needs = Needs(messages=(Gradient,), known_labels=KNOWN_PER_CLASS)
    limits: ClassVar[Mapping[str, Limit]] = {"per_class": count(), "when": WHEN}

    def __init__(self, *, per_class: int = 1, when: When = "mean", angular: bool = True) -> None:
        self.per_class, self.when, self.angular = per_class, when, angular
        check_parameters(self)


class EmbeddingNearest(_Nearest):
    """A row has the class of the known row whose embedding is nearest to its own.

    Args:
        angular: Compare directions rather than places.

    >>> EmbeddingNearest().needs.messages[0].kind
    'split/embedding'
    """

    needs = Needs(messages=(Embedding,), known_labels=KNOWN_PER_CLASS)

    def __init__(self, *, angular: bool = True) -> None:
        self.angular = angular


class GradientNearest(_Nearest):
    """A row has the class of the known row whose gradient is nearest to its own.

    Args:
        when: A row's mean gradient over all epochs, its first, or its last.
        angular: Compare directions rather than places.

    >>> GradientNearest(when="last").angular
    True
    """

    needs = Needs(messages=(Gradient,), known_labels=KNOWN_PER_CLASS)
    limits: ClassVar[Mapping[str, Limit]] = {"when": WHEN}

    def __init__(self, *, when: When = "mean", angular: bool = True) -> None:
        self.when, self.angular = when, angular
        check_parameters(self)


def _names(points: Points, member: Int64Array, centres: Float64Array, grant: Grant) -> Int64Array:
    """A class for each cluster."""
    from scipy.optimize import linear_sum_assignment

    known, classes = points.known(grant)
    far = distances(centres, points.values[known])
    if len(centres) == grant.n_classes:
        costs = np.stack([far[:, classes == k].mean(axis=1) for k in range(grant.n_classes)], axis=1)
        return np.asarray(linear_sum_assignment(costs)[1])
    # More clusters than classes: the majority of its known rows names a cluster, or else the nearest known row.
    return np.asarray(cluster_votes(member, known, classes, far, grant.n_classes).argmax(axis=1))


def _k_means(points: Float64Array, n: int, *, seed: int) -> tuple[Int64Array, Float64Array]:
    """Which cluster each point is in, and the clusters' centres: the best of several starts."""
    from sklearn.cluster import KMeans

    with warnings.catch_warnings():
        # A defence may leave fewer different points than clusters.
        warnings.filterwarnings("ignore", message="Number of distinct clusters")
        model = KMeans(n, n_init=RESTARTS, max_iter=ITERATIONS, random_state=seed).fit(points)
    return model.labels_.astype(np.int64), model.cluster_centers_
