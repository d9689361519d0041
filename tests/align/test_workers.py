"""Workers compute what one process computes, in the same order."""

import os
import signal

import numpy as np
import pytest

from colonnade.align.workers import FEW_POINTS, Workers
from colonnade.crypto.curve import make_key
from colonnade.errors import CryptoError

KEY = make_key()
CHUNKS = [np.random.default_rng(i).integers(0, 256, (20, 16), dtype=np.uint8) for i in range(9)]


def test_processes_give_what_one_gives_in_the_order_of_the_chunks():
    alone, together = Workers(1), Workers(2, points=FEW_POINTS)
    masked = list(alone.mask(KEY, CHUNKS))
    assert all(map(np.array_equal, masked, together.mask(KEY, iter(CHUNKS))))
    assert all(map(np.array_equal, alone.multiply(KEY, masked), together.multiply(KEY, iter(masked))))


def test_a_worker_that_is_killed_is_an_error_with_advice():
    from joblib.externals.loky import get_reusable_executor

    def chunks():
        yield from CHUNKS
        for process in get_reusable_executor(max_workers=2, timeout=20)._processes.values():
            os.kill(process.pid, signal.SIGKILL)
        yield from CHUNKS * 50

    with pytest.raises(CryptoError, match=r"one of them was ended from outside.*--resume, and set workers"):
        list(Workers(2, points=FEW_POINTS).mask(KEY, chunks()))


def test_no_process_is_started_for_a_few_points():
    assert Workers(8, points=FEW_POINTS - 1)._n == 1
    assert Workers(8, points=FEW_POINTS)._n == 8


def test_there_is_one_worker_for_each_core_also_where_the_system_does_not_tell_which_may_be_used(monkeypatch):
    assert Workers(points=FEW_POINTS)._n == len(os.sched_getaffinity(0))
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    assert Workers(points=FEW_POINTS)._n == 6
