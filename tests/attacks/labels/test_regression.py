"""What gradients and coefficients of a regression tell, and what the refusal of small batches prevents."""

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from colonnade import audit
from colonnade.attacks.labels.regression import CoefficientScore, Residue
from colonnade.errors import PrivacyError
from colonnade.models.glm.estimator import LogisticRegression
from colonnade.models.networks.split import SplitClassifier
from colonnade.roles import Roles
from colonnade.runtime.simulate import simulate
from colonnade.tables.table import Table
from colonnade.testing import attempt_on

JUDGED = Roles(label="bank", features=("shop",), arbiter="judge")


def tables(n_rows, n_columns, strength, seed=0):
    """Labels that depend on the bank's column, and on the shop's as strongly as is said."""
    random = np.random.default_rng(seed)
    own, others = random.standard_normal(n_rows), random.standard_normal((n_rows, n_columns))
    labels = (own + strength * others.sum(axis=1) / np.sqrt(n_columns) + random.standard_normal(n_rows) > 0).astype(int)
    ids = {"id": np.arange(n_rows)}
    return {
        "bank": Table.of(ids | {"x": own, "y": labels}, labels="y", owner="bank"),
        "shop": Table.of(ids | {f"c{i}": others[:, i] for i in range(n_columns)}, owner="shop"),
    }


def auc(run, attack):
    attempt = attempt_on(run, attack, "shop")
    guess = attempt.attack.guess(attempt.view(run))
    labels = np.asarray(run.simulation.tables["bank"].labels)
    assert sorted(guess.rows) == list(range(len(labels)))
    return roc_auc_score(labels[guess.rows], guess.scores)


def test_batches_as_small_as_the_columns_are_many_give_every_label_away_if_nobody_refuses():
    data = tables(300, 30, strength=0.0)
    model = LogisticRegression(max_iter=1, batch_size=25, learning_rate=0.01, rows_per_column=10)
    with pytest.raises(PrivacyError, match=r"shop has 30 columns, so a batch needs more than 300 rows"):
        simulate(model.fit, data, roles=JUDGED)
    lax = model.clone().set_params(rows_per_column=0, fewest_rows=1)
    run = simulate(lax.fit, data, roles=JUDGED)
    assert auc(run, Residue()) > 0.99


def test_three_classes_are_read_from_small_batches_as_two_are():
    data = tables(120, 30, strength=0.0)
    labels = np.random.default_rng(1).integers(0, 3, 120)
    data["bank"] = Table.of({"id": np.arange(120), "y": labels}, labels="y", owner="bank")
    model = LogisticRegression(max_iter=1, batch_size=25, learning_rate=0.01, rows_per_column=0, fewest_rows=1)
    run = simulate(model.fit, data, roles=JUDGED)
    for attack, least in ((Residue(), 0.99), (CoefficientScore(), 0.5)):
        attempt = attempt_on(run, attack, "shop")
        guess = attempt.attack.guess(attempt.view(run))
        assert (guess.classes == labels[guess.rows]).mean() > least


def test_batches_that_are_allowed_tell_no_more_than_the_columns_themselves():
    unrelated = simulate(LogisticRegression(max_iter=2).fit, tables(500, 4, strength=0.0), roles=JUDGED)
    # Four columns fitted to 500 labels by chance: an AUC of about 0.55.
    assert auc(unrelated, Residue()) < 0.65
    related = simulate(LogisticRegression(max_iter=2).fit, tables(500, 4, strength=1.0), roles=JUDGED)
    assert auc(related, Residue()) > 0.7
    assert auc(related, CoefficientScore()) > 0.7


def test_an_audit_shows_both_and_says_why_the_arbiter_cannot():
    run = simulate(LogisticRegression(max_iter=2).fit, tables(500, 4, strength=1.5), roles=JUDGED)
    report = audit(run, [Residue(), CoefficientScore()], nulls=5)
    assert {(finding.attack, finding.attacker) for finding in report.attacks} >= {
        ("Residue", "shop"),
        ("CoefficientScore", "shop"),
    }
    assert any("judge" in reason for reason in report.untested)


def test_other_models_are_left_alone():
    roles = Roles(label="bank", features=("shop",))
    run = simulate(SplitClassifier(epochs=1).fit, tables(100, 4, strength=1.0), roles=roles)
    with pytest.raises(AssertionError, match="it reads the coefficients of a regression"):
        attempt_on(run, CoefficientScore(), "shop")
