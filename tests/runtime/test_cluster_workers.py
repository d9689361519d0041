"""Workers of clusters keep nothing of a run that has ended, and nobody waits for ever for workers that do not come."""

import os
import signal
import subprocess
import sys
import threading
import time

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from colonnade.errors import DataError, EngineError, PlanError
from colonnade.runtime import cluster_workers, clusters
from colonnade.runtime.clusters import ray_is_connected
from colonnade.runtime.placed import placed_table, released
from colonnade.runtime.workers import Crew
from tests.runtime.tasks import noted, own_pid, wait_until
from tests.runtime.test_executor import DaskNodes, RayNodes, meanwhile

pytestmark = [pytest.mark.slow, pytest.mark.network]
PARTITION_ROWS = 100


@pytest.fixture
def dask():
    pytest.importorskip("distributed")
    nodes = DaskNodes()
    yield nodes
    nodes.end()


@pytest.fixture
def ray():
    pytest.importorskip("ray")
    nodes = RayNodes()
    yield nodes
    nodes.end()


@pytest.fixture
def salaries(tmp_path):
    """A table of two partitions."""
    n = 2 * PARTITION_ROWS
    pq.write_table(pa.table({"id": range(n), "salary": [1000.0 + i for i in range(n)]}), tmp_path / "shop.parquet")
    return tmp_path / "shop.parquet"


def held(_=None):
    from colonnade.runtime.answers import _HELD

    return sorted(name for portions in _HELD.values() for name in portions)


def refuse_or_wait(part, folder):
    """Refuse the first partition once another worker makes the second, which takes until the test says so."""
    if part.ids[0].as_py() == 0:
        wait_until((folder / "begun").exists)
        raise DataError("no good")
    (folder / "begun").touch()
    wait_until((folder / "go").exists)
    return part


def test_a_dask_worker_keeps_no_rows_that_it_reads_while_the_run_fails(dask, salaries, tmp_path):
    crew = Crew("dask", 2, dask.address)
    with pytest.raises(DataError, match="no good"), released(placed_table(salaries, crew, ids="id")) as table:
        list(table.partitions.then(refuse_or_wait, tmp_path).map(len))
    (tmp_path / "go").touch()
    # Each worker has one thread, which answers when it has done what it was doing.
    another = Crew("dask", 2, dask.address)
    assert list(another.map(held, range(4))) == [[]] * 4
    another.end()


def test_a_dask_worker_keeps_no_rows_that_it_read_in_the_place_of_another(dask, salaries):
    import distributed

    with released(placed_table(salaries, Crew("dask", 1, dask.address), ids="id")) as table:
        os.kill(next(table.map(own_pid)), signal.SIGKILL)
        assert list(table.map(len)) == [PARTITION_ROWS] * 2
        with distributed.Client(dask.address) as client:
            assert any(client.run(held).values())
    with distributed.Client(dask.address) as client:
        assert not any(client.run(held).values())


def test_a_run_that_ends_leaves_the_tables_of_another(dask, salaries):
    import distributed

    crews = [Crew("dask", 2, dask.address) for _ in range(2)]
    first, second = (placed_table(salaries, crew, ids="id") for crew in crews)
    assert list(first.map(len)) == list(second.map(len)) == [PARTITION_ROWS] * 2
    crews[0].end()
    with distributed.Client(dask.address) as client:
        assert [len(names) for names in client.run(held).values()] == [1, 1]
    crews[1].end()


def lingering(_, folder):
    noted(folder, "call")
    wait_until((folder / "go").exists)


@pytest.mark.parametrize(
    ("lost", "said"), [("scheduler", "its scheduler until the run is done"), ("workers", "a worker until the run is")]
)
def test_a_crew_ends_with_its_dask_cluster(dask, tmp_path, monkeypatch, lost, said):
    for module in (cluster_workers, clusters):
        monkeypatch.setattr(module, "CONNECT_SECONDS", 3)
    crew = Crew("dask", 2, dask.address)
    assert list(crew.map(abs, [-1])) == [1]

    def kill():
        wait_until(lambda: list(tmp_path.glob("call-*")))
        for each in [dask._scheduler] if lost == "scheduler" else dask._nannies:
            each.kill()

    with meanwhile(kill), pytest.raises(EngineError, match=rf"Dask cluster should have {said}.*go on with --resume"):
        list(crew.map(lingering, range(8), tmp_path))
    (tmp_path / "go").touch()
    crew.end()
    assert not crew._workers
    with pytest.raises(EngineError):
        list(crew.map(abs, [-1]))


