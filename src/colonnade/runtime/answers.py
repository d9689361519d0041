"""Answers: what a worker does with a call, and what the process that calls knows of the worker.

A worker holds portions of placements by name. A call names the portion that it is about; with a portion that a worker
has not held yet, the call brings the recipe. Each crew has a token, and when the crew ends, workers that stay drop what
they hold under the token, and hold nothing under it again.
"""

from __future__ import annotations

import fcntl
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol

from colonnade.errors import EngineError
from colonnade.memory import keep_freed_memory
from colonnade.runtime.clusters import worker_environment
from colonnade.runtime.executor import new_process

MOST_PIPE_BYTES, LEAST_PIPE_BYTES, ALL_PIPES_BYTES = 2**20, 2**16, 2**24
"""How much one pipe of a crew of local processes holds, and all of them together."""
MOST_ENDED = 10_000
"""How many crews that have ended a worker remembers."""


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
        """Whether the worker was lost, although its futures do not say so.

        Raises:
            EngineError: The cluster has lost more than this worker, so that no other can take its place.
        """
        return False

    @abstractmethod
    def end(self) -> None:
        """End the worker, whatever it does."""


class LocalWorker(Worker):
    """A process of this machine, one of n."""

    lost = (BrokenProcessPool,)

    def __init__(self, n: int = 1) -> None:
        super().__init__()
        self._pool = new_process(worker_environment(threads=1))
        pipes = (self._pool._call_queue._writer, self._pool._result_queue._reader)
        for pipe in pipes:
            _widen(pipe, _pipe_bytes(len(pipes) * n))
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


_HELD: dict[str, dict[str, Mapping[int, Any]]] = {}
"""The portions that this process holds as a worker: of each crew, by name."""
_ENDED: dict[str, None] = {}
"""The crews that have ended, the latest last."""


def answer(
    crew: str,
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
    name: str | None,
    number: int,
    recipe: Recipe | None,
    forgotten: tuple[str, ...],
) -> Any:
    """Do one call as a worker: make the portion that it is about if need be, and call the function."""
    # A crew may end while its call is answered here: from then on `held` is this call's alone.
    held = _HELD.setdefault(crew, {})
    if crew in _ENDED:
        _HELD.pop(crew, None)
        return Raised(
            EngineError(
                "A worker should be called while the run goes on, but was called after its end. Begin the run again."
            )
        )
    for each in forgotten:
        held.pop(each, None)
    try:
        if name is not None:
            if name not in held:
                if recipe is None:
                    return Missing(name)
                held[name] = recipe.made(held)
            arguments = (held[name][number], *arguments)
        return function(*arguments)
    except (Exception, SystemExit) as error:
        return Raised(error if isinstance(error, Exception) and _travels(error) else _named(error))


def drop(crew: str) -> None:
    """Drop what this process holds of a crew that has ended, and hold nothing of it again."""
    _ENDED[crew] = None
    _HELD.pop(crew, None)
    while len(_ENDED) > MOST_ENDED:
        del _ENDED[next(iter(_ENDED))]


def _travels(error: Exception) -> bool:
    """Whether another process can make an error again: from plain values, by which its class is made."""
    with suppress(Exception):
        return _is_plain(list(error.args)) and _is_plain(list(vars(error).values())) and copy(error).args == error.args
    return False


def _is_plain(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, str | bytes | int | float)


def _named(error: BaseException) -> EngineError:
    """What can be told of an error that does not travel: no word of its text, which may quote a value."""
    last, kind = traceback.extract_tb(error.__traceback__)[-1], type(error)
    return EngineError(
        "What a worker raises should be an error that other processes can make again, but "
        f"{last.name} ({Path(last.filename).name}, line {last.lineno}) raised {kind.__module__}.{kind.__qualname__}. "
        "Run the same on fewer rows without workers to read its text."
    )


def _widen(pipe: Any, size: int) -> None:
    """Let a pipe hold more than the usual 64 KiB, where the system can.

    Through 64 KiB a call of many megabytes wakes the other process at every piece. With one worker that doubled the
    time of encrypted sums, most of it spent by the system.
    """
    with suppress(OSError, AttributeError):
        fcntl.fcntl(pipe.fileno(), fcntl.F_SETPIPE_SZ, size)


def _pipe_bytes(n_pipes: int) -> int:
    """How much each of a crew's pipes holds; Linux takes powers of two.

    A user who is not root has 64 MiB for all pipes. With these used up, every other new pipe of the user holds 8 KiB.

    >>> _pipe_bytes(4) // 1024, _pipe_bytes(96) // 1024, _pipe_bytes(1000) // 1024
    (1024, 128, 64)
    """
    share = 1 << (ALL_PIPES_BYTES // n_pipes).bit_length() - 1
    return max(LEAST_PIPE_BYTES, min(share, MOST_PIPE_BYTES))


def _settle() -> None:
    """Prepare this process for a worker's life: many calls of many megabytes, and portions that stay."""
    from joblib.externals.loky import process_executor

    keep_freed_memory(2**28)
    # Loky would replace a process whose memory has grown.
    process_executor._MAX_MEMORY_LEAK_SIZE = float("inf")
