"""Growth: against a slow search that follows the definitions, over several sources, and at the edges."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from colonnade.errors import PlanError
from colonnade.models.trees.bins import BinMatrix, Column
from colonnade.models.trees.grow import PlainSums, grow
from colonnade.models.trees.losses import Gradients
from colonnade.models.trees.splits import Candidates, Split, TreeParameters
from tests.models.trees.sources import Joined

MIXED = (Column(5), Column(4, True), Column(3, False, True), Column(6, True, True), Column(2, True, True), Column(1))


def matrix(columns, n_rows, seed):
    random = np.random.default_rng(seed)
    codes = np.column_stack([random.integers(0, column.width, n_rows) for column in columns]).astype(np.uint8)
    return BinMatrix(columns, codes)


def some_gradients(n_rows, seed):
    random = np.random.default_rng(seed + 1000)
    return Gradients.of(random.normal(size=n_rows), random.random(n_rows))


def searched(bins, gradients, rows, parameters, *, order):
    """The best split of a node by trying every one of them; levels in the order that is given."""
    best = (parameters.min_split_gain, None)
    g, h = np.ldexp(gradients.g[rows], -gradients.g_bits), np.ldexp(gradients.h[rows], -gradients.h_bits)

    def gain(some):
        moved = np.sign(g[some].sum()) * max(abs(g[some].sum()) - parameters.reg_alpha, 0)
        return moved**2 / (h[some].sum() + parameters.reg_lambda) if some.any() else 0.0

    for number, column in enumerate(bins.columns):
        codes = bins.codes[rows, number]
        levels = order(codes, column, g, h) if column.categorical else list(range(column.n_bins))
        one = column.categorical and column.n_bins < parameters.max_cat_to_onehot
        sets = [[level] for level in levels] if one else [levels[: end + 1] for end in range(len(levels))]
        for missing_left in (False, True) if column.missing else (False,):
            for chosen in reversed(sets) if missing_left else sets:
                left = np.isin(codes, chosen) | (missing_left & (codes == column.n_bins))
                if min(h[left].sum(), h[~left].sum()) < parameters.min_child_weight or left.all() or not left.any():
                    continue
                found = gain(left) + gain(~left) - gain(np.ones(len(rows), bool))
                if found > best[0] + 1e-12 and found >= parameters.gamma:
                    split = Split(number, -1, tuple(sorted(chosen)), missing_left)
                    best = (found, split if column.categorical else Split(number, chosen[-1], None, missing_left))
    return best[1]


def by_ratio(codes, column, g, h):
    ratios = [g[codes == level].sum() / (h[codes == level].sum() + 1.0) for level in range(column.n_bins)]
    return sorted(range(column.n_bins), key=lambda level: (ratios[level], level))


def same_partition(bins, rows, one, other):
    sides = [PlainSums(bins).left([(split, rows)])[0] for split in (one, other)]
    return (sides[0] == sides[1]).all() or (sides[0] == ~sides[1]).all()


@pytest.mark.parametrize("changes", [{}, {"reg_alpha": 0.5}, {"min_child_weight": 8.0}, {"gamma": 0.7}], ids=str)
@pytest.mark.parametrize("seed", range(4))
def test_every_split_is_the_one_that_a_slow_search_finds(seed, changes):
    bins, gradients = matrix(MIXED, 120, seed), some_gradients(120, seed)
    parameters = replace(TreeParameters(max_depth=3, reg_lambda=1.0), **changes)
    tree, _ = grow(gradients, PlainSums(bins), parameters)
    at = {0: np.arange(120)}
    for node, split in enumerate(tree.splits):
        wanted = searched(bins, gradients, at[node], parameters, order=by_ratio)
        if split is not None:
            # A level on the left and all others on the right may be told either way round.
            assert split == wanted or same_partition(bins, at[node], split, wanted)
            (side,) = PlainSums(bins).left([(split, at[node])])
            at |= dict(zip(tree.children[node], (at[node][side], at[node][~side]), strict=True))
    assert tree.n_leaves > 3


def test_a_node_without_a_split_has_none_that_is_good_enough():
    bins, gradients = matrix(MIXED, 60, 7), some_gradients(60, 7)
    parameters = TreeParameters(max_depth=6, min_child_weight=4.0)
    tree, _ = grow(gradients, PlainSums(bins), parameters)
    leaves = tree.leaves(PlainSums(bins), 60)
    for node in set(leaves):
        assert searched(bins, gradients, np.flatnonzero(leaves == node), parameters, order=by_ratio) is None


@pytest.mark.parametrize("grow_policy", ["depthwise", "lossguide"])
@pytest.mark.parametrize("cuts", [[3], [1, 2], [0, 3], [1, 2, 3, 4]], ids=str)
def test_columns_of_several_sources_grow_the_tree_of_one(cuts, grow_policy):
    bins, gradients = matrix(MIXED, 500, 3), some_gradients(500, 3)
    parameters = TreeParameters(max_depth=5, max_leaves=20, grow_policy=grow_policy)
    edges = [0, *cuts, len(MIXED)]
    parts = [PlainSums(BinMatrix(MIXED[a:b], np.ascontiguousarray(bins.codes[:, a:b]))) for a, b in pairwise(edges)]
    whole, added = grow(gradients, PlainSums(bins), parameters)
    apart, also = grow(gradients, Joined(tuple(parts)), parameters)
    assert whole == apart
    assert (added == also).all()
    assert whole.n_leaves > 10


def test_totals_values_and_leaves_belong_to_the_rows_that_reach_them():
    bins, gradients = matrix(MIXED, 400, 5), some_gradients(400, 5)
    tree, added = grow(gradients, PlainSums(bins), TreeParameters(max_depth=4, eta=0.1, reg_lambda=2.0))
    leaves = tree.leaves(PlainSums(bins), 400)
    for node in range(len(tree)):
        rows = leaves == node
        if tree.splits[node] is None:
            assert tree.totals[node] == (gradients.g[rows].sum(), gradients.h[rows].sum())
            g, h = np.ldexp(tree.totals[node][0], -gradients.g_bits), np.ldexp(tree.totals[node][1], -gradients.h_bits)
            assert tree.values[node] == pytest.approx(-0.1 * g / (h + 2.0))
            assert (added[rows] == tree.values[node]).all()
        else:
            assert not rows.any()


def test_rows_that_are_left_out_change_nothing_and_get_nothing():
    bins, gradients = matrix(MIXED, 300, 6), some_gradients(300, 6)
    rows = np.arange(0, 300, 2)
    tree, added = grow(gradients, PlainSums(bins), TreeParameters(), rows=rows)
    few = BinMatrix(MIXED, bins.codes[rows])
    alone, _ = grow(replace(gradients, g=gradients.g[rows], h=gradients.h[rows]), PlainSums(few), TreeParameters())
    assert tree == alone
    assert (added[1::2] == 0).all()


def test_columns_that_are_not_allowed_never_split():
    bins, gradients = matrix(MIXED, 300, 8), some_gradients(300, 8)
    allowed = np.array([True, False, False, True, False, True])
    tree, _ = grow(gradients, PlainSums(bins), TreeParameters(), allowed=allowed)
    used = {split.column for split in tree.splits if split is not None}
    assert used == {0, 3}


def test_of_equal_gains_the_lowest_column_and_bin_and_missing_to_the_right_win():
    columns = (Column(3, True), Column(3, True))
    codes = np.array([[0, 0], [0, 0], [1, 1], [2, 2], [2, 2]], np.uint8)
    gradients = Gradients.of(np.array([1.0, 1, 0, -1, -1]), np.ones(5))
    tree, _ = grow(gradients, PlainSums(BinMatrix(columns, codes)), TreeParameters(max_depth=1))
    # The middle row may go either way, the columns are the same, and nothing is missing.
    assert tree.splits[0] == Split(0, 0, None, missing_left=False)


def test_leaf_wise_growth_splits_what_gains_most_first():
    bins, gradients = matrix(MIXED, 500, 9), some_gradients(500, 9)
    parameters = TreeParameters(max_depth=0, max_leaves=8, grow_policy="lossguide")
    tree, _ = grow(gradients, PlainSums(bins), parameters)
    assert tree.n_leaves == 8
    # Grown to fewer leaves it is the same tree, with its later splits undone.
    fewer, _ = grow(gradients, PlainSums(bins), replace(parameters, max_leaves=5))
    assert [split for split in fewer.splits if split] == [
        split for node, split in enumerate(tree.splits) if split and tree.children[node][1] < len(fewer)
    ]


@pytest.mark.parametrize(
    "columns",
    [(), (Column(1),), (Column(1, True),)],
    ids=["no column", "a constant column", "a constant column with missing values"],
)
def test_columns_that_cannot_split_give_one_leaf(columns):
    codes = np.zeros((50, len(columns)), np.uint8)
    tree, added = grow(some_gradients(50, 0), PlainSums(BinMatrix(columns, codes)), TreeParameters())
    assert len(tree) == 1
    assert (added == tree.values[0]).all()


def test_fewer_rows_than_min_child_weight_give_one_leaf_of_weight_zero():
    bins = matrix(MIXED, 3, 0)
    tree, _ = grow(some_gradients(3, 0), PlainSums(bins), TreeParameters(min_child_weight=10.0))
    assert len(tree) == 1
    assert tree.values == [0.0]


def test_the_largest_weight_of_a_leaf_is_kept():
    bins, gradients = matrix(MIXED, 200, 1), some_gradients(200, 1)
    tree, _ = grow(gradients, PlainSums(bins), TreeParameters(eta=1.0, max_delta_step=0.05))
    assert max(map(abs, tree.values)) == 0.05


def test_one_level_against_the_others_is_tried_once_where_there_are_two_levels():
    table = Candidates((Column(2, False, True), Column(3, False, True)))._table
    assert table.tolist() == [[0, 0, 0, 1], [1, 2, 0, 1], [1, 3, 0, 1], [1, 4, 0, 1]]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"reg_lambda": -1.0}, "reg_lambda should be at least 0, but is -1.0"),
        ({"eta": float("nan")}, "eta should be at least 0, but is nan"),
        ({"grow_policy": "wide"}, "grow_policy should be 'depthwise' or 'lossguide', but is 'wide'"),
        ({"max_depth": 0}, "max_depth and max_leaves are both 0, so a tree would have no bound"),
    ],
)
def test_parameters_out_of_range_are_refused(changes, message):
    with pytest.raises(PlanError, match=message):
        TreeParameters(**changes)
