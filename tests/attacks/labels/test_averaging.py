from functools import partial

import numpy as np
import pytest

from colonnade.attacks.labels.averaging import AveragedGradients, PermutedLabels
from colonnade.attacks.labels.clustering import GradientClusters, GradientNearest
from colonnade.attacks.labels.distillation import Distillation
from colonnade.attacks.labels.gradients import DirectionScore
from colonnade.attacks.labels.probes import GradientProbe
from colonnade.attacks.labels.randomised import RandomisedPosterior
from colonnade.attacks.labels.spreading import ColumnSpreading
from colonnade.experiment.compare import standings
from colonnade.models.networks.labeldp import LabelDPShadow
from colonnade.roles import Roles
from colonnade.runtime.simulate import simulate

RANDOM = np.random.default_rng(3)


def hits(guess, labels):
    return (guess.by_class(len(np.unique(labels))).argmax(axis=1) == labels[guess.rows]).mean()


def test_a_mixture_finds_classes_under_noise_that_the_nearest_known_rows_do_not(gradient_view):
    labels = np.arange(600) % 3
    noisy = np.eye(8)[labels] + 0.45 * RANDOM.standard_normal((600, 8))
    mixed, nearest = (
        hits(a.guess(gradient_view(a, noisy, labels)), labels) for a in (AveragedGradients(), GradientNearest())
    )
    assert mixed > nearest + 0.05


def test_noise_that_differs_between_classes_tells_the_class(gradient_view):
    labels = np.arange(400) % 2
    spread = np.where(labels == 1, 3.0, 1.0)[:, None] * np.ones(6)
    spread[:, 3:] = 4 - spread[:, 3:]
    noisy = spread * RANDOM.standard_normal((400, 6))
    attack = AveragedGradients(own_spread=True)
    assert hits(attack.guess(gradient_view(attack, noisy, labels, per_class=20)), labels) > 0.8


def test_one_known_row_of_each_class_undoes_a_permutation(gradient_view):
    labels = np.arange(200) % 5
    gradients = np.eye(5)[RANDOM.permutation(5)[labels]] + 0.1 * RANDOM.standard_normal((200, 5))
    attack = PermutedLabels(when="mean")
    assert hits(attack.guess(gradient_view(attack, gradients, labels, per_class=1)), labels) == 1


@pytest.mark.parametrize("kind", ["neighbours", "quadratic"])
def test_probes_find_antipodal_codes_that_clusters_do_not(gradient_view, kind):
    labels, signs = np.repeat(np.arange(4), 50), np.tile([1, -1], 100)
    codes = signs[:, None] * np.eye(6)[labels] + 0.03 * RANDOM.standard_normal((200, 6))
    probe, clusters = GradientProbe(kind=kind), GradientClusters()
    assert hits(probe.guess(gradient_view(probe, codes, labels, per_class=8)), labels) == 1
    assert hits(clusters.guess(gradient_view(clusters, codes, labels, per_class=8)), labels) < 0.8


def test_products_are_probed_alike_in_one_block_and_in_many(gradient_view, monkeypatch):
    labels = np.arange(90) % 3
    points, probe = np.eye(6)[labels] + 0.3 * RANDOM.standard_normal((90, 6)), GradientProbe(kind="quadratic")
    whole = probe.guess(gradient_view(probe, points, labels)).ratings
    monkeypatch.setattr("colonnade.attacks.labels.probes.BLOCK", 7)
    assert probe.guess(gradient_view(probe, points, labels)).ratings == pytest.approx(whole)


def weak_labels(n=1500):
    """Labels that the columns foretell, and gradients that show them randomised with epsilon 1."""
    columns = RANDOM.standard_normal((n, 3))
    labels = (columns.sum(axis=1) > 0).astype(int)
    randomised = np.where(RANDOM.random(n) < 1 / (1 + np.exp(-1.0)), labels, 1 - labels)
    return columns, labels, np.eye(2)[randomised] + 0.01 * RANDOM.standard_normal((n, 2)), randomised


@pytest.mark.parametrize("attack", [RandomisedPosterior(epsilon=1.0), RandomisedPosterior(), Distillation()])
def test_randomised_labels_of_many_rows_are_read_learned_and_corrected(gradient_view, attack):
    columns, labels, gradients, randomised = weak_labels()
    known = 40 if attack.__class__ is RandomisedPosterior else 400
    guess = attack.guess(gradient_view(attack, gradients, labels, per_class=known, columns=columns))
    assert hits(guess, labels) > (randomised == labels).mean() + 0.1


