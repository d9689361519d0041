"""What a training will send is estimated by a dry run, line by line, within a tenth of what is sent."""

from __future__ import annotations

import logging
import threading
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from colonnade.catalogue import MODELS
from colonnade.curves import BSplines
from colonnade.data import load
from colonnade.data.functional.generator import FunctionalSetting
from colonnade.errors import DataError
from colonnade.models import estimate as dry_runs
from colonnade.models.base import Estimator
from colonnade.models.estimate import TrafficEstimate, estimate, is_at_most
from colonnade.roles import Roles
from colonnade.runtime.simulate import simulate
from colonnade.tables.table import Table

THREE = Roles(label="bank", features=("shop", "telco"))
TWO = Roles(label="bank", features=("shop",))
SERVED = Roles(label="bank", features=("shop", "telco"), server="cloud")
JUDGED = Roles(label="bank", features=("shop", "telco"), arbiter="judge")
NOISED = {"clip": 3.0, "noise": 0.1}
BATCHES = {"epochs": 3, "batch_size": 32}
TREES = {"n_estimators": 4, "max_depth": 3, "max_bin": 8, "leak_budget": None}
BUDGET = {"leak_budget": {"shop": 1.0, "telco": 1.0}}


def mixed(n_rows: int = 1_200) -> dict[str, Table]:
    """Numbers, text and missing values, with classes as labels."""
    return load("bank-shop-telco", rows=n_rows).split()


def numbers(n_rows: int = 1_200) -> dict[str, Table]:
    """Numbers at all parties, and a number as label."""
    random, made = np.random.default_rng(0), {}
    for name in THREE.holders:
        columns = {f"{name}{i}": random.standard_normal(n_rows) for i in range(4)}
        made[name] = Table.of({"id": np.arange(n_rows), **columns}, owner=name)
    return {**made, "bank": made["bank"].with_labels(random.poisson(1.0, n_rows).astype(float))}


def classes(n_rows: int = 1_200) -> dict[str, Table]:
    """The same, with two classes as labels."""
    tables = numbers(n_rows)
    return {**tables, "bank": tables["bank"].with_labels(np.arange(n_rows) % 2)}


def apart(n_rows: int = 1_200) -> dict[str, Table]:
    """Numbers at feature parties only, so that these have all splits of a tree."""
    tables = numbers(n_rows)
    return {**tables, "bank": tables["bank"].select([])}


def apart_classes(n_rows: int = 1_200) -> dict[str, Table]:
    """The same, with two classes as labels."""
    tables = apart(n_rows)
    return {**tables, "bank": tables["bank"].with_labels(np.arange(n_rows) % 2)}


def curves(n_rows: int = 600) -> dict[str, Table]:
    setting = FunctionalSetting(n=n_rows, p=4, active=(1, 2), basis=BSplines((0.0, 1.0), 6))
    return dict(zip(THREE.holders, setting.draw_one(1).tables(2).values(), strict=True))


def both_ends(model: Estimator, roles: Roles, tables: dict[str, Table]) -> dict[tuple[str, str], TrafficEstimate]:
    """What the two ends of each line make of their estimates."""
    found = {name: estimate(model, roles, name, tables[name]) for name in roles.holders}
    lines = [(a, b) for place, a in enumerate(roles.parties) for b in roles.parties[place + 1 :]]
    return {
        (a, b): found.get(a, {}).get(b, TrafficEstimate()).compared(found.get(b, {}).get(a, TrafficEstimate()))
        for a, b in lines
    }


