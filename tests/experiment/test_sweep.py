import json
import os
import pty
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import colonnade
from colonnade.errors import PlanError, StorageError
from colonnade.experiment.sweep import Journal, Trial, code_version, sweep
from colonnade.runtime.executor import Local, Outcome, Serial
from tests.runtime.tasks import is_running, n_calls, noted, wait_until

# Workers cannot import a test module by its name.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

SOURCE = Path(colonnade.__path__[0])
NOBODY = 65534


def python(script: str, *arguments: object, **options: Any) -> subprocess.Popen[str]:
    """A fresh interpreter that runs a script after these lines."""
    prelude = """
        import os, signal, sys, time
        from pathlib import Path
        from colonnade.runtime.executor import *
        from colonnade.experiment.sweep import *
        folder = Path(sys.argv[1])
        trials = [Trial({"n": n}, seed=0) for n in range(4)]
    """
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(prelude) + textwrap.dedent(script), *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(SOURCE.parent), *filter(None, sys.path)])},
        stdout=subprocess.PIPE,
        text=True,
        **options,
    )


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    with Journal(tmp_path / "journal.sqlite") as journal:
        yield journal


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


def turned(value: Any) -> Any:
    """An equal value whose mappings have another order and whose small integers are floats."""
    if isinstance(value, dict):
        return {key: turned(inner) for key, inner in reversed(value.items())}
    if isinstance(value, list):
        return [turned(inner) for inner in value]
    return float(value) if type(value) is int and abs(value) < 2**53 else value


@given(st.dictionaries(st.sampled_from("abcde"), PLAIN.filter(lambda value: not isinstance(value, dict))))
def test_equal_configurations_have_equal_keys(configuration: dict[str, Any]) -> None:
    assert Trial(configuration, 1).key == Trial(turned(configuration), 1).key


def test_different_trials_have_different_keys() -> None:
    different = [
        Trial({"a": 1}, 0),
        Trial({"a": 1}, 1),
        Trial({"a": True}, 0),
        Trial({"a": "1"}, 0),
        Trial({"a": [1]}, 0),
        Trial({"a": {"a": 1}}, 0),
        Trial({"a": 1.5}, 0),
        Trial({"a": None}, 0),
        Trial({"a": float("inf")}, 0),
        Trial({}, 0),
    ]
    assert len({trial.key for trial in different}) == len(different)


def test_numpy_numbers_and_tuples_become_plain() -> None:
    trial = Trial({"a": np.float64(0.5), "b": (np.int64(3), np.bool_(True))}, np.int64(2))
    assert trial == Trial({"a": 0.5, "b": [3, True]}, 2)
    assert json.dumps(trial.configuration) == '{"a": 0.5, "b": [3, true]}'


def test_later_changes_to_the_mapping_given_do_not_reach_the_trial() -> None:
    configuration = {"a": [1]}
    trial = Trial(configuration, 0)
    configuration["a"].append(2)
    assert trial.key == Trial({"a": [1]}, 0).key


@pytest.mark.parametrize(
    ("configuration", "seed", "message"),
    [
        (
            {"model": {"layers": [64, {32}]}},
            0,
            "'model.layers[1]' in a trial's configuration should be a number, text, true or false, null, or a list or "
            "mapping of these, but it is a set. Convert it first.",
        ),
        (
            {"model": {3: "a"}},
            0,
            "The names in a trial's configuration should be text, but 3 is not. Turn it into text.",
        ),
        (
            ["model"],
            0,
            "A trial's configuration should be a mapping of names to values, but it is a list. Give each value a name.",
        ),
        (
            {"a.b": 1, "a": {"b": 2}, "trial": {"key": 3}},
            0,
            "The names in a trial's configuration and result should be different columns outside of 'trial.', but "
            "these are taken: a.b, trial.key. Rename them.",
        ),
        ({}, -1, "A trial's seed should be an integer from 0 to 2**63 - 1, but it is -1. Change it."),
        ({}, 0.5, "A trial's seed should be an integer from 0 to 2**63 - 1, but it is 0.5. Change it."),
    ],
)
def test_a_trial_that_cannot_be_written_down_is_refused(configuration: Any, seed: Any, message: str) -> None:
    with pytest.raises(PlanError) as error:
        Trial(configuration, seed)
    assert str(error.value) == message


