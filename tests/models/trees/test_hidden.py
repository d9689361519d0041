"""Splits found on shares of sums: those of plain sums, as far as numbers of few bits tell, and nothing else opened."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from colonnade.crypto.reserves import Reserve, begin_first, begin_second, fill_first, fill_second
from colonnade.crypto.transfers import in_turns
from colonnade.errors import CryptoError, PlanError
from colonnade.models.trees.bins import BinMatrix, Column, starts
from colonnade.models.trees.grow import Node, PlainSums, grow
from colonnade.models.trees.hidden import (
    MOST_TOTAL,
    HiddenChooser,
    HiddenShares,
    filled,
    hidden_parameters,
    n_candidates,
    needed,
    needed_for_tree,
)
from colonnade.models.trees.losses import Gradients, Logistic, Squared
from colonnade.models.trees.splits import Candidates, TreeParameters, split_gains
from tests.models.trees.sources import Joined

COLUMNS = (Column(7, True), Column(4), Column(5, True, True), Column(1), Column(3, False, True), Column(20))
OFF = 9
"""What shares of sums are off by at most (`tests/crypto/test_hinted.py`)."""


@pytest.fixture(scope="module")
def sessions():
    """Sessions of the label party with a feature party, and reserves with four of them that are filled up as needed."""
    pairs = [(Reserve(leading=True), Reserve(leading=False)) for _ in range(4)]
    return *in_turns(begin_first(), begin_second()), pairs


class SharedSource(PlainSums):
    """A feature party's sums, of which the label party gets shares that are off as those of the hinted scheme are."""

    def __init__(self, bins, seed=0):
        super().__init__(bins)
        object.__setattr__(self, "random", np.random.default_rng(seed))
        object.__setattr__(self, "found", [])

    def sums(self, gradients, nodes):
        plain, ends = super().sums(gradients, nodes), starts(self.columns)
        kept = plain[:, np.setdiff1d(np.arange(ends[-1]), ends[1:] - 1)].view(np.uint64)
        own = self.random.integers(0, 2**64, kept.shape, dtype=np.uint64)
        off = self.random.integers(-OFF, OFF, kept.shape, endpoint=True).view(np.uint64)
        self.found.append(kept - own + off)
        totals = np.array([(gradients.g[rows].sum(), gradients.h[rows].sum()) for rows in nodes]).view(np.uint64)
        return filled(own, self.columns, totals).view(np.int64)


class Parties:
    """All parties in one process, the label party with the columns up to the first cut."""

    def __init__(self, sessions, bins, cuts=(0,), depth=4, allowed=None):
        edges = [0, *cuts, len(bins.columns)]
        parts = [BinMatrix(bins.columns[a:b], np.ascontiguousarray(bins.codes[:, a:b])) for a, b in pairwise(edges)]
        self.own, self.sources = PlainSums(parts[0]), [SharedSource(part) for part in parts[1:]]
        # Whoever has no columns takes no part in the sums.
        self.source = Joined((self.own, *self.sources)) if cuts[0] else Joined(tuple(self.sources))
        self.allowed, self.words = allowed, []
        self.reserves, self.sides = [], []
        for place, source in enumerate(self.sources):
            pair = sessions[2][place]
            amount = needed_for_tree(2**depth - 1, n_candidates(source.columns), len(self.sources))
            in_turns(fill_first(sessions[0], pair[0], amount), fill_second(sessions[1], pair[1], amount))
            some = None if allowed is None else allowed[edges[place + 1] : edges[place + 2]]
            self.reserves.append(pair)
            self.sides.append(HiddenShares(source.columns, pair[1], first=place == 0, allowed=some))

    def exchange(self, turns):
        if self.sources[0].found:
            others = [side.rank(source.found.pop()) for side, source in zip(self.sides, self.sources, strict=True)]
            ended = [in_turns(self.noted(one), self.noted(two)) for one, two in zip(turns, others, strict=True)]
            self.bests = [best for _, best in ended]
            return [best for best, _ in ended]
        (turn,) = turns
        return [in_turns(self.noted(turn), self.noted(self.sides[0].decide(self.bests)))[0]]

    def noted(self, turns):
        """The same turns, with the words noted down."""
        try:
            out = next(turns)
            while True:
                self.words.append(out.copy())
                out = turns.send((yield out))
        except StopIteration as end:
            return end.value

    def chooser(self, gradients, parameters):
        ours = [one for one, _ in self.reserves]
        columns = [source.columns for source in self.sources]
        own = self.own.columns
        return HiddenChooser(own, columns, gradients, parameters, ours, self.exchange, self.allowed)


