"""Executors: the same promises here, in processes and on clusters of two nodes, whatever is killed."""

import itertools
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import colonnade
from colonnade.errors import EngineError, MissingExtra, PlanError
from colonnade.experiment.sweep import Journal, sweep
from colonnade.runtime import clusters
from colonnade.runtime.executor import Dask, Executor, Local, Outcome, Ray, Serial
from colonnade.testing.ports import free_port
from tests.runtime import tasks
from tests.runtime.tasks import held, is_running, n_calls, pids, wait_until

PATH = os.pathsep.join([str(Path(colonnade.__path__[0]).parent), *filter(None, sys.path)])
LOOPBACK = "127.0.0.1"
LAST = len(tasks.TRIALS) - 1
DRAWN = pytest.mark.parametrize("seed", [0, 4])
"""Which deaths are drawn: a failure names its seed and its deaths, and comes again with them."""


def outcomes(executor: Executor, function: Any, given: Any) -> dict[int, Outcome]:
    return dict(executor.map_unordered(function, given))


class Engine:
    """What tests do with an engine."""

    executor: Executor

    def kill_worker(self, pid: int, *, above: bool) -> None:
        """Kill the worker that runs its task in this process, or the process above it, where it has one of its own."""
        os.kill(pid, signal.SIGKILL)

    def end(self) -> None:
        pass


class RayNodes(Engine):
    """Two nodes of a Ray cluster on this machine, one core each."""

    # Ray takes 127.0.0.1 for the address of the machine in its network, where nothing should listen.
    HOST = "127.0.0.2"

    def __init__(self) -> None:
        os.environ.update(RAY_USAGE_STATS_ENABLED="0", PYTHONPATH=PATH)
        from ray.cluster_utils import Cluster

        here = {"num_cpus": 1, "node_ip_address": self.HOST, "include_dashboard": False}
        self._cluster = Cluster(initialize_head=True, head_node_args=here)
        self._node = self._cluster.add_node(num_cpus=1, node_ip_address=self.HOST)
        self.address = self._cluster.address
        self.executor = Ray(self.address)

    def kill_a_node(self) -> None:
        raylet = self._node.all_processes["raylet"][0].process.pid
        os.kill(raylet, signal.SIGKILL)

    def kill_head(self) -> None:
        """Kill what this process is connected to."""
        os.kill(self._cluster.head_node.all_processes["raylet"][0].process.pid, signal.SIGKILL)

    def mend(self) -> None:
        self._cluster.remove_node(self._node, allow_graceful=False)
        self._node = self._cluster.add_node(num_cpus=1, node_ip_address=self.HOST)

    def end(self) -> None:
        self._cluster.shutdown()


class DaskNodes(Engine):
    """A scheduler of Dask and two workers, each below its own nanny."""

    def __init__(self) -> None:
        self.address = f"tcp://{LOOPBACK}:{free_port()}"
        self.executor = Dask(self.address)
        self._scheduler = self._start("scheduler", "--port", self.address.rpartition(":")[2])
        self._nannies = [self._worker(), self._worker()]
        self._wait()

    def _start(self, what: str, *options: str) -> subprocess.Popen[bytes]:
        quiet = ["--host", LOOPBACK, "--no-dashboard", "--dashboard-address", f"{LOOPBACK}:0"]
        command = [sys.executable, "-m", f"distributed.cli.dask_{what}", *options, *quiet]
        env = {**os.environ, "PYTHONPATH": PATH, "DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES": "0"}
        return subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def _worker(self) -> subprocess.Popen[bytes]:
        return self._start("worker", self.address, "--nthreads", "1", "--nworkers", "1")

    def _wait(self) -> None:
        import distributed

        with distributed.Client(self.address, timeout=30) as client:
            client.wait_for_workers(len(self._nannies), timeout=30)

    def kill_worker(self, pid: int, *, above: bool) -> None:
        # The worker's own process or the one below it, in which its task runs.
        parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        os.kill(parent if above else pid, signal.SIGKILL)

    def kill_a_node(self) -> None:
        self._nannies[1].kill()

    def kill_head(self) -> None:
        """Kill what this process is connected to."""
        self._scheduler.kill()

    def mend(self) -> None:
        self._nannies[1].wait()
        self._nannies[1] = self._worker()
        self._wait()

    def end(self) -> None:
        for process in (*self._nannies, self._scheduler):
            process.terminate()
            process.wait()


