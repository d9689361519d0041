"""Networks behind the cut: the party with the labels passes received embeddings through a network of its own.

Gradients that go back to a feature party have passed this network, too.

Information bottleneck: Zou et al. 2023, "Mutual information regularization for vertical federated learning", arXiv
2301.01142; Alemi et al. 2017, arXiv 1612.00410.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np
import torch
from torch import nn

from colonnade.errors import PlanError
from colonnade.parameters import Limit, check_parameters, count, number
from colonnade.runtime.context import HookContext, Tensor
from colonnade.runtime.party import Defence, Party
from colonnade.storage import Tree


class _NetworksBehind(Defence):
    """A network for each feature party's embeddings, trained together with the holder's own."""

    reads_labels = True

    def before_run(self, party: Party) -> None:
        server = party.roles.server
        if server not in (None, party.name):
            raise PlanError(
                f"{self.name} stands behind the embeddings of feature parties, but {party.name} holds the defence and "
                f"the embeddings go to {server}. Leave the defence out, or use a split network whose top is at "
                f"{party.name}."
            )
        self._peers = party.roles.features
        self._make(_width(party, self.name))

    @abstractmethod
    def network(self, width: int) -> nn.Module:
        """A network for embeddings of a width."""

    def modules(self) -> Sequence[nn.Module]:
        return [self._networks]

    def state(self) -> Tree:
        return {name: value.detach().cpu().numpy() for name, value in self._networks.state_dict().items()}

    def restore(self, tree: Tree) -> None:
        width = min(np.shape(value)[-1] for value in tree.values())
        if width != self._width:
            self._make(width)
        self._networks.load_state_dict({name: torch.from_numpy(np.array(value)) for name, value in tree.items()})

    def incoming(self, tensor: Tensor, at: HookContext) -> Tensor:
        """Pass a feature party's embedding through its network; what a server has from the label party stays."""
        if at.peer not in self._peers:
            return tensor
        if tensor.shape[1] != self._width:
            # Without a top, only a regression's are not as wide as the labels have values.
            raise PlanError(
                f"{self.name} stands behind embeddings or shares of logits, but {at.peer} sent its share of a "
                "regression's predictions. Use a model with a top network."
            )
        return self.passed(tensor, at)

    @abstractmethod
    def passed(self, embedding: Tensor, at: HookContext) -> Tensor:
        """What the network makes of an embedding."""

    def _make(self, width: int) -> None:
        self._width = width
        self._networks = nn.ModuleList(self.network(width) for _ in self._peers)

    def _behind(self, at: HookContext) -> nn.Module:
        assert at.peer is not None
        return self._networks[self._peers.index(at.peer)]


class InformationBottleneck(_NetworksBehind):
    """A stochastic code in place of each received embedding, with a penalty on how much it holds (MID).

    Args:
        weight: How much the divergence of the codes from a standard normal distribution counts beside the loss; 0
            leaves the randomness alone, which blurs gradients as well.

    >>> InformationBottleneck(weight=0.1).name
    'InformationBottleneck(weight=0.1)'
    """

    known_by = (
        ("averaged-gradients", {}),
        ("column-spreading", {}),
        ("embedding-spreading", {}),
        ("co-training", {}),
    )
    named_by = "weight"
    limits: ClassVar[Mapping[str, Limit]] = {"weight": number(0)}

    def __init__(self, *, weight: float = 0.01) -> None:
        self.weight = weight
        check_parameters(self)

    def network(self, width: int) -> nn.Module:
        return _Bottleneck(width)

    def before_run(self, party: Party) -> None:
        super().before_run(party)
        self._divergences: list[Tensor] = []

    def passed(self, embedding: Tensor, at: HookContext) -> Tensor:
        """Pass an embedding through the bottleneck: at random in training, by its mean otherwise."""
        bottleneck = self._behind(at).to(embedding.device)
        assert isinstance(bottleneck, _Bottleneck)
        mean, deviation = bottleneck.encode(embedding)
        if at.phase != "train":
            return bottleneck.decode(mean).detach()
        divergence = (mean.square() + deviation.square() - 1) / 2 - deviation.log()
        self._divergences.append(divergence.sum(dim=1).mean())
        return bottleneck.decode(mean + deviation * torch.randn_like(mean))

    def loss(self, loss: Tensor, at: HookContext) -> Tensor:
        if at.track == "local":
            return loss
        divergences, self._divergences = self._divergences, []
        return loss + self.weight * torch.stack(divergences).sum().to(loss.dtype) if divergences else loss


class EarlierCut(_NetworksBehind):
    """More layers behind the cut, so that a feature party's network ends earlier and knows less of the task.

    What maps features to labels tends to sit in the last layers. Give feature parties a shallower bottom at the same
    time: this only adds layers on the label party's side.

    Args:
        layers: How many to add.

    >>> EarlierCut(layers=3).name
    'EarlierCut(layers=3)'
    """

    known_by = (("model-completion", {"layers": 2}), ("averaged-gradients", {}), ("co-training", {}))
    named_by = "layers"
    limits: ClassVar[Mapping[str, Limit]] = {"layers": count()}

    def __init__(self, *, layers: int = 2) -> None:
        self.layers = layers
        check_parameters(self)

    def network(self, width: int) -> nn.Module:
        layers = [layer for _ in range(self.layers) for layer in (nn.ReLU(), nn.Linear(width, width))]
        return nn.Sequential(*layers)

    def passed(self, embedding: Tensor, at: HookContext) -> Tensor:
        out: Tensor = self._behind(at).to(embedding.device)(embedding)
        return out if at.phase == "train" else out.detach()


class _Bottleneck(nn.Module):
    """An encoder to means and deviations, and a decoder of codes."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(width, 2 * width), nn.ReLU())
        self.decoder = nn.Sequential(nn.Linear(width, 5 * width), nn.ReLU(), nn.Linear(5 * width, width))

    def encode(self, embedding: Tensor) -> tuple[Tensor, Tensor]:
        mean, spread = self.encoder(embedding).chunk(2, dim=1)
        return mean, nn.functional.softplus(spread - 0.5)

    def decode(self, code: Tensor) -> Tensor:
        decoded: Tensor = self.decoder(code)
        return decoded


def _width(party: Party, name: str) -> int:
    """How wide the embeddings are that a party will receive, as the plan says."""
    settings = party.plan.settings
    if "embedding" not in settings:
        raise PlanError(
            f"{name} should learn from the plan how wide embeddings are, but the plan has no such setting. "
            f"Use {name} with a split network."
        )
    if settings.get("top", "") is None and party.table is not None and party.table.labels is not None:
        return len(np.unique(np.asarray(party.table.labels)))
    return int(settings["embedding"])
