from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from colonnade.catalogue import DEFENCES, MODELS
from colonnade.data import load, train_test_split
from colonnade.errors import PlanError, StorageError
from colonnade.experiment.bench import (
    HELD_OUT,
    NONE,
    QUICK,
    SETS,
    SPLITS,
    TEST,
    TOLD,
    Cell,
    Scale,
    _built,
    cells,
    drawn_rows,
    measure,
    trials,
)
from colonnade.experiment.bench_page import BEGIN, END, page, readme_block, with_block
from colonnade.experiment.bench_results import STOPPED, read_results, write_results
from colonnade.experiment.sweep import Journal, sweep
from colonnade.models.networks.base import SMALL_HELD_OUT
from colonnade.runtime.executor import Outcome, Serial

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "docs" / "results"
TINY = Scale(rows=90, rows_per_class=0, seeds=1, nulls=1, epochs=1, rounds=1)


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
    assert re.search(r"at most 90 rows of a set, 1 seed, 1 null run of each attack", text)


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


def test_only_networks_for_images_take_a_gpu(data_folder):
    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    grid = {cell.model: cell.why_not() for cell in cells(["cifar10"], ["natural"], defences=[NONE])}
    without = "networks for the images of cifar10 take a GPU, and there is none here"
    assert {model for model, why in grid.items() if why == without} == {
        *("label-dp-shadow", "served-classifier", "split-classifier", "u-shape-classifier"),
    }
    assert {model for model, why in grid.items() if why is None} == {
        *("logistic-regression", "one-shot", "secureboost-classifier"),
    }


def test_images_on_a_gpu_have_the_network_for_images():
    built = _built("split-classifier", "cifar10", ["shop"], None, None).get_params()
    assert (built["bottom"], built["device"]) == ("resnet-20", "auto")
    assert _built("one-shot", "cifar10", ["shop"], None, None).get_params()["bottom"] == "mlp"
    assert _built("split-classifier", "mnist", ["shop"], None, None).get_params()["bottom"] == "mlp"


def test_images_and_curves_are_cut_naturally_only(data_folder):
    assert "784 columns are more than the 200" in Cell("mnist", "random", "one-shot").why_not()
    assert "these are curves" in Cell("bike-sharing-curves", "random", "functional-boost").why_not()


@pytest.mark.parametrize(
    ("named", "words"),
    [
        ({"sets": ["digit"]}, "sets with labels, but 'digit' is none. The nearest name is 'digits'"),
        ({"sets": ["febrl-1"]}, "sets with labels, but 'febrl-1' is none"),
        ({"models": ["split"]}, "There is no model 'split'"),
        ({"defences": ["max"]}, "There is no defence 'max'"),
        ({"splits": ["by luck"]}, "but 'by luck' was given"),
        ({"splits": ["natural", "correlation=2"]}, "beta should lie between 0 and 1, but is 2."),
        (
            {"sets": ["bike-sharing-curves"], "models": ["split-classifier", "one-shot"]},
            "of the models split-classifier, one-shot none predicts the labels of bike-sharing-curves.",
        ),
    ],
)
def test_a_grid_that_cannot_be_is_refused(named, words):
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
    wanted = trials(grid, replace(TINY, rows=60))
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


def test_seeds_that_are_added_to_models_without_a_defence_leave_lines_in_their_order(tmp_path):
    found = {"quality": {"rows": 9, "accuracy": 0.5, "commonest": 0.1}, "trained_rows": 42}
    for defence, seeds in (("sign-hash", 1), (NONE, 2)):
        grid = cells(["digits"], ["natural"], ["split-classifier", "one-shot"], [defence])
        wanted = trials(grid, replace(TINY, seeds=seeds))
        with Journal(tmp_path / "bench.sqlite") as journal:
            journal.add(wanted, function="measure")
            for trial in wanted:
                if journal.claim(trial):
                    journal.finish(
                        trial, Outcome(found if "model" in trial.configuration else {"columns": {"bank": 1}})
                    )
            rows = write_results(tmp_path, grid, journal.table(wanted))
    made = [(row["model"], row["defence"], row["seed"]) for row in rows if row["model"]]
    assert made == [
        (model, defence, seed)
        for model in ("split-classifier", "one-shot")
        for defence, seed in ((NONE, 0), (NONE, 1), ("sign-hash", 0))
    ]


