import math

import numpy as np
import pytest
import torch
from scipy import stats

from colonnade import audit
from colonnade.attacks.labels.gradients import DirectLabel
from colonnade.data import load, public_private
from colonnade.defences.labels import RandomisedLabels
from colonnade.errors import BudgetSpent, PlanError
from colonnade.models.networks.server import ServedClassifier
from colonnade.models.networks.split import SplitClassifier
from colonnade.models.networks.tracks import ShadowProxy, ShadowTop
from colonnade.roles import Roles
from colonnade.runtime.context import HookContext
from colonnade.runtime.simulate import simulate
from colonnade.secret import Secret
from colonnade.testing import attempt_on
from colonnade.testing.setup import witness

BOTH = Roles(label="bank", features=("shop",))


def at(rows, n_classes, **more):
    return HookContext(0, 0, np.asarray(rows), more.pop("phase", "train"), n_classes=n_classes, **more)


@pytest.mark.parametrize(("epsilon", "n_classes"), [(0.5, 2), (1.0, 2), (1.0, 10), (3.0, 5)])
def test_labels_are_kept_and_replaced_as_often_as_epsilon_says(held, epsilon, n_classes):
    truth = np.arange(20_000) % n_classes
    ready = held(RandomisedLabels(epsilon=epsilon), labels=truth)
    randomised = ready.labels(torch.from_numpy(truth), at(np.arange(20_000), n_classes)).numpy()
    keep = math.exp(epsilon) / (math.exp(epsilon) + n_classes - 1)
    assert stats.binomtest(int((randomised == truth).sum()), 20_000, keep).pvalue > 1e-6
    moved = (randomised - truth)[randomised != truth] % n_classes
    if n_classes > 2:
        assert stats.chisquare(np.bincount(moved, minlength=n_classes)[1:]).pvalue > 1e-6


def test_the_ratio_of_chances_under_two_labels_is_at_most_e_to_the_epsilon(held):
    counts = []
    for label in (0, 1):
        truth = np.r_[np.full(30_000, label), 0, 1, 2]
        ready = held(RandomisedLabels(epsilon=1.0), labels=truth, seed=label)
        drawn = ready.labels(torch.from_numpy(truth), at(np.arange(30_003), 3)).numpy()[:30_000]
        counts.append(np.bincount(drawn, minlength=3))
    ratios = counts[0] / counts[1]
    assert np.maximum(ratios, 1 / ratios).max() < math.e * 1.07


def test_they_are_drawn_once_whatever_the_step_the_epoch_and_the_phase(held):
    truth = np.arange(100) % 3
    ready = held(RandomisedLabels(), labels=truth)
    drawn = ready.labels(torch.from_numpy(truth), at(np.arange(100), 3)).numpy()
    for step, phase in ((5, "train"), (0, "validate")):
        rows = np.random.default_rng(step).permutation(100)[:40]
        again = ready.labels(torch.from_numpy(truth[rows]), HookContext(step, step, rows, phase, n_classes=3))
        assert again.tolist() == drawn[rows].tolist()
    assert sum(ready.party.ledger.events.values()) == 1


def test_a_party_that_comes_back_after_a_crash_draws_the_same_and_pays_nothing(held):
    truth = np.arange(100) % 3
    first = held(RandomisedLabels(), labels=truth)
    drawn = first.labels(torch.from_numpy(truth), at(np.arange(100), 3))
    first.before_run(first.party)
    assert torch.equal(first.labels(torch.from_numpy(truth), at(np.arange(100), 3)), drawn)
    assert sum(first.party.ledger.events.values()) == 1


def test_the_local_track_learns_from_the_true_labels(held):
    labels = torch.tensor([0, 1])
    assert held(RandomisedLabels()).labels(labels, at([0, 1], 2, track="local")) is labels


def test_a_run_is_charged_once_and_the_report_says_what_one_label_costs():
    tables = load("breast-cancer", rows=120).split()
    defences = {"bank": [RandomisedLabels(epsilon=0.7)]}
    run = simulate(SplitClassifier(epochs=3, batch_size=32).fit, tables, roles=BOTH, defences=defences)
    ledger = run.ledgers["bank"]
    assert sum(ledger.events.values()) == 1
    assert ledger.epsilon(0.0, protects=Secret.LABELS) == pytest.approx(0.7)
    spent = audit(run, [], nulls=1).budget["labels"]
    assert spent.is_private
    assert spent.epsilon == pytest.approx(0.7, rel=1e-4)


