"""U-shaped split network: a server holds the top, the label party keeps labels, loss and the last layer.

    feature party                  server                         label party
                                     ◀────────────────────────── Rows                once
         Embedding(batch) ─────────────▶
                                     ◀────────────── Embedding(batch)                if it has columns
                                     Hidden(batch) ─────────────────────▶
                                     ◀───────── HiddenGradient(batch)
         ◀───────────── Gradient(batch)
                                     Gradient(batch) ───────────────────▶            once per batch, if it has columns
         ◀───────────────────────────────────────────────────── Verdict             once per epoch, with early stopping
                                     ◀────────────────────────── Verdict

Held-out rows and predictions take the same way up, and no gradient comes back.

The server learns every embedding, from which columns can be reconstructed, and the gradients at its output, from which
labels can be inferred: it is not given the labels, but is not kept from them either. The label party learns the
server's outputs, not the embeddings of others. A feature party learns the gradients at its cut, as ever, and after
which epochs the model got better. A loss on the label party's own embedding, such as boundary wandering, is computed by
the label party itself.

Vepakomma et al. 2018, arXiv 1812.00564, section 3.3.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import torch
from torch import nn

from colonnade.models.base import Prediction
from colonnade.models.batches import sent_ahead
from colonnade.models.networks.cut import Bottom, Embedding, Gradient, Sent, gradient_if, require_answer
from colonnade.models.networks.server import Rows, ServerEnd, WithServer
from colonnade.models.networks.sides import FeatureSide, LabelledSide, LocalEnd, build_label_networks, build_top, heed
from colonnade.models.networks.targets import Classes, Numbers
from colonnade.models.networks.tracks import Head
from colonnade.models.networks.training import Side, as_array, set_mode
from colonnade.runtime.hooks import At, Phase, Tensor, applied
from colonnade.runtime.party import Party
from colonnade.secret import Secret
from colonnade.wire.message import Float32Array, Int64Array, Message

__all__ = ["Hidden", "HiddenGradient", "Rows", "UShapeClassifier", "UShapeRegressor"]


@dataclass(frozen=True)
class Hidden(Message, kind="split/hidden", reveals={Secret.FEATURES}, per_row="values"):
    """The server's output, one row per sample of the batch."""

    step: int
    values: Float32Array


@dataclass(frozen=True)
class HiddenGradient(Message, kind="split/hidden-gradient", reveals={Secret.LABELS}, per_row="values"):
    """Loss gradient at the server's output, one row per sample of the batch."""

    step: int
    values: Float32Array


GRADIENTS: tuple[type[Message], ...] = (Gradient, HiddenGradient)
"""What carries gradients by rows, at either of the cuts."""


class UShape(WithServer):
    """A split network whose top is at a server and whose last layer is at the label party."""

    hooks: ClassVar[Mapping[str, frozenset[str]]] = {
        "label": frozenset({"labels", "outgoing", "incoming", "loss", "prediction", "modules"}),
        "feature": frozenset({"outgoing", "incoming", "loss", "modules"}),
        "server": frozenset({"outgoing", "incoming", "modules"}),
    }
    sends: ClassVar[Mapping[str, tuple[type[Message], ...]]] = {
        "label": (Embedding, HiddenGradient),
        "feature": (Embedding,),
        "server": (Hidden, Gradient),
    }

    def make_top(self, n_in: int, n_out: int) -> nn.Module | None:
        """The server's network, or the label party's last layer."""
        if self.target_ is not None:
            return nn.Sequential(nn.ReLU(), nn.Linear(n_in, n_out))
        return super().make_top(n_in, n_out)

    def side(self, party: Party, train: Int64Array) -> Side:
        """This party's side of training."""
        if party.table is None:
            return ServerSide(self, party)
        if party.holds_labels:
            return UShapedLabelSide(self, party, train)
        return FeatureSide(self, party, train, party.server, party.label_party)

    def predict_side(self, party: Party, batches: Sequence[Int64Array], head: Head | None) -> Prediction | None:
        """This party's side of a prediction."""
        if party.table is None:
            trunk = Trunk(self, party)
            for step, rows in enumerate(batches):
                trunk.pass_on(step, rows, "predict")
            return None
        if not party.holds_labels:
            Bottom(self, party, party.server).send_all(batches)
            return None
        track = self.head_named(head)
        local = LocalEnd(self, party) if track == "local" else None
        end, parts = LastLayer(self, party), []
        for step, rows, sent in sent_ahead(batches, lambda step, rows: end.send(step, rows, "predict")):
            _, outputs = end.answered(step, rows, "predict")
            if local is not None:
                outputs = local.predict(rows, None if sent is None else sent.embedding, [])
            parts.append(self.scored(party, outputs, step, rows, track=track))
        return self.require_target().prediction(np.concatenate(parts))

    def disclosures(self) -> tuple[str, ...]:
        """Who learns what, one sentence each."""
        return (
            "The server learns every embedding, and gradients at its output, hence maybe labels.",
            "The label party learns the server's outputs. A feature party learns gradients at the cut, hence maybe "
            "labels.",
        )


