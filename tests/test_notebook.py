"""What a notebook shows of the objects that a researcher holds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from colonnade import Roles, Table, audit, simulate
from colonnade.attacks import NormScore
from colonnade.data import load
from colonnade.defences import GradientNoise
from colonnade.errors import PlanError
from colonnade.models import LogisticRegression, SplitClassifier, Vertical
from colonnade.models.base import Prediction
from colonnade.progress import Bars
from colonnade.runtime.simulate import Run

ROLES = Roles(label="bank", features=("shop",))


@pytest.fixture(scope="module")
def run() -> Run[SplitClassifier]:
    return simulate(SplitClassifier(epochs=1).fit, load("breast-cancer").split(), roles=ROLES)


def test_estimators_and_defences_show_what_differs_from_the_defaults() -> None:
    assert repr(SplitClassifier()) == "SplitClassifier()"
    assert repr(LogisticRegression(max_iter=30, tol=0.0)) == "LogisticRegression(max_iter=30, tol=0.0)"
    assert repr(GradientNoise(ratio=2)) == "GradientNoise(ratio=2)"


def test_a_run_is_four_lines(run: Run[SplitClassifier]) -> None:
    shown = repr(run).splitlines()
    assert len(shown) == 4
    assert shown[0] == "Run of SplitClassifier.fit, seed 0"
    assert shown[1] == "  parties: bank, shop"
    assert shown[3] == "  results: SplitClassifier(epochs=1)"
    assert "<pre>Run of" in run._repr_html_()


def test_a_run_predicts_and_the_prediction_has_ids(run: Run[SplitClassifier], tmp_path: Path) -> None:
    tables = load("breast-cancer").split()
    prediction = run.predict(tables)
    frame = prediction.to_frame()
    assert frame["row_number"].tolist() == tables["bank"].ids.to_pylist()
    probabilities = frame.filter(like="probability")
    classes = [name.removeprefix("probability ") for name in probabilities]
    assert [classes[i] for i in probabilities.to_numpy().argmax(axis=1)] == frame["prediction"].astype(str).tolist()
    prediction.to_csv(tmp_path / "p.csv")
    assert (tmp_path / "p.csv").read_text().count("\n") == len(frame) + 1
    assert repr(prediction) == f"Prediction({len(frame):,} rows, with probabilities of 2 classes)"
    assert prediction._repr_html_().count("<tr>") == 11


def test_ids_stay_beside_predictions_though_their_column_is_called_prediction() -> None:
    rows = Table.of({"prediction": ["a", "b"]}, ids="prediction")
    held = Prediction(np.array([1, 0])).about(rows, None).to_arrow().to_pydict()
    assert held == {"id prediction": ["a", "b"], "prediction": [1, 0]}


def test_a_table_becomes_a_frame_and_shows_no_value() -> None:
    table = load("breast-cancer").split()["shop"]
    assert list(table.to_pandas().columns) == ["row_number", *table.columns] == list(table.to_polars().columns)
    shown = table._repr_html_()
    assert shown.count("<tr>") == len(table.columns) + 1
    assert f"{table.column(table.columns[0])[0]:g}" not in shown


def test_a_report_shows_itself_as_a_page_and_prints_as_text(run: Run[SplitClassifier]) -> None:
    report = audit(run, [NormScore()], nulls=1)
    assert repr(report).count("\n") == 0
    assert str(report) == report.render()
    assert report._repr_html_().startswith('<iframe srcdoc="&lt;!DOCTYPE html')


def test_progress_without_a_terminal_is_a_line_of_text(capsys: pytest.CaptureFixture[str]) -> None:
    with Bars(shown=True) as bars:
        bars.update("train", 1, 2, {"loss": 0.5})
        bars.update("train", 2, 2, {"loss": 0.25})
    lines = capsys.readouterr().err.replace("\r", "\n").split("\n")
    assert [line.strip() for line in lines if line.strip()] == ["train: 1 of 2  loss 0.5", "train: 2 of 2  loss 0.25"]


def test_a_history_is_drawn_for_the_parties_that_learned_figures(run: Run[SplitClassifier]) -> None:
    assert [set(figures[0]) for figures in run.history_.values()] == [{"epoch", "loss", "validation_loss"}, {"epoch"}]
    axes = run.plot_history()
    assert [line.get_label() for line in axes.lines] == ["bank: loss", "bank: validation loss"]
    assert axes.lines[0].get_ydata().tolist() == [run.history_["bank"][0]["loss"]]
    alone = run.results["bank"].plot_history()
    assert [line.get_label() for line in alone.lines] == ["this party: loss", "this party: validation loss"]


def test_a_model_without_a_history_says_why() -> None:
    with pytest.raises(AttributeError) as caught:
        _ = LogisticRegression().history_  # type: ignore[attr-defined]
    assert str(caught.value) == (
        "LogisticRegression has no attribute 'history_'. Networks note figures of each epoch, at parties that learn "
        "any."
    )
    with pytest.raises(PlanError) as refused:
        LogisticRegression().plot_history()
    assert str(refused.value) == (
        "A history has the figures of each epoch, but no party learned any while LogisticRegression was trained. Look "
        "at n_iter_ and converged_, or at the quality on held-out rows."
    )


def test_a_vertical_draws_its_history() -> None:
    X = np.random.default_rng(0).normal(size=(60, 2))
    vertical = Vertical(SplitClassifier(epochs=1), columns={"bank": [0], "shop": [1]}, roles=ROLES)
    assert len(vertical.fit(X, X[:, 0] > 0).plot_history().lines) == 2


def test_a_vertical_passes_on_what_the_parties_learned(tmp_path: Path) -> None:
    X = np.random.default_rng(0).normal(size=(300, 4))
    columns = {"bank": [0, 1], "shop": [2, 3]}
    vertical = Vertical(LogisticRegression(max_iter=1), columns=columns, roles=Roles(("shop",), "bank", "judge"))
    with pytest.raises(AttributeError, match="has no attribute 'coef_', and no party has learned one"):
        _ = vertical.coef_
    vertical.fit(X, X[:, 0] > 0)
    assert [vertical.coef_[party].shape for party in ("bank", "shop")] == [(2,), (2,)]
    assert vertical.n_iter_["shop"] == 1
    vertical.save(tmp_path / "model")
    share = LogisticRegression.load(tmp_path / "model" / "shop.safetensors")
    assert share.coef_.tolist() == vertical.coef_["shop"].tolist()
    assert "After 1 epoch (max_iter)" in share.summary()
