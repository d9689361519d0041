"""A server that holds the top of a split network and brings no table: see `ushape` and `labels_at_server`."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from colonnade.errors import PlanError
from colonnade.models.networks.cut import Gathering
from colonnade.models.networks.split import SplitNetwork
from colonnade.models.networks.tracks import ShadowTop
from colonnade.models.networks.training import set_mode
from colonnade.runtime.hooks import Phase, Tensor
from colonnade.runtime.party import Party
from colonnade.wire.channel import Channel
from colonnade.wire.message import Int64Array, Message


@dataclass(frozen=True)
class Rows(Message, kind="split/rows"):
    """How many rows there are, and whether the label party sends embeddings of its own."""

    number: int
    with_embeddings: int


class WithServer(SplitNetwork):
    """A split network whose top is at a server, which brings no table."""

    def n_rows(self, party: Party) -> int:
        """How many rows there are; the label party tells the server."""
        if party.table is not None:
            if party.holds_labels:
                party.server.send(Rows(len(party.table), int(bool(party.table.columns))))
            return len(party.table)
        told = party.label_party.receive(Rows)
        self.label_sends_ = bool(told.with_embeddings)
        return told.number

    def upstream(self, party: Party) -> list[Channel]:
        """Whom the server gets embeddings from, in the order in which they are joined."""
        return [*([party.label_party] if self.label_sends_ else []), *party.feature_parties]

    def _validate(self, party: Party) -> None:
        super()._validate(party)
        if party.roles.server is None:
            raise PlanError(
                f"{type(self).__name__} needs a server that holds the top network, but the roles name none. "
                "Name one, or use a split network whose top is at the label party."
            )
        if self.top is None:
            raise PlanError(f"{type(self).__name__}'s top should be a network, but is None. Name one such as 'mlp'.")
        if isinstance(self.architecture, ShadowTop):
            raise PlanError(
                f"ShadowTop's main top takes the embeddings of feature parties, but in {type(self).__name__} only the "
                "server is sent these. Use tracks='shadow-proxy', or a top at the label party."
            )


class ServerEnd:
    """The server's network over the embeddings it is sent."""

    def __init__(self, model: WithServer, party: Party) -> None:
        self.party, self.machine = party, model.machine
        model.to(self.machine.device)
        self.gathering = Gathering(model, party, model.upstream(party))
        assert model.top_ is not None
        self.top = model.top_

    def forward(self, step: int, rows: Int64Array, phase: Phase, epoch: int | None = None) -> Tensor:
        """Collect embeddings, and put them through the network."""
        joined = self.gathering.joined([], self.gathering.collect(step, rows, phase, epoch))
        set_mode(self.top, train=phase == "train")
        with torch.set_grad_enabled(phase == "train"), self.machine.autocast():
            outputs: Tensor = self.top(joined)
        return outputs.float()