class UShapeClassifier(UShape):
    """A classifier whose top network is at a server and whose labels and last layer stay with the label party.

    Its settings are those of `SplitNetwork`; the server's output is as wide as an embedding.

    >>> UShapeClassifier(embedding=8).task
    'classification'
    """

    task = "classification"
    target = Classes


class UShapeRegressor(UShape):
    """A regression whose top network is at a server and whose labels and last layer stay with the label party.

    Its settings are those of `SplitNetwork`; the server's output is as wide as an embedding.

    >>> UShapeRegressor(embedding=8).task
    'regression'
    """

    task = "regression"
    target = Numbers


class Trunk(ServerEnd):
    """The server's network, whose outputs go to the label party."""

    def pass_on(self, step: int, rows: Int64Array, phase: Phase, epoch: int | None = None) -> Tensor:
        """Send the label party what the network makes of the embeddings; returns what a gradient goes into."""
        hidden = self.forward(step, rows, phase, epoch)
        line = self.party.label_party
        received, held = self.gathering.received, self.gathering.held
        at = At(step, epoch or 0, rows, phase, line.peer, Hidden, received=received, held=held)
        sent, names = applied(self.party.defences, "outgoing", hidden, at)
        line.send(Hidden(step, as_array(sent)), under=names, rows=rows, epoch=epoch)
        return sent if sent.requires_grad else hidden


class ServerSide(Side):
    """The server in training: passes embeddings on to the label party, and its gradients back."""

    def __init__(self, model: UShape, party: Party) -> None:
        model.width_, model.n_received_ = model.embedding, len(model.upstream(party))
        networks = build_top(model, model.n_received_, model.embedding)
        self.trunk = Trunk(model, party)
        super().__init__(party, networks, model.optimisers)

    def train(self, step: int, epoch: int, rows: Int64Array) -> dict[str, float]:
        """Send outputs, learn from their gradients, and give gradients back."""
        hidden = self.trunk.pass_on(step, rows, "train", epoch)
        line, gathering = self.party.label_party, self.trunk.gathering
        message = line.receive(HiddenGradient, shape=tuple(hidden.shape), rows=rows, epoch=epoch)
        require_answer(message, message.values, step, line.peer)
        received, held = gathering.received, gathering.held
        at = At(step, epoch, rows, "train", line.peer, HiddenGradient, received=received, held=held)
        came = self.trunk.machine.tensor(message.values)
        gradient, _ = applied(self.party.defences, "incoming", came, at)
        self.optimisers.forget_gradients()
        hidden.backward(gradient)  # type: ignore[no-untyped-call]
        gathering.give_back(step, at, None, ())
        self.optimisers.step()
        return {}

    def ends_after(self, epoch: int, held_out: Sequence[Int64Array]) -> bool:
        """Pass held-out rows on, and hear whether that was better."""
        self.history.append({"epoch": epoch})
        if not held_out:
            return False
        for step, rows in enumerate(held_out):
            self.trunk.pass_on(step, rows, "validate", epoch)
        return heed(self, self.party.label_party)


