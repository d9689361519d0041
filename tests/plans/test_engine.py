from pathlib import Path
from typing import Any

import pytest

from colonnade.errors import PlanError
from colonnade.plans.engine import PlannedEngine
from colonnade.plans.plan import Plan
from colonnade.runtime.executor import Dask, Local, Ray

PLAN = """
[data]
name = "breast-cancer"
[roles]
label = "bank"
features = ["shop"]
[model]
name = "logistic-regression"
"""


def planned(folder: Path, section: str) -> Plan:
    path = folder / "plan.toml"
    path.write_text(PLAN + section)
    return Plan.read(path)


def test_a_plan_without_an_engine_runs_in_processes_of_this_machine(tmp_path: Path) -> None:
    plan = planned(tmp_path, "")
    assert plan.engine == PlannedEngine()
    assert isinstance(plan.engine.build(), Local)
    assert "engine" not in plan.to_toml()


def test_an_engine_is_read_and_written_and_changes_neither_hash_nor_public_plan(tmp_path: Path) -> None:
    section = '[engine]\nname = "ray"\naddress = "10.0.0.7:6379"\njobs = 8\ncores_per_job = 2\ngpus_per_job = 0.5\n'
    plain, plan = planned(tmp_path, ""), planned(tmp_path, section)
    assert plan.engine == PlannedEngine("ray", "10.0.0.7:6379", 8, 2, 0.5)
    assert planned(tmp_path, "").hash == plan.hash
    assert plain.public() == plan.public()
    (tmp_path / "again.toml").write_text(plan.to_toml())
    assert Plan.read(tmp_path / "again.toml") == plan


@pytest.mark.parametrize(("name", "kind"), [("ray", Ray), ("dask", Dask)])
def test_a_planned_cluster_becomes_an_executor_that_asks_for_what_the_plan_says(name: Any, kind: Any) -> None:
    built = PlannedEngine(name, "10.0.0.7:6379", 8, 2, 0.5).build()
    assert type(built) is kind
    assert vars(built) == {"address": "10.0.0.7:6379", "n_jobs": 8, "threads": 2, "gpus": 0.5}


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ('nmae = "ray"', "The nearest name is 'name'. Correct the key or leave it out."),
        (
            'name = "rya"',
            '[engine] name should be "local" or "ray" or "dask", but is "rya". The nearest name is \'ray\'.',
        ),
        ("jobs = 0", "[engine] jobs should be None or a whole number, at least 1, but is 0. Change it."),
        ("cores_per_job = 0", "[engine] cores_per_job should be a whole number, at least 1, but is 0. Change it."),
        (
            "gpus_per_job = 1.5",
            "[engine] gpus_per_job should be a whole number or a share of one GPU, but is 1.5. Choose a number such as "
            "0.5 or 2.",
        ),
        (
            'address = "10.0.0.7:6379"',
            "[engine] address belongs to a cluster, but name is 'local' and address is '10.0.0.7:6379'. Leave out the "
            "address, or choose the engine 'ray' or 'dask'.",
        ),
    ],
)
def test_an_engine_that_cannot_be_is_refused(section: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(PlanError) as error:
        planned(tmp_path, f"[engine]\n{section}\n")
    assert message in str(error.value)


def test_the_command_line_goes_before_the_plan() -> None:
    plan = PlannedEngine("ray", "10.0.0.7:6379", jobs=8, cores_per_job=2)
    assert plan.with_options(None, None) == plan
    assert plan.with_options(None, 3) == PlannedEngine("ray", "10.0.0.7:6379", 3, 2)
    assert plan.with_options("local", None) == PlannedEngine("local", None, 8, 2)
    assert plan.with_options("dask:tcp://10.0.0.8:8786", 1) == PlannedEngine("dask", "tcp://10.0.0.8:8786", 1, 2)


def test_an_option_that_names_no_engine_is_refused() -> None:
    with pytest.raises(PlanError) as error:
        PlannedEngine().with_options("daks:10.0.0.8:8786", None)
    assert str(error.value) == (
        "--engine should be local, ray or dask, perhaps with an address, but is 'daks:10.0.0.8:8786'. The nearest name "
        "is 'dask'. Write it as ray or as ray:10.0.0.7:6379."
    )