def test_predicting_costs_nothing():
    tables = load("breast-cancer", rows=120).split()
    defences = {"bank": [RandomisedLabels()]}
    run = simulate(SplitClassifier(epochs=1).fit, tables, roles=BOTH, defences=defences)
    protocols = {name: share.predict for name, share in run.results.items()}
    predicted = simulate(protocols, tables, roles=BOTH, defences=defences)
    assert sum(predicted.ledgers["bank"].events.values()) == 0


def test_two_of_them_randomise_independently_and_are_both_charged():
    tables = load("breast-cancer", rows=120).split()
    seen = []
    look = witness(["labels"], lambda hook, labels, where: seen.append((where.rows, labels)))
    twice = [look, RandomisedLabels(), look, RandomisedLabels(), look]
    run = simulate(SplitClassifier(epochs=1, n_iter_no_change=None).fit, tables, roles=BOTH, defences={"bank": twice})
    before, between, after = (labels for _, labels in seen[:3])
    assert not torch.equal((between - before) % 2, (after - between) % 2)
    assert run.ledgers["bank"].epsilon(0.0, protects=Secret.LABELS) == pytest.approx(2.0)


class Settled(RandomisedLabels):
    """Randomised labels that came out as they stand in a list, whatever the true ones are."""

    def __init__(self, outcome):
        super().__init__()
        self.outcome = np.asarray(outcome)

    def _drawn(self, n_classes):
        super()._drawn(n_classes)
        truth = np.unique(np.asarray(self._party.own_table.labels), return_inverse=True)[1]
        return (self.outcome - truth) % n_classes


@pytest.mark.parametrize("tracks", [ShadowTop(), ShadowProxy()])
def test_frames_to_the_feature_party_are_the_same_when_true_labels_change_under_fixed_randomised_ones(tracks):
    """Private columns are ranked by labels, and which they are decides what leaves: early stopping included."""
    tables = load("breast-cancer", rows=200).split()
    truth = np.asarray(tables["bank"].labels)
    defences = {"bank": [Settled(1 - truth)]}
    other = np.random.default_rng(0).permutation(truth)
    seen, rankings = [], []
    for labels in (truth, other):
        given = {**tables, "bank": tables["bank"].with_labels(labels)}
        run = simulate(SplitClassifier(tracks=tracks, epochs=4).fit, given, roles=BOTH, defences=defences)
        seen.append([entry.digest for entry in run.transcripts["shop"].entries if not entry.sent])
        rankings.append(public_private(given["bank"]).private)
        assert run.ledgers["bank"].epsilon(0.0, protects=Secret.LABELS) == pytest.approx(1.0)
    assert rankings[0] != rankings[1]
    assert seen[0] == seen[1] != []


def test_what_is_inferred_are_the_randomised_labels():
    tables = load("digits", rows=400).split()
    model = SplitClassifier(fusion="sum", top=None, epochs=2, n_iter_no_change=None)
    run = simulate(model.fit, tables, roles=BOTH, defences={"bank": [RandomisedLabels(epsilon=1.0)]})
    attempt = attempt_on(run, DirectLabel())
    guess = attempt.attack.guess(attempt.view(run))
    right = (guess.classes == np.asarray(tables["bank"].labels)[guess.rows]).sum()
    assert stats.binomtest(int(right), len(guess.rows), math.e / (math.e + 9)).pvalue > 1e-6


def test_a_budget_that_does_not_suffice_stops_the_run():
    tables = load("breast-cancer", rows=120).split()
    with pytest.raises(BudgetSpent, match=r"Expected to spend at most epsilon 0\.5 at delta 0 on labels"):
        simulate(
            SplitClassifier(epochs=1).fit,
            tables,
            roles=BOTH,
            defences={"bank": [RandomisedLabels(epsilon=1.0)]},
            budgets={"bank": {Secret.LABELS: (0.5, 0.0)}},
        )


def test_measurements_cannot_be_randomised(held):
    with pytest.raises(PlanError, match=r"but the labels of this run are measurements\. Leave the defence out"):
        held(RandomisedLabels()).labels(torch.tensor([0.5, 0.1]), at([0, 1], None))


def test_a_server_that_was_given_the_true_labels_cannot_randomise_them():
    tables = load("breast-cancer", rows=120).split()
    roles = Roles(label="bank", features=("shop",), server="cloud")
    words = r"cloud, which holds the defence, has no table and would be given the true labels\. Give the defence to the"
    with pytest.raises(PlanError, match=words):
        simulate(ServedClassifier().fit, tables, roles=roles, defences={"cloud": [RandomisedLabels()]})


def test_epsilon_is_above_0():
    with pytest.raises(
        PlanError, match=r"RandomisedLabels's epsilon should be a number, above 0, but is 0\.0\. Change it"
    ):
        RandomisedLabels(epsilon=0.0)
