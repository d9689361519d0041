import numpy as np
import pytest
import torch

from colonnade.attacks.labels.completion import GradientCompletion, ModelCompletion
from colonnade.data import load
from colonnade.errors import PlanError
from colonnade.models.networks.labeldp import LabelDPShadow
from colonnade.models.networks.split import SplitClassifier
from colonnade.roles import Roles
from colonnade.runtime.simulate import simulate
from colonnade.testing import attempt_on

BOTH = Roles(label="bank", features=("shop",))
ATTACKS = [ModelCompletion(), ModelCompletion(fine_tune=False), GradientCompletion(), GradientCompletion(when="last")]


@pytest.fixture(scope="module")
def run(tables):
    return simulate(SplitClassifier(epochs=20, n_iter_no_change=None).fit, tables, roles=BOTH)


def share_right(run, tables, attack, seed=0):
    attempt = attempt_on(run, attack, seed=seed)
    guess = attempt.attack.guess(attempt.view(run))
    unknown = ~np.isin(guess.rows, attempt.grant.rows)
    return (guess.classes == np.asarray(tables["bank"].labels)[guess.rows])[unknown].mean()


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: f"{type(attack).__name__}{list(vars(attack).values())}")
def test_an_undefended_run_gives_the_classes_away(run, tables, attack):
    assert share_right(run, tables, attack) > 0.8


@pytest.mark.slow
def test_a_bottom_that_was_trained_jointly_completes_better_than_one_that_was_not():
    tables = load("digits").split()
    trained = simulate(SplitClassifier(epochs=30, n_iter_no_change=None).fit, tables, roles=BOTH)
    untrained = simulate(SplitClassifier(epochs=1, learning_rate=1e-9, n_iter_no_change=None).fit, tables, roles=BOTH)
    attack = ModelCompletion(fine_tune=False, self_training=0)
    scores = [[share_right(run, tables, attack, seed) for seed in range(3)] for run in (trained, untrained)]
    assert np.mean(scores[0]) > np.mean(scores[1]) + 0.05


def test_the_share_of_the_model_is_left_as_it_was(run):
    before = {name: value.clone() for name, value in run.results["shop"].bottom_.state_dict().items()}
    attempt = attempt_on(run, ModelCompletion())
    attempt.attack.guess(attempt.view(run))
    after = run.results["shop"].bottom_.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_a_guess_leaves_the_libraries_generators_and_threads_as_they_were(run):
    state, threads = torch.get_rng_state(), torch.get_num_threads()
    attempt = attempt_on(run, GradientCompletion())
    attempt.attack.guess(attempt.view(run))
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.get_num_threads() == threads


def test_the_bottom_of_a_shadow_that_was_trained_jointly_can_be_completed(tables):
    run = simulate(LabelDPShadow(epsilon=8.0, epochs=20, n_iter_no_change=None).fit, tables, roles=BOTH)
    assert share_right(run, tables, ModelCompletion()) > 0.8


def test_a_share_without_a_network_cannot_be_completed(run):
    attempt = attempt_on(run, ModelCompletion())
    view = attempt.view(run)
    view.own.model.bottom_, bottom = None, view.own.model.bottom_
    try:
        assert attempt.attack.why_not(view) == "its share of the model has no bottom network to complete"
    finally:
        view.own.model.bottom_ = bottom


@pytest.mark.parametrize("attack", [ModelCompletion, GradientCompletion])
def test_rounds_of_self_training_are_counted_from_0(attack):
    with pytest.raises(PlanError, match=r"self_training should be a whole number, at least 0, but is -1\. Change it"):
        attack(self_training=-1)
