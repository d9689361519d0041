"""A split network, trained in one process, against the same network trained centrally in plain PyTorch.

30,000 rows, two parties with 12 columns each, bottoms with a hidden layer of 64 and an embedding of 32, batches of
1,024, one thread. Both ways start from the parties' tables and the same weights and use the same batches and PyTorch's
fused Adam with the same settings, so both reach the same loss; that is checked. The ratios of processor time feel other
processes less than those of the clock, which have the targets. Parties call the optimiser's kernel and the engine of
gradients with less around them than PyTorch does; `digests_over_same_step`, which has no target, compares with a
central network whose steps do the same.
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
from colonnade.models.networks.training import Optimizers, trace_back
from colonnade.privacy.randomness import PublicRandomness
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


def make_tables(n_rows: int = N_ROWS) -> dict[str, Table]:
    """Numbers at both parties, on all of which the bank's labels depend."""
    generator = np.random.default_rng(0)
    values = generator.standard_normal((n_rows, 2 * N_COLUMNS))
    labels = values @ generator.standard_normal(2 * N_COLUMNS) + generator.standard_normal(n_rows) > 0
    columns = {f"x{i}": values[:, i] for i in range(2 * N_COLUMNS)}
    ids = {"id": np.arange(n_rows)}
    bank = ids | dict(list(columns.items())[:N_COLUMNS]) | {"label": labels.astype(np.int64)}
    shop = ids | dict(list(columns.items())[N_COLUMNS:])
    return {"bank": Table.of(bank, labels="label", owner="bank"), "shop": Table.of(shop, owner="shop")}


def train_apart(model: SplitClassifier, tables: Mapping[str, Table], keep: Keep) -> Run[SplitClassifier]:
    """Train the network as two parties."""
    return simulate(model.fit, tables, roles=ROLES, keep=keep)


def train_centrally(
    model: SplitClassifier, tables: Mapping[str, Table], shared: PublicRandomness, *, as_parties: bool = False
) -> list[float]:
    """Train the same network in one table, on the same device; returns the mean loss of each epoch.

    A step is what PyTorch's users write, or (`as_parties`) the code with which parties take theirs.
    """
    machine, rows = model.settings().machine, np.arange(len(tables["bank"]))
    inputs = [Inputs.learned(table, rows) for table in tables.values()]
    encoded = np.hstack([i.encode(table) for i, table in zip(inputs, tables.values(), strict=True)])
    values = torch.from_numpy(encoded).to(machine.device)
    labels = torch.tensor(np.asarray(tables["bank"].labels)).to(machine.device)
    assert callable(model.bottom)
    assert callable(model.top)
    own, others = (model.bottom(each, EMBEDDING).to(machine.device) for each in inputs)
    joint = model.top(2 * EMBEDDING, 2).to(machine.device)
    networks = {"own": own, "others": others, "top": joint}
    assert isinstance(model.learning_rate, float)
    parameters = [parameter for network in networks.values() for parameter in network.parameters()]
    plain = torch.optim.Adam(parameters, model.learning_rate, fused=True)
    lean = Optimizers(networks, "bank", model.optimizer_settings(len(rows)))
    batches = Batches(rows, model.batch_size, shared)
    losses = []
    for step in range(model.epochs_on(len(rows)) * batches.per_epoch):
        batch = machine.index(batches.at(step)[1])
        x = values[batch]
        embeddings = torch.cat([own(x[:, :N_COLUMNS]), others(x[:, N_COLUMNS:])], dim=1)
        loss = nn.functional.cross_entropy(joint(embeddings), labels[batch])
        if as_parties:
            lean.forget_gradients()
            trace_back(loss)
            lean.step()
        else:
            plain.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            plain.step()
        losses.append(loss.detach())
    return torch.stack(losses).reshape(-1, batches.per_epoch).mean(dim=1).tolist()


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
    apart, together = first.results["bank"].history_[-1]["loss"], train_centrally(model, tables, shared)[-1]
    if not isclose(apart, together, rel_tol=1e-3):
        raise RuntimeError(f"Both ways of training should reach one loss, but they reach {apart} and {together}.")
    ways: dict[str, Callable[[], object]] = {
        "central": lambda: train_centrally(model, tables, shared),
        "same_step": lambda: train_centrally(model, tables, shared, as_parties=True),
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
        "digests_over_same_step": wall["digests"] / wall["same_step"],
        "digests_processor_ratio": processor["digests"] / processor["central"],
        "audit_processor_ratio": processor["audit"] / processor["central"],
        **{f"{name}_epoch_ms": 1e3 * seconds / epochs for name, seconds in wall.items()},
    }
