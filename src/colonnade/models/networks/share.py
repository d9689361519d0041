"""SplitShare: what one party holds of a split network, and how it is built, saved and loaded."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Literal, TypeAlias, cast

import numpy as np
import torch
from torch import nn

from colonnade.data.ranking import FeaturePartition
from colonnade.errors import DataError
from colonnade.models.networks.modules import BottomFactory, LocalTrack, TopFactory, bottom_named, top_named
from colonnade.models.networks.targets import Target
from colonnade.models.networks.tracks import Tracks
from colonnade.models.networks.training import Machine, OptimizerSettings, PerNetwork, as_array, chosen, loaded
from colonnade.runtime.context import HookContext, Tensor
from colonnade.runtime.hooks import applied
from colonnade.runtime.party import Party
from colonnade.storage import Tree
from colonnade.tables.encode import Inputs, present_rows, rare_levels
from colonnade.tables.table import Table
from colonnade.wire.message import Int64Array

_log = logging.getLogger(__name__)

Fusion: TypeAlias = Literal["concat", "sum", "mean"]


@dataclass(frozen=True)
class SplitSettings:
    """The settings of a split network, read once from an estimator's parameters.

    Attributes:
        partial: Whether a feature party may lack rows.
        optimizers: Those of a training; they follow from the number of rows.
        last_layer: What makes the label party's layer behind a server's outputs; None where it has no such layer.
    """

    target: type[Target]
    embedding: int
    bottom: PerNetwork[str | BottomFactory]
    top: str | TopFactory | None
    fusion: Fusion
    tracks: Tracks
    partial: bool
    device: str
    precision: str
    optimizers: OptimizerSettings = field(default_factory=OptimizerSettings)
    last_layer: TopFactory | None = None

    @cached_property
    def machine(self) -> Machine:
        """Where this party computes; a share can be saved and loaded on a machine without its device."""
        return Machine.of(self.device, self.precision)

    def make_bottom(self, inputs: Inputs, width: int, network: str, party: str) -> nn.Module:
        """A new bottom network, under the name that settings call it."""
        choice = cast("str | BottomFactory", chosen(self.bottom, network, party, "bottom"))
        return bottom_named(choice)(inputs, width)

    def make_top(self, n_in: int, n_out: int) -> nn.Module | None:
        """A new top network of the federated track; None where there is none."""
        choice = self.tracks.federated_top(self.top)
        return None if choice is None else top_named(choice)(n_in, n_out)


@dataclass
class SplitShare:
    """What one party holds of a split network; what it does not hold is None.

    Attributes:
        settings: The settings by which it is built; no part of what is saved.
        width: How wide an embedding is.
        n_received: How many peers send it embeddings.
        n_joined: How many numbers its top takes.
        n_outputs: How many numbers its top gives.
        inputs: How its columns become numbers.
        local_inputs: Likewise, the columns of the local track.
        missing_embeddings: For each peer, the learned vector in the place of rows that the peer does not hold.
    """

    settings: SplitSettings
    party: str
    width: int
    n_received: int
    n_joined: int = 0
    n_outputs: int = 0
    target: Target | None = None
    inputs: Inputs | None = None
    bottom: nn.Module | None = None
    top: nn.Module | None = None
    local_inputs: Inputs | None = None
    local: LocalTrack | None = None
    partition: FeaturePartition | None = None
    missing_embeddings: nn.ParameterList | None = None

    @property
    def networks(self) -> dict[str, nn.Module | None]:
        """All networks by name, those that are missing included."""
        return {name: getattr(self, name) for name in ("bottom", "top", "local", "missing_embeddings")}

    @property
    def n_weights(self) -> int:
        """How many weights the bottom, the top and the local track have."""
        networks = (self.bottom, self.top, self.local)
        return sum(p.numel() for network in networks if network is not None for p in network.parameters())

    def require_target(self) -> Target:
        """What is predicted, which a party with labels knows."""
        assert self.target is not None
        return self.target

    def build_bottom(
        self, party: Party, columns: Sequence[str] | None, train: Int64Array, network: str
    ) -> dict[str, nn.Module]:
        """Learn how some columns become numbers, and make a network over them; returns it by its name."""
        self.inputs = self._learned_inputs(party, columns, train)
        self.bottom = self.settings.make_bottom(self.inputs, self.width, network, self.party)
        return {network: self.bottom}

    def build_label_networks(self, party: Party, train: Int64Array, labels: Tensor) -> dict[str, nn.Module]:
        """Make the label party's bottoms and local head, given all labels, encoded; returns them by name."""
        table, tracks, target = party.own_table, self.settings.tracks, self.require_target()
        networks: dict[str, nn.Module] = {}
        ranked = _as_learned_from(party, labels, target) if tracks.ranks_by_labels else table
        self.partition = tracks.partition(ranked, train, party.random.seed("partition"), target.task)
        public = table.columns if self.partition is None else self.partition.public
        if public:
            networks = self.build_bottom(party, public, train, tracks.bottom)
        if self.partition is not None:
            self.local_inputs = self._learned_inputs(party, self.partition.private, train)
            self.local = self._new_local(self.local_inputs)
            networks["private"] = self.local.private
            networks[tracks.local_name] = self.local.head
        return networks

    def build_top(self, n_embeddings: int, n_outputs: int) -> dict[str, nn.Module]:
        """Make the network over the joined embeddings, and the vectors for missing ones; returns both by name."""
        settings, networks = self.settings, dict[str, nn.Module]()
        self.n_joined = self.width * (n_embeddings if settings.fusion == "concat" else 1)
        self.n_outputs = n_outputs
        self.top = settings.make_top(self.n_joined, n_outputs)
        if self.top is not None:
            networks[settings.tracks.top] = self.top
        if settings.partial:
            networks["missing_embeddings"] = self.missing_embeddings = missing_embeddings(self.n_received, self.width)
        return networks

    def build_last_layer(self) -> dict[str, nn.Module]:
        """Make the label party's layer behind a server's outputs; returns it by its name."""
        assert self.settings.last_layer is not None
        self.n_joined, self.n_outputs = self.width, self.require_target().n_outputs
        self.top = self.settings.last_layer(self.n_joined, self.n_outputs)
        return {self.settings.tracks.top: self.top}

    def to(self, device: torch.device) -> None:
        """Move all networks to a device."""
        for network in self.networks.values():
            if network is not None:
                network.to(device)

    def state(self) -> Tree:
        """The share as a tree of arrays and plain values."""
        tree = {name: getattr(self, name) for name in LEARNED}
        for name in ("target", "inputs", "local_inputs"):
            tree[name] = None if tree[name] is None else tree[name].state()
        for name, network in self.networks.items():
            tree[name] = None if network is None else network.state_dict()
        tree["partition"] = None if self.partition is None else vars(self.partition)
        return tree

    @classmethod
    def of(cls, tree: Tree, settings: SplitSettings) -> SplitShare:
        """The share that `state` wrote down."""
        share = cls(settings, tree["party"], tree["width"], tree["n_received"], tree["n_joined"], tree["n_outputs"])
        if tree["target"] is not None:
            share.target = settings.target.of(tree["target"])
        if tree["partition"] is not None:
            saved = tree["partition"]
            sides = tuple(saved["public"]), tuple(saved["private"])
            share.partition = FeaturePartition(*sides, saved["scores"], saved["by"])
        if tree["inputs"] is not None:
            share.inputs = Inputs.of(tree["inputs"])
            network = "bottom" if share.target is None else settings.tracks.bottom
            bottom = settings.make_bottom(share.inputs, share.width, network, share.party)
            share.bottom = loaded(bottom, tree["bottom"])
        if tree["top"] is not None:
            make = settings.make_top if share.target is None else settings.last_layer or settings.make_top
            top = make(share.n_joined, share.n_outputs)
            assert top is not None
            share.top = loaded(top, tree["top"])
        if tree["local_inputs"] is not None:
            share.local_inputs = Inputs.of(tree["local_inputs"])
            share.local = loaded(share._new_local(share.local_inputs), tree["local"])
        if tree["missing_embeddings"] is not None:
            vectors = missing_embeddings(share.n_received, share.width)
            share.missing_embeddings = loaded(vectors, tree["missing_embeddings"])
        return share

    def _learned_inputs(self, party: Party, columns: Sequence[str] | None, train: Int64Array) -> Inputs:
        """How a party's columns become numbers, learned from the rows it trains on."""
        table = party.own_table if columns is None else party.own_table.select(columns)
        if self.settings.partial and not party.holds_labels:
            train = train[present_rows(table)[train]]
            if not len(train):
                raise DataError(
                    f"{party.name} should hold some of the rows to train on, but all its columns are empty in all of "
                    "them. Check the ids it was aligned by."
                )
        for sentence in rare_levels(table):
            _log.warning("%s", sentence)
        return Inputs.learned(table, train)

    def _new_local(self, inputs: Inputs) -> LocalTrack:
        """New networks of the local track."""
        settings, tracks = self.settings, self.settings.tracks
        n_joined = (2 + (self.n_received if tracks.takes_received else 0)) * self.width
        head = top_named(tracks.local_top(settings.top))(n_joined, self.require_target().n_outputs)
        private = settings.make_bottom(inputs, self.width, "private", self.party)
        return LocalTrack(private, head, takes_received=tracks.takes_received, trains_head=tracks.trains_local_top)


LEARNED = tuple(each.name for each in fields(SplitShare) if each.name != "settings")


def missing_embeddings(n_peers: int, width: int) -> nn.ParameterList:
    """New vectors for rows that a peer does not hold, one for each peer."""
    # Many tops begin with a ReLU, which lets no gradient through to zeros: they would never be learned.
    return nn.ParameterList(nn.Parameter(torch.full((width,), 0.01)) for _ in range(n_peers))


def require_columns(party: Party) -> None:
    """Refuse a feature party without columns."""
    if not party.own_table.columns:
        raise DataError(f"{party.name} is a feature party but its table has no columns besides the ids. Bring some.")


def _as_learned_from(party: Party, labels: Tensor, target: Target) -> Table:
    """The label party's table with the labels that the federated track learns from, which defences may change."""
    # Before the first step: no other call has this number.
    at = HookContext(-1, 0, np.arange(len(labels)), "train", n_classes=target.n_classes)
    learned_from, relabelled = applied(party.defences, "labels", labels, at)
    return party.own_table.with_labels(as_array(learned_from)) if relabelled else party.own_table
