"""Trees against xgboost's, node by node, on the same bins and from xgboost's own scores."""

import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from colonnade.models.trees.bins import BinMatrix, Bins, Column
from colonnade.models.trees.grow import PlainSums, grow
from colonnade.models.trees.losses import Gradients, Logistic, Poisson, Softmax, Squared
from colonnade.models.trees.splits import Split, TreeParameters
from colonnade.tables.table import Table

xgboost = pytest.importorskip("xgboost")

OBJECTIVES = {
    "binary:logistic": Logistic(),
    "reg:squarederror": Squared(),
    "count:poisson": Poisson(),
}
NAMES = {"gamma", "eta", "reg_lambda", "reg_alpha", "min_child_weight", "max_delta_step", "max_depth", "max_leaves"}


class Compared:
    """How many nodes of xgboost's trees are ours too; nodes below one that differs count as different."""

    def __init__(self):
        self.equal = self.different = self.tied = 0

    @property
    def share(self):
        return self.equal / (self.equal + self.different)

    def add(self, tree, theirs, ties):
        self._walk(tree, 0, theirs, 0, ties)

    def _walk(self, tree, ours, theirs, node, ties):
        split = theirs.split(node)
        if tree.splits[ours] == split:
            self.equal += 1
            if split is not None:
                for mine, other in zip(tree.children[ours], theirs.children(node), strict=True):
                    self._walk(tree, mine, theirs, other, ties)
        elif split is not None and ties(ours, split):
            self.tied += 1
        else:
            self.different += theirs.size(node)


class Theirs:
    """One tree of xgboost's."""

    def __init__(self, model, gaps):
        self._tree, self._gaps = model, gaps

    def split(self, node):
        if self._tree["left_children"][node] < 0:
            return None
        column = self._tree["split_indices"][node]
        # Bins are whole numbers, and the values below a condition go to the left.
        bin = int(np.ceil(self._tree["split_conditions"][node])) - 1
        return Split(column, bin, None, bool(self._tree["default_left"][node]) and self._gaps[column])

    def children(self, node):
        return self._tree["left_children"][node], self._tree["right_children"][node]

    def size(self, node):
        if self._tree["left_children"][node] < 0:
            return 1
        return 1 + sum(self.size(child) for child in self.children(node))


def fed(bins):
    """Codes of bins as numbers, missing ones as no number."""
    gaps = bins.codes == np.array([column.n_bins for column in bins.columns])
    return np.where(gaps, np.nan, bins.codes).astype(np.float32)


def compared(bins, labels, objective, n_rounds, parameters, n_classes=1, grown_on=None):
    """Grow every tree of a run of xgboost's again, each from xgboost's scores before it, on the same bins or others."""
    loss = OBJECTIVES.get(objective) or Softmax(n_classes)
    parameters = replace(parameters, max_delta_step=loss.max_delta_step)
    given = {name: value for name, value in vars(parameters).items() if name in NAMES}
    given |= {"objective": objective, "tree_method": "hist", "max_bin": 256, "nthread": 1, "base_score": 0.5}
    given |= {"grow_policy": parameters.grow_policy} | ({"num_class": n_classes} if n_classes > 1 else {})
    data = xgboost.DMatrix(fed(bins), label=labels)
    booster = xgboost.train(given, data, n_rounds)
    model = json.loads(booster.save_raw("json"))["learner"]["gradient_booster"]["model"]["trees"]
    start = {"reg:squarederror": 0.5, "count:poisson": np.log(0.5)}.get(objective, 0.0)
    source, out = PlainSums(grown_on or bins), Compared()
    gaps = [column.missing for column in bins.columns]
    for round in range(n_rounds):
        scores = np.full((len(labels), loss.n_scores), start)
        if round:
            margins = booster.predict(data, output_margin=True, iteration_range=(0, round))
            scores = margins.reshape(len(labels), -1).astype(np.float64)
        g, h = loss.gradients(scores, labels)
        for score in range(loss.n_scores):
            gradients = Gradients.of(g[:, score], h[:, score])
            tree, _ = grow(gradients, source, parameters)
            at = rows_of_nodes(tree, source, len(labels))

            def tied(node, split, tree=tree, gradients=gradients, at=at):
                """Whether xgboost's split gains exactly as much as ours, in whole numbers over a power of two."""
                (side,) = source.left([(split, at[node])])
                totals = np.array(tree.totals[node])
                left = np.array([gradients.g[at[node][side]].sum(), gradients.h[at[node][side]].sum()])
                gain, other, whole = (parameters.gains(gradients.reals(each)) for each in (left, totals - left, totals))
                return gain + other - whole == tree.gains[node]

            out.add(tree, Theirs(model[round * loss.n_scores + score], gaps), tied)
    return out


