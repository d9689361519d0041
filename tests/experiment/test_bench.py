from __future__ import annotations

import re
from pathlib import Path

import pytest

from colonnade.catalogue import DEFENCES, MODELS
from colonnade.errors import PlanError, StorageError
from colonnade.experiment.bench import NONE, SETS, SPLITS, Cell, Scale, cells, measure, trials
from colonnade.experiment.bench_page import BEGIN, END, page, readme_block, with_block
from colonnade.experiment.bench_results import read_results, write_results
from colonnade.experiment.sweep import Journal, sweep
from colonnade.runtime.executor import Outcome, Serial

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "docs" / "results"
TINY = Scale(rows=90, seeds=1, nulls=1, epochs=1)


@pytest.fixture(scope="module")
def grid():
    return cells(["breast-cancer", "adult"], ["natural"], ["split-classifier", "one-shot"], ["max-norm"])


@pytest.fixture(scope="module")
def results(grid, tmp_path_factory):
    """A tiny grid, run once where no file of a set can be found."""
    folder = tmp_path_factory.mktemp("bench")
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("COLONNADE_DATA", raising=False)
        with Journal(folder / "bench.sqlite") as journal:
            table = sweep(measure, trials(grid, TINY), journal=journal, executor=Serial(), progress=False)
        write_results(folder, grid, table)
    return folder


@pytest.mark.slow
def test_every_cell_of_a_grid_has_figures_or_says_why_it_has_none(grid, results):
    rows, _ = read_results(results)
    for cell in grid:
        found = [
            row for row in rows if all(row[key] == getattr(cell, key) for key in ("set", "split", "model", "defence"))
        ]
        absent = [row for row in rows if row["set"] == cell.set and row["model"] is None and row["why"]]
        assert len(found or absent) == 1
        (row,) = found or absent
        assert row["why"] or (row["quality.AUC"] is not None and row["leak.features.excess"] is not None)
    assert {row["why"] for row in rows if row["set"] == "adult"} == {
        "set not found: put adult.parquet into a folder and set COLONNADE_DATA to this folder"
    }
    assert [row["why"] for row in rows if (row["model"], row["defence"]) == ("one-shot", "max-norm")] == [
        "nobody in one-shot sends or learns from what this defence acts on"
    ]


@pytest.mark.slow
def test_no_cell_of_a_table_is_empty(results):
    text = (results / "bench.md").read_text()
    cells_of = [cell.strip() for line in text.splitlines() if line.startswith("|") for cell in line.split("|")[1:-1]]
    assert len(cells_of) > 20
    assert all(cells_of)
    assert "Not measured: set not found: put adult.parquet" in text
    assert re.search(r"at most 90 rows of a set, 1 seed, 1 null runs", text)


@pytest.mark.slow
def test_attacks_are_told_one_by_one_with_their_controls_or_the_reason(results):
    _, rows = read_results(results)
    split = [row for row in rows if row["model"] == "split-classifier" and row["defence"] == NONE]
    assert {"Strongest", "ModelCompletion", "PassiveRidge", "SharedNodes"} <= {row["attack"] for row in split}
    for row in split:
        assert row["reason"] if row["verdict"] in ("does not apply", "not made") else row["alone"] is not None


@pytest.mark.slow
def test_the_label_party_alone_and_all_columns_in_one_place_are_measured_on_the_same_rows(results):
    rows = [row for row in read_results(results)[0] if row["set"] == "breast-cancer"]
    (cut,) = (row for row in rows if row["model"] is None)
    (model,) = (row for row in rows if (row["model"], row["defence"]) == ("split-classifier", NONE))
    assert cut["alone.rows"] == cut["central.rows"] == model["quality.rows"] == 27
    assert (cut["columns.bank"], cut["columns.shop"]) == (15, 15)
    assert cut["importance.bank"] + cut["importance.shop"] == pytest.approx(1)
    assert 0 <= cut["beta"] <= 1


def test_the_default_grid_has_every_model_and_every_defence_and_every_split():
    grid = cells()
    assert {cell.model for cell in grid} == set(MODELS)
    assert {cell.defence for cell in grid} == {NONE, *DEFENCES}
    assert {cell.split for cell in grid} == set(SPLITS)
    assert {cell.set for cell in grid} == set(SETS)


@pytest.mark.parametrize(
    ("cell", "why"),
    [
        (
            Cell("digits", "natural", "split-regressor"),
            "split-regressor predicts numbers, and the labels of digits are",
        ),
        (Cell("digits", "natural", "functional-boost"), "functional-boost predicts curves, and the labels"),
        (Cell("digits", "natural", "logistic-regression", "marvell"), "logistic-regression takes no defence"),
        (Cell("digits", "natural", "split-classifier", "max-norm"), None),
        (Cell("digits", "correlation=1", "secureboost-classifier"), None),
    ],
)
def test_a_cell_that_cannot_be_says_why(cell, why):
    assert cell.why_not() is None if why is None else why in cell.why_not()


