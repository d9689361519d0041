"""Co-training: what the attacker's own columns say, and what gradients say, correct each other in turn.

A few known labels and the attacker's own columns give every row a first belief; the nearest known gradient gives
another start. Under these beliefs, a discriminant on gradients and embeddings is fitted, each row judged by the others
(`discriminants`). Both are joined by Bayes' rule into the next beliefs, and so on. Gradients that tell too little for
clusters still move beliefs that were right on average. The start that ends in agreement with the known rows, each
judged without its own label, is kept.

It knows no defence in particular. It is the attack that found what other attacks missed under noise, compression and
penalties. Blum and Mitchell 1998, "Combining labeled and unlabeled data with co-training".
"""

from __future__ import annotations

import numpy as np

from colonnade.attacks.base import Attack, Guess, Needs, View
from colonnade.attacks.labels.discriminants import compressed, cross_fitted, log_normalised
from colonnade.attacks.labels.spreading import spread
from colonnade.attacks.points import KNOWN_PER_CLASS, Points, distances, why_no_gradients
from colonnade.models.networks.messages import Embedding, Gradient
from colonnade.wire.message import Float64Array, Int64Array

ROUNDS = 5
# How sure a first belief and a known row are at most.
SURE, TOLD = 0.9, 0.99


class CoTraining(Attack):
    """Beliefs from the attacker's own columns and from gradients and embeddings, corrected by each other in turn."""

    needs = Needs(messages=(Embedding, Gradient), own_features=True, known_labels=KNOWN_PER_CLASS)

    def why_not(self, view: View) -> str | None:
        return why_no_gradients(view) or self._points(view).why_not(view.grant)

    def guess(self, view: View) -> Guess:
        points, n_classes = self._points(view), view.grant.n_classes
        known, labels = points.known(view.grant)
        told = (TOLD * np.eye(n_classes) + (1 - TOLD) / n_classes)[labels]
        columns = Points(points.rows, Points.of_columns(view).at(points.rows))
        first = believed(columns, known, labels, n_classes, view.random)
        nearest = labels[distances(points.values, points.values[known]).argmin(axis=1)]
        best, found = -np.inf, first
        for belief in (first.copy(), np.eye(n_classes)[nearest]):
            for _ in range(ROUNDS):
                belief[known] = told
                said = cross_fitted(points.values, belief, view.random)
                belief = np.exp(log_normalised(np.log(first) + said))
            # Nobody's own label is among what a row is judged by, so that known rows tell which start led farther.
            agreed = float(said[known, labels].mean())
            if agreed > best:
                best, found = agreed, belief
        return Guess.rated(points.rows, np.log(found + 1e-300))

    def _points(self, view: View) -> Points:
        """Gradients on average and of the first epoch, and embeddings: directions and lengths."""
        parts = [Points.of_gradients(view, "mean"), Points.of_gradients(view, "first"), Points.of_embeddings(view)]
        parts = [part for part in parts if len(part.rows)]
        if not parts:
            return Points(np.zeros(0, np.int64), np.zeros((0, 0)))
        joined = _features(parts[0])
        for part in parts[1:]:
            joined = joined.beside(_features(part))
        return joined.standardised()


def believed(
    columns: Points, known: Int64Array, labels: Int64Array, n_classes: int, random: np.random.Generator
) -> Float64Array:
    """What the attacker's own columns say of each row's class, from a few known rows; nobody is quite sure."""
    x = compressed(columns).values
    if not x.shape[1]:
        return np.full((len(x), n_classes), 1 / n_classes)
    if n_classes > 2:
        found = spread(x, known, labels, n_classes, random)
    else:
        from sklearn.linear_model import LogisticRegression

        found = LogisticRegression(C=0.1).fit(x[known], labels).predict_proba(x)
    found = np.maximum(found, 1e-9)
    return np.asarray(SURE * found / found.sum(axis=1, keepdims=True) + (1 - SURE) / n_classes)


def _features(points: Points) -> Points:
    lengths = np.linalg.norm(points.values, axis=1, keepdims=True)
    # Few rows have by far the longest gradients; places would show little else.
    parts = [points.directions().values, np.log(lengths + 1e-6 * (lengths.mean() + 1e-30))]
    return Points(points.rows, np.concatenate(parts, axis=1))