class Here(Engine):
    """This machine, which has no other node."""

    def __init__(self, executor: Executor) -> None:
        self.executor = executor


ENGINES: dict[str, Callable[[], Any]] = {
    "serial": lambda: Here(Serial()),
    "local": lambda: Here(Local(2)),
    "ray": RayNodes,
    "dask": DaskNodes,
}


@pytest.fixture(scope="module")
def engine(request: pytest.FixtureRequest) -> Iterator[Any]:
    engine = ENGINES[request.param]()
    yield engine
    engine.end()


@pytest.fixture
def executor(engine: Any) -> Executor:
    found: Executor = engine.executor
    return found


def engines(*names: str) -> pytest.MarkDecorator:
    slow = (pytest.mark.slow, pytest.mark.network)
    found = [pytest.param(name, marks=slow if name in ("ray", "dask") else (), id=name) for name in names]
    return pytest.mark.parametrize("engine", found, indirect=True, scope="module")


@engines("serial", "local", "ray", "dask")
class TestEveryExecutor:
    def test_gives_each_task_one_outcome_at_its_position(self, executor: Executor) -> None:
        found = outcomes(executor, tasks.square, [3, 1, 2])
        assert {index: outcome.value for index, outcome in found.items()} == {0: 9, 1: 1, 2: 4}
        assert {outcome.attempts for outcome in found.values()} == {1}

    def test_tries_a_task_that_raises_twice_and_then_reports_its_traceback(
        self, executor: Executor, tmp_path: Path
    ) -> None:
        (outcome,) = outcomes(executor, partial(tasks.refuse, tmp_path), [7]).values()
        assert outcome.failed
        assert outcome.attempts == n_calls(tmp_path, 7) == 2
        assert "in refuse" in str(outcome.traceback)
        assert "ValueError: 7 was refused" in str(outcome.traceback)

    def test_counts_a_task_that_exits_as_failed(self, executor: Executor) -> None:
        (outcome,) = outcomes(executor, tasks.leave, [3]).values()
        assert "SystemExit: 3" in str(outcome.traceback)

    def test_takes_a_task_only_when_it_can_start(self, executor: Executor) -> None:
        taken = []
        running = executor.map_unordered(tasks.square, (taken.append(n) or n for n in itertools.count()))
        next(running)
        running.close()
        assert len(taken) <= 2


@engines("local", "ray", "dask")
class TestEveryExecutorWithWorkers:
    def test_a_task_that_kills_its_worker_once_is_run_again(self, executor: Executor, tmp_path: Path) -> None:
        found = outcomes(executor, partial(tasks.die_or_square, tmp_path, 1), range(4))
        assert [found[index].value for index in range(4)] == [0, 1, 4, 9]
        assert [found[index].attempts for index in range(4)] == [1, 2, 1, 1]

    def test_a_task_that_kills_every_worker_fails_and_takes_no_other_with_it(
        self, executor: Executor, tmp_path: Path
    ) -> None:
        found = outcomes(executor, partial(tasks.die_or_square, tmp_path, 99), range(4))
        assert [index for index, outcome in found.items() if outcome.failed] == [1]
        assert re_lost(str(found[1].traceback))
        assert [found[index].attempts for index in range(4)] == [1, 4, 1, 1]
        assert n_calls(tmp_path, 1) == found[1].lost == 4

    def test_a_value_that_cannot_travel_fails_its_own_task_only(self, executor: Executor) -> None:
        found = outcomes(executor, tasks.lock_or_none, [0, 1])
        assert "cannot pickle '_thread.lock' object" in str(found[0].traceback)
        assert not found[1].failed

    def test_closing_the_generator_ends_the_tasks(self, executor: Executor, tmp_path: Path) -> None:
        running = executor.map_unordered(partial(tasks.sleep_after_the_first, tmp_path), range(2))
        next(running)
        wait_until(lambda: n_calls(tmp_path, 1) == 1)
        (asleep,) = pids(tmp_path, 1)
        assert is_running(asleep)
        running.close()
        wait_until(lambda: not is_running(asleep))

    def test_workers_use_the_number_of_threads_asked_for(self, executor: Executor) -> None:
        assert outcomes(executor, tasks.blas_threads, [0])[0].value == {1}


