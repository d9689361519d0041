"""Workers of a cluster: Ray actors, spread over its nodes, and Dask workers."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from contextlib import ExitStack
from typing import Any

from colonnade._version import code_version
from colonnade.errors import PlanError
from colonnade.runtime.answers import Raised, Worker, answer, drop_all
from colonnade.runtime.clusters import dask_cluster, ray_cluster, worker_environment
from colonnade.runtime.named import require_version


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


def ray_workers(connected: ExitStack, address: str | None, n: int) -> Callable[[int], Worker]:
    """Connect to a Ray cluster; returns what starts an actor there."""
    ray = connected.enter_context(ray_cluster(address, cores=n))
    environment = {"env_vars": worker_environment(threads=1)}
    actor = ray.remote(num_cpus=1, max_restarts=0, scheduling_strategy="SPREAD", runtime_env=environment)(_Actor)

    class RayWorker(Worker):
        """An actor; a node that is lost takes its actors along."""

        lost = (ray.exceptions.RayActorError, ray.exceptions.OwnerDiedError, ray.exceptions.ObjectLostError)

        def __init__(self) -> None:
            super().__init__()
            self._actor = actor.remote()

        def submit(self, *arguments: Any) -> Future[Any]:
            future: Future[Any] = self._actor.answer.remote(code_version(), *arguments).future()
            return future

        def end(self) -> None:
            ray.kill(self._actor)

    return lambda slot: RayWorker()


def dask_workers(connected: ExitStack, address: str | None, n: int) -> Callable[[int], Worker]:
    """Connect to a Dask cluster; returns what chooses a worker there."""
    client = connected.enter_context(dask_cluster(address, [worker_environment(threads=1)] * n))
    from distributed.scheduler import KilledWorker

    class DaskWorker(Worker):
        """A worker of the cluster; one that is lost is started again by its nanny, at another address."""

        lost = (KilledWorker,)

        def __init__(self, slot: int) -> None:
            super().__init__()
            client.wait_for_workers(1)
            addresses = sorted(client.scheduler_info(n_workers=-1)["workers"])
            self._address = addresses[slot % len(addresses)]

        def submit(self, *arguments: Any) -> Future[Any]:
            # Another worker may answer, where this one is gone: it makes what it does not hold.
            where = {"workers": [self._address], "allow_other_workers": True}
            begun = client.submit(answer_if_same, code_version(), *arguments, **where, pure=False, retries=0)
            return _Awaited(begun)

        def end(self) -> None:
            """Let the worker drop what it holds; it belongs to the cluster and stays."""
            if self._address in client.scheduler_info(n_workers=-1)["workers"]:
                client.run(drop_all, workers=[self._address], on_error="ignore")

    return DaskWorker


class _Awaited(Future[Any]):
    """A Dask future as one of Python's own."""

    def __init__(self, begun: Any) -> None:
        super().__init__()
        self._begun = begun
        begun.add_done_callback(self._take)

    def _take(self, begun: Any) -> None:
        error = begun.exception()
        self.set_result(begun.result()) if error is None else self.set_exception(error)
