"""Logistic regression with an arbiter, in one process: mini-batches of 4,096 rows, and an epoch of a wide table.

Everything is counted that a run does: encryption, messages, recording with digests, decryption, updates, for all
parties in turn. The first epoch, in which columns are prepared and code is compiled, is not counted. FATE 2.0 publishes
136 seconds for an epoch of 100,000 rows with 30 + 300 columns on 16 cores per party and a network of 1 Gbit/s; here
there is one core for all parties and no network, so its ratio says what the encryption costs and no more.
"""

from __future__ import annotations

from collections.abc import Mapping
from time import perf_counter

import numpy as np

from colonnade import LogisticRegression, Roles, Run, Table, simulate

TARGETS: Mapping[str, float] = {"us_per_row": 20.0, "fate_ratio": 1.0}
ROLES = Roles(label="bank", features=("shop",), arbiter="judge")
FATE_SECONDS = 136.0


def make_tables(n_rows: int, columns: Mapping[str, int]) -> dict[str, Table]:
    """Numbers at both parties, on all of which the bank's labels depend."""
    random = np.random.default_rng(0)
    tables, scores = {}, random.standard_normal(n_rows)
    for name, count in columns.items():
        values = random.standard_normal((n_rows, count))
        scores += values @ random.standard_normal(count) / np.sqrt(count)
        tables[name] = {"id": np.arange(n_rows)} | {f"{name}{i}": values[:, i] for i in range(count)}
    tables["bank"]["y"] = (scores > 0).astype(np.int64)
    return {name: Table.of(data, labels="y" if name == "bank" else None, owner=name) for name, data in tables.items()}


def train(tables: Mapping[str, Table], epochs: int) -> tuple[float, Run[LogisticRegression]]:
    """Seconds for so many epochs of batches of 4,096, or of all rows if they are fewer; and the run."""
    model = LogisticRegression(epochs=epochs, batch_size=min(4096, len(tables["bank"])), tolerance=0, alarm=None)
    start = perf_counter()
    run = simulate(model.fit, tables, roles=ROLES, keep="digests")
    return perf_counter() - start, run


def epoch(tables: Mapping[str, Table], epochs: int) -> tuple[float, float]:
    """Seconds and bytes of one epoch after the first."""
    first, short = train(tables, 1)
    all_of_them, long = train(tables, 1 + epochs)
    sizes = [
        sum(entry.size for transcript in run.transcripts.values() for entry in transcript.entries if entry.sent)
        for run in (short, long)
    ]
    return (all_of_them - first) / epochs, (sizes[1] - sizes[0]) / epochs


def measure(*, quick: bool) -> dict[str, float]:
    """Microseconds per row of a mini-batch, and seconds and bytes per epoch of the wide table."""
    n_rows = 4096 if quick else 100_000
    train(make_tables(4096, {"bank": 2, "shop": 2}), 1)
    narrow_s, narrow_bytes = epoch(make_tables(n_rows, {"bank": 10, "shop": 10}), 1 if quick else 3)
    wide_s, wide_bytes = epoch(make_tables(n_rows, {"bank": 30, "shop": 300}), 1)
    return {
        "us_per_row": 1e6 * narrow_s / n_rows,
        "fate_ratio": wide_s * (100_000 / n_rows) / FATE_SECONDS,
        "narrow_bytes_per_row": narrow_bytes / n_rows,
        "wide_epoch_s": wide_s,
        "wide_epoch_mb": wide_bytes / 1e6,
    }
