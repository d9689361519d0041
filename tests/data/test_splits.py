from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from scipy.stats import spearmanr

from colonnade.data import load
from colonnade.data.datasets import Dataset
from colonnade.data.partition import split
from colonnade.data.ranking import column_scores
from colonnade.data.splits import (
    at_random,
    by_correlation,
    by_importance,
    cut_columns,
    deal,
    estimated_alpha,
    natural,
    parse,
)
from colonnade.errors import DataError, PlanError
from colonnade.tables.table import Table

WAYS = ("natural", "random", "importance=0.05", "importance=50", "correlation=0", "correlation=0.5", "correlation=1")


def dataset(n_columns: int = 12, parties: tuple[str, ...] = ("bank", "shop"), n: int = 200) -> Dataset:
    """Columns that mix three hidden ones; the first column decides the label."""
    random = np.random.default_rng(0)
    mixed = random.standard_normal((n, 3)) @ random.standard_normal((3, n_columns))
    values = {f"c{i}": mixed[:, i] + 0.6 * random.standard_normal(n) for i in range(n_columns)}
    table = Table.of({"id": np.arange(n), "y": (values["c0"] > 0).astype(int), **values}, labels="y")
    held = {party: list(values)[place :: len(parties)] for place, party in enumerate(parties)}
    return Dataset("made", split(table, held, labels=parties[0]), "binary", "none")


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("seed", [0, 1])
def test_every_column_goes_to_one_party_and_no_party_is_without(how, seed):
    whole = dataset(parties=("bank", "shop", "telco"))
    cut = cut_columns(whole, how, seed=seed, by="random")
    assert sorted(name for names in cut.columns.values() for name in names) == sorted(whole.joined().columns)
    assert all(cut.columns[party] for party in whole.tables)
    assert {party: table.columns for party, table in cut.tables.items()} == cut.columns
    assert [party for party, table in cut.tables.items() if table.labels is not None] == ["bank"]


@pytest.mark.parametrize("how", ["random", "importance=1", "correlation=0.5"])
def test_a_split_follows_from_its_seed(how):
    first, again, other = (cut_columns(dataset(), how, seed=seed, by="random").columns for seed in (3, 3, 4))
    assert first == again != other


def test_importance_is_that_of_a_partys_columns():
    cut = natural(dataset(), by="mutual-information")
    assert "c0" in cut.columns["bank"]
    assert cut.importance["bank"] > 0.55
    assert sum(cut.importance.values()) == pytest.approx(1)


def test_a_large_alpha_balances_importance_and_a_small_one_gives_one_party_nearly_all():
    largest = {
        alpha: [
            max(by_importance(dataset(), alpha=alpha, seed=seed, by="random").importance.values()) for seed in range(10)
        ]
        for alpha in (0.01, 1e6)
    }
    assert max(largest[1e6]) < 0.55
    assert np.mean(largest[0.01]) > 0.9


@pytest.mark.parametrize("alpha", [0.5, 2.0, 20.0])
def test_alpha_is_estimated_from_splits_that_were_made_with_it(alpha):
    random, shares = np.random.default_rng(0), []
    for _ in range(200):
        weights = random.exponential(size=30)
        owners = deal(weights, random.dirichlet([alpha] * 3))
        shares.append(np.bincount(owners, weights) / weights.sum())
    assert estimated_alpha(shares) == pytest.approx(alpha, rel=0.2)


def test_equal_shares_have_the_largest_alpha_and_one_partys_all_has_the_smallest():
    assert estimated_alpha([(0.5, 0.5)]) == 1e6
    assert estimated_alpha([(1.0, 0.0)]) < 0.05


def test_correlation_between_parties_grows_with_beta_and_beta_is_found_again():
    cuts = {beta: by_correlation(dataset(), beta=beta, by="random") for beta in (0.0, 0.25, 0.5, 0.75, 1.0)}
    found = [cut.correlation for cut in cuts.values()]
    assert found == sorted(found)
    assert found[-1] > found[0] + 0.2
    for beta, cut in cuts.items():
        assert cut.beta == pytest.approx(beta, abs=0.05)


