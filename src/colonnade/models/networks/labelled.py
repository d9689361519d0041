"""The side of a party that has labels: the losses of its tracks, its local track, and when training ends."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

import torch
from torch import nn

from colonnade.models.networks.share import SplitShare
from colonnade.models.networks.training import NetworkSide, trace_back
from colonnade.runtime.context import HookContext, Tensor
from colonnade.runtime.hooks import applied
from colonnade.runtime.party import Party
from colonnade.wire.channel import Channel
from colonnade.wire.message import Int64Array

GradientIf: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""The gradient in an embedding, if the labels of the batch were these."""


class LocalTrackRunner:
    """The local track over the label party's private columns; nothing of it leaves."""

    def __init__(self, share: SplitShare, party: Party) -> None:
        assert share.local is not None
        assert share.local_inputs is not None
        self.machine = share.settings.machine
        self.track = share.local.to(self.machine.device)
        self.values = torch.from_numpy(share.local_inputs.encode(party.own_table)).to(self.machine.device)

    def embed(self, index: Tensor, *, train: bool) -> Tensor:
        """The private embedding of some rows."""
        return self.machine.forward(self.track.private, self.values.index_select(0, index), train=train)

    def outputs(self, public: Tensor, private: Tensor, received: Sequence[Tensor], *, train: bool) -> Tensor:
        """The track's outputs, for which everything but the private embedding is cut off."""
        return self.machine.forward(self.track, public, private, received, train=train)

    def predict(self, rows: Int64Array, public: Tensor | None, received: Sequence[Tensor]) -> Tensor:
        """The track's outputs for some rows, without training."""
        assert public is not None
        private = self.embed(self.machine.index(rows), train=False)
        return self.outputs(public, private, received, train=False)


class LabelledSide(NetworkSide[SplitShare]):
    """The side of a party that has labels: the losses of its tracks, and when training ends."""

    def __init__(self, share: SplitShare, party: Party, labels: Tensor, networks: Mapping[str, nn.Module]) -> None:
        self.settings, self.target, self.machine = share.settings, share.require_target(), share.settings.machine
        self.labels = labels.to(self.machine.device)
        self.local = None if share.local is None else LocalTrackRunner(share, party)
        super().__init__(party, networks, share.settings.optimizers, share)

    def loss(self, outputs: Tensor, truth: Tensor, at: HookContext) -> tuple[Tensor, HookContext, tuple[str, ...]]:
        """A track's loss, where it was computed, and the defences that had a hand in it."""
        defences = self.party.defences
        if not defences:
            return self.target.loss(outputs, truth), at, ()
        at = replace(at, outputs=outputs, n_classes=self.target.n_classes)
        labels, relabelled = applied(defences, "labels", truth, at)
        at = replace(at, labels=labels)
        loss, reweighed = applied(defences, "loss", self.target.loss(outputs, labels), at)
        return loss, at, tuple(dict.fromkeys(relabelled + reweighed))

    def own_embeddings(self, own: Tensor | None, index: Tensor) -> tuple[dict[str, Tensor], Tensor | None]:
        """The party's own embeddings as hooks are shown them, and the private one with its graph."""
        shown = {} if own is None else {self.settings.tracks.own: own}
        private = None if self.local is None else self.local.embed(index, train=True)
        if private is not None:
            shown["private"] = private.detach()
        return shown, private

    def train_local(
        self, own: Tensor, private: Tensor, received: Sequence[Tensor], truth: Tensor, at: HookContext
    ) -> float:
        """The local track's own step, on the true labels and on what is cut off from the federated track."""
        assert self.local is not None
        outputs = self.local.outputs(own, private, received, train=True)
        cut_off = {peer: came.detach() for peer, came in at.received.items()}
        mine = {self.settings.tracks.own: own.detach(), "private": private}
        about = replace(at, track="local", labels=None, own=mine, received=cut_off)
        loss, _, _ = self.loss(outputs, truth, about)
        trace_back(loss)
        return loss.item()

    def judge(
        self,
        epoch: int,
        held_out: Sequence[Int64Array],
        forward: Callable[[int, int, Int64Array], tuple[Tensor, HookContext]],
        lines: Sequence[Channel],
    ) -> bool:
        """Compare an epoch's loss on held-out rows with earlier ones, and tell the others; returns whether to stop.

        `forward` gives the outputs for a batch, from its number, the epoch and its rows, and where they were computed.
        """
        total, under = 0.0, dict[str, None]()
        for step, rows in enumerate(held_out):
            outputs, at = forward(step, epoch, rows)
            truth = self.labels.index_select(0, self.machine.index(rows))
            about = replace(at, n_classes=self.target.n_classes)
            labels, relabelled = applied(self.party.defences, "labels", truth, about)
            total += self.target.loss(outputs, labels, "sum").item()
            under |= dict.fromkeys(relabelled)
        verdict = self.verdict(epoch, total / sum(map(len, held_out)))
        for line in lines:
            line.send(verdict, under=tuple(under))
        return bool(verdict.stop)


def gradient_if(loss: Callable[[Tensor, Tensor], Tensor], outputs: Tensor) -> GradientIf:
    """What the gradient in an embedding would be if the labels of the batch were others."""
    return lambda received, labels: torch.autograd.grad(loss(outputs, labels), received, retain_graph=True)[0]
