"""What earlier runs have used up is known before another run begins."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from colonnade.align.limits import Limits, Purpose
from colonnade.crypto.profiles import SHARES, Budget
from colonnade.deploy.doctor.checklist import Checklist
from colonnade.deploy.doctor.counts import look_at_counts
from colonnade.deploy.doctor.doctor import examine
from colonnade.deploy.party_run import PartyRun
from colonnade.deploy.preflight import counts_path, require_ready
from colonnade.errors import LeakBudgetSpent
from colonnade.models.trees.budgets import LeakBudget
from colonnade.plans.align import PlannedAlign
from colonnade.plans.plan import Plan
from colonnade.plans.sections import (
    PlannedAddress,
    PlannedData,
    PlannedModel,
    PlannedNetwork,
    PlannedPrivacy,
    PlannedTable,
)
from colonnade.privacy.history import History, Records, history_path
from colonnade.privacy.ledger import Event, Ledger
from colonnade.roles import Roles
from colonnade.runtime.party import Party
from colonnade.secret import Secret
from colonnade.tables.table import Table

N = 120
TABLE = Table.of({"id": np.arange(N), "spend": np.arange(N) % 7}, owner="shop")
ROLES = Roles(label="bank", features=("shop",))
NETWORK = PlannedNetwork({"bank": PlannedAddress("127.0.0.1:1")}, start=0.1)
TREES = PlannedModel("secureboost-classifier", {"n_estimators": 2, "max_depth": 1, "leak_budget": 0.1})


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    (tmp_path / "shop.csv").write_text("id,spend\n" + "".join(f"{i},{i % 7}\n" for i in range(N)))
    data = PlannedData(tables={"shop": PlannedTable(tmp_path / "shop.csv", "id")})
    return Plan(data, ROLES, TREES, network=NETWORK, align=PlannedAlign(most_runs=2, most_predictions=1))


def looked(plan: Plan, folder: Path) -> list[tuple[str, str, str]]:
    found = Checklist("shop")
    look_at_counts(found, plan, "shop", TABLE, folder)
    return [(check.topic, check.state, check.said) for check in found.all]


def align(folder: Path, run: str, purpose: Purpose = "training") -> None:
    Limits(log=folder / "alignments-of-shop", asked_for=purpose).admit("shop", "bank", run)


def test_nothing_is_said_or_written_where_nothing_was_counted(plan: Plan, tmp_path: Path) -> None:
    assert looked(plan, tmp_path / "runs") == []
    assert not (tmp_path / "runs").exists()


def test_alignments_that_are_left_are_told_and_none_left_is_wrong_unless_one_is_finished(
    plan: Plan, tmp_path: Path
) -> None:
    align(tmp_path, "first")
    assert looked(plan, tmp_path) == [("alignments", "good", "room for 1 trainings and 1 predictions with bank")]
    align(tmp_path, "second")
    ((_, state, said),) = looked(plan, tmp_path)
    assert state == "wrong"
    assert "shop should align with bank at most 2 times" in said
    lines = (tmp_path / "alignments-of-shop").read_text()
    assert looked(replace(plan, align=replace(plan.aligned, finished=tmp_path)), tmp_path) == []
    assert (tmp_path / "alignments-of-shop").read_text() == lines, "a look is not logged"


def test_predictions_of_the_last_days_that_are_used_up_are_wrong(plan: Plan, tmp_path: Path) -> None:
    align(tmp_path, "first", "prediction")
    ((_, state, said),) = looked(plan, tmp_path)
    assert state == "wrong"
    assert "at most 1 times for predictions within 30 days" in said


def test_what_earlier_runs_spent_of_the_privacy_budget_is_told_and_all_of_it_is_wrong(
    plan: Plan, tmp_path: Path
) -> None:
    ledger = Ledger(history=History(history_path(tmp_path, "shop"), Records.of(TABLE)))
    flip = Event(Secret.FEATURES, "record", "laplace", (("scale", 1.0), ("sensitivity", 1.0)))
    ledger.spend(flip)
    budgeted = replace(plan, privacy=PlannedPrivacy({"features": (2.0, 0.0)}))
    assert looked(budgeted, tmp_path) == [
        (
            "privacy budget",
            "good",
            "shop has spent epsilon 1 of 2 at delta 0 on features over all runs on these records",
        )
    ]
    ledger.spend(flip)
    ((_, state, said),) = looked(budgeted, tmp_path)
    assert state == "wrong"
    assert said.startswith("shop should have something left to spend, but has spent epsilon 2 of 2")
    assert looked(plan, tmp_path) == [], "the plan sets no budget"


def test_encrypted_answers_are_told_and_none_left_is_wrong(plan: Plan, tmp_path: Path) -> None:
    budget = Budget(SHARES, peer="bank", data=TABLE.digest(), log=counts_path(tmp_path, "shop"))
    budget.spend(5)
    ((_, state, said),) = looked(plan, tmp_path)
    assert state == "good"
    assert said.startswith("bank was answered ")
    budget.spend(SHARES.most_values - 5)
    assert [state for _, state, _ in looked(plan, tmp_path)] == ["wrong"]


@pytest.mark.parametrize(("unit", "parameter"), [("equations", "leak_budget"), ("sides", "side_budget")])
def test_doctor_and_join_refuse_a_run_for_which_a_budget_of_trees_has_no_room(
    plan: Plan, tmp_path: Path, unit: str, parameter: str
) -> None:
    plan = replace(plan, align=None, model=replace(TREES, parameters={**TREES.parameters, "side_budget": 3}))
    require_ready(plan, "shop", TABLE, counts_path(tmp_path, "shop"))
    party = Party.alone(plan.public(), "shop", TABLE, answer_log=counts_path(tmp_path, "shop"))
    # 12 equations and 3 sides are allowed; two trees ask for 4 equations at least, and for a side.
    kinds = {"equations": LeakBudget.of_sums(party, "bank", N, 0.1), "sides": LeakBudget.of_sides(party, "bank", 3)}
    kinds[unit].spend(2)
    checks = examine(plan, "shop", insecure=True, wait=1, out=tmp_path)
    notes = [check.said for check in checks if (check.topic, check.state) == ("model", "note")]
    assert [parameter in note and "learned 2" in note for note in notes] == [True]
    kinds[unit].spend({"equations": 9, "sides": 1}[unit])
    wrong = {check.topic: check.said for check in examine(plan, "shop", insecure=True, wait=1, out=tmp_path)}
    assert parameter in wrong["model"]
    with pytest.raises(LeakBudgetSpent, match=parameter):
        PartyRun.of(plan, "shop", tmp_path, insecure=True).train()
