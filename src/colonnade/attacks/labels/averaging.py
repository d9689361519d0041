"""Averaging: noise on gradients is fresh in each epoch, rows are the same, so a row's mean over epochs has less of it.

What is left of the noise is spread alike around each class's mean. A mixture of one normal distribution per class,
fitted to all rows at once, finds the means under noise that hides any single row. Known rows keep their classes.

The same holds for a network at the label party that re-encodes embeddings at random: each epoch is another pass.

A defence whose noise differs between classes is told by that difference: classes may have covariances of their own.

Mixtures by expectation-maximisation: Dempster, Laird and Rubin 1977, "Maximum likelihood from incomplete data via the
EM algorithm".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, Self

import numpy as np

from colonnade.attacks.base import Attack, Guess, Needs, View
from colonnade.attacks.labels.discriminants import mixture
from colonnade.attacks.points import (
    KNOWN_PER_CLASS,
    WHEN,
    Points,
    When,
    cluster_names,
    distances,
    k_means,
    why_no_gradients,
)
from colonnade.models.networks.messages import Gradient
from colonnade.parameters import Limit, check_parameters
from colonnade.wire.message import Float64Array


class AveragedGradients(Attack):
    """A mixture of one normal distribution per class, over each row's mean gradient, names the classes.

    Args:
        own_spread: Whether classes have covariances of their own, as where noise depends on the class.

    >>> AveragedGradients(own_spread=True).needs.known_labels
    4
    """

    needs = Needs(messages=(Gradient,), known_labels=KNOWN_PER_CLASS)

    def __init__(self, *, own_spread: bool = False) -> None:
        self.own_spread = own_spread

    @classmethod
    def variants(cls) -> Sequence[Self]:
        return cls(), cls(own_spread=True)

    def why_not(self, view: View) -> str | None:
        return why_no_gradients(view) or Points.of_gradients(view, "mean").why_not(view.grant)

    def guess(self, view: View) -> Guess:
        """Fit the mixture from two starts, known rows and clusters, and keep the likelier one."""
        points, n_classes = Points.of_gradients(view, "mean").directions().standardised(), view.grant.n_classes
        known, labels = points.known(view.grant)
        centres = np.stack([points.values[known[labels == k]].mean(axis=0) for k in range(n_classes)])
        starts = [np.eye(n_classes)[distances(points.values, centres).argmin(axis=1)]]
        if len(points.rows) >= n_classes:
            starts.append(_clustered(points, view))
        fits = [mixture(points.values, s, known, labels, view.random, own=self.own_spread) for s in starts]
        return Guess.rated(points.rows, max(fits, key=lambda fit: fit[1])[0])


class PermutedLabels(Attack):
    """Classes that were exchanged for others are the clusters of gradients; one known row of each tells which is which.

    It knows a defence that trains with other labels in the place of the true ones, the same for all rows of a class:
    the gradients then point to wrong classes, but to the same one for every row of a class. Which cluster is which
    class is the permutation under which the known rows are likeliest (Hungarian matching).

    Args:
        when: A row's mean gradient over all epochs, its first, or its last.

    >>> PermutedLabels().needs.known_labels
    1
    """

    needs = Needs(messages=(Gradient,), known_labels=1)
    limits: ClassVar[Mapping[str, Limit]] = {"when": WHEN}

    def __init__(self, *, when: When = "first") -> None:
        self.when = when
        check_parameters(self)

    @classmethod
    def variants(cls) -> Sequence[Self]:
        return cls(), cls(when="mean")

    def why_not(self, view: View) -> str | None:
        return why_no_gradients(view) or Points.of_gradients(view, self.when).why_not(view.grant)

    def guess(self, view: View) -> Guess:
        from scipy.optimize import linear_sum_assignment

        points = Points.of_gradients(view, self.when).directions().standardised()
        nobody = np.zeros(0, np.int64)
        found, _ = mixture(points.values, _clustered(points, view), nobody, nobody, view.random)
        known, labels = points.known(view.grant)
        likely = np.stack([found[known[labels == k]].sum(axis=0) for k in range(view.grant.n_classes)])
        _, cluster = linear_sum_assignment(likely, maximize=True)
        return Guess.rated(points.rows, found[:, cluster])


def _clustered(points: Points, view: View) -> Float64Array:
    """For each row the class that its cluster is named by, as weights."""
    n_classes = view.grant.n_classes
    member, centres = k_means(points.values, n_classes, view.random)
    known, labels = points.known(view.grant)
    names = cluster_names(member, known, labels, distances(centres, points.values[known]), n_classes)
    return np.eye(n_classes)[names[member]]
