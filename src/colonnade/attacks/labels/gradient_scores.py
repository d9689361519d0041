"""Norm and direction scores: a gradient's length or direction gives its label away.

Binary tasks only. Li et al. 2022, "Label leakage and protection in two-party split learning".
"""

from __future__ import annotations

import numpy as np

from colonnade.attacks.base import Attack, Guess, Needs, View
from colonnade.attacks.points import Points, why_no_gradients
from colonnade.models.networks.messages import Gradient


class NormScore(Attack):
    """Rows of the rarer class have longer gradients; the last class is taken to be the rarer one."""

    needs = Needs(messages=(Gradient,))

    def why_not(self, view: View) -> str | None:
        return _why_not(view)

    def guess(self, view: View) -> Guess:
        points = Points.of_gradients(view, "mean")
        return Guess(points.rows, scores=np.linalg.norm(points.values, axis=1))


class DirectionScore(Attack):
    """Gradients of one class point the same way: one known row of the last class names the others."""

    needs = Needs(messages=(Gradient,), known_labels=1)

    def why_not(self, view: View) -> str | None:
        return _why_not(view)

    def guess(self, view: View) -> Guess:
        """Score each row by the cosine between its mean gradient and that of the known rows of the last class."""
        points = Points.of_gradients(view, "mean").directions()
        known, labels = points.known(view.grant)
        known = known[labels == view.grant.n_classes - 1]
        return Guess(points.rows, scores=points.values @ points.values[known].mean(axis=0))


def _why_not(view: View) -> str | None:
    if view.grant.n_classes != 2:
        return f"it tells two classes apart and this run has {view.grant.n_classes}"
    points = Points.of_gradients(view, "mean")
    return why_no_gradients(view) or points.why_not(view.grant, known=view.needs.known_labels > 0)