def data(n_rows, seed, columns=COLUMNS, loss=None):
    random = np.random.default_rng(seed)
    codes = np.column_stack([random.integers(0, column.width, n_rows) for column in columns]).astype(np.uint8)
    labels = codes[:, 0] * codes[:, 1] + 3 * (codes[:, 2] == 1) + 4 * random.normal(size=n_rows) > 6
    g, h = (loss or Logistic()).gradients(random.normal(size=(n_rows, 1)) / 4, labels.astype(float))
    return BinMatrix(columns, codes), Gradients.of(g[:, 0], h[:, 0], most_total=MOST_TOTAL)


@pytest.mark.parametrize("grow_policy", ["depthwise", "lossguide"])
@pytest.mark.parametrize("cuts", [[0], [2], [2, 3], [0, 1, 3, 4]], ids=str)
def test_trees_from_shares_are_the_plain_ones_with_one_to_four_feature_parties(sessions, cuts, grow_policy):
    bins, gradients = data(4000, 1)
    parameters = hidden_parameters(TreeParameters(max_depth=4, max_leaves=12, grow_policy=grow_policy))
    parties = Parties(sessions, bins, cuts, depth=5)
    tree, added = grow(gradients, parties.source, parameters, chooser=parties.chooser(gradients, parameters))
    plain, plainly = grow(gradients, PlainSums(bins), parameters)
    assert tree == plain
    assert (added == plainly).all()
    assert tree.n_leaves > 8


def histograms(kind, seed):
    """A node's sums and totals, the rows behind them, and the gradients of all rows."""
    random = np.random.default_rng(seed)
    n_rows = int(random.integers(20, 3000))
    bins, gradients = data(n_rows, seed, loss=Squared() if kind == "squared" else None)
    if kind == "few":
        # A bin or a side of missing values that is empty gives candidates that gain the same.
        bins = BinMatrix(bins.columns, np.minimum(bins.codes, random.integers(1, 7, bins.codes.shape[1])))
    rows = np.sort(random.permutation(n_rows)[: int(random.integers(10, n_rows))])
    sums = PlainSums(bins).sums(gradients, [rows])
    totals = np.array([(gradients.g[rows].sum(), gradients.h[rows].sum())])
    return bins, gradients, rows, sums, totals


def uncertain(left, totals, gradients, rows, parameters):
    """What each candidate's gain may be off by where numbers have as few bits as the module says."""
    ridge = parameters.reg_lambda * 2.0**gradients.h_bits
    whole = totals[1] + 2 * ridge
    z = left[:, 0] - totals[0] / whole * (left[:, 1] + ridge)
    v = (left[:, 1] + ridge) * (whole - left[:, 1] - ridge)
    most = np.abs(gradients.g[rows] - totals[0] / whole * gradients.h[rows]).sum() / 2 + 2**11
    shares = 64 * (1 + abs(totals[0]) / whole)
    off_z = most * 2.0**-22 + shares
    off_v = whole**2 / 4 * 2.0**-16 + shares * whole
    with np.errstate(divide="ignore", invalid="ignore"):
        value, relative = z**2 / v, (2 * np.abs(z) * off_z + off_z**2 + most**2 * 2.0**-28) / z**2 + off_v / v
    scale = 4.0 ** (gradients.h_bits - gradients.g_bits) * 2.0**-gradients.h_bits
    return whole * value * relative * scale


