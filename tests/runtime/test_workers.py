"""Workers compute what one process computes, in the same order, whoever of them is lost."""

import fcntl
import os
import resource
import signal
import sys
import threading
import time
import traceback
from collections import Counter
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from colonnade._version import code_version
from colonnade.align.state import FEW_POINTS, masked, multiplied, workers_for
from colonnade.crypto.curve import make_key
from colonnade.errors import DataError, EngineError, MissingExtra, PeerChanged, PlanError
from colonnade.roles import PublicPlan, Roles
from colonnade.runtime.answers import LocalWorker
from colonnade.runtime.cluster_workers import answer_if_same
from colonnade.runtime.party import Party
from colonnade.runtime.placed import Placed, ReadRecipe
from colonnade.runtime.workers import Crew, ThisProcess
from colonnade.tables.parts import Parts
from tests.runtime.tasks import n_calls, noted

KEY = make_key()
CHUNKS = [np.random.default_rng(i).integers(0, 256, (20, 16), dtype=np.uint8) for i in range(9)]


ALONE = Party.alone(PublicPlan(Roles(label="bank", features=("shop",)), "example"), "bank", None)


def pid_after(seconds):
    time.sleep(seconds)
    return os.getpid()


def end_itself(_):
    os.kill(os.getpid(), signal.SIGKILL)


def refuse(_):
    raise DataError("no good")


def test_processes_give_what_one_gives_in_the_order_of_the_chunks(crew):
    alone = ThisProcess()
    points = list(alone.map(masked, CHUNKS, KEY))
    assert all(map(np.array_equal, points, crew.map(masked, iter(CHUNKS), KEY)))
    assert all(map(np.array_equal, alone.map(multiplied, points, KEY), crew.map(multiplied, iter(points), KEY)))


def test_calls_of_the_same_length_are_dealt_out_evenly(crew):
    """A worker that was given more than the others would let them wait at the end."""
    list(crew.map(abs, range(4)))
    by = Counter(crew.map(pid_after, [0.05] * 40))
    assert min(by.values()) >= 17


def test_workers_that_are_killed_change_nothing(crew):
    def chunks():
        for number, chunk in enumerate(CHUNKS * 4):
            if number == 9:
                for process in crew.map(pid_after, [0.1, 0.1]):
                    os.kill(process, signal.SIGKILL)
            yield chunk

    assert all(map(np.array_equal, ThisProcess().map(masked, CHUNKS * 4, KEY), crew.map(masked, chunks(), KEY)))


def test_a_call_that_loses_every_worker_is_an_error_with_advice(crew):
    said = r"4 were ended from outside at one call.*--resume, with fewer workers or more memory for each"
    with pytest.raises(EngineError, match=said):
        list(crew.map(end_itself, [None]))


class Two(Exception):
    """An error that Python cannot make again from what it keeps of it."""

    def __init__(self, name, value):
        super().__init__(f"{name} is {value}")


class Locked(Exception):
    """An error with something that no other process can be given."""

    def __init__(self, value):
        super().__init__(f"the salary is {value}")
        self.lock = threading.Lock()


def raise_one(kind, folder):
    noted(folder, "call")
    if kind == "exit":
        sys.exit("the salary is 4321")
    raise Two("the salary", 4321) if kind == "two" else Locked(4321)


@pytest.mark.parametrize(
    ("kind", "named"),
    [
        ("two", "tests.runtime.test_workers.Two"),
        ("locked", "tests.runtime.test_workers.Locked"),
        ("exit", "SystemExit"),
    ],
)
def test_an_error_that_does_not_travel_is_named_without_its_text_and_tried_once(crew, kind, named, tmp_path):
    said = r"raise_one \(test_workers\.py, line \d+\) raised (\S+)\. Run the same on fewer rows without workers"
    with pytest.raises(EngineError, match=said) as found:
        list(crew.map(raise_one, [kind], tmp_path))
    assert named in str(found.value)
    assert "4321" not in "".join(traceback.format_exception(found.value))
    assert n_calls(tmp_path, "call") == 1


def raise_odd_key(_):
    raise KeyError(("x", 1, 0.5, None))


def test_an_error_of_plain_values_arrives_whatever_library_it_is_of(crew):
    with pytest.raises(pa.ArrowTypeError, match="Expected bytes, got a 'int' object"):
        list(crew.map(pa.array, [["a", 1]]))
    with pytest.raises(KeyError) as found:
        list(crew.map(raise_odd_key, [None]))
    assert found.value.args == (("x", 1, 0.5, None),)


class NotEnding(LocalWorker):
    """A worker that ends, and raises."""

    ended = 0

    def end(self):
        super().end()
        NotEnding.ended += 1
        raise OSError("no such worker")


def test_a_crew_ends_although_a_worker_does_not(monkeypatch):
    crew, closed = Crew(n=2), []
    monkeypatch.setattr("colonnade.runtime.workers.LocalWorker", NotEnding)
    list(crew.map(abs, range(4)))
    crew._connected.callback(closed.append, True)
    crew.end()
    assert NotEnding.ended == 2
    assert closed == [True]
    assert list(crew.map(abs, [-1])) == [1]
    crew.end()


