"""Boosted trees: the kernel beside xgboost and its peers, a forest between two processes under TLS, and its growth.

The kernel (`histograms`): 100,000 rows of 20 columns in 32 bins, trees of depth 5; both parties in this process, one
thread, processor time, beside xgboost (hist, one thread) and schemes that multiply ciphertexts (`bucket_sums`).

The forest: 100 trees of depth 5 on Bank Marketing (45,211 rows, 16 columns and the label), half of the columns at each
party, 32 bins; without $COLONNADE_DATA generated rows of that size. Each party is a process of its own with one thread,
and the two talk gRPC under TLS. The clock runs from the moment at which both are there until the bank has its trees,
hints included, and so does the processor's. All messages are recorded as digests. SecretFlow publishes 136 seconds for
this table on 2 x 8 cores with early stopping.

Then one tree for each way to see sums on the same table, and one tree on a million rows of 50 columns, all of them the
shop's, both parties in one process: seconds and memory. `python -m benchmarks.secureboost trees-growth.png` draws how
the kernel grows over rows, columns, bins and depth; `measure` prints the same figures.
"""

from __future__ import annotations

import multiprocessing
import resource
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.queues import SimpleQueue
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import numpy as np

from benchmarks.bucket_sums import HEU_PYTHON, peers
from benchmarks.histograms import TREES_AHEAD, Size, encrypted_forest, hidden_forest
from benchmarks.loopback import BANK, SHOP, free_port, issue_certificates
from colonnade import Party, Roles, Table, join, simulate
from colonnade.data import available, load
from colonnade.models import SecureBoostClassifier
from colonnade.runtime.protocol import public_plan
from colonnade.runtime.session import connect
from colonnade.wire.certs.credentials import Credentials
from colonnade.wire.grpc.link import Patience
from colonnade.wire.grpc.transport import GrpcTransport

TARGETS: Mapping[str, float] = {
    "all_ratio": 20.0,
    "slower_party_ratio": 10.0,
    "online_ratio": 8.0,
    "mb_per_tree": 26.0,
    "hidden_cpu_s": 2.5,
    "hidden_mb": 200.0,
    "paillier_2048_ratio": 1 / 500,
    "secretflow_ratio": 1.0,
} | ({"ou_2048_ratio": 1 / 100, "ou_3072_ratio": 1 / 200} if HEU_PYTHON else {})
ROLES = Roles(label=BANK, features=(SHOP,))
SECRETFLOW_SECONDS = 136.0
ROWS, TREES, BINS, DEPTH = 45_211, 100, 32, 5
COLUMNS = {BANK: 8, SHOP: 8}
LARGE_ROWS, LARGE_COLUMNS = 1_000_000, 50
VARIED: Mapping[str, tuple[int, ...]] = {
    "rows": (25_000, 50_000, 100_000, 200_000, 400_000),
    "columns": (5, 10, 20, 40, 80),
    "bins": (8, 16, 32, 64, 128),
    "depth": (3, 4, 5, 6, 7),
}
SPAWNING = multiprocessing.get_context("spawn")


@dataclass(frozen=True)
class Taken:
    """What a training took one party."""

    seconds: float
    processor_s: float
    megabytes: float


def has_real_table() -> bool:
    """Whether Bank Marketing is there."""
    return any(info.name == "bank-marketing" and info.present for info in available())


def make_tables(n_rows: int, columns: Mapping[str, int] = COLUMNS) -> dict[str, Table]:
    """Generated tables of both parties."""
    random = np.random.default_rng(1)
    x = random.standard_normal((n_rows, sum(columns.values())), np.float32)
    x[:, ::3] = np.round(x[:, ::3])
    score = x[:, 0] * x[:, 9] + np.sin(2 * x[:, 1]) + x[:, 10] - (x[:, 12] > 1) + random.standard_normal(n_rows)
    tables, first = {}, 0
    for name, count in columns.items():
        data = {"id": np.arange(n_rows)} | {f"{name}{i}": x[:, first + i] for i in range(count)}
        data |= {"y": (score > 1.5).astype(np.int64)} if name == BANK else {}
        tables[name] = Table.of(data, labels="y" if name == BANK else None, owner=name)
        first += count
    return tables


