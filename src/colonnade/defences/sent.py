"""Defences of what a feature party sends: its embeddings tell less of its columns, whoever reads them.

A sign or fewer numbers act on each embedding as it leaves, an adversary on what the network learns. They act against
tampered gradients as well as against curious readers, because the party itself applies them. See also `noise`.

Hashing: Qiu et al. 2022, "HashVFL", arXiv 2212.00325. Adversary: Sun et al. 2021, "Defending against reconstruction
attack in vertical federated learning", arXiv 2107.09898; Ganin et al. 2016 (gradient reversal).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from torch import nn

from colonnade.errors import PlanError
from colonnade.models.networks.messages import Embedding
from colonnade.models.networks.modules import perceptron
from colonnade.parameters import Limit, check_parameters, count, number
from colonnade.runtime.context import HookContext, Tensor
from colonnade.runtime.party import Defence, Party
from colonnade.storage import Tree
from colonnade.tables.encode import filled

MOMENTUM = 0.1


class SignHash(Defence):
    """Only the sign of each number of an embedding leaves, 1 or -1, after the numbers are centred.

    Numbers are standardised over the batch, in predictions by running means, so that each bit is as often 1 as -1.
    The gradient passes the sign as if it were not there.

    >>> SignHash().name
    'SignHash'
    """

    known_by = (("epoch-ridge", {}), ("passive-network", {}))
    acts_on = (Embedding,)

    def before_run(self, party: Party) -> None:
        self._mean, self._variance = np.zeros(0), np.ones(0)

    def outgoing(self, tensor: Tensor, at: HookContext) -> Tensor:
        if at.message is not Embedding:
            return tensor
        mean, variance = (torch.from_numpy(each).to(tensor) for each in (self._mean, self._variance))
        if not len(mean) or (at.phase == "train" and len(tensor) > 1):
            mean, variance = tensor.mean(dim=0), tensor.var(dim=0, correction=0)
            self._remember(mean.detach().double().cpu().numpy(), variance.detach().double().cpu().numpy())
        centred = (tensor - mean) / (variance + 1e-5).sqrt()
        sign = torch.where(centred >= 0, 1.0, -1.0).to(tensor)
        return centred + (sign - centred).detach()

    def _remember(self, mean: np.ndarray[Any, Any], variance: np.ndarray[Any, Any]) -> None:
        share = MOMENTUM if len(self._mean) else 1.0
        self._mean = mean if share == 1 else (1 - share) * self._mean + share * mean
        self._variance = variance if share == 1 else (1 - share) * self._variance + share * variance

    def state(self) -> Tree:
        return {"mean": self._mean, "variance": self._variance}

    def restore(self, tree: Tree) -> None:
        self._mean, self._variance = np.array(tree["mean"]), np.array(tree["variance"])


def _agreed_width(defence: Defence, party: Party) -> int:
    """How wide the party's embeddings are, by the plan."""
    settings = party.plan.settings
    if settings.get("top", "") is None or "embedding" not in settings:
        raise PlanError(
            f"{defence.name} should learn from the plan how wide embeddings are, but in this plan they are shares of "
            f"logits, or have no width. Use {defence.name} with a split network that has a top."
        )
    return int(settings["embedding"])


class DimensionLimit(Defence):
    """Only the first numbers of each embedding leave; zeros stand for the others.

    A party limits by itself what an agreed width would let it send.

    Args:
        width: How many numbers leave.

    >>> DimensionLimit(width=2).name
    'DimensionLimit(width=2)'
    """

    known_by = (("informed-ridge", {}),)
    acts_on = (Embedding,)
    named_by = "width"
    limits: ClassVar[Mapping[str, Limit]] = {"width": count()}

    def __init__(self, *, width: int = 2) -> None:
        self.width = width
        check_parameters(self)

    def before_run(self, party: Party) -> None:
        agreed = _agreed_width(self, party)
        if agreed <= self.width:
            raise PlanError(
                f"{self.name} should send fewer numbers than the plan asks for, but embedding is {agreed}. Limit it "
                f"to less than {agreed}, or leave {self.name} out."
            )

    def outgoing(self, tensor: Tensor, at: HookContext) -> Tensor:
        if at.message is not Embedding:
            return tensor
        return torch.cat([tensor[:, : self.width], torch.zeros_like(tensor[:, self.width :])], dim=1)


class AdversarialReconstructor(Defence):
    """A network of the party's own that rebuilds its columns from its embedding, against which its bottom learns.

    The reconstructor learns to rebuild; the bottom is pushed the other way, as long as the reconstructor is better than
    the columns' means.

    Args:
        weight: How strongly the bottom is pushed, beside the gradient that arrives.
        hidden: The units of the reconstructor's hidden layer.

    >>> AdversarialReconstructor(weight=0.5).name
    'AdversarialReconstructor(weight=0.5)'
    """

    known_by = (("passive-network", {}),)
    acts_on = (Embedding,)
    named_by = "weight"
    limits: ClassVar[Mapping[str, Limit]] = {"weight": number(above=0), "hidden": count()}

    def __init__(self, *, weight: float = 1.0, hidden: int = 64) -> None:
        self.weight, self.hidden = weight, hidden
        check_parameters(self)

    def before_run(self, party: Party) -> None:
        width = _agreed_width(self, party)
        self._columns = torch.from_numpy(filled(party.own_table)).float()
        self._network = perceptron(width, (self.hidden,), self._columns.shape[1])

    def modules(self) -> Sequence[nn.Module]:
        return [self._network]

    def affects_predictions(self, sent: Any) -> bool:
        return False

    def loss(self, loss: Tensor, at: HookContext) -> Tensor:
        for embedding in at.own.values():
            wanted = self._columns[torch.from_numpy(at.rows)].to(embedding.device)
            rebuilt = self._network(_Reversed.apply(embedding, self.weight))  # type: ignore[no-untyped-call]
            error = (rebuilt - wanted).square().mean()
            # Beyond the error of the mean nothing is gained, and embeddings would only grow.
            if float(error.detach()) > float(wanted.square().mean()):
                error = (self._network(embedding.detach()) - wanted).square().mean()
            loss = loss + error.to(loss.dtype)
        return loss


class _Reversed(torch.autograd.Function):
    """The same number; its gradient is turned round and weighted."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, weight: float) -> Tensor:
        ctx.weight = weight
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return -ctx.weight * gradients[0], None
