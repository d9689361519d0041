"""Split network with a server, which holds the top and brings no table. The label party's end is one of two.

Labels given: the server is given the labels, computes every loss, and sends the label party its predictions.

    feature party                  server                         label party
                                     ◀────────────────────── RowCount                once
                                     ◀─────────────────── GivenLabels                once to train
         Embedding(batch) ─────────────▶
                                     ◀────────────── Embedding(batch)                if it has columns
         ◀───────────── Gradient(batch)
                                     Gradient(batch) ───────────────────▶            once per batch, if it has columns
         ◀──────────────── EpochVerdict
                                     EpochVerdict ──────────────────────▶            once per epoch, with early stopping
                                     Outputs(batch) ────────────────────▶            once per batch of a prediction

The server learns all labels and all embeddings: nothing is hidden from it. The label party learns the gradients in its
own embedding and the predictions, not the embeddings of others. A feature party learns the gradients at its cut, hence
maybe labels, and after which epochs the model got better. A defence that acts on the loss is held by the server, which
finds the label party's embedding among its own. This is the topology of the boundary-wandering method's first
description.

Labels kept (U-shape): the label party keeps labels, loss and the last layer.

    feature party                  server                         label party
                                     ◀────────────────────── RowCount                once
         Embedding(batch) ─────────────▶
                                     ◀────────────── Embedding(batch)                if it has columns
                                     Hidden(batch) ─────────────────────▶
                                     ◀───────── HiddenGradient(batch)
         ◀───────────── Gradient(batch)
                                     Gradient(batch) ───────────────────▶            once per batch, if it has columns
         ◀──────────────────────────────────────────────── EpochVerdict             once per epoch, with early stopping
                                     ◀────────────────── EpochVerdict

The server learns every embedding, from which columns can be reconstructed, and the gradients at its output, from which
labels can be inferred: it is not given the labels, but is not kept from them either. The label party learns the
server's outputs, not the embeddings of others. A feature party learns the gradients at its cut, and after which epochs
the model got better. The label party computes a loss on its own embedding, such as boundary wandering, by itself.

In both, held-out rows and predictions take the same way up, and no gradient comes back.

U-shape: Vepakomma et al. 2018, arXiv 1812.00564, section 3.3.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar, Self, TypeAlias

import numpy as np
import torch
from torch import nn

from colonnade.errors import PlanError, ProtocolError
from colonnade.models.batches import sent_ahead
from colonnade.models.networks.labelled import LabelledSide, LocalTrackRunner, gradient_if
from colonnade.models.networks.messages import (
    Embedding,
    GivenLabels,
    Gradient,
    Hidden,
    HiddenGradient,
    Outputs,
    RowCount,
)
from colonnade.models.networks.modules import TopFactory
from colonnade.models.networks.share import SplitSettings, SplitShare
from colonnade.models.networks.split import (
    Bottom,
    JointForward,
    SentEmbedding,
    SplitFeatureSide,
    SplitLabelSide,
    SplitNetwork,
    send_for_prediction,
)
from colonnade.models.networks.targets import Classes, Numbers, Target, learned_target
from colonnade.models.networks.tracks import ShadowTop
from colonnade.models.networks.training import NetworkSide, as_array, trace_back
from colonnade.roles import Lines, Roles, star
from colonnade.runtime.context import HookContext, Phase, Tensor
from colonnade.runtime.hooks import applied
from colonnade.runtime.party import Party
from colonnade.wire.channel import Channel
from colonnade.wire.message import Float32Array, Int64Array, Message

# The server makes a number for each row before anything comes that would show how many there are.
MOST_ROWS = 1 << 27
ServerSends: TypeAlias = type[Outputs] | type[Hidden]
"""What the server sends the label party: predictions where labels are given, inputs of its last layer where kept."""


class ServerTop(JointForward):
    """The server's network over the embeddings that it receives, and the line to the label party."""

    def send(self, kind: ServerSends, step: int, rows: Int64Array, phase: Phase, epoch: int | None = None) -> Tensor:
        """Send the label party what the network makes of a batch; returns what a gradient goes into."""
        values, line, collector = self.forward(step, rows, phase, epoch).outputs, self.party.label_party, self.collector
        at = HookContext(step, epoch or 0, rows, phase, line.peer, kind)
        if kind is Outputs:
            at = replace(at, outputs=values)
        else:
            at = replace(at, received=collector.received, held=collector.held)
        sent, names = applied(self.party.defences, "outgoing", values, at)
        line.send(kind(step, self.machine.host_copy(sent).array()), under=names, rows=rows, epoch=epoch)
        return sent if sent.requires_grad else values


