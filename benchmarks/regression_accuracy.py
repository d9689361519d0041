"""Logistic regression on real tables: its AUC on rows held out, beside scikit-learn's on the same columns and penalty.

Both protocols at their defaults, on at most 2,000 rows of each set. Sets besides the built-in ones are read from
$COLONNADE_DATA where it is set, and left out where it is not. The arbiter's limits are lifted, because these tables
have more columns than the limits allow for so few rows.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

import numpy as np
from sklearn.linear_model import LogisticRegression as PlainLogistic
from sklearn.metrics import roc_auc_score

from benchmarks.loopback import BANK
from colonnade import Roles, Table, simulate
from colonnade.data import load
from colonnade.models import LogisticRegression

TARGETS: Mapping[str, float] = {"auc_off_shares": 0.005, "auc_off_arbiter": 0.005}
BUILT_IN, OTHERS = ("breast-cancer", "bank-shop-telco"), ("adult", "credit-default", "bank-marketing")
ROWS = 2_000


def measure(*, quick: bool) -> dict[str, float]:
    """By how much the worst AUC of each protocol is below scikit-learn's, and both for each set."""
    names = BUILT_IN[:1] if quick else BUILT_IN + (OTHERS if "COLONNADE_DATA" in os.environ else ())
    figures: dict[str, float] = {}
    below: dict[str, list[float]] = {"shares": [], "arbiter": []}
    for name in names:
        train, test = _parts(load(name).split(), 300 if quick else ROWS)
        for protocol, found in below.items():
            ours, plain = _compare(train, test, protocol, max_iter=60 if quick else 200)
            found.append(plain - ours)
            figures |= {f"auc_{protocol}_{name}": ours, f"auc_scikit_learn_{name}": plain}
    return {f"auc_off_{protocol}": max(found) for protocol, found in below.items()} | figures


def _parts(tables: Mapping[str, Table], n_rows: int) -> tuple[dict[str, Table], dict[str, Table]]:
    """Rows to train on and rows held out, drawn by the same seed at every party."""
    rows = np.random.default_rng(0).permutation(len(tables[BANK]))[:n_rows]
    cut = int(0.7 * len(rows))
    train = {name: table.take(rows[:cut]) for name, table in tables.items()}
    return train, {name: table.take(rows[cut:]) for name, table in tables.items()}


def _compare(
    train: Mapping[str, Table], test: Mapping[str, Table], protocol: str, max_iter: int
) -> tuple[float, float]:
    """The AUC of the joint model and of scikit-learn's on the same numbers."""
    features = tuple(name for name in train if name != BANK)
    roles = Roles(label=BANK, features=features, arbiter="judge" if protocol == "arbiter" else None)
    model = LogisticRegression(max_iter=max_iter, rows_per_column=0, fewest_rows=1)
    shares = simulate(model.fit, train, roles=roles, seed=1, keep="digests").results
    designs = {name: design for name in train if (design := shares[name].design_) is not None}

    def matrix(tables: Mapping[str, Table]) -> np.ndarray:
        parts = [designs[name].matrix(tables[name])[:, : len(shares[name].coef_)] for name in train]
        return np.hstack([part if isinstance(part, np.ndarray) else part.toarray() for part in parts])

    plain = PlainLogistic(C=1.0, max_iter=5000).fit(matrix(train), np.asarray(train[BANK].labels))
    ours = matrix(test) @ np.concatenate([shares[name].coef_ for name in train])
    truth = np.asarray(test[BANK].labels) == plain.classes_[1]
    return float(roc_auc_score(truth, ours)), float(roc_auc_score(truth, plain.decision_function(matrix(test))))
