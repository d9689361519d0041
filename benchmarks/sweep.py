"""A sweep over 200 short trials on two cores: how busy they are, and what a trial costs beyond itself.

A trial computes for a tenth of a second of processor time. `idle_share` is the part of two cores' time from the first
line of the sweep to its table in which no trial computes, the start and the end of workers or of a cluster included.
`overhead_ms` is the same time per trial, in milliseconds of one core, less what the worker's clock says of the trial.
`first_ms` is how long the sweep takes before its first trial begins. `local_cpu_ms` is the processor time of the sweep
and its workers beyond what trials compute, per trial: it says something on a busy machine too.
"""

from __future__ import annotations

import resource
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter, process_time, time
from typing import Any

import numpy as np

from colonnade.experiment.sweep import Journal, Trial, sweep
from colonnade.plans.engine import NAMES, EngineName, PlannedEngine

TARGETS: Mapping[str, float] = {"local_idle_share": 0.15, "local_overhead_ms": 50}
LEAST: Mapping[str, float] = {"local_idle_share": 0.0, "local_overhead_ms": 0.0}
"""Two workers compute on two cores at most, and no trial takes longer than the sweep."""
CORES = 2
TRIALS = 200
SECONDS = 0.1


def work(trial: Trial) -> dict[str, Any]:
    """Compute for as long as the trial says."""
    begin, started = process_time(), time()
    matrix = np.random.default_rng(trial.seed).normal(size=(60, 60))
    while process_time() - begin < trial.configuration["seconds"]:
        np.linalg.svd(matrix)
    return {"computed": process_time() - begin, "began": started}


def measure(*, quick: bool) -> dict[str, float]:
    """Idle share and overhead on every engine, each with two workers on this machine."""
    figures: dict[str, float] = {}
    for name in NAMES:
        figures |= {f"{name}_{key}": value for key, value in _measure(name, 4 if quick else TRIALS).items()}
    return figures


def _measure(name: EngineName, n: int) -> dict[str, float]:
    trials = [Trial({"seconds": SECONDS}, seed=seed) for seed in range(n)]
    with TemporaryDirectory() as folder, Journal(Path(folder) / "journal.sqlite") as journal:
        begin, began, used = perf_counter(), time(), _processor_seconds()
        executor = PlannedEngine(name, jobs=CORES).build()
        table = sweep(work, trials, journal=journal, executor=executor, progress=False)
        spent, used = CORES * (perf_counter() - begin), _processor_seconds() - used
    assert set(table["trial.state"].to_pylist()) == {"done"}
    computed = sum(table["computed"].to_pylist())
    # Processes of a cluster are not below this one.
    beyond = {"cpu_ms": 1000 * (used - computed) / n} if name == "local" else {}
    return beyond | {
        "idle_share": 1 - computed / spent,
        "overhead_ms": 1000 * (spent - sum(table["trial.seconds"].to_pylist())) / n,
        "first_ms": 1000 * (min(table["began"].to_pylist()) - began),
    }


def _processor_seconds() -> float:
    """What this process and those of its workers that have ended have used."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return process_time() + ended.ru_utime + ended.ru_stime
