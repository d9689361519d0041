"""What a label party reads out of a forest's sums and sides of rows, on columns that win and that never do."""

from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import pytest

from colonnade.attacks.base import Grant
from colonnade.attacks.columns.bins import guessed
from colonnade.attacks.columns.narrowing import SplitNarrowing, possible_bins
from colonnade.attacks.columns.relinking import RelinkedSums, relinked
from colonnade.attacks.columns.sums import BoxedSums, Equations, LinearSums, on_simplex
from colonnade.auditing import audit
from colonnade.auditing.render.words import knowledge
from colonnade.models.base import Estimator
from colonnade.models.trees.bins import BinMatrix, Bins, Column, quantile_cuts, starts
from colonnade.models.trees.estimator import SecureBoostClassifier
from colonnade.models.trees.grow import PlainSums, grow
from colonnade.models.trees.losses import Gradients, Logistic
from colonnade.models.trees.record import ForestRecord, SeenTree, Sides
from colonnade.models.trees.splits import TreeParameters
from colonnade.roles import Roles
from colonnade.runtime.simulate import simulate
from colonnade.secret import Secret
from colonnade.tables.table import Table
from colonnade.wire.message import Int64Array, Message

BINS, USED = 32, 10
CHANCE = 1 / BINS


class NoisySums(PlainSums):
    """Sums with noise of a given deviation in their units."""

    def __init__(self, bins, deviation):
        super().__init__(bins)
        object.__setattr__(self, "deviation", deviation)
        object.__setattr__(self, "random", np.random.default_rng(7))

    def sums(self, gradients, nodes):
        plain = super().sums(gradients, nodes)
        return plain + np.rint(self.random.normal(0, self.deviation, plain.shape)).astype(np.int64)


class WatchedSums:
    """A feature party's source of sums, with what comes from it noted down in the record's last tree."""

    def __init__(self, source, owner, record, hidden):
        self.source, self.owner, self.record, self.hidden, self.columns = source, owner, record, hidden, source.columns

    def sums(self, gradients, nodes):
        found = self.source.sums(gradients, nodes)
        if not self.hidden:
            tree = self.record.trees[-1]
            tree.nodes += nodes
            tree.sums.setdefault(self.owner, []).extend(found)
        return found

    def left(self, asked):
        found = self.source.left(asked)
        sides = [Sides(split, rows, side) for (split, rows), side in zip(asked, found, strict=True)]
        self.record.trees[-1].sides.setdefault(self.owner, []).extend(sides)
        return found


def grown(n_rows, n_trees, *, unused=4, hidden=False, noise=0.0):
    """A forest on ten columns, and some more whose sums are told but that no split may use: the record and all bins."""
    from sklearn.datasets import make_classification

    x, labels = make_classification(n_rows, USED, n_informative=6, flip_y=0.1, random_state=1)
    codes = [np.searchsorted(quantile_cuts(column, BINS), column, side="right") for column in x.T]
    never = np.random.default_rng(0).integers(0, BINS, (unused, n_rows)).T
    bins = BinMatrix((Column(BINS),) * (USED + unused), np.column_stack([*codes, never]).astype(np.uint8))
    scores, allowed = np.zeros((n_rows, 1)), np.arange(USED + unused) < USED
    record = ForestRecord(n_rows, {"shop": bins.columns})
    source = WatchedSums(NoisySums(bins, noise) if noise else PlainSums(bins), "shop", record, hidden)
    for _ in range(n_trees):
        g, h = Logistic().gradients(scores, labels.astype(float))
        # Whole units of 2^-15, so that deviations are told in units of gradients.
        gradients = Gradients(*(np.rint(np.ldexp(each[:, 0], 15)).astype(np.int64) for each in (g, h)), 15, 15)
        record.trees.append(SeenTree(gradients, noise={"shop": (noise, noise)}))
        scores[:, 0] += grow(gradients, source, TreeParameters(max_depth=5), allowed=allowed)[1]
    return record, bins.codes


def first(record, n_trees):
    return replace(record, trees=record.trees[:n_trees])


def exact(attack, record, codes, columns):
    """How many bins an attack names, averaged over columns."""
    likely = attack.likely(record, "shop", columns)
    pairs = zip(likely, columns, strict=True)
    return float(np.mean([(each.argmax(axis=1) == codes[:, column]).mean() for each, column in pairs]))


@pytest.fixture(scope="module")
def small():
    return grown(500, 30)


