"""For every model of the catalogue: if the doctor is green the run succeeds, and what the run needs is never missed."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from colonnade.catalogue import MODELS
from colonnade.curves import BSplines
from colonnade.data.functional.generator import FunctionalSetting
from colonnade.deploy.doctor.doctor import examine
from colonnade.deploy.party_run import PartyRun
from colonnade.deploy.preflight import lines_needed, require_lines, require_ready
from colonnade.errors import DataError, LeakBudgetSpent, PlanError, PrivacyError
from colonnade.plans.admission import check_model
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
from colonnade.roles import Roles, star
from colonnade.runtime.simulate import simulate
from colonnade.tables.table import Table
from colonnade.testing.ports import free_port
from colonnade.wire.recording.recording import Transcript

N = 60
MILLION = 10**6
FEATURES = ("shop", "telco", "club")
SMALL: dict[str, dict[str, Any]] = {
    "glm": {"max_iter": 1, "rows_per_column": 0, "fewest_rows": 1},
    "trees": {"n_estimators": 1, "max_depth": 1, "max_bin": 4, "leak_budget": None},
    "networks": {"epochs": 1, "batch_size": N, "embedding": 2},
    "functional": {},
}
VARIANTS: dict[str, list[dict[str, Any]]] = {
    "secureboost-classifier": [{}, {"sums": "hidden"}],
    "logistic-regression": [{}, {"partial_scores": "plain"}, {"asker": "arbiter"}],
}
"""What a family trains with in a moment, and parameters that change who talks to whom."""


def family(model: str) -> str:
    return MODELS[model].__module__.split(".")[2]


def possible_roles(model: str) -> Iterator[Roles]:
    """All roles of two to four parties that a model takes."""
    needs_server = "server" in MODELS[model].hooks
    for n in range(1, 4):
        roles = Roles(label="bank", features=FEATURES[:n])
        if needs_server:
            roles = replace(roles, server="cloud")
        judged = replace(roles, arbiter="judge")
        takes_arbiter = family(model) == "glm" or model == "functional-moments"
        for each in (roles, *([judged] if takes_arbiter else [])):
            if len(each.parties) <= 4 and not (model == "functional-moments" and each.arbiter is None and n > 1):
                yield each


def parameters(model: str, roles: Roles) -> dict[str, Any]:
    found = dict(SMALL[family(model)])
    if model.startswith("one-shot"):
        found["leak_budget"] = dict.fromkeys(roles.features, 1.0)
        del found["embedding"]
    if model == "functional-moments":
        found |= {"clip_x": 3.0, "clip_y": 3.0, "epsilon": 1e6}
    return found


CASES = [
    pytest.param(model, roles, changed, id=f"{model}-{'-'.join([*roles.parties, *map(str, changed.values())])}")
    for model in MODELS
    for changed in VARIANTS.get(model, [{}])
    for roles in possible_roles(model)
    if changed.get("asker") != "arbiter" or roles.arbiter is not None
]
QUICK = ("split-classifier",)


def slow(cases: list[Any]) -> list[Any]:
    return [pytest.param(*case.values, id=case.id, marks=pytest.mark.slow) for case in cases]


@cache
def tables(task: str) -> dict[str, Table]:
    """Tables of a label party and three feature parties."""
    if task == "curves":
        drawn = FunctionalSetting(n=N, p=6, active=(1, 2), basis=BSplines((0.0, 1.0), 4)).draw(1)[0].tables(3)
        return dict(zip(("bank", *FEATURES), drawn.values(), strict=True))
    random = np.random.default_rng(0)
    found = {name: Table.of({"id": np.arange(N), f"of {name}": random.random(N)}) for name in ("bank", *FEATURES)}
    found["bank"] = found["bank"].with_labels(np.arange(N) % (2 if task == "classification" else 5))
    return found


def tables_for(model: str, roles: Roles) -> dict[str, Table]:
    found = tables("curves" if family(model) == "functional" else MODELS[model].task)
    return {name: found[name] for name in roles.holders}


def plan_of(
    model: str, roles: Roles, changed: dict[str, Any], addresses: list[str], folder: Path | None = None
) -> Plan:
    """A plan of all parties' files; parties without an address only dial."""
    network = PlannedNetwork({name: PlannedAddress(f"127.0.0.1:{free_port()}") for name in addresses}, start=60)
    files = {}
    for name, table in tables_for(model, roles).items():
        path = Path(f"{name}.parquet") if folder is None else folder / f"{name}.parquet"
        if folder is not None:
            pq.write_table(table.to_arrow(), path)
        files[name] = PlannedTable(path, table.id_name, labels=table.label_name)
    planned = PlannedModel(model, {**parameters(model, roles), **changed})
    accepted = PlannedPrivacy(accept_label_leak=True)
    return Plan(PlannedData(tables=files), roles, planned, network=network, privacy=accepted)


