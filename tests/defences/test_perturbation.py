import re

import pytest
import torch
from scipy import stats

from colonnade.defences.perturbation import GradientPerturbation
from colonnade.errors import PlanError


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


def test_the_ledger_is_not_charged(held, leaving):
    labels = torch.arange(30) % 3
    ready = held(GradientPerturbation())
    ready.outgoing(of_class(labels), leaving(30, labels=labels, n_classes=3, gradient_if=of_class))
    assert sum(ready.party.ledger.events.values()) == 0


def test_epsilon_is_above_0():
    with pytest.raises(PlanError, match=r"GradientPerturbation's epsilon should be above 0, but is 0\.0\. Leave"):
        GradientPerturbation(epsilon=0.0)
