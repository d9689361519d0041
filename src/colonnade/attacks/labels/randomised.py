"""An attack on labels that were randomised once: read them off the gradients, learn from them, weigh both.

Gradients fall into as many clusters as there are classes, and the clusters are the randomised labels. Many randomised
labels train networks on the attacker's own columns. The loss changes what a network says as labels were changed before
it compares both, so that the network learns true labels. The clusters are named by the known rows: by the clusters that
they are in, of which many are wrong where many labels were changed, and by what networks say of them; and by what the
attacker's own columns lead to believe of all other rows. How often labels were changed is public where a model's
settings say epsilon; otherwise networks learn for several epsilons, and the one counts under which the known rows are
likeliest. Then networks learn once more, from the known rows too, which now have names. What they say of a row, and the
row's own randomised label, are joined by Bayes' rule.

Forward correction of the loss: Patrini et al. 2017, "Making deep neural networks robust to label noise", arXiv
1609.03683.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np

from colonnade.attacks.base import Attack, Guess, Needs, View
from colonnade.attacks.labels.clustering import GradientClusters
from colonnade.attacks.labels.cotraining import believed
from colonnade.attacks.points import BLOCK, FITTED_ROWS, KNOWN_PER_CLASS, Points, chosen_rows
from colonnade.models.networks.messages import Gradient
from colonnade.parameters import Limit, check_parameters, number, optional
from colonnade.runtime.context import Tensor
from colonnade.wire.message import Float64Array, Int64Array

# No class is believed to be less likely than this before a row's own randomised label is looked at.
LEAST = 1e-6
# The least that a network's word on a known row counts for when clusters are named.
LEAST_NAMED = 0.01
MOST_KEPT = 0.99
# With which labels may have been randomised, where nobody says it.
EPSILONS = (0.5, 1.0, 2.0, 4.0, 8.0)
# What beliefs about all rows weigh when clusters are named, relative to all known rows.
BELIEFS_WEIGHT = 4
NOBODY = np.zeros(0, np.int64)
# Networks that are averaged, with so many hidden units; how they learn, and rows shown at least and epochs at most.
NETWORKS, HIDDEN, RATE, DECAY, BATCH = 3, 64, 2e-3, 1e-3, 256
SHOWN, FEWEST_EPOCHS, MOST_EPOCHS = 40_000, 4, 30
# What the mean over known rows weighs, relative to that over a batch.
KNOWN_WEIGHT = 0.1


class RandomisedPosterior(Attack):
    """The chance of each row's class, given its randomised label and the attacker's own columns.

    Args:
        epsilon: With which labels were randomised. None takes the epsilon of the model's settings or, where there is
            none, the likeliest of a few.

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
        epsilon = self.epsilon or view.public.settings.get("epsilon")
        naming = _Naming(points, read.classes, known, labels, n_classes, view.random)
        kept = naming.likeliest_kept() if epsilon is None else _kept_at(epsilon, n_classes)
        classes = np.argsort(naming.clusters_of(kept))[read.classes]
        true = foretold_true(points.values, classes, n_classes, [kept] * NETWORKS, view.random, known, labels).mean(
            axis=0
        )
        true[np.arange(len(true)), classes] *= kept / ((1 - kept) / (n_classes - 1))
        return Guess.rated(read.rows, np.log(true / true.sum(axis=1, keepdims=True)))