def tables_of(n_rows: int, *, real: bool) -> dict[str, Table]:
    """Bank Marketing, or generated rows."""
    return load("bank-marketing", rows=n_rows).split() if real else make_tables(n_rows)


def model(n_trees: int, **changes: Any) -> SecureBoostClassifier:
    """The forest; what it tells is no matter here."""
    return SecureBoostClassifier(n_estimators=n_trees, max_depth=DEPTH, max_bin=BINS, leak_budget=None, **changes)


def take_part(
    name: str, folder: Path, port: int, n_rows: int, n_trees: int, real: bool, taken: SimpleQueue[Any]
) -> None:
    """One party's process: train, and say what that took."""
    # Kernels are compiled before the clock runs.
    simulate(model(1).fit, make_tables(200), roles=ROLES, keep="digests")
    estimator, tables = model(n_trees), tables_of(n_rows, real=real)
    party = connect(
        public_plan(estimator.fit, ROLES, 0),
        name,
        tables[name],
        transport=GrpcTransport(
            {BANK: f"127.0.0.1:{port}", SHOP: None},
            credentials=Credentials.read(folder, name),
            patience=Patience(start=300, rejoin=300, message=300),
        ),
        directory=folder / name,
        keep="digests",
        checkpoint_every=10**9,
    )

    def train(party: Party) -> None:
        begun, processor = perf_counter(), process_time()
        estimator.fit(party)
        size = sum(entry.size for entry in party.recording.transcript().entries)
        taken.put((name, (perf_counter() - begun, process_time() - processor, size / 1e6)))

    join(train, party)


def over_the_network(n_rows: int, n_trees: int, *, real: bool) -> dict[str, Taken]:
    """What a training takes both parties."""
    with tempfile.TemporaryDirectory() as name:
        folder, port = Path(name), free_port()
        issue_certificates(folder)
        given = folder, port, n_rows, n_trees, real
        found = in_processes([partial(take_part, name, *given) for name in COLUMNS])
    return {name: Taken(*figures) for name, figures in found}


def in_processes(acts: list[Callable[[SimpleQueue[Any]], None]]) -> list[Any]:
    """What each act puts into a queue, each in a process of its own."""
    taken: SimpleQueue[Any] = SPAWNING.SimpleQueue()
    processes = [SPAWNING.Process(target=act, args=(taken,)) for act in acts]
    for process in processes:
        process.start()
    found = [taken.get() for _ in processes]
    for process in processes:
        process.join()
        if process.exitcode != 0:
            raise RuntimeError(f"A party's process should end well, but ended with {process.exitcode}.")
    return found


def one_tree(tables: Mapping[str, Table], **changes: Any) -> tuple[float, float]:
    """Processor seconds and megabytes of both parties for one tree after the first, in one process."""
    seconds, sizes = [], []
    for n_trees in (1, 3):
        begun = process_time()
        run = simulate(model(n_trees, **changes).fit, tables, roles=ROLES, keep="digests")
        seconds.append(process_time() - begun)
        sizes.append(sum(entry.size for entry in run.transcripts[BANK].entries) / 1e6)
    return (seconds[1] - seconds[0]) / 2, (sizes[1] - sizes[0]) / 2


def large_tree(n_rows: int, n_columns: int, taken: SimpleQueue[Any]) -> None:
    """Processor seconds, megabytes on the line and the most memory of one tree and all that comes before it."""
    tables = make_tables(n_rows, {BANK: 0, SHOP: n_columns})
    begun = process_time()
    run = simulate(model(1).fit, tables, roles=ROLES, keep="digests")
    seconds = process_time() - begun
    size = sum(entry.size for entry in run.transcripts[BANK].entries) / 1e6
    taken.put((seconds, size, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024))


