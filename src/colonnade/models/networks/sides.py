"""The sides of a split network in training: what each party does in a step, wherever the top is.

`FeatureSide` sends embeddings and learns from gradients. `LabelledSide` is any party that has labels: it computes the
losses of its tracks and says when training ends. `LabelSide` is the label party that has the top as well.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import nn

from colonnade.errors import ProtocolError
from colonnade.models.networks.cut import (
    Bottom,
    Gathering,
    Outline,
    Verdict,
    gradient_if,
    learned_inputs,
    require_columns,
    stand_ins,
)
from colonnade.models.networks.training import Side, Stopping, as_array, set_mode
from colonnade.runtime.hooks import At, Phase, Tensor, applied
from colonnade.runtime.party import Party
from colonnade.storage import Tree
from colonnade.tables.table import Table
from colonnade.wire.channel import Channel
from colonnade.wire.message import Int64Array

if TYPE_CHECKING:
    from colonnade.models.networks.split import SplitNetwork


class FeatureSide(Side):
    """A feature party in training: embeddings up, gradients down.

    Args:
        model: The estimator that is fitted.
        party: The feature party.
        train: The rows to train on.
        line: Where embeddings go and gradients come from; the label party if None.
        judge: Who says when to stop; the same if None.
    """

    def __init__(
        self,
        model: SplitNetwork,
        party: Party,
        train: Int64Array,
        line: Channel | None = None,
        judge: Channel | None = None,
    ) -> None:
        model.width_ = model.embedding if line is not None else _asked_width(model, party)
        require_columns(party)
        line = line or party.label_party
        self.judge = judge or line
        model.inputs_ = learned_inputs(model, party, None, train)
        model.bottom_ = model.make_bottom(model.inputs_, "bottom", party.name)
        self.bottom = Bottom(model, party, line)
        super().__init__(party, {"bottom": model.bottom_}, model.optimisers)

    def train(self, step: int, epoch: int, rows: Int64Array) -> dict[str, float]:
        """Send embeddings, learn from gradients."""
        sent = self.bottom.send(step, rows, "train", epoch)
        self.optimisers.forget_gradients()
        self.bottom.learn(sent, step, rows, epoch)
        self.optimisers.step()
        return {}

    def ends_after(self, epoch: int, held_out: Sequence[Int64Array]) -> bool:
        """Send embeddings of held-out rows, and hear whether that was better."""
        self.history.append({"epoch": epoch})
        if not held_out:
            return False
        self.bottom.send_all(held_out, "validate", epoch)
        return heed(self, self.judge)


def heed(side: Side, judge: Channel) -> bool:
    """Hear whether an epoch was the best so far; returns whether training ends with it."""
    verdict = judge.receive(Verdict)
    side.keep_if_best(bool(verdict.improved))
    return bool(verdict.stop)


@dataclass(frozen=True)
class Pass:
    """One forward pass at the label party: what went in, and what the federated track makes of it.

    The own embedding is cut off from the network that made it, so that others get their gradients before that network
    gets its own.
    """

    index: Tensor
    made: Tensor | None
    own: Tensor | None
    embeddings: list[Tensor]
    outputs: Tensor

    def trace_back(self) -> None:
        """Take the gradient in the own embedding through the network that made it."""
        if self.own is not None and self.own.grad is not None and self.made is not None and self.made.requires_grad:
            self.made.backward(self.own.grad)  # type: ignore[no-untyped-call]


class Joint:
    """The label party's networks, over its own rows and the embeddings that arrive."""

    def __init__(self, model: SplitNetwork, party: Party) -> None:
        self.model, self.machine = model, model.machine
        model.to(self.machine.device)
        self.own_name = model.architecture.own
        self.bottom = None if model.bottom_ is None else Bottom(model, party, None, self.own_name)
        self.gathering = Gathering(model, party, party.feature_parties)

    def forward(self, step: int, rows: Int64Array, phase: Phase, epoch: int | None = None) -> Pass:
        """Collect all embeddings of some rows, and put them through the federated track."""
        train, top = phase == "train", self.model.top_
        # The own part first: the others compute theirs meanwhile.
        made = None if self.bottom is None else self.bottom.embed(rows, train=train)
        own = None if made is None else made.detach().requires_grad_(train)
        embeddings = self.gathering.collect(step, rows, phase, epoch)
        joined = self.gathering.joined([] if own is None else [own], embeddings)
        if top is None:
            return Pass(self.machine.index(rows), made, own, embeddings, joined)
        set_mode(top, train=train)
        with torch.set_grad_enabled(train), self.machine.autocast():
            outputs: Tensor = top(joined)
        return Pass(self.machine.index(rows), made, own, embeddings, outputs.float())


