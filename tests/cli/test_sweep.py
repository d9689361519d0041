"""colonnade sweep: what it says before, while and after it runs, and that nothing finished is lost."""

import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import colonnade
from colonnade.cli.main import app
from colonnade.experiment.grid import GridSweep
from colonnade.experiment.results import Results
from colonnade.experiment.sweep import Journal
from colonnade.plans.grid import GridPlan
from colonnade.runtime.executor import Outcome

SOURCE = Path(colonnade.__path__[0]).parent

GRID = """
[data]
name = "breast-cancer"
rows = 100
[roles]
label = "bank"
features = ["shop"]
[model]
name = "split-classifier"
epochs = 1
embedding = 2
[audit]
attacks = ["norm-score"]
nulls = 1
[sweep]
seeds = [0, 1]
[sweep.vary]
"defences.bank" = ["none", "max-norm"]
"""


@pytest.fixture
def plan(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "grid.toml").write_text(GRID)
    return tmp_path / "grid.toml"


def call(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, ["sweep", *map(str, arguments)])


def command(*arguments: str | Path, before: str = "") -> list[str]:
    script = f"{before}\nfrom colonnade.cli.main import main\nmain()"
    return [sys.executable, "-c", script, "sweep", *map(str, arguments)]


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"}


def figures(path: Path) -> list[dict[str, object]]:
    """What the trials of a journal measured, without when and how long."""
    rows = Results.read(path).rows
    hidden = ("trial.started", "trial.seconds", "trial.attempts")
    kept = [{name: value for name, value in row.items() if name not in hidden} for row in rows]
    return sorted(kept, key=lambda row: str(row["trial.key"]))


def test_a_dry_run_counts_trials_and_writes_nothing(plan):
    ended = call(plan, "--dry-run")
    assert ended.exit_code == 0
    assert ended.stdout.splitlines() == [
        "2 combinations with 2 seeds each; all are possible.",
        "4 trials: 0 finished, 0 failed, 0 running, 4 not begun.",
        "Time and disk: unknown until a trial has finished. --probe runs one, and keeps its result.",
    ]
    assert list(plan.parent.iterdir()) == [plan]


def test_one_combination_is_told_as_one(plan):
    plan.write_text(GRID.replace("seeds = [0, 1]", "seeds = [3]").replace(', "max-norm"', ""))
    assert call(plan, "--dry-run").stdout.splitlines()[:2] == [
        "1 combination with 1 seed; it is possible.",
        "1 trial: 0 finished, 0 failed, 0 running, 1 not begun.",
    ]


def test_help_shows_that_a_plan_needs_no_command():
    assert "sweep [OPTIONS] PLAN | COMMAND PLAN" in call("--help").stdout


def swept(plan: Path) -> GridSweep:
    """A journal beside a plan, with made-up figures of all of its trials."""
    found = GridSweep(GridPlan.read(plan), plan.parent / "runs")
    with Journal(found.path) as journal:
        journal.add(found.trials, function="made up")
        for trial in found.trials:
            journal.claim(trial)
            leak = {"labels": {"by": "A", "excess": 0.1}}
            journal.finish(trial, Outcome({"quality": {"AUC": 0.9 + trial.seed / 100}, "leak": leak}, seconds=1.0))
    return found


@contextmanager
def shut(folder: Path) -> Iterator[None]:
    """A folder that nobody can write: to root by a mount, to others by its mode."""
    if os.geteuid() == 0:
        for options in ("bind", "remount,bind,ro"):
            ended = subprocess.run(["mount", "-o", options, folder, folder], capture_output=True, check=False)
            if ended.returncode:
                pytest.skip("no file system can be mounted here")
        try:
            yield
        finally:
            subprocess.run(["umount", folder], check=True)
    else:
        folder.chmod(0o555)
        yield
        folder.chmod(0o755)


def test_a_store_that_can_only_be_read_is_told_and_drawn(plan):
    found = swept(plan)
    asked = [("status", plan), ("table", plan), ("table", plan, "--to", "t.parquet"), ("figures", plan, "--to", "f")]
    with shut(found.path.parent):
        ended = [call(*each) for each in asked]
        assert [each.exit_code for each in ended] == [0, 0, 0, 0], ended[0].output
        refused = call(plan, "--resume")
    assert "4 trials: 4 finished" in ended[0].stdout
    assert "0.905" in ended[1].stdout
    assert Results.read("t.parquet").table.num_rows == 4
    assert Path("f/index.html").exists()
    assert refused.exit_code == 9
    assert "Choose a folder that can be written" in refused.stderr


def test_the_status_of_an_edited_plan_changes_no_journal(plan):
    path = swept(plan).path
    before = path.read_bytes()
    plan.write_text(GRID.replace("epochs = 1", "epochs = 2"))
    told = call("status", plan).stdout
    assert "4 trials: 0 finished, 0 failed, 0 running, 4 not begun." in told
    assert "The journal has 4 trials more, of another plan" in told
    assert "none, seeds 0, 1: not begun" in told
    assert path.read_bytes() == before
    assert [each.name for each in path.parent.iterdir()] == [path.name]