CHANGES = [
    {},
    {"min_child_weight": 30.0},
    {"gamma": 1.5},
    {"reg_lambda": 0.0, "min_child_weight": 0.0},
    {"reg_lambda": 20.0},
]


@pytest.mark.parametrize("changes", CHANGES, ids=str)
@pytest.mark.parametrize("kind", ["random", "few", "squared"])
def test_the_split_is_that_of_plain_sums_unless_gains_differ_by_less_than_the_bound(sessions, kind, changes):
    parameters = replace(hidden_parameters(TreeParameters()), **changes)
    same = 0
    for seed in range(8):
        bins, gradients, rows, sums, totals = histograms(kind, seed)
        candidates = Candidates(COLUMNS, parameters.max_cat_to_onehot)
        (plain,) = candidates.best(sums, totals, gradients, parameters)
        parties = Parties(sessions, bins, depth=1)
        shares = parties.source.sums(gradients, [rows])[0]
        node = Node(0, None, 0, rows, tuple(totals[0].tolist()), shares, asked=True)
        (found,) = parties.chooser(gradients, parameters)([node])
        if found is not None and plain is not None and found.split == plain.split:
            same += 1
            continue
        lefts = candidates.lefts(sums)[0]
        gains = split_gains(lefts, totals, gradients, parameters)
        off = uncertain(lefts, totals[0], gradients, rows, parameters)
        splits = [candidates.split(number) for number in range(len(candidates))]
        least = max(parameters.gamma, parameters.min_split_gain)
        best, slack = (least, 0.0) if plain is None else (plain.gain, off[splits.index(plain.split)])
        gain, own = (
            (least, 0.0) if found is None else (gains[splits.index(found.split)], off[splits.index(found.split)])
        )
        assert gain >= best - slack - own
        same += plain is None and found is None
    assert same >= 7


def test_of_candidates_that_gain_the_same_the_first_one_wins(sessions):
    """Two copies of a column, and values that are never missing in this node."""
    columns = (Column(6, True), Column(6, True), Column(2, False, True))
    codes = np.tile(np.random.default_rng(0).integers(0, 3, 2000)[:, None], (1, 3)).astype(np.uint8)
    codes[:, 2] = codes[:, 0] > 1
    g = np.where(codes[:, 0] > 1, 0.5, -0.4) + np.random.default_rng(1).normal(size=2000)
    gradients = Gradients.of(g, np.ones(2000), most_total=MOST_TOTAL)
    bins, parameters = BinMatrix(columns, codes), hidden_parameters(TreeParameters(max_depth=3))
    parties = Parties(sessions, bins, [0, 1])
    tree, _ = grow(gradients, parties.source, parameters, chooser=parties.chooser(gradients, parameters))
    assert tree == grow(gradients, PlainSums(bins), parameters)[0]
    assert tree.splits[0].column == 0


@pytest.mark.parametrize("changes", [{"gamma": 1e9}, {"min_child_weight": 1e6}], ids=str)
def test_a_node_without_a_good_split_is_a_leaf(sessions, changes):
    bins, gradients = data(500, 3)
    parameters = replace(hidden_parameters(TreeParameters()), **changes)
    parties = Parties(sessions, bins)
    tree, _ = grow(gradients, parties.source, parameters, chooser=parties.chooser(gradients, parameters))
    assert len(tree) == 1


def test_columns_that_may_not_split_are_compared_with_nobody(sessions):
    bins, gradients = data(2000, 4)
    allowed = np.array([True, False, False, True, False, False])
    parameters = hidden_parameters(TreeParameters(max_depth=3))
    parties = Parties(sessions, bins, [0, 1, 4], allowed=allowed)
    tree, _ = grow(gradients, parties.source, parameters, chooser=parties.chooser(gradients, parameters))
    assert tree == grow(gradients, PlainSums(bins), parameters, allowed=allowed)[0]
    assert tree.n_leaves > 4


