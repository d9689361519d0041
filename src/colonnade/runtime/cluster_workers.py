"""Workers of a cluster: Ray actors, spread over its nodes, and Dask workers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import CancelledError, Future
from contextlib import ExitStack, contextmanager
from typing import Any

from colonnade._version import code_version
from colonnade.errors import EngineError, PlanError, imported
from colonnade.runtime.answers import Raised, Worker, answer, drop
from colonnade.runtime.clusters import CONNECT_SECONDS, dask_cluster, ray_cluster, ray_is_connected, worker_environment
from colonnade.runtime.named import require_version

START_SECONDS = 3 * CONNECT_SECONDS
"""How long a new actor of Ray may take until it answers."""
_LOOK_SECONDS = 0.1


def answer_if_same(version: str, *arguments: Any) -> Any:
    """Do one call as a worker that has the version of the process that calls; nodes may join a cluster at any time."""
    try:
        require_version(version)
    except PlanError as error:
        return Raised(error)
    return answer(*arguments)


class _Actor:
    """What runs at a node: answers calls, and keeps portions for as long as it lives."""

    def answer(self, version: str, *arguments: Any) -> Any:
        return answer_if_same(version, *arguments)


def ray_workers(
    connected: ExitStack, address: str | None, n: int | None, crew: str
) -> tuple[int, Callable[[int], Worker]]:
    """Connect to a Ray cluster; returns how many actors there will be, and what starts one of them.

    Actors take no cores of those that Ray counts: several tables of a plan may lie on the same nodes, and the trials of
    an audit run beside them. So each is sent to a node that has cores.
    """
    ray = connected.enter_context(_ray_in_use(crew, address, n))
    environment = {"env_vars": worker_environment(threads=1)}
    actor = ray.remote(num_cpus=0, max_restarts=0, runtime_env=environment)(_Actor)
    at = imported("ray.util.scheduling_strategies", "ray", "The engine 'ray'").NodeAffinitySchedulingStrategy
    here = ray.get_runtime_context().get_node_id()

    def cores() -> dict[str, float]:
        found = {node["NodeID"]: node["Resources"].get("CPU", 0) for node in ray.nodes() if node["Alive"]}
        if here not in found:
            raise _lost("Ray", "its node on this machine", "this node has died")
        return found

    class RayWorker(Worker):
        """An actor; a node that is lost takes its actors along."""

        lost = (
            ray.exceptions.RayActorError,
            ray.exceptions.ActorUnschedulableError,
            ray.exceptions.OwnerDiedError,
            ray.exceptions.ObjectLostError,
        )

        def __init__(self, slot: int) -> None:
            super().__init__()
            seats = _seats_within_patience("Ray", cores)
            self._actor = actor.options(scheduling_strategy=at(seats[slot % len(seats)], soft=False)).remote()
            self._ready, self._until = self._actor.__ray_ready__.remote().future(), time.monotonic() + START_SECONDS

        def submit(self, *arguments: Any) -> Future[Any]:
            future: Future[Any] = self._actor.answer.remote(code_version(), *arguments).future()
            return future

        def is_gone(self) -> bool:
            cores()
            if not self._ready.done() and time.monotonic() > self._until:
                raise _lost("Ray", "room for a worker", f"a new one has not begun within {START_SECONDS:g} seconds")
            return False

        def end(self) -> None:
            if ray_is_connected():
                ray.kill(self._actor)

    n_cores = len(_seats_within_patience("Ray", cores))
    if n is not None and n > n_cores:
        raise PlanError(
            f"Each worker that holds a table should have a core, but jobs is {n}, and the nodes of the Ray cluster "
            f"have {n_cores} cores in all. Lower jobs under [engine], or add nodes."
        )
    return n or n_cores, RayWorker


_IN_USE, _USERS, _CHANGING = ExitStack(), set[str](), threading.RLock()


@contextmanager
def _ray_in_use(crew: str, address: str | None, cores: int | None) -> Iterator[Any]:
    """Ray, connected as long as any crew of this process uses it: the first connects, and the last one leaves."""
    with _CHANGING:
        if not _USERS:
            _IN_USE.enter_context(ray_cluster(address, cores=cores))
        _USERS.add(crew)
    try:
        yield imported("ray", "ray", "The engine 'ray'")
    finally:
        with _CHANGING:
            _USERS.discard(crew)
            if not _USERS:
                _IN_USE.close()


def dask_workers(
    connected: ExitStack, address: str | None, n: int | None, crew: str
) -> tuple[int, Callable[[int], Worker]]:
    """Connect to a Dask cluster; returns how many workers are counted, and what chooses one of them."""
    client = connected.enter_context(dask_cluster(address, [worker_environment(threads=1)] * (n or 1)))
    if address is not None:
        connected.callback(_drop_everywhere, client, crew)
    from distributed.scheduler import KilledWorker

    def threads() -> dict[str, float]:
        # A client that has lost its scheduler knows of no workers, not even of none.
        if (workers := client.scheduler_info(n_workers=-1).get("workers")) is None:
            raise _lost("Dask", "its scheduler", "the scheduler does not answer")
        return {address: found["nthreads"] for address, found in workers.items()}

    class DaskWorker(Worker):
        """A worker of the cluster; one that is lost is started again by its nanny, at another address."""

        lost = (KilledWorker,)

        def __init__(self, slot: int) -> None:
            super().__init__()
            seats = _seats_within_patience("Dask", threads)
            self._address = seats[slot % len(seats)]

        def submit(self, *arguments: Any) -> Future[Any]:
            # Another worker may answer, where this one is gone: it makes what it does not hold.
            where = {"workers": [self._address], "allow_other_workers": True}
            begun = client.submit(answer_if_same, code_version(), *arguments, **where, pure=False, retries=0)
            return _Awaited(begun)

        def is_gone(self) -> bool:
            _seats_within_patience("Dask", threads)
            return False

        def end(self) -> None:
            """The worker belongs to the cluster and stays. What it holds goes when all of the crew ends."""

    return n or len(_seats_within_patience("Dask", threads)), DaskWorker


def _drop_everywhere(client: Any, crew: str) -> None:
    """Let all workers drop what they hold: where one was lost, any other may have answered in its place."""
    if client.status == "running":
        client.run(drop, crew, on_error="ignore")


def _seats_within_patience(engine: str, cores: Callable[[], Mapping[str, float]]) -> list[str]:
    """The seats of a cluster, once it has one: where its last worker was lost, another may be on its way."""
    until = time.monotonic() + CONNECT_SECONDS
    while not (seats := _seats(cores())):
        if time.monotonic() > until:
            raise _lost(engine, "a worker", f"it has had none for {CONNECT_SECONDS:g} seconds")
        time.sleep(_LOOK_SECONDS)
    return seats


def _seats(cores: Mapping[str, float]) -> list[str]:
    """A seat for each core, dealt out in rounds, so that workers are spread over nodes.

    >>> _seats({"a": 2, "b": 1, "c": 0})
    ['a', 'b', 'a']
    """
    most = int(max(cores.values(), default=0))
    return [name for n in range(1, most + 1) for name in sorted(cores) if cores[name] >= n]


def _lost(engine: str, part: str, found: str) -> EngineError:
    return EngineError(
        f"The {engine} cluster should have {part} until the run is done, but {found}. Start {part} again, then go on "
        "with --resume."
    )


class _Awaited(Future[Any]):
    """A Dask future as one of Python's own."""

    def __init__(self, begun: Any) -> None:
        super().__init__()
        self._begun = begun
        begun.add_done_callback(self._take)

    def _take(self, begun: Any) -> None:
        try:
            self.set_result(begun.result())
        except CancelledError as error:
            lost = _lost("Dask", "its scheduler", "the scheduler is gone")
            lost.__cause__ = error
            self.set_exception(lost)
        except BaseException as error:
            # Raised here, in a thread of Dask, it would leave whoever awaits it waiting for ever.
            self.set_exception(error)
