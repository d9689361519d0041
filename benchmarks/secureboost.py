"""A forest of 100 trees of depth 5 on 45,000 rows of 17 columns, between two processes over gRPC with TLS.

The bank has the labels and 8 columns, the shop 9; 32 bins each. Each party is a process of its own with one thread. The
clock runs from the moment at which both are there until the bank has its trees, hints included, and so does the
processor's. All messages are recorded as digests. SecretFlow publishes 136 seconds for a table of this size (Bank
Marketing) on 2 x 8 cores with early stopping. Beside it xgboost grows the same forest alone, on the same bins and on
the raw columns; areas under the ROC curve are those of 20,000 further rows. Then one tree for each way to see sums.
"""

from __future__ import annotations

import multiprocessing
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.queues import SimpleQueue
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.loopback import BANK, SHOP, free_port, issue_certificates
from colonnade import Party, Roles, Table, join, simulate
from colonnade.models import SecureBoostClassifier
from colonnade.runtime.protocol import public_plan
from colonnade.runtime.session import connect
from colonnade.wire.certs.credentials import Credentials
from colonnade.wire.grpc.link import Patience
from colonnade.wire.grpc.transport import GrpcTransport

TARGETS: Mapping[str, float] = {"secretflow_ratio": 1.0, "auc_off_bins": 1e-4, "auc_off_raw": 3e-3}
ROLES = Roles(label=BANK, features=(SHOP,))
SECRETFLOW_SECONDS = 136.0
ROWS, TEST_ROWS, TREES, BINS, DEPTH = 45_000, 20_000, 100, 32, 5
COLUMNS = {BANK: 8, SHOP: 9}
SPAWNING = multiprocessing.get_context("spawn")


@dataclass(frozen=True)
class Taken:
    """What a training took one party."""

    seconds: float
    processor_s: float
    megabytes: float


def make_tables(n_rows: int, seed: int) -> tuple[dict[str, Table], NDArray[np.float64], NDArray[np.int64]]:
    """Both parties' tables, all columns side by side, and the labels."""
    random = np.random.default_rng(seed)
    x = random.standard_normal((n_rows, sum(COLUMNS.values())))
    x[:, ::3] = np.round(x[:, ::3])
    score = x[:, 0] * x[:, 9] + np.sin(2 * x[:, 1]) + x[:, 10] - (x[:, 12] > 1) + random.standard_normal(n_rows)
    labels, tables, first = (score > 1.5).astype(np.int64), {}, 0
    for name, count in COLUMNS.items():
        data = {"id": np.arange(n_rows)} | {f"{name}{i}": x[:, first + i] for i in range(count)}
        data |= {"y": labels} if name == BANK else {}
        tables[name] = Table.of(data, labels="y" if name == BANK else None, owner=name)
        first += count
    return tables, x, labels


def model(n_trees: int, **changes: Any) -> SecureBoostClassifier:
    """The forest; what it tells is no matter here."""
    return SecureBoostClassifier(n_estimators=n_trees, max_depth=DEPTH, max_bin=BINS, leak_budget=None, **changes)


def take_part(name: str, folder: Path, port: int, n_rows: int, n_trees: int, taken: SimpleQueue[Any]) -> None:
    """One party's process: train, and say what that took."""
    # Kernels are compiled before the clock runs.
    simulate(model(1).fit, make_tables(200, 0)[0], roles=ROLES, keep="digests")
    estimator, tables = model(n_trees), make_tables(n_rows, 1)[0]
    plan = public_plan(estimator.fit, ROLES, 0)
    party = connect(
        plan,
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
        figures = perf_counter() - begun, process_time() - processor, size / 1e6
        estimator.save(folder / f"{name}.share")
        taken.put((name, figures))

    join(train, party)


def over_the_network(n_rows: int, n_trees: int) -> tuple[dict[str, Taken], dict[str, SecureBoostClassifier]]:
    """What a training takes both parties, and their shares."""
    with tempfile.TemporaryDirectory() as name:
        folder, port = Path(name), free_port()
        issue_certificates(folder)
        taken: SimpleQueue[Any] = SPAWNING.SimpleQueue()
        given = folder, port, n_rows, n_trees, taken
        parties = [SPAWNING.Process(target=take_part, args=(name, *given)) for name in COLUMNS]
        for party in parties:
            party.start()
        found = {name: Taken(*figures) for name, figures in (taken.get() for _ in parties)}
        for party in parties:
            party.join()
            if party.exitcode != 0:
                raise RuntimeError(f"A party's process should end well, but ended with {party.exitcode}.")
        shares = {name: SecureBoostClassifier.load(folder / f"{name}.share") for name in COLUMNS}
    return found, shares


def xgboost_auc(
    train: NDArray[Any], labels: NDArray[np.int64], test: NDArray[Any], truth: NDArray[np.int64], n_trees: int
) -> float:
    """The area under the ROC curve of xgboost's forest alone."""
    import xgboost
    from sklearn.metrics import roc_auc_score

    given = {"objective": "binary:logistic", "tree_method": "hist", "max_bin": 256, "max_depth": DEPTH, "nthread": 1}
    booster = xgboost.train(given, xgboost.DMatrix(train, label=labels), n_trees)
    return float(roc_auc_score(truth, booster.predict(xgboost.DMatrix(test))))


def one_tree(n_rows: int, **changes: Any) -> tuple[float, float]:
    """Processor seconds and megabytes of both parties for one tree after the first, in one process."""
    tables = make_tables(n_rows, 1)[0]
    seconds, sizes = [], []
    for n_trees in (1, 3):
        begun = process_time()
        run = simulate(model(n_trees, **changes).fit, tables, roles=ROLES, keep="digests")
        seconds.append(process_time() - begun)
        sizes.append(sum(entry.size for entry in run.transcripts[BANK].entries) / 1e6)
    return (seconds[1] - seconds[0]) / 2, (sizes[1] - sizes[0]) / 2


def measure(*, quick: bool) -> dict[str, float]:
    """Seconds and megabytes of a training, distances of areas under curves, and what one tree takes."""
    from sklearn.metrics import roc_auc_score

    n_rows, n_trees, n_test = (1000, 2, 1000) if quick else (ROWS, TREES, TEST_ROWS)
    taken, shares = over_the_network(n_rows, n_trees)
    tables, x, labels = make_tables(n_rows, 1)
    held_out, z, truth = make_tables(n_test, 2)
    predict = {name: share.predict_proba for name, share in shares.items()}
    found = simulate(predict, held_out, roles=ROLES, keep="digests").results[BANK]
    assert found is not None
    ours = float(roc_auc_score(truth, found[:, 1]))
    codes = [
        np.concatenate([shares[name].bins_.encode(each[name]).codes for name in COLUMNS], axis=1).astype(np.float32)
        for each in (tables, held_out)
    ]
    figures = {
        "secretflow_ratio": taken[BANK].seconds / SECRETFLOW_SECONDS,
        "auc_off_bins": abs(ours - xgboost_auc(codes[0], labels, codes[1], truth, n_trees)),
        "auc_off_raw": abs(ours - xgboost_auc(x, labels, z, truth, n_trees)),
        "auc": ours,
        "seconds": taken[BANK].seconds,
        "megabytes": taken[BANK].megabytes,
    }
    figures |= {f"{name}_processor_s": each.processor_s for name, each in taken.items()}
    for sums in ("exact", "noisy", "hidden"):
        # Kernels are compiled at their first use.
        one_tree(200, sums=sums)
        figures[f"{sums}_tree_s"], figures[f"{sums}_tree_mb"] = one_tree(n_rows, sums=sums)
    return figures
