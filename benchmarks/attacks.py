"""Time and peak memory of every attack on labels that reads a split network's run, at 10,000 to a million rows.

One run of two epochs between a bank and a shop, three classes, embeddings of width 16. Each attack is made from its
saved view in a process of its own, whose peak memory is counted above what the process had before. Messages are read
one at a time: a run of three times as many epochs, all kept, needs as much memory.
"""

from __future__ import annotations

import multiprocessing
import tempfile
import warnings
from collections.abc import Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import psutil

from benchmarks.psi import forget_peak, peak
from colonnade import Roles, Table, simulate
from colonnade.attacks.base import Attack
from colonnade.attacks.view import View
from colonnade.catalogue import ATTACKS, MODELS
from colonnade.runtime.simulate import Run
from colonnade.secret import Secret
from colonnade.testing import attempt_on

TARGETS: Mapping[str, float] = {"epochs_memory_ratio": 1.2}
ROLES = Roles(label="bank", features=("shop",))
SIZES = {"10k": 10_000, "100k": 100_000, "1M": 1_000_000}
WIDTH, N_COLUMNS, N_CLASSES = 16, 6, 3
STREAMED = "gradient-nearest"


def measure(*, quick: bool) -> dict[str, float]:
    """Seconds and megabytes of each attack at each size, and how much more memory three times the epochs take."""
    figures: dict[str, float] = {}
    for size, n_rows in {"1k": 1_000}.items() if quick else SIZES.items():
        run = trained(n_rows, epochs=2)
        for name in (STREAMED, "co-training") if quick else ATTACKS:
            made = attacked(run, name)
            if made is not None:
                figures |= {f"{name}_{size}_s": made[0], f"{name}_{size}_mb": made[1]}
    n_rows = 5_000 if quick else 100_000
    few, many = (attacked(trained(n_rows, epochs=epochs), STREAMED) for epochs in (2, 6))
    assert few is not None
    assert many is not None
    return figures | {"epochs_memory_ratio": many[1] / few[1]}


def trained(n_rows: int, *, epochs: int) -> Run[Any]:
    """A run in which the classes depend on both parties' columns; every message is kept."""
    random = np.random.default_rng(0)
    values = random.standard_normal((n_rows, 2 * N_COLUMNS))
    labels = (values @ random.standard_normal((2 * N_COLUMNS, N_CLASSES))).argmax(axis=1)
    ids = {"id": np.arange(n_rows)}
    bank = {f"x{i}": values[:, i] for i in range(N_COLUMNS)} | {"label": labels}
    shop = {f"x{i}": values[:, i] for i in range(N_COLUMNS, 2 * N_COLUMNS)}
    tables = {"bank": Table.of(ids | bank, labels="label", owner="bank"), "shop": Table.of(ids | shop, owner="shop")}
    model: Any = MODELS["split-classifier"]
    model = model(embedding=WIDTH, batch_size=1024, epochs=epochs, n_iter_no_change=None)
    return simulate(model.fit, tables, roles=ROLES, keep="all")


def attacked(run: Run[Any], name: str) -> tuple[float, float] | None:
    """Seconds and megabytes of one attack in a process of its own; None where it is another kind or does not apply."""
    make = ATTACKS[name]
    if make.about is not Secret.LABELS or not issubclass(make, Attack):
        return None
    try:
        attempt = attempt_on(run, make())
    except AssertionError:
        return None
    with tempfile.TemporaryDirectory() as folder:
        attempt.view(run).save(Path(folder))
        here, there = multiprocessing.Pipe()
        process = multiprocessing.get_context("spawn").Process(target=_made, args=(there, folder, name))
        process.start()
        figures: tuple[float, float] = here.recv()
        process.join()
    return figures


def _made(line: Connection, folder: str, name: str) -> None:
    """Make an attack on a saved view, in another process."""
    warnings.simplefilter("ignore")
    attack: Any = ATTACKS[name]()
    model: Any = MODELS["split-classifier"]
    view = View.load(Path(folder), attack.needs, model.load)
    attack.why_not(view)
    forget_peak()
    before, begin = psutil.Process().memory_info().rss, perf_counter()
    attack.guess(view)
    line.send((perf_counter() - begin, max(peak() - before, 1) / 1e6))