def test_the_code_version_changes_with_the_source_and_with_nothing_else(tmp_path: Path) -> None:
    script = "print(code_version())"
    copy = tmp_path / "colonnade"
    shutil.copytree(SOURCE, copy, ignore=shutil.ignore_patterns("__pycache__"))

    def version_of_copy() -> str:
        command = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        command += "from colonnade.experiment import sweep; assert sweep.__file__.startswith(sys.path[0])\n"
        command += "print(sweep.code_version())"
        return subprocess.run([sys.executable, "-c", command], capture_output=True, text=True, check=True).stdout

    assert python(script, tmp_path).communicate()[0] == version_of_copy() == f"{code_version()}\n"
    with (copy / "secret.py").open("a") as file:
        file.write("\n")
    assert version_of_copy() != f"{code_version()}\n"


def test_a_trial_under_other_code_is_another_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a result that other code computed would be passed off as this code's."""
    before, digest = Trial({"noise": 0.1}, seed=0).key, Trial({"noise": 0.1}, seed=0).digest
    monkeypatch.setattr("colonnade.experiment.sweep.code_version", lambda: "0.0.0+other")
    assert Trial({"noise": 0.1}, seed=0).key != before
    assert Trial({"noise": 0.1}, seed=0).digest == digest


TRIAL = Trial({"noise": 0.1}, seed=0)


def test_a_trial_is_claimed_once(journal: Journal) -> None:
    journal.add([TRIAL], function="train")
    with Journal(journal.path) as other:
        assert journal.claim(TRIAL)
        assert not journal.claim(TRIAL)
        assert not other.claim(TRIAL)


def test_a_trial_of_a_living_journal_is_not_taken_away(journal: Journal) -> None:
    journal.add([TRIAL], function="train")
    assert journal.claim(TRIAL)
    with Journal(journal.path) as other:
        other.requeue_abandoned()
        assert other.states() == {TRIAL.key: "running"}


def test_a_trial_of_a_closed_journal_is_queued_again(journal: Journal) -> None:
    journal.add([TRIAL], function="train")
    with Journal(journal.path) as other:
        assert other.claim(TRIAL)
    journal.requeue_abandoned()
    assert journal.states() == {TRIAL.key: "queued"}


def test_a_trial_of_a_killed_process_is_queued_again(journal: Journal) -> None:
    journal.add([TRIAL], function="train")
    script = """
        journal = Journal(folder)
        assert journal.claim(Trial({"noise": 0.1}, seed=0))
        os.kill(os.getpid(), signal.SIGKILL)
    """
    process = python(script, journal.path)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert journal.states() == {TRIAL.key: "running"}
    journal.requeue_abandoned()
    assert journal.states() == {TRIAL.key: "queued"}
    assert list(journal.path.parent.glob("*.lock")) == []


def test_a_finished_trial_cannot_be_finished_by_one_who_lost_it(journal: Journal) -> None:
    journal.add([TRIAL], function="train")
    assert journal.claim(TRIAL)
    journal.release()
    journal.finish(TRIAL, Outcome({"auc": 1.0}))
    assert journal.states() == {TRIAL.key: "queued"}


def test_a_quarantined_trial_rests_until_it_is_released(journal: Journal) -> None:
    journal.add([TRIAL], function="train")
    assert journal.claim(TRIAL)
    journal.finish(TRIAL, Outcome(traceback="no \udc80 luck", attempts=2))
    assert not journal.claim(TRIAL)
    assert journal.table()["trial.traceback"].to_pylist() == ["no \\udc80 luck"]
    journal.requeue_quarantined()
    assert journal.claim(TRIAL)
    assert journal.table()["trial.attempts"].to_pylist() == [3]


