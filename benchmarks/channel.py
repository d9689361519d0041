"""Two parties of one process exchange 256 KiB each way, encoded, recorded and decoded at both ends."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from statistics import median
from time import perf_counter

# Hand-overs swap the states of PyTorch's generators only where PyTorch is loaded, as it is whenever a network trains.
import torch  # noqa: F401

from benchmarks.codec import Block, block
from colonnade import Party, Roles, Table, simulate

TARGETS: Mapping[str, float] = {"exchange_ms": 0.30}


def exchange(party: Party, message: Block, times: int) -> list[float]:
    """Send a message and wait for the answer, so many times; the feature party takes the time."""
    if party.holds_labels:
        (line,) = party.feature_parties
        for _ in range(times):
            line.receive(Block)
            line.send(message)
        return []
    durations = []
    for _ in range(times):
        start = perf_counter()
        party.label_party.send(message)
        party.label_party.receive(Block)
        durations.append(perf_counter() - start)
    return durations


def measure(*, quick: bool) -> dict[str, float]:
    """The median time of one exchange; of one with next to nothing in it, which is the price of taking turns."""
    times = 100 if quick else 5_000
    tables = {name: Table.of({"id": [1, 2], "x": [0.0, 1.0]}, owner=name) for name in ("bank", "shop")}
    figures = {}
    for name, message in (("exchange_ms", block()), ("empty_exchange_ms", block(rows=0))):
        protocol = partial(exchange, message=message, times=times)
        run = simulate(protocol, tables, roles=Roles(label="bank", features=("shop",)), keep="digests")
        figures[name] = 1e3 * median(run.results["shop"][times // 10 :])
    return figures