def test_a_dask_crew_that_was_answered_ends_quietly_without_its_scheduler(dask):
    crew = Crew("dask", 2, dask.address)
    assert list(crew.map(abs, [-1])) == [1]
    dask._scheduler.kill()
    dask._scheduler.wait()
    crew.end()
    assert not crew._connected.pop_all()._exit_callbacks


PLAN = """
[data.shop]
path = "salaries.parquet"
ids = "id"
placed = true
[data.bank]
path = "salaries.parquet"
ids = "id"
labels = "salary"
placed = true
[roles]
label = "bank"
features = ["shop"]
[model]
name = "secureboost-regressor"
n_estimators = 1
max_depth = 2
[engine]
name = "{engine}"
jobs = 1
"""


@pytest.mark.parametrize("engine", ["ray", "dask"])
def test_a_simulation_that_fails_says_one_thing(engine, salaries, tmp_path):
    """Clusters that are started here are down when Python has ended, and crews should have ended before."""
    pytest.importorskip(engine)
    salaries.rename(tmp_path / "salaries.parquet")
    (tmp_path / "plan.toml").write_text(PLAN.format(engine=engine))
    command = [sys.executable, "-m", "colonnade", "simulate", "plan.toml", "--out", "runs"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=200)
    assert done.returncode == 6, done.stderr
    assert "leak_budget" in done.stderr
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr


def test_a_crew_ends_with_the_ray_node_of_this_machine(ray, tmp_path):
    crew = Crew("ray", 2, ray.address)
    assert list(crew.map(abs, [-1])) == [1]

    def kill():
        wait_until(lambda: list(tmp_path.glob("call-*")))
        ray.kill_head()

    with meanwhile(kill), pytest.raises(EngineError, match="Ray cluster should have its node on this machine until"):
        list(crew.map(lingering, range(8), tmp_path))
    (tmp_path / "go").touch()
    crew.end()
    assert not ray_is_connected()


def test_tables_of_one_plan_lie_with_ray_though_each_asks_for_all_its_cores(salaries):
    pytest.importorskip("ray")
    first, second = (placed_table(salaries, Crew("ray", 1), ids="id") for _ in range(2))
    with released(second):
        with released(first):
            assert list(first.map(len)) == list(second.map(len)) == [PARTITION_ROWS] * 2
        # The second uses the connection that the first has made.
        assert list(second.map(len)) == [PARTITION_ROWS] * 2
    assert not ray_is_connected()


def test_more_workers_than_a_ray_cluster_has_cores_are_refused(ray):
    crew = Crew("ray", 3, ray.address)
    said = "jobs is 3, and the nodes of the Ray cluster have 2 cores in all. Lower jobs under"
    with pytest.raises(PlanError, match=said):
        list(crew.map(abs, [-1]))
    assert not ray_is_connected()


@pytest.mark.parametrize("engine", ["ray", "dask"])
def test_without_a_number_there_is_a_worker_for_each_core_of_the_cluster(engine, request, salaries):
    crew = Crew(engine, None, request.getfixturevalue(engine).address)
    with released(placed_table(salaries, crew, ids="id")) as table:
        assert crew.n == 2
        assert len(set(table.map(own_pid))) == 2


@pytest.fixture
def stopped(ray):
    """A Ray cluster of which one node does nothing and does not say so; Ray itself needs a while to notice."""
    raylet = ray._node.all_processes["raylet"][0].process.pid
    os.kill(raylet, signal.SIGSTOP)
    yield ray
    os.kill(raylet, signal.SIGCONT)


def test_an_actor_that_does_not_begin_is_not_awaited_for_ever(stopped, monkeypatch):
    monkeypatch.setattr(cluster_workers, "START_SECONDS", 3)
    monkeypatch.setattr("colonnade.runtime.clusters._ray_versions", lambda ray, threads: {})
    crew = Crew("ray", 2, stopped.address)
    with pytest.raises(EngineError, match="room for a worker until the run is done, but a new one has not begun"):
        list(crew.map(abs, range(4)))
    crew.end()


def test_an_interruption_ends_the_wait_for_an_actor(stopped, monkeypatch):
    monkeypatch.setattr("colonnade.runtime.clusters._ray_versions", lambda ray, threads: {})
    crew, main = Crew("ray", 2, stopped.address), threading.main_thread().ident

    def interrupt() -> None:
        # Connecting takes a while on a busy machine, and Ray keeps an interruption of that to itself.
        wait_until(lambda: len(crew._workers) == 2)
        time.sleep(3)
        signal.pthread_kill(main, signal.SIGINT)

    with meanwhile(interrupt), pytest.raises(KeyboardInterrupt):
        list(crew.map(abs, range(4)))
    crew.end()
    assert not ray_is_connected()