@pytest.mark.parametrize("why", ["networks take a GPU, and there is none here", "set not found"])
def test_what_was_measured_elsewhere_is_not_replaced_by_why_it_cannot_be_measured_here(why, tmp_path, monkeypatch):
    grid = cells(["digits"], ["natural"], ["split-classifier"], [NONE])
    wanted = trials(grid, TINY)
    found = {"quality": {"rows": 9, "accuracy": 0.5, "commonest": 0.1}, "trained_rows": 42}
    with Journal(tmp_path / "bench.sqlite") as journal:
        journal.add(wanted, function="measure")
        for trial in wanted:
            journal.claim(trial)
            journal.finish(trial, Outcome(found if "model" in trial.configuration else {"columns": {"bank": 1}}))
        before = write_results(tmp_path, grid, journal.table(wanted))
        monkeypatch.setattr("colonnade.experiment.bench.Cell.why_not", lambda cell: why)
        here = [trial for trial in wanted if "model" not in trial.configuration]
        if why == "set not found":
            monkeypatch.setattr("colonnade.experiment.bench_results.why_no_set", lambda *_: why)
            here = []
        assert write_results(tmp_path, grid, journal.table(here)) == before


def test_seeds_that_ran_before_a_benchmark_was_stopped_are_kept(tmp_path):
    grid = cells(["digits"], ["natural"], ["split-classifier"], [NONE])
    wanted = [trial for trial in trials(grid, replace(TINY, seeds=3)) if "model" in trial.configuration]
    found = {"quality": {"rows": 9, "accuracy": 0.5, "commonest": 0.1}, "trained_rows": 42}
    with Journal(tmp_path / "bench.sqlite") as journal:
        journal.add(wanted, function="measure")
        for n_ran, trial in enumerate(wanted[:2], 1):
            journal.claim(trial)
            journal.finish(trial, Outcome(found))
            rows = write_results(tmp_path, grid, journal.table(wanted))
            assert [row["seed"] for row in rows if row.get("date")] == list(range(n_ran))
            assert {row["why"] for row in rows if not row.get("date")} == {STOPPED}


def test_a_trial_is_told_with_the_machine_that_ran_it(tmp_path):
    grid = cells(["digits"], ["natural"], ["split-classifier"], [NONE])
    wanted = [trial for trial in trials(grid, TINY) if "model" in trial.configuration]
    there = {"quality": {"rows": 9, "accuracy": 0.5, "commonest": 0.1}, "trained_rows": 42, "hardware": "a machine"}
    with Journal(tmp_path / "bench.sqlite") as journal:
        journal.add(wanted, function="measure")
        for trial in wanted:
            journal.claim(trial)
            journal.finish(trial, Outcome(there))
        rows = write_results(tmp_path, grid, journal.table(wanted))
    assert [row["hardware"] for row in rows] == ["a machine"]
    assert "Run with a machine; version" in (tmp_path / "bench.md").read_text()


def test_a_page_without_marks_is_not_written_into():
    with pytest.raises(StorageError, match="The page should have the lines"):
        with_block("# Colonnade\n", "table")


def test_the_readmes_table_and_the_page_are_what_the_figures_give():
    rows, attacks = read_results(RESULTS)
    readme = (ROOT / "README.md").read_text()
    assert readme[readme.index(BEGIN) : readme.index(END) + len(END)] == readme_block(rows, attacks)
    assert (RESULTS / "bench.md").read_text() == page(rows, attacks)


