"""The default audit of the demonstration's run, null runs included: seconds on two cores, and where they go.

`audit_s` is what a user waits, `cpu_s` what this process and its workers computed meanwhile. A share is an attack's
part of the processor time of making every attack once, by all its attackers; training is that of one null run.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from time import perf_counter, process_time

from colonnade.auditing.engine import make
from colonnade.auditing.settings import Simulated
from colonnade.experiment.demo import planned
from colonnade.experiment.run_folder import RunFolder
from colonnade.runtime.executor import Local

TARGETS: Mapping[str, float] = {"audit_s": 90}
CORES = 2


def measure(*, quick: bool) -> dict[str, float]:
    """Seconds of the whole audit, and the share of each attack."""
    with tempfile.TemporaryDirectory() as out:
        folder = RunFolder.create(planned(quick=quick), Path(out))
        folder.simulate()
        before, begin = _computed(), perf_counter()
        folder.audit(
            replace(folder.plan.audit, attacks=("norm-score", "direct-label")) if quick else None, executor=Local(CORES)
        )
        seconds = {"audit_s": perf_counter() - begin, "cpu_s": _computed() - before}
        return seconds | _shares(folder)


def _computed() -> float:
    """The processor seconds of this process and of those it has ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def _shares(folder: RunFolder) -> dict[str, float]:
    run = folder.load()
    setting, spent = Simulated(run), {}
    begin = process_time()
    run.simulation.run()
    spent["training"] = process_time() - begin
    for attack in folder.plan.audit.build(folder.plan.defences):
        begin = process_time()
        if make(setting, [attack])[0]:
            spent[type(attack).__name__] = process_time() - begin
    total = sum(spent.values())
    return {f"{name}_share": each / total for name, each in sorted(spent.items(), key=lambda item: -item[1])}
