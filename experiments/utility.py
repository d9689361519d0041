"""What splitting a network costs in accuracy: against central training, one shot, and on labels randomised once.

The central network is the default multilayer perceptron on all columns in one place. That is one bottom where a split
network has one at each of two parties, and so the smaller network of the two: *central-wide* has a bottom with twice as
many hidden units and an embedding twice as wide, so that as much reaches the same top. *scikit-learn* is its
`MLPClassifier` on all columns, with one hidden layer of 64 units and its own defaults else. The label party alone has
its own columns only. One shot uses the default rule for the width of its embedding; beside its accuracy stands what the
label party could rebuild of the feature party's columns. The stress set is digits with 96 columns of high variance that
say nothing.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from statistics import mean
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from colonnade import Table, simulate
from colonnade.experiment.quality import classification_quality, quality
from colonnade.experiment.sweep import Trial
from colonnade.models import LabelDPShadow, OneShotClassifier, SplitClassifier
from colonnade.models.base import Prediction
from colonnade.tables.encode import Inputs
from experiments.sets import ROLES, halves
from experiments.tables import over_seeds, told_seeds

if TYPE_CHECKING:
    from torch import nn

SETS = ("digits", "mnist", "credit-default", "adult", "breast-cancer", "stress")
WAYS = ("scikit-learn", "central", "central-wide", "alone", "split", "one-shot", "label-dp")
SEEDS = (0, 1, 2)
# The default widths of a bottom: of its embedding and of its hidden layer.
EMBEDDING, HIDDEN = 16, 64
VERSION = 1


def trials(*, quick: bool) -> list[Trial]:
    """Every way on every set with every seed."""
    seeds = SEEDS[:1] if quick else SEEDS
    cells = [{"set": name, "way": way, "quick": quick, "version": VERSION} for name in SETS for way in WAYS]
    return [Trial(cell, seed) for cell in cells for seed in seeds]


def measure(trial: Trial) -> Mapping[str, Any]:
    """Train one way, and predict held-out rows."""
    import torch

    torch.set_num_threads(1)
    name, way = trial.configuration["set"], trial.configuration["way"]
    train, test = halves(name, trial.seed, quick=trial.configuration["quick"])
    if way == "scikit-learn":
        return _with_scikit_learn(*(_gathered(tables, everything=True) for tables in (train, test)), seed=trial.seed)
    if way in ("central", "central-wide", "alone"):
        train, test = (_gathered(tables, everything=way != "alone") for tables in (train, test))
    models = {
        "central-wide": SplitClassifier(embedding=2 * EMBEDDING, bottom=wide),
        "one-shot": OneShotClassifier(leak_budget={"shop": 1.0}),
        "label-dp": LabelDPShadow(epsilon=0.5),
    }
    model: Any = models.get(way, SplitClassifier())
    run = simulate(model.fit, train, roles=ROLES, seed=trial.seed, keep="digests")
    figures: dict[str, Any] = dict(quality(run, test))
    if way == "one-shot":
        leak = run.results["shop"].leak_
        width = run.results["bank"].stated_["shop"]["width"]
        figures |= {"width": width, "relative_mse": leak.relative_mse, "worst_r2": leak.worst_r2}
    return figures


def wide(inputs: Inputs, width: int) -> nn.Module:
    """The default bottom with twice as many hidden units."""
    from colonnade.models.networks.modules import TabularMLP

    return TabularMLP(inputs, width, hidden=(2 * HIDDEN,))


def _with_scikit_learn(train: Mapping[str, Table], test: Mapping[str, Table], *, seed: int) -> dict[str, float]:
    """The figures of scikit-learn's perceptron on the same rows and columns."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.neural_network import MLPClassifier
    from sklearn.preprocessing import OneHotEncoder

    inputs = Inputs.learned(train["shop"], np.arange(len(train["shop"])))
    encoder = OneHotEncoder(handle_unknown="ignore", sparse_output=False)

    def encoded(tables: Mapping[str, Table], *, learn: bool) -> NDArray[Any]:
        values = inputs.encode(tables["shop"])
        numbers, codes = values[:, : inputs.n_numbers], values[:, inputs.n_numbers :]
        if not codes.shape[1]:
            return numbers
        return np.hstack([numbers, encoder.fit_transform(codes) if learn else encoder.transform(codes)])

    model = MLPClassifier((HIDDEN,), random_state=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # by default it stops after 200 epochs
        model.fit(encoded(train, learn=True), np.asarray(train["bank"].labels))
    found = encoded(test, learn=False)
    prediction = Prediction(model.predict(found), model.predict_proba(found))
    return classification_quality(prediction, np.asarray(test["bank"].labels))


def _gathered(tables: Mapping[str, Table], *, everything: bool) -> dict[str, Table]:
    """All columns, or the label party's only, behind one cut: the same network in one place."""
    bank, shop = tables["bank"], tables["shop"]
    arrow = bank.to_arrow()
    if everything:
        for column in shop.columns:
            arrow = arrow.append_column(column, shop.to_arrow().column(column))
    one = Table.of(arrow, ids=bank.id_name, labels=bank.label_name, owner="shop")
    return {"bank": bank.select([]), "shop": one.without_labels()}


def page(rows: Sequence[Mapping[str, Any]], *, quick: bool) -> str:
    """The results for a reader."""
    ways = [way for way in WAYS if any(row["way"] == way for row in rows)]
    lines = [
        "# What splitting costs",
        "",
        *(__doc__ or "").strip().splitlines()[2:],
        "",
        f"{told_seeds(rows)}, on held-out rows; each seed draws other rows. All settings are the defaults. *constant* "
        f"is what a constant guess reaches. Made with `python -m experiments utility{' --quick' if quick else ''}`; "
        "`utility.csv` has every figure.",
    ]
    for measured in ("accuracy", "AUC"):
        lines += ["", f"| {measured} | test rows | constant | {' | '.join(ways)} |", "|" + "---|" * (3 + len(ways))]
        for name, of_set in _by_set(rows):
            constant = f"{mean(row['commonest'] for row in of_set):.3f}" if measured == "accuracy" else "0.500"
            figures = [over_seeds([row for row in of_set if row["way"] == way], measured) for way in ways]
            lines.append(f"| {name} | {of_set[0]['rows']:,.0f} | {constant} | {' | '.join(figures)} |")
    lines += [
        "",
        "What one shot gives away:",
        "",
        "| set | width | relative MSE | worst column R² |",
        "|---|---|---|---|",
    ]
    for name, of_set in _by_set(rows):
        shot = [row for row in of_set if row["way"] == "one-shot"]
        leak = [over_seeds(shot, key, 2) for key in ("width", "relative_mse", "worst_r2")]
        lines.append(f"| {name} | {' | '.join(leak)} |")
    return "\n".join(lines) + "\n"


def _by_set(rows: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, list[Mapping[str, Any]]]]:
    for name in SETS:
        of_set = [row for row in rows if row["set"] == name]
        if of_set:
            yield name, of_set
