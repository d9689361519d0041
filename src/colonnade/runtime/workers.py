"""Workers: processes of one organisation that compute for a party, in order and a few calls ahead, and may be lost.

    ThisProcess    no worker: everything is computed here
    Crew           processes of this machine, Ray actors or Dask workers

A worker that is lost is replaced, and what it had not finished is computed again. A worker holds portions of placements
(`colonnade.runtime.placed`); one that it does not hold, it makes by the portion's recipe.
"""

from __future__ import annotations

import os
import secrets
import weakref
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from contextvars import Context, copy_context
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from types import FunctionType
from typing import Any, Literal, TypeVar

from colonnade.errors import EngineError
from colonnade.runtime.answers import LocalWorker, Missing, Raised, Recipe, Worker
from colonnade.runtime.named import named_function

T = TypeVar("T")
R = TypeVar("R")

EngineName = Literal["local", "ray", "dask"]

AHEAD = 2
"""How many calls each worker is given ahead."""
PATIENCE = 2.0
"""After how many seconds without an answer a worker is looked at."""
MOST_LOSSES = 3
"""How many workers one call may lose."""
LOST = object()
"""In the place of an answer: the worker is lost."""


@dataclass(frozen=True)
class Call:
    """A function with its arguments and, where it is about a partition, what makes the partition.

    Attributes:
        slot: The worker that should be called; any if None.
        recipe: How the portion is made that has the partition; the partition becomes the first argument.
        number: The partition's number.
    """

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    slot: int | None = None
    recipe: Recipe | None = None
    number: int = 0


class Workers(ABC):
    """What a party's heavy functions are computed by."""

    @property
    @abstractmethod
    def n(self) -> int:
        """How many compute at the same time."""

    @abstractmethod
    def map(self, function: Callable[..., R], items: Iterable[T], *shared: Any) -> Iterator[R]:
        """Yield a function of each item, called with the item and `shared`, in the order of the items."""

    @abstractmethod
    def end(self) -> None:
        """End all workers, and with them what they hold."""


class ThisProcess(Workers):
    """Computes in this process.

    >>> list(ThisProcess().map(pow, [2, 3], 2))
    [4, 9]
    """

    n = 1

    def map(self, function: Callable[..., R], items: Iterable[T], *shared: Any) -> Iterator[R]:
        return map(function, items, *map(repeat, shared))

    def end(self) -> None:
        """There is no worker."""


@dataclass
class _Begun:
    """A call that a worker has been given."""

    call: Call
    slot: int
    worker: Worker
    future: Future[Any]
    losses: int = 0

    def value(self) -> Any:
        """What the worker answers, once it does; `LOST` if it is lost."""
        while True:
            try:
                return self.future.result(timeout=PATIENCE)
            except TimeoutError:
                if self.worker.is_gone():
                    return LOST
            except self.worker.lost:
                return LOST

    def is_answered(self) -> bool:
        """Whether the worker answered before it was lost."""
        done = self.future.done() and not self.future.cancelled()
        return done and not isinstance(self.future.exception(), self.worker.lost)