@pytest.mark.parametrize(
    ("n_trees", "linear", "boxed"), [(5, 0.378, 0.384), (10, 0.650, 0.742), (20, 0.974, 0.994), (30, 1.0, 1.0)]
)
def test_sums_of_columns_that_never_win_tell_their_bins_as_published(small, n_trees, linear, boxed):
    """The published shares are those of one column in 500 rows and 32 bins, trees of depth 5."""
    record = first(small[0], n_trees)
    assert not record.n_splits("shop")[USED:].any()
    assert exact(LinearSums(), record, small[1], [USED]) == pytest.approx(linear, abs=0.05)
    assert exact(BoxedSums(), record, small[1], [USED]) == pytest.approx(boxed, abs=0.05)


@pytest.mark.slow
def test_a_hundred_trees_tell_every_bin_of_five_thousand_rows_as_published():
    record, codes = grown(5000, 100, unused=1)
    published = {
        5: (0.10, 0.12),
        10: (0.18, 0.27),
        20: (0.31, 0.59),
        30: (0.40, 0.91),
        50: (0.60, 1.0),
        100: (0.89, 1.0),
    }
    for n_trees, shares in published.items():
        equations = Equations.of(first(record, n_trees), "shop", [USED], most=4000)
        possible = [np.ones((5000, BINS), np.bool_)]
        for attack, share in zip((LinearSums, BoxedSums), shares, strict=True):
            (likely,) = equations.solved(possible, attack.iterations)
            assert (likely.argmax(axis=1) == codes[:, USED]).mean() == pytest.approx(share, abs=0.05)


@pytest.mark.parametrize("attack", [LinearSums(), RelinkedSums()])
def test_a_column_is_attacked_by_the_trees_that_tell_its_sums(small, attack):
    told = np.arange(USED + 4) != USED
    record = first(small[0], 6)
    trees = [replace(tree, told={"shop": told}) if place % 2 else tree for place, tree in enumerate(record.trees)]
    alone = replace(record, trees=record.trees[::2])
    for column, expected in ((USED, alone), (USED + 1, record)):
        (found,) = attack.likely(replace(record, trees=trees), "shop", [column])
        assert (found == attack.likely(expected, "shop", [column])[0]).all()


def test_columns_that_win_are_easier(small):
    record, codes = first(small[0], 8), small[1]
    most = [int(each) for each in np.argsort(-record.n_splits("shop"))[:2]]
    assert exact(BoxedSums(), record, codes, most) > exact(BoxedSums(), record, codes, [USED, USED + 1])


@pytest.mark.slow
def test_noise_takes_what_it_is_said_to_take_and_less_is_told_the_more_there_is():
    found = []
    for noise in (0.01, 0.5, 8.0):
        record, codes = grown(300, 15, unused=1, noise=noise * 2**15)
        found.append(exact(BoxedSums(), record, codes, [USED]))
    assert found[0] > 0.8
    assert found[0] > found[1] + 0.2 > found[2] + 0.2
    assert found[2] < 0.2


@pytest.mark.parametrize("n_rows", [500, pytest.param(5000, marks=pytest.mark.slow)])
def test_with_hidden_sums_columns_that_never_win_stay_at_chance_after_a_hundred_trees(n_rows):
    record, codes = grown(n_rows, 100, hidden=True)
    assert not record.released("shop")
    left = possible_bins(record, "shop", list(range(USED + 4)))
    found = [(each.argmax(axis=1) == codes[:, column]).mean() for column, each in enumerate(left)]
    # Draws that hit one time in 32: five deviations.
    assert found[USED:] == pytest.approx([CHANCE] * 4, abs=5 * np.sqrt(CHANCE * (1 - CHANCE) / n_rows))
    assert max(found[:USED]) > 0.2


def test_sides_of_rows_never_rule_out_the_true_bin_and_leave_few_after_many_trees(small):
    record, codes = small
    most = int(np.argmax(record.n_splits("shop")))
    (possible,) = possible_bins(record, "shop", [most])
    assert possible[np.arange(500), codes[:, most]].all()
    few, many = (possible_bins(first(record, n), "shop", [most])[0].mean() for n in (2, 30))
    assert many < 0.5 < few


