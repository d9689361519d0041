"""Results: what is read, compared and drawn is what the trials measured, and nothing is left out without a word."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from scipy import stats

from colonnade.errors import MissingExtra, PlanError, StorageError
from colonnade.experiment.figures import Estimated, Mark, frontier
from colonnade.experiment.figures import page as page_of
from colonnade.experiment.grid import GridSweep
from colonnade.experiment.results import Results, estimated
from colonnade.experiment.sweep import Journal
from colonnade.plans.grid import GridPlan
from colonnade.runtime.executor import Serial

GRID = """
[data]
rows = 240
[roles]
label = "bank"
features = ["shop"]
[model]
name = "split-classifier"
epochs = 2
batch_size = 32
embedding = 4
[audit]
attacks = ["norm-score", "gradient-nearest", "residue"]
nulls = 1
epochs = 2
[sweep]
seeds = [0, 1]
[sweep.vary]
"data.name" = ["breast-cancer", "digits"]
"defences.bank" = ["none", "max-norm"]
"""


@pytest.fixture(scope="module")
def swept(tmp_path_factory) -> GridSweep:
    folder = tmp_path_factory.mktemp("swept")
    (folder / "small.toml").write_text(GRID)
    found = GridSweep(GridPlan.read(folder / "small.toml"), folder)
    found.run(Serial(), progress=False)
    return found


@pytest.fixture
def results(swept: GridSweep) -> Results:
    return swept.results()


def texts(figure: Any) -> list[str]:
    from matplotlib.text import Text

    return [each.get_text() for each in figure.findobj(Text) if each.get_text()]


def row(seed: int, auc: float | None, defence: str = "none", **more: Any) -> dict[str, Any]:
    return {
        "defences.bank": [] if defence == "none" else [{"name": defence}],
        "quality.AUC": auc,
        "trial.seed": seed,
        "trial.state": "done",
        **more,
    }


def of(*rows: Mapping[str, Any]) -> Results:
    names = dict.fromkeys(name for each in rows for name in each)
    return Results(pa.Table.from_pylist([{name: each.get(name) for name in names} for each in rows]))


@pytest.mark.slow
def test_every_trial_has_a_quality_and_a_verdict_of_every_attack(results):
    assert results.axes == ("data.name", "defences.bank")
    assert [group.name() for group in results.groups] == [
        "breast-cancer, none",
        "breast-cancer, max-norm",
        "digits, none",
        "digits, max-norm",
    ]
    for found in results.rows:
        assert 0.4 < found["quality.accuracy"] <= 1 or found["data.name"] == "digits"
        assert {found[f"attacks.{name}.verdict"] for name in ("NormScore", "GradientNearest", "Residue")}.isdisjoint(
            {None}
        )
        two_classes = found["data.name"] == "breast-cancer"
        assert (found["attacks.NormScore.verdict"] == "does not apply") != two_classes
        assert found["attacks.Residue.verdict"] == "does not apply"
        nearest = "attacks.GradientNearest"
        assert found[f"{nearest}.excess"] == pytest.approx(found[f"{nearest}.score"] - found[f"{nearest}.alone"])
        assert found[f"{nearest}.excess_low"] <= found[f"{nearest}.excess"] <= found[f"{nearest}.excess_high"]


@pytest.mark.slow
def test_the_headline_is_all_attacks_joined_where_they_are(results):
    assert [row["leak.labels.by"] for row in results.rows] == [
        "Strongest" if row["data.name"] == "breast-cancer" else "GradientNearest" for row in results.rows
    ]


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["parquet", "jsonl"])
def test_a_table_that_is_written_and_read_again_has_the_same_groups_and_figures(results, suffix, tmp_path):
    results.save(tmp_path / f"table.{suffix}")
    again = Results.read(tmp_path / f"table.{suffix}")
    assert again.summary() == results.summary()
    assert sorted(again.table.column_names) == sorted(
        name for name in results.table.column_names if suffix == "parquet" or results.table[name].null_count < 8
    )


@pytest.mark.slow
def test_a_journal_is_read_by_its_path_and_other_tools_get_their_own_frames(swept, results):
    assert Results.read(swept.path).summary() == results.summary()
    assert results.to_pandas()["quality.accuracy"].tolist() == results.to_polars()["quality.accuracy"].to_list()


@pytest.mark.slow
def test_a_spreadsheet_gets_a_line_for_each_trial(results, tmp_path):
    results.save(tmp_path / "table.csv")
    lines = (tmp_path / "table.csv").read_text().splitlines()
    assert len(lines) == 9
    assert '"defences.bank"' in lines[0]


@pytest.mark.slow
def test_of_a_trial_that_two_versions_of_the_code_ran_the_last_one_counts(swept, monkeypatch, tmp_path):
    import shutil

    shutil.copy(swept.path, tmp_path / "both.sqlite")
    monkeypatch.setattr("colonnade.experiment.sweep.code_version", lambda: "0.0.0+other")
    later = GridSweep(swept.plan, tmp_path)
    later.path = tmp_path / "both.sqlite"
    assert {row["trial.state"] for row in later.results().rows} == {"queued"}
    assert {row["trial.state"] for row in Results.read(later.path).rows} == {"done"}
    with Journal(later.path) as journal:
        journal.add(later.trials, function="colonnade.experiment.measurement.measure_trial")
    assert [row["trial.state"] for row in Results.read(later.path).rows] == ["queued"] * 8


@pytest.mark.slow
def test_the_pareto_plot_has_a_panel_for_each_set_and_a_mark_for_each_defence(results):
    figure = results.pareto()
    assert [axes.get_title() for axes in figure.axes] == ["breast-cancer", "digits"]
    for axes in figure.axes:
        assert [text.get_text() for text in axes.texts] == ["1", "2"]
        assert [text.get_text() for text in axes.get_legend().get_texts()] == ["1  none", "2  max-norm"]
        assert "beyond the attacker alone" in axes.get_xlabel()
        drawn = [container.lines[0].get_xydata()[0] for container in axes.containers]
        groups = [group for group in results.groups if group.settings["data.name"] == axes.get_title()]
        measure = results.measure
        expected = [
            (100 * np.mean(group.values("leak.labels.excess")), np.mean(group.values(measure))) for group in groups
        ]
        np.testing.assert_allclose(drawn, expected)


def test_no_interval_reaches_where_no_value_can_lie():
    leak = {"leak.labels.excess": 0.1, "leak.labels.by": "A"}
    found = of(row(0, 0.99, **leak), row(1, 0.9, **leak))
    ((*_, auc, _),) = found.summary()[1:]
    assert auc == "0.945 (0.373 to 1.000)"
    (mark,) = found.pareto().axes[0].containers
    assert mark.lines[2][1].get_segments()[0][1][1] == 1


def test_no_setting_on_the_frontier_is_beaten_in_both():
    marks = [
        Mark(name, Estimated(leak, None, None, (leak,)), Estimated(auc, None, None, (auc,)))
        for name, leak, auc in (("a", 5, 0.9), ("b", 1, 0.8), ("c", 3, 0.7), ("d", 5, 0.95), ("e", 0, 0.5))
    ]
    assert [mark.name for mark in frontier(marks)] == ["e", "b", "d"]
    assert [mark.name for mark in frontier(marks, higher=False)] == ["e"]


def test_of_settings_that_leak_nothing_the_best_model_is_on_the_frontier():
    marks = [
        Mark(name, Estimated(leak, None, None, (leak,)), Estimated(auc, None, None, (auc,)))
        for name, leak, auc in (("a", -45, 0.8), ("b", -3, 0.9), ("c", 4, 0.85))
    ]
    assert [mark.name for mark in frontier(marks)] == ["b"]


@pytest.mark.slow
def test_no_cell_of_the_heat_map_is_blank(results):
    figure = results.heat_map()
    panels = [axes for axes in figure.axes if axes.get_title()]
    assert [axes.get_title() for axes in panels] == ["breast-cancer", "digits"]
    for axes in panels:
        cells = [text.get_text() for text in axes.texts]
        attacks = [label.get_text() for label in axes.get_yticklabels()]
        assert len(cells) == len(attacks) * 2
        assert all(cells)
        line = dict(zip(attacks, zip(*[iter(cells)] * 2, strict=True), strict=True))
        assert line["Residue"] == ("does not apply", "does not apply")
        assert (line["NormScore"] == ("does not apply",) * 2) == (axes.get_title() == "digits")
        group = next(each for each in results.groups if each.settings["data.name"] == axes.get_title())
        value = 100 * np.mean(group.values("attacks.GradientNearest.excess"))
        assert line["GradientNearest"][0].splitlines()[0] == f"{value:+.0f}"


def test_what_failed_or_was_refused_or_is_not_finished_is_drawn_as_such():
    made = {
        "attacks.A.about": "labels",
        "attacks.A.verdict": "leaks",
        "attacks.A.excess": 0.2,
        "leak.labels.excess": 0.2,
        "leak.labels.by": "A",
    }
    found = of(
        row(0, 0.9, **made),
        row(1, None, **{"trial.state": "quarantined", "trial.traceback": "Traceback\nValueError: no luck"}),
        row(0, None, "marvell", refused="Marvell takes two classes."),
        row(1, None, "marvell", refused="Marvell takes two classes."),
        row(0, None, "max-norm", **{"trial.state": "queued"}),
        row(1, None, "max-norm", **{"trial.state": "running"}),
    )
    cells = [text.get_text() for text in found.heat_map().axes[0].texts]
    assert cells == ["+20\n1 of 2", "2/2 refused", "1/2 not begun, 1/2 not finished"]
    (note,) = (text for text in texts(found.pareto()) if text.startswith("Not drawn"))
    assert note == (
        "Not drawn: none (1 of 2 failed); marvell (2 of 2 refused); max-norm (1 of 2 not begun, 1 of 2 not finished)"
    )
    assert found.notes() == [
        "none, seed 1: failed: ValueError: no luck",
        "marvell, seeds 0, 1: refused: Marvell takes two classes.",
        "max-norm, seed 0: not begun",
        "max-norm, seed 1: not finished",
    ]
    page = page_of("Small", {}, found.summary(), found.notes())
    assert "<p>none, seed 1: failed: ValueError: no luck</p>" in page


@pytest.mark.slow
def test_curves_show_every_setting_learning_and_leaking(results):
    learning, leaking = results.curves().axes
    for axes in (learning, leaking):
        assert [text.get_text() for text in axes.get_legend().get_texts()] == [group.name() for group in results.groups]
        assert len(axes.lines) == 4 * (2 + 1)
    assert learning.get_ylabel() == "bank: loss"
    first = results.rows[0]
    np.testing.assert_allclose(learning.lines[0].get_ydata(), first["learning.bank.loss"])


def test_what_nobody_attacked_or_varied_is_said_in_the_figure():
    found = of(row(0, 0.9))
    assert "No such attack was asked for." in texts(found.heat_map())
    planned = Results(found.table, axes=("defences.bank",))
    assert "There is one alternative: nothing to compare." in texts(planned.paired("defences.bank"))


def test_curves_that_nobody_noted_say_so():
    said = texts(of(row(0, 0.9)).curves())
    assert "No model here notes figures of its epochs." in said
    assert "Nobody asked for leaks over epochs: write epochs = 8 under [audit]." in said


def test_a_paired_difference_and_its_interval_are_those_of_a_paired_t_test():
    before, after = (0.81, 0.84, 0.79, 0.83), (0.78, 0.84, 0.74, 0.79)
    found = of(
        *(row(seed, auc) for seed, auc in enumerate(before)),
        row(9, 0.5),
        *(row(seed, auc, "marvell") for seed, auc in reversed(list(enumerate(after)))),
    )
    (difference,) = found.differences("defences.bank", "quality.AUC")
    expected = stats.ttest_rel(after, before)
    interval = expected.confidence_interval(0.95)
    assert difference.name == "marvell against none"
    assert (sorted(difference.seeds), difference.unpaired) == ([0, 1, 2, 3], 1)
    assert difference.estimated.mean == pytest.approx(-0.03)
    assert (difference.estimated.low, difference.estimated.high) == pytest.approx((interval.low, interval.high))
    figure = found.paired("defences.bank")
    assert [text.get_text() for text in figure.axes[0].get_yticklabels()] == [
        "marvell against none (4 seeds, 1 without a pair)"
    ]


def test_a_bootstrap_interval_of_the_mean_is_that_of_resampled_seeds():
    values = [0.1, 0.2, 0.4, 0.5, 0.9]
    found = estimated(values, "bootstrap")
    theirs = stats.bootstrap((values,), np.mean, method="percentile", n_resamples=10_000, rng=1).confidence_interval
    assert (found.low, found.high) == pytest.approx((theirs.low, theirs.high), abs=0.02)


def test_one_seed_has_a_mean_and_no_interval():
    assert estimated([0.25]) == Estimated(0.25, None, None, (0.25,))


@pytest.mark.slow
def test_settings_are_paired_only_where_all_else_is_equal(results):
    found = results.differences("defences.bank", "quality.accuracy")
    assert [each.name for each in found] == ["max-norm against none | breast-cancer", "max-norm against none | digits"]
    assert all(each.seeds == (0, 1) for each in found)


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda r: r.paired("defences.bnk"), "The axis should be one of defences.bank, but is 'defences.bnk'."),
        (
            lambda r: r.paired("defences.bank", baseline="noise"),
            "The baseline should be one of none, marvell, but is 'noise'.",
        ),
        (lambda r: r.pareto(measure="quality.AUCC"), "The results should have the figure 'quality.AUCC', but do not."),
        (
            lambda r: r.differences("defences.bank", "quality.AUCC"),
            "The results should have the figure 'quality.AUCC', but do not. The nearest name is 'quality.AUC'.",
        ),
        (lambda r: r.save("table.xlsx"), "A table should be a file that ends in .parquet, .jsonl, .csv"),
        (lambda r: r.log_to("mlfow", "x"), "log_to should be mlflow or tensorboard, but is 'mlfow'."),
        (lambda _: of({"trial.seed": 0}).measure, "Results should have a figure of quality, such as quality.AUC"),
    ],
)
def test_what_cannot_be_drawn_or_written_is_refused_by_name(act, message):
    with pytest.raises(PlanError) as error:
        act(of(row(0, 0.9), row(0, 0.8, "marvell")))
    assert str(error.value).startswith(message)


@pytest.mark.parametrize(
    ("name", "content"), [("a.parquet", b"no"), ("a.jsonl", b"{"), ("a.txt", b""), ("b.jsonl", None)]
)
def test_a_file_that_is_no_table_is_refused(name, content, tmp_path):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(StorageError, match="should be a journal, Parquet or JSON lines of a sweep, but is not: "):
        Results.read(tmp_path / name)


@pytest.mark.slow
def test_the_gallery_is_one_page_that_needs_no_other_file(results, tmp_path):
    page = results.gallery(tmp_path / "figures", "Small").read_text()
    names = [path.stem for path in sorted((tmp_path / "figures").glob("*.svg"))]
    assert names == [
        "curves",
        "heat-map-labels",
        "paired-defences-bank-leak-labels-excess",
        f"paired-defences-bank-{results.measure.replace('.', '-')}",
        "pareto-labels",
    ]
    assert [path.stem for path in sorted((tmp_path / "figures").glob("*.pdf"))] == names
    assert page.count("<svg") == len(names)
    fetched = [line for line in page.splitlines() if "src=" in line or "<link" in line or "<script" in line]
    assert fetched == []
    assert "does not apply" in page
    assert "<h1>Small</h1>" in page
    first = {path.name: path.read_bytes() for path in (tmp_path / "figures").iterdir()}
    results.gallery(tmp_path / "again", "Small")
    assert {path.name: path.read_bytes() for path in (tmp_path / "again").iterdir()} == first


@pytest.mark.slow
def test_a_disk_that_takes_no_figure_is_named(results):
    with pytest.raises(StorageError, match="write"):
        results.gallery(Path("/dev/full/figures"))


@pytest.mark.slow
@pytest.mark.parametrize("tracker", ["mlflow", "tensorboard"])
def test_a_tracker_that_is_not_installed_names_its_extra(results, tracker, monkeypatch, tmp_path):
    import sys

    for name in (tracker, "torch.utils.tensorboard"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingExtra, match=rf"pip install 'colonnade\[{tracker}\]'"):
        results.log_to(tracker, tmp_path)


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_tensorboard_reads_every_figure_of_every_trial(results, tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    results.log_to("tensorboard", tmp_path)
    folders = sorted((tmp_path / "tensorboard").iterdir())
    assert len(folders) == 8
    events = EventAccumulator(str(tmp_path / "tensorboard" / "breast-cancer_none_seed_0"))
    events.Reload()
    found = results.rows[0]
    (accuracy,) = events.Scalars("quality/accuracy")
    assert accuracy.value == pytest.approx(found["quality.accuracy"])
    assert [each.value for each in events.Scalars("learning/bank/loss")] == pytest.approx(found["learning.bank.loss"])


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_mlflow_reads_every_figure_of_every_trial(results, tmp_path, monkeypatch):
    import mlflow

    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    results.log_to("mlflow", tmp_path, "small")
    client = mlflow.MlflowClient(f"sqlite:///{tmp_path}/mlflow.db")
    runs = client.search_runs([client.get_experiment_by_name("small").experiment_id])
    assert len(runs) == 8
    (run,) = (each for each in runs if each.info.run_name == "breast-cancer, none, seed 0")
    assert run.data.params == {"data.name": "breast-cancer", "defences.bank": "none", "seed": "0"}
    assert run.data.metrics["quality.accuracy"] == pytest.approx(results.rows[0]["quality.accuracy"])
    losses = client.get_metric_history(run.info.run_id, "learning.bank.loss")
    assert [each.value for each in losses] == pytest.approx(results.rows[0]["learning.bank.loss"])


@pytest.mark.slow
def test_lists_in_json_lines_stay_lists(results, tmp_path):
    results.to_jsonl(tmp_path / "table.jsonl")
    first = json.loads((tmp_path / "table.jsonl").read_text().splitlines()[0])
    assert first["learning.bank.epoch"] == results.rows[0]["learning.bank.epoch"]
