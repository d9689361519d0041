import math
import re

import numpy as np
import pytest
import torch

from colonnade.defences.compression import AverageGradient, DiscreteGradient, SparseGradient
from colonnade.errors import PlanError
from colonnade.models.networks.messages import Embedding
from colonnade.runtime.context import HookContext
from colonnade.storage import pack, unpack


def gradients(rows, width=6, seed=0):
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("keep", [0.75, 0.5, 0.25, 0.1, 0.005])
def test_the_largest_share_of_entries_is_kept_as_it_was_and_the_rest_is_0(held, leaving, keep):
    given = gradients(100)
    sent = held(SparseGradient(keep=keep)).outgoing(given, leaving(100))
    kept = sent != 0
    assert kept.sum().item() == pytest.approx(keep * 600, abs=1)
    assert torch.equal(sent[kept], given[kept])
    assert given[~kept].abs().max() <= given[kept].abs().min()


def test_entries_that_are_all_alike_all_go(held, leaving):
    assert not held(SparseGradient(keep=0.5)).outgoing(torch.ones(4, 4), leaving(4)).any()


def test_without_a_residual_what_is_dropped_is_lost(held, leaving):
    ready = held(SparseGradient(keep=0.25))
    first, second = (ready.outgoing(gradients(20), leaving(20, step=step)) for step in (0, 1))
    assert torch.equal(first, second)
    assert ready.state() == {"residuals": {}}


def test_with_a_residual_by_row_everything_comes_to_its_row_in_the_end(held, leaving):
    ready = held(SparseGradient(keep=0.25, residual="row"))
    given, sent = torch.zeros(40, 6), torch.zeros(40, 6)
    random = np.random.default_rng(0)
    for step in range(12):
        rows = random.permutation(40)[:30]
        batch = gradients(30, seed=step)
        given[rows] += batch
        sent[rows] += ready.outgoing(batch, leaving(30, step=step, rows=rows))
    left = torch.from_numpy(ready.state()["residuals"]["shop"])
    torch.testing.assert_close(sent + left, given)


def test_with_a_residual_by_batch_rows_are_blurred_with_others(held, leaving):
    ready = held(SparseGradient(keep=0.25, residual="batch"))
    first = gradients(20)
    sent = ready.outgoing(first, leaving(20))
    second = gradients(12, seed=1)
    expected = second + (first - sent)[:12]
    largest = expected.abs() > expected.abs().flatten().kthvalue(54).values
    torch.testing.assert_close(ready.outgoing(second, leaving(12, step=1)), torch.where(largest, expected, 0))


@pytest.mark.parametrize("residual", ["row", "batch"])
def test_residuals_survive_a_crash(held, leaving, residual):
    ready, resumed = (held(SparseGradient(keep=0.25, residual=residual)) for _ in range(2))
    ready.outgoing(gradients(20), leaving(20))
    resumed.restore(unpack(pack(ready.state())))
    again = leaving(20, step=1)
    assert torch.equal(ready.outgoing(gradients(20, seed=1), again), resumed.outgoing(gradients(20, seed=1), again))


def test_discrete_gradients_have_one_level_more_than_bins_within_the_bound(held, leaving):
    sent = held(DiscreteGradient(bins=6, bound=0.9)).outgoing(gradients(400), leaving(400))
    levels = np.unique(sent.numpy().round(4))
    np.testing.assert_allclose(levels, np.linspace(-0.9, 0.9, 7), atol=1e-4)
    inside = gradients(400).abs() < 0.9
    assert ((sent - gradients(400))[inside].abs() <= 0.15 + 1e-6).all()


def test_the_bound_is_learned_from_the_first_batch_and_kept(held, leaving):
    ready = held(DiscreteGradient(bins=12))
    first = ready.outgoing(0.5 * gradients(200), leaving(200))
    assert first.abs().max().item() == pytest.approx(2 * (0.5 * gradients(200)).std(correction=0).item(), rel=1e-5)
    assert ready.outgoing(50 * gradients(200), leaving(200, step=1)).abs().max() == first.abs().max()
    resumed = held(DiscreteGradient(bins=12))
    resumed.restore(unpack(pack(ready.state())))
    assert resumed.state() == ready.state()


def test_before_there_is_a_bound_a_gradient_of_one_value_leaves_as_zeros(held, leaving):
    ready = held(DiscreteGradient())
    for value in (0.0, 0.37):
        assert not ready.outgoing(torch.full((3, 3), value), leaving(3)).any()
        assert ready.state() == {"bounds": {}}
    broken = ready.outgoing(torch.tensor([[1.0, math.inf], [math.nan, 1.0]]), leaving(2))
    torch.testing.assert_close(broken, torch.tensor([[0.0, math.nan], [math.nan, 0.0]]), equal_nan=True)


@pytest.mark.parametrize("bound", [None, 0.9])
def test_a_gradient_of_one_value_is_rounded_like_any_other(held, leaving, bound):
    ready = held(DiscreteGradient(bound=bound))
    levels = ready.outgoing(gradients(400), leaving(400)).unique()
    alone = ready.outgoing(torch.full((1, 1), 0.37), leaving(1, step=1))
    assert alone in levels
    assert alone != 0.37


def test_averaged_gradients_are_the_same_for_every_row_and_keep_their_mean(held, leaving):
    given = gradients(50)
    sent = held(AverageGradient()).outgoing(given, leaving(50))
    assert len(sent.unique(dim=0)) == 1
    torch.testing.assert_close(sent[0], given.mean(dim=0))


@pytest.mark.parametrize("defence", [SparseGradient, DiscreteGradient, AverageGradient])
def test_embeddings_pass_untouched(held, defence):
    values = gradients(5)
    assert (
        held(defence()).outgoing(values, HookContext(0, 0, np.arange(5), "train", peer="shop", message=Embedding))
        is values
    )


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (
            lambda: SparseGradient(keep=0.0),
            "keep should be a number, above 0 and below 1, but is 0.0. Change it",
        ),
        (
            lambda: SparseGradient(keep=1.0),
            "keep should be a number, above 0 and below 1, but is 1.0. Change it",
        ),
        (
            lambda: SparseGradient(residual="all"),
            "residual should be 'none', 'row' or 'batch', but is 'all'. Change",
        ),
        (
            lambda: DiscreteGradient(bins=0),
            "bins should be a whole number, at least 1, but is 0. Change it",
        ),
        (
            lambda: DiscreteGradient(bound=0.0),
            "bound should be None or a number, above 0, but is 0.0. Change it",
        ),
    ],
)
def test_parameters_that_mean_nothing_are_refused(make, words):
    with pytest.raises(PlanError, match=re.escape(words)):
        make()
