"""How good a model between machines is told to be, on rows that nobody trained on."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from colonnade.auditing.report import PrivacyReport
from colonnade.cli.main import app
from colonnade.deploy.party_run import PartyRun, ProgressCallbacks
from colonnade.errors import ColonnadeError, PlanError
from colonnade.models.evaluation import HeldOut
from colonnade.models.networks.messages import Gradient
from colonnade.models.quality import Quality
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
from colonnade.roles import Roles
from colonnade.testing.ports import free_port
from colonnade.wire.recording.recording import Transcript

pytestmark = pytest.mark.network

N, NEW = 400, 120


@dataclass(frozen=True)
class Federation:
    """A bank whose labels depend on a column of the shop's, and both sides of a finished run."""

    path: Path
    plan: Plan
    sides: dict[str, PartyRun]
    told: dict[str, list[Quality]]


def write_tables(folder: Path, name: str, first: int, n: int) -> None:
    draw = np.random.default_rng(first)
    spend, income = draw.normal(size=(2, n))
    late = np.where(2 * spend + income + draw.normal(size=n) > 0, "yes", "no")
    rows = [f"c{first + i}" for i in range(n)]
    bank = [f"{row},{a:.3f},{label}" for row, a, label in zip(rows, income, late, strict=True)]
    (folder / f"bank-{name}.csv").write_text("\n".join(["customer,income,late", *bank, ""]))
    shop = [f"{row.upper()},{a:.3f}" for row, a in zip(rows[::-1], spend[::-1], strict=True)]
    (folder / f"shop-{name}.csv").write_text("\n".join(["customer,spend", *shop, ""]))


def together(sides: dict[str, PartyRun], act: Any) -> None:
    with ThreadPoolExecutor() as threads:
        for each in [threads.submit(act, name, side) for name, side in sides.items()]:
            each.result()


def sides_of(plan: Plan, out: Path) -> dict[str, PartyRun]:
    return {name: PartyRun.of(plan, name, out / name, insecure=True) for name in ("bank", "shop")}


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Federation:
    folder = tmp_path_factory.mktemp("evaluated")
    write_tables(folder, "old", 0, N)
    write_tables(folder, "new", N - 20, NEW)
    files = {name: PlannedTable(folder / f"{name}-old.csv", "customer") for name in ("bank", "shop")}
    plan = Plan(
        PlannedData(tables={**files, "bank": replace(files["bank"], labels="late")}),
        Roles(label="bank", features=("shop",)),
        PlannedModel("split-classifier", {"epochs": 6, "batch_size": 32}),
        network=PlannedNetwork({"bank": PlannedAddress(f"127.0.0.1:{free_port()}")}, start=30, randomness="seeded"),
        align=PlannedAlign(),
        privacy=PlannedPrivacy(accept_label_leak=True),
        evaluate=HeldOut(share=0.3, seed=1),
    )
    told: dict[str, list[Quality]] = {"bank": [], "shop": []}
    sides = sides_of(plan, folder / "runs")
    together(sides, lambda name, side: side.train(shown=ProgressCallbacks(quality=told[name].append)))
    return Federation(folder, plan, sides, told)


def test_the_label_party_is_told_the_quality_on_held_out_rows_and_nobody_else_is(federation: Federation) -> None:
    (quality,) = federation.told["bank"]
    assert federation.told["shop"] == []
    assert (quality.rows, quality.trained_rows) == (120, 280)
    assert Quality.load(federation.sides["bank"].path / "quality.json") == quality
    assert not (federation.sides["shop"].path / "quality.json").exists()
    for side in federation.sides.values():
        status = json.loads((side.path / "run.json").read_text())
        assert (status["trained_rows"], status["held_out_rows"]) == (280, 120)
    # The shop's column decides more than the bank's.
    assert quality.figures["AUC"].surely == 1
    assert quality.verdict.startswith("Together is better than alone")


def test_no_message_of_the_training_is_about_a_held_out_row(federation: Federation) -> None:
    transcript = Transcript.load(federation.sides["shop"].path / "transcript")
    bank = Transcript.load(federation.sides["bank"].path / "transcript")
    rows = np.concatenate([each.rows for each in bank.messages(Gradient) if each.rows is not None])
    assert rows.max() < 280
    assert "split/embedding" in {entry.kind for entry in transcript.entries}
    aside = Transcript.load(federation.sides["shop"].path / "evaluation")
    assert {entry.kind for entry in aside.entries if entry.sent} == {"split/embedding"}


def test_the_figures_are_those_of_the_rows_that_the_rule_names(federation: Federation) -> None:
    bank = federation.sides["bank"]
    common = bank.common_rows()
    assert common is not None
    held = common.take(HeldOut(share=0.3, seed=1).mask(N))
    said = json.loads((bank.path / "quality.json").read_text())
    late = np.asarray(held.labels) == "yes"
    counted = said["confusion"]["together"]
    assert counted["true positives"] + counted["false negatives"] == late.sum()