def line(model: str | None, seed: int = 0, set: str = "digits", **figures: Any) -> dict[str, Any]:
    """A line of bench.csv, as a trial of a model without a defence gives it, or of the cut alone."""
    made = {"set": set, "split": "natural", "model": model, "defence": model and NONE, "seed": seed, "rows": 300}
    made |= {"nulls": 1, "epochs": 10, "rounds": None, "thorough": False, "seconds": 60.0, "code_version": "1"}
    made |= {"date": "2026-01-01", "hardware": "a machine"}
    if model is not None:
        made |= {"trained_rows": 210, "quality.rows": 90, "quality.commonest": 0.5}
    return made | {name.replace("_", "."): value for name, value in figures.items()}


def attacked(model: str, attack: str, score: float | None = 0.9, **more: Any) -> dict[str, Any]:
    """A line of bench_attacks.parquet."""
    made = {"set": "digits", "split": "natural", "model": model, "defence": NONE, "seed": 0, "attack": attack}
    return made | {"about": "labels", "verdict": "leaks", "score": score, "null": 0.5, "alone": 0.6, **more}


def leak(by: str, excess: float, verdict: str = "leaks") -> dict[str, Any]:
    told = {"by": by, "excess": excess, "score": 0.9, "alone": 0.6, "verdict": verdict}
    return {f"leak_labels_{name}": value for name, value in told.items()}


def test_figures_of_attacks_that_nobody_joined_are_marked_and_explained():
    rows = [
        line(None, alone_accuracy=0.7, central_accuracy=0.8),
        line("split-classifier", quality_accuracy=0.6, **leak("NormScore", 0.3)),
        line("one-shot", quality_accuracy=0.6, **leak("Strongest", 0.2)),
        line("logistic-regression", quality_accuracy=0.7, **leak("CoefficientScore", 0.1)),
    ]
    few = "Strongest by shop: it must be told 12 labels per class, and one class has fewer"
    attacks = [
        attacked("split-classifier", "NormScore"),
        attacked("split-classifier", "ModelCompletion"),
        attacked("split-classifier", "Strongest", None, verdict="not made", reason=few),
        attacked("one-shot", "EmbeddingNearest"),
        attacked("one-shot", "ModelCompletion"),
        attacked("one-shot", "Strongest"),
        attacked("logistic-regression", "CoefficientScore"),
    ]
    for text in (readme_block(rows, attacks), page(rows, attacks)):
        assert "+30\\*" in text
        assert "+20 |" in text
        assert "+10 |" in text
        assert (
            "\\* Not joined (it must be told 12 labels per class, and one class has fewer): the single attack that "
            "finds most, picked by the truth, so the figure is too high by luck." in text
        )
    assert "| Strongest | labels | not made | 0.90 / 0.50 / 0.60 | n/a |" in page(rows, attacks)
    assert "Not joined" not in readme_block(rows[2:], attacks)


def test_joined_attacks_that_a_single_leak_outdoes_are_marked_and_the_attack_is_named():
    rows = [
        line(None, alone_accuracy=0.7, central_accuracy=0.8),
        line("split-classifier", quality_accuracy=0.6, **leak("Strongest", -0.1, "no leak found")),
        line("one-shot", quality_accuracy=0.6, **leak("Strongest", 0.2)),
    ]
    attacks = [
        attacked("split-classifier", "NormScore"),
        attacked("split-classifier", "Strongest", 0.5, verdict="no leak found"),
        attacked("one-shot", "EmbeddingNearest"),
        attacked("one-shot", "Strongest"),
    ]
    for text in (readme_block(rows, attacks), page(rows, attacks)):
        assert "-10†" in text
        assert "+20 |" in text
        assert "† A single attack (NormScore) is judged to leak labels there, and all joined are not." in text
    assert "†" not in readme_block(rows[2:], attacks)


def test_figures_of_several_seeds_are_told_with_their_spread_and_those_of_one_without():
    rows = [
        line("split-classifier", seed, quality_accuracy=accuracy, **leak("Strongest", excess))
        for seed, (accuracy, excess) in enumerate([(0.6, 0.1), (0.7, 0.3)])
    ]
    assert "| 0.650 ± 0.071, +20 ± 14 |" in readme_block(rows, [])
    assert "Here figures are means over 2 seeds, ± their standard deviation" in readme_block(rows, [])
    assert "| 0.600, +10 |" in readme_block(rows[:1], [])
    assert "Here every figure is of one seed, so no spread is known." in readme_block(rows[:1], [])
    rows.append(line("one-shot", quality_accuracy=0.6))
    assert "figures are means over one to 2 seeds" in page(rows, [])


