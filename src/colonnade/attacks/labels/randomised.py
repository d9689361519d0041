"""An attack on labels that were randomised once: read them off the gradients, learn from them, weigh both.

Gradients fall into as many clusters as there are classes, and the clusters are the randomised labels. Many randomised
labels train networks on the attacker's own columns. The loss changes what a network says as labels were changed before
it compares both, so that the network learns true labels. The known rows name the clusters: by the clusters that they
are in, of which many are wrong where many labels were changed, and by what first networks say of them. Then networks
learn once more, from the known rows too, which now have names. What they say of a row, and the row's own randomised
label, are joined by Bayes' rule. How often labels were changed is public where a model's settings say epsilon;
otherwise the known rows tell it once clusters have names, and the first networks learn as if half of the way to chance
were changed.

Forward correction of the loss: Patrini et al. 2017, "Making deep neural networks robust to label noise", arXiv
1609.03683.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from colonnade.attacks.base import Attack, Guess, Needs, View
from colonnade.attacks.labels.clustering import GradientClusters
from colonnade.attacks.points import FITTED_ROWS, KNOWN_PER_CLASS, Points, chosen_rows
from colonnade.models.networks.messages import Gradient
from colonnade.parameters import Limit, check_parameters, number, optional
from colonnade.wire.message import Float64Array, Int64Array

# No class is believed to be less likely than this before a row's own randomised label is looked at.
LEAST = 1e-6
# The least that a network's word on a known row counts for when clusters are named.
LEAST_NAMED = 0.01
MOST_KEPT = 0.99
# Networks that are averaged, with so many hidden units; how they learn, and rows shown at least and epochs at most.
NETWORKS, HIDDEN, RATE, DECAY, BATCH = 3, 64, 2e-3, 1e-3, 256
SHOWN, FEWEST_EPOCHS, MOST_EPOCHS = 40_000, 4, 30
# What the mean over known rows weighs, relative to that over a batch.
KNOWN_WEIGHT = 0.1


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
        points = Points(read.rows, Points.of_columns(view).at(read.rows))
        known, labels = points.known(view.grant)
        nobody = known[:0]
        said = foretold_true(points.values, read.classes, n_classes, self._assumed(view), nobody, nobody, view.random)
        cluster_of = self._names(view, read.classes, said, known, labels)
        classes = np.argsort(cluster_of)[read.classes]
        kept = self._kept(view, classes[known], labels)
        true = foretold_true(points.values, classes, n_classes, kept, known, labels, view.random)
        true[np.arange(len(true)), classes] *= kept / ((1 - kept) / (n_classes - 1))
        return Guess.rated(read.rows, np.log(true / true.sum(axis=1, keepdims=True)))

    def _names(
        self, view: View, clusters: Int64Array, said: Float64Array, known: Int64Array, labels: Int64Array
    ) -> Int64Array:
        """The cluster of each class: the names under which the known rows are likeliest.

        Args:
            view: What the attacker has.
            clusters: The cluster of each row.
            said: The chance that networks give each row to be truly of each cluster.
            known: The places of the known rows.
            labels: Their labels.
        """
        from scipy.optimize import linear_sum_assignment

        n_classes, kept = view.grant.n_classes, self._assumed(view)
        is_there = np.eye(n_classes)[clusters[known]]
        likely = np.log(is_there * kept + (1 - is_there) * (1 - kept) / (n_classes - 1))
        # A network that is quite wrong about one row must not outvote all others.
        likely += np.log(np.clip(said[known], LEAST_NAMED, None))
        fits = np.eye(n_classes)[labels].T @ likely
        return np.asarray(linear_sum_assignment(-fits)[1])

    def _epsilon(self, view: View) -> float | None:
        """With which labels were randomised, where that is public."""
        epsilon: float | None = self.epsilon or view.public.settings.get("epsilon")
        return epsilon

    def _assumed(self, view: View) -> float:
        """The share of labels that randomisation kept, before any known row is looked at."""
        n_classes, epsilon = view.grant.n_classes, self._epsilon(view)
        return (1 + 1 / n_classes) / 2 if epsilon is None else _kept_at(epsilon, n_classes)

    def _kept(self, view: View, read: Int64Array, labels: Int64Array) -> float:
        """The share of labels that randomisation kept; `read` are the randomised labels of known rows."""
        n_classes, epsilon = view.grant.n_classes, self._epsilon(view)
        if epsilon is not None:
            return _kept_at(epsilon, n_classes)
        # One row more is taken for right and one for wrong; fewer than by chance are not believed.
        right = ((read == labels).sum() + 1) / (len(read) + 2)
        return float(np.clip(right, 1.1 / n_classes, MOST_KEPT))


def foretold_true(
    x: Float64Array,
    changed: Int64Array,
    n_classes: int,
    kept: float,
    known: Int64Array,
    labels: Int64Array,
    random: np.random.Generator,
) -> Float64Array:
    """Every row's chance of each true class, by networks on its numbers that learn from labels of which some are kept.

    Args:
        x: The rows' numbers.
        changed: The randomised labels.
        n_classes: How many classes there are.
        kept: The share of labels that randomisation kept.
        known: The rows whose true labels are known.
        labels: Their labels.
        random: Where the networks' weights and batches come from.
    """
    import torch
    from torch import nn

    from colonnade.attacks.labels.heads import in_batches, reproducible

    values, read = torch.from_numpy(x).float(), torch.from_numpy(changed)
    certain, classes = values[torch.from_numpy(known)], torch.from_numpy(labels)
    fitted = torch.from_numpy(chosen_rows(len(x), FITTED_ROWS, np.zeros(0, np.int64), random))
    mixed = torch.full((n_classes, n_classes), (1 - kept) / (n_classes - 1)).fill_diagonal_(kept)
    epochs = max(FEWEST_EPOCHS, min(MOST_EPOCHS, SHOWN // len(fitted)))
    said = torch.zeros(len(x), n_classes)
    with reproducible(random):
        for _ in range(NETWORKS):
            network = nn.Sequential(nn.Linear(x.shape[1], HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, n_classes))
            optimiser = torch.optim.Adam(network.parameters(), RATE, weight_decay=DECAY)
            for _ in range(epochs):
                for rows in torch.split(fitted[torch.randperm(len(fitted))], BATCH):
                    likely = network(values[rows]).softmax(dim=1) @ mixed
                    loss = nn.functional.nll_loss(likely.log(), read[rows])
                    if len(certain):
                        loss = loss + KNOWN_WEIGHT * nn.functional.cross_entropy(network(certain), classes)
                    optimiser.zero_grad()
                    loss.backward()  # type: ignore[no-untyped-call]
                    optimiser.step()
            said += in_batches(network, values).softmax(dim=1) / NETWORKS
    return np.clip(said.numpy().astype(np.float64), LEAST, None)


def _kept_at(epsilon: float, n_classes: int) -> float:
    """The share of labels that randomised response keeps."""
    return 1 / (1 + (n_classes - 1) * math.exp(-epsilon))
