"""The section [engine] of a plan: what runs trials, and how much of a machine each may use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, get_args

from colonnade.errors import PlanError
from colonnade.parameters import Limit, check_parameters, choice, count, number, optional
from colonnade.runtime.executor import Dask, Executor, Local, Ray
from colonnade.runtime.workers import Crew
from colonnade.text import nearest

EngineName = Literal["local", "ray", "dask"]
NAMES: tuple[EngineName, ...] = get_args(EngineName)


@dataclass(frozen=True)
class PlannedEngine:
    """What runs the trials of a sweep or the repetitions of an audit. Results are the same on every engine.

    Attributes:
        name: Processes of this machine, or a cluster of Ray or Dask.
        address: Where the cluster is; without one, a cluster is started on this machine and ended afterwards.
        jobs: How many trials run at the same time, at most; as many as fit if None.
        cores_per_job: How many cores each trial gets, and how many threads its numerical libraries use.
        gpus_per_job: How many GPUs each trial gets: a whole number, or a share of one GPU.

    >>> PlannedEngine("dask", "tcp://10.0.0.7:8786", cores_per_job=2).build().address
    'tcp://10.0.0.7:8786'
    """

    name: EngineName = "local"
    address: str | None = None
    jobs: int | None = None
    cores_per_job: int = 1
    gpus_per_job: float = 0.0

    limits: ClassVar[Mapping[str, Limit]] = {
        "name": choice(*NAMES),
        "jobs": optional(count()),
        "cores_per_job": count(),
        "gpus_per_job": number(0),
    }

    def __post_init__(self) -> None:
        check_parameters(self, called="[engine]")
        if self.gpus_per_job > 1 and self.gpus_per_job % 1:
            raise PlanError(
                "[engine] gpus_per_job should be a whole number or a share of one GPU, but is "
                f"{self.gpus_per_job:g}. Choose a number such as 0.5 or 2."
            )
        if self.name == "local" and self.address is not None:
            raise PlanError(
                f"[engine] address belongs to a cluster, but name is 'local' and address is {self.address!r}. "
                "Leave out the address, or choose the engine 'ray' or 'dask'."
            )

    def with_options(self, engine: str | None, jobs: int | None) -> PlannedEngine:
        """The same with what the command line says in its place: `NAME` or `NAME:ADDRESS`, and a number of jobs.

        >>> PlannedEngine().with_options("ray:10.0.0.7:6379", 4)
        PlannedEngine(name='ray', address='10.0.0.7:6379', jobs=4, cores_per_job=1, gpus_per_job=0.0)
        """
        chosen = self if jobs is None else replace(self, jobs=jobs)
        if engine is None:
            return chosen
        name, _, address = engine.partition(":")
        for known in NAMES:
            if name == known:
                return replace(chosen, name=known, address=address or None)
        raise PlanError(
            f"--engine should be {', '.join(NAMES[:-1])} or {NAMES[-1]}, perhaps with an address, but is {engine!r}."
            f"{nearest(name, NAMES)} Write it as ray or as ray:10.0.0.7:6379."
        )

    def crew(self) -> Crew:
        """Workers that hold a party's table; none is started before the first call."""
        return Crew(self.name, self.jobs, self.address)

    def build(self) -> Executor:
        """The executor; nothing is started before it has a task."""
        threads, gpus = self.cores_per_job, self.gpus_per_job
        if self.name == "local":
            return Local(self.jobs, threads=threads, gpus=gpus)
        cluster = Ray if self.name == "ray" else Dask
        return cluster(self.address, self.jobs, threads=threads, gpus=gpus)
