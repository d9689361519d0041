"""Align once, run often: trainings and predictions on a finished alignment, and people looked up one by one."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from colonnade.deploy.common_rows import described_alignment, on_common_rows
from colonnade.deploy.party_run import PartyRun
from colonnade.errors import AuthError, ColonnadeError, DataError, PlanError, PrivacyError, StorageError, WireError
from colonnade.models.evaluation import HeldOut
from colonnade.plans.align import PlannedAlign
from colonnade.plans.plan import Plan
from colonnade.plans.sections import PlannedAddress, PlannedData, PlannedModel, PlannedNetwork, PlannedTable
from colonnade.roles import Roles
from colonnade.runtime.alignment import Alignment
from colonnade.runtime.party import Party
from colonnade.runtime.status import read_status
from colonnade.tables.table import Table
from colonnade.testing.ports import free_port

N = 160
ROLES = Roles(label="bank", features=("shop",), arbiter="judge")
pytestmark = pytest.mark.network


def write(folder: Path, name: str, ids: range, column: str, shift: int = 0) -> Path:
    path = folder / f"{name}.csv"
    late = ",late" if name == "bank" else ""
    rows = [f"{i},{(i * 7 + shift) % 11}{f',{i % 2}' if late else ''}" for i in ids]
    path.write_text("\n".join([f"id,{column}{late}", *rows]) + "\n")
    return path


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    files = {
        "bank": PlannedTable(write(tmp_path, "bank", range(N), "income"), "id", labels="late"),
        "shop": PlannedTable(write(tmp_path, "shop", range(40, N + 40), "spend"), "id"),
    }
    model = PlannedModel("logistic-regression", {"max_iter": 1, "rows_per_column": 0, "fewest_rows": 1})
    return Plan(PlannedData(tables=files), ROLES, model, network=network(), align=PlannedAlign(workers=1))


def network(start: float = 60) -> PlannedNetwork:
    addresses = {name: PlannedAddress(f"127.0.0.1:{free_port()}") for name in ("bank", "judge")}
    return PlannedNetwork(addresses, start=start)


def at_all(
    plans: Plan | dict[str, Plan], folder: Path, act: Callable[[PartyRun], Any], start: float = 60
) -> dict[str, Any]:
    """What all parties get, or the error of each, when they act at the same time."""
    given = plans if isinstance(plans, dict) else dict.fromkeys(ROLES.parties, plans)
    addresses = network(start)
    sides = {
        name: PartyRun.of(replace(plan, network=addresses), name, folder / f"runs of {name}", insecure=True)
        for name, plan in given.items()
    }

    def outcome(name: str) -> Any:
        try:
            return act(sides[name])
        except ColonnadeError as error:
            return error

    with ThreadPoolExecutor() as pool:
        return dict(zip(sides, pool.map(outcome, sides), strict=True))


def aligned(plan: Plan, folder: Path) -> dict[str, Plan]:
    """The plans of parties that have aligned, each with its finished alignment."""
    found = at_all(plan, folder, lambda side: side.of_alignment().align())
    assert {name: each.size for name, each in found.items()} == dict.fromkeys(ROLES.parties, N - 40)
    finished = {
        name: PartyRun.of(plan, name, folder / f"runs of {name}", insecure=True).of_alignment().path
        for name in ROLES.parties
    }
    return {name: replace(plan, align=replace(plan.aligned, finished=finished[name])) for name in ROLES.parties}


def n_counted(folder: Path, name: str = "shop") -> int:
    log = folder / f"runs of {name}" / f"alignments-of-{name}"
    return sum(json.loads(line)["what"] == "aligned" for line in log.read_text().splitlines())


def test_trainings_and_predictions_on_a_finished_alignment_ask_nothing_new(plan, tmp_path):
    plans = aligned(plan, tmp_path)
    assert n_counted(tmp_path) == 1
    for max_iter in (1, 2):
        model = replace(plan.trained, parameters={**plan.trained.parameters, "max_iter": max_iter})
        trials = {name: replace(each, model=model) for name, each in plans.items()}
        trained = at_all(trials, tmp_path, lambda side: (side.train(), read_status(side.path).get("common_rows")))
        assert trained["shop"][1] == trained["bank"][1] == N - 40
    # New values of the same people are no new list.
    write(tmp_path, "shop", range(40, N + 40), "spend", shift=3)
    written = at_all(trials, tmp_path, lambda side: side.predict(side.path))
    assert len(written["bank"].read_text().splitlines()) == 1 + N - 40
    assert n_counted(tmp_path) == n_counted(tmp_path, "bank") == 1


def test_a_finished_alignment_of_other_rows_or_settings_is_refused_with_the_reason(plan, tmp_path):
    plans = aligned(plan, tmp_path)

    def refusal(error, changed):
        with pytest.raises(error) as caught:
            PartyRun.of(changed, "shop", tmp_path / "elsewhere", insecure=True).train()
        return str(caught.value)

    padded = replace(plans["shop"], align=replace(plans["shop"].aligned, pad=True))
    assert "by the roles and the settings of this plan, but was made by others" in refusal(PlanError, padded)
    nowhere = replace(plans["shop"], align=replace(plans["shop"].aligned, finished=tmp_path / "nowhere"))
    assert "holds none. Correct the path" in refusal(StorageError, nowhere)
    write(tmp_path, "shop", range(41, N + 41), "spend")
    assert "ids were added, removed, changed or moved since" in refusal(DataError, plans["shop"])
    with pytest.raises(PlanError, match="Leave the key out to align again"):
        PartyRun.of(plans["shop"], "shop", tmp_path, insecure=True).of_alignment().align()
    written = tmp_path / "plan.toml"
    written.write_text(plans["shop"].to_toml())
    assert Plan.read(written).aligned.finished == plans["shop"].aligned.finished


@pytest.mark.slow
def test_an_alignment_whose_key_is_a_feature_serves_no_plan_whose_key_is_none(plan):
    zips = Table.of({"id": [1, 2], "zip": ["a", "b"], "spend": [1.0, 2.0]})
    by_zip = PlannedAlign(keys=("text",), columns={"bank": ("zip",), "shop": ("zip",)})
    plans = [replace(plan, align=replace(by_zip, features=each)) for each in ({}, {"shop": ("zip",)})]
    without, having = (described_alignment(each, "shop", zips) for each in plans)
    assert without["list"] == having["list"]
    assert without["aligned_by"] != having["aligned_by"]


def test_rows_that_are_held_out_do_not_make_up_for_too_few_to_train_on(plan, tmp_path):
    few = replace(plan, evaluate=HeldOut(share=0.99))
    shop = Table.of({"id": range(N), "spend": [0.0] * N})
    party = replace(Party.alone(few.public(), "shop", shop), session=Noting())
    finished = tmp_path / "shop"
    finished.mkdir()
    Alignment(np.arange(120), 120, "", "s").save(finished / "alignment.safetensors")
    noted = {"status": "finished", "plan": "", "party": "shop", **described_alignment(few, "shop", shop)}
    (finished / "run.json").write_text(json.dumps(noted))
    few = replace(few, align=replace(few.aligned, finished=finished))
    begun = []
    with pytest.raises(PrivacyError, match="shop should train on at least 8 of its 160 rows, but 1 are common"):
        on_common_rows(begun.append, few, party, few.aligned.build(), "training", tmp_path / "a", lambda *_: None)
    assert begun == []


@pytest.mark.parametrize("refusing", ["bank", "shop"])
def test_nobody_goes_on_with_rows_that_one_party_finds_too_few(plan, tmp_path, refusing):
    large, small = (range(400), range(380, 500)) if refusing == "bank" else (range(380, 500), range(400))
    write(tmp_path, "bank", large, "income")
    write(tmp_path, "shop", small, "spend")
    few = replace(plan, evaluate=HeldOut(share=0.25))
    found = at_all(few, tmp_path, lambda side: side.train())
    assert "should train on at least 20 of its 400 rows, but 15 are common" in str(found[refusing])
    assert all(isinstance(error, WireError) for name, error in found.items() if name != refusing), found
    for name in ROLES.parties:
        (folder,) = (tmp_path / f"runs of {name}").glob(f"*/{name}")
        assert not (folder / "alignment.safetensors").exists()
        # A refusal may come before the other party has counted.
        counted = {refusing: {20}, "judge": {None}}.get(name, {None, 20})
        assert read_status(folder).get("common_rows") in counted
    # A lower floor of the one that refused is enough to go on, and costs no other alignment.
    accepting = replace(few, align=replace(few.aligned, fewest_common=5))
    resumed = at_all(
        {**dict.fromkeys(ROLES.parties, few), refusing: accepting}, tmp_path, lambda s: s.train(resume=True)
    )
    assert not [error for error in resumed.values() if isinstance(error, ColonnadeError)], resumed
    assert n_counted(tmp_path, "bank") == n_counted(tmp_path, "shop") == 1


class Noting:
    def note(self, **facts):
        """Keep nothing."""


def test_parties_with_different_alignments_do_not_train(plan, tmp_path):
    plans = aligned(plan, tmp_path)
    found = at_all({**plans, "shop": plan}, tmp_path, lambda side: side.train(), start=3)
    assert any(isinstance(error, AuthError) and "different alignments" in str(error) for error in found.values())
    assert all(isinstance(error, WireError) for error in found.values()), found
    assert n_counted(tmp_path) == 1


def test_one_applicant_is_scored_if_the_feature_party_allows_lookups_and_each_is_counted(plan, tmp_path):
    at_all(plan, tmp_path, lambda side: side.train())
    one = tmp_path / "applicant.csv"
    one.write_text("id,income\n77,5\n")

    def look_up(most: int) -> dict[str, Any]:
        allowing = replace(plan, align=replace(plan.aligned, most_lookups=most))
        return at_all(
            {**dict.fromkeys(ROLES.parties, plan), "shop": allowing},
            tmp_path,
            lambda side: replace(side, looks_up=True).predict(side.path, file=one if side.name == "bank" else None),
        )

    refused = look_up(0)
    assert isinstance(refused["shop"], PrivacyError)
    assert "shop should answer lookups of at most 0 people by bank" in str(refused["shop"])
    assert n_counted(tmp_path) == 1
    assert look_up(1)["bank"].read_text().splitlines()[1].startswith("77,")
    assert "holds 1 already, but bank asks for 1 more" in str(look_up(1)["shop"])
    # Without --lookup a list of one is refused as before, and before anybody is met.
    listed = at_all({"bank": plan}, tmp_path, lambda side: side.predict(side.path, file=one))
    assert "that would be a question about single people" in str(listed["bank"])