def test_nothing_but_winners_is_among_the_words_that_cross(sessions):
    bins, gradients = data(3000, 5)
    parties = Parties(sessions, bins, depth=1)
    parameters = hidden_parameters(TreeParameters())
    rows = np.arange(3000)
    totals = int(gradients.g.sum()), int(gradients.h.sum())
    node = Node(0, None, 0, rows, totals, parties.source.sums(gradients, [rows])[0], asked=True)
    (choice,) = parties.chooser(gradients, parameters)([node])
    assert (
        choice.split
        == Candidates(COLUMNS, 99)
        .best(PlainSums(bins).sums(gradients, [rows]), np.array([totals]), gradients, parameters)[0]
        .split
    )
    # In the clear: that it is the root. In the end: three shares, of the winner's number and what it gains by.
    (parents, *hidden, nothing, opened) = parties.words
    assert parents.tolist() == [2**64 - 1]
    assert nothing.size + opened.size == 3
    for words in hidden:
        n_bits, ones = 64 * words.size, sum(int(word).bit_count() for word in words)
        # The last word of each row of packed numbers may not be full.
        n_bits -= sum(free for word in words if (free := 64 - int(word).bit_length()) >= 8)
        if n_bits >= 512:
            assert ones / n_bits == pytest.approx(0.5, abs=5 * 0.5 / np.sqrt(n_bits) + 64 / n_bits)
    sums = PlainSums(bins).sums(gradients, [rows]).view(np.uint64)
    assert not set(sums.ravel()) & set(np.concatenate(hidden))


def test_shares_of_the_same_winner_differ_from_time_to_time(sessions):
    bins, gradients = data(300, 6)
    rows, opened = np.arange(300), set()
    totals = int(gradients.g.sum()), int(gradients.h.sum())
    for _ in range(3):
        parties = Parties(sessions, bins, depth=1)
        node = Node(0, None, 0, rows, totals, parties.source.sums(gradients, [rows])[0], asked=True)
        parties.chooser(gradients, hidden_parameters(TreeParameters()))([node])
        opened |= set(parties.words[-1].tolist() + parties.words[-2].tolist())
    assert len(opened) == 9


@pytest.mark.parametrize("n_columns", [1, 2, 5])
def test_a_batch_of_nodes_takes_exactly_what_the_page_says(sessions, n_columns):
    columns = (Column(9, True),) * n_columns
    codes = np.random.default_rng(0).integers(0, 10, (400, n_columns)).astype(np.uint8)
    bins = BinMatrix(columns, codes)
    random = np.random.default_rng(1)
    gradients = Gradients.of(random.normal(size=400), random.random(400), most_total=MOST_TOTAL)
    parties = Parties(sessions, bins, depth=2)
    before = [reserve.left for reserve in parties.reserves[0]]
    parameters = hidden_parameters(TreeParameters(max_depth=2))
    tree, _ = grow(gradients, parties.source, parameters, chooser=parties.chooser(gradients, parameters))
    assert tree.splits[0] is not None
    count = n_candidates(columns)
    used = needed(1, count) + needed(2, count)
    assert needed_for_tree(parameters.most_nodes, count) == used
    for was, reserve in zip(before, parties.reserves[0], strict=True):
        assert reserve.left + used == was


def test_what_cannot_be_compared_without_a_division_is_refused():
    for name, value in (("reg_alpha", 0.5), ("max_delta_step", 0.7)):
        with pytest.raises(PlanError, match=f"Hidden sums require {name} = 0, but {name} is {value}"):
            hidden_parameters(TreeParameters(**{name: value}))


def test_a_faulty_label_party_is_noticed(sessions):
    reserve = sessions[2][0][1]
    found = np.zeros((1, int(starts(COLUMNS)[-1]) - len(COLUMNS), 2), np.uint64)
    for sent, words in (
        ([2**64 - 1] * 2, "the parents of 1 nodes"),
        ([4], "a node of the tree as a parent, got number 4"),
    ):
        turns = HiddenShares(COLUMNS, reserve).rank(found)
        next(turns)
        with pytest.raises(CryptoError, match=words):
            turns.send(np.array(sent, np.uint64))
