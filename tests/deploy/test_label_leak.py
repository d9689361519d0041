"""Labels that a plan would give away are announced before they leave, and the label party can rehearse."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from colonnade.auditing.remedies import remedies
from colonnade.catalogue import DEFENCES, MODELS
from colonnade.cli.main import app
from colonnade.deploy.doctor.checklist import Checklist
from colonnade.deploy.doctor.doctor import _look_at_label_leak
from colonnade.deploy.label_leak import MOST_EPSILON, label_leak, require_accepted
from colonnade.deploy.party_run import PartyRun
from colonnade.deploy.rehearsal import rehearse
from colonnade.errors import PlanError
from colonnade.plans.plan import Plan
from colonnade.plans.sections import (
    PlannedAddress,
    PlannedAudit,
    PlannedData,
    PlannedDefence,
    PlannedModel,
    PlannedNetwork,
    PlannedPrivacy,
    PlannedTable,
)
from colonnade.roles import Roles

SERVED = {"served-classifier", "served-regressor", "u-shape-classifier", "u-shape-regressor"}
SENDING = SERVED | {"split-classifier", "split-regressor"}
PLAN = Plan(
    PlannedData("breast-cancer"),
    Roles(label="bank", features=("shop",)),
    PlannedModel("split-classifier", {"epochs": 2}),
    network=PlannedNetwork({"bank": PlannedAddress("127.0.0.1:1")}, start=0.1),
)


def with_model(name: str, **parameters: Any) -> Plan:
    server = "cloud" if name in SERVED else None
    return replace(PLAN, model=PlannedModel(name, parameters), roles=replace(PLAN.roles, server=server))


@pytest.mark.parametrize("name", MODELS)
def test_a_plan_is_announced_if_its_model_sends_gradients_of_rows(name: str) -> None:
    assert (label_leak(with_model(name)) is not None) == (name in SENDING)


def test_the_refusal_has_the_figure_of_the_results_and_names_what_to_take_instead() -> None:
    with pytest.raises(PlanError) as caught:
        require_accepted(PLAN)
    (found,) = (each for each in remedies() if (each.name, each.set) == ("none", "credit-default"))
    assert found.excess is not None
    assert str(caught.value) == (
        "bank's labels should stay with bank, but this plan sends shop gradients of every row, without a defence. "
        f"The best attack on such gradients ({found.attack}) scored {found.excess:+.2f} beside a feature party alone, "
        f"on credit-default over {found.seeds} seeds. Take logistic-regression, secureboost-classifier or one-shot, "
        "which send no gradient of a row, hold a defence, or accept that by accept_label_leak = true under [privacy]."
    )


@pytest.mark.parametrize("model", ["served-classifier", "u-shape-classifier"])
@pytest.mark.parametrize("defence", ["sign-hash", "dimension-limit", "embedding-noise", "adversarial-reconstructor"])
def test_a_defence_of_embeddings_alone_is_none_of_labels(model: str, defence: str) -> None:
    plan = replace(with_model(model), defences=(PlannedDefence("bank", defence),))
    with pytest.raises(PlanError, match="gradients of every row, without a defence"):
        require_accepted(plan)


@pytest.mark.parametrize("epsilon", [1.0, 8.0, 8.5, 1000.0])
def test_labels_that_are_randomised_with_a_large_epsilon_are_told_as_they_are(epsilon: float) -> None:
    held = replace(PLAN, defences=(PlannedDefence("bank", "randomised-labels", {"epsilon": epsilon}),))
    for plan in (held, with_model("label-dp-shadow", epsilon=epsilon)):
        if epsilon <= MOST_EPSILON:
            require_accepted(plan)
            continue
        with pytest.raises(PlanError, match="gradients of every row, without a defence"):
            require_accepted(plan)


def test_a_label_party_does_not_train_before_it_has_accepted_the_leak(tmp_path: Path) -> None:
    bank = PartyRun.of(PLAN, "bank", tmp_path, insecure=True)
    with pytest.raises(PlanError, match=r"accept_label_leak = true under \[privacy\]"):
        bank.train()
    assert bank.status == "planned"
    accepted = replace(PLAN, privacy=PlannedPrivacy(accept_label_leak=True))
    require_accepted(accepted)
    assert accepted.public().hash == PLAN.public().hash


def test_the_doctor_calls_the_leak_wrong_at_the_label_party_until_it_is_accepted() -> None:
    lists = {name: Checklist(name) for name in ("bank", "shop", "accepted")}
    for name in ("bank", "shop"):
        _look_at_label_leak(lists[name], PLAN, name)
    _look_at_label_leak(lists["accepted"], replace(PLAN, privacy=PlannedPrivacy(accept_label_leak=True)), "bank")
    assert [check.state for check in lists["bank"].all] == ["wrong"]
    assert "The best attack on such gradients (" in lists["bank"].all[0].said
    assert lists["bank"].all[0].fix.startswith("Take logistic-regression, secureboost-classifier or one-shot")
    assert [(check.state, check.fix) for check in lists["shop"].all] == [("note", "")]
    assert [(check.state, check.fix) for check in lists["accepted"].all] == [
        ("note", "Rehearse it with doctor --rehearse.")
    ]
    quiet = Checklist("bank")
    _look_at_label_leak(quiet, with_model("logistic-regression"), "bank")
    assert quiet.all == []


def test_the_acceptance_is_read_and_written(tmp_path: Path) -> None:
    accepted = replace(PLAN, privacy=PlannedPrivacy({"labels": (2.0, 1e-5)}, accept_label_leak=True))
    (tmp_path / "plan.toml").write_text(accepted.to_toml())
    assert Plan.read(tmp_path / "plan.toml") == accepted
    assert PlannedPrivacy(accept_label_leak=True).with_options(["labels=2,1e-5"]).accept_label_leak
    assert "[privacy]" not in PLAN.to_toml()


@pytest.mark.parametrize("name", DEFENCES)
def test_a_defence_of_the_label_party_is_announced_with_its_own_figure(name: str) -> None:
    parameters = {"epsilon": 1.0} if name == "randomised-labels" else {}
    told = label_leak(replace(PLAN, defences=(PlannedDefence("bank", name, parameters),)))
    assert told is not None
    measured = [each for each in remedies() if (each.name, each.set) == (name, "credit-default")]
    if f"under {name}" in told and measured:
        assert f"{measured[0].excess:+.2f}" in told
    at_shop = label_leak(replace(PLAN, defences=(PlannedDefence("shop", name, parameters),)))
    assert at_shop is not None
    assert "without a defence" in at_shop


def test_a_rehearsal_finds_labels_in_bare_gradients_and_asks_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = np.random.default_rng(3)
    income, late = draw.normal(size=200), draw.integers(2, size=200)
    lines = [f"{i},{a:.3f},{b}" for i, (a, b) in enumerate(zip(income, late, strict=True))]
    (tmp_path / "bank.csv").write_text("\n".join(["id,income,late", *lines, ""]))
    plan = replace(
        PLAN,
        data=PlannedData(tables={"bank": PlannedTable(tmp_path / "bank.csv", "id", labels="late")}),
        audit=PlannedAudit(attacks=("direction-score",), nulls=3),
    )
    (finding,) = rehearse(plan, "bank", most_rows=150).attacks
    assert (finding.attacker, finding.owner) == ("shop", "bank")
    assert finding.plain.score.value > 0.9
    assert finding.verdict.startswith("leaks")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plan.toml").write_text(plan.to_toml())
    said = CliRunner().invoke(app, ["doctor", "plan.toml", "--as", "bank", "--rehearse"])
    assert said.exit_code == 0, said.output
    assert "DirectionScore by shop: " in said.output
    assert (tmp_path / "rehearsal.html").exists()
    with pytest.raises(PlanError) as caught:
        rehearse(plan, "shop")
    assert str(caught.value) == "A rehearsal needs labels, but shop is not the label party. Run it at bank."
