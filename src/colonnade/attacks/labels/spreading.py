"""Label spreading: a row takes its classes from its neighbours, and they from theirs, up to a few known rows.

A graph joins each row with the ten nearest. Embeddings or the attacker's own columns stand beside gradients, so that
rows are neighbours that are alike in both.

The graph has at most 2,000 rows, the known ones among them. Every other row follows the five nearest of these.

Zhou et al. 2004, "Learning with local and global consistency".
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from colonnade.attacks.base import Attack, Guess, Needs, View
from colonnade.attacks.labels.discriminants import compressed
from colonnade.attacks.points import (
    KNOWN_PER_CLASS,
    LANDMARKS,
    Points,
    chosen_rows,
    why_no_gradients,
)
from colonnade.models.networks.messages import Embedding, Gradient
from colonnade.wire.message import Float64Array, Int64Array

if TYPE_CHECKING:
    from scipy.sparse import csr_array

NEIGHBOURS, FOLLOWED = 10, 5
SPREADING, ROUNDS = 0.95, 30
# So many rows at a time are compared with all landmarks: 16 MB of distances.
COMPARED = 1_000


class EmbeddingSpreading(Attack):
    """Labels spread among rows that are alike in the attacker's embeddings and in its gradients."""

    needs = Needs(messages=(Embedding, Gradient), known_labels=KNOWN_PER_CLASS)

    def why_not(self, view: View) -> str | None:
        return why_no_gradients(view) or self._points(view).why_not(view.grant)

    def guess(self, view: View) -> Guess:
        return _spread_over(self._points(view), view)

    def _points(self, view: View) -> Points:
        gradients = Points.of_gradients(view, "mean").standardised()
        return Points.of_embeddings(view).standardised().beside(gradients)


class ColumnSpreading(Attack):
    """Labels spread among rows that are alike in the attacker's own columns and in its gradients."""

    needs = Needs(messages=(Gradient,), own_features=True, known_labels=KNOWN_PER_CLASS)

    def why_not(self, view: View) -> str | None:
        return why_no_gradients(view) or self._points(view).why_not(view.grant)

    def guess(self, view: View) -> Guess:
        return _spread_over(self._points(view), view)

    def _points(self, view: View) -> Points:
        gradients = Points.of_gradients(view, "mean").standardised()
        return compressed(Points.of_columns(view)).beside(gradients)


def _spread_over(points: Points, view: View) -> Guess:
    known, labels = points.known(view.grant)
    return Guess.rated(points.rows, spread(points.values, known, labels, view.grant.n_classes, view.random))


def spread(
    x: Float64Array, known: Int64Array, labels: Int64Array, n_classes: int, random: np.random.Generator
) -> Float64Array:
    """How likely each class of each row is, by the known rows that its neighbours lead to."""
    landmarks = chosen_rows(len(x), LANDMARKS, known, random)
    start = np.zeros((len(landmarks), n_classes))
    start[np.searchsorted(landmarks, known), labels] = 1
    links, found = neighbour_links(x[landmarks]), start
    for _ in range(ROUNDS):
        found = SPREADING * (links @ found) + (1 - SPREADING) * start
    # Each class is given as much in all, so that one known row in a dense place does not take everything.
    found = found / np.maximum(found.sum(axis=0), 1e-12)
    found = found / np.maximum(found.sum(axis=1, keepdims=True), 1e-12)
    return followed(x, landmarks, found)


def neighbour_links(x: Float64Array) -> csr_array:
    """How strongly rows are joined with their nearest neighbours, normalised by both rows' degrees."""
    from scipy.sparse import csr_array, diags_array

    n, n_near = len(x), min(NEIGHBOURS, len(x) - 1)
    far = _squared(x, x)
    np.fill_diagonal(far, np.inf)
    near = np.argpartition(far, n_near - 1, axis=1)[:, :n_near]
    joined = csr_array((np.ones(near.size), (np.repeat(np.arange(n), n_near), near.ravel())), shape=(n, n))
    links = (joined + joined.T) / 2
    scale = diags_array(1 / np.sqrt(np.maximum(links.sum(axis=1), 1e-12)))
    return csr_array(scale @ links @ scale)


def followed(x: Float64Array, landmarks: Int64Array, found: Float64Array) -> Float64Array:
    """What landmarks found, and for every other row the mean of the nearest landmarks."""
    everywhere = np.empty((len(x), found.shape[1]))
    others = np.setdiff1d(np.arange(len(x)), landmarks)
    for start in range(0, len(others), COMPARED):
        rows = others[start : start + COMPARED]
        near = np.argpartition(_squared(x[rows], x[landmarks]), FOLLOWED, axis=1)[:, :FOLLOWED]
        everywhere[rows] = found[near].mean(axis=1)
    everywhere[landmarks] = found
    return everywhere


def _squared(x: Float64Array, others: Float64Array) -> Float64Array:
    """Squared distances, less each row's own square, which changes no order."""
    return np.asarray((others**2).sum(axis=1) - 2 * x @ others.T)
