"""Gradients that give labels away: by a negative entry, by their length, or by their direction.

Where embeddings are logits, the gradient of cross-entropy is p - y, whose only negative coordinate is the true class.
Fu et al. 2022, "Label inference attacks against vertical federated learning".

Lengths and directions tell two classes apart. Li et al. 2022, "Label leakage and protection in two-party split
learning".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar, Literal, Self

import numpy as np

from colonnade.attacks.base import Attack, ExampleRun, Grant, Guess, Inapplicable, Needs, View
from colonnade.attacks.points import Points, distances, why_no_gradients
from colonnade.models.networks.messages import Gradient
from colonnade.parameters import Limit, check_parameters, choice
from colonnade.wire.message import Float32Array, Float64Array, Int64Array


class DirectLabel(Attack):
    """The smallest coordinate of a row's gradient, in the first epoch, is its class.

    Args:
        first_negative: Take the first coordinate below 0 as published, or a class at random where there is none;
            without a defence both are the same, and under noise the smallest tells more.

    >>> DirectLabel(first_negative=True).needs.known_labels
    0
    """

    needs = Needs(messages=(Gradient,))
    example_run = ExampleRun(parameters={"fusion": "sum", "top": None})

    def __init__(self, *, first_negative: bool = False) -> None:
        self.first_negative = first_negative

    @classmethod
    def variants(cls) -> Sequence[Self]:
        return cls(), cls(first_negative=True)

    def why_not(self, view: View) -> str | None:
        first = next(_first_epoch(view), None)
        if first is None:
            return "no gradients of the first epoch were kept"
        width = first[1].shape[1]
        if width != view.grant.n_classes or view.public.settings.get("top") is not None:
            return Inapplicable("a top network stands between the gradients and the classes")
        return None

    def guess(self, view: View) -> Guess:
        rows, ratings = [], []
        for about, gradients in _first_epoch(view):
            rows.append(about)
            ratings.append(-gradients.astype(np.float64))
        rated = np.concatenate(ratings)
        if self.first_negative:
            is_negative = rated > 0
            at_random = view.random.integers(rated.shape[1], size=len(rated))
            classes = np.where(is_negative.any(axis=1), is_negative.argmax(axis=1), at_random)
            rated = np.eye(rated.shape[1])[classes]
        return Guess.classified(np.concatenate(rows), rated)


class _Score(Attack):
    """Scores two classes by each row's mean gradient."""

    def why_not(self, view: View) -> str | None:
        if view.grant.n_classes != 2:
            return Inapplicable(f"it tells two classes apart and this run has {view.grant.n_classes}")
        points = Points.of_gradients(view, "mean")
        return why_no_gradients(view) or points.why_not(view.grant, known=view.needs.known_labels > 0)


class NormScore(_Score):
    """Rows of the rarer class have longer gradients; the last class is taken to be the rarer one."""

    needs = Needs(messages=(Gradient,))

    def guess(self, view: View) -> Guess:
        points = Points.of_gradients(view, "mean")
        return Guess(points.rows, scores=np.linalg.norm(points.values, axis=1))


class DirectionScore(_Score):
    """Gradients of one class point the same way: one known row of the last class names the others."""

    needs = Needs(messages=(Gradient,), known_labels=1)

    def guess(self, view: View) -> Guess:
        """Score each row by the cosine between its mean gradient and that of the known rows of the last class."""
        points = Points.of_gradients(view, "mean").directions()
        return Guess(points.rows, scores=points.values @ _hints(points, view.grant).mean(axis=0))


class HintScore(_Score):
    """Gradients near those of a few known rows of the last class, the hints, are of the last class.

    Args:
        by: "distance": the nearer the nearest hint, the higher. "inner-product": the product with the longest hint.

    >>> HintScore(by="inner-product").needs.known_labels
    3
    """

    needs = Needs(messages=(Gradient,), known_labels=3)
    limits: ClassVar[Mapping[str, Limit]] = {"by": choice("distance", "inner-product")}

    def __init__(self, *, by: Literal["distance", "inner-product"] = "distance") -> None:
        self.by = by
        check_parameters(self)

    @classmethod
    def variants(cls) -> Sequence[Self]:
        return cls(), cls(by="inner-product")

    def guess(self, view: View) -> Guess:
        points = Points.of_gradients(view, "mean")
        hints = _hints(points, view.grant)
        if self.by == "distance":
            return Guess(points.rows, scores=-distances(points.values, hints).min(axis=1))
        return Guess(points.rows, scores=points.values @ max(hints, key=np.linalg.norm))


def _hints(points: Points, grant: Grant) -> Float64Array:
    """The gradients of the known rows of the last class."""
    known, labels = points.known(grant)
    return np.asarray(points.values[known[labels == grant.n_classes - 1]])


def _first_epoch(view: View) -> Iterator[tuple[Int64Array, Float32Array]]:
    """Rows and gradients of every message of the first epoch that says which rows it is about."""
    for recorded in view.messages(Gradient, sent=False):
        if recorded.epoch == 0 and recorded.rows is not None:
            yield recorded.rows, recorded.message.values
