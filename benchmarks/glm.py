"""Logistic regression with and without an arbiter, in one process: batches of 4,096 rows, all rows, and a wide table.

Everything is counted that a run does: encryption, messages, recording with digests, decryption, updates, for all
parties in turn. The first epoch, in which columns are prepared and code is compiled, is not counted. For an epoch of
100,000 rows with 30 + 300 columns FATE 2.0 publishes 136 seconds with a coordinator and 294 without, on 16 cores per
party and a network of 1 Gbit/s; here there is one process for all parties and no network, so that the ratios say what
the encryption costs and no more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from time import perf_counter, process_time

import numpy as np

from colonnade import Party, Roles, Table, simulate
from colonnade.models import LogisticRegression

TARGETS: Mapping[str, float] = {
    "us_per_row": 20.0,
    "fate_ratio": 1.0,
    "shares_fate_ratio": 1.0,
    "default_processor_s": 10.0,
    "default_epoch_mb": 500.0,
}
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


@dataclass
class Clock:
    """When the steps of a run ended, by the wall clock and by the processor."""

    wall: list[float] = field(default_factory=list)
    processor: list[float] = field(default_factory=list)

    def __call__(self, party: str, loop: str, done: int, total: int, figures: Mapping[str, float]) -> None:
        """Note the end of a step."""
        self.wall.append(perf_counter())
        self.processor.append(process_time())

    def after(self, n_steps: int) -> tuple[float, float]:
        """Seconds that passed after so many steps, and seconds of the processor."""
        return self.wall[-1] - self.wall[n_steps - 1], self.processor[-1] - self.processor[n_steps - 1]


def epoch(
    tables: Mapping[str, Table], epochs: int, roles: Roles, batch_size: int | None = 4096
) -> tuple[float, float, float]:
    """Seconds, seconds of the processor, and bytes of one epoch after the first; None takes all rows at once."""
    n_rows, clock = len(tables["bank"]), Clock()
    size = n_rows if batch_size is None else min(batch_size, n_rows)
    # 300 columns in batches of 4,096 rows are what FATE publishes; by default so few rows per column are refused.
    model = LogisticRegression(max_iter=1 + epochs, batch_size=size, tol=0, alarm=None, rows_per_column=10)

    def fit(own: LogisticRegression, party: Party) -> LogisticRegression:
        return own.fit(replace(party, watcher=clock if party.holds_labels else None))

    protocols = {name: partial(fit, model.clone()) for name in roles.parties}
    run = simulate(protocols, tables, roles=roles, keep="digests")
    wall, processor = clock.after(max(1, n_rows // size))
    entries = [entry for transcript in run.transcripts.values() for entry in transcript.entries]
    sent = sum(entry.size for entry in entries if entry.sent and entry.epoch == epochs)
    return wall / epochs, processor / epochs, float(sent)


def measure(*, quick: bool) -> dict[str, float]:
    """Microseconds per row of a mini-batch, and seconds and bytes per epoch of the wide table."""
    n_rows = 4096 if quick else 100_000
    times = 100_000 / n_rows
    narrow_s, narrow_processor_s, narrow_bytes = epoch(make_tables(n_rows, {"bank": 10, "shop": 10}), 3, JUDGED)
    wide = make_tables(n_rows, {"bank": 30, "shop": 300})
    wide_s, wide_processor_s, wide_bytes = epoch(wide, 1, JUDGED)
    shares_s, shares_processor_s, shares_bytes = epoch(wide, 1, ALONE)
    whole = {roles: epoch(wide, 1, roles, None)[1:] for roles in (JUDGED, ALONE)}
    return {
        "us_per_row": 1e6 * narrow_s / n_rows,
        "fate_ratio": wide_s * times / FATE_SECONDS,
        "shares_fate_ratio": shares_s * times / FATE_SHARES_SECONDS,
        "default_processor_s": times * max(processor for processor, _ in whole.values()),
        "default_epoch_mb": times * max(sent for _, sent in whole.values()) / 1e6,
        "default_arbiter_mb": times * whole[JUDGED][1] / 1e6,
        "processor_us_per_row": 1e6 * narrow_processor_s / n_rows,
        "bytes_per_row": narrow_bytes / n_rows,
        "wide_epoch_s": wide_s * times,
        "wide_processor_s": wide_processor_s * times,
        "wide_epoch_mb": wide_bytes * times / 1e6,
        "shares_epoch_s": shares_s * times,
        "shares_processor_s": shares_processor_s * times,
        "shares_epoch_mb": shares_bytes * times / 1e6,
    }
