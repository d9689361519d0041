"""Training alone: what the label party does with embeddings that stay as they are.

It has its own columns, the labels, and an embedding of every row from each feature party. It trains a network over all
of them by itself, stops when its own held-out rows say so, and tells nobody: neither how long it took nor how well it
went.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import nn

from colonnade.errors import DataError
from colonnade.hooks import At, Phase, Tensor, applied
from colonnade.models.batches import Batches, hold_out, in_order
from colonnade.models.cut import Embedding
from colonnade.models.inputs import Inputs
from colonnade.models.nets import BottomFactory, TopFactory, bottom_named, perceptron, top_named
from colonnade.models.targets import Target
from colonnade.models.training import Machine, OptimiserName, Optimisers, Side, Stopping, set_mode
from colonnade.party import Party
from colonnade.wire.message import Float32Array, Int64Array


@dataclass(frozen=True)
class Recipe:
    """How the label party trains alone.

    >>> Recipe(epochs=3).batch_size
    256
    """

    embedding: int = 16
    bottom: str | BottomFactory = "mlp"
    top: str | TopFactory = "mlp"
    optimiser: OptimiserName = "adam"
    learning_rate: float = 3e-3
    weight_decay: float = 0.0
    batch_size: int = 256
    epochs: int = 30
    patience: int | None = 5
    validation: float = 0.1
    device: str = "cpu"

    def optimisers(self, networks: Mapping[str, nn.Module], party: str) -> Optimisers:
        """The optimisers of a party's networks."""
        return Optimisers(
            networks,
            party,
            optimiser=self.optimiser,
            learning_rate=self.learning_rate,
            momentum=0.9,
            weight_decay=self.weight_decay,
        )


class SoloNetwork(nn.Module):
    """A bottom over the own columns, one over each party's embedding, and a top over all of them."""

    def __init__(self, recipe: Recipe, inputs: Inputs | None, widths: Sequence[int], n_outputs: int) -> None:
        super().__init__()
        self.own = None if inputs is None else bottom_named(recipe.bottom)(inputs, recipe.embedding)
        self.others = nn.ModuleList(perceptron(width, (64,), recipe.embedding) for width in widths)
        n_joined = recipe.embedding * (len(widths) + (inputs is not None))
        self.top = top_named(recipe.top)(n_joined, n_outputs)

    def embed(self, own: Tensor | None, received: Sequence[Tensor]) -> list[Tensor]:
        """What stands before the top: the own columns' embedding first."""
        first = [] if self.own is None or own is None else [self.own(own)]
        return [*first, *(bottom(each) for bottom, each in zip(self.others, received, strict=True))]

    def forward(self, embeddings: Sequence[Tensor]) -> Tensor:
        """The outputs."""
        out: Tensor = self.top(torch.cat(list(embeddings), dim=1))
        return out


@dataclass(frozen=True)
class Material:
    """What the label party trains on, or predicts from: its own columns and everybody's embeddings, row by row."""

    own: Tensor | None
    received: Mapping[str, Tensor]

    @classmethod
    def of(
        cls,
        party: Party,
        inputs: Inputs | None,
        received: Mapping[str, Float32Array],
        device: torch.device,
        phase: Phase,
    ) -> Material:
        """Encode the own columns, and let the party's defences see what came."""
        rows, seen = np.arange(len(party.own_table)), {}
        for peer, values in received.items():
            at = At(0, 0, rows, phase, peer=peer, message=Embedding)
            seen[peer], _ = applied(party.defences, "incoming", torch.tensor(values, device=device), at)
        own = None if inputs is None else torch.from_numpy(inputs.encode(party.own_table)).to(device)
        return cls(own, seen)

    def at(self, index: Tensor) -> tuple[Tensor | None, dict[str, Tensor]]:
        """Some of the rows."""
        own = None if self.own is None else self.own.index_select(0, index)
        return own, {peer: values.index_select(0, index) for peer, values in self.received.items()}