def test_an_error_of_a_function_is_raised_as_it_is(crew):
    with pytest.raises(DataError, match="no good"):
        list(crew.map(refuse, [None]))


def ask_for_more(kind):
    raise MissingExtra("ray", "A worker") if kind == "extra" else PeerChanged("shop said something else.", "shop")


@pytest.mark.parametrize(("kind", "error"), [("extra", MissingExtra), ("peer", PeerChanged)])
def test_an_error_that_is_made_from_more_than_words_arrives_too(crew, kind, error):
    with pytest.raises(error) as found:
        list(crew.map(ask_for_more, [kind]))
    with pytest.raises(error) as wanted:
        ask_for_more(kind)
    assert str(found.value) == str(wanted.value)
    assert vars(found.value) == vars(wanted.value)


def test_workers_of_a_cluster_are_told_functions_that_they_can_import(tmp_path):
    """Ray would send the source of any other function along."""
    crew = Crew("ray")
    with pytest.raises(PlanError, match="import a function by its name"):
        list(crew.map(lambda item: item, [1]))
    pq.write_table(pa.table({"id": [1]}), tmp_path / "part.parquet")
    parts = Parts.of(tmp_path, "id", [], None)
    placed = Placed(crew, (0, 1), ReadRecipe("example", parts, {0: np.arange(1)}))
    with pytest.raises(PlanError, match="import a function by its name"):
        placed.then(lambda part: part)


def test_functions_that_are_handed_to_functions_are_told_by_their_names_too(tmp_path):
    crew = Crew("dask")
    pq.write_table(pa.table({"id": [1]}), tmp_path / "part.parquet")
    parts = Parts.of(tmp_path, "id", [], None)
    placed = Placed(crew, (0, 1), ReadRecipe("example", parts, {0: np.arange(1)}))
    for handed in (lambda item: item, partial(refuse, lambda item: item)):
        for asked in (
            lambda handed=handed: list(crew.map(map, [[1]], handed)),
            lambda handed=handed: list(placed.map(map, handed)),
            lambda handed=handed: placed.then(map, handed),
            lambda handed=handed: placed.then(map, per_part=[handed]),
        ):
            with pytest.raises(PlanError, match="import a function by its name"):
                asked()
    crew.require_known(map, refuse, partial(refuse, end_itself), 1, "x")


def test_a_worker_of_a_cluster_answers_no_other_version():
    """A node may join a cluster when versions have been compared already."""
    asked = ("crew", abs, (-2,), None, 0, None, ())
    assert answer_if_same(code_version(), *asked) == 2
    refused = answer_if_same("0.0.0+other", *asked)
    assert "A worker should have colonnade 0.0.0+other, as the process that asks has" in str(refused.error)
    assert isinstance(refused.error, PlanError)


def pages_cleared(n_times):
    """How many pages the system clears for the last of several times four pieces of 8 MiB."""
    for _ in range(n_times):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        pieces = [b"x" * 2**23 for _ in range(4)]
        found = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
        del pieces
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="only glibc gives freed memory back so eagerly")
def test_a_worker_uses_freed_memory_again(crew):
    (found,) = crew.map(pages_cleared, [3])
    assert found < 800


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has pipes of other sizes")
def test_a_worker_is_sent_a_megabyte_at_a_time(crew):
    list(crew.map(abs, range(4)))
    for worker in crew._workers.values():
        for pipe in (worker._pool._call_queue._writer, worker._pool._result_queue._reader):
            assert fcntl.fcntl(pipe.fileno(), fcntl.F_GETPIPE_SZ) == 2**20


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has pipes of other sizes")
@pytest.mark.parametrize("n", [1, 2, 8, 9, 32, 100])
def test_the_pipes_of_a_crew_leave_room_for_those_of_all_other_programs(n):
    """All pipes of a user share 64 MiB; when that is used up, every new one holds 8 KiB."""
    worker = LocalWorker(n)
    pipes = (worker._pool._call_queue._writer, worker._pool._result_queue._reader)
    sizes = [fcntl.fcntl(pipe.fileno(), fcntl.F_GETPIPE_SZ) for pipe in pipes]
    worker.end()
    assert n * sum(sizes) <= 2**24
    assert min(sizes) >= 2**16


def test_no_process_is_started_for_a_few_points():
    assert workers_for(FEW_POINTS - 1, 8, ALONE).n == 1
    assert workers_for(FEW_POINTS, 8, ALONE).n == 8


def test_there_is_one_worker_for_each_core_also_where_the_system_does_not_tell_which_may_be_used(monkeypatch):
    assert workers_for(FEW_POINTS, None, ALONE).n == len(os.sched_getaffinity(0))
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    assert workers_for(FEW_POINTS, None, ALONE).n == 6
