"""A penalty's own gradient gives the classes away, even where embeddings are noise."""

from itertools import product

import numpy as np
import pytest
import torch
from scipy.optimize import linear_sum_assignment

from colonnade.attacks.base import Grant
from colonnade.attacks.labels import penalties
from colonnade.attacks.labels.penalties import PenaltyClasses, solved
from colonnade.attacks.points import Points
from colonnade.data import load
from colonnade.defences.embedding import distance_correlation, potential_energy
from colonnade.defences.wandering import BoundaryWandering, wandering_loss
from colonnade.models.networks.split import SplitClassifier
from colonnade.roles import Roles
from colonnade.runtime.simulate import simulate
from colonnade.testing import attempt_on

K = 10


def noise(n=256, width=16, seed=0):
    """Embeddings that have nothing to do with the labels."""
    random = np.random.default_rng(seed)
    return torch.tensor(random.standard_normal((n, width))), torch.tensor(random.integers(K, size=n))


def gradient_of(penalty, z, labels):
    z = z.clone().requires_grad_()
    if penalty == "wandering":
        loss = wandering_loss(z, labels, K)
    elif penalty == "potential-energy":
        loss = potential_energy(z, labels, angular=True)
    else:
        loss = distance_correlation(z, torch.nn.functional.one_hot(labels, K).double())
    return torch.autograd.grad(loss, z)[0].numpy()


def share_right(unlike, labels):
    """Up to the names of classes."""
    met = np.zeros((K, K))
    np.add.at(met, (unlike.argmin(axis=1), np.asarray(labels)), 1)
    return met[linear_sum_assignment(met, maximize=True)].sum() / len(labels)


@pytest.mark.parametrize("penalty", ["wandering", "potential-energy", "distance-correlation"])
def test_the_classes_of_noise_are_recovered_from_a_penaltys_raw_gradient(penalty):
    z, labels = noise()
    found, _ = solved(z.numpy(), gradient_of(penalty, z, labels), K, penalty, None, np.random.default_rng(0))
    assert share_right(found, labels) >= 0.99


@pytest.mark.parametrize(("n", "width"), [*product((64, 256, 1024), (8, 16, 64))])
def test_the_classes_of_noise_are_recovered_in_batches_of_any_size(n, width):
    right = []
    for seed in range(3):
        z, labels = noise(n, width, seed)
        gradient = gradient_of("wandering", z, labels)
        found, _ = solved(z.numpy(), gradient, K, "wandering", None, np.random.default_rng(seed))
        right.append(share_right(found, labels))
    # Where no row of a batch is of some class, one row of another may stand for that class: it explains as much.
    assert np.mean(right) >= 0.99


def test_gradients_of_labels_that_are_independent_of_the_truth_tell_nothing():
    z, labels = noise()
    other = torch.tensor(np.random.default_rng(9).permutation(labels.numpy()))
    found, _ = solved(z.numpy(), gradient_of("wandering", z, other), K, "wandering", None, np.random.default_rng(0))
    assert share_right(found, other) >= 0.99
    assert share_right(found, labels) < 0.25


def test_the_losss_own_gradient_beside_the_penaltys_is_explained_too():
    """Both share the classes, and the loss moves the rows of a class by much the same, however long embeddings are."""
    z, labels = noise()
    means = np.random.default_rng(1).standard_normal((K, z.shape[1]))[labels]
    penalty = gradient_of("wandering", z, labels)
    both = penalty + 2 * np.abs(penalty).mean() * means
    random = np.random.default_rng(2)
    start = np.where(random.random(len(z)) < 0.5, labels, random.integers(K, size=len(z)))
    solutions = {
        beside: solved(z.numpy(), both, K, "wandering", start, random, 0, beside_loss=beside)
        for beside in (False, True)
    }
    assert solutions[False][1] < 0.95
    assert solutions[True][1] > 0.99
    assert share_right(solutions[True][0], labels) >= 0.99


def test_a_few_known_rows_exchange_the_names_of_all_batches_at_once():
    """Own columns may lead to the wrong names, in every batch alike."""
    random = np.random.default_rng(0)
    labels = random.integers(2, size=600)
    columns = Points(np.arange(600), random.normal(size=(600, 3)) + np.outer(2 * labels - 1, [1.0, 0.5, 0.0]))
    grant = Grant(2, known := np.array([3, 5, 8, 11, 300, 301, 305, 306]), labels[known])
    misled = np.log(np.where(np.eye(2)[labels] > 0, 0.3, 0.7))
    batches = []
    for rows in (np.arange(200), np.arange(200, 400)):
        batch = penalties._Batch(rows, np.zeros((200, 2)), np.zeros((200, 2)), 2, "wandering")
        # The cut is right, and which of its sides is which class is not known.
        batch.unlike, batch.explained = 1 - np.eye(2)[labels[rows]] + 0.1, 0.99
        assert (batch.rated(misled).argmax(axis=1) != labels[rows]).all()
        batches.append(batch)
    chances = penalties._learned(columns, batches, misled, grant, random)
    assert (chances.argmax(axis=1) == labels).mean() > 0.8
    named = batches[0].rated(np.log(chances)).argmax(axis=1)
    assert (named == labels[:200]).all()


@pytest.mark.slow
def test_wandering_on_received_embeddings_falls_to_the_attack_that_knows_it():
    tables = load("digits").split()
    held = {"bank": [BoundaryWandering(scope="received")]}
    model = SplitClassifier(epochs=2, n_iter_no_change=None)
    run = simulate(model.fit, tables, roles=Roles(label="bank", features=("shop",)), defences=held)
    attempt = attempt_on(run, PenaltyClasses())
    guess = attempt.attack.guess(attempt.view(run))
    assert (guess.classes == np.asarray(tables["bank"].labels)[guess.rows]).mean() > 0.9


def test_pairs_of_very_many_rows_are_not_compared(monkeypatch):
    monkeypatch.setattr(penalties, "LANDMARKS", 50)
    tables = load("breast-cancer", rows=120).split()
    model = SplitClassifier(epochs=1, batch_size=64)
    run = simulate(model.fit, tables, roles=Roles(label="bank", features=("shop",)))
    view = attempt_on(run, PenaltyClasses()).view(run)
    reasons = {penalty: PenaltyClasses(penalty=penalty).why_not(view) for penalty in penalties.PENALTIES}
    refused = "batches have 64 rows, and it compares at most 50 with one another"
    assert reasons == {"wandering": None, "potential-energy": refused, "distance-correlation": refused}


@pytest.mark.parametrize(("most", "n_batches"), [(1, 1), (64, 1), (65, 2), (20_000, 2)])
def test_batches_of_the_first_epoch_are_solved_until_they_have_so_many_rows(monkeypatch, most, n_batches):
    monkeypatch.setattr(penalties, "FITTED_ROWS", most)
    tables = load("breast-cancer", rows=140).split()
    model = SplitClassifier(epochs=2, batch_size=64, n_iter_no_change=None)
    run = simulate(model.fit, tables, roles=Roles(label="bank", features=("shop",)), keep="all")
    view = attempt_on(run, PenaltyClasses()).view(run)
    found = list(penalties.first_batches(view))
    assert [len(rows) for rows, _, _ in found[:2]] == [64] * min(n_batches, 2)
    assert len(found) == n_batches + (most == 20_000)
    rows = np.concatenate([rows for rows, _, _ in found])
    assert len(np.unique(rows)) == len(rows)
