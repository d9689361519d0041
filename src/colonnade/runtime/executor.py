"""Executor: calls a function on many tasks, here or in worker processes, and survives workers that die."""

from __future__ import annotations

import os
import signal
import threading
import time
import traceback
import warnings
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

from colonnade.errors import PlanError

T = TypeVar("T")

ATTEMPTS = 2

_THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "NUMBA_NUM_THREADS",
)


@dataclass(frozen=True)
class Outcome:
    """What became of one task: its value, or the traceback of its last attempt."""

    value: Any = None
    traceback: str | None = None
    seconds: float = 0.0
    attempts: int = 1

    @property
    def failed(self) -> bool:
        """Whether there is no value because the last attempt raised or lost its worker."""
        return self.traceback is not None


class Executor(ABC):
    """Calls a function on many tasks.

    >>> executor: Executor = Serial()
    >>> dict(executor.map_unordered(abs, [-1]))[0].value
    1
    """

    @abstractmethod
    def map_unordered(
        self, function: Callable[[T], Any], tasks: Iterable[T]
    ) -> Generator[tuple[int, Outcome], None, None]:
        """Yield the position and outcome of each task when it ends.

        A task is taken from `tasks` only when it can start at once. A task that raises or kills its worker is tried
        a second time, and never ends the others. Closing the generator stops the tasks that still run.
        """


class Serial(Executor):
    """Runs tasks one after the other in this process, with this process's threads: to debug, or for a few short tasks.

    >>> [(index, outcome.value) for index, outcome in Serial().map_unordered(abs, [-1, 2])]
    [(0, 1), (1, 2)]
    """

    def map_unordered(
        self, function: Callable[[T], Any], tasks: Iterable[T]
    ) -> Generator[tuple[int, Outcome], None, None]:
        """Yield the position and outcome of each task, in the order of the tasks."""
        for index, task in enumerate(tasks):
            outcome = _attempt(function, task)
            while outcome.failed and outcome.attempts < ATTEMPTS:
                outcome = replace(_attempt(function, task), attempts=outcome.attempts + 1)
            yield index, outcome


class Local(Executor):
    """Runs tasks in worker processes on this machine.

    Args:
        n_jobs: How many tasks run at the same time; as many as there are cores if not given.
        threads: How many threads the numerical libraries of each worker use. It changes the last digits of large sums
            and decompositions and therefore does not follow `n_jobs`: by default results are the same for any number
            of workers. Where tasks are fewer than cores, `threads` = cores / `n_jobs` is faster.

    >>> sorted((index, outcome.value) for index, outcome in Local(n_jobs=1).map_unordered(abs, [-1, 2]))
    [(0, 1), (1, 2)]
    """

    def __init__(self, n_jobs: int | None = None, *, threads: int = 1) -> None:
        if n_jobs is None:
            from joblib import cpu_count

            n_jobs = int(cpu_count())
        for name, number in {"n_jobs": n_jobs, "threads": threads}.items():
            if number < 1:
                raise PlanError(f"{name} should be 1 or more, but it is {number}. Raise it or leave it out.")
        self.n_jobs = n_jobs
        self.threads = threads

    def map_unordered(
        self, function: Callable[[T], Any], tasks: Iterable[T]
    ) -> Generator[tuple[int, Outcome], None, None]:
        """Yield the position and outcome of each task when it ends; second attempts come after all the first."""
        first = ((index, task, 1) for index, task in enumerate(tasks))
        again: deque[tuple[int, T, int]] = deque()
        idle: list[Any] = []
        busy: dict[Future[Outcome], tuple[Any, int, T, int]] = {}
        try:
            while True:
                while len(busy) < self.n_jobs:
                    job = next(first, None) or (again.popleft() if again else None)
                    if job is None:
                        break
                    worker, future = self._submit(idle, partial(_attempt, function, job[1]))
                    busy[future] = (worker, *job)
                if not busy:
                    return
                for future in wait(busy, return_when=FIRST_COMPLETED).done:
                    worker, index, task, attempt = busy.pop(future)
                    idle.append(worker)
                    outcome = replace(_outcome(future), attempts=attempt)
                    if outcome.failed and attempt < ATTEMPTS:
                        again.append((index, task, attempt + 1))
                    else:
                        yield index, outcome
        finally:
            for worker in (*idle, *(worker for worker, *_ in busy.values())):
                worker.shutdown(kill_workers=True)

    def _submit(self, idle: list[Any], call: Callable[[], Outcome]) -> tuple[Any, Future[Outcome]]:
        while idle:
            worker = idle.pop()
            try:
                return worker, worker.submit(call)
            except BrokenProcessPool:
                worker.shutdown()
        worker = self._new_worker()
        return worker, worker.submit(call)

    def _new_worker(self) -> Any:
        # One pool per process: a death then has exactly one task to blame and takes no other task with it.
        from joblib.externals.loky import ProcessPoolExecutor

        # Loky replaces a worker whose memory has grown and warns in its own thread, which a warning turned into an
        # error would end: the sweep would wait for ever.
        warnings.filterwarnings("ignore", message="A worker stopped while some jobs were given to the executor")
        return ProcessPoolExecutor(
            max_workers=1,
            env=dict.fromkeys(_THREAD_VARIABLES, str(self.threads)),
            initializer=_live_with_parent,
            initargs=(os.getpid(),),
        )


def _attempt(function: Callable[[T], Any], task: T) -> Outcome:
    start = time.perf_counter()
    try:
        value, text = function(task), None
    except (Exception, SystemExit):
        value, text = None, traceback.format_exc()
    return Outcome(value, text, time.perf_counter() - start)


def _outcome(future: Future[Outcome]) -> Outcome:
    """What a worker sent; a failed attempt if it died, or if its task or value could not travel."""
    error = future.exception()
    return future.result() if error is None else Outcome(traceback="".join(traceback.format_exception(error)))


def _live_with_parent(parent: int) -> None:
    """Leave Ctrl-C to the parent, and end with it: a killed sweep would otherwise leave its workers behind for ever."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
