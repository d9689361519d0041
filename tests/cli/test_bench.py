from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from colonnade.cli.main import app
from colonnade.experiment.bench_page import BEGIN, END, readme_block
from colonnade.experiment.bench_results import read_results

RESULTS = Path(__file__).parents[2] / "docs" / "results"


def bench(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, ["bench", *map(str, arguments)])


def test_a_page_gets_the_table_of_results_and_keeps_the_rest(tmp_path):
    page = tmp_path / "README.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    assert bench("--readme", page, "--out", RESULTS).exit_code == 0
    assert page.read_text() == f"before\n{readme_block(read_results(RESULTS)[0])}\nafter\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--set", "digit"], "The nearest name is 'digits'"),
        (["--split", "importance"], "such as importance=0.5"),
        (["--set", "digits", "--model", "one-shot", "--engine", "slurm"], "--engine should be local, ray or dask"),
    ],
)
def test_what_is_not_known_is_refused_before_anything_runs(arguments, words, tmp_path):
    ended = bench(*arguments, "--out", tmp_path)
    assert ended.exit_code == 2
    assert words in " ".join(ended.output.split())


def test_a_folder_with_a_benchmark_is_gone_on_with_only_if_asked(tmp_path):
    asked = ("--quick", "--set", "cifar10", "--split", "random", "--out", tmp_path)
    first, again, resumed = bench(*asked), bench(*asked), bench(*asked, "--resume")
    assert (first.exit_code, again.exit_code, resumed.exit_code) == (0, 2, 0)
    assert "Go on with it or add to it with --resume" in " ".join(again.output.split())
    assert "Not measured" in (tmp_path / "bench.md").read_text()
