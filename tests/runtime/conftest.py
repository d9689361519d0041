import os
import signal
from collections.abc import Iterator

import pytest

from colonnade.runtime.workers import Crew
from colonnade.tables import placement


@pytest.fixture(autouse=True)
def small_partitions(request, monkeypatch) -> None:
    """Partitions of placed tables have so few rows as the module of a test says."""
    if rows := getattr(request.module, "PARTITION_ROWS", None):
        monkeypatch.setattr(placement, "PARTITION_ROWS", rows)


@pytest.fixture(scope="session")
def crew() -> Iterator[Crew]:
    """Two processes; a test that kills some leaves others in their places."""
    crew = Crew(n=2)
    yield crew
    crew.end()


@pytest.fixture(scope="module", params=["ray", "dask"])
def cluster(request) -> Iterator[Crew]:
    """Workers of a cluster on this machine: of Ray one that has two nodes."""
    pytest.importorskip(request.param)
    if request.param == "dask":
        crew = Crew("dask", n=2)
        yield crew
        crew.end()
        return
    from ray.cluster_utils import Cluster

    nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    nodes.add_node(num_cpus=1)
    crew = Crew("ray", n=2, address=nodes.address)
    yield crew
    crew.end()
    nodes.shutdown()


class Unlucky(Crew):
    """A crew of which workers are killed, each right after it was given a call."""

    kills = ()
    n_calls = 0

    def _submitted(self, call, worker):
        future = super()._submitted(call, worker)
        self.n_calls += 1
        if self.n_calls in self.kills:
            for pid in list(worker._pool._processes):
                os.kill(pid, signal.SIGKILL)
        return future


@pytest.fixture
def unlucky() -> Iterator[Unlucky]:
    """Two processes, of which those die whose calls a test names."""
    crew = Unlucky(n=2)
    yield crew
    crew.end()
