import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from colonnade.cli.main import app
from colonnade.curves import BSplines
from colonnade.data.functional.generator import FunctionalSetting
from colonnade.plans.plan import Plan

PLAN = """
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
clip = {x01 = 3.0}
epsilon = 50
[model.stopping]
max_steps = 10
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    data = FunctionalSetting(n=80, p=1, active=(1,), basis=BSplines((0, 1), 6)).draw_one(1)
    for name, table in zip(("label", "worker"), data.tables(1).values(), strict=True):
        pq.write_table(table.to_arrow(), tmp_path / f"{name}.parquet")
    (tmp_path / "free.toml").write_text(PLAN)
    (tmp_path / "bounded.toml").write_text(PLAN + "[privacy.budget]\nfeatures = [60.0, 1e-5]\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def call(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, arguments)
    return result.exit_code, " ".join((result.output + result.stderr).split())


def test_a_planned_budget_stops_the_run_that_would_exceed_it_over_all_runs(folder):
    assert call("simulate", "bounded.toml")[0] == 0
    code, said = call("simulate", "bounded.toml", "--seed", "2")
    assert code != 0
    assert "at most epsilon 60 at delta 1e-05 on features over all runs on these records" in said
    assert "nothing was released" in said
    code, said = call("budget")
    assert code == 0
    assert "1 simulated run from" in said
    assert "features: epsilon 50 at delta 1e-05 per record (replace-one; 1 × gaussian)" in said


def test_a_budget_of_the_command_line_stands_in_place_of_the_plans(folder):
    assert call("simulate", "free.toml", "--budget", "features=49,1e-5")[0] != 0
    assert call("simulate", "bounded.toml", "--budget", "features=200,1e-5")[0] == 0
    assert call("simulate", "bounded.toml", "--budget", "features=200,1e-5", "--seed", "2")[0] == 0
    assert call("simulate", "bounded.toml", "--seed", "3")[0] != 0


@pytest.mark.parametrize("option", ["features", "features=2", "features=2,3,4", "features=two,0", "features=1,1"])
def test_a_budget_that_is_none_is_refused(folder, option):
    code, said = call("simulate", "free.toml", "--budget", option)
    assert code != 0
    assert "--budget should be a secret with epsilon and delta" in said or "[privacy] budget.features" in said


def test_a_folder_without_counts_says_so(folder):
    assert "No run in runs has released anything that is counted." in call("budget")[1]


def test_a_plan_keeps_its_budget_and_refuses_other_secrets(folder):
    plan = Plan.read("bounded.toml")
    (folder / "again.toml").write_text(plan.to_toml())
    assert dict(Plan.read("again.toml").privacy.budget) == {"features": (60.0, 1e-5)}
    assert plan.public() == Plan.read("free.toml").public()
    (folder / "wrong.toml").write_text(PLAN + "[privacy.budget]\nfeature = [60.0, 1e-5]\n")
    code, said = call("simulate", "wrong.toml")
    assert code != 0
    assert "has the key 'feature'" in said
