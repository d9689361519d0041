"""A peer that restarts with other values is refused, or meets new draws and new charges."""

import numpy as np
import pytest

from colonnade.curves import BSplines
from colonnade.data import load
from colonnade.data.functional.generator import FunctionalSetting
from colonnade.defences import GradientNoise, RandomisedLabels
from colonnade.models import (
    FunctionalBoost,
    FunctionalRegression,
    LogisticRegression,
    MomentRegression,
    SplitClassifier,
)
from colonnade.models.glm.messages import PairedWords
from colonnade.roles import Roles
from colonnade.runtime.checkpoint import Checkpoints
from colonnade.runtime.replay import ReplayGuard
from colonnade.storage import write_atomically
from colonnade.tables.table import Table
from colonnade.testing import Setup
from colonnade.testing.restart import Life, Place, _demand_new_draws, _Restart, changed, restarted_peers_learn_nothing

PAIR = Roles(label="bank", features=("shop",))
JUDGED = Roles(label="bank", features=("shop",), arbiter="judge")
COLUMNS = {"bank": ["age", "income"], "shop": ["orders", "spend"]}


@pytest.fixture(scope="module")
def curves():
    drawn = FunctionalSetting(n=60, p=1, active=(1,), basis=BSplines((0.0, 1.0), 5)).draw_one(1).tables(1)
    return dict(zip(PAIR.parties, drawn.values(), strict=True))


@pytest.fixture(scope="module")
def customers():
    tables = load("bank-shop-telco", rows=1000).split()
    return {name: tables[name].select(columns) for name, columns in COLUMNS.items()}


def regression():
    return LogisticRegression(max_iter=2, batch_size=None)


def moments():
    return MomentRegression(clip_x=3.0, clip_y=3.0, epsilon=1e6)


def test_on_shares_a_peer_with_other_curves_meets_new_masks_and_noise(curves):
    restarted_peers_learn_nothing(Setup(moments, curves, PAIR), peers=("bank",))


def test_a_few_drawn_bits_may_come_again_by_chance_and_a_whole_word_may_not(tmp_path):
    restart = _Restart(Setup(regression, {}, PAIR), {}, tmp_path, "shop", 3, "columns", claims=False)

    def life(word):
        return Life({Place("bank", "shop", "step 0 of train", 0): PairedWords(0, np.array([word], np.uint64))})

    _demand_new_draws(restart, "bank", life(0x32), life(0x32), life(0x1C))
    with pytest.raises(AssertionError, match="bank should draw again for glm/paired-words, but sent the same again"):
        _demand_new_draws(restart, "bank", life(0x8783488BE83153D4), life(0x8783488BE83153D4), life(0x1C))


def without_guard(monkeypatch):
    monkeypatch.setattr(ReplayGuard, "hear", lambda *args: None)


def without_forgetting(monkeypatch):
    monkeypatch.setattr(Checkpoints, "belong_to", lambda self, run: bool(write_atomically(self.directory / "run", run)))


@pytest.mark.parametrize(
    ("make", "kind", "roles", "rule", "words"),
    [
        pytest.param(moments, "curves", PAIR, without_guard, "says otherwise: functional/", id="moments"),
        pytest.param(moments, "curves", JUDGED, without_guard, "says otherwise: functional/", id="masks"),
        pytest.param(regression, "customers", JUDGED, without_guard, "says otherwise: glm/", id="arbiter"),
        pytest.param(regression, "customers", PAIR, without_guard, "says otherwise: glm/", id="shares"),
        pytest.param(moments, "curves", PAIR, without_forgetting, "should draw again for functional/", id="draws"),
        pytest.param(regression, "customers", PAIR, without_forgetting, "should draw again for glm/key", id="keys"),
    ],
)
@pytest.mark.slow
def test_without_the_rule_a_peer_that_restarts_is_found_to_learn(make, kind, roles, rule, words, request, monkeypatch):
    setup = Setup(make, request.getfixturevalue(kind), roles)
    rule(monkeypatch)
    with pytest.raises(AssertionError, match=words):
        restarted_peers_learn_nothing(setup, seeds=range(4))


SWEEP = {
    "arbiter": (regression, "customers", JUDGED, {}),
    "shares": (regression, "customers", PAIR, {}),
    "moments on shares": (moments, "curves", PAIR, {}),
    "moments behind masks": (moments, "curves", JUDGED, {}),
    "released curves": (FunctionalBoost.example, "curves", PAIR, {}),
    "partial predictions": (FunctionalRegression.example, "curves", PAIR, {}),
    "noisy gradients": (SplitClassifier.example, "customers", PAIR, {"bank": [GradientNoise()]}),
    "randomised labels": (SplitClassifier.example, "customers", PAIR, {"bank": [RandomisedLabels()]}),
}


@pytest.mark.slow
@pytest.mark.network
@pytest.mark.parametrize("carrier", ["memory", "grpc"])
@pytest.mark.parametrize("case", SWEEP)
def test_in_every_mode_a_peer_that_restarts_with_other_values_learns_nothing(case, carrier, request):
    make, kind, roles, defences = SWEEP[case]
    setup = Setup(make, request.getfixturevalue(kind), roles)
    restarted_peers_learn_nothing(setup, defences=defences, carrier=carrier)


def test_one_record_of_a_changed_table_differs():
    table = Table.of({"id": ["a", "b", "c"], "x": [1.0, 2.0, 3.0], "y": [0, 0, 1]}, labels="y")
    assert changed(table, "labels").labels.to_pylist() == [1, 0, 0]
    assert changed(table, "columns").column("x").tolist() == [1.25, 2.0, 3.0]
    assert changed(table, "ids").ids.to_pylist()[:2] == ["a", "b"]
    assert changed(table, "ids").ids.to_pylist()[2] not in ("a", "b", "c")