class Crew(Workers):
    """Workers of an engine, started when they are first needed.

    Args:
        engine: What the workers are: processes of this machine, actors of a Ray cluster or workers of a Dask cluster.
        n: How many there are; if None, as many as this machine has cores, or the cluster at the address.
        address: Where the cluster is; None starts one on this machine.

    >>> crew = Crew(n=2)
    >>> list(crew.map(pow, [2, 3], 2))
    [4, 9]
    >>> crew.end()
    """

    def __init__(self, engine: EngineName = "local", n: int | None = None, address: str | None = None) -> None:
        self.engine, self.address = engine, address
        self._n = n or (n_cores() if address is None else None)
        self._connected, self._workers = ExitStack(), dict[int, Worker]()
        # Whichever thread ends a crew, a client of Dask is left in the context in which it was entered.
        self._context = copy_context()
        self._start: Callable[[int], Worker] | None = None
        self._token = ""
        # A crew that nobody refers to any more ends, also where an error kept its owner from ending it.
        weakref.finalize(self, _end, self._workers, self._connected, self._context)

    @property
    def n(self) -> int:
        if self._n is None:
            self._reached()
        assert self._n is not None
        return self._n

    def map(self, function: Callable[..., R], items: Iterable[T], *shared: Any) -> Iterator[R]:
        return self.results(Call(function, (item, *shared)) for item in items)

    def results(self, calls: Iterable[Call]) -> Iterator[Any]:
        """Yield what calls return, in their order; a call that raises ends the others.

        Raises:
            EngineError: One call lost several workers, or the cluster is gone.
            PlanError: Workers of a cluster could not import a function by its name, or are more than it has cores.
        """
        ahead: deque[_Begun] = deque()
        for call in calls:
            self.require_known(call.function, *call.arguments)
            slot = self._freest(ahead) if call.slot is None else call.slot
            ahead.append(self._begin(call, slot))
            if len(ahead) > AHEAD * self.n:
                yield self._finished(ahead)
        while ahead:
            yield self._finished(ahead)

    def require_known(self, function: Callable[..., Any], *arguments: Any) -> None:
        """Refuse functions that workers of a cluster could not import by their names: source does not travel there."""
        if self.engine == "local":
            return
        for each in (function, *(value for value in arguments if isinstance(value, FunctionType | partial))):
            named_function(each)

    def forget(self, name: str) -> None:
        """Let workers drop the portions of a placement that nobody asks for any more, with the next call to each."""
        for slot, worker in tuple(self._workers.items()):
            portion = portion_name(name, slot)
            if portion in worker.told:
                worker.told.discard(portion)
                worker.forgotten.append(portion)

    def end(self) -> None:
        self._start = None
        _end(self._workers, self._connected, self._context)

    def _freest(self, ahead: deque[_Begun]) -> int:
        """The worker with the fewest calls to answer; of several, the one whose last call is longest ago."""
        waiting, last = [0] * self.n, [-1] * self.n
        for number, each in enumerate(ahead):
            waiting[each.slot] += not each.future.done()
            last[each.slot] = number
        return min(range(self.n), key=lambda slot: (waiting[slot], last[slot]))

    def _finished(self, ahead: deque[_Begun]) -> Any:
        """What the first call returns; begins calls again whose worker is lost."""
        first = ahead[0]
        while True:
            value = first.value()
            if value is LOST:
                self._recover(ahead)
            elif isinstance(value, Missing):
                first.worker.told.discard(value.name)
                self._begin_again(first)
            else:
                ahead.popleft()
                if isinstance(value, Raised):
                    raise value.error
                return value

    def _recover(self, ahead: deque[_Begun]) -> None:
        """Replace the worker of the first call, which is lost, and begin again what it has not answered."""
        first, lost = ahead[0], ahead[0].worker
        first.losses += 1
        if first.losses > MOST_LOSSES:
            raise EngineError(
                f"A worker should answer a call, but {first.losses} were ended from outside at one call, one after the "
                "other, perhaps for want of memory. Go on with --resume, with fewer workers or more memory for each."
            )
        self._drop(first.slot, lost)
        for each in ahead:
            if each.worker is lost and (each is first or not each.is_answered()):
                self._begin_again(each)

    def _begin_again(self, begun: _Begun) -> None:
        again = self._begin(begun.call, begun.slot)
        begun.worker, begun.future = again.worker, again.future

    def _begin(self, call: Call, slot: int) -> _Begun:
        worker = self._worker(slot)
        try:
            return _Begun(call, slot, worker, self._submitted(call, worker))
        except worker.lost:
            self._drop(slot, worker)
        worker = self._worker(slot)
        return _Begun(call, slot, worker, self._submitted(call, worker))

    def _drop(self, slot: int, worker: Worker) -> None:
        """End what is left of a worker that was lost, unless another one has its place already."""
        if self._workers.get(slot) is worker:
            _let_go(self._workers.pop(slot))

    def _submitted(self, call: Call, worker: Worker) -> Future[Any]:
        recipe, name = call.recipe, None if call.recipe is None else call.recipe.name
        told = recipe is None or recipe.name in worker.told
        forgotten, worker.forgotten = tuple(worker.forgotten), []
        asked = (call.function, call.arguments, name, call.number, None if told else recipe, forgotten)
        future = worker.submit(self._token, *asked)
        if name is not None:
            worker.told.add(name)
        return future

    def _worker(self, slot: int) -> Worker:
        if slot not in self._workers:
            self._workers[slot] = self._reached()(slot)
        return self._workers[slot]

    def _reached(self) -> Callable[[int], Worker]:
        """What starts a worker; reaches the cluster first, if there is one."""
        if self._start is None:
            self._token = new_name()
            try:
                self._n, self._start = self._connect()
            except BaseException:
                self.end()
                raise
        return self._start

    def _connect(self) -> tuple[int, Callable[[int], Worker]]:
        """Reach the cluster, if there is one; returns how many workers there are, and what starts one."""
        if self.engine == "local":
            n = self._n or n_cores()
            return n, lambda slot: LocalWorker(n)
        from colonnade.runtime.cluster_workers import dask_workers, ray_workers

        make = ray_workers if self.engine == "ray" else dask_workers
        return self._context.run(make, self._connected, self.address, self._n, self._token)


def n_cores() -> int:
    """How many cores this process may use, as far as the system tells."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def new_name() -> str:
    """A name that nothing else at a worker has."""
    return secrets.token_hex(8)


def portion_name(name: str, slot: int) -> str:
    """What a placement's portion is called that lies with the worker in a place."""
    return f"{name} {slot}"


def _end(workers: dict[int, Worker], connected: ExitStack, context: Context) -> None:
    try:
        while workers:
            _let_go(workers.popitem()[1])
    finally:
        context.run(_close, connected)


def _let_go(worker: Worker) -> None:
    # A worker that is lost may not end as it should. What the run itself raised is what counts.
    with suppress(Exception):
        worker.end()


def _close(connected: ExitStack) -> None:
    # The same of a cluster that is lost.
    with suppress(Exception):
        connected.close()