def test_images_and_curves_are_cut_naturally_only(data_folder):
    assert "784 columns are more than the 200" in Cell("mnist", "random", "one-shot").why_not()
    assert "curves have no order" in Cell("bike-sharing-curves", "random", "functional-boost").why_not()


@pytest.mark.parametrize(
    ("named", "words"),
    [
        ({"sets": ["digit"]}, "sets with labels, but 'digit' is none. The nearest name is 'digits'"),
        ({"sets": ["febrl-1"]}, "sets with labels, but 'febrl-1' is none"),
        ({"models": ["split"]}, "There is no model 'split'"),
        ({"defences": ["max"]}, "There is no defence 'max'"),
        ({"splits": ["by luck"]}, "but 'by luck' was given"),
    ],
)
def test_an_unknown_name_is_refused(named, words):
    with pytest.raises(PlanError, match=words):
        cells(**named)


def test_a_trial_that_fails_shows_its_error_and_one_that_is_refused_its_reason(tmp_path):
    grid = cells(["digits"], ["natural"], ["split-classifier"], ["marvell", "max-norm"])
    wanted = [trial for trial in trials(grid, TINY) if "model" in trial.configuration]

    def ended(trial):
        if trial.configuration["defence"] == "max-norm":
            raise ValueError("the disk\nis gone")
        return {"refused": "Two classes only."}

    with Journal(tmp_path / "bench.sqlite") as journal:
        table = sweep(ended, wanted, journal=journal, executor=Serial(), progress=False)
    rows = write_results(tmp_path, grid, table)
    refused, failed = "refused: Two classes only.", "failed: ValueError: the disk is gone"
    assert [row["why"] for row in rows] == [refused, refused, failed]
    assert "refused: Two classes only." in (tmp_path / "bench.md").read_text()


@pytest.mark.slow
def test_lines_of_other_cells_are_kept_and_what_is_lacking_is_told(results, tmp_path):
    for name in ("bench.csv", "bench_attacks.parquet"):
        (tmp_path / name).write_bytes((results / name).read_bytes())
    before, attacks_before = read_results(results)
    grid = cells(["digits", "breast-cancer"], ["natural"], ["one-shot"], [NONE])
    wanted = trials(grid, Scale(rows=60, seeds=1, nulls=1, epochs=1))
    with Journal(tmp_path / "bench.sqlite") as journal:
        journal.add(wanted, function="measure")
        for trial in wanted:
            if trial.configuration["set"] == "digits":
                journal.claim(trial)
                value = {"quality": {"rows": 9, "accuracy": 0.5}, "trained_rows": 42}
                journal.finish(trial, Outcome(value if "model" in trial.configuration else {"columns": {"bank": 1}}))
        write_results(tmp_path, grid, journal.table(wanted))
    after, attacks_after = read_results(tmp_path)
    # What was measured before is neither dropped nor replaced by what was not run.
    assert next(row for row in after if row["set"] == "digits" and row["model"])["quality.accuracy"] == 0.5
    kept = [row for row in after if row["set"] != "digits"]
    assert sorted(str([row[name] for name in before[0]]) for row in kept) == sorted(
        str(list(row.values())) for row in before
    )
    assert attacks_after == attacks_before
    text = (tmp_path / "bench.md").read_text()
    assert [text.index(f"## {name}") for name in ("breast-cancer", "digits", "adult")] == sorted(
        text.index(f"## {name}") for name in ("breast-cancer", "digits", "adult")
    )
    assert "- splits on breast-cancer and digits: correlation=0, correlation=1, importance=0.1," in text
    assert "- sets: bank-shop-telco, credit-default," in text


def test_a_page_without_marks_is_not_written_into():
    with pytest.raises(StorageError, match="The page should have the lines"):
        with_block("# Colonnade\n", "table")


def test_the_readmes_table_and_the_page_are_what_the_figures_give():
    rows, attacks = read_results(RESULTS)
    readme = (ROOT / "README.md").read_text()
    assert readme[readme.index(BEGIN) : readme.index(END) + len(END)] == readme_block(rows)
    assert (RESULTS / "bench.md").read_text() == page(rows, attacks)


def test_what_was_not_run_yet_says_so(tmp_path):
    grid = cells(["digits"], ["natural"], ["one-shot"], [NONE])
    with Journal(tmp_path / "bench.sqlite") as journal:
        journal.add(trials(grid, TINY), function="measure")
        rows = write_results(tmp_path, grid, journal.table(trials(grid, TINY)))
    assert {row["why"] for row in rows} == {"not run yet: the benchmark was stopped, and goes on with --resume"}
    assert "| one-shot | not run yet: the benchmark was stopped" in (tmp_path / "bench.md").read_text()
