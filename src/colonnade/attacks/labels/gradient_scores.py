"""Norm and direction scores: a gradient's length or direction gives its label away.

Binary tasks only. Li et al. 2022, "Label leakage and protection in two-party split learning".
"""

from __future__ import annotations

import numpy as np

from colonnade.attacks.base import Attack, Guess, Needs
from colonnade.attacks.view import View
from colonnade.models.networks.messages import Gradient
from colonnade.wire.message import Float64Array, Int64Array


class NormScore(Attack):
    """Rows of the rarer class have longer gradients; the last class is taken to be the rarer one."""

    needs = Needs(messages=(Gradient,))

    def unfit(self, view: View) -> str | None:
        """Norms tell two classes apart, not more."""
        return _unless_binary(view)

    def guess(self, view: View) -> Guess:
        """Score each row by the length of its mean gradient."""
        gradients, rows = _finite_means(view)
        return Guess(rows, scores=np.linalg.norm(gradients[rows], axis=1))


class DirectionScore(Attack):
    """Gradients of one class point the same way: one known row of the last class names the others."""

    needs = Needs(messages=(Gradient,), known_labels=1)

    def unfit(self, view: View) -> str | None:
        """The sign of a cosine tells two classes apart, not more."""
        return _unless_binary(view)

    def guess(self, view: View) -> Guess:
        """Score each row by the cosine between its mean gradient and that of the known rows of the last class."""
        gradients, rows = _finite_means(view)
        lengths = np.linalg.norm(gradients[rows], axis=1, keepdims=True)
        directions = np.zeros((len(gradients), gradients.shape[1]))
        directions[rows] = gradients[rows] / np.where(lengths > 0, lengths, 1)
        known = view.grant.rows[view.grant.labels == view.grant.n_classes - 1]
        return Guess(rows, scores=directions[rows] @ directions[known].mean(axis=0))


def _finite_means(view: View) -> tuple[Float64Array, Int64Array]:
    """Each row's mean gradient, and the rows where all of it is known and finite."""
    # In single precision the square of a large coordinate would overflow.
    means = view.row_means(Gradient).astype(np.float64)
    return means, np.flatnonzero(np.isfinite(means).all(axis=1))


def _unless_binary(view: View) -> str | None:
    if view.grant.n_classes == 2:
        return None
    return f"it tells two classes apart and this run has {view.grant.n_classes}"
