"""Whole protocols of 5 million rows with one party's table on a Ray cluster of two nodes, a worker of which is killed.

The shop's table lies in Parquet parts. All parties run in one process (`simulate`), which is the driver of the shop's
workers; its memory is therefore that of all parties together, and `..._peak_mb` says it for the shop's table in this
process and on workers alike. What is compared, to the byte:

    align        the pairs of rows that both parties find, with those of a plain join of the ids; half are common
    points       the points of a million ids under a fixed key, from workers, with those of every fifth chunk of 8,192
                 from one process
    one_shot     digests of all messages that the shop sends, with those of the same run in one process
    regression   all coefficients of an encrypted regression after two epochs, with those of the same run in one process

`differ` counts what was not the same, and `kills` the workers that were killed by SIGKILL while calls were under way,
as many as each run had `KILLS`. Each stage is written down in the folder `COLONNADE_SCALE` (by default a folder of the
system's temporary files) as soon as it ends, so that the same command goes on where an earlier one ended:

    python -m benchmarks scale_large
    python -m benchmarks.scale_large --rows 200000 --minutes 5
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from time import monotonic, perf_counter
from typing import Any

import numpy as np
import pyarrow as pa
from blake3 import blake3

from benchmarks.scale import COLUMNS, memory, points_of, written
from colonnade.align import Align, Limits
from colonnade.models import LogisticRegression, OneShotClassifier
from colonnade.roles import Roles
from colonnade.runtime.placed import placed_table
from colonnade.runtime.simulate import simulate
from colonnade.runtime.workers import Call, Crew, EngineName, ThisProcess
from colonnade.tables.table import Table

TARGETS: Mapping[str, float] = {"differ": 0, "not_killed": 0}
KILLS = (5, 200)
"""After which of its calls a worker is killed."""
STAGES = (
    ("regression", "process"),
    ("regression", "workers"),
    ("one_shot", "process"),
    ("one_shot", "workers"),
    ("points", "workers"),
    ("align", "workers"),
)
POINTS, COMPARED = 1_000_000, 5


def measure(*, quick: bool) -> dict[str, float]:
    """All stages that have not been run yet, each in a process of its own, and what all of them found."""
    if not quick:
        return all_stages(STAGES, 5_000_000, "ray", default_folder())
    with tempfile.TemporaryDirectory() as folder:
        return all_stages([each for each in STAGES if each[0] == "regression"], 20_000, "local", Path(folder))


def default_folder() -> Path:
    """Where stages are written down."""
    return Path(os.environ.get("COLONNADE_SCALE", Path(tempfile.gettempdir()) / "colonnade-scale"))


def all_stages(
    stages: Sequence[tuple[str, str]], n_rows: int, engine: str, folder: Path, minutes: float = 240
) -> dict[str, float]:
    """Run stages that have not been run yet, begin none after so many minutes, and compare."""
    begun, log = monotonic(), folder / f"stages-{engine}-{n_rows}.jsonl"
    folder.mkdir(parents=True, exist_ok=True)
    for stage, where in stages:
        known = _known(log)
        if (stage, where) not in known and monotonic() - begun < 60 * minutes:
            command = [sys.executable, "-m", "benchmarks.scale_large", "--stage", stage, "--where", where]
            given = ["--rows", str(n_rows), "--engine", engine, "--folder", str(folder)]
            done = subprocess.run([*command, *given], capture_output=True, text=True)
            if done.returncode:
                raise RuntimeError(f"{stage} {where} ended with {done.returncode}:\n{done.stderr[-4000:]}")
            with log.open("a") as file:
                file.write(done.stdout.splitlines()[-1] + "\n")
            print(done.stdout.splitlines()[-1], flush=True)
    return _compared(stages, _known(log), n_rows)


def _known(log: Path) -> dict[tuple[str, str], dict[str, Any]]:
    found = map(json.loads, log.read_text().splitlines()) if log.exists() else ()
    return {(each["stage"], each["where"]): each for each in found}


def _compared(
    stages: Sequence[tuple[str, str]], known: Mapping[tuple[str, str], Mapping[str, Any]], n_rows: int
) -> dict[str, float]:
    """The figures of all stages; a stage that is not there differs."""
    figures: dict[str, float] = {"rows": float(n_rows), "differ": 0, "kills": 0, "not_killed": 0}
    for stage, where in stages:
        each = known.get((stage, where), {"same": False, "kills": 0})
        if where == "workers":
            other = known.get((stage, "process"), {}).get("digest")
            figures["differ"] += not each.get("same", other is not None and each.get("digest") == other)
            figures["kills"] += each["kills"]
            figures["not_killed"] += not each["kills"]
        figures |= {f"{stage}_{where}_{name}": each[name] for name in ("s", "before_mb", "peak_mb") if name in each}
    return figures


class Killing(Crew):
    """A crew whose workers are killed, each right after it was given one of certain calls."""

    def __init__(self, engine: EngineName, n: int, address: str | None, at: Sequence[int]) -> None:
        super().__init__(engine, n, address)
        self._at, self._pids = at, dict[int, Any]()
        self.calls = self.kills = 0

    def _worker(self, slot: int) -> Any:
        worker = super()._worker(slot)
        if id(worker) not in self._pids:
            self._pids[id(worker)] = worker.submit(self._token, os.getpid, (), None, 0, None, ())
        return worker

    def _submitted(self, call: Call, worker: Any) -> Any:
        future = super()._submitted(call, worker)
        self.calls += 1
        if self.calls in self._at:
            os.kill(self._pids[id(worker)].result(), signal.SIGKILL)
            self.kills += 1
        return future


@contextmanager
def workers(engine: EngineName) -> Iterator[Killing]:
    """Two workers, each on a node of its own where the engine is Ray."""
    nodes, address = None, None
    if engine == "ray":
        from ray.cluster_utils import Cluster

        nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
        nodes.add_node(num_cpus=1)
        address = nodes.address
    crew = Killing(engine, 2, address, KILLS)
    try:
        yield crew
    finally:
        crew.end()
        if nodes is not None:
            nodes.shutdown()  # type: ignore[no-untyped-call]


def run_stage(stage: str, n_rows: int, crew: Killing | None, folder: Path) -> dict[str, Any]:
    """One stage with the shop's table on workers, or in this process where there are none."""
    path = folder / f"shop-{n_rows}"
    if not path.exists():
        written(path.with_suffix(".part"), n_rows, shuffled=True).rename(path)
    columns = [f"x{i}" for i in range(1, COLUMNS)]
    if crew is None:
        shop = Table.read(path, ids="id", columns=columns, owner="shop")
    else:
        shop = placed_table(path, crew, ids="id", columns=columns, owner="shop")
    bank = Table.read(path, ids="id", labels="y", columns=["x0"], owner="bank")
    begun, before = perf_counter(), memory("VmRSS:")
    found = {"align": _aligned, "points": _points, "one_shot": _one_shot, "regression": _regression}[stage](bank, shop)
    figures = {"s": perf_counter() - begun, "peak_mb": (memory("VmHWM:") - before) / 1e6, "before_mb": before / 1e6}
    killed = {} if crew is None else {"calls": crew.calls, "kills": crew.kills}
    return {"stage": stage, "where": "process" if crew is None else "workers", **figures, **killed, **found}


