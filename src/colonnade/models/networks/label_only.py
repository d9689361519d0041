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

from colonnade.models.base import Prediction
from colonnade.models.batches import in_order
from colonnade.models.networks.base import NetworkModel
from colonnade.models.networks.cut import Embedding
from colonnade.models.networks.modules import BottomFactory, TopFactory, bottom_named, perceptron, top_named
from colonnade.models.networks.training import Machine, OptimiserName, Side, Stopping, set_mode
from colonnade.runtime.hooks import At, Phase, Tensor, applied
from colonnade.runtime.party import Party
from colonnade.tables.encode import Inputs
from colonnade.wire.message import Float32Array, Int64Array


class SoloModel(NetworkModel):
    """A model whose label party trains a network alone, on its own columns and embeddings of every row."""

    bottom: str | BottomFactory
    top: str | TopFactory
    optimiser: OptimiserName
    learning_rate: float
    momentum = 0.9

    inputs_: Inputs | None
    network_: SoloNetwork | None

    @property
    def machine(self) -> Machine:
        """Where this party computes."""
        return Machine.of(self.device, "float32")

    def train_alone(self, party: Party, material: Material, labels: Tensor) -> None:
        """Train the network to the end, or until held-out rows say enough. Nothing is sent to anybody."""
        side = SoloSide(self, party, material, labels)
        random = party.random.child("alone")
        self.history_ = self.run_epochs(party, len(labels), random, lambda _: side, name="alone", shared=False)

    def predict_alone(self, party: Party, material: Material) -> Prediction:
        """What the network makes of everything that was gathered."""
        assert self.network_ is not None
        network, parts = self.network_.to(self.machine.device), []
        for step, rows in enumerate(in_order(np.arange(len(party.own_table)), self.batch_size)):
            own, received = material.at(self.machine.index(rows))
            with torch.no_grad():
                outputs = network(network.embed(own, list(received.values())))
            parts.append(self.scored(party, outputs, step, rows, track="local"))
        return self.require_target().prediction(np.concatenate(parts))


class SoloNetwork(nn.Module):
    """A bottom over the own columns, one over each party's embedding, and a top over all of them."""

    def __init__(self, model: SoloModel, widths: Sequence[int]) -> None:
        super().__init__()
        inputs, width = model.inputs_, model.embedding
        self.own = None if inputs is None else bottom_named(model.bottom)(inputs, width)
        self.others = nn.ModuleList(perceptron(each, (64,), width) for each in widths)
        n_joined = width * (len(widths) + (inputs is not None))
        self.top = top_named(model.top)(n_joined, model.require_target().n_outputs)

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
    def of(cls, model: SoloModel, party: Party, received: Mapping[str, Float32Array], phase: Phase) -> Material:
        """Encode the own columns, and let the party's defences see what came, which stays as it is from then on."""
        inputs, machine, seen = model.inputs_, model.machine, {}
        rows = np.arange(len(party.own_table))
        for peer, values in received.items():
            at = At(0, 0, rows, phase, peer=peer, message=Embedding)
            used, _ = applied(party.defences, "incoming", machine.tensor(values), at)
            seen[peer] = used.detach()
        own = None if inputs is None else torch.from_numpy(inputs.encode(party.own_table)).to(machine.device)
        return cls(own, seen)

    def at(self, index: Tensor) -> tuple[Tensor | None, dict[str, Tensor]]:
        """Some of the rows."""
        own = None if self.own is None else self.own.index_select(0, index)
        return own, {peer: values.index_select(0, index) for peer, values in self.received.items()}


class SoloSide(Side):
    """The label party training alone, on what it has gathered and the labels, encoded."""

    def __init__(self, model: SoloModel, party: Party, material: Material, labels: Tensor) -> None:
        assert model.network_ is not None
        self.model, self.target, self.network, self.material = model, model.require_target(), model.network_, material
        self.machine = model.machine
        self.labels = labels.to(self.machine.device)
        self.losses: list[float] = []
        super().__init__(party, {"solo": self.network.to(self.machine.device)}, model.optimisers)

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
        if not held_out or self.model.patience is None:
            return False
        set_mode(self.network, train=False)
        total = 0.0
        with torch.no_grad():
            for step, rows in enumerate(held_out):
                _, outputs, truth = self._pass(step, epoch, rows, "validate")
                total += self.target.loss(outputs, truth, "sum").item()
        record["validation_loss"] = total / sum(map(len, held_out))
        improved, stop = Stopping(self.model.patience).verdict(self.history)
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
