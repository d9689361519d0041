"""Clusters and neighbours: rows of one class lie close together, in embeddings and in gradients.

With a few known labels, a row takes the class of the known row nearest to it; or all rows are cut into clusters, and
each cluster takes a class so that known rows lie as near as possible to the clusters of their classes. The audit also
scores the clusters under the names that suit them best, which takes no known labels at all.

Liu and Lyu 2022, "Clustering label inference attack against practical split learning", arXiv 2203.05222.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, Self

import numpy as np

from colonnade.attacks.base import Attack, Guess, Needs, View
from colonnade.attacks.points import (
    KNOWN_PER_CLASS,
    WHEN,
    WHENS,
    Points,
    When,
    cluster_names,
    distances,
    k_means,
    why_no_gradients,
)
from colonnade.models.networks.messages import Embedding, Gradient
from colonnade.parameters import Limit, check_parameters, count

# Clusters per class that a thorough audit tries.
PER_CLASS = (1, 2, 4)


class _Geometric(Attack):
    """An attack on points, one vector for each row: gradients or embeddings, of some epoch or on average."""

    angular: bool
    when: When

    def why_not(self, view: View) -> str | None:
        none = why_no_gradients(view) if Gradient in self.needs.messages else None
        return none or self._points(view).why_not(view.grant)

    def _points(self, view: View) -> Points:
        of = Points.of_gradients if Gradient in self.needs.messages else Points.of_embeddings
        points = of(view, self.when)
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
        points, n_classes = self._points(view), view.grant.n_classes
        member, centres = k_means(points.values, self.per_class * n_classes, view.random)
        known, classes = points.known(view.grant)
        names = cluster_names(member, known, classes, distances(centres, points.values[known]), n_classes)
        # A class is as near as the nearest of its clusters; a class without a cluster is farther than all others.
        near = -distances(points.values, centres)
        furthest = near.min(initial=0.0) - 1
        ratings = np.stack([near[:, names == k].max(axis=1, initial=furthest) for k in range(n_classes)], axis=1)
        return Guess.classified(points.rows, ratings)


class _Nearest(_Geometric):
    """A row has the class of the known row that is nearest to it."""

    def guess(self, view: View) -> Guess:
        points = self._points(view)
        known, classes = points.known(view.grant)
        near = -distances(points.values, points.values[known])
        ratings = np.stack([near[:, classes == k].max(axis=1) for k in range(view.grant.n_classes)], axis=1)
        return Guess.classified(points.rows, ratings)


class EmbeddingClusters(_Clusters):
    """Clusters of the attacker's own embeddings, which training drew towards the classes, are the classes.

    Args:
        per_class: Clusters per class; more than one finds classes of several parts.
        when: A row's last embedding, its first, or its mean over all epochs.
        angular: Compare directions rather than places.

    >>> EmbeddingClusters(per_class=2).needs.known_labels
    4
    """

    needs = Needs(messages=(Embedding,), known_labels=KNOWN_PER_CLASS)
    limits: ClassVar[Mapping[str, Limit]] = {"per_class": count(), "when": WHEN}

    def __init__(self, *, per_class: int = 1, when: When = "last", angular: bool = True) -> None:
        self.per_class, self.when, self.angular = per_class, when, angular
        check_parameters(self)

    @classmethod
    def variants(cls) -> Sequence[Self]:
        return [cls(per_class=n, when=when) for when in WHENS for n in PER_CLASS]


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

    @classmethod
    def variants(cls) -> Sequence[Self]:
        return [cls(per_class=n, when=when) for when in WHENS for n in PER_CLASS]


class EmbeddingNearest(_Nearest):
    """A row has the class of the known row whose embedding is nearest to its own.

    Args:
        when: A row's last embedding, its first, or its mean over all epochs.
        angular: Compare directions rather than places.

    >>> EmbeddingNearest().needs.messages[0].kind
    'split/embedding'
    """

    needs = Needs(messages=(Embedding,), known_labels=KNOWN_PER_CLASS)
    limits: ClassVar[Mapping[str, Limit]] = {"when": WHEN}

    def __init__(self, *, when: When = "last", angular: bool = True) -> None:
        self.when, self.angular = when, angular
        check_parameters(self)

    @classmethod
    def variants(cls) -> Sequence[Self]:
        return [cls(when=when) for when in WHENS]


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

    @classmethod
    def variants(cls) -> Sequence[Self]:
        return [cls(when=when) for when in WHENS]