def test_the_table_has_a_column_for_each_name_in_configurations_and_results(journal: Journal) -> None:
    results = {
        Trial({"model": {"width": 8}, "clip": 1}, 5): {"auc": 0.5, "by": {"epoch": [1, 2]}},
        Trial({"model": {"width": 16, "deep": True}, "clip": "none"}, 6): {"auc": 1},
    }
    journal.add([*results, TRIAL], function="train")
    for trial, result in results.items():
        assert journal.claim(trial)
        journal.finish(trial, Outcome(result, seconds=1.5))
    table = journal.table()
    assert table.drop_columns(["trial.key", "trial.code_version", "trial.started"]).to_pydict() == {
        "model.width": [8, 16, None],
        "clip": ["1", '"none"', None],
        "model.deep": [None, True, None],
        "noise": [None, None, 0.1],
        "auc": [0.5, 1.0, None],
        "by.epoch": [[1, 2], None, None],
        "trial.seed": [5, 6, 0],
        "trial.state": ["done", "done", "queued"],
        "trial.attempts": [1, 1, 0],
        "trial.seconds": [1.5, 1.5, None],
        "trial.traceback": [None, None, None],
    }
    assert journal.table([TRIAL, TRIAL])["noise"].to_pylist() == [0.1, 0.1]


def test_an_empty_journal_has_an_empty_table(journal: Journal) -> None:
    table = journal.table()
    assert table.num_rows == 0
    assert "trial.key" in table.column_names


def test_a_table_of_trials_that_were_never_added_is_refused(journal: Journal) -> None:
    with pytest.raises(PlanError) as error:
        journal.table([TRIAL])
    assert str(error.value) == (
        f"The journal {journal.path} should hold all 1 trials asked for, but 1 of them are missing. "
        "Sweep over them first, with this version of the code."
    )


def test_one_journal_does_not_mix_two_functions(journal: Journal) -> None:
    journal.add([TRIAL], function="mine.train")
    with pytest.raises(PlanError) as error:
        sweep(square_trial, [TRIAL], journal=journal, executor=Serial())
    assert str(error.value) == (
        f"The trials of this sweep should belong to {__name__}.square_trial, but in the journal {journal.path} some "
        "belong to mine.train. Give each function its own journal."
    )


@contextmanager
def folder_for_anybody() -> Iterator[Path]:
    """A folder that every user may read, removed in the end by the user who made it."""
    user = os.geteuid()
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        os.seteuid(user)
        folder.chmod(0o755)
        shutil.rmtree(folder)


def storage_message(path: Path, reason: str, act: str = "Choose another path") -> str:
    return (
        f"The journal {path} should be a SQLite file that can be written, but SQLite or the system says: {reason}. "
        f"{act}, then run again; finished trials are kept."
    )


def close_to_writers(folder: Path) -> None:
    folder.chmod(0o555)
    for path in folder.iterdir():
        path.chmod(0o444)
    if os.geteuid() == 0:
        os.seteuid(NOBODY)  # Root may write anywhere.


@pytest.mark.parametrize(
    ("exists", "reason"),
    [(False, "unable to open database file"), (True, "attempt to write a readonly database")],
)
def test_a_folder_that_cannot_be_written_is_refused(exists: bool, reason: str) -> None:
    with folder_for_anybody() as folder:
        if exists:
            Journal(folder / "journal.sqlite").close()
        close_to_writers(folder)
        with pytest.raises(StorageError) as error:
            Journal(folder / "journal.sqlite")
    act = "Choose a folder that can be written"
    assert str(error.value) == storage_message(folder / "journal.sqlite", reason, act)


@pytest.mark.parametrize("crashed", [False, True])
def test_a_journal_that_cannot_be_written_is_read_as_it_was_left(crashed: bool) -> None:
    with folder_for_anybody() as folder:
        written = Journal(folder / "journal.sqlite")
        written.add([TRIAL], function="train")
        assert written.claim(TRIAL)
        written.finish(TRIAL, Outcome({"auc": 1.0}))
        if not crashed:
            written.close()
        names = {path.name for path in folder.iterdir()}
        assert ("journal.sqlite-wal" in names) == crashed
        close_to_writers(folder)
        with Journal(folder / "journal.sqlite", read_only=True) as journal:
            assert journal.table()["auc"].to_pylist() == [1.0]
        assert {path.name for path in folder.iterdir()} == names
    written.close()