def rows_of_nodes(tree, source, n_rows):
    at = {0: np.arange(n_rows)}
    for node, split in enumerate(tree.splits):
        if split is not None:
            (side,) = source.left([(split, at[node])])
            at |= dict(zip(tree.children[node], (at[node][side], at[node][~side]), strict=True))
    return at


def generated(n_rows, seed, *, missing=0.0):
    random = np.random.default_rng(seed)
    x = random.normal(size=(n_rows, 8))
    x[:, 3] = np.round(x[:, 3])
    x[:, 4] = x[:, 4] > 1
    score = x[:, 0] * x[:, 1] + np.sin(2 * x[:, 2]) + x[:, 3] / 2 + random.normal(size=n_rows)
    x[random.random(x.shape) < missing * np.arange(8) / 8] = np.nan
    table = Table.of({"id": np.arange(n_rows), **{f"x{i}": x[:, i] for i in range(8)}})
    return Bins.learned(table, np.arange(n_rows), max_bin=32).encode(table), score


@pytest.mark.parametrize("missing", [0.0, 0.4])
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_trees_are_those_of_xgboost(objective, missing):
    bins, score = generated(4000, 1, missing=missing)
    labels = {"binary:logistic": score > 0, "reg:squarederror": score, "count:poisson": np.floor(np.exp(score / 2))}
    found = compared(bins, labels[objective].astype(np.float64), objective, 4, TreeParameters(max_depth=5))
    assert found.equal > 100
    assert found.share >= 0.999


@pytest.mark.parametrize(
    "changes",
    [
        {"reg_alpha": 2.0, "reg_lambda": 0.5},
        {"gamma": 3.0, "min_child_weight": 5.0},
        {"grow_policy": "lossguide", "max_leaves": 12, "max_depth": 0},
        {"max_leaves": 9},
        {"eta": 0.05, "min_child_weight": 0.0},
    ],
    ids=str,
)
def test_every_parameter_means_what_it_means_to_xgboost(changes):
    bins, score = generated(4000, 2, missing=0.3)
    parameters = replace(TreeParameters(max_depth=5), **changes)
    found = compared(bins, (score > 0).astype(np.float64), "binary:logistic", 4, parameters)
    assert found.equal > 40
    assert found.share >= 0.999


def test_several_classes_have_the_trees_of_xgboost():
    bins, score = generated(4000, 3)
    labels = np.digitize(score, [-1, 1]).astype(np.float64)
    found = compared(bins, labels, "multi:softprob", 3, TreeParameters(max_depth=4), n_classes=3)
    assert found.equal > 100
    assert found.share >= 0.999


def test_a_column_that_comes_twice_is_a_tie_that_the_first_one_wins():
    bins, score = generated(2000, 4)
    twice = BinMatrix(bins.columns + bins.columns, np.hstack([bins.codes, bins.codes]))
    found = compared(twice, (score > 0).astype(np.float64), "binary:logistic", 2, TreeParameters(max_depth=4))
    assert found.share == 1
    assert found.tied == 0


