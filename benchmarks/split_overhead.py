"""A split network, trained in one process, against the same network trained centrally in plain PyTorch.

30,000 rows, two parties with 12 columns each, bottoms with a hidden layer of 64 and an embedding of 32, batches of
1,024, one thread. Both ways start from the parties' tables and the same weights and use the same batches and PyTorch's
fused Adam with the same settings, so both reach the same loss; that is checked. The ratios of processor time feel other
processes less than those of the clock, which have the targets.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import isclose
from statistics import median
from time import perf_counter, process_time

import numpy as np
import torch
from torch import nn

from colonnade import Roles, Table, simulate
from colonnade.models import SplitClassifier
from colonnade.models.batches import Batches
from colonnade.models.networks.modules import TabularMLP, mlp_top
from colonnade.privacy.randomness import Randomness
from colonnade.runtime.party import shared_randomness
from colonnade.runtime.simulate import Run
from colonnade.tables.encode import Inputs
from colonnade.wire.recording.recording import Keep

TARGETS: Mapping[str, float] = {"digests_ratio": 1.35, "audit_ratio": 1.6}
LEAST: Mapping[str, float] = {"digests_ratio": 1.0, "audit_ratio": 1.0}
ROLES = Roles(label="bank", features=("shop",))
N_ROWS, N_COLUMNS, EMBEDDING = 30_000, 12, 32


def bottom(inputs: Inputs, width: int) -> nn.Module:
    """The default bottom network, always with the same weights."""
    torch.manual_seed(1)
    return TabularMLP(inputs, width, hidden=(64,))


def top(n_in: int, n_out: int) -> nn.Module:
    """The default top network, always with the same weights."""
    torch.manual_seed(2)
    return mlp_top(n_in, n_out)


def make_tables() -> dict[str, Table]:
    """Numbers at both parties, on all of which the bank's labels depend."""
    generator = np.random.default_rng(0)
    values = generator.standard_normal((N_ROWS, 2 * N_COLUMNS))
    labels = values @ generator.standard_normal(2 * N_COLUMNS) + generator.standard_normal(N_ROWS) > 0
    columns = {f"x{i}": values[:, i] for i in range(2 * N_COLUMNS)}
    ids = {"id": np.arange(N_ROWS)}
    bank = ids | dict(list(columns.items())[:N_COLUMNS]) | {"label": labels.astype(np.int64)}
    shop = ids | dict(list(columns.items())[N_COLUMNS:])
    return {"bank": Table.of(bank, labels="label", owner="bank"), "shop": Table.of(shop, owner="shop")}


def train_apart(model: SplitClassifier, tables: Mapping[str, Table], keep: Keep) -> Run[SplitClassifier]:
    """Train the network as two parties."""
    return simulate(model.fit, tables, roles=ROLES, keep=keep)


def train_centrally(
    model: SplitClassifier,
    tables: Mapping[str, Table],
    shared: Randomness,
    device: str = "cpu",
) -> float:
    """Train the same network in one table; returns the mean loss of the last epoch."""
    rows = np.arange(N_ROWS)
    inputs = [Inputs.learned(table, rows) for table in tables.values()]
    encoded = np.hstack([i.encode(table) for i, table in zip(inputs, tables.values(), strict=True)])
    values, labels = torch.from_numpy(encoded).to(device), torch.tensor(np.asarray(tables["bank"].labels)).to(device)
    own, others = bottom(inputs[0], EMBEDDING).to(device), bottom(inputs[1], EMBEDDING).to(device)
    joint = top(2 * EMBEDDING, 2).to(device)
    parameters = [*own.parameters(), *others.parameters(), *joint.parameters()]
    assert isinstance(model.learning_rate, float)
    optimiser = torch.optim.Adam(parameters, model.learning_rate, fused=True)
    batches = Batches(rows, model.batch_size, shared)
    losses = []
    for step in range(model.epochs_on(len(rows)) * batches.per_epoch):
        batch = torch.from_numpy(batches.at(step)[1]).to(device)
        x = values[batch]
        embeddings = torch.cat([own(x[:, :N_COLUMNS]), others(x[:, N_COLUMNS:])], dim=1)
        loss = nn.functional.cross_entropy(joint(embeddings), labels[batch])
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        losses.append(loss.item())
    return float(np.mean(losses[-batches.per_epoch :]))


@dataclass
class Timings:
    """How long one way of training took, each time."""

    wall: list[float] = field(default_factory=list)
    processor: list[float] = field(default_factory=list)

    def add(self, train: Callable[[], object]) -> None:
        """Train once more."""
        wall, processor = perf_counter(), process_time()
        train()
        self.wall.append(perf_counter() - wall)
        self.processor.append(process_time() - processor)


def measure(*, quick: bool) -> dict[str, float]:
    """Ratios of median times: of the wall clock, and of the processor, which feels other processes less."""
    torch.set_num_threads(1)
    epochs, repetitions = (1, 1) if quick else (20, 3)
    model = SplitClassifier(
        embedding=EMBEDDING, bottom=bottom, top=top, batch_size=1024, epochs=epochs, n_iter_no_change=None
    )
    tables = make_tables()
    first = train_apart(model, tables, "digests")
    shared = shared_randomness(first.plan, first.id_digest)
    apart, together = first.results["bank"].history_[-1]["loss"], train_centrally(model, tables, shared)
    if not isclose(apart, together, rel_tol=1e-3):
        raise RuntimeError(f"Both ways of training should reach one loss, but they reach {apart} and {together}.")
    ways: dict[str, Callable[[], object]] = {
        "central": lambda: train_centrally(model, tables, shared),
        "digests": lambda: train_apart(model, tables, "digests"),
        "audit": lambda: train_apart(model, tables, "audit"),
    }
    timings = {name: Timings() for name in ways}
    for _ in range(repetitions):
        for name, train in ways.items():
            timings[name].add(train)
    wall = {name: median(timing.wall) for name, timing in timings.items()}
    processor = {name: median(timing.processor) for name, timing in timings.items()}
    return {
        "digests_ratio": wall["digests"] / wall["central"],
        "audit_ratio": wall["audit"] / wall["central"],
        "digests_processor_ratio": processor["digests"] / processor["central"],
        "audit_processor_ratio": processor["audit"] / processor["central"],
        **{f"{name}_epoch_ms": 1e3 * seconds / epochs for name, seconds in wall.items()},
    }