def growth(*, quick: bool) -> list[tuple[str, int, dict[str, float]]]:
    """What is varied, its value, and the kernel's figures; all else as in the published setting."""
    usual = Size(2000, 3, 8, 3) if quick else Size()
    varied = {name: (value, 2 * value) for name, value in vars(usual).items()} if quick else VARIED
    return [
        (name, value, encrypted_forest(replace(usual, **{name: value}), 1 if quick else 4, 2 if quick else 20))
        for name, values in varied.items()
        for value in values
    ]


def plot_growth(found: list[tuple[str, int, dict[str, float]]], path: str) -> None:
    """Draw how processor time and bytes of a tree grow."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 3), layout="constrained")
    axes = figure.subplots(1, len(VARIED), sharey=True)
    lines = {
        "all_ms": ("both parties, ms", "o-"),
        "xgboost_ms": ("xgboost, ms", "s--"),
        "mb_per_tree": ("megabytes", "^:"),
    }
    for ax, name in zip(axes, VARIED, strict=True):
        chosen = [(value, figures) for varied, value, figures in found if varied == name]
        for key, (words, style) in lines.items():
            ax.semilogy([figures[key] for _, figures in chosen], style, label=words if ax is axes[0] else None)
        # Each value is twice the one before, or one more.
        ax.set_xticks(range(len(chosen)), [f"{value // 1000}k" if value >= 1000 else str(value) for value, _ in chosen])
        ax.set_xlabel(name)
    axes[0].set_ylabel("for one tree")
    figure.legend(loc="outside upper center", ncols=len(lines), frameon=False)
    figure.savefig(path, dpi=120)


def measure(*, quick: bool) -> dict[str, float]:
    """Ratios of the kernel, seconds and megabytes of a training, what one tree takes; growth is printed."""
    size, n_trees = (Size(5000, 3), 1) if quick else (Size(), 2 * TREES_AHEAD)
    kernel = encrypted_forest(size, n_trees, 2 if quick else 20) | hidden_forest(size, 1 if quick else 4)
    others = peers(size, quick=quick)
    for name, value, found in growth(quick=quick):
        said = f"{found['all_ms']:.1f} ms, xgboost {found['xgboost_ms']:.1f} ms, {found['mb_per_tree']:.1f} MB"
        print(f"    {name} {value}: {said}", flush=True)
    real = has_real_table()
    n_rows, n_rounds = (1000, 2) if quick else (ROWS, TREES)
    taken = over_the_network(n_rows, n_rounds, real=real)
    figures = {
        **kernel,
        **{f"{name[:-2]}_ratio": kernel["all_ms"] / 1e3 / seconds for name, seconds in others.items()},
        **others,
        "secretflow_ratio": taken[BANK].seconds / SECRETFLOW_SECONDS,
        "network_is_real_data": float(real),
        "network_s": taken[BANK].seconds,
        "network_mb": taken[BANK].megabytes,
        **{f"network_{name}_processor_s": each.processor_s for name, each in taken.items()},
    }
    tables = tables_of(n_rows, real=real)
    for sums in ("exact", "noisy", "hidden"):
        # Kernels are compiled at their first use.
        one_tree(make_tables(200), sums=sums)
        figures[f"{sums}_tree_s"], figures[f"{sums}_tree_mb"] = one_tree(tables, sums=sums)
    large = (2000, 13) if quick else (LARGE_ROWS, LARGE_COLUMNS)
    (found_large,) = in_processes([partial(large_tree, *large)])
    return figures | dict(zip(("large_cpu_s", "large_mb", "large_peak_mb"), found_large, strict=True))


if __name__ == "__main__":
    plot_growth(growth(quick=False), sys.argv[1])