class LabelPartyEnd:
    """The label party's ends of the network: its own bottom, and what it makes of the server's outputs."""

    def __init__(self, share: SplitShare, party: Party) -> None:
        self.share, self.party, self.machine = share, party, share.settings.machine
        share.to(self.machine.device)
        own = share.settings.tracks.own
        self.bottom = None if share.bottom is None else Bottom(share, party, party.server, own)

    def send(self, step: int, rows: Int64Array, phase: Phase, epoch: int | None = None) -> SentEmbedding | None:
        """Send the party's own embedding, if there is one."""
        return None if self.bottom is None else self.bottom.send(step, rows, phase, epoch, weighs=False)

    def outputs(self, step: int, rows: Int64Array) -> Tensor:
        """What the server predicts for a batch, or the last layer makes of what the server sends."""
        if self.share.top is not None:
            return self.behind_hidden(step, rows, "predict")[1]
        line, shape = self.party.server, (len(rows), self.share.n_outputs)
        message = line.receive(Outputs, fields={"step": step}, shape=shape, finite=True, rows=rows)
        return torch.tensor(message.values)

    def behind_hidden(
        self, step: int, rows: Int64Array, phase: Phase, epoch: int | None = None
    ) -> tuple[Tensor, Tensor]:
        """Labels kept: the server's output as it came, and what the last layer makes of it."""
        train, line, top, shape = phase == "train", self.party.server, self.share.top, (len(rows), self.share.width)
        assert top is not None
        message = line.receive(Hidden, fields={"step": step}, shape=shape, finite=True, rows=rows, epoch=epoch)
        hidden = self.machine.tensor(message.values, requires_grad=train)
        at = HookContext(step, epoch or 0, rows, phase, line.peer, Hidden)
        used, _ = applied(self.party.defences, "incoming", hidden, at)
        return hidden, self.machine.forward(top, used, train=train)


def side_with_given_labels(settings: SplitSettings, party: Party, lines: Sequence[Channel]) -> SplitLabelSide:
    """Labels given, the server in training: does what the label party does where no server is."""
    is_classes = settings.target.task == "classification"
    bounds = {"n_classes": settings.target.widths if is_classes else (0, 0)}
    message = party.label_party.receive(GivenLabels, within=bounds)
    n_outputs = message.n_classes if is_classes else 1
    if not _are_labels(message.values, message.n_classes):
        raise ProtocolError(
            f"{party.roles.label} sent labels of {message.n_classes} classes, which are not what a "
            f"{settings.target.task} learns from. Check that both parties run the same plan."
        )
    target: Target = Classes(np.arange(n_outputs)) if is_classes else Numbers(0.0, 1.0)
    labels = torch.from_numpy(message.values.astype(np.int64)) if is_classes else torch.tensor(message.values)
    share = SplitShare(settings, party.name, settings.embedding, len(lines), target=target)
    networks = share.build_top(len(lines), n_outputs)
    told = [party.label_party, *party.feature_parties]
    return SplitLabelSide(share, party, labels, networks, lines=lines, told=told)


class GivenLabelsSide(LabelledSide):
    """Labels given, the label party in training: sends labels and embeddings, and trains its local track alone."""

    def __init__(self, settings: SplitSettings, party: Party, train: Int64Array) -> None:
        target, labels = learned_target(settings.target, party)
        rows = np.arange(len(labels))
        at = HookContext(0, 0, rows, "train", party.roles.server, GivenLabels, n_classes=target.n_classes)
        given, names = applied(party.defences, "labels", labels, at)
        values = as_array(given).astype(np.float32)
        party.server.send(GivenLabels(target.n_classes or 0, values), under=names, rows=rows)
        width, n_received = settings.embedding, len(party.feature_parties)
        share = SplitShare(settings, party.name, width, n_received, n_outputs=target.n_outputs, target=target)
        networks = share.build_label_networks(party, train, labels)
        self.end = LabelPartyEnd(share, party)
        super().__init__(share, party, labels, networks)

    def train(self, step: int, epoch: int, rows: Int64Array) -> dict[str, float]:
        """Send the party's own embedding, learn from the server's gradient, train the local track."""
        self.optimizers.forget_gradients()
        bottom, sent = self.end.bottom, self.end.send(step, rows, "train", epoch)
        if bottom is None or sent is None:
            return {}
        bottom.learn(sent, step, rows, epoch)
        figures: dict[str, float] = {}
        if self.local is not None:
            index = self.machine.index(rows)
            private, truth = self.local.embed(index, train=True), self.labels.index_select(0, index)
            at = HookContext(step, epoch, rows, "train", inputs=bottom.inputs)
            figures["local_loss"] = self.train_local(sent.embedding, private, [], truth, at)
        self.optimizers.step()
        return self.note(figures)

    def ends_by(self, epoch: int, held_out: Sequence[Int64Array]) -> bool:
        """Send embeddings of held-out rows, and wait for the verdict on the epoch."""
        for step, rows in enumerate(held_out):
            self.end.send(step, rows, "validate", epoch)
        return self.await_verdict(epoch, self.party.server)