def test_bins_in_a_new_order_for_every_tree_are_put_back():
    record, _ = grown(2000, 6)
    random, ends = np.random.default_rng(0), starts(record.columns["shop"])
    trees = [record.trees[0]]
    for tree in record.trees[1:]:
        order = np.concatenate([first + random.permutation(end - first) for first, end in pairwise(ends)])
        trees.append(replace(tree, sums={"shop": [found[order] for found in tree.sums["shop"]]}))
    back = relinked(replace(record, trees=trees), "shop")
    linked = [
        np.mean((ours.sums["shop"][0] == theirs.sums["shop"][0]).all(axis=1))
        for ours, theirs in zip(back.trees[1:], record.trees[1:], strict=True)
    ]
    # Nine of ten from one tree to the next, where one of 32 is chance.
    assert linked[0] > 0.9
    assert linked[-1] > 0.9**5


def test_rows_of_a_simplex_are_probabilities_where_bins_are_possible():
    random = np.random.default_rng(0)
    possible = random.random((50, 6)) < 0.7
    possible[:, 0] = True
    found = on_simplex(random.normal(size=(50, 6)), possible)
    assert found.sum(axis=1) == pytest.approx(1)
    assert (found >= 0).all()
    assert not found[~possible].any()


@dataclass(frozen=True)
class Codes(Message, kind="test/codes", reveals={Secret.FEATURES}, per_row="values"):
    """A feature party's bins, in the clear."""

    values: Int64Array


class ClearForest(Estimator):
    """Trees on bins that the feature party hands over; its label party keeps a record as if it had seen sums only."""

    task = "classification"

    def __init__(self, *, trees=20, hidden=False):
        self.trees, self.hidden = trees, hidden

    def fit(self, party):
        table = party.own_table
        bins = Bins.learned(table, np.arange(len(table)), max_bin=16)
        self.bins_ = bins.state()
        if not party.holds_labels:
            party.label_party.send(Codes(bins.encode(table).codes.astype(np.int64)))
            return self
        (line,) = party.feature_parties
        codes = line.receive(Codes).values.astype(np.uint8)
        columns = tuple(Column(int(each) + 1) for each in codes.max(axis=0))
        self.forest_record = ForestRecord(len(table), {line.peer: columns})
        source = WatchedSums(PlainSums(BinMatrix(columns, codes)), line.peer, self.forest_record, self.hidden)
        scores, labels = np.zeros((len(table), 1)), np.asarray(table.labels, float)
        for _ in range(self.trees):
            g, h = Logistic().gradients(scores, labels)
            self.forest_record.trees.append(SeenTree(Gradients.of(g[:, 0], h[:, 0])))
            gradients = self.forest_record.trees[-1].gradients
            allowed = np.arange(len(columns)) < len(columns) - 1
            scores[:, 0] += grow(gradients, source, TreeParameters(max_depth=4), allowed=allowed)[1]
        return self

    def predict(self, party):
        return None

    def share(self):
        return {"bins_": self.bins_}

    def take_share(self, tree):
        self.bins_ = tree["bins_"]

    def summary(self):
        return "ClearForest"


@pytest.fixture(scope="module")
def tables():
    random = np.random.default_rng(3)
    x = random.normal(size=(300, 7))
    labels = (x[:, :6].sum(axis=1) + random.normal(size=300) > 0).astype(int)
    return {
        "bank": Table.of({"y": labels}, ids=None, labels="y", owner="bank"),
        "shop": Table.of({name: x[:, place] for place, name in enumerate("abcdefg")}, ids=None, owner="shop"),
    }


ROLES = Roles(label="bank", features=("shop",))


@pytest.mark.slow
def test_an_audit_of_a_forest_finds_what_its_sums_tell_of_columns_that_never_win(tables):
    run = simulate(ClearForest().fit, tables, roles=ROLES)
    attacks = [LinearSums(never_chosen=True), BoxedSums(never_chosen=True), SplitNarrowing(), RelinkedSums()]
    report = audit(run, attacks, nulls=3)
    found = {finding.attack: finding for finding in report.attacks}
    boxed = found["BoxedSums(never_chosen=True)"]
    assert boxed.verdict == "leaks"
    assert "'g'" in boxed.summary
    assert boxed.plain.score.value > 0.7
    kinds = " and ".join(boxed.granted.forest)
    assert knowledge(boxed) == f"what it saw of the forest in {kinds} and 50 known records"
    assert found["SplitNarrowing"].verdict == "leaks"
    assert "'g'" not in found["SplitNarrowing"].summary
    assert found["RelinkedSums"].verdict == "leaks"