@pytest.mark.slow
def test_a_sweep_is_probed_resumed_told_written_and_drawn(plan):
    probed = call(plan, "--probe", "--jobs", "1").stdout.splitlines()
    assert probed[0] == "4 trials: 1 finished, 0 failed, 0 running, 3 not begun."
    assert "for the 3 that are left, 1 at once, as 1 finished trial tells." in probed[1]
    assert re.match(r"Disk: about [\d.]+ [kM]B more for the journal; ", probed[2])
    assert call("status", plan, "--jobs", "1").stdout.splitlines()[:1] == probed[:1]

    refused = call(plan)
    assert refused.exit_code == 2
    assert (
        "runs/grid.sqlite should have no trial of this plan, but 1 of 4 have begun or ended there. Go on with --resume"
        in refused.stderr
    )

    ended = call(plan, "--resume", "--jobs", "1")
    assert ended.exit_code == 0, ended.output
    head, *lines = ended.stdout.splitlines()
    assert head.split() == ["defences.bank", "trials", "AUC", "leak", "of", "labels"]
    assert [line.split()[:2] for line in lines[:2]] == [["none", "2"], ["max-norm", "2"]]
    assert "runs/grid.sqlite" in lines[-1]

    assert call("table", plan).stdout.splitlines()[:3] == ended.stdout.splitlines()[:3]
    assert "4 trials" in call("table", plan, "--to", "table.parquet").stdout
    assert Results.read("table.parquet").table.num_rows == 4
    assert call("figures", plan, "--to", "figures").exit_code == 0
    assert (plan.parent / "figures" / "index.html").read_text().count("<svg") == 5


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("[sweep.vary]", "[sweep.vry]", "[sweep] takes seeds, vary, exclude, but has the key 'vry'."),
        ('"none", "max-norm"', '"none", "max-nrm"', "There is no defence 'max-nrm'. The nearest name is 'max-norm'."),
        ('"defences.bank" = ["none", "max-norm"]', '"defences.bnk" = ["none"]', "The nearest name is 'bank'."),
        ("rows = 100", "rows = 100_000", "100,000 rows of 'breast-cancer' were to be drawn, but it has 569."),
        ("[sweep]", "[sweep", "should be a plan in TOML, but is not"),
    ],
)
@pytest.mark.parametrize("options", [(), ("--dry-run",)])
def test_a_plan_with_a_mistake_runs_nothing(plan, old, new, words, options):
    plan.write_text(GRID.replace(old, new))
    ended = call(plan, *options)
    assert ended.exit_code in (2, 3)
    assert words in ended.stderr
    assert list(plan.parent.iterdir()) == [plan]


def test_a_command_with_a_typo_is_told_the_nearest(plan):
    ended = call("tabel", plan)
    assert ended.exit_code == 2
    assert str(ended.stderr).startswith("Error: colonnade sweep should be given a plan or one of run, status, table,")
    assert "but has 'tabel' before" in ended.stderr
    assert "The nearest name is 'table'." in ended.stderr


def test_results_of_a_plan_that_was_never_swept_over_are_refused(plan):
    ended = call("table", plan)
    assert ended.exit_code == 2
    assert "Run colonnade sweep first" in ended.stderr


def test_a_store_that_cannot_be_written_is_named(plan):
    taken = plan.parent / "runs"
    taken.write_text("a file where a folder should be")
    ended = call(plan, "--out", taken)
    assert ended.exit_code == 9
    assert "should be a SQLite file that can be written" in ended.stderr


@pytest.mark.slow
def test_a_full_disk_loses_no_finished_trial(plan):
    text = GRID.replace("seeds = [0, 1]", f"seeds = {list(range(12))}")
    plan.write_text(text)
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (120_000, resource.RLIM_INFINITY))"
    ended = subprocess.run(
        command(plan, "--jobs", "1", before=limit), env=environment(), capture_output=True, text=True, check=False
    )
    assert ended.returncode == 9
    assert "Free some space, then run again; finished trials are kept." in ended.stderr
    first = {row["trial.key"]: row for row in figures(Path("runs/grid.sqlite")) if row["trial.state"] == "done"}
    assert 0 < len(first) < 24
    assert call(plan, "--resume", "--jobs", "1").exit_code == 0
    found = {row["trial.key"]: row for row in figures(Path("runs/grid.sqlite"))}
    assert {row["trial.state"] for row in found.values()} == {"done"}
    assert [found[key]["quality.AUC"] for key in first] == [row["quality.AUC"] for row in first.values()]


@pytest.mark.slow
def test_a_sweep_that_is_killed_is_resumed_to_the_table_of_one_that_was_not(plan):
    killed = subprocess.Popen(command(plan, "--jobs", "1"), env=environment(), stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    while n_done(Path("runs/grid.sqlite")) < 1:
        assert time.monotonic() < deadline
        assert killed.poll() is None, killed.communicate()[1]
        time.sleep(0.01)
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    assert n_done(Path("runs/grid.sqlite")) < 4
    assert call(plan, "--resume", "--jobs", "1").exit_code == 0
    assert call(plan, "--out", "undisturbed", "--jobs", "2").exit_code == 0
    assert figures(Path("runs/grid.sqlite")) == figures(Path("undisturbed/grid.sqlite"))


@pytest.mark.slow
@pytest.mark.network
def test_a_grid_has_the_same_table_on_every_engine(plan):
    plan.write_text(GRID.replace("seeds = [0, 1]", "seeds = [3]"))
    for engine, jobs in (("local", "1"), ("dask", "2"), ("ray", "2")):
        assert call(plan, "--engine", engine, "--jobs", jobs, "--out", engine).exit_code == 0
    found = [figures(Path(engine) / "grid.sqlite") for engine in ("local", "dask", "ray")]
    assert found[0] == found[1] == found[2]
    assert len(found[0]) == 2


def n_done(path: Path) -> int:
    if not path.exists():
        return 0
    with sqlite3.connect(path, timeout=60) as database:
        try:
            return int(database.execute("SELECT count(*) FROM trial WHERE state = 'done'").fetchone()[0])
        except sqlite3.OperationalError:
            return 0  # The journal has no table yet.
