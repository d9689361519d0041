"""Served split network: a server holds the top and is given the labels.

    feature party                  server                         label party
                                     ◀────────────────────────── Rows                once
                                     ◀──────────────────────── Labels                once to train
         Embedding(batch) ─────────────▶
                                     ◀────────────── Embedding(batch)                if it has columns
         ◀───────────── Gradient(batch)
                                     Gradient(batch) ───────────────────▶            once per batch, if it has columns
         ◀───────────────────── Verdict
                                     Verdict ───────────────────────────▶            once per epoch, with early stopping
                                     Outputs(batch) ────────────────────▶            once per batch of a prediction

Held-out rows and predictions take the same way up.

This is the topology of the boundary-wandering method's first description, where the server computes every loss. It
hides nothing from the server: that learns all labels and all embeddings. The label party learns the gradients in its
own embedding and the predictions, not the embeddings of others. A feature party learns the gradients at its cut, hence
maybe labels, and after which epochs the model got better. A defence that acts on the loss is held by the server, which
finds the label party's embedding among its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from colonnade.errors import ProtocolError
from colonnade.models.base import Prediction
from colonnade.models.batches import sent_ahead
from colonnade.models.networks.cut import Bottom, Embedding, Gradient, Sent, gradient_if, require_answer
from colonnade.models.networks.server import Rows, ServerEnd, WithServer
from colonnade.models.networks.sides import FeatureSide, LabelledSide, LocalEnd, build_label_networks, build_top, heed
from colonnade.models.networks.targets import Classes, Numbers
from colonnade.models.networks.tracks import Head
from colonnade.models.networks.training import Side, as_array
from colonnade.runtime.hooks import At, Tensor, applied
from colonnade.runtime.party import Party
from colonnade.secret import Secret
from colonnade.wire.message import Float32Array, Int64Array, Message

__all__ = ["Labels", "Outputs", "Rows", "ServedClassifier", "ServedRegressor"]


@dataclass(frozen=True)
class Labels(Message, kind="split/labels", reveals={Secret.LABELS}, per_row="values"):
    """All labels: class numbers, or standardised numbers where there are no classes (`n_classes` is 0)."""

    n_classes: int
    values: Float32Array


@dataclass(frozen=True)
class Outputs(Message, kind="split/outputs", reveals={Secret.FEATURES, Secret.LABELS}, per_row="values"):
    """What the server's network predicts: logits or standardised numbers, one row per sample."""

    step: int
    values: Float32Array


class Served(WithServer):
    """A split network whose top, labels and losses are at a server."""

    hooks: ClassVar[Mapping[str, frozenset[str]]] = {
        "label": frozenset({"labels", "outgoing", "incoming", "prediction", "modules"}),
        "feature": frozenset({"outgoing", "incoming", "loss", "modules"}),
        "server": frozenset({"labels", "outgoing", "incoming", "loss", "modules"}),
    }
    sends: ClassVar[Mapping[str, tuple[type[Message], ...]]] = {
        "label": (Embedding,),
        "feature": (Embedding,),
        "server": (Gradient, Outputs),
    }

    def side(self, party: Party, train: Int64Array) -> Side:
        """This party's side of training."""
        if party.table is None:
            return ServingSide(self, party, train)
        if party.holds_labels:
            return ServedLabelSide(self, party, train)
        return FeatureSide(self, party, train, party.server)

    def predict_side(self, party: Party, batches: Sequence[Int64Array], head: Head | None) -> Prediction | None:
        """This party's side of a prediction."""
        if party.table is None:
            joint = ServerEnd(self, party)
            for step, rows in enumerate(batches):
                self._send_outputs(party, joint.forward(step, rows, "predict"), step, rows)
            return None
        if not party.holds_labels:
            Bottom(self, party, party.server).send_all(batches)
            return None
        track = self.head_named(head)
        local = LocalEnd(self, party) if track == "local" else None
        bottom = None if self.bottom_ is None else Bottom(self, party, party.server, self.architecture.own)
        target, parts = self.require_target(), []

        def send(step: int, rows: Int64Array) -> Sent | None:
            return None if bottom is None else bottom.send(step, rows, "predict")

        for step, rows, sent in sent_ahead(batches, send):
            shape = (len(rows), target.n_outputs)
            message = party.server.receive(Outputs, shape=shape, rows=rows)
            require_answer(message, message.values, step, party.server.peer)
            outputs = torch.tensor(message.values)
            if local is not None:
                outputs = local.predict(rows, None if sent is None else sent.embedding, [])
            parts.append(self.scored(party, outputs, step, rows, track=track))
        return target.prediction(np.concatenate(parts))

    def disclosures(self) -> tuple[str, ...]:
        """Who learns what, one sentence each."""
        return (
            "The server learns every embedding and is given all labels.",
            "The label party learns gradients and predictions. A feature party learns gradients at the cut, hence "
            "maybe labels.",
        )

    def _send_outputs(self, party: Party, outputs: Tensor, step: int, rows: Int64Array) -> None:
        line = party.label_party
        at = At(step, 0, rows, "predict", line.peer, Outputs, outputs=outputs)
        sent, names = applied(party.defences, "outgoing", outputs, at)
        line.send(Outputs(step, as_array(sent)), under=names, rows=rows)


