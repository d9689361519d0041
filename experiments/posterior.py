"""An attack on labels that were randomised once: read them off the gradients, learn from them, weigh both.

Gradients fall into as many clusters as there are classes, and the clusters are the randomised labels. Many randomised
labels train a classifier on the attacker's own columns. What that says of a row, and the row's own randomised label,
are joined by Bayes' rule; how often labels were changed is public.
"""

from __future__ import annotations

import math

import numpy as np

from colonnade.attacks.base import Attack, Guess, Needs, View
from colonnade.attacks.labels.clustering import GradientClusters
from colonnade.models.glm.matrix import Matrix
from colonnade.tables.encode import Design
from colonnade.wire.message import Float64Array, Int64Array

FOLDS = 5
# No row is believed to be surer than this before its own randomised label is looked at.
LEAST = 0.01


class RandomisedPosterior(Attack):
    """The chance of each row's class, given its randomised label and the attacker's own columns."""

    needs = Needs(messages=GradientClusters.needs.messages, own_features=True, known_labels=4)

    def why_not(self, view: View) -> str | None:
        """Only where labels are randomised, and gradients can be cut into clusters."""
        if "epsilon" not in view.public.settings:
            return "the model's settings name no epsilon with which labels were randomised"
        return GradientClusters().why_not(view)

    def guess(self, view: View) -> Guess:
        """Read, learn, and join."""
        read = GradientClusters().guess(view)
        assert read.classes is not None
        table, n_classes = view.own.table.take(read.rows), view.grant.n_classes
        matrix = Design.learned(table, standardised=True, intercept=False).matrix(table)
        kept = 1 / (1 + (n_classes - 1) * math.exp(-view.public.settings["epsilon"]))
        changed = (1 - kept) / (n_classes - 1)
        # The classifier foretells randomised labels; the same mixture of kept and changed ones leads back to true ones.
        true = np.clip((_foretold(matrix, read.classes, n_classes) - changed) / (kept - changed), LEAST, None)
        true[np.arange(len(true)), read.classes] *= kept / changed
        true /= true.sum(axis=1, keepdims=True)
        if n_classes == 2:
            return Guess(read.rows, scores=true[:, 1])
        return Guess(read.rows, classes=true.argmax(axis=1))


def _foretold(matrix: Matrix, classes: Int64Array, n_classes: int) -> Float64Array:
    """Every row's chance of each class, by a regression that was not shown the row."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import StratifiedKFold

    found = np.full((len(classes), n_classes), 1 / n_classes)
    if np.unique(classes, return_counts=True)[1].min() < FOLDS:
        return found
    for shown, asked in StratifiedKFold(FOLDS).split(np.zeros(len(classes)), classes):
        regression = LogisticRegression(max_iter=1_000).fit(matrix[shown], classes[shown])
        found[np.ix_(asked, regression.classes_)] = regression.predict_proba(matrix[asked])
    return found