class ServerSide(NetworkSide[SplitShare]):
    """Labels kept, the server in training: passes embeddings on to the label party, and its gradients back."""

    def __init__(self, settings: SplitSettings, party: Party, lines: Sequence[Channel]) -> None:
        share = SplitShare(settings, party.name, settings.embedding, len(lines))
        networks = share.build_top(len(lines), settings.embedding)
        self.top = ServerTop(share, party, lines)
        super().__init__(party, networks, settings.optimizers, share)

    def train(self, step: int, epoch: int, rows: Int64Array) -> dict[str, float]:
        """Send outputs, learn from their gradients, and send gradients back."""
        hidden = self.top.send(Hidden, step, rows, "train", epoch)
        line, collector, shape = self.party.label_party, self.top.collector, tuple(hidden.shape)
        message = line.receive(HiddenGradient, fields={"step": step}, shape=shape, finite=True, rows=rows, epoch=epoch)
        received, held = collector.received, collector.held
        at = HookContext(step, epoch, rows, "train", line.peer, HiddenGradient, received=received, held=held)
        came = self.top.machine.tensor(message.values)
        gradient, _ = applied(self.party.defences, "incoming", came, at)
        self.optimizers.forget_gradients()
        trace_back(hidden, gradient)
        collector.send_gradients(step, at, collector.gradients(at, None, ()))
        self.optimizers.step()
        return {}

    def ends_by(self, epoch: int, held_out: Sequence[Int64Array]) -> bool:
        """Pass held-out rows on, and wait for the verdict on the epoch."""
        for step, rows in enumerate(held_out):
            self.top.send(Hidden, step, rows, "validate", epoch)
        return self.await_verdict(epoch, self.party.label_party)


class KeptLabelsSide(LabelledSide):
    """Labels kept, the label party in training: sends embeddings, and computes the loss of what comes back."""

    def __init__(self, settings: SplitSettings, party: Party, train: Int64Array) -> None:
        target, labels = learned_target(settings.target, party)
        share = SplitShare(settings, party.name, settings.embedding, len(party.feature_parties), target=target)
        networks = share.build_label_networks(party, train, labels)
        networks |= share.build_last_layer()
        self.end = LabelPartyEnd(share, party)
        super().__init__(share, party, labels, networks)

    def train(self, step: int, epoch: int, rows: Int64Array) -> dict[str, float]:
        """Compute the losses of all tracks, send the gradient to the server, learn from its answer."""
        line, bottom, index = self.party.server, self.end.bottom, self.machine.index(rows)
        sent = self.end.send(step, rows, "train", epoch)
        hidden, outputs = self.end.behind_hidden(step, rows, "train", epoch)
        truth = self.labels.index_select(0, index)
        own, private = self.own_embeddings(None if sent is None else sent.embedding, index)
        inputs = None if bottom is None else bottom.inputs
        at = HookContext(step, epoch, rows, "train", own=own, received={line.peer: hidden}, inputs=inputs)
        loss, at, under = self.loss(outputs, truth, at)
        self.optimizers.forget_gradients()
        # A defence's part of the loss may lie in the party's own embedding, into which the server's gradient goes too.
        trace_back(loss, retain_graph=bool(self.party.defences))
        gradient = torch.zeros_like(hidden) if hidden.grad is None else hidden.grad
        asked = partial(gradient_if(self.target.loss, outputs), hidden)
        about = replace(at, peer=line.peer, message=HiddenGradient, gradient_if=asked)
        gradient, names = applied(self.party.defences, "outgoing", gradient, about)
        values, told = self.machine.host_copy(gradient), self.machine.host_copy(loss)
        message = HiddenGradient(step, values.array())
        line.send(message, under=tuple(dict.fromkeys(under + names)), rows=rows, epoch=epoch)
        if bottom is not None and sent is not None:
            bottom.learn(sent, step, rows, epoch)
        figures = {"loss": told.number()}
        if private is not None and sent is not None:
            figures["local_loss"] = self.train_local(sent.embedding, private, [], truth, at)
        self.optimizers.step()
        return self.note(figures)

    def ends_by(self, epoch: int, held_out: Sequence[Int64Array]) -> bool:
        """Compare with earlier epochs on held-out rows, and tell the others."""
        for step, rows in enumerate(held_out):
            self.end.send(step, rows, "validate", epoch)
        return self.judge(epoch, held_out, self._validate, [*self.party.feature_parties, self.party.server])

    def _validate(self, step: int, epoch: int, rows: Int64Array) -> tuple[Tensor, HookContext]:
        _, outputs = self.end.behind_hidden(step, rows, "validate", epoch)
        return outputs, HookContext(step, epoch, rows, "validate")