@pytest.mark.slow
def test_labels_randomised_once_are_read_off_gradients_and_taught_to_a_classifier(tables):
    """At epsilon 2 the posterior tells more than the randomised labels by themselves, on rows it was not told."""
    run = simulate(LabelDPShadow(epsilon=2.0).fit, tables, roles=Roles(label="bank", features=("shop",)), seed=0)
    found = standings(run, [DirectionScore(), RandomisedPosterior()], nulls=1, seed=0)
    assert found["RandomisedPosterior"].score > found["DirectionScore"].score
    assert found["RandomisedPosterior"].score > 0.9


def test_own_columns_name_the_clusters_where_most_known_rows_lie_in_a_wrong_one(gradient_view):
    """Of eight classes two labels in five are kept: four known rows of each name clusters worse than columns do."""
    random, n_classes = np.random.default_rng(5), 8
    labels = np.arange(1_600) % n_classes
    is_kept = random.random(len(labels)) < 0.4
    randomised = np.where(is_kept, labels, (labels + random.integers(1, n_classes, len(labels))) % n_classes)
    gradients = np.eye(n_classes)[randomised] + 0.01 * random.standard_normal((len(labels), n_classes))
    columns = np.eye(n_classes)[labels] + 0.3 * random.standard_normal((len(labels), n_classes))
    read, named = (
        hits(attack.guess(gradient_view(attack, gradients, labels, columns=columns)), labels)
        for attack in (GradientClusters(), RandomisedPosterior(epsilon=1.5))
    )
    assert read < 0.35
    assert named > 0.8


def test_true_labels_are_learned_where_most_of_ten_classes_were_changed(gradient_view):
    """At epsilon 1 a label of ten is kept with a chance of 0.23; a regression on all of them names 0.4 right."""
    from sklearn.datasets import load_digits

    random, digits = np.random.default_rng(0), load_digits()
    labels, kept = digits.target, np.e / (np.e + 9)
    wrong = (labels + random.integers(1, 10, len(labels))) % 10
    randomised = np.where(random.random(len(labels)) < kept, labels, wrong)
    gradients = np.eye(10)[randomised] + 0.01 * random.standard_normal((len(labels), 10))
    columns = digits.images[:, :, :4].reshape(len(labels), -1)
    attack = RandomisedPosterior(epsilon=1.0)
    guess = attack.guess(gradient_view(attack, gradients, labels, columns=columns))
    assert hits(guess, labels) > 0.6


def test_epsilon_is_read_from_the_plan_where_the_plan_says_it(gradient_view):
    columns, labels, gradients, _ = weak_labels(400)
    told, read = RandomisedPosterior(epsilon=1.0), RandomisedPosterior()
    first = told.guess(gradient_view(told, gradients, labels, columns=columns))
    second = read.guess(gradient_view(read, gradients, labels, columns=columns, settings={"epsilon": 1.0}))
    assert (first.scores == second.scores).all()


def test_labels_spread_among_more_rows_than_are_compared(gradient_view, monkeypatch):
    monkeypatch.setattr("colonnade.attacks.labels.spreading.LANDMARKS", 60)
    labels = np.arange(300) % 3
    gradients = np.eye(3)[labels] + 0.05 * RANDOM.standard_normal((300, 3))
    attack = ColumnSpreading()
    guess = attack.guess(gradient_view(attack, gradients, labels, columns=RANDOM.standard_normal((300, 1))))
    assert guess.rows.tolist() == list(range(300))
    assert hits(guess, labels) > 0.9


def test_rows_follow_the_same_landmarks_in_one_block_and_in_many(gradient_view, monkeypatch):
    monkeypatch.setattr("colonnade.attacks.labels.spreading.LANDMARKS", 60)
    labels = np.arange(300) % 3
    gradients, attack = np.eye(3)[labels] + 0.3 * RANDOM.standard_normal((300, 3)), ColumnSpreading()
    view = partial(gradient_view, attack, gradients, labels, columns=RANDOM.standard_normal((300, 1)))
    whole = attack.guess(view()).ratings
    monkeypatch.setattr("colonnade.attacks.labels.spreading.COMPARED", 7)
    assert attack.guess(view()).ratings == pytest.approx(whole)
