"""Trees against xgboost's, node by node, on the same bins and from xgboost's own scores."""

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.trees_equality import OBJECTIVES, auc_off, compared
from colonnade.models.trees.bins import BinMatrix, Bins, Column
from colonnade.models.trees.losses import Poisson
from colonnade.models.trees.splits import TreeParameters
from colonnade.tables.table import Table

pytest.importorskip("xgboost")

SLICES = Path(__file__).parents[2] / "data" / "slices"


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


def test_counts_without_a_bound_on_leaves_have_the_trees_of_xgboost(monkeypatch):
    monkeypatch.setitem(OBJECTIVES, "count:poisson", Poisson(max_delta_step=0.0))
    bins, score = generated(4000, 1)
    # Without a bound, a step of the usual size goes from a score of log(0.5) to one of 15.
    parameters = TreeParameters(max_depth=5, eta=0.05)
    found = compared(bins, np.floor(np.exp(score / 2)), "count:poisson", 4, parameters)
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


def test_a_child_exactly_at_its_least_weight_counts_as_a_tie_and_one_above_it_does_not():
    """Squared loss: a hessian is 1, so that a child's weight is its number of rows."""
    codes = np.repeat(np.arange(4), [3, 5, 40, 52]).astype(np.uint8)[:, None]
    bins, labels = BinMatrix((Column(4),), codes), np.where(codes[:, 0] == 0, 9.0, codes[:, 0] == 3)
    # xgboost is told that a child needs a little more than three rows, or four.
    for least, tied in ((3.0, 1), (2.0, 0)):
        found = compared(
            bins,
            labels,
            "reg:squarederror",
            1,
            TreeParameters(max_depth=1, min_child_weight=least),
            theirs={"min_child_weight": least + 1.5},
        )
        assert (found.tied, found.different > 0) == (tied, not tied)


def test_a_comparison_notices_trees_on_other_bins():
    bins, score = generated(2000, 4)
    moved = BinMatrix(bins.columns, np.where(bins.codes > 3, bins.codes - 1, bins.codes).astype(np.uint8))
    labels = (score > 0).astype(np.float64)
    found = compared(bins, labels, "binary:logistic", 2, TreeParameters(max_depth=4), grown_on=moved)
    assert found.different > 10
    assert found.share < 0.9


def fewest(nodes):
    """How many nodes should be compared: of whole data sets so many, of slices a tenth."""
    return nodes if os.environ.get("COLONNADE_DATA") else nodes // 10


def real(file, label, dropped, max_bin):
    """The bins and classes of a data set, or of its slice; levels of categorical columns as if they were numbers.

    xgboost puts levels in another order than ours, so as levels they are compared with a plain search instead.
    """
    import pyarrow.parquet as pq

    arrow = pq.read_table(Path(os.environ.get("COLONNADE_DATA") or SLICES) / file)
    labels = np.unique(arrow.column(label).to_numpy(), return_inverse=True)[1].astype(np.float64)
    table = Table.of(arrow.drop_columns([label, *dropped]), ids=None)
    encoded = Bins.learned(table, np.arange(len(table)), max_bin=max_bin).encode(table)
    return BinMatrix(tuple(Column(each.n_bins, each.missing) for each in encoded.columns), encoded.codes), labels


FILES = [
    ("credit_default.parquet", "default_next_month", ["ID"]),
    ("bank_marketing.parquet", "y", []),
    ("adult.parquet", "income", ["split"]),
]


@pytest.mark.slow
@pytest.mark.parametrize("max_bin", [32, 255])
@pytest.mark.parametrize(("file", "label", "dropped"), FILES, ids=[file for file, *_ in FILES])
def test_trees_on_real_data_are_those_of_xgboost(file, label, dropped, max_bin):
    bins, labels = real(file, label, dropped, max_bin)
    found = compared(bins, labels, "binary:logistic", 20, TreeParameters(max_depth=5))
    assert found.equal > fewest(500)
    assert found.share >= 0.999


@pytest.mark.slow
def test_trees_of_seven_classes_on_real_data_are_those_of_xgboost():
    bins, labels = real("covtype.parquet", "Cover_Type", [], 32)
    found = compared(bins, labels, "multi:softprob", 2, TreeParameters(max_depth=5), n_classes=7)
    assert found.equal > fewest(300)
    assert found.share >= 0.999


@pytest.mark.skipif(
    not os.environ.get("COLONNADE_DATA"), reason="two rows of a slice move the area by more than the bound"
)
@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize(("file", "label", "dropped"), FILES, ids=[file for file, *_ in FILES])
def test_a_forest_from_its_own_scores_predicts_as_well_as_that_of_xgboost(file, label, dropped, seed):
    bins, labels = real(file, label, dropped, 32)
    held = np.random.default_rng(seed).random(len(labels)) < 0.3
    assert abs(auc_off(bins, labels, held, "binary:logistic", 50, TreeParameters(max_depth=5))[0]) <= 1e-4
