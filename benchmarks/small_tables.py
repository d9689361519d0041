"""Networks at their defaults on small tables: accuracy on rows held out, beside a central network that was tuned.

Six sets of less than 1,000 rows, ten cuts each: three cuts leave standard errors of up to two points. The central
network is scikit-learn's on the same numbers of all parties, its width and penalty chosen by cross-validation. Sets
besides the built-in ones are slices of those in $COLONNADE_DATA where it is set, and left out where it is not. It takes
half an hour of one core. With BENCHMARK_JOURNAL naming a file, a run that was stopped goes on where it was: a journal
belongs to one state of the source.
"""

from __future__ import annotations

import os
import tempfile
import warnings
from collections.abc import Mapping
from pathlib import Path
from statistics import mean

import numpy as np

from benchmarks.functional_accuracy import measured, say
from benchmarks.loopback import BANK
from colonnade import Roles, Table, simulate
from colonnade.data import load, train_test_split
from colonnade.experiment.quality import quality
from colonnade.experiment.sweep import Journal, Trial
from colonnade.models import SplitClassifier
from colonnade.tables.encode import Inputs

TARGETS: Mapping[str, float] = {"points_below_central": 2.0}
BUILT_IN, OTHERS = ("breast-cancer", "digits", "bank-shop-telco"), ("covtype", "fars", "magic-gamma")
ROWS, CUTS = 900, 10
PENALTIES, WIDTHS = (1e-3, 0.3, 3.0), ((32,), (64, 32))


def measure(*, quick: bool) -> dict[str, float]:
    """By how many points the worst set is below the central network, and both accuracies for each set."""
    names = BUILT_IN[:1] if quick else BUILT_IN + (OTHERS if "COLONNADE_DATA" in os.environ else ())
    figures: dict[str, float] = {}
    below = []
    with (
        tempfile.TemporaryDirectory() as folder,
        Journal(os.environ.get("BENCHMARK_JOURNAL") or Path(folder, "journal.sqlite")) as journal,
    ):
        for name in names:
            found = {}
            for way in ("split", "central"):
                cell = {"part": "small tables", "data": name, "way": way, "quick": quick}
                trials = [Trial(cell, seed) for seed in range(1 if quick else CUTS)]
                found[way] = [each["accuracy"] for each in measured(journal, accuracy, trials)]
            split, central = (mean(found[way]) for way in ("split", "central"))
            below.append(100 * (central - split))
            figures |= {f"split_{name}": split, f"central_{name}": central}
            apart = [f"{100 * (one - other):+.1f}" for one, other in zip(*found.values(), strict=True)]
            say(name, f"split {split:.4f}, central {central:.4f}", f"points above, cut by cut: {', '.join(apart)}")
    return {"points_below_central": max(below)} | figures


def accuracy(trial: Trial) -> dict[str, float]:
    """The accuracy of one network on the rows held out of one cut."""
    name, way, quick = (trial.configuration[each] for each in ("data", "way", "quick"))
    train, test = _cut(name, trial.seed, 200 if quick else ROWS)
    if way == "central":
        return {"accuracy": _central(train, test, trial.seed, quick=quick)}
    roles = Roles(label=BANK, features=tuple(party for party in train if party != BANK))
    run = simulate(SplitClassifier().fit, train, roles=roles, seed=trial.seed, keep="digests")
    return {"accuracy": quality(run, test)["accuracy"]}


def _cut(name: str, seed: int, n_rows: int) -> tuple[dict[str, Table], dict[str, Table]]:
    """Rows to train on and rows held out, by the seed of a cut."""
    held = load(name).split()
    rows = np.random.default_rng(seed).permutation(len(held[BANK]))[:n_rows]
    return train_test_split({party: table.take(np.sort(rows)) for party, table in held.items()}, test=0.3, seed=seed)


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
