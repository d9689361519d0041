import os
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from colonnade.align.limits import Limits
from colonnade.crypto.profiles import HISTOGRAM, Budget
from colonnade.errors import BudgetSpent, PrivacyError
from colonnade.privacy.history import History, Records
from colonnade.privacy.ledger import Event, Ledger, entry_of
from colonnade.roles import Roles
from colonnade.secret import Secret
from colonnade.storage import SharedLog
from colonnade.tables.table import Table

FLIP = Event(Secret.LABELS, "label", "randomised-response", (("epsilon", 1.0), ("n_classes", 2)))
RECORDS = Records("rows", frozenset())


def answer(log: Path) -> int:
    """Answer one value at a time until the cap refuses; returns how many were answered."""
    answered = 0
    log.with_name("ready").touch()
    try:
        while True:
            Budget(HISTOGRAM, peer="bank", log=log, most=60).spend(1)
            answered += 1
    except BudgetSpent:
        return answered


def align(log: Path) -> int:
    """Align again and again until the cap refuses; returns how many alignments were let pass."""
    aligned = 0
    log.with_name("ready").touch()
    try:
        while True:
            Limits(most_runs=60, log=log).admit("shop", "bank", f"{os.getpid()} {aligned}")
            aligned += 1
    except PrivacyError:
        return aligned


def started(use: Callable[[Path], int], log: Path) -> subprocess.Popen[str]:
    """A process of its own that runs one of the functions of this file."""
    command = [sys.executable, __file__, use.__name__, str(log)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)


def ended(process: subprocess.Popen[str]) -> int:
    said, _ = process.communicate(timeout=120)
    assert process.returncode == 0
    return int(said)


@pytest.mark.parametrize("use", [answer, align])
def test_two_processes_in_parallel_cannot_exceed_a_cap(tmp_path, use):
    processes = [started(use, tmp_path / "log") for _ in range(2)]
    assert sum(map(ended, processes)) == 60


def spend(log: Path) -> int:
    """Release again and again until the budget refuses; returns how many releases were let pass."""
    released = 0
    log.with_name("ready").touch()
    try:
        while True:
            Ledger({Secret.LABELS: (60.0, 0.0)}, history=History(log, RECORDS)).spend(FLIP)
            released += 1
    except BudgetSpent:
        return released


@pytest.mark.parametrize(
    ("use", "entry"),
    [
        (answer, {"profile": HISTOGRAM.name, "peer": "bank", "data": "", "values": 60}),
        (align, [{"peer": "bank", "run": str(run), "what": "aligned"} for run in range(60)]),
        (spend, {"table": "rows", **entry_of(FLIP, 60), "identity": None}),
    ],
    ids=["answers", "alignments", "privacy"],
)
def test_a_process_waits_while_another_one_checks_and_then_sees_what_it_wrote(tmp_path, use, entry):
    log = tmp_path / "log"
    with SharedLog(log, "one thing").locked() as held:
        process = started(use, log)
        while not (tmp_path / "ready").exists():
            assert process.poll() is None
            time.sleep(0.01)
        # Without the lock the other process would pass its check by now.
        time.sleep(0.5)
        for each in entry if isinstance(entry, list) else [entry]:
            held.append(each)
    assert ended(process) == 0


def open_column(log: Path) -> None:
    # Imported here, because the processes above import this file and are to start quickly.
    from colonnade.models.glm.openings import Openings, RowSketch

    Openings(log).admit("shop", bytes(32), 1, RowSketch(np.arange(300, dtype=np.uint64), 300, 300), 64)


def ask_of_columns(log: Path) -> None:
    from colonnade.models.trees.budgets import LeakBudget
    from colonnade.runtime.simulate import simulate

    def protocol(party):
        if party.name == "shop":
            LeakBudget.of_sums(replace(party, answer_log=log), "bank", n_rows=3, per_row=9.0).spend(1)
            log.with_name("equations-of-shop").rename(log)

    tables = {name: Table.of({"id": [1, 2, 3], "x": [1.0, 2.0, 3.0]}) for name in ("bank", "shop")}
    simulate(protocol, tables, roles=Roles(label="bank", features=("shop",)))


@pytest.mark.parametrize(
    "count",
    [
        pytest.param(lambda log: Budget(HISTOGRAM, peer="bank", log=log).spend(1), id="answers"),
        pytest.param(lambda log: Limits(log=log).admit("shop", "bank", "run"), id="alignments"),
        pytest.param(lambda log: Ledger(history=History(log, RECORDS)).spend(FLIP), id="privacy"),
        pytest.param(open_column, id="openings"),
        pytest.param(ask_of_columns, id="equations"),
    ],
)
def test_what_was_checked_is_written_before_the_log_is_free_for_others(tmp_path, monkeypatch, count):
    sizes, locked = [], SharedLog.locked

    @contextmanager
    def watched(log):
        with locked(log) as held:
            yield held
            sizes.append(held.size)

    monkeypatch.setattr(SharedLog, "locked", watched)
    count(tmp_path / "log")
    assert sizes == [(tmp_path / "log").stat().st_size]
    assert sizes[0] > 0


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


def test_a_folder_that_a_log_makes_is_for_its_owner_alone(tmp_path):
    before = os.umask(0)
    try:
        with SharedLog(tmp_path / "counts" / "runs" / "log", "one thing").locked() as held:
            held.append({"n": 1})
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "counts", *tmp_path.glob("*/**/*"))}
    assert modes == {"counts": 0o700, "runs": 0o700, "log": 0o600}


if __name__ == "__main__":
    print({"answer": answer, "align": align, "spend": spend}[sys.argv[1]](Path(sys.argv[2])))