def test_a_comparison_notices_trees_on_other_bins():
    bins, score = generated(2000, 4)
    moved = BinMatrix(bins.columns, np.where(bins.codes > 3, bins.codes - 1, bins.codes).astype(np.uint8))
    labels = (score > 0).astype(np.float64)
    found = compared(bins, labels, "binary:logistic", 2, TreeParameters(max_depth=4), grown_on=moved)
    assert found.different > 10
    assert found.share < 0.9


needs_folder = pytest.mark.skipif(not os.environ.get("COLONNADE_DATA"), reason="COLONNADE_DATA is not set")


def real(file, label, dropped, max_bin):
    """The bins and classes of a data set; levels of categorical columns as if they were numbers.

    xgboost puts levels in another order than ours, so as levels they are compared with a plain search instead.
    """
    import pyarrow.parquet as pq

    arrow = pq.read_table(Path(os.environ["COLONNADE_DATA"]) / file)
    labels = np.unique(arrow.column(label).to_numpy(), return_inverse=True)[1].astype(np.float64)
    table = Table.of(arrow.drop_columns([label, *dropped]), ids=None)
    encoded = Bins.learned(table, np.arange(len(table)), max_bin=max_bin).encode(table)
    return BinMatrix(tuple(Column(each.n_bins, each.missing) for each in encoded.columns), encoded.codes), labels


FILES = [
    ("credit_default.parquet", "default_next_month", ["ID"]),
    ("bank_marketing.parquet", "y", []),
    ("adult.parquet", "income", ["split"]),
]


@needs_folder
@pytest.mark.slow
@pytest.mark.parametrize("max_bin", [32, 255])
@pytest.mark.parametrize(("file", "label", "dropped"), FILES, ids=[file for file, *_ in FILES])
def test_trees_on_real_data_are_those_of_xgboost(file, label, dropped, max_bin):
    bins, labels = real(file, label, dropped, max_bin)
    found = compared(bins, labels, "binary:logistic", 20, TreeParameters(max_depth=5))
    assert found.equal > 500
    assert found.share >= 0.999


@needs_folder
@pytest.mark.slow
def test_trees_of_seven_classes_on_real_data_are_those_of_xgboost():
    bins, labels = real("covtype.parquet", "Cover_Type", [], 32)
    found = compared(bins, labels, "multi:softprob", 2, TreeParameters(max_depth=5), n_classes=7)
    assert found.equal > 300
    assert found.share >= 0.999


@needs_folder
@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize(("file", "label", "dropped"), FILES, ids=[file for file, *_ in FILES])
def test_a_forest_from_its_own_scores_predicts_as_well_as_that_of_xgboost(file, label, dropped, seed):
    from sklearn.metrics import roc_auc_score

    bins, labels = real(file, label, dropped, 32)
    held = np.random.default_rng(seed).random(len(labels)) < 0.3
    train, parameters, loss = np.flatnonzero(~held), TreeParameters(max_depth=5), Logistic()
    source, scores = PlainSums(bins), np.zeros((len(labels), 1))
    for _ in range(50):
        g, h = loss.gradients(scores, labels)
        g[held], h[held] = 0, 0
        tree, _ = grow(Gradients.of(g[:, 0], h[:, 0]), source, parameters, rows=train)
        scores[:, 0] += np.array(tree.values)[tree.leaves(source, len(labels))]
    codes = fed(bins)
    given = {"objective": "binary:logistic", "tree_method": "hist", "max_bin": 256, "nthread": 1, "base_score": 0.5}
    booster = xgboost.train(
        given | {"max_depth": 5}, xgboost.DMatrix(codes[train], label=labels[train]), num_boost_round=50
    )
    theirs = booster.predict(xgboost.DMatrix(codes[held]))
    assert roc_auc_score(labels[held], scores[held, 0]) == pytest.approx(roc_auc_score(labels[held], theirs), abs=1e-4)
