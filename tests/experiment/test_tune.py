import re

import pytest

from colonnade.attacks.labels.clustering import EmbeddingNearest
from colonnade.attacks.labels.gradients import NormScore
from colonnade.data import load
from colonnade.defences.noise import GradientNoise
from colonnade.defences.wandering import BoundaryWandering
from colonnade.errors import PlanError
from colonnade.experiment.tune import Tried, Tuning, tune_alpha
from colonnade.models.glm.estimator import LogisticRegression
from colonnade.models.networks.messages import Embedding
from colonnade.models.networks.oneshot import OneShotClassifier
from colonnade.models.networks.server import ServedClassifier
from colonnade.models.networks.split import SplitClassifier, SplitRegressor
from colonnade.roles import Roles

BOTH = Roles(label="bank", features=("shop",))


def trial(alpha, accuracy, worst):
    return Tried(alpha, accuracy, {"A": worst, "B": worst / 2})


@pytest.mark.parametrize(
    ("trials", "tolerance", "chosen"),
    [
        ([trial(0, 0.95, 0.9), trial(1, 0.945, 0.5), trial(5, 0.9, 0.2)], 0.01, 1),
        ([trial(0, 0.95, 0.9), trial(1, 0.945, 0.5), trial(5, 0.9, 0.2)], 0.1, 5),
        ([trial(0, 0.95, 0.9), trial(1, 0.93, 0.5)], 0.01, 0),
        ([trial(0, 0.95, 0.7), trial(1, 0.95, 0.8)], 0.01, 0),
        ([trial(2, 0.95, 0.5), trial(1, 0.95, 0.5)], 0.01, 1),
    ],
)
def test_the_least_leaking_alpha_among_those_that_are_accurate_enough_is_chosen(trials, tolerance, chosen):
    assert Tuning(tuple(trials), tolerance).chosen == chosen


@pytest.mark.slow
def test_tuning_on_received_embeddings_finds_that_attacks_on_them_get_worse():
    tables = load("digits", rows=600).split()
    tuning = tune_alpha(
        SplitClassifier(epochs=25, n_iter_no_change=None),
        tables,
        roles=BOTH,
        wandering=BoundaryWandering(scope="received"),
        alphas=(0.0, 2.0),
        attacks=[EmbeddingNearest()],
        tolerance=1.0,
    )
    without, with_penalty = tuning.tried
    assert without.attacks["EmbeddingNearest"] > with_penalty.attacks["EmbeddingNearest"] + 0.2
    assert without.accuracy > 0.8
    assert tuning.chosen == 2.0
    header, *lines = str(tuning).splitlines()
    assert header.split() == ["alpha", "accuracy", "worst", "EmbeddingNearest"]
    assert [line.startswith("*") for line in lines] == [False, True]


def test_all_geometric_attacks_are_made_and_averaged_over_seeds():
    tables = load("breast-cancer", rows=150).split()
    model = SplitClassifier(epochs=3, n_iter_no_change=None)
    tuning = tune_alpha(model, tables, roles=BOTH, alphas=(1.0,), seeds=(0, 1), beside=[GradientNoise()])
    (both,) = tuning.tried
    assert len(both.attacks) == 6
    single = [
        tune_alpha(model, tables, roles=BOTH, alphas=(1.0,), seeds=(s,), beside=[GradientNoise()]) for s in (0, 1)
    ]
    for name, score in both.attacks.items():
        assert score == pytest.approx(sum(each.tried[0].attacks[name] for each in single) / 2)


def test_the_defence_that_is_given_keeps_its_alpha():
    wandering = BoundaryWandering(alpha=3.0)
    tables = load("breast-cancer", rows=100).split()
    tune_alpha(SplitClassifier(epochs=1), tables, roles=BOTH, wandering=wandering, alphas=(1.0,))
    assert wandering.alpha == 3.0


def test_an_attack_that_never_applies_is_refused():
    tables = load("digits", rows=200).split()
    words = "tune_alpha needs an attack that applies to every run, but none of NormScore does."
    with pytest.raises(PlanError, match=re.escape(words)):
        tune_alpha(SplitClassifier(epochs=1), tables, roles=BOTH, alphas=(0.0,), attacks=[NormScore()])


def test_the_defence_goes_to_a_server_that_computes_the_loss_and_does_not_attack():
    sent = set()

    class Witness(EmbeddingNearest):
        def guess(self, view):
            sent.update(recorded.sent for recorded in view.messages(Embedding))
            return super().guess(view)

    tuning = tune_alpha(
        ServedClassifier(epochs=5, n_iter_no_change=None, batch_size=64),
        load("breast-cancer", rows=150).split(),
        roles=Roles(label="bank", features=("shop",), server="cloud"),
        wandering=BoundaryWandering(scope="received"),
        alphas=(0.0, 50.0),
        attacks=[Witness()],
    )
    without, with_penalty = tuning.tried
    assert without.attacks["Witness"] > with_penalty.attacks["Witness"] + 0.05
    assert sent == {True}, "the server, which receives embeddings, has the labels and needs no attack"


@pytest.mark.parametrize(
    ("model", "settings", "words"),
    [
        (SplitRegressor(), {}, "needs a classifier, .* but SplitRegressor is a regression. Give a classifier"),
        (
            SplitClassifier(),
            {"alphas": (0.0, -1.0)},
            r"BoundaryWandering's alpha should be a number, at least 0, but is -1\.0",
        ),
        (
            OneShotClassifier(leak_budget={"shop": 1.0}),
            {},
            "needs a model that trains on labels .* no party of OneShotClassifier does",
        ),
        (LogisticRegression(), {}, "needs a model that trains on labels .* no party of LogisticRegression does"),
        (ServedClassifier(), {}, "no party of ServedClassifier does with"),
    ],
)
def test_what_cannot_be_tuned_is_refused_before_anything_runs(model, settings, words):
    with pytest.raises(PlanError, match=words):
        tune_alpha(model, {}, roles=BOTH, **settings)


def test_no_alphas_and_no_label_party_are_refused():
    tables = load("breast-cancer", rows=100).split()
    with pytest.raises(PlanError, match="should be given at least one alpha and one seed, but alphas is"):
        tune_alpha(SplitClassifier(), tables, roles=BOTH, alphas=())
    with pytest.raises(PlanError, match="needs a label party, but the roles name none"):
        tune_alpha(SplitClassifier(), tables, roles=Roles(features=("bank", "shop")))
