"""An attack on labels that were randomised once: read them off the gradients, learn from them, weigh both.

Gradients fall into as many clusters as there are classes, and the clusters are the randomised labels. Many randomised
labels train a classifier on the attacker's own columns. The known rows name the clusters: by the clusters that they are
in, of which many are wrong where many labels were changed, and by the clusters that the classifier foretells for them,
which no change of their own labels moves. What the classifier says of a row, and the row's own randomised label, are
joined by Bayes' rule. How often labels were changed is public where a model's settings say epsilon; otherwise the
known rows tell it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from colonnade.attacks.base import Attack, Guess, Needs, View
from colonnade.attacks.labels.clustering import GradientClusters
from colonnade.attacks.labels.discriminants import foretold
from colonnade.attacks.points import KNOWN_PER_CLASS, Points
from colonnade.models.networks.messages import Gradient
from colonnade.parameters import Limit, check_parameters, number, optional
from colonnade.wire.message import Float64Array, Int64Array

# No row is believed to be surer than this before its own randomised label is looked at.
LEAST = 0.01
MOST_KEPT = 0.99


class RandomisedPosterior(Attack):
    """The chance of each row's class, given its randomised label and the attacker's own columns.

    Args:
        epsilon: With which labels were randomised. None takes the epsilon of the model's settings or, where there is
            none, estimates the share of changed labels from the known rows.

    >>> RandomisedPosterior(epsilon=1.0).needs.own_features
    True
    """

    needs = Needs(messages=(Gradient,), own_features=True, known_labels=KNOWN_PER_CLASS)
    limits: ClassVar[Mapping[str, Limit]] = {"epsilon": optional(number(above=0))}

    def __init__(self, *, epsilon: float | None = None) -> None:
        self.epsilon = epsilon
        check_parameters(self)

    def why_not(self, view: View) -> str | None:
        return GradientClusters().why_not(view)

    def guess(self, view: View) -> Guess:
        """Read, learn, name, and join."""
        read = GradientClusters().guess(view)
        assert read.classes is not None
        n_classes = view.grant.n_classes
        columns = Points.of_columns(view).at(read.rows)
        # The classifier foretells randomised labels; the same mixture of kept and changed ones leads back to true ones.
        said = foretold(columns, read.classes, n_classes, view.random)
        cluster_of = self._names(view, read.rows, read.classes, said)
        said, classes = said[:, cluster_of], np.argsort(cluster_of)[read.classes]
        kept = self._kept(view, read.rows, classes)
        changed = (1 - kept) / (n_classes - 1)
        true = np.clip((said - changed) / max(kept - changed, 1e-9), LEAST, None)
        true[np.arange(len(true)), classes] *= kept / changed
        return Guess.rated(read.rows, np.log(true / true.sum(axis=1, keepdims=True)))

    def _names(self, view: View, rows: Int64Array, clusters: Int64Array, said: Float64Array) -> Int64Array:
        """The cluster of each class: the names under which the known rows are likeliest.

        Args:
            view: What the attacker has.
            rows: The rows that have a cluster.
            clusters: Their clusters.
            said: The chance of each cluster that the classifier gives these rows, which it was not shown.
        """
        from scipy.optimize import linear_sum_assignment

        n_classes, epsilon = view.grant.n_classes, self._epsilon(view)
        kept = (1 + 1 / n_classes) / 2 if epsilon is None else _kept_at(epsilon, n_classes)
        has_point = np.isin(view.grant.rows, rows)
        at, labels = np.searchsorted(rows, view.grant.rows[has_point]), view.grant.labels[has_point]
        is_there = np.eye(n_classes)[clusters[at]]
        likely = np.log(is_there * kept + (1 - is_there) * (1 - kept) / (n_classes - 1))
        likely += np.log(np.clip(said[at], LEAST, None))
        fits = np.eye(n_classes)[labels].T @ likely
        return np.asarray(linear_sum_assignment(-fits)[1])

    def _epsilon(self, view: View) -> float | None:
        """With which labels were randomised, where that is public."""
        epsilon: float | None = self.epsilon or view.public.settings.get("epsilon")
        return epsilon

    def _kept(self, view: View, rows: Int64Array, classes: Int64Array) -> float:
        """The share of labels that randomisation kept."""
        n_classes, epsilon = view.grant.n_classes, self._epsilon(view)
        if epsilon is not None:
            return _kept_at(epsilon, n_classes)
        has_point = np.isin(view.grant.rows, rows)
        read = classes[np.searchsorted(rows, view.grant.rows[has_point])]
        right, n_known = (read == view.grant.labels[has_point]).sum(), len(read)
        # One row more is taken for right and one for wrong; fewer than by chance are not believed.
        return float(np.clip((right + 1) / (n_known + 2), 1.1 / n_classes, MOST_KEPT))


def _kept_at(epsilon: float, n_classes: int) -> float:
    """The share of labels that randomised response keeps."""
    return 1 / (1 + (n_classes - 1) * math.exp(-epsilon))