def _are_labels(values: Float32Array, n_classes: int) -> bool:
    if not np.isfinite(values).all() or values.ndim != 1:
        return False
    return n_classes == 0 or bool(((values >= 0) & (values < n_classes) & (values == np.rint(values))).all())


def _last_layer(n_in: int, n_out: int) -> nn.Module:
    return nn.Sequential(nn.ReLU(), nn.Linear(n_in, n_out))


@dataclass(frozen=True)
class LabelEnd:
    """Where the labels are used: at the server that is given them, or at the label party that keeps them.

    `hooks` and `sends` are those of an `Estimator`. `last_layer` makes the label party's layer behind the server's
    outputs; it is None where labels are given.
    """

    hooks: Mapping[str, frozenset[str]]
    sends: Mapping[str, tuple[type[Message], ...]]
    disclosures: tuple[str, ...]
    server_side: Callable[[SplitSettings, Party, Sequence[Channel]], NetworkSide[SplitShare]]
    label_side: Callable[[SplitSettings, Party, Int64Array], NetworkSide[SplitShare]]
    last_layer: TopFactory | None = None


LABELS_GIVEN = LabelEnd(
    hooks={
        "label": frozenset({"labels", "outgoing", "incoming", "prediction", "modules"}),
        "feature": frozenset({"outgoing", "incoming", "loss", "modules"}),
        "server": frozenset({"labels", "outgoing", "incoming", "loss", "modules"}),
    },
    sends={"label": (Embedding,), "feature": (Embedding,), "server": (Gradient, Outputs)},
    disclosures=(
        "The server learns every embedding and is given all labels.",
        "The label party learns gradients and predictions. A feature party learns gradients at the cut, hence maybe "
        "labels.",
    ),
    server_side=side_with_given_labels,
    label_side=GivenLabelsSide,
)
LABELS_KEPT = LabelEnd(
    hooks={
        "label": frozenset({"labels", "outgoing", "incoming", "loss", "prediction", "modules"}),
        "feature": frozenset({"outgoing", "incoming", "loss", "modules"}),
        "server": frozenset({"outgoing", "incoming", "modules"}),
    },
    sends={"label": (Embedding, HiddenGradient), "feature": (Embedding,), "server": (Hidden, Gradient)},
    disclosures=(
        "The server learns every embedding, and gradients at its output, hence maybe labels.",
        "The label party learns the server's outputs. A feature party learns gradients at the cut, hence maybe labels.",
    ),
    server_side=ServerSide,
    label_side=KeptLabelsSide,
    last_layer=_last_layer,
)


