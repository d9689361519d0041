"""A plan with curves runs from its files to its report; between processes it is tested in tests/e2e."""

import json

import numpy as np
import pyarrow.parquet as pq
import pytest

from colonnade.curves import BSplines
from colonnade.data.functional.generator import FunctionalSetting
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
clip = {x01 = 3.0, x02 = 4.0}
epsilon = 500
guard = false
correction = 1
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