def test_reading_a_journal_makes_and_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    with Journal(path) as journal:
        journal.add([TRIAL], function="train")
    before, other = path.read_bytes(), Trial({"noise": 0.2}, seed=0)
    with Journal(path, read_only=True) as journal:
        table = journal.table([TRIAL, other], complete=False)
        assert table["noise"].to_pylist() == [0.1, 0.2]
        assert table["trial.state"].to_pylist() == ["queued", "queued"]
        with pytest.raises(StorageError, match="attempt to write a readonly database"):
            journal.add([other], function="train")
    assert [(each.name, each.read_bytes()) for each in tmp_path.iterdir()] == [(path.name, before)]


def test_a_journal_that_is_not_there_is_not_made_to_be_read(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    with pytest.raises(StorageError) as error:
        Journal(path, read_only=True)
    assert str(error.value) == (
        f"The journal {path} should be a SQLite file that can be read, but SQLite or the system says: unable to open "
        "database file. Check the path and who may read it."
    )
    assert list(tmp_path.iterdir()) == []


def test_a_path_below_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    path = tmp_path / "file" / "deep" / "journal.sqlite"
    with pytest.raises(StorageError) as error:
        Journal(path)
    assert str(error.value) == storage_message(path, f"[Errno 20] Not a directory: '{path.parent}'")


def test_a_file_that_is_no_journal_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    path.write_bytes(b"something else" * 1000)
    with pytest.raises(StorageError) as error:
        Journal(path)
    assert str(error.value) == storage_message(path, "file is not a database")


def test_a_disk_that_takes_no_more_ends_the_sweep_and_loses_nothing_that_was_finished(tmp_path: Path) -> None:
    script = """
        import resource
        from colonnade.errors import StorageError
        resource.setrlimit(resource.RLIMIT_FSIZE, (150_000, resource.RLIM_INFINITY))
        def work(trial):
            return {"text": "x" * 10_000}
        trials = [Trial({"n": n}, seed=0) for n in range(100)]
        try:
            sweep(work, trials, journal=Journal(folder / "journal.sqlite"), executor=Serial())
        except StorageError as error:
            print(error, end="")
    """
    message, _ = python(script, tmp_path).communicate()
    assert message == storage_message(tmp_path / "journal.sqlite", "disk I/O error", "Free some space")
    with Journal(tmp_path / "journal.sqlite") as journal:
        states = list(journal.states().values())
        assert 0 < states.count("done") < 100
        assert journal.table()["text"].to_pylist().count("x" * 10_000) == states.count("done")


def square_trial(trial: Trial) -> dict[str, Any]:
    return {"square": trial.configuration["n"] ** 2}


def numbered(*numbers: int) -> list[Trial]:
    return [Trial({"n": n}, seed=n) for n in numbers]


def noted_square(folder: Path, trial: Trial) -> dict[str, Any]:
    noted(folder, trial.configuration["n"])
    return square_trial(trial)


def test_a_sweep_returns_results_in_order_and_runs_only_what_is_missing(tmp_path: Path, journal: Journal) -> None:
    work = partial(noted_square, tmp_path)
    first = sweep(work, numbered(1, 2, 1), journal=journal, executor=Serial())
    assert first["square"].to_pylist() == [1, 4, 1]
    second = sweep(work, numbered(3, 2, 1), journal=journal, executor=Serial())
    assert second["square"].to_pylist() == [9, 4, 1]
    assert [n_calls(tmp_path, n) for n in (1, 2, 3)] == [1, 1, 1]


def test_a_sweep_over_no_trials_is_an_empty_table(journal: Journal) -> None:
    assert sweep(square_trial, [], journal=journal, executor=Serial()).num_rows == 0


def troubled(folder: Path, trial: Trial) -> dict[str, Any]:
    n = trial.configuration["n"]
    if noted(folder, n) and n == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if n == 2:
        raise ValueError("2 was refused")
    return {"square": n * n}


def test_trials_that_fail_twice_or_lose_four_workers_are_quarantined_with_their_traceback(
    tmp_path: Path, journal: Journal
) -> None:
    work = partial(troubled, tmp_path)
    table = sweep(work, numbered(0, 1, 2, 3), journal=journal, executor=Local(2))
    assert table["square"].to_pylist() == [0, None, None, 9]
    assert table["trial.state"].to_pylist() == ["done", "quarantined", "quarantined", "done"]
    assert table["trial.attempts"].to_pylist() == [1, 4, 2, 1]
    tracebacks = table["trial.traceback"].to_pylist()
    assert "SIGKILL" in tracebacks[1]
    assert "ValueError: 2 was refused" in tracebacks[2]
    assert tracebacks[0] is tracebacks[3] is None
    assert sweep(work, numbered(0, 1, 2, 3), journal=journal, executor=Serial()).equals(table)


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (0.5, "A trial's result should be a mapping of names to values, but it is a float."),
        ({"auc": {1}}, "'auc' in a trial's result should be a number, text, true or false, null, or a list or mapping"),
        ({"n": 1}, "but these are taken: n. Rename them."),
    ],
)
def test_a_result_that_cannot_be_written_down_is_quarantined(result: Any, message: str, journal: Journal) -> None:
    table = sweep(lambda trial: result, numbered(1), journal=journal, executor=Serial())
    assert table["trial.state"].to_pylist() == ["quarantined"]
    assert message in table["trial.traceback"].to_pylist()[0]