def slow_correlation(columns: dict[str, tuple[str, ...]], table: Table) -> float:
    """The published formula, term by term."""

    def related(one, other):
        matrix = np.array(
            [[spearmanr(table.column(a), table.column(b)).statistic for b in columns[other]] for a in columns[one]]
        )
        values = np.linalg.svd(matrix)[1]
        d = len(values)
        return np.sqrt(sum((value - values.mean()) ** 2 for value in values) / (d - 1)) / np.sqrt(d)

    pairs = [(i, j) for i in columns for j in columns if i != j]
    return sum(related(i, j) - related(i, i) for i, j in pairs) / len(pairs)


def test_the_search_ends_where_looking_at_every_split_does_and_measures_what_was_published():
    whole = dataset(6, n=60)
    table = whole.joined()
    every = []
    for held in combinations(table.columns, 3):
        columns = {"bank": held, "shop": tuple(name for name in table.columns if name not in held)}
        every.append(slow_correlation(columns, table))
    ends = [by_correlation(whole, beta=beta, by="random") for beta in (0, 1)]
    assert [cut.correlation for cut in ends] == pytest.approx([min(every), max(every)])
    uneven = at_random(dataset(7, n=60), seed=1, by="random")
    assert uneven.correlation == pytest.approx(slow_correlation(uneven.columns, uneven.table))


def test_a_constant_column_is_related_to_nothing():
    table = Table.of({"id": range(5), "y": [0, 1, 0, 1, 0], **{f"c{i}": [1.0] * 5 for i in range(4)}}, labels="y")
    whole = Dataset("flat", split(table, {"bank": ["c0", "c1"], "shop": ["c2", "c3"]}, labels="bank"), "binary", "")
    assert natural(whole).correlation == 0
    assert natural(whole).beta == 0


def test_counts_are_no_classes_to_the_importance_of_columns():
    counts = dataset()
    table = counts.joined()
    table = table.with_labels(np.rint(8 * np.abs(np.asarray(table.to_arrow()["c3"]))).astype(int))
    counts = Dataset("counts", split(table, counts.columns, labels="bank"), "count", "none")
    scores = column_scores(table, by="mutual-information", task="regression")
    shop = sum(scores[name] for name in counts.columns["shop"]) / sum(scores.values())
    assert natural(counts, by="mutual-information").importance["shop"] == pytest.approx(shop, abs=0.01)
    weights = np.array(list(scores.values()))
    owners = deal(np.maximum(weights, weights.mean() / 1000), np.random.default_rng(2).dirichlet(np.ones(2)))
    dealt = by_importance(counts, alpha=1.0, by="mutual-information", seed=2)
    assert dealt.columns["bank"] == tuple(np.array(table.columns)[owners == 0].tolist())


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("importance", r"importance=ALPHA or correlation=BETA, such as importance=0.5, but 'importance' was given"),
        ("random=3", r"but 'random=3' was given"),
        ("corelation=1", r"The nearest name is 'correlation'"),
        ("importance=much", r"but 'importance=much' was given"),
        ("importance=0", r"alpha should lie between 0.001 and 1e\+06, but is 0. Change it"),
        ("correlation=2", r"beta should lie between 0 and 1, but is 2. Change it"),
        ("correlation=nan", r"beta should lie between 0 and 1, but is nan. Change it"),
    ],
)
def test_a_split_that_is_none_is_refused(how, words):
    with pytest.raises(PlanError, match=words):
        parse(how)
    with pytest.raises(PlanError, match=words):
        cut_columns(dataset(), how)


@pytest.mark.parametrize(
    ("cut", "words"),
    [
        (lambda: by_importance(dataset(), alpha=0), "alpha should lie"),
        (lambda: by_correlation(dataset(), beta=2), "beta"),
    ],
)
def test_a_parameter_of_a_split_out_of_range_is_refused(cut, words):
    with pytest.raises(PlanError, match=words):
        cut()


def test_a_set_without_enough_columns_or_without_labels_is_refused():
    narrow = dict(dataset(2).tables)
    narrow |= {"telco": narrow["shop"].select([])}
    with pytest.raises(DataError, match="Each of 3 parties should get a column, but the set 'made' has 2"):
        cut_columns(Dataset("made", narrow, "binary", ""), "random")
    bare = {party: table.without_labels() for party, table in load("digits", rows=20).tables.items()}
    with pytest.raises(DataError, match=r"the set 'digits' has no labels\. Choose another set"):
        natural(Dataset("digits", bare, "classes", ""))