def fewest_addresses(plan: Plan) -> list[str]:
    """Parties that need an address, if as few as possible have one."""
    for n in range(1, len(plan.roles.parties) + 1):
        for chosen in combinations(plan.roles.parties, n):
            if all(pair & set(chosen) for pair in lines_needed(plan)):
                return list(chosen)
    raise AssertionError


def require_columns(share: Any, table: Table) -> None:
    """A share takes the columns that it was trained with, and misses those that a table lacks."""
    share.check_columns(table)
    with pytest.raises(DataError, match="trained with the column"):
        share.check_columns(table.select([]))


# Other models are seen to do so where they run over the network, below.
@pytest.mark.parametrize(("model", "roles", "changed"), [case for case in CASES if case.values[0] in QUICK])
def test_a_model_talks_over_the_lines_that_it_declares_and_over_no_others(model, roles, changed):
    made = MODELS[model](**parameters(model, roles), **changed)
    held = tables_for(model, roles)
    fitted = simulate(made.fit, held, roles=roles)
    for name in roles.features:
        require_columns(fitted.results[name], held[name])
    predicted = simulate({name: share.predict for name, share in fitted.results.items()}, held, roles=roles)
    used = {
        frozenset((name, entry.peer))
        for run in (fitted, predicted)
        for name, transcript in run.transcripts.items()
        for entry in transcript.entries
    }
    assert used == made.lines(roles)


@pytest.mark.parametrize(("model", "roles", "changed"), CASES)
def test_a_plan_that_lacks_nothing_is_admitted_at_every_party(model, roles, changed):
    plan = plan_of(model, roles, changed, list(roles.parties))
    for name in roles.parties:
        check_model(plan, name, tables_for(model, roles).get(name))


@pytest.mark.parametrize(("model", "roles", "changed"), CASES)
def test_a_plan_without_a_line_that_its_run_needs_is_refused_and_one_with_all_of_them_is_not(model, roles, changed):
    plan = plan_of(model, roles, changed, list(roles.parties))
    require_lines(plan_of(model, roles, changed, fewest_addresses(plan)))
    for pair in lines_needed(plan) - star(roles.parties[0], roles.parties):
        without = plan_of(model, roles, changed, [name for name in roles.parties if name not in pair])
        one, other = sorted(pair, key=roles.parties.index)
        with pytest.raises(
            PlanError, match=f"{model} in training or prediction needs a line between {one} and {other}"
        ):
            require_ready(without, one, None)


@pytest.mark.network
@pytest.mark.parametrize(("model", "roles", "changed"), slow(CASES))
def test_if_the_doctor_is_green_a_run_succeeds_over_the_lines_that_its_model_declares(model, roles, changed, tmp_path):
    everywhere = plan_of(model, roles, changed, list(roles.parties))
    plan = plan_of(model, roles, changed, fewest_addresses(everywhere), tmp_path)
    found = at_all(plan, lambda name: examine(plan, name, insecure=True, wait=60))
    assert {name: [check for check in checks if check.state == "wrong"] for name, checks in found.items()} == {
        name: [] for name in roles.parties
    }
    # Connections of one process to one port share their state: new commands have new ports here.
    plan = plan_of(model, roles, changed, fewest_addresses(everywhere), tmp_path)
    sides = {name: PartyRun.of(plan, name, tmp_path / "runs", insecure=True) for name in roles.parties}
    at_all(plan, lambda name: sides[name].train())
    written = at_all(plan, lambda name: sides[name].predict(sides[name].path))
    told = roles.arbiter if changed.get("asker") == "arbiter" else roles.label
    assert [name for name, path in written.items() if path is not None and path.exists()] == [told]
    for name in roles.features:
        require_columns(MODELS[model].load(sides[name].path / "model.safetensors"), tables_for(model, roles)[name])
    recorded = {name: list(side.path.rglob("transcript")) for name, side in sides.items()}
    assert {len(folders) for folders in recorded.values()} == {2}
    used = {
        frozenset((name, entry.peer))
        for name, folders in recorded.items()
        for folder in folders
        for entry in Transcript.load(folder).entries
    }
    assert used == MODELS[model](**parameters(model, roles), **changed).lines(roles)


