"""What a training sends is known before it runs, line by line."""

from itertools import pairwise

import numpy as np
import pytest

from colonnade.catalogue import MODELS
from colonnade.curves import BSplines
from colonnade.data import load
from colonnade.data.functional.generator import FunctionalSetting
from colonnade.roles import Roles
from colonnade.runtime.simulate import simulate
from colonnade.tables.table import Table

THREE = Roles(label="bank", features=("shop", "telco"))
SERVED = Roles(label="bank", features=("shop", "telco"), server="cloud")
NUMBERED = {"epochs": 140, "patience": 1000, "batch_size": 64, "validation": 0.13}
PLAIN = {"epochs": 3, "patience": None, "batch_size": 32}


@pytest.fixture(scope="module")
def tables():
    return load("bank-shop-telco", rows=300).split()


def numbers(n_rows=200):
    """Tables of numbers, the label party's with a label that is one."""
    random = np.random.default_rng(0)
    made = {}
    for name in ("bank", "shop", "telco"):
        data = {"id": np.arange(n_rows), **{f"{name}{i}": random.standard_normal(n_rows) for i in range(3)}}
        if name == "bank":
            made[name] = Table.of(data | {"y": random.standard_normal(n_rows)}, labels="y", owner=name)
        else:
            made[name] = Table.of(data, owner=name)
    return made


def lines(roles):
    return [(a, b) for place, a in enumerate(roles.parties) for b in roles.parties[place + 1 :]]


def foreseen(model, tables, roles, line):
    told = {name: model.sizes_told(tables[name], roles, name) if name in tables else {} for name in line}
    one, other = line
    sizes = {one: told[one].get(other, {}), other: told[other].get(one, {})}
    return model.traffic(roles, line, len(tables["bank"]), sizes)


def sent(run, line):
    """The bytes that went over a line, by sender."""
    found = {}
    for sender, receiver in (line, line[::-1]):
        found[sender] = sum(e.size for e in run.transcripts[sender].entries if e.sent and e.peer == receiver)
    return found


@pytest.mark.parametrize(
    ("name", "parameters", "roles"),
    [
        ("split-classifier", PLAIN, THREE),
        # Steps and epochs whose numbers take one, two and three bytes.
        ("split-classifier", NUMBERED, THREE),
        # A row that is left over joins the batch before.
        ("split-classifier", {**PLAIN, "batch_size": 23}, THREE),
        ("label-dp-shadow", {**PLAIN, "batch_size": 23}, THREE),
        ("split-classifier", {**PLAIN, "fusion": "sum", "top": None}, THREE),
        ("split-classifier", {**PLAIN, "tracks": "shadow-top"}, THREE),
        ("u-shape-classifier", PLAIN, SERVED),
        ("u-shape-classifier", NUMBERED, SERVED),
        ("served-classifier", PLAIN, SERVED),
        ("served-classifier", NUMBERED, SERVED),
        ("one-shot", {"epochs": 1, "leak_budget": {"shop": 1.0, "telco": 1.0}}, THREE),
        ("one-shot", {"epochs": 1, "components": 1, "leak_budget": {"shop": 1.0, "telco": 1.0}}, THREE),
        ("one-shot", {"epochs": 1, "encoder": "rff", "leak_budget": {"shop": 1.0, "telco": 1.0}}, THREE),
        ("label-dp-shadow", PLAIN, THREE),
    ],
)
def test_the_bytes_of_a_training_are_known_before_it_runs(tables, name, parameters, roles):
    model = MODELS[name](**parameters)
    run = simulate(model.fit, tables, roles=roles, keep="digests")
    for line in lines(roles):
        expected = foreseen(model, tables, roles, line)
        assert {**dict.fromkeys(line, 0), **expected.sent} == sent(run, line), line
        assert expected.sure == ("at most" if parameters.get("patience") and expected.sent else "exactly")


@pytest.mark.parametrize("name", ["split-regressor", "u-shape-regressor", "served-regressor", "one-shot-regressor"])
def test_the_bytes_of_a_regression_are_known_before_it_runs(name):
    roles = SERVED if "server" in MODELS[name].hooks else THREE
    more = {"leak_budget": {"shop": 1.0, "telco": 1.0}} if name.startswith("one-shot") else {}
    model, tables = MODELS[name](**PLAIN, **more), numbers()
    run = simulate(model.fit, tables, roles=roles, keep="digests")
    for line in lines(roles):
        assert {**dict.fromkeys(line, 0), **foreseen(model, tables, roles, line).sent} == sent(run, line), line