class ServedClassifier(Served):
    """A classifier whose top network and labels are at a server.

    Its settings are those of `SplitNetwork`.

    >>> ServedClassifier(tracks="shadow-proxy").task
    'classification'
    """

    task = "classification"
    target = Classes


class ServedRegressor(Served):
    """A regression whose top network and labels are at a server.

    Its settings are those of `SplitNetwork`.

    >>> ServedRegressor(tracks="shadow-proxy").task
    'regression'
    """

    task = "regression"
    target = Numbers


class ServingSide(LabelledSide):
    """The server in training: has the labels, computes the loss, and returns gradients to everybody."""

    def __init__(self, model: Served, party: Party, train: Int64Array) -> None:
        message = party.label_party.receive(Labels)
        n_outputs = message.n_classes if model.task == "classification" else 1
        if not model.target.is_width(n_outputs) or not _are_labels(message.values, message.n_classes):
            raise ProtocolError(
                f"{party.roles.label} sent labels of {message.n_classes} classes, which are not what a "
                f"{model.task} learns from. Check that both parties run the same plan."
            )
        if model.task == "classification":
            model.target_ = Classes(np.arange(n_outputs))
            labels = torch.from_numpy(message.values.astype(np.int64))
        else:
            model.target_ = Numbers(0.0, 1.0)
            labels = torch.tensor(message.values)
        model.width_, model.n_received_ = model.embedding, len(model.upstream(party))
        networks = build_top(model, model.n_received_, n_outputs)
        self.end = ServerEnd(model, party)
        super().__init__(model, party, labels, networks)

    def train(self, step: int, epoch: int, rows: Int64Array) -> dict[str, float]:
        """Compute the loss, give gradients back to everybody."""
        gathering, label = self.end.gathering, self.party.label_party.peer
        outputs = self.end.forward(step, rows, "train", epoch)
        truth = self.labels.index_select(0, self.machine.index(rows))
        received = dict(gathering.received)
        own = {self.model.architecture.own: received.pop(label)} if label in received else {}
        at = At(step, epoch, rows, "train", own=own, received=received, held=gathering.held)
        loss, at, under = self.loss(outputs, truth, at)
        self.optimisers.forget_gradients()
        loss.backward(retain_graph=bool(self.party.defences))  # type: ignore[no-untyped-call]
        asked = gradient_if(self.target.loss, outputs) if self.party.defences else None
        gathering.give_back(step, at, asked, under)
        self.optimisers.step()
        return self.note({"loss": loss.item()})

    def ends_after(self, epoch: int, held_out: Sequence[Int64Array]) -> bool:
        """Compare with earlier epochs on held-out rows, and tell the others."""
        lines = [self.party.label_party, *self.party.feature_parties]
        return self.judge(epoch, held_out, self._validate, lines)

    def _validate(self, step: int, epoch: int, rows: Int64Array) -> tuple[Tensor, At]:
        return self.end.forward(step, rows, "validate", epoch), At(step, epoch, rows, "validate")


class ServedLabelSide(LabelledSide):
    """The label party in training: gives its labels away, sends embeddings, and trains its local track alone."""

    def __init__(self, model: Served, party: Party, train: Int64Array) -> None:
        labels = model.learn_target(party)
        target = model.require_target()
        model.width_, model.n_outputs_ = model.embedding, target.n_outputs
        rows = np.arange(len(labels))
        at = At(0, 0, rows, "train", party.roles.server, Labels, n_classes=target.n_classes)
        given, names = applied(party.defences, "labels", labels, at)
        values = as_array(given).astype(np.float32)
        party.server.send(Labels(target.n_classes or 0, values), under=names, rows=rows)
        networks = build_label_networks(model, party, train, labels)
        own = model.architecture.own
        self.bottom = None if model.bottom_ is None else Bottom(model, party, party.server, own)
        super().__init__(model, party, labels, networks)

    def train(self, step: int, epoch: int, rows: Int64Array) -> dict[str, float]:
        """Send the own embedding, learn from the server's gradient, train the local track."""
        self.optimisers.forget_gradients()
        if self.bottom is None:
            return {}
        sent = self.bottom.send(step, rows, "train", epoch)
        self.bottom.learn(sent, step, rows, epoch)
        figures: dict[str, float] = {}
        if self.local is not None:
            index = self.machine.index(rows)
            private, truth = self.local.embed(index, train=True), self.labels.index_select(0, index)
            at = At(step, epoch, rows, "train", inputs=self.bottom.inputs)
            figures["local_loss"] = self.train_local(sent.embedding, private, [], truth, at)
        self.optimisers.step()
        return self.note(figures)

    def ends_after(self, epoch: int, held_out: Sequence[Int64Array]) -> bool:
        """Send embeddings of held-out rows, and hear whether that was better."""
        self.close(epoch)
        if not held_out:
            return False
        if self.bottom is not None:
            self.bottom.send_all(held_out, "validate", epoch)
        return heed(self, self.party.server)


def _are_labels(values: Float32Array, n_classes: int) -> bool:
    if not np.isfinite(values).all() or values.ndim != 1:
        return False
    return n_classes == 0 or bool(((values >= 0) & (values < n_classes) & (values == np.rint(values))).all())
