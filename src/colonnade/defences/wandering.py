"""Boundary wandering: embeddings of one class are pushed apart, so that similarity does not tell the class.

The boundary-wandering loss is the mean cosine over all pairs of rows of one class. In the batch's embeddings z with
unit vectors u_i = z_i / |z_i|, class sums S_k and class sizes n_k,

    sum over i != j in k of u_i . u_j  =  |S_k|^2 - sum over i in k of |u_i|^2,

so it takes O(rows x classes x width) and no matrix of pairs. Summing and counting ordered pairs, or unique pairs, gives
the same mean; a sum over ordered pairs divided by the number of unique ones, which the formula can be read as, is twice
as much, hence twice the alpha.

What it cannot do. It nulls the mean direction of each class and nothing else: codes +v and -v within a class have a
loss of nearly 0 and tell the label perfectly. The Gaussian kernel closes that gap: it drives the distributions of all
classes together, by random Fourier features (Rahimi and Recht 2007). With scope "public" the loss is about an embedding
that no feature party ever sees. With "received" its own gradient goes to the feature party and gives the classes away;
hold a defence of gradients with it.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Literal, TypeAlias

import torch
from torch.autograd.function import once_differentiable

from colonnade.defences.base import classes_of
from colonnade.errors import PlanError
from colonnade.parameters import Limit, check_parameters, choice, count, number
from colonnade.runtime.context import HookContext, Tensor
from colonnade.runtime.party import Defence, Party

Weighting: TypeAlias = Literal["pairs", "classes"]

# Shorter embeddings have no direction: their gradient would grow with one over their length.
SHORTEST = 1e-6
# A class of fewer rows has fewer pairs than rows.
FEWEST_ROWS = 3


class BoundaryWandering(Defence):
    """A penalty on embeddings of one class that point the same way, added to the loss of the federated track.

    Args:
        alpha: How much it counts beside the loss; 0 leaves the loss as it is.
        scope: The label party's own public embedding (as published), the embeddings received, or both; the penalties of
            several embeddings add up. What a label party receives in U-shape is the server's output.
        kernel: "cosine", the mean cosine within classes; or "gaussian", the squared distance between each class's
            distribution of directions and that of the batch.
        weighting: "pairs", every pair of rows counts alike, so that frequent classes dominate; or "classes", every
            class counts alike.
        features: How many random features stand for the Gaussian kernel.
        bandwidth: Its width, in distances between directions, which are at most 2.

    >>> BoundaryWandering(alpha=0.5, scope="received").name
    'BoundaryWandering(received)'
    """

    known_by = (("penalty-classes", {}), ("co-training", {}))
    reads_labels = True
    limits: ClassVar[Mapping[str, Limit]] = {
        "alpha": number(0),
        "scope": choice("public", "received", "both"),
        "kernel": choice("cosine", "gaussian"),
        "weighting": choice("pairs", "classes"),
        "features": count(),
        "bandwidth": number(above=0),
    }

    def __init__(
        self,
        *,
        alpha: float = 1.0,
        scope: Literal["public", "received", "both"] = "public",
        kernel: Literal["cosine", "gaussian"] = "cosine",
        weighting: Weighting = "pairs",
        features: int = 256,
        bandwidth: float = 0.5,
    ) -> None:
        self.alpha, self.scope, self.kernel, self.weighting = alpha, scope, kernel, weighting
        self.features, self.bandwidth = features, bandwidth
        check_parameters(self)

    @property
    def name(self) -> str:
        return f"BoundaryWandering({self.scope})"

    def before_run(self, party: Party) -> None:
        self._random = party.random.child("boundary wandering")
        self._frequencies: dict[int, Tensor] = {}

    def loss(self, loss: Tensor, at: HookContext) -> Tensor:
        if at.track != "federated" or at.labels is None or self.alpha == 0:
            return loss
        classes = classes_of(at, "BoundaryWandering compares rows of one class")
        if at.epoch == at.step == 0:
            self._warn_if_few(at.labels, classes)
        for embedding, labels in self._embeddings(at, at.labels):
            loss = loss + self.alpha * self._penalty(embedding, labels, classes).to(loss.dtype)
        return loss

    def _embeddings(self, at: HookContext, labels: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """The embeddings in scope, each with the labels of its rows."""
        if self.scope in ("public", "both"):
            if not at.own:
                raise PlanError(
                    f"BoundaryWandering with scope {self.scope!r} acts on the label party's own embedding, but the "
                    "label party has no columns. Use the scope 'received'."
                )
            yield at.own["public"] if "public" in at.own else at.own["embedding"], labels
        if self.scope in ("received", "both"):
            for embedding, there in at.each_received():
                assert there.labels is not None
                yield embedding, there.labels

    def _penalty(self, embedding: Tensor, labels: Tensor, n_classes: int) -> Tensor:
        if self.kernel == "cosine":
            return wandering_loss(embedding, labels, n_classes, weighting=self.weighting)
        width = embedding.shape[1]
        if width not in self._frequencies:
            drawn = self._random.generator("frequencies", width).standard_normal((width, self.features))
            self._frequencies[width] = torch.from_numpy(drawn / self.bandwidth).float()
        frequencies = self._frequencies[width].to(embedding.device)
        return kernel_wandering_loss(embedding, labels, n_classes, frequencies, weighting=self.weighting)

    def _warn_if_few(self, labels: Tensor, n_classes: int) -> None:
        # The first batch is a full one, drawn at random like all others.
        few = int((torch.bincount(labels, minlength=n_classes) < FEWEST_ROWS).sum())
        if few:
            warnings.warn(
                f"{few} of {n_classes} classes have fewer than {FEWEST_ROWS} of the first batch's {len(labels)} rows. "
                "BoundaryWandering has few pairs of them to push apart, or none. Use larger batches.",
                stacklevel=2,
            )


def wandering_loss(embedding: Tensor, labels: Tensor, n_classes: int, *, weighting: Weighting = "pairs") -> Tensor:
    """The mean cosine over pairs of rows of one class; 0 where there is no pair.

    Rows without a direction (length below 1e-6) are left out. Computed in single precision at least.

    Args:
        embedding: One row per sample.
        labels: The class numbers.
        n_classes: How many classes there are.
        weighting: "pairs": the mean over all pairs; "classes": the mean over classes of each class's mean.

    >>> z = torch.tensor([[1.0, 0.0], [2.0, 0.0], [0.0, 1.0]])
    >>> wandering_loss(z, torch.tensor([0, 0, 1]), 2).item()
    1.0
    """
    value: Tensor = _MeanCosine.apply(embedding, labels, n_classes, weighting)  # type: ignore[no-untyped-call]
    return value


class _MeanCosine(torch.autograd.Function):
    """Value and gradient of the wandering loss, worked out together: recording each operation takes longer than it."""

    @staticmethod
    def forward(ctx: Any, embedding: Tensor, labels: Tensor, n_classes: int, weighting: Weighting) -> Tensor:
        with torch.autocast(embedding.device.type, enabled=False):
            z = embedding if embedding.dtype == torch.float64 else embedding.float()
            lengths = torch.linalg.vector_norm(z, dim=1, keepdim=True)
            is_long = lengths > SHORTEST
            inverse = is_long / lengths.clamp_min(SHORTEST)
            units = z * inverse
            # A product with one-hot rows has one order of summation; adding by index on a GPU has none.
            members = (torch.arange(n_classes, device=z.device)[:, None] == labels).to(z.dtype)
            sums = members @ units
            counts = members @ is_long.to(z.dtype)
            pairs = counts * (counts - 1)
            if weighting == "pairs":
                weights = 1 / pairs.sum().clamp_min(1).expand_as(pairs)
            else:
                weights = (pairs > 0) / pairs.clamp_min(1) / (pairs > 0).sum().clamp_min(1)
            # Every pair counts for both its rows; a row's cosine with itself is 1 and has no derivative.
            pulls = (2 * weights * sums).index_select(0, labels)
            along = torch.linalg.vecdot(units, pulls)[:, None]
            ctx.save_for_backward(torch.addcmul(pulls, along, units, value=-1).mul_(inverse))
            ctx.dtype = embedding.dtype
            value: Tensor = along.sum() / 2 - (weights * counts).sum()
        return value

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        (per_row,) = ctx.saved_tensors
        return (gradient * per_row).to(ctx.dtype), None, None, None


def kernel_wandering_loss(
    embedding: Tensor, labels: Tensor, n_classes: int, frequencies: Tensor, *, weighting: Weighting = "pairs"
) -> Tensor:
    """How far apart the classes' distributions of directions are, by random Fourier features; 0 where all are alike.

    It is the sum over classes of w_k |mean of f over class k - mean of f over all|^2, where f(u) are the cosines and
    sines of the unit vector u at the given frequencies, divided so that f has length 1. Frequencies are standard normal
    numbers over the kernel's bandwidth, as many rows as the embedding is wide. w_k is the class's share of rows by
    "pairs", and the same for all by "classes".

    >>> z = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
    >>> antipodal = torch.tensor([0, 0, 1, 1])
    >>> wandering_loss(z, antipodal, 2).item() < 0 < kernel_wandering_loss(z, antipodal, 2, torch.eye(2)).item()
    True
    """
    with torch.autocast(embedding.device.type, enabled=False):
        z = embedding if embedding.dtype == torch.float64 else embedding.float()
        is_long = torch.linalg.vector_norm(z.detach(), dim=1, keepdim=True) > SHORTEST
        safe = torch.where(is_long, z, torch.ones_like(z))
        angles = (safe / torch.linalg.vector_norm(safe, dim=1, keepdim=True)) @ frequencies.to(z.dtype)
        f = is_long * torch.cat([angles.cos(), angles.sin()], dim=1) / frequencies.shape[1] ** 0.5
        members = (torch.arange(n_classes, device=z.device)[:, None] == labels).to(z.dtype)
        counts = members @ is_long.to(z.dtype)
        means = (members @ f) / counts.clamp_min(1)
        centre = f.sum(dim=0) / counts.sum().clamp_min(1)
        present = counts > 0
        weights = counts / counts.sum().clamp_min(1) if weighting == "pairs" else present / present.sum().clamp_min(1)
        value: Tensor = (weights * present * (means - centre).square()).sum()
    return value
