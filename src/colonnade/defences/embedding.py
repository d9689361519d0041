"""Penalties on embeddings: training itself is to keep out of them what they would tell.

A penalty on a received embedding is minimised through gradients that go to the feature party, and these gradients
depend on the labels in a way of their own: hold a defence of gradients as well. In U-shape the label party receives the
server's output and no embedding, and the penalty is on that.

Distance correlation: Székely et al. 2007; Vepakomma et al. 2020, "NoPeek", arXiv 2008.09161 (features); Sun et al.
2022, arXiv 2203.01451 (labels). Potential energy: Zheng et al. 2024, "Protecting split learning by potential energy
loss", arXiv 2210.09617.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch

from colonnade.defences.base import classes_of
from colonnade.parameters import Limit, check_parameters, number
from colonnade.runtime.context import HookContext, Tensor
from colonnade.runtime.party import Defence

# Two rows nearer than this count as this far apart: one over a distance, and a root's slope, have no bound at 0.
NEAREST = 0.05
_TINY = 1e-6


class DistanceCorrelation(Defence):
    """A penalty on the dependence between embeddings and what they should not tell.

    At the label party that is the labels, and the embeddings are those received. At a feature party it is its own
    columns, and the embedding is its own: this protects its features, not the labels.

    Args:
        weight: How much it counts beside the loss.
        log: Take the logarithm of the distance correlation, which keeps pressing when little is left.

    >>> DistanceCorrelation(weight=0.1).name
    'DistanceCorrelation(weight=0.1)'
    """

    known_by = (("penalty-classes", {"penalty": "distance-correlation"}), ("co-training", {}))
    named_by = "weight"
    limits: ClassVar[Mapping[str, Limit]] = {"weight": number(above=0)}

    def __init__(self, *, weight: float = 0.3, log: bool = True) -> None:
        self.weight, self.log = weight, log
        check_parameters(self)

    def loss(self, loss: Tensor, at: HookContext) -> Tensor:
        if at.track == "local":
            return loss
        if at.labels is not None:
            pairs = [(embedding, _labels_as_numbers(there)) for embedding, there in at.each_received()]
        else:
            pairs = [(embedding, at.inputs) for embedding in at.own.values() if at.inputs is not None]
        for embedding, secret in pairs:
            dependence = distance_correlation(embedding, secret)
            loss = loss + self.weight * (torch.log(dependence + _TINY) if self.log else dependence).to(loss.dtype)
        return loss


class PotentialEnergy(Defence):
    """A penalty on received embeddings of one class that lie close together, like charges of one sign (PELoss).

    It is the mean over rows of the mean of one over the distance to the other rows of the class, distances being
    softened so that equal rows do no harm. The published penalty is a sum over rows, divides by all n rows of the class
    in the place of the n - 1 others, and softens nothing: the number of rows in a batch times (n - 1) / n times as much
    as this where classes are alike in size and distances not small.

    Args:
        weight: How much it counts beside the loss.
        angular: Compare directions rather than places; otherwise longer embeddings alone make it smaller.

    >>> PotentialEnergy(weight=2.0).name
    'PotentialEnergy(weight=2)'
    """

    known_by = (("penalty-classes", {"penalty": "potential-energy"}), ("averaged-gradients", {}), ("co-training", {}))
    reads_labels = True
    named_by = "weight"
    limits: ClassVar[Mapping[str, Limit]] = {"weight": number(above=0)}

    def __init__(self, *, weight: float = 1.0, angular: bool = True) -> None:
        self.weight, self.angular = weight, angular
        check_parameters(self)

    def loss(self, loss: Tensor, at: HookContext) -> Tensor:
        if at.track == "local" or at.labels is None:
            return loss
        classes_of(at, "PotentialEnergy compares rows of one class")
        for embedding, there in at.each_received():
            assert there.labels is not None
            energy = potential_energy(embedding, there.labels, angular=self.angular)
            loss = loss + self.weight * energy.to(loss.dtype)
        return loss


def distance_correlation(x: Tensor, y: Tensor) -> Tensor:
    """How dependent two sets of numbers about the same rows are: 0 (not at all) to 1.

    It takes the distances of all pairs of rows, O(rows^2).

    >>> x = torch.arange(6.0)[:, None]
    >>> round(distance_correlation(x, 3 * x + 1).item(), 3)
    1.0
    """
    a, b = _centred_distances(x), _centred_distances(y)
    covariance = (a * b).mean().clamp_min(_TINY**2)
    scale = ((a * a).mean() * (b * b).mean()).clamp_min(_TINY**2).sqrt()
    return (covariance / scale).sqrt()


def potential_energy(embedding: Tensor, labels: Tensor, *, angular: bool) -> Tensor:
    """The mean over rows of the mean of one over the distance to the other rows of the class; 0 where there are none.

    >>> potential_energy(torch.tensor([[0.0], [2.0]]), torch.tensor([1, 1]), angular=False).item() < 0.5
    True
    """
    with torch.autocast(embedding.device.type, enabled=False):
        z = embedding if embedding.dtype == torch.float64 else embedding.float()
        if angular:
            z = z / (z.square().sum(dim=1, keepdim=True) + _TINY).sqrt()
        is_mate = (labels[:, None] == labels).to(z.dtype).fill_diagonal_(0)
        inverse = (_squared_distances(z) + NEAREST**2).rsqrt()
        of_row = (is_mate * inverse).sum(dim=1) / is_mate.sum(dim=1).clamp_min(1)
        value: Tensor = of_row.mean()
    return value


def _labels_as_numbers(at: HookContext) -> Tensor:
    """One row per sample: of classes, one-hot."""
    assert at.labels is not None
    if at.n_classes is None:
        return at.labels.float()[:, None]
    return torch.nn.functional.one_hot(at.labels, at.n_classes).float()


def _centred_distances(x: Tensor) -> Tensor:
    x = x if x.dtype == torch.float64 else x.float()
    distances = (_squared_distances(x) + _TINY**2).sqrt()
    return distances - distances.mean(dim=0) - distances.mean(dim=1, keepdim=True) + distances.mean()


def _squared_distances(x: Tensor) -> Tensor:
    # By differences: sums of squares less products lose all digits where rows are close.
    return torch.cdist(x, x, compute_mode="donot_use_mm_for_euclid_dist").square()
