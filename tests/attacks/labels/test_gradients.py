import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from colonnade.attacks.base import Grant
from colonnade.attacks.labels.gradients import DirectionScore, NormScore
from colonnade.attacks.view import View
from colonnade.data import load
from colonnade.models.networks.messages import Gradient
from colonnade.models.networks.split import SplitClassifier
from colonnade.roles import PublicPlan, Roles
from colonnade.runtime.simulate import simulate
from colonnade.testing import attempt_on
from colonnade.wire.recording.recording import RowMeans, Transcript

BOTH = Roles(label="bank", features=("shop",))
THREE = Roles(label="bank", features=("shop", "telco"))
SCORES = [NormScore, DirectionScore]


@pytest.fixture(scope="module")
def run(tables):
    return simulate(SplitClassifier(epochs=5).fit, tables, roles=BOTH, keep="all")


def mean_gradients(run, n_rows):
    """The slow way: every recorded gradient, row by row."""
    by_row = {row: [] for row in range(n_rows)}
    for recorded in run.transcripts["shop"].messages(Gradient):
        for row, gradient in zip(recorded.rows, recorded.message.values, strict=True):
            by_row[row].append(gradient)
    return {row: np.mean(gradients, axis=0) for row, gradients in by_row.items() if gradients}


def guessed(run, attack, seed=0):
    attempt = attempt_on(run, attack, seed=seed)
    return attempt.attack.guess(attempt.view(run)), attempt.grant


def test_the_norm_score_is_the_length_of_the_mean_gradient(run, tables):
    means = mean_gradients(run, len(tables["shop"]))
    guess, _ = guessed(run, NormScore())
    assert guess.rows.tolist() == sorted(means)
    np.testing.assert_allclose(guess.scores, [np.linalg.norm(means[row]) for row in guess.rows], rtol=1e-4)


def test_the_direction_score_is_the_cosine_with_a_known_row_of_the_last_class(run, tables):
    means = mean_gradients(run, len(tables["shop"]))
    guess, grant = guessed(run, DirectionScore())
    known = means[grant.rows[grant.labels == 1][0]]
    expected = [means[row] @ known / np.linalg.norm(means[row]) / np.linalg.norm(known) for row in guess.rows]
    np.testing.assert_allclose(guess.scores, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("seed", range(5))
def test_directions_tell_the_classes_apart_whichever_row_is_known(run, tables, seed):
    guess, grant = guessed(run, DirectionScore(), seed)
    unknown = ~np.isin(guess.rows, grant.rows)
    labels = np.asarray(tables["bank"].labels)[guess.rows]
    assert roc_auc_score(labels[unknown], guess.scores[unknown]) > 0.9


def test_norms_tell_a_rare_class_apart():
    tables = load("bank-shop-telco").split()
    run = simulate(SplitClassifier(epochs=2, n_iter_no_change=None).fit, tables, roles=THREE)
    guess, _ = guessed(run, NormScore())
    assert roc_auc_score(np.asarray(tables["bank"].labels)[guess.rows], guess.scores) > 0.9


@pytest.mark.parametrize("attack", SCORES)
def test_rows_that_are_held_out_are_not_guessed(run, tables, attack):
    guess, _ = guessed(run, attack())
    assert len(guess.rows) == len(tables["bank"]) - round(0.1 * len(tables["bank"]))


@pytest.mark.parametrize("attack", SCORES)
def test_more_than_two_classes_cannot_be_told_apart(attack):
    tables = load("digits", rows=300).split()
    run = simulate(SplitClassifier(epochs=1).fit, tables, roles=BOTH)
    with pytest.raises(AssertionError, match="it tells two classes apart and this run has 10"):
        attempt_on(run, attack())


@pytest.mark.parametrize("attack", SCORES)
def test_rows_whose_gradients_are_not_finite_are_left_out_and_large_ones_are_ranked(attack):
    values = np.array([[1, 2], [1, np.nan], [np.inf, 1], [3e38, 3e38], [2, 1]], np.float32)
    means = RowMeans("split/gradient", "bank", False, 0, values, np.ones(5, np.int64))
    grant = Grant(2, np.array([0, 4]), np.array([0, 1])) if attack.needs.known_labels else Grant(2)
    plan = PublicPlan(BOTH, "SplitClassifier.fit")
    guess = attack().guess(View.cut(attack.needs, Transcript("shop", means=(means,)), public=plan, grant=grant, seed=0))
    assert guess.rows.tolist() == [0, 3, 4]
    assert np.isfinite(guess.scores).all()
    assert guess.scores.dtype == np.float64
