"""Bins: quantiles, gaps, levels, and codes that stay the same."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from colonnade.errors import DataError
from colonnade.models.trees.bins import Bins, Column, quantile_cuts, starts
from colonnade.tables.table import Table

numbers = st.floats(allow_nan=False, allow_infinity=False, width=64)


def table_of(**columns):
    return Table.of({"id": np.arange(len(next(iter(columns.values())))), **columns}, owner="shop")


def learned(table, max_bin=32):
    return Bins.learned(table, np.arange(len(table)), max_bin=max_bin)


@given(arrays(np.float64, st.integers(1, 60), elements=numbers), st.integers(2, 10))
def test_bins_keep_the_order_of_values_and_are_never_more_than_allowed_or_empty(values, max_bin):
    cuts = quantile_cuts(values, max_bin)
    codes = np.searchsorted(cuts, values, side="right")
    assert len(cuts) < max_bin
    assert (np.diff(cuts) > 0).all()
    assert set(codes) == set(range(len(cuts) + 1))
    order = np.argsort(values, kind="stable")
    assert (np.diff(codes[order]) >= 0).all()
    if len(np.unique(values)) <= max_bin:
        assert len(cuts) == len(np.unique(values)) - 1


def test_bins_hold_about_as_many_values_each():
    values = np.random.default_rng(0).normal(size=10_000)
    counts = np.bincount(np.searchsorted(quantile_cuts(values, 32), values, side="right"))
    assert len(counts) == 32
    assert counts.min() >= 311
    assert counts.max() <= 314


def test_a_value_that_fills_half_the_rows_leaves_all_other_bins_to_the_rest():
    values = np.concatenate([np.zeros(5000), np.random.default_rng(0).exponential(size=5000)])
    counts = np.bincount(np.searchsorted(quantile_cuts(values, 11), values, side="right"))
    assert counts.tolist() == [5000, *[500] * 10]


def test_neighbouring_floats_and_infinities_are_told_apart():
    values = np.array([-np.inf, 1.0, np.nextafter(1.0, 2), np.inf])
    assert np.searchsorted(quantile_cuts(values, 8), values, side="right").tolist() == [0, 1, 2, 3]


def test_missing_values_have_a_bin_of_their_own_only_where_training_rows_have_some():
    table = table_of(a=[1.0, np.nan, 3.0], b=[1.0, 2.0, 3.0], c=["x", None, "y"])
    bins = learned(table)
    assert bins.columns == (Column(2, True), Column(3, False), Column(2, True, True))
    assert bins.encode(table).codes.tolist() == [[0, 0, 0], [2, 1, 2], [1, 2, 1]]
    assert starts(bins.columns).tolist() == [0, 3, 6, 9]


def test_a_level_that_was_never_seen_is_a_missing_value():
    bins = learned(table_of(c=["x", "y", "x"]))
    assert bins.encode(table_of(c=["y", "z"])).codes.tolist() == [[1], [2]]


def test_of_too_many_levels_the_most_frequent_have_a_bin_and_the_rest_counts_as_missing():
    table = table_of(c=["a", "b", "b", "c", "c", "d"])
    bins = learned(table, max_bin=3)
    assert bins.levels == {"c": ("a", "b", "c")}
    assert bins.columns == (Column(3, True, True),)
    assert bins.encode(table).codes.ravel().tolist() == [0, 1, 1, 2, 2, 3]


def test_a_constant_column_has_one_bin_and_an_empty_one_besides_its_missing_values():
    table = table_of(a=[5.0, 5.0], b=[np.nan, np.nan])
    bins = learned(table)
    assert bins.columns == (Column(1), Column(1, True))
    assert bins.encode(table).codes.tolist() == [[0, 1], [0, 1]]


def test_many_levels_take_wider_codes():
    table = table_of(c=[str(i) for i in range(300)])
    codes = learned(table, max_bin=400).encode(table).codes
    assert codes.dtype == np.uint16
    assert sorted(codes.ravel()) == list(range(300))


def test_bins_come_back_from_their_state():
    bins = learned(table_of(a=[1.0, np.nan, 3.0], c=["x", None, "y"]))
    again = Bins.of(bins.state())
    assert again.columns == bins.columns
    assert again.levels == bins.levels
    assert (again.cuts["a"] == bins.cuts["a"]).all()


def test_tables_that_do_not_fit_are_refused():
    bins = learned(table_of(a=[1.0, 2.0], c=["x", "y"]))
    with pytest.raises(DataError, match=r"shop trained with the column 'a', but its table has only c"):
        bins.encode(table_of(c=["x"]))
    with pytest.raises(DataError, match=r"trained with numbers in the column 'a', which now holds categorical values"):
        bins.encode(table_of(a=["1"], c=["x"]))
    with pytest.raises(DataError, match=r"max_bin should be between 2 and 65534, but is 1"):
        learned(table_of(a=[1.0]), max_bin=1)
