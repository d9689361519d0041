"""What tests of executors let workers do, and how tests watch them. Workers of clusters import it by its name."""

import hashlib
import json
import os
import random
import signal
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from colonnade.experiment.sweep import Journal, Trial, sweep
from colonnade.roles import Roles
from colonnade.runtime.executor import Executor

BANK_AND_SHOP = Roles(label="bank", features=("shop",))


def noted(folder: Path, task: Any) -> int:
    """Leave a mark for one call and return how many there are now."""
    (folder / f"{task}-{time.time_ns()}-{os.getpid()}").touch()
    return n_calls(folder, task)


def n_calls(folder: Path, task: Any) -> int:
    return len(list(folder.glob(f"{task}-*")))


def pids(folder: Path, task: Any = "*") -> set[int]:
    """The processes that left marks."""
    return {int(path.name.split("-")[-1]) for path in folder.glob(f"{task}-*-*")}


def is_running(pid: int) -> bool:
    status = Path(f"/proc/{pid}/stat")
    return status.exists() and status.read_text().rpartition(")")[2].split()[0] != "Z"


def wait_until(condition: Any, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "what the test waits for never came"
        time.sleep(0.02)


def square(n: int) -> int:
    return n * n


def die_or_square(folder: Path, deaths: int, n: int) -> int:
    if n == 1 and noted(folder, n) <= deaths:
        os.kill(os.getpid(), signal.SIGKILL)
    return n * n


def refuse(folder: Path, n: int) -> None:
    noted(folder, n)
    raise ValueError(f"{n} was refused")


def leave(n: int) -> None:
    sys.exit(n)


def own_pid(_: object) -> int:
    return os.getpid()


def lock_or_none(n: int) -> Any:
    return threading.Lock() if n == 0 else None


def blas_threads(_: object) -> set[int]:
    from threadpoolctl import threadpool_info

    return {library["num_threads"] for library in threadpool_info()}


def sleep_after_the_first(folder: Path, n: int) -> None:
    noted(folder, n)
    time.sleep(600 if n else 0)


def grow(_: object) -> int:
    vars(sys).setdefault("kept_by_the_test", []).append(b"x" * 200_000_000)
    time.sleep(1.1)
    return os.getpid()


def held(folder: Path, n: int) -> Path:
    """The file as long as which is there the trial of a number does not end."""
    return folder / f"held-{n}"


def drawn(folder: Path, trial: Trial) -> dict[str, Any]:
    """A short trial whose result shows its generators and its threads."""
    noted(folder, trial.configuration["n"])
    wait_until(lambda: not held(folder, trial.configuration["n"]).exists())
    time.sleep(trial.configuration.get("seconds", 0))
    matrix = np.random.normal(size=(200, 80))
    return {"python": random.random(), "numpy": float(np.linalg.svd(matrix)[0].sum())}


TRIALS = [Trial({"n": n, "seconds": 0.05}, seed=n) for n in range(10)]


def sweep_in(folder: Path, executor: Executor) -> str:
    """Sweep over the trials with a journal in a folder; returns a hash of all that does not depend on the clock."""
    with Journal(folder / "journal.sqlite") as journal:
        table = sweep(partial(drawn, folder), TRIALS, journal=journal, executor=executor, progress=False)
    rows = table.drop_columns(["trial.started", "trial.seconds", "trial.attempts"]).to_pylist()
    return hashlib.sha256(json.dumps(rows).encode()).hexdigest()