CASES: list[tuple[str, dict[str, Any], Roles, Any]] = [
    ("functional-boost", {"protection": NOISED, "stopping": {"max_steps": 12, "min_steps": 2}}, THREE, curves),
    ("functional-moments", {"clip_x": 1.0, "clip_y": 1.0, "epsilon": 1.0}, JUDGED, curves),
    ("functional-regression", {"protection": NOISED}, THREE, curves),
    ("label-dp-shadow", BATCHES, THREE, mixed),
    ("linear-regression", {"max_iter": 4}, JUDGED, numbers),
    ("linear-regression", {"max_iter": 4, "batch_size": 200, "rows_per_column": 20}, JUDGED, numbers),
    ("linear-regression", {"max_iter": 3}, TWO, numbers),
    ("logistic-regression", {"max_iter": 4}, JUDGED, classes),
    ("logistic-regression", {"max_iter": 3}, TWO, classes),
    ("one-shot", {"epochs": 2, **BUDGET}, THREE, mixed),
    ("one-shot", {"epochs": 2, "encoder": "rff", **BUDGET}, THREE, mixed),
    ("one-shot-regressor", {"epochs": 2, **BUDGET}, THREE, numbers),
    ("poisson-regression", {"max_iter": 4}, JUDGED, numbers),
    ("secureboost-classifier", TREES, TWO, apart_classes),
    ("secureboost-regressor", TREES, TWO, apart),
    ("served-classifier", BATCHES, SERVED, mixed),
    ("served-regressor", BATCHES, SERVED, numbers),
    ("split-classifier", BATCHES, THREE, mixed),
    ("split-classifier", {**BATCHES, "n_iter_no_change": None, "fusion": "sum", "top": None}, THREE, mixed),
    ("split-classifier", {**BATCHES, "tracks": "shadow-top"}, THREE, mixed),
    ("split-regressor", BATCHES, THREE, numbers),
    ("u-shape-classifier", BATCHES, SERVED, mixed),
    ("u-shape-regressor", BATCHES, SERVED, numbers),
]
SLOW = {
    ("functional-boost", THREE),
    ("linear-regression", JUDGED),
    ("linear-regression", TWO),
    ("logistic-regression", TWO),
    ("poisson-regression", JUDGED),
    ("one-shot-regressor", THREE),
    ("secureboost-regressor", TWO),
    ("served-regressor", SERVED),
    ("u-shape-regressor", SERVED),
}


def test_every_model_of_the_catalogue_is_estimated():
    assert {name for name, *_ in CASES} == set(MODELS)


@pytest.mark.parametrize(
    ("name", "parameters", "roles", "made"),
    [pytest.param(*case, marks=[pytest.mark.slow] if (case[0], case[2]) in SLOW else []) for case in CASES],
)
def test_an_estimate_is_within_a_tenth_of_what_a_training_sends(name, parameters, roles, made):
    model, tables = MODELS[name](**parameters), made()
    tables = {holder: tables[holder] for holder in roles.holders}
    run = simulate(model.fit, tables, roles=roles, keep="digests")
    for (one, other), expected in both_ends(model, roles, tables).items():
        line = [entry for entry in run.transcripts[one].entries if entry.peer == other]
        sent, received = (sum(e.size for e in line if e.sent is way) for way in (True, False))
        # A kilobyte or two, such as a verdict after each epoch, are of no interest.
        assert expected.sent == pytest.approx(sent, rel=0.1, abs=2048), (one, other)
        assert expected.received == pytest.approx(received, rel=0.1, abs=2048), (one, other)
        trips = sum(before.sent != after.sent for before, after in pairwise(line)) / 2
        assert expected.round_trips == pytest.approx(trips, rel=0.3, abs=2), (one, other)


def test_the_number_of_classes_is_the_label_partys_to_say():
    tables = load("digits").split()
    model = MODELS["split-classifier"](epochs=2, batch_size=64, n_iter_no_change=None, fusion="sum", top=None)
    at_bank, at_shop = (estimate(model, TWO, name, tables[name]) for name in ("bank", "shop"))
    assert at_bank["shop"].sure
    assert not at_shop["bank"].sure
    assert at_shop["bank"].compared(at_bank["shop"]).sent == at_bank["shop"].received > at_shop["bank"].sent


def test_what_is_sent_once_is_not_counted_for_every_epoch():
    table = mixed()["shop"]
    few, many = (estimate(MODELS["one-shot"](epochs=n, **BUDGET), THREE, "shop", table)["bank"] for n in (2, 30))
    assert few == many


@pytest.mark.parametrize(("name", "roles"), [("split-classifier", THREE), ("label-dp-shadow", THREE)])
def test_many_epochs_are_estimated_as_well_as_few(name, roles):
    model, tables = MODELS[name](epochs=12, n_iter_no_change=None, batch_size=64), mixed(600)
    run = simulate(model.fit, tables, roles=roles, keep="digests")
    sent = sum(entry.size for entry in run.transcripts["bank"].entries if entry.peer == "shop")
    assert both_ends(model, roles, tables)["bank", "shop"].total == pytest.approx(sent, rel=0.02)