def test_an_audit_is_about_the_rows_that_were_trained_on_and_reports_the_quality(federation: Federation) -> None:
    bank = federation.sides["bank"]
    report = bank.audit(replace(federation.plan.audit, attacks=("norm-score",)))
    assert report.run.n_rows == 280
    assert report.run.seed == federation.plan.seed
    # What the command prints is what the folder holds.
    assert report.quality == bank.report().quality == federation.told["bank"][0]


def test_an_audit_of_the_own_side_keeps_the_report_of_a_joint_one(federation: Federation) -> None:
    bank, planned = federation.sides["bank"], replace(federation.plan.audit, attacks=("norm-score",))
    bank = replace(bank, plan=replace(bank.plan, audit=planned))
    report = bank.audit(planned)
    (bank.path / "report.json").write_text(replace(report, run=replace(report.run, mode="joint")).to_json())
    bank.audit(planned)
    assert PrivacyReport.from_json((bank.path / "report-joint.json").read_text()).run.mode == "joint"
    assert (bank.path / "report-joint.html").exists()
    assert bank.report() == report
    # One of other attacks than the plan's, or of fewer permutations, stands beside it.
    assert bank.audit(replace(planned, attacks=("direction-score",))).partial
    careful = replace(bank, plan=replace(bank.plan, audit=replace(planned, nulls=300)))
    assert careful.audit(planned).partial
    assert bank.report() == report
    # 200 permutations are made at least, so fewer are not asked for in vain.
    assert not bank.audit(replace(planned, attacks=("direction-score", "norm-score"), nulls=1)).partial


def test_a_prediction_is_scored_on_labelled_rows_that_were_not_trained_on(federation: Federation) -> None:
    told: dict[str, list[Quality]] = {"bank": [], "shop": []}
    written = {}

    def predict(name: str, side: PartyRun) -> None:
        rows = federation.path / f"{name}-new.csv"
        shown = ProgressCallbacks(quality=told[name].append)
        written[name] = side.predict(side.path, file=rows, out=federation.path / f"{name}.csv", shown=shown)

    together(federation.sides, predict)
    (quality,) = told["bank"]
    trained = federation.sides["bank"].trained_rows()
    assert trained is not None
    known = set(trained.ids.to_pylist())
    new = {f"c{N - 20 + i}" for i in range(NEW)} - known
    assert len(new) < NEW
    assert quality.rows == len(new)
    # The labels may come later than the prediction.
    again = federation.sides["bank"].evaluate(written["bank"], federation.path / "bank-new.csv")
    assert again.figures["AUC"].together == pytest.approx(quality.figures["AUC"].together)
    assert again.digest == quality.digest
    folder = federation.sides["bank"].path / "predictions" / "0001"
    shown = CliRunner().invoke(app, ["evaluate", str(folder)])
    assert shown.stdout.strip() == str(quality)
    same = CliRunner().invoke(app, ["evaluate", str(folder), str(folder)])
    assert "+0.000 to +0.000" in same.stdout
    other = CliRunner().invoke(app, ["evaluate", str(federation.sides["bank"].path), str(folder)])
    assert other.exit_code == PlanError.exit_code
    assert "were measured on different ones" in " ".join(other.output.split())


def test_a_folder_without_a_quality_says_how_to_get_one(federation: Federation) -> None:
    said = CliRunner().invoke(app, ["evaluate", str(federation.sides["shop"].path)])
    assert said.exit_code != 0
    assert "Write a section [evaluate] into the plan before training" in " ".join(said.output.split())


def test_a_plan_says_what_is_held_out_and_one_that_does_not_keeps_its_hash(federation: Federation) -> None:
    plan = federation.plan
    assert Plan.read(federation.sides["bank"].path / "plan.toml") == plan
    without = replace(plan, evaluate=None)
    assert "evaluate" not in without.public().settings
    assert plan.public().settings["evaluate"] == {"share": 0.3, "seed": 1}
    louder = replace(plan, evaluate=HeldOut(share=0.3, seed=1, threshold=0.8))
    assert louder.public().hash == plan.public().hash


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model": None}, "no [model]"),
        ({"model": PlannedModel("logistic-regression", {"asker": "arbiter"})}, 'a model with asker = "arbiter"'),
    ],
)
def test_an_evaluation_that_nobody_could_make_is_refused(
    federation: Federation, change: dict[str, Any], words: str
) -> None:
    with pytest.raises(ColonnadeError) as caught:
        replace(federation.plan, **change)
    assert str(caught.value) == (
        f"[evaluate] needs a label party that learns the prediction, but the plan has {words}. Leave out [evaluate], "
        "or let the label party learn it."
    )


def test_a_share_outside_of_0_and_1_is_refused() -> None:
    with pytest.raises(PlanError) as caught:
        HeldOut(share=1.5)
    assert str(caught.value) == "[evaluate] share should lie between 0 and 1, but is 1.5. Choose 0.2 or so."
