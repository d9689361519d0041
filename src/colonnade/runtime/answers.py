"""Answers: what a worker does with a call, and what the process that calls knows of the worker.

A worker holds portions of placements by name. A call names the portion that it is about; with a portion that a worker
has not held yet, the call brings the recipe.
"""

from __future__ import annotations

import fcntl
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from colonnade.memory import keep_freed_memory
from colonnade.runtime.clusters import worker_environment
from colonnade.runtime.executor import new_process


class Recipe(Protocol):
    """How a worker's portion of a placement is made, wherever and however often."""

    @property
    def name(self) -> str:
        """What the portion is called, here and at workers."""

    def made(self, held: Mapping[str, Mapping[int, Any]]) -> Mapping[int, Any]:
        """The partitions of the portion by their numbers, from what the worker holds, or else from files."""


class Worker(ABC):
    """One worker of an engine."""

    lost: ClassVar[tuple[type[BaseException], ...]]
    """What its futures raise when it is gone."""

    def __init__(self) -> None:
        self.told: set[str] = set()
        self.forgotten: list[str] = []

    @abstractmethod
    def submit(self, *arguments: Any) -> Future[Any]:
        """Begin `answer` with these arguments at the worker."""

    def is_gone(self) -> bool:
        """Whether the worker was lost, although its futures do not say so."""
        return False

    @abstractmethod
    def end(self) -> None:
        """End the worker, whatever it does."""


class LocalWorker(Worker):
    """A process of this machine."""

    lost = (BrokenProcessPool,)

    def __init__(self) -> None:
        super().__init__()
        self._pool = new_process(worker_environment(threads=1))
        for pipe in (self._pool._call_queue._writer, self._pool._result_queue._reader):
            _widen(pipe)
        self._pool.submit(_settle)

    def submit(self, *arguments: Any) -> Future[Any]:
        future: Future[Any] = self._pool.submit(answer, *arguments)
        return future

    def is_gone(self) -> bool:
        # A process that is killed before it has begun ends the thread that would have told its futures.
        thread = self._pool._executor_manager_thread
        return thread is None or not thread.is_alive()

    def end(self) -> None:
        self._pool.shutdown(kill_workers=True)


@dataclass(frozen=True)
class Missing:
    """A worker does not hold a portion."""

    name: str


@dataclass(frozen=True)
class Raised:
    """A function raised an error."""

    error: Exception


_HELD: dict[str, Mapping[int, Any]] = {}
"""The portions that this process holds as a worker, by name."""


def answer(
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
    name: str | None,
    number: int,
    recipe: Recipe | None,
    forgotten: tuple[str, ...],
) -> Any:
    """Do one call as a worker: make the portion that it is about if need be, and call the function."""
    for each in forgotten:
        _HELD.pop(each, None)
    try:
        if name is not None:
            if name not in _HELD:
                if recipe is None:
                    return Missing(name)
                _HELD[name] = recipe.made(_HELD)
            arguments = (_HELD[name][number], *arguments)
        return function(*arguments)
    except Exception as error:
        return Raised(error)


def _widen(pipe: Any) -> None:
    """Let a pipe hold 1 MiB, where the system can.

    Through the usual 64 KiB a call of many megabytes wakes the other process at every piece. With one worker that
    doubled the time of encrypted sums, most of it spent by the system.
    """
    with suppress(OSError, AttributeError):
        fcntl.fcntl(pipe.fileno(), fcntl.F_SETPIPE_SZ, 2**20)


def _settle() -> None:
    """Prepare this process for a worker's life: many calls of many megabytes, and portions that stay."""
    from joblib.externals.loky import process_executor

    keep_freed_memory(2**28)
    # Loky would replace a process whose memory has grown.
    process_executor._MAX_MEMORY_LEAK_SIZE = float("inf")


def drop_all() -> None:
    """Drop all portions that this process holds."""
    _HELD.clear()
