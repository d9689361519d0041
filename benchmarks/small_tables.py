"""Networks at their defaults on small tables: accuracy on rows held out, beside a central network that was tuned.

Six sets of less than 1,000 rows, three cuts each. The central network is scikit-learn's on the same numbers of all
parties, its width and penalty chosen by cross-validation. Sets besides the built-in ones are slices of those in
$COLONNADE_DATA where it is set, and left out where it is not.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from statistics import mean

import numpy as np

from benchmarks.loopback import BANK
from colonnade import Roles, Table, simulate
from colonnade.data import load, train_test_split
from colonnade.experiment.quality import quality
from colonnade.models import SplitClassifier
from colonnade.tables.encode import Inputs

TARGETS: Mapping[str, float] = {"points_below_central": 2.0}
BUILT_IN, OTHERS = ("breast-cancer", "digits", "bank-shop-telco"), ("covtype", "fars", "magic-gamma")
ROWS = 900
PENALTIES, WIDTHS = (1e-3, 0.3, 3.0), ((32,), (64, 32))


def measure(*, quick: bool) -> dict[str, float]:
    """By how many points the worst set is below the central network, and both accuracies for each set."""
    names = BUILT_IN[:1] if quick else BUILT_IN + (OTHERS if "COLONNADE_DATA" in os.environ else ())
    figures: dict[str, float] = {}
    below = []
    for name in names:
        pairs = [_compare(name, seed, quick=quick) for seed in range(1 if quick else 3)]
        split, central = (mean(each) for each in zip(*pairs, strict=True))
        below.append(100 * (central - split))
        figures |= {f"split_{name}": split, f"central_{name}": central}
    return {"points_below_central": max(below)} | figures


def _compare(name: str, seed: int, *, quick: bool) -> tuple[float, float]:
    """The accuracies of a split network at its defaults and of a tuned central one."""
    held = load(name).split()
    rows = np.random.default_rng(seed).permutation(len(held[BANK]))[: 200 if quick else ROWS]
    tables = {party: table.take(np.sort(rows)) for party, table in held.items()}
    train, test = train_test_split(tables, test=0.3, seed=seed)
    roles = Roles(label=BANK, features=tuple(party for party in tables if party != BANK))
    run = simulate(SplitClassifier().fit, train, roles=roles, seed=seed, keep="digests")
    return quality(run, test)["accuracy"], _central(train, test, seed, quick=quick)


def _central(train: Mapping[str, Table], test: Mapping[str, Table], seed: int, *, quick: bool) -> float:
    """The accuracy of scikit-learn's network over all parties' columns, with settings chosen by cross-validation."""
    from sklearn.model_selection import GridSearchCV
    from sklearn.neural_network import MLPClassifier

    inputs = {party: Inputs.learned(table, np.arange(len(table))) for party, table in train.items()}
    fitted, scored = (
        np.hstack([inputs[party].one_hot(table)[0] for party, table in tables.items()]) for tables in (train, test)
    )
    grid = {"alpha": PENALTIES[1:2] if quick else PENALTIES, "hidden_layer_sizes": WIDTHS[:1] if quick else WIDTHS}
    network = MLPClassifier(max_iter=20 if quick else 400, random_state=seed)
    with warnings.catch_warnings():
        # A network that has not converged yet is one of those that cross-validation chooses from.
        warnings.simplefilter("ignore")
        tuned = GridSearchCV(network, grid, cv=3).fit(fitted, np.asarray(train[BANK].labels))
    return float(tuned.score(scored, np.asarray(test[BANK].labels)))