class LocalEnd:
    """The local track over the label party's private columns; nothing of it leaves."""

    def __init__(self, model: SplitNetwork, party: Party) -> None:
        assert model.local_ is not None
        assert model.local_inputs_ is not None
        self.machine = model.machine
        self.track = model.local_.to(self.machine.device)
        self.values = torch.from_numpy(model.local_inputs_.encode(party.own_table)).to(self.machine.device)

    def embed(self, index: Tensor, *, train: bool) -> Tensor:
        """The private embedding of some rows."""
        set_mode(self.track, train=train)
        with torch.set_grad_enabled(train), self.machine.autocast():
            private: Tensor = self.track.private(self.values.index_select(0, index))
        return private.float()

    def outputs(self, public: Tensor, private: Tensor, received: Sequence[Tensor], *, train: bool) -> Tensor:
        """The track's outputs, for which everything but the private embedding is cut off."""
        with torch.set_grad_enabled(train), self.machine.autocast():
            outputs: Tensor = self.track(public, private, received)
        return outputs.float()

    def predict(self, rows: Int64Array, public: Tensor | None, received: Sequence[Tensor]) -> Tensor:
        """The track's outputs for some rows, without training."""
        assert public is not None
        private = self.embed(self.machine.index(rows), train=False)
        return self.outputs(public, private, received, train=False)


class LabelledSide(Side):
    """The side of a party that has labels: the losses of its tracks, and when training ends."""

    def __init__(self, model: SplitNetwork, party: Party, labels: Tensor, networks: Mapping[str, nn.Module]) -> None:
        self.model, self.target, self.machine = model, model.require_target(), model.machine
        self.labels = labels.to(self.machine.device)
        self.local = None if model.local_ is None else LocalEnd(model, party)
        self.losses: dict[str, list[float]] = {}
        super().__init__(party, networks, model.optimisers)

    def loss(self, outputs: Tensor, truth: Tensor, at: At) -> tuple[Tensor, At, tuple[str, ...]]:
        """A track's loss, where it was computed, and the defences that had a hand in it."""
        defences = self.party.defences
        if not defences:
            return self.target.loss(outputs, truth), at, ()
        at = replace(at, outputs=outputs, n_classes=self.target.n_classes)
        labels, relabelled = applied(defences, "labels", truth, at)
        at = replace(at, labels=labels)
        loss, reweighed = applied(defences, "loss", self.target.loss(outputs, labels), at)
        return loss, at, tuple(dict.fromkeys(relabelled + reweighed))

    def train_local(self, own: Tensor, private: Tensor, received: Sequence[Tensor], truth: Tensor, at: At) -> float:
        """The local track's own step, on the true labels and on what is cut off from the federated track."""
        assert self.local is not None
        outputs = self.local.outputs(own, private, received, train=True)
        cut_off = {peer: came.detach() for peer, came in at.received.items()}
        mine = {self.model.architecture.own: own.detach(), "private": private}
        about = replace(at, track="local", labels=None, own=mine, received=cut_off)
        loss, _, _ = self.loss(outputs, truth, about)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.item()

    def note(self, figures: dict[str, float]) -> dict[str, float]:
        """Keep a step's losses for the epoch's record."""
        for name, value in figures.items():
            self.losses.setdefault(name, []).append(value)
        return figures

    def close(self, epoch: int) -> None:
        """Put an epoch's mean losses into the history."""
        self.history.append({"epoch": epoch, **{name: float(np.mean(each)) for name, each in self.losses.items()}})
        self.losses = {}

    def judge(
        self,
        epoch: int,
        held_out: Sequence[Int64Array],
        forward: Callable[[int, int, Int64Array], tuple[Tensor, At]],
        lines: Sequence[Channel],
    ) -> bool:
        """Compare an epoch's loss on held-out rows with earlier ones, and tell the others; returns whether to stop.

        Args:
            epoch: Its number.
            held_out: The rows, in batches; without any, nothing is compared and nobody is told.
            forward: The outputs for a batch, given its number, the epoch and its rows, and where they were computed.
            lines: Whom to tell.
        """
        self.close(epoch)
        if not held_out:
            return False
        total, under = 0.0, dict[str, None]()
        for step, rows in enumerate(held_out):
            outputs, at = forward(step, epoch, rows)
            truth = self.labels.index_select(0, self.machine.index(rows))
            about = replace(at, n_classes=self.target.n_classes)
            labels, relabelled = applied(self.party.defences, "labels", truth, about)
            total += self.target.loss(outputs, labels, "sum").item()
            under |= dict.fromkeys(relabelled)
        self.history[-1]["validation_loss"] = total / sum(map(len, held_out))
        assert self.model.patience is not None
        improved, stop = Stopping(self.model.patience).verdict(self.history)
        self.keep_if_best(improved)
        for line in lines:
            line.send(Verdict(epoch, int(improved), int(stop)), under=tuple(under))
        return stop

    def state(self) -> Tree:
        """All that the next step depends on."""
        return {**super().state(), "losses": self.losses}

    def restore(self, tree: Tree) -> None:
        """Go back to what `state` said."""
        super().restore(tree)
        self.losses = tree["losses"]


