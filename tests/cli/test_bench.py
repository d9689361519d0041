from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from colonnade.cli.main import app
from colonnade.experiment.bench import NONE, Scale, cells, trials
from colonnade.experiment.bench_page import BEGIN, END, readme_block
from colonnade.experiment.bench_results import ATTACKS, CELLS, PAGE, read_results
from colonnade.experiment.sweep import Journal
from colonnade.runtime.executor import Outcome

RESULTS = Path(__file__).parents[2] / "docs" / "results"


def bench(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, ["bench", *map(str, arguments)])


def test_pages_are_written_again_from_figures_and_keep_what_stands_around_the_table(tmp_path):
    page = tmp_path / "README.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    for name in (CELLS, ATTACKS):
        shutil.copy(RESULTS / name, tmp_path / name)
    assert bench("--readme", page, "--out", tmp_path).exit_code == 0
    assert (tmp_path / PAGE).read_text() == (RESULTS / PAGE).read_text()
    assert page.read_text() == f"before\n{readme_block(*read_results(RESULTS))}\nafter\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--set", "digit"], "The nearest name is 'digits'"),
        (["--split", "importance"], "such as importance=0.5"),
        (["--set", "digits", "--split", "correlation=2"], "beta should lie between 0 and 1, but is 2."),
        (["--set", "digits", "--split", "importance=0"], "alpha should lie between 0.001 and 1e+06, but is 0."),
        (["--set", "bike-sharing-curves", "--model", "one-shot"], "none predicts the labels of bike-sharing-curves."),
        (["--set", "digits", "--model", "one-shot", "--engine", "slurm"], "--engine should be local, ray or dask"),
    ],
)
def test_what_is_not_known_is_refused_before_anything_runs(arguments, words, tmp_path):
    ended = bench(*arguments, "--out", tmp_path)
    assert ended.exit_code == 2
    assert words in " ".join(ended.output.split())


ASKED = ("--rows", "60", "--rows-per-class", "0", "--seeds", "1", "--nulls", "1", "--epochs", "1", "--jobs", "1")
SCALE = Scale(rows=60, rows_per_class=0, seeds=1, nulls=1, epochs=1)


def failed(out: Path) -> list[str]:
    """A benchmark of one cell whose trials have failed, and the options that ask for this cell."""
    wanted = trials(cells(["digits"], ["natural"], ["one-shot"], [NONE]), SCALE)
    with Journal(out / "bench.sqlite") as journal:
        journal.add(wanted, function="colonnade.experiment.bench.measure")
        for trial in wanted:
            journal.claim(trial)
            journal.finish(trial, Outcome(traceback="ValueError: no luck"))
    return ["--set", "digits", "--split", "natural", "--model", "one-shot", "--defence", NONE, "--out", str(out)]


def test_a_benchmark_whose_trials_fail_ends_with_1_and_tells_old_failures_from_new_ones(tmp_path):
    ended = bench(*failed(tmp_path), *ASKED, "--resume")
    assert ended.exit_code == 1
    assert (
        "2 trials failed, 2 of them in an earlier run, as the page says. --resume --retry runs them again."
        in ended.stderr
    )
    assert "failed: ValueError: no luck" in (tmp_path / "bench.md").read_text()


@pytest.mark.slow
def test_failed_trials_are_run_again_if_asked(tmp_path):
    ended = bench(*failed(tmp_path), *ASKED, "--resume", "--retry")
    assert ended.exit_code == 0, ended.output
    assert "trials failed" not in ended.output
    assert [row.get("why") for row in read_results(tmp_path)[0]] == [None, None]


def test_a_folder_with_a_benchmark_is_gone_on_with_only_if_asked(tmp_path):
    asked = ("--quick", "--set", "cifar10", "--split", "random", "--out", tmp_path)
    first, again, resumed = bench(*asked), bench(*asked), bench(*asked, "--resume")
    assert (first.exit_code, again.exit_code, resumed.exit_code) == (0, 2, 0)
    assert "Go on with it or add to it with --resume" in " ".join(again.output.split())
    assert "Not measured" in (tmp_path / "bench.md").read_text()
