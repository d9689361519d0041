from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from colonnade.curves import BSplines, Curves
from colonnade.data.functional.generator import FunctionalSetting
from colonnade.errors import PlanError
from colonnade.experiment.quality import quality
from colonnade.models.evaluation import evaluate
from colonnade.models.functional.moment_regression import MomentRegression
from colonnade.plans.plan import Plan
from colonnade.plans.sections import PlannedData, PlannedModel
from colonnade.roles import Roles
from colonnade.runtime.simulate import Run, simulate
from colonnade.tables.table import Table

PLAN = Plan(
    PlannedData("breast-cancer"),
    Roles(label="bank", features=("shop",)),
    PlannedModel("split-classifier", {"epochs": 8, "batch_size": 64}),
)


@pytest.fixture(scope="module")
def trained() -> tuple[Run[Any], dict[str, Table]]:
    tables = PLAN.tables()
    return PLAN.simulation(tables.train).run(), dict(tables.test)


def test_quality_is_what_the_parties_predictions_are_worth(trained: tuple[Run[Any], dict[str, Table]]) -> None:
    run, tables = trained
    shares = {party: share.predict for party, share in run.results.items()}
    prediction = simulate(shares, tables, roles=PLAN.roles).results["bank"]
    labels = np.asarray(tables["bank"].labels)
    scores = prediction.probabilities[:, 1]
    pairs = scores[labels == 1][:, None] - scores[labels == 0]
    assert quality(run, tables) == pytest.approx(
        {
            "rows": len(labels),
            "accuracy": (prediction.values == labels).mean(),
            "commonest": (labels == 0).mean(),
            "AUC": (pairs > 0).mean() + (pairs == 0).mean() / 2,
        }
    )


def test_a_trained_model_is_better_than_the_commonest_class(trained: tuple[Run[Any], dict[str, Table]]) -> None:
    figures = quality(*trained)
    assert figures["accuracy"] > figures["commonest"] + 0.2


def test_rows_of_one_class_have_no_auc(trained: tuple[Run[Any], dict[str, Table]]) -> None:
    run, tables = trained
    healthy = np.asarray(tables["bank"].labels) == 0
    figures = quality(run, {party: table.take(healthy) for party, table in tables.items()})
    assert figures.keys() == {"rows", "accuracy", "commonest"}
    assert figures["commonest"] == 1


def test_rows_without_labels_have_no_quality(trained: tuple[Run[Any], dict[str, Table]]) -> None:
    run, tables = trained
    with pytest.raises(PlanError) as caught:
        quality(run, {party: table.without_labels() for party, table in tables.items()})
    assert str(caught.value) == (
        "Quality is measured against the predictions and labels of the label party, but this run has none. "
        "Name a label party, and its label column."
    )


def test_more_than_two_classes_have_an_auc_too() -> None:
    model = PlannedModel("split-classifier", {"epochs": 4, "learning_rate": 0.01})
    plan = replace(PLAN, data=PlannedData("digits"), model=model)
    tables = plan.tables()
    figures = quality(plan.simulation(tables.train).run(), tables.test)
    assert 0.7 < figures["AUC"] <= 1


def test_curves_are_compared_with_the_mean_of_the_training_rows_and_not_with_what_a_model_starts_from() -> None:
    drawn = FunctionalSetting(n=90, p=1, active=(1,), basis=BSplines((0, 1), 5)).draw_one(1)
    far = replace(drawn, y=Curves(7 + drawn.y.coefficients, drawn.y.basis))
    names = ("label", "worker 1")
    train, test = (
        dict(zip(names, far.take(rows).tables(1).values(), strict=True)) for rows in (range(60), range(60, 90))
    )
    run = simulate(MomentRegression(epsilon=0.1).fit, train, roles=Roles(label="label", features=names[1:]))
    found = evaluate(run.results["label"], run.predict(test), train["label"], test["label"])
    assert found.figures["OverMean"].together == pytest.approx(1.0)
    assert found.verdict.startswith("Together is not surely better than alone: OverMean 1.000 against 1.000")
    assert quality(run, test)["OverMean"] == pytest.approx(1.0)
    run.results["label"].y_mean_ = np.zeros(5)
    assert quality(run, test)["RIL2"] == pytest.approx(1.0)
    assert quality(run, test)["OverMean"] > 10
    zero = evaluate(run.results["label"], run.predict(test), train["label"], test["label"])
    assert zero.figures["OverMean"].together > 10
    assert zero.verdict.startswith("Together is worse than alone")