def re_lost(traceback: str) -> bool:
    """Whether the words of an engine say that a worker was lost."""
    return any(words in traceback for words in ("SIGKILL", "WorkerCrashedError", "KilledWorker"))


def test_a_worker_that_dies_while_idle_is_replaced() -> None:
    found: list[int] = []

    def given() -> Iterator[int]:
        yield 0
        os.kill(found[0], signal.SIGKILL)
        wait_until(lambda: not is_running(found[0]))
        yield 1

    for _, outcome in Local(1).map_unordered(tasks.own_pid, given()):
        assert not outcome.failed
        found.append(outcome.value)
    assert len(set(found)) == 2


@pytest.mark.slow
def test_a_worker_whose_memory_grows_is_replaced_between_tasks() -> None:
    found = outcomes(Local(1), tasks.grow, range(5))
    assert [found[index].attempts for index in range(5)] == [1] * 5
    assert len({outcome.value for outcome in found.values()}) > 1


def test_closing_the_generator_ends_the_workers(tmp_path: Path) -> None:
    running = Local(2).map_unordered(partial(tasks.sleep_after_the_first, tmp_path), range(2))
    next(running)
    wait_until(lambda: n_calls(tmp_path, "*") == 2)
    running.close()
    wait_until(lambda: not any(map(is_running, pids(tmp_path))))


def test_workers_use_the_number_of_threads_asked_for() -> None:
    assert outcomes(Local(1), tasks.blas_threads, [0])[0].value == {1}
    assert outcomes(Local(1, threads=2), tasks.blas_threads, [0])[0].value == {2}


@pytest.mark.parametrize("given", [{"n_jobs": 0}, {"threads": 0}])
@pytest.mark.parametrize("kind", [Local, Ray, Dask])
def test_no_worker_at_all_is_refused(kind: type[Local | Ray | Dask], given: dict[str, int]) -> None:
    with pytest.raises(PlanError) as error:
        kind(**given)
    (name,) = given
    assert str(error.value) == f"{name} should be 1 or more, but it is 0. Raise it or leave it out."


SWEEP = """
import sys
from pathlib import Path
from colonnade.plans.engine import PlannedEngine
from tests.runtime.tasks import sweep_in
print(sweep_in(Path(sys.argv[1]), PlannedEngine().with_options(sys.argv[2], 2).build()), end="")
"""


def sweeping(folder: Path, engine: str, **environment: str) -> subprocess.Popen[str]:
    """A sweep in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-c", SWEEP, str(folder), engine],
        env={**os.environ, "PYTHONPATH": PATH, **environment},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def n_begun(folder: Path) -> int:
    return n_calls(folder, "[0-9]")


@contextmanager
def meanwhile(*steps: Callable[[], None]) -> Iterator[None]:
    """Do something beside the block, one step after the other."""
    thread = threading.Thread(target=lambda: [step() for step in steps])
    thread.start()
    yield
    thread.join()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The hash of the table of a sweep that nothing disturbs."""
    return tasks.sweep_in(tmp_path_factory.mktemp("undisturbed"), Serial())


