"""Regressions on real tables: their quality on rows held out, beside scikit-learn's on the same columns and penalty.

Both protocols at their defaults, on at most 1,500 rows of each set: AUC for two classes, accuracy for more, and for
counts the deviance over that of the mean. Sets besides the built-in ones are read from $COLONNADE_DATA where it is set,
and left out where it is not. The arbiter's limits are lifted, because these tables have more columns than the limits
allow for so few rows. With BENCHMARK_JOURNAL naming a file, a run that was stopped goes on where it was.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.linear_model import LogisticRegression as PlainLogistic
from sklearn.linear_model import PoissonRegressor
from sklearn.metrics import d2_tweedie_score, roc_auc_score

from benchmarks.functional_accuracy import measured
from benchmarks.loopback import BANK
from colonnade import Roles, Table, simulate
from colonnade.data import load
from colonnade.experiment.sweep import Journal, Trial
from colonnade.models import LogisticRegression, PoissonRegression
from colonnade.models.glm.estimator import GeneralisedLinearModel

TARGETS: Mapping[str, float] = {"off_shares": 0.005, "off_arbiter": 0.005}
BUILT_IN = ("breast-cancer", "bank-shop-telco", "digits")
OTHERS = ("fars", "adult", "credit-default", "bank-marketing", "give-me-some-credit", "magic-gamma", "electricity")
COUNTS = ("doctor-visits",)
ROWS = 1_500
COMPARED = ("ours", "scikit_learn", "coefficients_off", "epochs", "converged")


def measure(*, quick: bool) -> dict[str, float]:
    """By how much the worst quality of each protocol is below scikit-learn's, and figures for each set."""
    names = BUILT_IN[:1] if quick else BUILT_IN + (OTHERS + COUNTS if "COLONNADE_DATA" in os.environ else ())
    figures: dict[str, float] = {}
    below: dict[str, list[float]] = {"shares": [], "arbiter": []}
    with (
        tempfile.TemporaryDirectory() as folder,
        Journal(os.environ.get("BENCHMARK_JOURNAL") or Path(folder, "journal.sqlite")) as journal,
    ):
        for name in names:
            for protocol, found in below.items():
                cell = {"part": "regression accuracy", "data": name, "protocol": protocol, "quick": quick}
                (row,) = measured(journal, compared, [Trial(cell, 1)])
                each = {what: row[what] for what in COMPARED}
                found.append(each["scikit_learn"] - each["ours"])
                figures |= {f"{name}_{protocol}_{what}": value for what, value in each.items()}
                print(name, protocol, {what: round(value, 5) for what, value in each.items()}, flush=True)
    return {f"off_{protocol}": max(found) for protocol, found in below.items()} | figures


def compared(trial: Trial) -> dict[str, float]:
    """What one protocol makes of one set, beside scikit-learn."""
    name, protocol, quick = (trial.configuration[each] for each in ("data", "protocol", "quick"))
    train, test = _parts(load(name).split(), 300 if quick else ROWS)
    model = PoissonRegression() if name in COUNTS else LogisticRegression()
    model.set_params(rows_per_column=0, fewest_rows=1, **({"max_iter": 60} if quick else {}))
    return _compare(model, train, test, protocol, trial.seed)


def _parts(tables: Mapping[str, Table], n_rows: int) -> tuple[dict[str, Table], dict[str, Table]]:
    """Rows to train on and rows held out, drawn by the same seed at every party."""
    rows = np.random.default_rng(0).permutation(len(tables[BANK]))[:n_rows]
    cut = int(0.7 * len(rows))
    train = {name: table.take(rows[:cut]) for name, table in tables.items()}
    return train, {name: table.take(rows[cut:]) for name, table in tables.items()}


def _compare(
    model: GeneralisedLinearModel, train: Mapping[str, Table], test: Mapping[str, Table], protocol: str, seed: int
) -> dict[str, float]:
    """The quality of the joint model and of scikit-learn's on the same numbers, how far apart they are, and epochs."""
    features = tuple(name for name in train if name != BANK)
    roles = Roles(label=BANK, features=features, arbiter="judge" if protocol == "arbiter" else None)
    shares = simulate(model.fit, train, roles=roles, seed=seed, keep="digests").results
    designs = {name: design for name in train if (design := shares[name].design_) is not None}

    def matrix(tables: Mapping[str, Table]) -> np.ndarray:
        parts = [designs[name].matrix(tables[name])[:, : shares[name].coef_.shape[-1]] for name in train]
        return np.hstack([part if isinstance(part, np.ndarray) else part.toarray() for part in parts])

    labels, truth = (np.asarray(tables[BANK].labels) for tables in (train, test))
    plain, coefficients = _plain(model, matrix(train), labels)
    ours = np.concatenate([shares[name].coef_ for name in train], axis=-1)
    scores = matrix(test) @ ours.T + shares[BANK].intercept_
    return {
        "ours": _quality(scores, truth, plain),
        "scikit_learn": _quality(matrix(test) @ coefficients[0].T + coefficients[1], truth, plain),
        "coefficients_off": float(np.linalg.norm(ours - coefficients[0]) / np.linalg.norm(coefficients[0])),
        "epochs": float(shares[BANK].n_iter_),
        "converged": float(shares[BANK].converged_ is True),
    }


def _plain(model: GeneralisedLinearModel, matrix: np.ndarray, labels: np.ndarray) -> tuple[Any, tuple[Any, Any]]:
    """scikit-learn's model, its coefficients and intercepts."""
    if isinstance(model, PoissonRegression):
        counts = PoissonRegressor(alpha=model.alpha, max_iter=5000, tol=1e-8).fit(matrix, labels)
        return counts, (counts.coef_, counts.intercept_)
    classifier = PlainLogistic(C=1 / model.alpha, max_iter=20_000, tol=1e-8)
    classifier.fit(matrix, labels)
    if len(classifier.classes_) == 2:
        return classifier, (classifier.coef_[0], classifier.intercept_[0])
    return classifier, (classifier.coef_, classifier.intercept_)


def _quality(scores: np.ndarray, truth: np.ndarray, plain: Any) -> float:
    """The quality of scores: AUC, accuracy, or the share of the deviance that they explain."""
    if isinstance(plain, PoissonRegressor):
        return float(d2_tweedie_score(truth, np.exp(scores), power=1))
    if scores.ndim == 2:
        return float((plain.classes_[scores.argmax(axis=1)] == truth).mean())
    return float(roc_auc_score(truth == plain.classes_[1], scores))
