"""Training alone: what the label party does with embeddings that stay as they are.

The label party has its own columns, the labels, and an embedding of every row from each feature party. It trains a
network over all of them by itself, stops by its own held-out rows, and tells nobody how long training took or how well
it went.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import nn

from colonnade.models.base import Prediction
from colonnade.models.batches import ordered_batches
from colonnade.models.networks.base import NetworkModel, scored
from colonnade.models.networks.messages import Embedding
from colonnade.models.networks.modules import BottomFactory, TopFactory, bottom_named, perceptron, top_named
from colonnade.models.networks.training import Machine, NetworkSide, OptimizerName, loaded, trace_back
from colonnade.runtime.context import HookContext, Phase, Tensor
from colonnade.runtime.hooks import applied
from colonnade.runtime.party import Party
from colonnade.storage import Tree
from colonnade.tables.encode import Inputs
from colonnade.tables.table import Table
from colonnade.wire.message import Float32Array, Int64Array


@dataclass(kw_only=True, eq=False, repr=False)
class LabelOnlyModel(NetworkModel):
    """A model whose label party trains a network alone, on its own columns and embeddings of every row.

    Its settings are those of `NetworkModel`, one value for all networks.
    """

    bottom: str | BottomFactory = "mlp"
    top: str | TopFactory = "mlp"
    optimizer: OptimizerName = "adam"
    learning_rate: float = 3e-3

    inputs_: Inputs | None = field(init=False)
    network_: LabelOnlyNetwork | None = field(init=False)

    def machine(self) -> Machine:
        """Where this party computes."""
        return Machine.of(self.device, "float32")

    @abstractmethod
    def widths(self) -> Sequence[int]:
        """The widths of the embeddings that the label party receives."""

    def train_alone(self, party: Party, inputs: TrainingInputs, labels: Tensor) -> None:
        """Train a network to the end, or until held-out rows say enough. Nothing is sent to anybody."""
        schedule = self.schedule(party, len(labels), party.random.child("alone"))
        side = LabelOnlySide(self, party, self._new_network(), inputs, labels)
        self.network_ = side.run_epochs(schedule, name="alone", shared=False)
        self.history_ = side.history

    def predict_alone(self, party: Party, inputs: TrainingInputs) -> Prediction:
        """What the network makes of everything that was gathered."""
        assert self.network_ is not None
        machine, target = self.machine(), self.require_target()
        network, parts = self.network_.to(machine.device), []
        for step, rows in enumerate(ordered_batches(np.arange(len(party.own_table)), self.batch_size)):
            own, received = inputs.at(machine.index(rows))
            with torch.no_grad():
                outputs = network(network.embed(own, list(received.values())))
            parts.append(scored(target, party, outputs, step, rows, track="local"))
        return target.prediction(np.concatenate(parts))

    def check_columns(self, table: Table) -> None:
        if self.inputs_ is not None:
            self.inputs_.require_columns(table)

    def share(self) -> Tree:
        return {
            "target": None if self.target_ is None else self.target_.state(),
            "inputs": None if self.inputs_ is None else self.inputs_.state(),
            "network": None if self.network_ is None else self.network_.state_dict(),
            "history": self.history_,
        }

    def take_share(self, tree: Tree) -> None:
        self.target_ = None if tree["target"] is None else self.target.of(tree["target"])
        self.inputs_ = None if tree["inputs"] is None else Inputs.of(tree["inputs"])
        self.network_ = None if tree["network"] is None else loaded(self._new_network(), tree["network"])
        self.history_ = tree["history"]

    def _new_network(self) -> LabelOnlyNetwork:
        """A new network over the party's own columns and the embeddings that it receives."""
        inputs, widths = self.inputs_, self.widths()
        bottom = None if inputs is None else bottom_named(self.bottom)(inputs, self.embedding)
        others = [perceptron(each, (64,), self.embedding) for each in widths]
        n_joined = self.embedding * (len(widths) + (inputs is not None))
        return LabelOnlyNetwork(bottom, others, top_named(self.top)(n_joined, self.require_target().n_outputs))


