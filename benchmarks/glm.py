"""Logistic regression with and without an arbiter, in one process: batches of 4,096 rows, and a wide table.

Everything is counted that a run does: encryption, messages, recording with digests, decryption, updates, for all
parties in turn. The first epoch, in which columns are prepared and code is compiled, is not counted. For an epoch of
100,000 rows with 30 + 300 columns FATE 2.0 publishes 136 seconds with a coordinator and 294 without, on 16 cores per
party and a network of 1 Gbit/s; here there is one process for all parties and no network, so that the ratios say what
the encryption costs and no more.
"""

from __future__ import annotations

from collections.abc import Mapping
from time import perf_counter

import numpy as np

from colonnade import LogisticRegression, Roles, Run, Table, simulate

TARGETS: Mapping[str, float] = {"us_per_row": 20.0, "fate_ratio": 1.0, "shares_fate_ratio": 1.0}
JUDGED, ALONE = Roles(label="bank", features=("shop",), arbiter="judge"), Roles(label="bank", features=("shop",))
FATE_SECONDS, FATE_SHARES_SECONDS = 136.0, 294.0


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


def train(tables: Mapping[str, Table], epochs: int, roles: Roles) -> tuple[float, Run[LogisticRegression]]:
    """Seconds for so many epochs of batches of 4,096, or of all rows if they are fewer; and the run."""
    model = LogisticRegression(epochs=epochs, batch_size=min(4096, len(tables["bank"])), tolerance=0, alarm=None)
    start = perf_counter()
    run = simulate(model.fit, tables, roles=roles, keep="digests")
    return perf_counter() - start, run


def epoch(tables: Mapping[str, Table], epochs: int, roles: Roles) -> tuple[float, float]:
    """Seconds and bytes of one epoch after the first."""
    first, short = train(tables, 1, roles)
    all_of_them, long = train(tables, 1 + epochs, roles)
    sizes = [
        sum(entry.size for transcript in run.transcripts.values() for entry in transcript.entries if entry.sent)
        for run in (short, long)
    ]
    return (all_of_them - first) / epochs, (sizes[1] - sizes[0]) / epochs


def measure(*, quick: bool) -> dict[str, float]:
    """Microseconds per row of a mini-batch, and seconds and bytes per epoch of the wide table."""
    n_rows = 4096 if quick else 100_000
    tiny = make_tables(4096, {"bank": 2, "shop": 2})
    for roles in (JUDGED, ALONE):
        train(tiny, 1, roles)
    narrow_s, narrow_bytes = epoch(make_tables(n_rows, {"bank": 10, "shop": 10}), 1 if quick else 3, JUDGED)
    wide = make_tables(n_rows, {"bank": 30, "shop": 300})
    wide_s, wide_bytes = epoch(wide, 1, JUDGED)
    shares_s, shares_bytes = epoch(wide, 1, ALONE)
    return {
        "us_per_row": 1e6 * narrow_s / n_rows,
        "fate_ratio": wide_s * (100_000 / n_rows) / FATE_SECONDS,
        "shares_fate_ratio": shares_s * (100_000 / n_rows) / FATE_SHARES_SECONDS,
        "narrow_bytes_per_row": narrow_bytes / n_rows,
        "wide_epoch_s": wide_s,
        "wide_epoch_mb": wide_bytes / 1e6,
        "shares_epoch_s": shares_s,
        "shares_epoch_mb": shares_bytes / 1e6,
    }
