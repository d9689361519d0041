import re

import numpy as np
import pytest
import torch
from scipy import stats

from colonnade.data import load
from colonnade.defences.noise import GradientPerturbation
from colonnade.defences.wandering import BoundaryWandering
from colonnade.errors import PlanError
from colonnade.models.networks.messages import Gradient
from colonnade.models.networks.split import SplitClassifier
from colonnade.roles import Roles
from colonnade.runtime.simulate import simulate


def of_class(labels):
    """Gradients that say which label they are of: one coordinate per class."""
    return torch.nn.functional.one_hot(labels, 3).float()


def test_a_gradient_leaves_with_laplace_numbers_times_the_gradients_of_all_classes(held, leaving):
    labels = torch.arange(6000) % 3
    where = leaving(6000, labels=labels, n_classes=3, gradient_if=of_class)
    sent = held(GradientPerturbation(epsilon=4.0)).outgoing(of_class(labels), where)
    weights = sent - of_class(labels)
    assert stats.kstest(weights.flatten().numpy() / (2 / 4.0), "laplace").pvalue > 1e-6


def test_little_noise_leaves_the_gradient_as_it_is(held, leaving):
    labels = torch.arange(30) % 3
    where = leaving(30, labels=labels, n_classes=3, gradient_if=of_class)
    sent = held(GradientPerturbation(epsilon=1e6)).outgoing(of_class(labels), where)
    torch.testing.assert_close(sent, of_class(labels), atol=1e-4, rtol=0)


def test_where_the_labels_are_not_it_cannot_mix(held, leaving):
    words = "GradientPerturbation mixes the gradients of all classes, but this run has no classes"
    with pytest.raises(PlanError, match=re.escape(words)):
        held(GradientPerturbation()).outgoing(torch.ones(3, 3), leaving(3, labels=torch.zeros(3)))


@pytest.mark.parametrize("epsilon", [0.5, 4.0])
def test_messages_are_marked_with_the_noise_and_no_epsilon_is_claimed(epsilon):
    """Whether there is one depends on what else is held: see the next test."""
    assert GradientPerturbation(epsilon=epsilon).name == f"GradientPerturbation(noise={2 / epsilon:g})"


def test_the_gradient_of_a_penalty_leaves_unmixed():
    """At little noise and without it, a penalty shifts what is sent by the same amount: as the documentation warns."""
    tables = load("breast-cancer", rows=120).split()
    shifts = []
    for also in ([], [GradientPerturbation(epsilon=1e6)]):
        sent = []
        for penalty in ([], [BoundaryWandering(alpha=50.0, scope="received")]):
            model = SplitClassifier(epochs=1, n_iter_no_change=None, batch_size=120)
            held = {"bank": [*penalty, *also]}
            run = simulate(model.fit, tables, roles=Roles(label="bank", features=("shop",)), defences=held, keep="all")
            sent.append(next(iter(run.transcripts["shop"].messages(Gradient))).message.values)
        shifts.append(sent[1] - sent[0])
    assert abs(shifts[0]).max() > 1e-3
    np.testing.assert_allclose(*shifts, atol=1e-5)


def test_the_ledger_is_not_charged(held, leaving):
    labels = torch.arange(30) % 3
    ready = held(GradientPerturbation())
    ready.outgoing(of_class(labels), leaving(30, labels=labels, n_classes=3, gradient_if=of_class))
    assert sum(ready.party.ledger.events.values()) == 0


def test_epsilon_is_above_0():
    with pytest.raises(
        PlanError, match=r"GradientPerturbation's epsilon should be a number, above 0, but is 0\.0\. Change it"
    ):
        GradientPerturbation(epsilon=0.0)