class _Naming:
    """Finds which class each cluster of gradients is, and how many labels were kept.

    Args:
        points: The rows' own columns.
        clusters: The cluster of each row.
        known: The places of the known rows.
        labels: Their labels.
        n_classes: How many classes there are, and clusters.
        random: Where the networks' weights and batches come from.
    """

    def __init__(
        self,
        points: Points,
        clusters: Int64Array,
        known: Int64Array,
        labels: Int64Array,
        n_classes: int,
        random: np.random.Generator,
    ) -> None:
        self._x, self._clusters, self._known, self._random = points.values, clusters, known, random
        self._told, self._n_classes = np.eye(n_classes)[labels], n_classes
        self._beliefs = believed(points, known, labels, n_classes, random)

    def likeliest_kept(self) -> float:
        """The share of labels that were kept, among a few: the one under which the known rows are likeliest."""
        shares = [_kept_at(epsilon, self._n_classes) for epsilon in EPSILONS]
        said = foretold_true(self._x, self._clusters, self._n_classes, shares, self._random)
        fits = [self._fitted(each, kept)[1] for each, kept in zip(said, shares, strict=True)]
        return shares[int(np.argmax(fits))]

    def clusters_of(self, kept: float) -> Int64Array:
        """The cluster of each class, where such a share of labels was kept."""
        said = foretold_true(self._x, self._clusters, self._n_classes, [kept] * NETWORKS, self._random)
        return self._fitted(said.mean(axis=0), kept)[0]

    def _fitted(self, said: Float64Array, kept: float) -> tuple[Int64Array, float]:
        """The cluster of each class, and how likely the known rows are under these names, as a logarithm.

        Known rows are few: what own columns lead to believe of all other rows names clusters as well.

        Args:
            said: The chance that networks give each row to be truly of each cluster.
            kept: The share of labels that were kept.
        """
        from scipy.optimize import linear_sum_assignment

        # A network that is quite wrong about one row must not outvote all others.
        said = np.log(np.clip(said, LEAST_NAMED, None))
        is_there = np.eye(self._n_classes)[self._clusters[self._known]]
        read = np.log(is_there * kept + (1 - is_there) * (1 - kept) / (self._n_classes - 1))
        fits = self._told.T @ (said[self._known] + read)
        weight = BELIEFS_WEIGHT * len(self._known) / len(said)
        names = linear_sum_assignment(fits + weight * self._beliefs.T @ said, maximize=True)
        return np.asarray(names[1]), float(fits[names].sum())


def foretold_true(
    x: Float64Array,
    changed: Int64Array,
    n_classes: int,
    kept: Sequence[float],
    random: np.random.Generator,
    known: Int64Array = NOBODY,
    labels: Int64Array = NOBODY,
    shown: Int64Array | None = None,
) -> Float64Array:
    """Every row's chance of each true class (networks, rows, classes), learned from labels of which some were kept.

    The networks learn beside each other from the same batches: one product for all of them takes little longer than
    one for one.

    Args:
        x: The rows' numbers.
        changed: The randomised labels.
        n_classes: How many classes there are.
        kept: The share of labels that randomisation kept, as each network assumes it.
        random: Where the networks' weights and batches come from.
        known: The rows whose true labels are known.
        labels: Their labels.
        shown: The rows whose randomised labels are learned from; all if None.
    """
    import torch

    from colonnade.attacks.labels.heads import reproducible

    values, read = torch.from_numpy(x).float(), torch.from_numpy(changed)
    certain, told = values[torch.from_numpy(known)], torch.from_numpy(labels)
    shown = np.arange(len(x)) if shown is None else shown
    fitted = torch.from_numpy(shown[chosen_rows(len(shown), FITTED_ROWS, NOBODY, random)])
    shares = torch.tensor(kept)[:, None]
    epochs = max(FEWEST_EPOCHS, min(MOST_EPOCHS, SHOWN // len(fitted)))
    with reproducible(random):
        weights = []
        for wide, high in ((x.shape[1], HIDDEN), (HIDDEN, n_classes)):
            # As `torch.nn.Linear` begins.
            for shape in ((len(kept), wide, high), (len(kept), 1, high)):
                weights.append((2 * torch.rand(shape) - 1).mul_(wide**-0.5).requires_grad_())
        optimiser = torch.optim.Adam(weights, RATE, weight_decay=DECAY)

        def chances(rows: Tensor) -> Tensor:
            hidden = torch.baddbmm(weights[1], rows.expand(len(kept), -1, -1), weights[0]).relu()
            return torch.baddbmm(weights[3], hidden, weights[2]).softmax(dim=2)

        for _ in range(epochs):
            for rows in torch.split(fitted[torch.randperm(len(fitted))], BATCH):
                true = _of(chances(values[rows]), read[rows])
                # Randomised response: a label is kept, or becomes any other class.
                loss = -(shares * true + (1 - shares) * (1 - true) / (n_classes - 1)).log().mean(dim=1).sum()
                if len(certain):
                    loss = loss - KNOWN_WEIGHT * _of(chances(certain), told).log().mean(dim=1).sum()
                optimiser.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimiser.step()
        with torch.no_grad():
            said = torch.cat([chances(part) for part in torch.split(values, BLOCK)], dim=1)
    return np.clip(said.numpy().astype(np.float64), LEAST, None)


def _of(chances: Tensor, classes: Tensor) -> Tensor:
    """The chances of one class of each row (networks, rows), never quite 0."""
    return chances[:, range(len(classes)), classes].clamp_min(LEAST)


def _kept_at(epsilon: float, n_classes: int) -> float:
    """The share of labels that randomised response keeps, or a little less where that is nearly all."""
    return min(1 / (1 + (n_classes - 1) * math.exp(-epsilon)), MOST_KEPT)