def draw(trial: Trial) -> dict[str, Any]:
    import torch

    matrix = np.random.normal(size=(200, 80))
    return {
        "python": random.random(),
        "numpy": float(np.linalg.svd(matrix)[0].sum()),
        "torch": float(torch.randn(100_000).sum()),
    }


@pytest.mark.slow
def test_results_depend_on_the_trial_and_not_on_the_number_of_workers(tmp_path: Path) -> None:
    found = []
    for n_jobs, order in ((1, (0, 1, 2, 3)), (2, (3, 1, 2, 0))):
        with Journal(tmp_path / f"{n_jobs}.sqlite") as journal:
            sweep(draw, numbered(*order), journal=journal, executor=Local(n_jobs))
            found.append(journal.table(numbered(0, 1, 2, 3)).select(["python", "numpy", "torch"]).to_pydict())
    assert found[0] == found[1]
    assert all(len(set(values)) == 4 for values in found[0].values())


def loaded(trial: Trial) -> dict[str, Any]:
    return {"torch": "torch" in sys.modules}


def test_a_trial_without_pytorch_does_not_wait_for_its_import(journal: Journal) -> None:
    assert sweep(loaded, numbered(1), journal=journal, executor=Local(1))["torch"].to_pylist() == [False]


def test_a_serial_sweep_leaves_the_global_generators_as_they_were(journal: Journal) -> None:
    import torch

    before = random.getstate(), np.random.get_state(legacy=False), torch.get_rng_state()
    sweep(draw, numbered(1), journal=journal, executor=Serial())
    after = random.getstate(), np.random.get_state(legacy=False), torch.get_rng_state()
    assert before[0] == after[0]
    assert str(before[1]) == str(after[1])
    assert torch.equal(before[2], after[2])


KILLED = """
    def work(trial):
        n = trial.configuration["n"]
        (folder / f"{n}-{os.getpid()}").touch()
        time.sleep(600 if n >= 2 and not (folder / "go").exists() else 0)
        return {"square": n * n}
    with Journal(folder / "journal.sqlite") as journal:
        try:
            print(sweep(work, trials, journal=journal, executor=Local(2))["square"].to_pylist(), end="")
        except KeyboardInterrupt:
            print(sorted(journal.states().values()), end="")
"""


def started_pids(folder: Path) -> set[int]:
    return {int(path.name.split("-")[1]) for path in folder.glob("[0-9]-*")}


