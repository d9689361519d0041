"""Losses are their formulas, and whole-number gradients are as exact as their room allows."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from colonnade.errors import DataError, Overflow
from colonnade.models.trees.losses import MOST_TOTAL, Gradients, Logistic, Poisson, Softmax, Squared


def value(loss, scores, labels):
    """The loss of one row, written out."""
    if isinstance(loss, Logistic):
        return np.log1p(np.exp(scores[0])) - labels * scores[0]
    if isinstance(loss, Softmax):
        return np.log(np.exp(scores).sum()) - scores[int(labels)]
    if isinstance(loss, Squared):
        return (scores[0] - labels) ** 2 / 2
    return np.exp(scores[0]) - labels * scores[0]


@pytest.mark.parametrize("loss", [Logistic(), Softmax(3), Squared(), Poisson()], ids=lambda loss: type(loss).__name__)
def test_gradients_are_derivatives(loss):
    random = np.random.default_rng(0)
    for _ in range(20):
        scores, label = random.normal(size=loss.n_scores), float(random.integers(0, 2))
        g, h = loss.gradients(scores[None], np.array([label]))
        for k in range(loss.n_scores):
            step = np.eye(loss.n_scores)[k] * 1e-4
            up, here, down = (value(loss, scores + each, label) for each in (step, 0, -step))
            assert g[0, k] == pytest.approx((up - down) / 2e-4, abs=1e-6)
            # xgboost's hessian of several classes is twice the second derivative; Poisson's is larger on purpose.
            factor = {Softmax: 2, Poisson: np.exp(0.7)}.get(type(loss), 1)
            assert h[0, k] == pytest.approx(factor * (up - 2 * here + down) / 1e-8, abs=1e-5)


@pytest.mark.parametrize("loss", [Logistic(), Softmax(2), Squared(), Poisson()], ids=lambda loss: type(loss).__name__)
def test_scores_begin_where_weighted_gradients_sum_to_nothing(loss):
    labels, weights = np.array([0.0, 1, 1, 0, 1]), np.array([1.0, 2, 3, 4, 5])
    start = np.tile(loss.start(labels, weights), (5, 1))
    g, _ = loss.gradients(start, labels)
    assert weights @ g == pytest.approx(np.zeros(loss.n_scores), abs=1e-12)


def test_labels_that_a_loss_cannot_learn_are_refused():
    ones = np.ones(3)
    with pytest.raises(DataError, match=r"two classes, but all are 1"):
        Logistic().start(ones, ones)
    with pytest.raises(DataError, match=r"Each of 3 classes needs rows, but class 0 has none"):
        Softmax(3).start(ones, ones)
    with pytest.raises(DataError, match=r"should be counts, not all of them 0"):
        Poisson().start(0 * ones, ones)


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=30), st.sampled_from([2**10, 2**20, MOST_TOTAL]))
def test_whole_numbers_stay_within_their_total_and_use_most_of_it(values, most):
    numbers = Gradients.of(np.array(values), np.array(values), most_total=most)
    total = int(np.abs(numbers.g).sum())
    assert total <= most
    assert np.abs(np.ldexp(numbers.g.astype(float), -numbers.g_bits) - values).max() <= 2.0 ** -(numbers.g_bits + 1)
    if numbers.g_bits < 40:
        # One bit more, with all of its rounding, would be too much.
        assert 2 * total + 2 * len(values) >= most


def test_large_labels_do_not_cost_the_hessians_their_bits():
    numbers = Gradients.of(np.full(1000, 3e9), np.ones(1000))
    assert numbers.g_bits < 0
    assert numbers.h_bits == 22
    assert numbers.reals(np.array([numbers.g.sum(), numbers.h.sum()])) == pytest.approx([3e12, 1000], rel=1e-3)


def test_gradients_that_are_no_numbers_are_refused():
    with pytest.raises(
        Overflow, match=r"gradients of a tree should be finite numbers.* sum to inf. Lower learning_rate"
    ):
        Gradients.of(np.array([np.inf]), np.ones(1))