def at_all(plan: Plan, act: Callable[[str], Any]) -> dict[str, Any]:
    """What all parties of a plan get when they act at the same time."""
    with ThreadPoolExecutor(len(plan.roles.parties)) as pool:
        asked = {name: pool.submit(act, name) for name in plan.roles.parties}
    failed = {name: error for name, each in asked.items() if (error := each.exception()) is not None}
    assert not failed, "\n".join(f"{name}: {error}" for name, error in failed.items())
    return {name: each.result() for name, each in asked.items()}


def missing_settings() -> Iterator[Any]:
    """Plans that lack something that their model needs, with what the refusal names."""
    two, three = Roles(label="bank", features=("shop",)), Roles(label="bank", features=("shop", "telco"))
    for model in MODELS:
        first, *_ = possible_roles(model)
        name, limit = next(iter(MODELS[model].limits.items()))
        yield model, first, {name: limit.wrong[0]}, PlanError, f"{name} should be"
        if "server" in MODELS[model].hooks:
            yield model, two, {}, PlanError, "needs a server"
        else:
            yield model, replace(two, server="cloud"), {}, PlanError, "has nothing for cloud"
        if not any(roles.arbiter for roles in possible_roles(model)):
            yield model, replace(first, arbiter="judge"), {}, PlanError, "has nothing for judge"
        if model.startswith("one-shot"):
            yield model, two, {"leak_budget": None}, PlanError, "leak_budget has no value"
            yield model, two, {"leak_budget": {"shop": 0.01}}, LeakBudgetSpent, "allows 1% of its columns' variance"
        if model.startswith("secureboost"):
            yield model, two, {"leak_budget": 0.01}, LeakBudgetSpent, "shop"
        if family(model) == "glm":
            yield model, two, {"asker": "arbiter"}, PlanError, "Predictions go to the arbiter"
            judged = replace(two, arbiter="judge")
            yield model, judged, {"rows_per_column": N}, PrivacyError, "a batch needs more than"
    yield "functional-moments", three, {}, PlanError, "Name an arbiter"


@pytest.mark.parametrize(("model", "roles", "changed", "error", "words"), list(missing_settings()))
def test_a_plan_that_lacks_what_its_model_needs_is_refused_before_anybody_is_met(model, roles, changed, error, words):
    def begin() -> None:
        plan = plan_of(model, roles, changed, list(roles.parties))
        for name, table in tables_for(model, roles).items():
            require_ready(plan, name, table)

    with pytest.raises(error, match=words):
        begin()


def at_home(plan: Plan, name: str) -> dict[str, str]:
    """What the doctor calls wrong on one party's side; without a certificate it visits nobody."""
    nowhere = Path("no such folder")
    found = examine(plan, name, certificates=nowhere)
    return {
        check.topic: f"{check.said}. {check.fix}"
        for check in found
        if check.state == "wrong" and check.topic != "certificate"
    }


@pytest.mark.parametrize(("model", "roles", "changed", "error", "words"), list(missing_settings()))
def test_the_doctor_is_red_where_a_plan_lacks_what_its_model_needs(model, roles, changed, error, words, tmp_path):
    def said() -> str:
        try:
            plan = plan_of(model, roles, changed, list(roles.parties), tmp_path)
        except PlanError as refused:
            return str(refused)  # The plan cannot even be read, and the doctor ends with this sentence.
        return "\n".join(line for name in roles.parties for line in at_home(plan, name).values())

    assert re.search(words, said())