class LabelOnlyNetwork(nn.Module):
    """A bottom over the party's own columns, one over each peer's embedding, and a top over all of them."""

    def __init__(self, own: nn.Module | None, others: Sequence[nn.Module], top: nn.Module) -> None:
        super().__init__()
        self.own, self.others, self.top = own, nn.ModuleList(others), top

    def embed(self, own: Tensor | None, received: Sequence[Tensor]) -> list[Tensor]:
        """What stands before the top: the embedding of the party's own columns first."""
        first = [] if self.own is None or own is None else [self.own(own)]
        return [*first, *(bottom(each) for bottom, each in zip(self.others, received, strict=True))]

    def forward(self, embeddings: Sequence[Tensor]) -> Tensor:
        """The outputs."""
        out: Tensor = self.top(torch.cat(list(embeddings), dim=1))
        return out


@dataclass(frozen=True)
class TrainingInputs:
    """What the label party trains on, or predicts from: its own columns and everybody's embeddings, row by row."""

    own: Tensor | None
    received: Mapping[str, Tensor]

    @classmethod
    def of(
        cls, inputs: Inputs | None, party: Party, received: Mapping[str, Float32Array], phase: Phase, machine: Machine
    ) -> TrainingInputs:
        """Encode the party's own columns, and show its defences what came, which stays the same from then on."""
        rows, seen = np.arange(len(party.own_table)), {}
        for peer, values in received.items():
            at = HookContext(0, 0, rows, phase, peer=peer, message=Embedding)
            used, _ = applied(party.defences, "incoming", machine.tensor(values), at)
            seen[peer] = used.detach()
        own = None if inputs is None else torch.from_numpy(inputs.encode(party.own_table)).to(machine.device)
        return cls(own, seen)

    def at(self, index: Tensor) -> tuple[Tensor | None, dict[str, Tensor]]:
        """Some of the rows."""
        own = None if self.own is None else self.own.index_select(0, index)
        return own, {peer: values.index_select(0, index) for peer, values in self.received.items()}


class LabelOnlySide(NetworkSide[LabelOnlyNetwork]):
    """The label party training alone, on what it has gathered and the labels, encoded."""

    def __init__(
        self, model: LabelOnlyModel, party: Party, network: LabelOnlyNetwork, inputs: TrainingInputs, labels: Tensor
    ) -> None:
        self.machine, self.target, self.inputs = model.machine(), model.require_target(), inputs
        self.network, self.labels = network.to(self.machine.device), labels.to(self.machine.device)
        super().__init__(party, {"label_only": network}, model.optimizer_settings(len(labels)), network)

    def train(self, step: int, epoch: int, rows: Int64Array) -> dict[str, float]:
        """One step on the true labels."""
        at, outputs, truth = self._pass(step, epoch, rows, "train")
        labels, _ = applied(self.party.defences, "labels", truth, at)
        at = replace(at, labels=labels)
        loss, _ = applied(self.party.defences, "loss", self.target.loss(outputs, labels), at)
        self.optimizers.forget_gradients()
        trace_back(loss)
        self.optimizers.step()
        return self.note({"loss": loss.item()})

    def ends_by(self, epoch: int, held_out: Sequence[Int64Array]) -> bool:
        """Compare with earlier epochs on one's own held-out rows."""
        total = 0.0
        for step, rows in enumerate(held_out):
            _, outputs, truth = self._pass(step, epoch, rows, "validate")
            total += self.target.loss(outputs, truth, "sum").item()
        return bool(self.verdict(epoch, total / sum(map(len, held_out))).stop)

    def _pass(self, step: int, epoch: int, rows: Int64Array, phase: Phase) -> tuple[HookContext, Tensor, Tensor]:
        index, train = self.machine.index(rows), phase == "train"
        own, received = self.inputs.at(index)
        self.network.train(train)
        with torch.set_grad_enabled(train):
            embeddings = self.network.embed(own, list(received.values()))
            outputs = self.network(embeddings)
        mine = {} if own is None else {"embedding": embeddings[0]}
        at = HookContext(
            step, epoch, rows, phase, track="local", own=mine, received=received, inputs=own, outputs=outputs
        )
        return replace(at, n_classes=self.target.n_classes), outputs, self.labels.index_select(0, index)
