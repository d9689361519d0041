"""A plan with curves runs from its files to its report; between processes it is tested in tests/e2e."""

import json

import numpy as np
import pyarrow.parquet as pq
import pytest

from colonnade.curves import BSplines
from colonnade.data.functional.generator import FunctionalSetting
from colonnade.errors import PlanError
from colonnade.experiment.run_folder import RunFolder
from colonnade.plans.plan import Plan

PLAN = """
seed = 1
[data.label]
path = "label.parquet"
ids = "id"
labels = "response"
[data.worker]
path = "worker.parquet"
ids = "id"
[roles]
label = "label"
features = ["worker"]
[model]
name = "functional-boost"
guard = false
correction = 1
[model.protection]
clip = {x01 = 3.0, x02 = 4.0}
epsilon = 500
[model.stopping]
max_steps = 20
[audit]
attacks = ["norm-score"]
nulls = 1
"""


@pytest.fixture
def folder(tmp_path):
    data = FunctionalSetting(n=120, p=2, active=(1,), basis=BSplines((0, 1), 6)).draw_one(1)
    for name, table in zip(("label", "worker"), data.tables(1).values(), strict=True):
        pq.write_table(table.to_arrow(), tmp_path / f"{name}.parquet")
    (tmp_path / "curves.toml").write_text(PLAN)
    return tmp_path


def test_a_plan_with_curves_in_parquet_files_is_run_measured_and_audited(folder):
    run = RunFolder.create(Plan.read(folder / "curves.toml"), folder / "runs")
    run.simulate()
    again = RunFolder.open(run.path)
    metrics = json.loads((run.path / "metrics.json").read_text())
    assert {"rows", "RIL2", "WMAPE"} <= set(metrics)
    assert np.isfinite(metrics["RIL2"])
    report = again.audit()
    assert report.budget["features"].epsilon == pytest.approx(500)
    assert "label's labels are curves, and it guesses classes" in report.untested[0]


@pytest.mark.parametrize(
    ("written", "instead", "words"),
    [
        ("epsilon = 500", "epsilom = 500", "has the key 'epsilom'. The nearest name is 'epsilon'."),
        ("max_steps = 20", 'max_steps = "20"', "[model] stopping max_steps should be a whole number"),
        ("[model.stopping]", "[model.stoping]", "has the key 'stoping'. The nearest name is 'stopping'."),
    ],
)
def test_a_wrong_key_or_value_in_a_section_of_the_model_is_refused_with_its_place(folder, written, instead, words):
    (folder / "wrong.toml").write_text(PLAN.replace(written, instead))
    with pytest.raises(PlanError) as refused:
        Plan.read(folder / "wrong.toml")
    assert words in str(refused.value)


def test_sections_of_the_model_are_written_as_they_were_read(folder):
    plan = Plan.read(folder / "curves.toml")
    (folder / "again.toml").write_text(plan.to_toml().replace("epsilon = 500.0", 'epsilon = "none"'))
    again = Plan.read(folder / "again.toml")
    assert again.model.parameters["stopping"] == plan.model.parameters["stopping"] == {"max_steps": 20}
    assert again.model.parameters["protection"] == {"clip": {"x01": 3.0, "x02": 4.0}, "epsilon": None}
    assert 'epsilon = "none"' in again.to_toml()