@pytest.mark.parametrize(("model", "roles", "changed"), CASES)
def test_the_doctor_is_red_where_a_line_is_missing_and_green_at_home_where_none_is(model, roles, changed, tmp_path):
    everywhere = plan_of(model, roles, changed, list(roles.parties))
    plan = plan_of(model, roles, changed, fewest_addresses(everywhere), tmp_path)
    assert {name: at_home(plan, name) for name in roles.parties} == {name: {} for name in roles.parties}
    for pair in lines_needed(plan):
        kept = {name: PlannedAddress(f"127.0.0.1:{free_port()}") for name in roles.parties if name not in pair}
        one, other = sorted(pair, key=roles.parties.index)
        if one == roles.parties[0]:
            # Nobody can read a plan whose first party is not met by everybody.
            with pytest.raises(PlanError, match=f"gives neither {one} nor "):
                replace(plan, network=PlannedNetwork(kept))
            continue
        without = replace(plan, network=PlannedNetwork(kept))
        # Whoever looks, at either end or elsewhere, is told of the line.
        for name in roles.parties:
            assert f"{one} and {other}" in at_home(without, name)["lines"]


def limited() -> list[Any]:
    """Each model that takes at most a million rows in some roles, with these roles; other limits need a large table."""
    found = [
        (model, roles, most)
        for model in MODELS
        for roles in possible_roles(model)
        if (most := MODELS[model](**parameters(model, roles)).most_rows(roles) or MILLION) < MILLION
    ]
    return [pytest.param(*case, id=f"{case[0]}-{'-'.join(case[1].parties)}") for case in found]


@pytest.mark.parametrize(("model", "roles", "most"), limited())
def test_a_row_more_than_a_model_takes_is_refused(model, roles, most):
    plan = plan_of(model, roles, {}, list(roles.parties))
    numbers = pa.repeat(pa.scalar(0, pa.int8()), most + 1)
    table = Table.of(pa.table({"x": numbers}), ids=None)
    assert len(table) == most + 1
    with pytest.raises(DataError, match=f"shop has {most + 1:,} rows, but {model} takes at most {most:,}"):
        check_model(plan, "shop", table)


def test_more_rows_than_shares_take_are_noted_where_an_alignment_may_leave_fewer():
    plan = plan_of("linear-regression", Roles(label="bank", features=("shop",)), {}, ["bank"])
    many = np.arange(2**19 + 1)
    table = Table.of({"id": many, "spend": many % 7})
    (note,) = check_model(replace(plan, align=PlannedAlign()), "shop", table)
    assert "no more may be common" in note


def test_the_doctor_tells_of_a_missing_line_and_of_a_missing_setting(tmp_path):
    roles = Roles(label="bank", features=("shop", "telco"))
    plan = plan_of("logistic-regression", roles, {"asker": "arbiter"}, ["bank"], tmp_path)
    wrong = {check.topic: check for check in examine(plan, "shop", insecure=True, wait=1) if check.state == "wrong"}
    assert "needs a line between shop and telco" in wrong["lines"].said
    assert "Predictions go to the arbiter" in wrong["model"].said
    with pytest.raises(PlanError, match="needs a line between shop and telco"):
        PartyRun.of(plan, "shop", tmp_path, insecure=True).train()


def test_an_arbiter_needs_no_section_of_data(tmp_path):
    roles = '[roles]\nlabel = "bank"\nfeatures = ["shop"]\narbiter = "judge"\n'
    written = f'{roles}[align]\n[model]\nname = "linear-regression"\n'
    address = '[network.bank]\naddress = "127.0.0.1:7431"\n[network.judge]\naddress = "127.0.0.1:7432"\n'
    (tmp_path / "judge.toml").write_text(written + address)
    plan = Plan.read(tmp_path / "judge.toml")
    require_ready(plan, "judge", PartyRun.of(plan, "judge", tmp_path, insecure=True).table())
    assert Plan.read(tmp_path / "judge.toml").public() == plan.public()
    with pytest.raises(PlanError, match=r"files of nobody only.* Add a section \[data.shop\]"):
        PartyRun.of(plan, "shop", tmp_path, insecure=True).table()
    (tmp_path / "alone.toml").write_text(written)
    with pytest.raises(PlanError, match="needs the key 'data'"):
        Plan.read(tmp_path / "alone.toml")