@pytest.mark.slow
@engines("local", "ray", "dask")
class TestEverySweep:
    def test_gives_the_same_table_for_any_number_of_workers(
        self, engine: Any, undisturbed: str, tmp_path: Path
    ) -> None:
        one = type(engine.executor)(**{**vars(engine.executor), "n_jobs": 1})
        assert tasks.sweep_in(tmp_path, one) == undisturbed

    @DRAWN
    def test_gives_the_same_table_though_workers_are_killed(
        self, engine: Any, undisturbed: str, tmp_path: Path, seed: int
    ) -> None:
        def kill_during(n: int, above: bool) -> None:
            wait_until(lambda: any(map(is_running, pids(tmp_path, n))))
            engine.kill_worker(next(filter(is_running, pids(tmp_path, n))), above=above)
            held(tmp_path, n).unlink()

        chance = random.Random(seed)
        deaths = {n: chance.random() < 0.5 for n in (chance.randint(0, 3), chance.randint(4, 9))}
        told = f"seed {seed}: workers die in trials {[*deaths]}, their parents {[*deaths.values()]}"
        for n in deaths:
            held(tmp_path, n).touch()
        with meanwhile(*(partial(kill_during, n, above) for n, above in deaths.items())):
            assert tasks.sweep_in(tmp_path, engine.executor) == undisturbed, told
        assert all(n_calls(tmp_path, n) > 1 for n in deaths), told

    @DRAWN
    def test_gives_the_same_table_though_it_is_killed_itself(
        self, engine: Any, undisturbed: str, tmp_path: Path, seed: int
    ) -> None:
        chance = random.Random(seed)
        deaths = [(chance.randint(0, 2), chance.random() / 5) for _ in range(2)]
        told = f"seed {seed}: the sweep dies after more than so many further trials, and seconds: {deaths}"
        named = type(engine.executor).__name__.lower()
        where = f"{named}:{engine.address}" if hasattr(engine, "address") else named
        # However slow this process is, something is left to do.
        held(tmp_path, LAST).touch()
        for more, seconds in deaths:
            process, before = sweeping(tmp_path, where), n_begun(tmp_path)
            wait_until(lambda enough=before + more: n_begun(tmp_path) > enough)
            time.sleep(seconds)
            process.kill()
            process.communicate()
        held(tmp_path, LAST).unlink()
        assert sweeping(tmp_path, where).communicate()[0] == undisturbed, told


@engines("ray", "dask")
def test_a_trial_that_no_node_can_hold_is_refused(engine: Any) -> None:
    kind, where = type(engine.executor), engine.address
    for asked in ({"threads": 4096}, {"gpus": 1}):
        with pytest.raises(PlanError) as error:
            outcomes(kind(where, **asked), tasks.square, [0])
        assert "A trial should fit on a node, but it wants" in str(error.value)
        assert "Lower cores_per_job or gpus_per_job under [engine], or add a larger node." in str(error.value)


@engines("ray", "dask")
@DRAWN
def test_a_sweep_gives_the_same_table_though_a_node_is_killed(
    engine: Any, undisturbed: str, tmp_path: Path, seed: int
) -> None:
    at = random.Random(seed).randint(2, 6)

    def kill_a_node() -> None:
        wait_until(lambda: n_begun(tmp_path) >= at)
        engine.kill_a_node()

    with meanwhile(kill_a_node):
        assert tasks.sweep_in(tmp_path, engine.executor) == undisturbed, f"seed {seed}: a node dies at trial {at}"
    engine.mend()


