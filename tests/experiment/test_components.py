"""Tuning the number of components of a one-shot model."""

from __future__ import annotations

import numpy as np
import pytest

from colonnade import Roles, Table
from colonnade.errors import PlanError
from colonnade.experiment.components import tune_components
from colonnade.models import OneShotClassifier, OneShotRegressor

BOTH = Roles(label="bank", features=("shop",))


@pytest.fixture(scope="module")
def tables():
    """Labels that follow from the first of two directions of the shop's six columns."""
    random = np.random.default_rng(0)
    hidden = random.normal(size=(300, 2)) * (2, 1)
    columns = hidden @ random.normal(size=(2, 6)) + 0.3 * random.normal(size=(300, 6))
    bank = {"id": range(300), "own": random.normal(size=300), "late": (hidden[:, 0] > 0).astype(int)}
    shop = {"id": range(300), **{f"c{i}": columns[:, i] for i in range(6)}}
    return {"bank": Table.of(bank, labels="late"), "shop": Table.of(shop)}


def test_quality_stands_beside_what_could_be_rebuilt(tables):
    model = OneShotClassifier(leak_budget={"shop": 0.0}, epochs=20, batch_size=64, learning_rate=0.01)
    tuning = tune_components(model, tables, roles=BOTH, components=(1, 6, None), tolerance=0.02)
    one, six, rule = tuning.tried
    assert rule.worst_r2 <= 0.95 < one.worst_r2 < six.worst_r2
    assert one.rebuilt < rule.rebuilt < six.rebuilt
    assert six.quality > 0.85
    assert rule.quality > 0.75
    assert tuning.chosen in (1, None)
    lines = str(tuning).splitlines()
    assert [line.split()[0] for line in lines if "*" in line] == ["*"]
    assert "by rule" in lines[-1]


def test_a_regression_is_tuned_by_its_r2(tables):
    tuning = tune_components(OneShotRegressor(epochs=2), tables, roles=BOTH, components=(1,))
    assert tuning.chosen == 1
    assert tuning.tried[0].quality < 1


def test_nothing_to_try_is_refused(tables):
    with pytest.raises(PlanError, match=r"at least one number of components and one seed, but components is \(\)"):
        tune_components(OneShotClassifier(), tables, roles=BOTH, components=())
