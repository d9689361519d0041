"""Gradients that give labels away: by a negative entry, by their length, or by their direction.

Where embeddings are logits, the gradient of cross-entropy is p - y, whose only negative coordinate is the true class.
Fu et al. 2022, "Label inference attacks against vertical federated learning".

Lengths and directions tell two classes apart. Li et al. 2022, "Label leakage and protection in two-party split
learning".
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from colonnade.attacks.base import Attack, ExampleRun, Guess, Needs, View
from colonnade.attacks.points import Points, why_no_gradients
from colonnade.models.networks.messages import Gradient
from colonnade.wire.message import Float32Array, Int64Array


class DirectLabel(Attack):
    """The smallest coordinate of a row's gradient, in the first epoch, is its class."""

    needs = Needs(messages=(Gradient,))
    example_run = ExampleRun(parameters={"fusion": "sum", "top": None})

    def why_not(self, view: View) -> str | None:
        first = next(_first_epoch(view), None)
        if first is None:
            return "no gradients of the first epoch were kept"
        width = first[1].shape[1]
        if width != view.grant.n_classes or view.public.settings.get("top") is not None:
            return "a top network stands between the gradients and the classes"
        return None

    def guess(self, view: View) -> Guess:
        rows, classes = [], []
        for about, gradients in _first_epoch(view):
            rows.append(about)
            classes.append(gradients.argmin(axis=1))
        return Guess(np.concatenate(rows), classes=np.concatenate(classes).astype(np.int64))


class _Score(Attack):
    """Scores two classes by each row's mean gradient."""

    def why_not(self, view: View) -> str | None:
        if view.grant.n_classes != 2:
            return f"it tells two classes apart and this run has {view.grant.n_classes}"
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
        known, labels = points.known(view.grant)
        known = known[labels == view.grant.n_classes - 1]
        return Guess(points.rows, scores=points.values @ points.values[known].mean(axis=0))


def _first_epoch(view: View) -> Iterator[tuple[Int64Array, Float32Array]]:
    """Rows and gradients of every message of the first epoch that says which rows it is about."""
    for recorded in view.messages(Gradient, sent=False):
        if recorded.epoch == 0 and recorded.rows is not None:
            yield recorded.rows, recorded.message.values