class ServerNetwork(SplitNetwork):
    """A split network whose top is at a server, which brings no table."""

    end: ClassVar[LabelEnd]

    @classmethod
    def example(cls) -> Self:
        return super().example().set_params(tracks={"name": "shadow-proxy", "by": "random"})

    def settings(self) -> SplitSettings:
        return replace(super().settings(), last_layer=self.end.last_layer)

    def disclosures(self) -> tuple[str, ...]:
        return self.end.disclosures

    def _row_count(self, party: Party) -> RowCount:
        if party.table is None:
            return party.label_party.receive(RowCount, within={"number": (1, MOST_ROWS)})
        count = RowCount(len(party.table), int(bool(party.table.columns)))
        if party.holds_labels:
            party.server.send(count)
        return count

    def _side(
        self, settings: SplitSettings, party: Party, train: Int64Array, count: RowCount
    ) -> NetworkSide[SplitShare]:
        if party.table is None:
            return self.end.server_side(settings, party, _senders(party, count))
        if party.holds_labels:
            return self.end.label_side(settings, party, train)
        judge = party.server if self.end is LABELS_GIVEN else party.label_party
        return SplitFeatureSide(settings, party, train, party.server, judge)

    def _send_for_prediction(
        self, share: SplitShare, party: Party, batches: Sequence[Int64Array], count: RowCount
    ) -> None:
        if party.table is not None:
            send_for_prediction(share, party, party.server, batches)
            return
        top = ServerTop(share, party, _senders(party, count))
        for step, rows in enumerate(batches):
            top.send(Outputs if self.end is LABELS_GIVEN else Hidden, step, rows, "predict")

    def _outputs(
        self, share: SplitShare, party: Party, batches: Sequence[Int64Array], local: LocalTrackRunner | None
    ) -> Iterator[Tensor]:
        end = LabelPartyEnd(share, party)
        for step, rows, sent in sent_ahead(batches, lambda step, rows: end.send(step, rows, "predict")):
            outputs = end.outputs(step, rows)
            yield outputs if local is None else local.predict(rows, None if sent is None else sent.embedding, [])

    def lines(self, roles: Roles) -> Lines:
        judged = () if self.end is LABELS_GIVEN else roles.features
        return star(roles.server, roles.holders) | star(roles.label, judged)

    def most_rows(self, roles: Roles) -> int | None:
        return MOST_ROWS

    def check_setup(self, party: Party) -> None:
        super().check_setup(party)
        if party.roles.server is None:
            raise PlanError(
                f"{type(self).__name__} needs a server that holds the top network, but the roles name none. "
                "Name one, or use a split network whose top is at the label party."
            )
        if self.top is None:
            raise PlanError(f"{type(self).__name__}'s top should be a network, but is None. Name one such as 'mlp'.")
        if isinstance(self.settings().tracks, ShadowTop):
            raise PlanError(
                f"ShadowTop's main top takes the embeddings of feature parties, but in {type(self).__name__} only the "
                "server is sent these. Use tracks='shadow-proxy', or a top at the label party."
            )


def _senders(party: Party, count: RowCount) -> list[Channel]:
    """Whom the server gets embeddings from, in the order in which they are joined."""
    return [*([party.label_party] if count.with_embeddings else []), *party.feature_parties]


class ServedClassifier(ServerNetwork):
    """A classifier whose top network and labels are at a server, with the settings of `SplitNetwork`.

    >>> ServedClassifier(tracks="shadow-proxy").task
    'classification'
    """

    task, target, end = "classification", Classes, LABELS_GIVEN
    hooks, sends = LABELS_GIVEN.hooks, LABELS_GIVEN.sends


class ServedRegressor(ServerNetwork):
    """A regression whose top network and labels are at a server, with the settings of `SplitNetwork`.

    >>> ServedRegressor(tracks="shadow-proxy").task
    'regression'
    """

    task, target, end = "regression", Numbers, LABELS_GIVEN
    hooks, sends = LABELS_GIVEN.hooks, LABELS_GIVEN.sends


class UShapeClassifier(ServerNetwork):
    """A classifier whose top network is at a server and whose labels and last layer stay with the label party.

    Its settings are those of `SplitNetwork`; the server's output is as wide as an embedding.

    >>> UShapeClassifier(embedding=8).task
    'classification'
    """

    task, target, end = "classification", Classes, LABELS_KEPT
    hooks, sends = LABELS_KEPT.hooks, LABELS_KEPT.sends


class UShapeRegressor(ServerNetwork):
    """A regression whose top network is at a server and whose labels and last layer stay with the label party.

    Its settings are those of `SplitNetwork`; the server's output is as wide as an embedding.

    >>> UShapeRegressor(embedding=8).task
    'regression'
    """

    task, target, end = "regression", Numbers, LABELS_KEPT
    hooks, sends = LABELS_KEPT.hooks, LABELS_KEPT.sends
