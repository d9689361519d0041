"""Confusional autoencoder: the model learns soft labels that look like other classes, and its output is decoded.

An encoder turns each class into a distribution over all classes, far from the class itself and with much entropy; a
decoder turns it back. Both depend on the number of classes alone and stay with the label party, as does the table of
soft labels. Gradients then point to wrong classes.

They still point to the same wrong class for every row of a class. Clusters are as clear as before. An attacker who can
name them, by a few known labels or by their sizes, has the labels: a score of 0 is a permutation, and a full leak.

With `DiscreteGradient(bins=12)` behind it, it is the published DCAE.

Zou et al. 2022, "Defending batch-level label inference and replacement attacks in vertical federated learning".
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import ClassVar

import torch
from torch import nn

from colonnade.defences.base import classes_of
from colonnade.errors import PlanError
from colonnade.models.networks.modules import perceptron
from colonnade.parameters import Limit, check_parameters, number
from colonnade.runtime.context import HookContext, Tensor
from colonnade.runtime.hooks import index_of
from colonnade.runtime.party import Defence, Party
from colonnade.storage import Tree

LEAST_STEPS, MOST_STEPS = 200, 4000
# The decoder's cross-entropy at which every class is told from the others with a margin.
DECODED = 0.05
RATE = 1e-3
WIDEST = 4096
# Below this the probability of the true class is small enough; its logarithm would otherwise fall for ever.
SMALLEST = 0.01


class ConfusionalAutoencoder(Defence):
    """Soft labels of other classes in place of the true ones, in the loss of the federated track.

    Args:
        entropy: How much the entropy of soft labels counts when the autoencoder is trained.

    >>> ConfusionalAutoencoder(entropy=0.5).name
    'ConfusionalAutoencoder(entropy=0.5)'
    """

    known_by = (("permuted-labels", {}), ("co-training", {}))
    reads_labels = True
    named_by = "entropy"
    limits: ClassVar[Mapping[str, Limit]] = {"entropy": number(0)}

    def __init__(self, *, entropy: float = 1.0) -> None:
        self.entropy = entropy
        check_parameters(self)

    def before_run(self, party: Party) -> None:
        self._seed = party.random.seed("confusional autoencoder", index_of(self, party))
        self._soft: Tensor | None = None
        self._decoder: nn.Module | None = None

    def labels(self, labels: Tensor, at: HookContext) -> Tensor:
        """For validation, the class that a row's soft label names; training takes the soft labels in the loss."""
        if at.phase != "validate" or at.track == "local":
            return labels
        return self._soft_labels(at).to(labels.device)[labels].argmax(dim=1)

    def loss(self, loss: Tensor, at: HookContext) -> Tensor:
        """Exchange the cross-entropy with the labels for that with their soft labels."""
        if at.track == "local" or at.labels is None:
            return loss
        if at.outputs is None:
            raise PlanError(
                "ConfusionalAutoencoder exchanges the labels that the outputs are compared with, but the outputs are "
                "not where the labels are. Use another defence."
            )
        soft = self._soft_labels(at).to(at.outputs)[at.labels]
        cross_entropy = nn.functional.cross_entropy
        return loss + cross_entropy(at.outputs, soft) - cross_entropy(at.outputs, at.labels)

    def prediction(self, prediction: Tensor, at: HookContext) -> Tensor:
        if at.track == "local":
            return prediction
        self._soft_labels(at)
        assert self._decoder is not None
        with torch.no_grad():
            decoded: Tensor = self._decoder(prediction.float().cpu()).softmax(dim=1)
        return decoded.to(prediction)

    def state(self) -> Tree:
        if self._soft is None or self._decoder is None:
            return {}
        weights = {name: value.numpy() for name, value in self._decoder.state_dict().items()}
        return {"soft": self._soft.numpy(), "decoder": weights}

    def restore(self, tree: Tree) -> None:
        if tree:
            self._soft = torch.from_numpy(tree["soft"].copy())
            self._decoder = _network(len(self._soft))
            self._decoder.load_state_dict(
                {name: torch.from_numpy(value.copy()) for name, value in tree["decoder"].items()}
            )

    def _soft_labels(self, at: HookContext) -> Tensor:
        """One soft label per class."""
        if self._soft is None:
            classes = classes_of(at, "ConfusionalAutoencoder confuses classes")
            self._soft, self._decoder = learned(classes, self.entropy, self._seed)
        return self._soft


@lru_cache(maxsize=8)
def learned(n_classes: int, entropy: float, seed: int) -> tuple[Tensor, nn.Module]:
    """Train an autoencoder of classes; returns one soft label per class, and the decoder, both not to be changed."""
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        torch.manual_seed(seed)
        encoder, decoder = _network(n_classes), _network(n_classes)
        optimizer = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], RATE)
        one_hot, classes = torch.eye(n_classes), torch.arange(n_classes)
        for step in range(MOST_STEPS):
            soft = encoder(one_hot).softmax(dim=1)
            logs = soft.clamp_min(1e-12).log()
            recovered = nn.functional.cross_entropy(decoder(soft), classes)
            if step >= LEAST_STEPS and recovered.item() < DECODED:
                break
            spread = -(soft * logs).sum(dim=1).mean()
            far = -soft.diagonal().clamp_min(SMALLEST).log().mean()
            optimizer.zero_grad()
            (10 * recovered - entropy * spread - far).backward()
            optimizer.step()
        soft = encoder(one_hot).softmax(dim=1).detach()
        if not torch.equal(decoder(soft).argmax(dim=1), classes):
            raise PlanError(
                f"ConfusionalAutoencoder should find {n_classes} soft labels that can be told apart, but found fewer. "
                "Raise entropy, or use another defence."
            )
        return soft, decoder.requires_grad_(False).eval()


def _network(n_classes: int) -> nn.Module:
    return perceptron(n_classes, (min((6 * n_classes + 2) ** 2, WIDEST),), n_classes)