@pytest.mark.slow
def test_a_sweep_that_was_killed_goes_on_where_it_was(tmp_path: Path) -> None:
    killed = python(KILLED, tmp_path, stderr=subprocess.DEVNULL)
    wait_until(lambda: n_calls(tmp_path, 2) and n_calls(tmp_path, 3))
    killed.kill()
    killed.communicate()
    with Journal(tmp_path / "journal.sqlite") as journal:
        assert sorted(journal.states().values()) == ["done", "done", "running", "running"]
    wait_until(lambda: not any(map(is_running, started_pids(tmp_path))))
    (tmp_path / "go").touch()
    assert python(KILLED, tmp_path).communicate()[0] == "[0, 1, 4, 9]"
    assert [n_calls(tmp_path, n) for n in range(4)] == [1, 1, 2, 2]


@pytest.mark.slow
def test_a_sweep_that_is_interrupted_leaves_nothing_running(tmp_path: Path) -> None:
    process = python(KILLED, tmp_path, start_new_session=True, stderr=subprocess.PIPE)
    wait_until(lambda: n_calls(tmp_path, 2) and n_calls(tmp_path, 3))
    os.killpg(process.pid, signal.SIGINT)
    assert process.communicate() == ("['done', 'done', 'queued', 'queued']", "")
    wait_until(lambda: not any(map(is_running, started_pids(tmp_path))))
    assert list(tmp_path.glob("*.lock")) == []


SHARED = """
    def work(trial):
        n = trial.configuration["n"]
        (folder / f"{n}-{os.getpid()}").touch()
        while len({path.name.split("-")[1] for path in folder.glob("[0-9]-*")}) < 2:
            time.sleep(0.02)
        return {"square": n * n}
    with Journal(folder / "journal.sqlite") as journal:
        print(sweep(work, trials, journal=journal, executor=Serial())["square"].to_pylist(), end="")
"""


@pytest.mark.slow
def test_two_processes_share_the_trials_of_one_journal(tmp_path: Path) -> None:
    both = [python(SHARED, tmp_path), python(SHARED, tmp_path)]
    assert [process.communicate()[0] for process in both] == ["[0, 1, 4, 9]", "[0, 1, 4, 9]"]
    assert started_pids(tmp_path) == {process.pid for process in both}
    assert [n_calls(tmp_path, n) for n in range(4)] == [1, 1, 1, 1]


def read_terminal(terminal: int) -> bytes:
    try:
        return os.read(terminal, 4096)
    except OSError:  # Linux says so when the other end is closed.
        return b""


@pytest.mark.parametrize("progress", [True, False])
def test_a_bar_is_drawn_on_a_terminal_only_if_asked_for(progress: bool, tmp_path: Path) -> None:
    script = """
        def work(trial):
            return {}
        with Journal(folder / "journal.sqlite") as journal:
            sweep(work, trials, journal=journal, executor=Serial(), progress=sys.argv[2] == "True")
    """
    terminal, end = pty.openpty()
    process = python(script, tmp_path, progress, stderr=end)
    os.close(end)
    drawn = b"".join(iter(partial(read_terminal, terminal), b"")).decode()
    os.close(terminal)
    assert process.communicate()[0] == ""
    assert ("4 of 4" in drawn) == progress


def test_no_bar_is_drawn_where_standard_error_is_no_terminal(
    journal: Journal, capfd: pytest.CaptureFixture[str]
) -> None:
    sweep(square_trial, numbered(1), journal=journal, executor=Serial())
    assert capfd.readouterr() == ("", "")


def test_others_on_the_machine_read_no_journal(tmp_path: Path) -> None:
    """A traceback may quote a value."""
    before = os.umask(0o022)
    try:
        with Journal(tmp_path / "new" / "journal.sqlite") as journal:
            journal.add([Trial({"n": 1}, seed=0)], function="train")
            modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "new").iterdir()}
    finally:
        os.umask(before)
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o700
    assert len(modes) > 1
    assert set(modes.values()) == {0o600}