@pytest.mark.slow
@pytest.mark.network
@pytest.mark.parametrize("name", ["ray", "dask"])
def test_a_sweep_whose_cluster_is_lost_says_so_and_goes_on_elsewhere(
    name: str, undisturbed: str, tmp_path: Path
) -> None:
    engine = ENGINES[name]()
    held(tmp_path, LAST).touch()
    try:
        with (
            meanwhile(lambda: wait_until(lambda: n_begun(tmp_path) >= 2), engine.kill_head),
            pytest.raises(EngineError, match="finished trials are kept"),
        ):
            tasks.sweep_in(tmp_path, engine.executor)
    finally:
        engine.end()
    held(tmp_path, LAST).unlink()
    with Journal(tmp_path / "journal.sqlite") as journal:
        assert set(journal.states().values()) <= {"queued", "done"}
    assert tasks.sweep_in(tmp_path, Local(2)) == undisturbed


def processes_with(variable: str) -> list[int]:
    """The processes, other than zombies, that have a variable in their environment."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if variable.encode() in path.read_bytes().split(b"\0") and is_running(int(path.parent.name)):
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


@pytest.mark.slow
@pytest.mark.network
@pytest.mark.parametrize("name", ["ray", "dask"])
def test_a_cluster_that_was_started_for_a_sweep_ends_with_it(name: str, undisturbed: str, tmp_path: Path) -> None:
    held(tmp_path, LAST).touch()
    for end in (signal.SIGINT, signal.SIGKILL):
        mark, before = f"{name}-{end.name}-{os.getpid()}", n_begun(tmp_path)
        process = sweeping(tmp_path, name, MARK=mark)
        wait_until(lambda before=before: n_begun(tmp_path) > before)
        os.killpg(process.pid, end)
        process.communicate()
        wait_until(lambda mark=mark: not processes_with(f"MARK={mark}"))
    held(tmp_path, LAST).unlink()
    assert sweeping(tmp_path, name).communicate()[0] == undisturbed


@pytest.mark.parametrize("kind", [Ray, Dask])
def test_a_function_that_workers_cannot_import_is_refused(kind: type[Ray | Dask]) -> None:
    def inner(n: int) -> int:
        return n

    here = f"tests.runtime.test_executor.{__name__}"
    for function, name in ((lambda n: n, "<lambda>"), (partial(partial, inner), "inner")):
        with pytest.raises(PlanError) as error:
            outcomes(kind(), function, [0])
        assert str(error.value).startswith(
            "A cluster's workers import a function by its name, so it should stand at the top of an installed module, "
            "but 'test_a_function_that_workers_cannot_import_is_refused.<locals>."
        ), here
        assert name in str(error.value)


@pytest.mark.parametrize("kind", [Ray, Dask])
def test_without_tasks_nothing_is_started(kind: type[Ray | Dask]) -> None:
    assert outcomes(kind("no such place"), tasks.square, []) == {}


@pytest.mark.network
@pytest.mark.parametrize("kind", [Ray, Dask])
def test_an_engine_that_cannot_be_reached_says_so_and_the_trials_stay_queued(
    kind: type[Ray | Dask], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clusters, "CONNECT_SECONDS", 0.5)
    address = f"{LOOPBACK}:{free_port()}"
    with Journal(tmp_path / "journal.sqlite") as journal:
        with pytest.raises(EngineError) as error:
            sweep(partial(tasks.drawn, tmp_path), tasks.TRIALS, journal=journal, executor=kind(address))
        assert set(journal.states().values()) == {"queued"}
    assert str(error.value).startswith(
        f"The engine {kind.__name__.lower()} should answer at {address} within 0.5 seconds"
    )
    assert str(error.value).endswith("Start the cluster or correct the address; finished trials are kept.")


@pytest.mark.parametrize(("kind", "extra"), [(Ray, "ray"), (Dask, "dask")])
def test_a_missing_extra_is_named(kind: type[Ray | Dask], extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(MissingExtra) as error:
        outcomes(kind(), tasks.square, [0])
    assert str(error.value) == (
        f"The engine '{extra}' needs the extra '{extra}', which is not installed. Run: pip install 'colonnade[{extra}]'"
    )
