import numpy as np
import pytest

from colonnade.attacks.labels.gradients import DirectLabel
from colonnade.data import load
from colonnade.defences.noise import GradientNoise
from colonnade.models.networks.messages import Gradient
from colonnade.models.networks.split import SplitClassifier
from colonnade.roles import Roles
from colonnade.runtime.simulate import simulate
from colonnade.testing import attempt_on

BOTH = Roles(label="bank", features=("shop",))
SUMMED = {"fusion": "sum", "top": None, "epochs": 2}


def class_numbers(tables):
    return np.unique(np.asarray(tables["bank"].labels), return_inverse=True)[1]


def guessed(run, attacker="shop"):
    attempt = attempt_on(run, DirectLabel(), attacker)
    return attempt.attack.guess(attempt.view(run))


@pytest.mark.parametrize("keep", ["audit", "all"])
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("name", ["breast-cancer", "digits"])
def test_undefended_sums_give_every_training_label_away(name, seed, keep):
    tables = load(name).split()
    run = simulate(SplitClassifier(**SUMMED, n_iter_no_change=None).fit, tables, roles=BOTH, seed=seed, keep=keep)
    guess = guessed(run)
    assert sorted(guess.rows) == list(range(len(tables["bank"])))
    assert (guess.classes == class_numbers(tables)[guess.rows]).all()


def test_rows_that_are_held_out_are_not_guessed():
    tables = load("breast-cancer").split()
    run = simulate(SplitClassifier(**SUMMED, validation_fraction=0.2).fit, tables, roles=BOTH)
    guess = guessed(run)
    assert len(guess.rows) == len(set(guess.rows)) == len(tables["bank"]) - round(0.2 * len(tables["bank"]))
    assert (guess.classes == class_numbers(tables)[guess.rows]).all()


def test_every_feature_party_sees_every_training_label():
    tables = load("bank-shop-telco", rows=300).split()
    roles = Roles(label="bank", features=("shop", "telco"))
    run = simulate(SplitClassifier(**SUMMED, n_iter_no_change=None).fit, tables, roles=roles)
    for attacker in roles.features:
        guess = guessed(run, attacker)
        assert (guess.classes == class_numbers(tables)[guess.rows]).all()


def test_text_labels_are_given_away_as_well():
    tables = load("breast-cancer").split()
    words = np.where(np.asarray(tables["bank"].labels) == 1, "benign", "malignant")
    tables["bank"] = tables["bank"].with_labels(words)
    guess = guessed(simulate(SplitClassifier(**SUMMED).fit, tables, roles=BOTH))
    assert (np.array(["benign", "malignant"])[guess.classes] == words[guess.rows]).all()


def test_noise_hides_some_labels():
    tables = load("breast-cancer").split()
    defences = {"bank": [GradientNoise(ratio=5.0)]}
    guess = guessed(simulate(SplitClassifier(**SUMMED).fit, tables, roles=BOTH, defences=defences))
    assert 0.4 < (guess.classes == class_numbers(tables)[guess.rows]).mean() < 0.8


def test_a_top_network_stands_in_the_way():
    tables = load("breast-cancer", rows=100).split()
    run = simulate(SplitClassifier(fusion="sum", epochs=1).fit, tables, roles=BOTH)
    with pytest.raises(AssertionError, match="a top network stands between the gradients and the classes"):
        attempt_on(run, DirectLabel())


def test_gradients_that_do_not_say_which_rows_they_are_about_cannot_be_read():
    tables = load("breast-cancer", rows=100).split()

    def anonymous(party):
        if party.holds_labels:
            (line,) = party.feature_parties
            line.send(Gradient(0, np.zeros((100, 2), np.float32)), epoch=0)
        else:
            party.label_party.receive(Gradient, epoch=0)

    run = simulate(anonymous, tables, roles=BOTH)
    with pytest.raises(AssertionError, match="no gradients of the first epoch were kept"):
        attempt_on(run, DirectLabel())