class LastLayer:
    """The label party's ends of the network: its own bottom, and the layer behind the server's outputs."""

    def __init__(self, model: UShape, party: Party) -> None:
        self.model, self.party, self.machine = model, party, model.machine
        model.to(self.machine.device)
        own = model.architecture.own
        self.bottom = None if model.bottom_ is None else Bottom(model, party, party.server, own)

    def send(self, step: int, rows: Int64Array, phase: Phase, epoch: int | None = None) -> Sent | None:
        """Send the own embedding, if there is one."""
        return None if self.bottom is None else self.bottom.send(step, rows, phase, epoch, weighs=False)

    def answered(self, step: int, rows: Int64Array, phase: Phase, epoch: int | None = None) -> tuple[Tensor, Tensor]:
        """The server's output as it came, and what the last layer makes of it."""
        train, line, top = phase == "train", self.party.server, self.model.top_
        assert top is not None
        message = line.receive(Hidden, shape=(len(rows), self.model.embedding), rows=rows, epoch=epoch)
        require_answer(message, message.values, step, line.peer)
        hidden = self.machine.tensor(message.values, requires_grad=train)
        at = At(step, epoch or 0, rows, phase, line.peer, Hidden)
        used, _ = applied(self.party.defences, "incoming", hidden, at)
        set_mode(top, train=train)
        with torch.set_grad_enabled(train), self.machine.autocast():
            outputs: Tensor = top(used)
        return hidden, outputs.float()


class UShapedLabelSide(LabelledSide):
    """The label party in training: sends embeddings like a feature party, and computes the loss of what comes back."""

    def __init__(self, model: UShape, party: Party, train: Int64Array) -> None:
        labels = model.learn_target(party)
        model.width_ = model.n_joined_ = model.embedding
        model.n_outputs_ = model.require_target().n_outputs
        networks = build_label_networks(model, party, train, labels)
        top = model.top_ = model.make_top(model.n_joined_, model.n_outputs_)
        assert top is not None
        self.end = LastLayer(model, party)
        super().__init__(model, party, labels, {**networks, model.architecture.top: top})

    def train(self, step: int, epoch: int, rows: Int64Array) -> dict[str, float]:
        """Compute the losses of all tracks, send the gradient to the server, learn from its answer."""
        line, bottom, index = self.party.server, self.end.bottom, self.machine.index(rows)
        sent = self.end.send(step, rows, "train", epoch)
        hidden, outputs = self.end.answered(step, rows, "train", epoch)
        truth = self.labels.index_select(0, index)
        own = {} if sent is None else {self.model.architecture.own: sent.embedding}
        private = None
        if self.local is not None:
            private = self.local.embed(index, train=True)
            own["private"] = private.detach()
        inputs = None if bottom is None else bottom.inputs
        at = At(step, epoch, rows, "train", own=own, received={line.peer: hidden}, inputs=inputs)
        loss, at, under = self.loss(outputs, truth, at)
        self.optimisers.forget_gradients()
        # A defence's part of the loss may lie in the own embedding, into which the server's gradient goes as well.
        loss.backward(retain_graph=bool(self.party.defences))  # type: ignore[no-untyped-call]
        gradient = torch.zeros_like(hidden) if hidden.grad is None else hidden.grad
        asked = gradient_if(self.target.loss, outputs)(hidden)
        about = replace(at, peer=line.peer, message=HiddenGradient, gradient_if=asked)
        gradient, names = applied(self.party.defences, "outgoing", gradient, about)
        message = HiddenGradient(step, as_array(gradient))
        line.send(message, under=tuple(dict.fromkeys(under + names)), rows=rows, epoch=epoch)
        if bottom is not None and sent is not None:
            bottom.learn(sent, step, rows, epoch)
        figures = {"loss": loss.item()}
        if private is not None and sent is not None:
            figures["local_loss"] = self.train_local(sent.embedding, private, [], truth, at)
        self.optimisers.step()
        return self.note(figures)

    def ends_after(self, epoch: int, held_out: Sequence[Int64Array]) -> bool:
        """Compare with earlier epochs on held-out rows, and tell the others."""
        for step, rows in enumerate(held_out):
            self.end.send(step, rows, "validate", epoch)
        return self.judge(epoch, held_out, self._validate, [*self.party.feature_parties, self.party.server])

    def _validate(self, step: int, epoch: int, rows: Int64Array) -> tuple[Tensor, At]:
        _, outputs = self.end.answered(step, rows, "validate", epoch)
        return outputs, At(step, epoch, rows, "validate")
