"""Distillation: noisy guesses about many rows train a good classifier on the attacker's own columns.

A gradient that tells little about its row still leans to its class. Guessed classes of all rows are many weak labels,
and a classifier that learns from them averages their errors away.

Learning from another model's guesses: Hinton et al. 2015, "Distilling the knowledge in a neural network", arXiv
1503.02531.
"""

from __future__ import annotations

import numpy as np

from colonnade.attacks.base import Attack, Guess, Needs, View
from colonnade.attacks.labels.discriminants import foretold
from colonnade.attacks.points import KNOWN_PER_CLASS, Points, distances, why_no_gradients
from colonnade.models.networks.messages import Gradient


class Distillation(Attack):
    """Classes guessed from gradients, learned by a classifier on the attacker's own columns."""

    needs = Needs(messages=(Gradient,), own_features=True, known_labels=KNOWN_PER_CLASS)

    def why_not(self, view: View) -> str | None:
        return why_no_gradients(view) or Points.of_gradients(view, "mean").why_not(view.grant)

    def guess(self, view: View) -> Guess:
        """Give each row the class of the nearest centre of known gradients, and learn the classes from the columns."""
        points, n_classes = Points.of_gradients(view, "mean").standardised(), view.grant.n_classes
        known, labels = points.known(view.grant)
        centres = np.stack([points.values[known[labels == k]].mean(axis=0) for k in range(n_classes)])
        guessed = distances(points.values, centres).argmin(axis=1)
        guessed[known] = labels
        columns = Points.of_columns(view).at(points.rows)
        return Guess.rated(points.rows, np.log(foretold(columns, guessed, n_classes, view.random) + 1e-12))