def test_a_label_party_without_columns_is_estimated_to_send_no_embeddings():
    tables, model = mixed(), MODELS["served-classifier"](**BATCHES)
    whole = estimate(model, SERVED, "bank", tables["bank"])["cloud"]
    bare = estimate(model, SERVED, "bank", tables["bank"].select([]))["cloud"]
    assert bare.total < whole.total / 2


def test_an_estimate_does_not_miss_rare_levels():
    n_rows = 9_000
    rare = np.where(np.arange(n_rows) % 300 == 0, np.arange(n_rows) // 300, 1000)
    tables = numbers(n_rows)
    wide = Table.of({"id": np.arange(n_rows), "town": rare.astype(str)}, owner="shop")
    model = MODELS["linear-regression"](max_iter=1)
    run = simulate(model.fit, {**tables, "shop": wide}, roles=JUDGED, keep="digests")
    sent = sum(e.size for e in run.transcripts["judge"].entries if e.sent and e.peer == "shop")
    assert estimate(model, JUDGED, "shop", wide)["judge"].received == pytest.approx(sent, rel=0.01)


def test_a_training_that_may_stop_early_sends_at_most_what_is_estimated():
    assert is_at_most(MODELS["split-classifier"](n_iter_no_change=3))
    assert not is_at_most(MODELS["split-classifier"](n_iter_no_change=None))
    tables, model = mixed(), MODELS["split-classifier"](epochs=30, n_iter_no_change=1, batch_size=64, learning_rate=0.5)
    run = simulate(model.fit, tables, roles=THREE, keep="digests")
    sent = sum(e.size for e in run.transcripts["bank"].entries if e.peer == "shop")
    assert sent < both_ends(model, THREE, tables)["bank", "shop"].total


def test_trees_send_at_most_what_is_estimated_where_the_label_party_has_columns_too():
    model, tables = MODELS["secureboost-classifier"](**TREES), {name: classes()[name] for name in TWO.holders}
    assert is_at_most(model)
    run = simulate(model.fit, tables, roles=TWO, keep="digests")
    sent = sum(entry.size for entry in run.transcripts["bank"].entries)
    found = both_ends(model, TWO, tables)["bank", "shop"]
    assert 0.7 * found.total < sent <= 1.02 * found.total


def test_a_table_that_the_model_cannot_take_is_refused_as_in_the_run():
    with pytest.raises(DataError, match="curves"):
        estimate(MODELS["functional-regression"](), THREE, "shop", numbers()["shop"])


def test_models_warn_as_before_after_two_estimates_side_by_side(monkeypatch):
    log, honest, one_is_done = logging.getLogger("colonnade.models"), dry_runs.simulate, threading.Event()
    before, table, began = log.level, numbers(600)["shop"], []

    def overlapping(*arguments, **options):
        began.append(log.level)
        if len(began) == 1:
            other.start()
            one_is_done.wait(0.3)
        return honest(*arguments, **options)

    model = MODELS["linear-regression"](max_iter=1)
    other = threading.Thread(target=estimate, args=(model, JUDGED, "shop", table))
    monkeypatch.setattr(dry_runs, "simulate", overlapping)
    estimate(model, JUDGED, "shop", table)
    one_is_done.set()
    other.join()
    assert set(began) == {logging.ERROR}
    assert log.level == before


def test_the_larger_of_two_equally_sure_estimates_counts():
    assert TrafficEstimate(5, 1, 2).compared(TrafficEstimate(3, 7, 1)) == TrafficEstimate(7, 3, 2)
    assert TrafficEstimate(5, 1, 2, sure=1).compared(TrafficEstimate(3, 7, 1)) == TrafficEstimate(5, 1, 2, sure=1)
    assert TrafficEstimate(5, 1, 2).compared(TrafficEstimate(3, 7, 1, sure=1)) == TrafficEstimate(7, 3, 1, sure=1)
