"""Tests for the attack that joins all others."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from colonnade.attacks.base import Grant, Guess
from colonnade.attacks.labels.strongest import Strongest
from colonnade.auditing.engine import make
from colonnade.auditing.settings import Simulated
from colonnade.catalogue import DEFENCES, attacks_of_audit
from colonnade.data import load
from colonnade.errors import PrivacyError
from colonnade.models.networks.split import SplitClassifier
from colonnade.roles import Roles
from colonnade.runtime.simulate import simulate
from colonnade.secret import Secret

N_ROWS, N_CLASSES = 600, 3


def joined(guesses, grant):
    view = SimpleNamespace(guesses=tuple(guesses), grant=grant)
    return Strongest().guess(view)


def right_share(guess, labels):
    return float((guess.classes == labels[guess.rows]).mean())


@pytest.fixture
def labels():
    return np.random.default_rng(0).integers(N_CLASSES, size=N_ROWS)


@pytest.fixture
def grant(labels):
    rows = np.sort(np.concatenate([np.flatnonzero(labels == number)[:12] for number in range(N_CLASSES)]))
    return Grant(N_CLASSES, rows, labels[rows])


def noisy(labels, share, seed):
    """A guess that is right about a share of the rows, and random else."""
    random = np.random.default_rng(seed)
    said = np.where(random.random(len(labels)) < share, labels, random.integers(N_CLASSES, size=len(labels)))
    return Guess(np.arange(len(labels)), classes=said)


def test_independent_weak_guesses_are_worth_more_together(labels, grant):
    guesses = [noisy(labels, 0.5, seed) for seed in range(1, 8)]
    best = max(right_share(guess, labels) for guess in guesses)
    assert right_share(joined(guesses, grant), labels) > best + 0.1


def test_one_good_guess_is_not_outvoted_by_many_that_repeat_each_other(labels, grant):
    crowd = noisy(labels, 0.3, seed=1)
    guesses = [noisy(labels, 0.95, seed=2), *[crowd] * 9]
    assert right_share(joined(guesses, grant), labels) > right_share(guesses[0], labels) - 0.02


def test_an_inverted_score_tells_as_much_as_a_right_one():
    labels = np.random.default_rng(0).integers(2, size=400)
    rows = np.sort(np.concatenate([np.flatnonzero(labels == number)[:12] for number in range(2)]))
    scores = labels + np.random.default_rng(1).normal(size=400)
    noise = Guess(np.arange(400), scores=np.random.default_rng(2).normal(size=400))

    def found(sign):
        guess = joined([Guess(np.arange(400), scores=sign * scores), noise], Grant(2, rows, labels[rows]))
        return np.corrcoef(guess.scores, labels)[0, 1]

    assert found(-1) == pytest.approx(found(1), abs=0.02)
    assert found(-1) > 0.3


def test_rows_that_only_one_attack_guesses_are_guessed(labels, grant):
    whole, part = noisy(labels, 0.9, 1), noisy(labels, 0.9, 2).only(np.arange(N_ROWS) < 100)
    assert len(joined([whole, part], grant).rows) == N_ROWS


def test_a_single_guess_is_not_joined(labels, grant):
    with pytest.raises(PrivacyError, match="two attacks or more"):
        joined([noisy(labels, 0.9, 1)], grant)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["breast-cancer", "digits"])
@pytest.mark.parametrize("defence", [None, "gradient-noise"])
def test_joined_guesses_are_nowhere_two_points_below_the_best_single_one(name, defence):
    roles = Roles(label="bank", features=("shop",))
    held = [] if defence is None else [DEFENCES[defence]()]
    attacks = [attack for attack in attacks_of_audit(defences=held) if attack.about is Secret.LABELS]
    short = []
    for seed in range(3):
        model = SplitClassifier(epochs=15, n_iter_no_change=None)
        run = simulate(model.fit, load(name).split(), roles=roles, seed=seed, defences={"bank": held})
        setting = Simulated(run, seed=seed)
        made, _ = make(setting, attacks)
        (strongest,), _ = make(setting, [Strongest()], before=made)
        best = max(each.truth.scores(each.guess).plain for each in made)
        short.append(best - strongest.truth.scores(strongest.guess).plain)
    assert len(made) > 8
    assert np.mean(short) < 0.02
