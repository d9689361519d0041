"""Workers compute what one process computes, in the same order, whoever of them is lost."""

import fcntl
import os
import resource
import signal
import sys
import time
from collections import Counter

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from colonnade._version import code_version
from colonnade.align.state import FEW_POINTS, masked, multiplied, workers_for
from colonnade.crypto.curve import make_key
from colonnade.errors import DataError, EngineError, MissingExtra, PeerChanged, PlanError
from colonnade.roles import PublicPlan, Roles
from colonnade.runtime.cluster_workers import answer_if_same
from colonnade.runtime.party import Party
from colonnade.runtime.placed import Placed, ReadRecipe
from colonnade.runtime.workers import Crew, ThisProcess
from colonnade.tables.parts import Parts

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
    with pytest.raises(EngineError, match=r"4 of them were ended from outside.*--resume, and use fewer workers"):
        list(crew.map(end_itself, [None]))


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


def test_a_worker_of_a_cluster_answers_no_other_version():
    """A node may join a cluster when versions have been compared already."""
    asked = (abs, (-2,), None, 0, None, ())
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


def test_no_process_is_started_for_a_few_points():
    assert workers_for(FEW_POINTS - 1, 8, ALONE).n == 1
    assert workers_for(FEW_POINTS, 8, ALONE).n == 8


def test_there_is_one_worker_for_each_core_also_where_the_system_does_not_tell_which_may_be_used(monkeypatch):
    assert workers_for(FEW_POINTS, None, ALONE).n == len(os.sched_getaffinity(0))
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    assert workers_for(FEW_POINTS, None, ALONE).n == 6