class SoloSide(Side):
    """The label party training alone."""

    def __init__(
        self, recipe: Recipe, party: Party, network: SoloNetwork, target: Target, material: Material, labels: Tensor
    ) -> None:
        self.machine = Machine.of(recipe.device, "float32")
        self.network, self.target, self.material, self.recipe = network, target, material, recipe
        self.labels = labels.to(self.machine.device)
        self.losses: list[float] = []
        super().__init__(party, {"solo": network.to(self.machine.device)}, recipe.optimisers)

    def train(self, step: int, epoch: int, rows: Int64Array) -> dict[str, float]:
        """One step on the true labels."""
        set_mode(self.network, train=True)
        at, outputs, truth = self._pass(step, epoch, rows, "train")
        labels, _ = applied(self.party.defences, "labels", truth, at)
        at = replace(at, labels=labels)
        loss, _ = applied(self.party.defences, "loss", self.target.loss(outputs, labels), at)
        self.optimisers.forget_gradients()
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimisers.step()
        self.losses.append(loss.item())
        return {"loss": self.losses[-1]}

    def ends_after(self, epoch: int, held_out: Sequence[Int64Array]) -> bool:
        """Compare with earlier epochs on one's own held-out rows."""
        record = {"epoch": float(epoch), "loss": float(np.mean(self.losses))}
        self.losses = []
        self.history.append(record)
        if not held_out or self.recipe.patience is None:
            return False
        set_mode(self.network, train=False)
        total = 0.0
        with torch.no_grad():
            for step, rows in enumerate(held_out):
                _, outputs, truth = self._pass(step, epoch, rows, "validate")
                total += self.target.loss(outputs, truth, "sum").item()
        record["validation_loss"] = total / sum(map(len, held_out))
        improved, stop = Stopping(self.recipe.patience).verdict(self.history)
        self.keep_if_best(improved)
        return stop

    def state(self) -> dict[str, object]:
        """All that the next step depends on."""
        return {**super().state(), "losses": self.losses}

    def restore(self, tree: dict[str, list[float]]) -> None:
        """Go back to what `state` said."""
        super().restore(tree)
        self.losses = tree["losses"]

    def _pass(self, step: int, epoch: int, rows: Int64Array, phase: Phase) -> tuple[At, Tensor, Tensor]:
        index = self.machine.index(rows)
        own, received = self.material.at(index)
        embeddings = self.network.embed(own, list(received.values()))
        outputs = self.network(embeddings)
        mine = {} if own is None else {"embedding": embeddings[0]}
        at = At(step, epoch, rows, phase, track="local", own=mine, received=received, inputs=own, outputs=outputs)
        return replace(at, n_classes=self.target.n_classes), outputs, self.labels.index_select(0, index)


def train_alone(side: SoloSide) -> list[dict[str, float]]:
    """Train to the end, or until held-out rows say enough; returns the history. Nothing is sent to anybody."""
    recipe, party = side.recipe, side.party
    n_rows, random = len(side.labels), party.random.child("alone")
    train, held_out = hold_out(n_rows, recipe.validation if recipe.patience else 0.0, random)
    if not len(train):
        raise DataError(
            f"{party.name} has {n_rows} rows, of which none is left to train on when {recipe.validation:.0%} are held "
            "out. Bring more rows or set patience to None."
        )
    batches, held_out_batches = Batches(train, recipe.batch_size, random), in_order(held_out, recipe.batch_size)
    steps = party.steps(recipe.epochs * batches.per_epoch, side, name="alone", shared=False)
    for step in steps:
        epoch, rows = batches.at(step)
        steps.show(**side.train(step, epoch, rows))
        if (step + 1) % batches.per_epoch == 0 and side.ends_after(epoch, held_out_batches):
            steps.stop()
    side.finish()
    return side.history


def outputs_alone(network: SoloNetwork, material: Material, n_rows: int, size: int) -> list[tuple[Int64Array, Tensor]]:
    """The network's outputs for all rows, batch by batch."""
    device = next(network.parameters()).device
    found = []
    with torch.no_grad():
        for rows in in_order(np.arange(n_rows), size):
            own, received = material.at(torch.from_numpy(rows).to(device))
            found.append((rows, network(network.embed(own, list(received.values())))))
    return found
