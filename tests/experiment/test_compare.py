from dataclasses import replace

import pytest

from colonnade import audit
from colonnade.attacks.labels.clustering import GradientNearest
from colonnade.attacks.labels.gradients import NormScore
from colonnade.data import load
from colonnade.experiment.compare import DefenceScores, Standing, averaged, best_of, defence_score, standings
from colonnade.models.networks.split import SplitClassifier
from colonnade.roles import Roles
from colonnade.runtime.simulate import simulate


@pytest.fixture(scope="module")
def run():
    roles = Roles(label="bank", features=("shop", "club"))
    tables = load("digits", rows=200).split()
    columns = tables["shop"].columns
    tables["club"] = replace(tables["shop"].select(columns[:12]), owner="club")
    tables["shop"] = tables["shop"].select(columns[12:])
    return simulate(SplitClassifier(epochs=1).fit, tables, roles=roles)


def test_an_attack_that_several_parties_make_stands_as_it_does_for_the_best_of_them(run):
    found = standings(run, [GradientNearest()], nulls=2, seed=3)
    told = [finding.up_to_naming for finding in audit(run, [GradientNearest()], nulls=2, seed=3).attacks]
    best = max(told, key=lambda evidence: evidence.score.value)
    assert len(told) == 2
    assert found == {
        "GradientNearest": Standing(best.score.value, sum(best.null) / 2, best.alone.value),
    }


def test_attacks_that_do_not_apply_have_no_standing(run):
    assert standings(run, [NormScore()], nulls=1, seed=0) == {}


def test_only_attacks_of_every_trial_are_averaged():
    first, second = Standing(0.5, 0.1, 0.4), Standing(0.7, 0.3, 0.6)
    assert averaged([{"A": first, "B": first}, {"A": second}]) == {"A": Standing(0.6, 0.2, 0.5)}


def test_the_best_attack_has_the_highest_score_whatever_its_controls():
    assert best_of({"A": Standing(0.7, 0.1, 0.1), "B": Standing(0.8, 0.8, 0.8)}) == "B"


def test_the_score_of_a_defence_is_what_the_published_formula_gives_by_hand():
    # Attack 0.6 and 3 points of accuracy lost: 1 / (1 + sqrt(0.5 * 0.36 + 0.5 * 0.0009)).
    assert defence_score(0.6, 0.95, best_main=0.98) == pytest.approx(0.701856, abs=1e-6)
    assert defence_score(0.0, 0.99, best_main=0.98) == 1.0
    found = {"A": Standing(1.0, null=0.1, alone=0.5), "B": Standing(0.3, null=0.1, alone=0.5)}
    scores = DefenceScores.of(found, 0.98, best_main=0.98)
    assert scores.published == pytest.approx((0.585786 + 0.824993) / 2, abs=1e-6)
    assert scores.beyond_alone == pytest.approx((0.738796 + 1.0) / 2, abs=1e-6)
