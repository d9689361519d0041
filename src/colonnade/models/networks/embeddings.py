"""Embeddings of a prediction, made where the rows lie: a network goes to the rows, its outputs come back in batches."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from colonnade.models.networks.messages import Embedding
from colonnade.models.networks.share import SplitShare
from colonnade.models.networks.training import Machine
from colonnade.tables import placement
from colonnade.tables.encode import Inputs, present_rows
from colonnade.tables.placement import bounds_of
from colonnade.tables.table import Table
from colonnade.wire.channel import Channel
from colonnade.wire.message import Float32Array, Int64Array


def send_embeddings(share: SplitShare, table: Table, line: Channel, batches: Sequence[Int64Array]) -> None:
    """Send the embeddings of all rows, batch by batch; a partition ends where a batch ends."""
    size, numbered = max(map(len, batches), default=1), enumerate(batches)
    parts = table.cut(bounds_of(len(table), -(-placement.PARTITION_ROWS // size) * size))
    for some in parts.map(_embedded, _Network.of(share, table), size):
        for values, (step, rows) in zip(some, numbered, strict=False):
            line.send(Embedding(step, values), rows=rows)


@dataclass(frozen=True)
class _Network:
    """A bottom network as it goes to the rows."""

    inputs: Inputs
    module: nn.Module
    device: str
    precision: str
    partial: bool

    @classmethod
    def of(cls, share: SplitShare, table: Table) -> _Network:
        settings = share.settings
        assert share.inputs is not None
        assert share.bottom is not None
        # Workers may have other devices than this process.
        module = share.bottom if table.placed is None else deepcopy(share.bottom).cpu()
        return cls(share.inputs, module, settings.device, settings.precision, settings.partial)


def _embedded(part: Table, network: _Network, size: int) -> list[Float32Array]:
    """The embeddings of a partition in batches; NaN for rows that the party does not hold."""
    machine, batches = Machine.of(network.device, network.precision), []
    module = network.module.to(machine.device)
    values = torch.from_numpy(network.inputs.encode(part)).to(machine.device)
    for some in torch.split(values, size):
        batches.append(machine.host_copy(machine.forward(module, some.clone(), train=False)).array())
    if not network.partial:
        return batches
    held = present_rows(part)[:, None]
    return [np.where(held[size * i : size * (i + 1)], each, np.float32(np.nan)) for i, each in enumerate(batches)]
