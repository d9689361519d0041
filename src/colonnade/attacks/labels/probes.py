"""Probes: what a few known labels tell about all rows if classes need not be separable by planes.

A penalty may spread each class around the origin, so that no plane tells classes apart and their means are alike, while
codes such as +v and -v still give every label away. Neighbours, a network with a hidden layer, and products of
coordinates read such codes.

Probes by planes: Alain and Bengio 2016, "Understanding intermediate layers using linear classifier probes", arXiv
1610.01644.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal, Self, TypeAlias

import numpy as np
import torch

from colonnade.attacks.base import Attack, Guess, Needs, View
from colonnade.attacks.labels.discriminants import compressed
from colonnade.attacks.labels.heads import reproducible, self_trained
from colonnade.attacks.points import (
    BLOCK,
    KNOWN_PER_CLASS,
    WHEN,
    Points,
    When,
    distances,
    why_no_gradients,
)
from colonnade.models.networks.messages import Embedding, Gradient
from colonnade.models.networks.modules import perceptron
from colonnade.parameters import Limit, check_parameters, choice
from colonnade.wire.message import Float64Array, Int64Array

Kind: TypeAlias = Literal["neighbours", "network", "quadratic"]
KINDS: tuple[Kind, ...] = ("neighbours", "network", "quadratic")
NEIGHBOURS = 3
HIDDEN, RATE = 64, 5e-3


class _Probe(Attack):
    """Learns classes from a few known points."""

    kind: Kind

    def why_not(self, view: View) -> str | None:
        return self._points(view).why_not(view.grant)

    def guess(self, view: View) -> Guess:
        points = self._points(view)
        known, labels = points.known(view.grant)
        n_classes, random = view.grant.n_classes, view.random
        if self.kind == "neighbours":
            ratings = _by_neighbours(points.directions().values, known, labels, n_classes)
        elif self.kind == "network":
            ratings = _by_network(points.standardised().values, known, labels, n_classes, random)
        else:
            ratings = _by_products(compressed(points).values, known, labels)
        return Guess.rated(points.rows, ratings)

    @abstractmethod
    def _points(self, view: View) -> Points:
        """The points that are probed."""


class EmbeddingProbe(_Probe):
    """The attacker's own embeddings, told apart by neighbours, a network or products of coordinates.

    Args:
        kind: "neighbours": the three nearest known rows vote. "network": one hidden layer and self-training.
            "quadratic": a regression on products of principal components.

    >>> EmbeddingProbe(kind="neighbours").needs.messages[0].kind
    'split/embedding'
    """

    needs = Needs(messages=(Embedding,), known_labels=KNOWN_PER_CLASS)
    limits: ClassVar[Mapping[str, Limit]] = {"kind": choice(*KINDS)}

    def __init__(self, *, kind: Kind = "network") -> None:
        self.kind = kind
        check_parameters(self)

    @classmethod
    def example(cls) -> Self:
        return cls(kind="neighbours")

    @classmethod
    def variants(cls) -> Sequence[Self]:
        return [cls(kind=kind) for kind in KINDS]

    def _points(self, view: View) -> Points:
        return Points.of_embeddings(view)


class GradientProbe(_Probe):
    """Gradients that the attacker received, told apart by neighbours, a network or products of coordinates.

    Args:
        kind: As in `EmbeddingProbe`.
        when: A row's mean gradient over all epochs, its first, or its last.

    >>> GradientProbe(when="first").kind
    'quadratic'
    """

    needs = Needs(messages=(Gradient,), known_labels=KNOWN_PER_CLASS)
    limits: ClassVar[Mapping[str, Limit]] = {"kind": choice(*KINDS), "when": WHEN}

    def __init__(self, *, kind: Kind = "quadratic", when: When = "mean") -> None:
        self.kind, self.when = kind, when
        check_parameters(self)

    @classmethod
    def variants(cls) -> Sequence[Self]:
        return [cls(kind=kind) for kind in KINDS]

    def why_not(self, view: View) -> str | None:
        return why_no_gradients(view) or super().why_not(view)

    def _points(self, view: View) -> Points:
        return Points.of_gradients(view, self.when)


def _by_neighbours(x: Float64Array, known: Int64Array, labels: Int64Array, n_classes: int) -> Float64Array:
    far = distances(x, x[known])
    near = np.argsort(far, axis=1)[:, :NEIGHBOURS]
    votes = 1 / (np.take_along_axis(far, near, axis=1) + 1e-6)
    ratings = np.zeros((len(x), n_classes))
    np.add.at(ratings, (np.arange(len(x))[:, None], labels[near]), votes)
    return np.asarray(ratings / ratings.sum(axis=1, keepdims=True))


def _by_network(
    x: Float64Array, known: Int64Array, labels: Int64Array, n_classes: int, random: np.random.Generator
) -> Float64Array:
    given = torch.from_numpy(x.astype(np.float32))
    with reproducible(random):
        network = perceptron(x.shape[1], (HIDDEN,), n_classes)
        scores = self_trained(network, given, known, labels, rounds=1, rate=RATE, random=random)
    return np.asarray(scores.numpy(), np.float64)


def _by_products(x: Float64Array, known: Int64Array, labels: Int64Array) -> Float64Array:
    from sklearn.linear_model import LogisticRegression

    model = LogisticRegression(C=0.1, max_iter=200).fit(_with_products(x[known]), labels)
    # In blocks: products of all rows at once would take ten times the memory of the points.
    chances = [model.predict_proba(_with_products(x[start : start + BLOCK])) for start in range(0, len(x), BLOCK)]
    return np.asarray(np.log(np.concatenate(chances) + 1e-12))


def _with_products(x: Float64Array) -> Float64Array:
    left, right = np.triu_indices(x.shape[1])
    return np.concatenate([x, x[:, left] * x[:, right]], axis=1)
