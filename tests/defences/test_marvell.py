import math
import re

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from colonnade.defences.marvell import Marvell, least_divergence, sum_kl
from colonnade.errors import PlanError

VARIANCES = st.floats(0.01, 5.0)


def by_brute_force(width, apart, *, variance, share, power):
    """The least divergence that a general optimiser finds, from several starts, over all four variances."""
    u, v = variance
    costs = np.array([1 - share, share, (1 - share) * (width - 1), share * (width - 1)])

    def divergence(x):
        return sum_kl(width, apart, variance=(u, v), along=(x[0], x[1]), across=(x[2], x[3]))

    best = np.inf
    random = np.random.default_rng(0)
    for _ in range(6):
        start = random.dirichlet(np.ones(4)) * power / np.where(costs > 0, costs, 1)
        found = minimize(
            divergence,
            start,
            method="SLSQP",
            bounds=[(0, None)] * 4,
            constraints=[{"type": "ineq", "fun": lambda x: power - costs @ x}],
            options={"maxiter": 500, "ftol": 1e-12},
        )
        if costs @ found.x <= power * (1 + 1e-6) and (found.x >= -1e-9).all():
            best = min(best, found.fun)
    return best


@settings(max_examples=25)
@given(
    width=st.integers(1, 40),
    apart=st.floats(0.05, 5.0),
    u=VARIANCES,
    v=VARIANCES,
    share=st.floats(0.05, 0.95),
    power=st.floats(0.05, 50.0),
)
def test_no_optimiser_finds_less_divergence(width, apart, u, v, share, power):
    problem = {"variance": (u, v), "share": share, "power": power}
    shape = least_divergence(width, apart, **problem)
    expected = by_brute_force(width, apart, **problem)
    assert shape.divergence <= expected + 1e-4 * (1 + abs(expected))
    assert shape.divergence == pytest.approx(
        sum_kl(width, apart, variance=(u, v), along=shape.along, across=shape.across)
    )
    spent = share * (shape.along[1] + (width - 1) * shape.across[1]) + (1 - share) * (
        shape.along[0] + (width - 1) * shape.across[0]
    )
    assert spent <= power * (1 + 1e-6)
    assert min(*shape.along, *shape.across) >= 0


def test_the_divergence_is_that_of_two_normal_distributions():
    width, apart, variance, along, across = 5, 2.0, (0.3, 0.8), (1.5, 0.4), (0.2, 0.1)
    mean = torch.zeros(width)
    other = torch.cat([torch.tensor([apart**0.5]), torch.zeros(width - 1)])
    spreads = [torch.tensor([along[k] + variance[k]] + [across[k] + variance[k]] * (width - 1)) for k in (0, 1)]
    first, last = (
        torch.distributions.MultivariateNormal(m, s.diag()) for m, s in zip((mean, other), spreads, strict=True)
    )
    kl = torch.distributions.kl_divergence
    found = sum_kl(width, apart, variance=variance, along=along, across=across)
    assert found == pytest.approx((kl(first, last) + kl(last, first)).item(), rel=1e-5)


def test_more_power_makes_the_classes_more_alike_and_the_least_error_larger():
    shapes = [least_divergence(16, 1.0, variance=(0.1, 0.2), share=0.3, power=power) for power in (0.1, 1, 10, 100)]
    divergences = [shape.divergence for shape in shapes]
    assert divergences == sorted(divergences, reverse=True)
    errors = [max(0.0, 0.5 - math.sqrt(divergence) / 4) for divergence in divergences]
    assert errors == sorted(errors)
    assert 0.4 < errors[-1] < 0.5


@pytest.fixture
def batch():
    generator = torch.Generator().manual_seed(0)
    labels = (torch.rand(6000, generator=generator) < 0.25).long()
    means = torch.tensor([[0.0, 0.0, 0.0, 0.0], [0.03, 0.0, 0.0, 0.0]])
    return means[labels] + 0.01 * torch.randn(6000, 4, generator=generator), labels


def test_the_noise_has_the_power_that_was_asked_for(held, leaving, batch):
    gradient, labels = batch
    sent = held(Marvell(power=4.0)).outgoing(gradient, leaving(6000, labels=labels, n_classes=2))
    apart = (gradient[labels == 1].mean(dim=0) - gradient[labels == 0].mean(dim=0)).square().sum()
    assert (sent - gradient).square().sum(dim=1).mean().item() == pytest.approx(4 * apart.item(), rel=0.08)


def test_noise_goes_along_the_difference_of_the_classes(held, leaving, batch):
    gradient, labels = batch
    added = held(Marvell()).outgoing(gradient, leaving(6000, labels=labels, n_classes=2)) - gradient
    spread = added.std(dim=0)
    assert spread[0] > 10 * spread[1:].max()


def test_the_classes_are_harder_to_tell_than_under_isotropic_noise_of_the_same_power(held, leaving, batch):
    from sklearn.metrics import roc_auc_score

    gradient, labels = batch
    sent = held(Marvell(power=4.0)).outgoing(gradient, leaving(6000, labels=labels, n_classes=2))
    power = (sent - gradient).square().sum(dim=1).mean().sqrt() / 2
    isotropic = gradient + power * torch.randn(gradient.shape, generator=torch.Generator().manual_seed(1))
    assert roc_auc_score(labels, sent[:, 0]) < roc_auc_score(labels, isotropic[:, 0]) - 0.05


@pytest.mark.parametrize("labels", [torch.zeros(50, dtype=torch.long), torch.ones(50, dtype=torch.long)])
def test_a_batch_of_one_class_gets_noise_in_all_directions(held, leaving, labels):
    gradient = 0.01 * torch.randn(50, 4, generator=torch.Generator().manual_seed(0)) + 0.02
    added = held(Marvell(power=9.0)).outgoing(gradient, leaving(50, labels=labels, n_classes=2)) - gradient
    expected = 3 * gradient.square().sum(dim=1).mean().sqrt().item()
    assert added.square().sum(dim=1).mean().sqrt().item() == pytest.approx(expected, rel=0.25)


def test_classes_with_one_mean_or_one_row_leave_everything_finite(held, leaving):
    alike = torch.tensor([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0]])
    single = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.1, 1.0]])
    labels = torch.tensor([0, 1, 1])
    for gradient in (alike, single, single[:, :1] + 1):
        sent = held(Marvell()).outgoing(gradient, leaving(3, labels=labels, n_classes=2))
        assert torch.isfinite(sent).all()
        assert not torch.equal(sent, gradient)


@pytest.mark.parametrize(("n_classes", "found"), [(10, "10 classes"), (None, "measurements")])
def test_it_is_for_two_classes(held, leaving, batch, n_classes, found):
    gradient, labels = batch
    words = f"Marvell makes two classes alike, but the labels of this run are {found}. Use another."
    with pytest.raises(PlanError, match=re.escape(words)):
        held(Marvell()).outgoing(gradient, leaving(6000, labels=labels, n_classes=n_classes))


def test_power_is_above_0():
    with pytest.raises(PlanError, match=r"Marvell's power should be a number, above 0, but is 0\.0\. Change it"):
        Marvell(power=0.0)