def test_the_readme_says_how_long_models_were_trained_and_how_many_networks_learned_nothing():
    rows = [
        line("split-classifier", quality_accuracy=0.5),
        line("one-shot", quality_accuracy=0.51),
        line("logistic-regression", rounds=30, quality_accuracy=0.5),
        line("secureboost-classifier", rounds=30, quality_accuracy=0.5),
    ]
    text = readme_block(rows, [])
    assert (
        "Networks were trained for 10 epochs, never stopping early; regressions for at most 30 epochs; boosted trees "
        "for at most 10 rounds. In 1 of 2 trials of networks the model is right no more often than a guess" in text
    )
    text = readme_block([{**row, "epochs": None, "rounds": None} for row in rows], [])
    assert "Networks were trained as long as they are by default, stopping early; regressions as long as" in text


def test_a_split_that_cannot_be_gives_its_reason_once():
    why = "784 columns are more than the 200 among which splits are searched"
    rows = [
        line("split-classifier", set="mnist", quality_accuracy=0.5),
        {**line(None, set="mnist"), "split": "random", "why": why},
    ]
    (told,) = (each for each in page(rows, []).splitlines() if each.startswith("| random |"))
    assert told == f"| random | {why} | - | - | - | - | - | - | - |"


def test_more_rows_are_drawn_where_a_class_would_have_too_few_to_join_attacks():
    assert drawn_rows("digits", Scale(rows=300)) > 300
    assert drawn_rows("breast-cancer", Scale(rows=300)) == 300
    assert drawn_rows("breast-cancer", Scale(rows=3_000)) == 569
    # A person is common to all three parties, or is no row.
    assert drawn_rows("bank-shop-telco", Scale(rows=50)) > 400
    for name in ("digits", "bank-shop-telco"):
        drawn = {trial.configuration["drawn"] for trial in trials(cells([name], ["natural"], ["one-shot"]), QUICK)}
        train, _ = train_test_split(load(name, rows=drawn.pop()).split(), test=TEST)
        counts = np.unique(np.asarray(train["bank"].labels), return_counts=True)[1]
        assert counts.min() * (1 - SMALL_HELD_OUT) >= TOLD
    rows = [{**line("one-shot", quality_accuracy=0.5), "drawn": 886}]
    assert "at most 300 rows of a set (886 of digits, so that the rarest class" in readme_block(rows, [])


def test_networks_hold_out_what_the_benchmark_reckons_with():
    assert HELD_OUT == SMALL_HELD_OUT


@pytest.mark.parametrize(
    ("name", "built"),
    [
        ("split-classifier", {"epochs": 7, "n_iter_no_change": None}),
        ("logistic-regression", {"max_iter": 30}),
        ("secureboost-classifier", {"n_estimators": 10}),
        ("functional-boost", {}),
    ],
)
def test_epochs_are_of_networks_and_rounds_of_encrypted_models(name, built):
    default = MODELS[name]().get_params()
    found = _built(name, "digits", ["shop"], epochs=7, rounds=30).get_params()
    assert {key: found[key] for key in built} == built
    kept = _built(name, "digits", ["shop"], epochs=None, rounds=None).get_params()
    assert {key: kept[key] for key in built} == {key: default[key] for key in built}


def test_what_was_not_run_yet_says_so(tmp_path):
    grid = cells(["digits"], ["natural"], ["one-shot"], [NONE])
    with Journal(tmp_path / "bench.sqlite") as journal:
        journal.add(trials(grid, TINY), function="measure")
        rows = write_results(tmp_path, grid, journal.table(trials(grid, TINY)))
    assert {row["why"] for row in rows} == {"not run yet: the benchmark was stopped, and goes on with --resume"}
    assert "| one-shot | not run yet: the benchmark was stopped" in (tmp_path / "bench.md").read_text()
