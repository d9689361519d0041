from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from colonnade.errors import PlanError
from colonnade.experiment.quality import quality
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
