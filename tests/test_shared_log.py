import multiprocessing
import stat
from pathlib import Path

import pytest

from colonnade.align.limits import Limits
from colonnade.crypto.budget import Budget
from colonnade.crypto.profiles import HISTOGRAM
from colonnade.errors import BudgetSpent, PrivacyError
from colonnade.shared_log import SharedLog


def answer(log: Path) -> int:
    """Answer one value at a time until the cap refuses; returns how many were answered."""
    answered = 0
    try:
        while True:
            Budget(HISTOGRAM, peer="bank", log=log, most=60).spend(1)
            answered += 1
    except BudgetSpent:
        return answered


def align(log: Path) -> int:
    """Align again and again until the cap refuses; returns how many alignments were let pass."""
    aligned = 0
    try:
        while True:
            Limits(most_runs=60, log=log).admit("shop", "bank", f"{multiprocessing.current_process().pid} {aligned}")
            aligned += 1
    except PrivacyError:
        return aligned


@pytest.mark.parametrize("use", [answer, align])
def test_two_processes_in_parallel_cannot_exceed_a_cap(tmp_path, use):
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        assert sum(pool.map(use, [tmp_path / "log"] * 2, chunksize=1)) == 60


def test_a_log_is_for_its_owner_alone_and_forgets_no_whole_line(tmp_path):
    log = SharedLog(tmp_path / "runs" / "log", "one thing")
    assert log.entries() == []
    with log.locked() as held:
        held.append({"n": 1})
        begin = held.size
        held.append({"n": 2})
        assert held.entries(begin) == [{"n": 2}]
    assert stat.S_IMODE(log.path.stat().st_mode) == 0o600
    log.path.write_bytes(log.path.read_bytes() + b'{"n": 3')
    assert log.entries() == [{"n": 1}, {"n": 2}]
    with log.locked() as held:
        held.append({"n": 4})
    assert SharedLog(log.path, "one thing").entries() == [{"n": 1}, {"n": 2}, {"n": 4}]