class LabelSide(LabelledSide):
    """The label party in training: joins embeddings, computes losses, returns gradients."""

    def __init__(self, model: SplitNetwork, party: Party, train: Int64Array) -> None:
        labels = model.learn_target(party)
        model.width_ = model.require_target().n_outputs if model.top is None else model.embedding
        for line in party.feature_parties:
            line.send(Outline(model.width_))
        networks = build_label_networks(model, party, train, labels)
        networks |= build_top(model, model.n_received_ + (model.bottom_ is not None), model.require_target().n_outputs)
        self.joint = Joint(model, party)
        super().__init__(model, party, labels, networks)

    def train(self, step: int, epoch: int, rows: Int64Array) -> dict[str, float]:
        """Collect embeddings, compute the losses of all tracks, give gradients back."""
        joint, defences = self.joint, self.party.defences
        passed = joint.forward(step, rows, "train", epoch)
        truth = self.labels.index_select(0, passed.index)
        own = {} if passed.own is None else {joint.own_name: passed.own}
        private = None
        if self.local is not None:
            private = self.local.embed(passed.index, train=True)
            own["private"] = private.detach()
        inputs = None if joint.bottom is None else joint.bottom.inputs
        received, held = joint.gathering.received, joint.gathering.held
        at = At(step, epoch, rows, "train", own=own, received=received, held=held, inputs=inputs)
        loss, at, under = self.loss(passed.outputs, truth, at)
        self.optimisers.forget_gradients()
        loss.backward(retain_graph=bool(defences))  # type: ignore[no-untyped-call]
        asked = gradient_if(self.target.loss, passed.outputs) if defences else None
        joint.gathering.give_back(step, at, asked, under)
        passed.trace_back()
        figures = {"loss": loss.item()}
        if private is not None:
            assert passed.own is not None
            figures["local_loss"] = self.train_local(passed.own, private, passed.embeddings, truth, at)
        self.optimisers.step()
        return self.note(figures)

    def ends_after(self, epoch: int, held_out: Sequence[Int64Array]) -> bool:
        """Compare with earlier epochs on held-out rows, and tell the others."""
        return self.judge(epoch, held_out, self._validate, self.party.feature_parties)

    def _validate(self, step: int, epoch: int, rows: Int64Array) -> tuple[Tensor, At]:
        outputs, gathering = self.joint.forward(step, rows, "validate", epoch).outputs, self.joint.gathering
        return outputs, At(step, epoch, rows, "validate", received=gathering.received, held=gathering.held)


def build_label_networks(model: SplitNetwork, party: Party, train: Int64Array, labels: Tensor) -> dict[str, nn.Module]:
    """The label party's own bottoms and local head, by name: what does not depend on where the top is.

    Args:
        model: The estimator that is fitted.
        party: The label party.
        train: The rows to train on.
        labels: Those of all rows, encoded.
    """
    table, tracks = party.own_table, model.architecture
    networks: dict[str, nn.Module] = {}
    ranked = _as_learned_from(model, party, labels) if tracks.ranks_by_labels else table
    partition = model.partition_ = tracks.partition(ranked, train, party.random.seed("partition"), model.task)
    public = table.columns if partition is None else partition.public
    if public:
        model.inputs_ = learned_inputs(model, party, public, train)
        model.bottom_ = networks[tracks.bottom] = model.make_bottom(model.inputs_, tracks.bottom, party.name)
    if partition is not None:
        model.local_inputs_ = learned_inputs(model, party, partition.private, train)
        n_outputs = model.require_target().n_outputs
        model.local_ = model.make_local(model.local_inputs_, model.n_received_, n_outputs, party.name)
        networks["private"] = model.local_.private
        networks[tracks.local_name] = model.local_.head
    return networks


def _as_learned_from(model: SplitNetwork, party: Party, labels: Tensor) -> Table:
    """The label party's table with the labels that the federated track learns from: defences may change them."""
    # Before the first step: no other call has this number.
    at = At(-1, 0, np.arange(len(labels)), "train", n_classes=model.require_target().n_classes)
    learned_from, relabelled = applied(party.defences, "labels", labels, at)
    return party.own_table.with_labels(as_array(learned_from)) if relabelled else party.own_table


def build_top(model: SplitNetwork, n_embeddings: int, n_outputs: int) -> dict[str, nn.Module]:
    """The network over the joined embeddings, and what stands in for those that are missing, by name."""
    networks: dict[str, nn.Module] = {}
    model.n_joined_ = model.width_ * (n_embeddings if model.fusion == "concat" else 1)
    model.n_outputs_ = n_outputs
    model.top_ = model.make_top(model.n_joined_, n_outputs)
    if model.top_ is not None:
        networks[model.architecture.top] = model.top_
    if model.overlap == "partial":
        networks["stand_ins"] = model.stand_ins_ = stand_ins(model.n_received_, model.width_)
    return networks


def _asked_width(model: SplitNetwork, party: Party) -> int:
    """The width of embedding that the label party asks for, if the plan allows it."""
    width = party.label_party.receive(Outline).width
    if width != model.embedding if model.top is not None else not model.target.is_width(width):
        wanted = f"{model.embedding}" if model.top is not None else f"that of a {model.task}'s outputs"
        raise ProtocolError(
            f"{party.roles.label} asked for embeddings of width {width}; the plan allows {wanted}. "
            "Check that both parties run the same plan."
        )
    return width