def _aligned(bank: Table, shop: Table) -> dict[str, Any]:
    """Align tables half of whose ids are common, and compare the pairs of rows with those of a plain join."""
    n = len(bank)
    other = np.asarray(bank.ids)[::-1] + n // 2
    bank = Table.of({"id": other, "y": np.zeros(n, np.int64)}, labels="y", owner="bank")
    run = simulate(
        Align(limits=Limits(fewest=1)),
        {"bank": bank, "shop": shop},
        roles=Roles(label="bank", features=("shop",)),
        seed=1,
        keep="digests",
    )
    rows = {name: np.asarray(run.results[name].rows) for name in ("bank", "shop")}
    own = np.asarray(shop.ids)
    # The common order is drawn anew in each run; a row of the bank says which pair it is.
    order = np.argsort(rows["bank"])
    _, expected_bank, expected_shop = np.intersect1d(other, own, assume_unique=True, return_indices=True)
    wanted = np.argsort(expected_bank)
    pairs = np.stack([rows["bank"][order], rows["shop"][order]])
    expected = np.stack([expected_bank[wanted], expected_shop[wanted]])
    return {"common": len(order), "same": len(order) == n - n // 2 and pairs.tobytes() == expected.tobytes()}


def _points(bank: Table, shop: Table) -> dict[str, Any]:
    """Points of ids from workers, and of some chunks of these ids from one process."""
    key, salt = (blake3(each).digest() for each in (b"key", b"salt"))
    shop = shop.take(np.arange(min(len(shop), POINTS)))
    assert shop.placed is not None
    near = Table.of(pa.table({"id": shop.ids}), owner="shop")
    alone = points_of(near, ThisProcess(), key, salt, every=COMPARED)
    found, n_compared, same = blake3(), 0, True
    for number, points in enumerate(points_of(shop, shop.placed.placer.workers, key, salt)):
        found.update(points.tobytes())
        if number % COMPARED == 0:
            same &= points.tobytes() == next(alone).tobytes()
            n_compared += len(points)
    return {"same": same, "compared": n_compared, "digest": found.hexdigest()}


def _one_shot(bank: Table, shop: Table) -> dict[str, Any]:
    model = OneShotClassifier(leak_budget={"shop": 1.0}, components=4, epochs=1, batch_size=65_536)
    roles = Roles(label="bank", features=("shop",))
    run = simulate(model.fit, {"bank": bank, "shop": shop}, roles=roles, seed=1, keep="digests")
    sent = [entry.digest for entry in run.transcripts["shop"].entries if entry.sent]
    return {"messages": len(sent), "digest": blake3("".join(sent).encode()).hexdigest()}


def _regression(bank: Table, shop: Table) -> dict[str, Any]:
    model = LogisticRegression(max_iter=2, tol=0, batch_size=2**18)
    roles = Roles(label="bank", features=("shop",), arbiter="keeper")
    run = simulate(model.fit, {"bank": bank, "shop": shop}, roles=roles, seed=1, keep="digests")
    learned = b"".join(run.results[name].coef_.tobytes() for name in ("bank", "shop"))
    return {"coefficients": len(learned) // 8, "digest": blake3(learned).hexdigest()}


def main() -> None:
    """Run one stage, or all that have not been run."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale_large")
    parser.add_argument("--stage", choices=sorted({stage for stage, _ in STAGES}), help="one stage; all if none")
    parser.add_argument("--where", choices=["process", "workers"], default="workers")
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--engine", choices=["local", "ray"], default="ray")
    parser.add_argument("--folder", type=Path, default=default_folder())
    parser.add_argument("--minutes", type=float, default=240, help="begin no stage after so many minutes")
    options = parser.parse_args()
    if options.stage is None:
        print(json.dumps(all_stages(STAGES, options.rows, options.engine, options.folder, options.minutes)))
        return
    options.folder.mkdir(parents=True, exist_ok=True)
    with nullcontext() if options.where == "process" else workers(options.engine) as crew:
        found = run_stage(options.stage, options.rows, crew, options.folder)
    print(json.dumps(found))


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