@pytest.mark.parametrize("name", ["u-shape-classifier", "served-classifier"])
def test_a_label_party_without_columns_is_foreseen_to_send_no_embeddings(tables, name):
    model, fewer = MODELS[name](**PLAIN), {**tables, "bank": tables["bank"].select([])}
    line = ("bank", "cloud")
    run = simulate(model.fit, fewer, roles=SERVED, keep="digests")
    expected = foreseen(model, fewer, SERVED, line)
    assert dict(expected.sent) == sent(run, line)
    assert expected.total < foreseen(model, tables, SERVED, line).total


@pytest.mark.parametrize(
    ("name", "arbiter", "parameters"),
    [
        ("linear-regression", True, {}),
        ("linear-regression", True, {"batch_size": 50}),
        pytest.param("linear-regression", True, {"backend": "paillier"}, marks=pytest.mark.slow),
        ("linear-regression", False, {}),
        ("linear-regression", False, {"batch_size": 100}),
    ],
)
def test_the_bytes_of_an_encrypted_regression_are_about_what_was_foreseen(name, arbiter, parameters):
    names = ("bank", "shop", "telco") if arbiter else ("bank", "shop")
    tables = {each: table for each, table in numbers().items() if each in names}
    roles = Roles(label="bank", features=names[1:], arbiter="judge" if arbiter else None)
    model = MODELS[name](epochs=2, tolerance=0.0, **parameters)
    run = simulate(model.fit, tables, roles=roles, keep="digests")
    for line in lines(roles):
        expected, found = foreseen(model, tables, roles, line), sent(run, line)
        if not sum(found.values()):
            assert not expected.total
            continue
        assert expected.sure == "about"
        assert expected.total == pytest.approx(sum(found.values()), rel=0.05, abs=4096), line
        turns = [e.sent for e in run.transcripts[line[0]].entries if e.peer == line[1]]
        trips = sum(before != now for before, now in pairwise(turns)) / 2
        assert expected.round_trips == pytest.approx(trips, rel=0.35), line


def test_the_bytes_of_released_curves_are_about_what_was_foreseen():
    setting = FunctionalSetting(n=120, p=4, active=(1, 2), basis=BSplines((0.0, 1.0), 6))
    tables = dict(zip(THREE.holders, setting.draw_one(1).tables(2).values(), strict=True))
    for name in ("functional-boost", "functional-regression"):
        model = MODELS[name](protection={"clip": 3.0, "noise": 0.1})
        run = simulate(model.fit, tables, roles=THREE, keep="digests")
        for line in lines(THREE):
            expected = foreseen(model, tables, THREE, line)
            assert expected.total == pytest.approx(sum(sent(run, line).values()), rel=0.1), line


def test_a_model_that_stops_early_sends_less_than_the_most(tables):
    model = MODELS["split-classifier"](epochs=50, patience=1, batch_size=64, learning_rate=0.5)
    run = simulate(model.fit, tables, roles=THREE, keep="digests")
    expected = foreseen(model, tables, THREE, ("bank", "shop"))
    assert sum(sent(run, ("bank", "shop")).values()) < expected.total
    assert expected.sure == "at most"


def test_nothing_is_told_about_a_table_that_the_run_does_not_tell(tables):
    assert MODELS["split-classifier"]().sizes_told(tables["bank"], THREE, "bank") == {}
    summed = MODELS["split-classifier"](fusion="sum", top=None)
    assert summed.sizes_told(tables["bank"], THREE, "bank") == {"shop": {"classes": 2}, "telco": {"classes": 2}}
    assert summed.sizes_told(tables["shop"], THREE, "shop") == {}
    assert MODELS["u-shape-classifier"]().sizes_told(tables["bank"], SERVED, "bank") == {"cloud": {"embeds": 1}}
    judged = Roles(label="bank", features=("shop", "telco"), arbiter="judge")
    regression, held = MODELS["linear-regression"](), numbers()
    assert regression.sizes_told(held["bank"], judged, "bank") == {"judge": {"columns": 4}}
    assert regression.sizes_told(held["shop"], judged, "shop") == {"bank": {"columns": 3}, "judge": {"columns": 3}}


def test_what_depends_on_what_was_not_told_is_not_known():
    assert MODELS["split-classifier"](fusion="sum", top=None).traffic(THREE, ("bank", "shop"), 100, {}) is None
    assert MODELS["one-shot"]().traffic(THREE, ("bank", "shop"), 100, {}) is None
    assert MODELS["served-classifier"]().traffic(SERVED, ("bank", "cloud"), 100, {}) is None
    moments = MODELS["functional-moments"](clip_x=1.0, clip_y=1.0, epsilon=1.0)
    assert moments.traffic(THREE, ("bank", "shop"), 100, {}) is None