def test_an_audit_says_that_hidden_sums_left_nothing_to_attack(tables):
    run = simulate(ClearForest(hidden=True).fit, tables, roles=ROLES)
    report = audit(run, [BoxedSums(), SplitNarrowing()], nulls=3)
    assert "BoxedSums by bank about shop: no sums over shop's bins were told: they were hidden" in report.untested
    assert [finding.attack for finding in report.attacks] == ["SplitNarrowing"]


@pytest.fixture(scope="module")
def held_by_two():
    """Labels that depend on the bank's columns and on one of the shop's, whose two others no split gains enough by."""
    x = np.random.default_rng(3).normal(size=(150, 7))
    own = {f"x{place}": x[:, place] for place in range(4)} | {"y": (x[:, :5].sum(axis=1) > 0).astype(int)}
    others = {name: x[:, 4 + place] for place, name in enumerate(("used", "idle", "spare"))}
    return {
        "bank": Table.of(own, ids=None, labels="y", owner="bank"),
        "shop": Table.of(others, ids=None, owner="shop"),
    }


def audited(tables, sums, attacks, n_trees=4):
    """A real run of encrypted trees, however much it leaks, and its audit."""
    model = SecureBoostClassifier(
        n_estimators=n_trees, max_depth=3, max_bin=6, gamma=2.0, learning_rate=0.15, leak_budget=None, sums=sums
    )
    run = simulate(model.set_params(keep_record=True).fit, tables, roles=ROLES)
    used, *idle = run.results["bank"].forest_record.n_splits("shop")
    assert used > 0
    assert not any(idle)
    report = audit(run, attacks, nulls=2)
    return {finding.attack: finding for finding in report.attacks}, report.untested


BOTH = [BoxedSums(never_chosen=True), SplitNarrowing(), SplitNarrowing(never_chosen=True)]


def test_exact_sums_of_a_real_run_tell_columns_that_never_win(held_by_two):
    found, untested = audited(held_by_two, "exact", BOTH, n_trees=16)
    boxed = found["BoxedSums(never_chosen=True)"]
    assert boxed.verdict == "leaks"
    assert "'idle'" in boxed.summary or "'spare'" in boxed.summary
    assert found["SplitNarrowing"].verdict == "leaks"
    assert "'used'" in found["SplitNarrowing"].summary
    assert found["SplitNarrowing(never_chosen=True)"].verdict == "no leak found"
    assert not [line for line in untested if line.startswith("bank about shop's features")]


@pytest.mark.slow
def test_hidden_sums_of_a_real_run_tell_nothing_of_columns_that_never_win(held_by_two):
    found, untested = audited(held_by_two, "hidden", BOTH)
    assert "BoxedSums(never_chosen=True) by bank about shop: no sums over shop's bins were told: they were hidden" in (
        untested
    )
    assert found["SplitNarrowing"].verdict == "leaks, nobody singled out"
    assert "'used'" in found["SplitNarrowing"].summary
    assert found["SplitNarrowing(never_chosen=True)"].verdict == "no leak found"
    assert not [line for line in untested if line.startswith("bank about shop's features")]


def test_an_attack_on_sides_alone_leaves_the_sums_unread(held_by_two):
    _, untested = audited(held_by_two, "exact", [SplitNarrowing()])
    assert "bank about shop's features, given trees/sums-answer: no attack read them" in untested


def test_where_every_column_wins_an_attack_on_the_others_guesses_their_mean():
    grant = Grant(0, np.arange(3), owner="shop", columns=("a", "b"), records=np.ones((3, 2)))
    assert guessed([], [], grant, 5).values.tolist() == [[0.0, 0.0]] * 5


def test_a_run_without_a_forest_is_told_so(tables):
    run = simulate(lambda party: None, tables, roles=ROLES)
    untested = audit(run, [BoxedSums()], nulls=1).untested
    assert "BoxedSums by bank about shop: it needs what bank saw of a forest, and this run left none" in untested


def test_a_record_comes_back_from_its_state(small, tmp_path):
    from colonnade.storage import read_tree, write_tree

    record = first(small[0], 2)
    write_tree(tmp_path / "record", record.state())
    again = ForestRecord.of(read_tree(tmp_path / "record"))
    assert again.columns == record.columns
    assert exact(BoxedSums(), again, small[1], [USED]) == exact(BoxedSums(), record, small[1], [USED])
