"""Shares add up, truncate to within one unit always, and say nothing by themselves."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from colonnade.crypto.shares import MOST_OFFSETS, SAFE_BITS, choose_offsets, fixed, reals, truncated
from colonnade.errors import CryptoError, Overflow


def offsets_of(count, seed=0):
    def offsets(number):
        return np.random.default_rng([seed, number]).integers(0, 2**64, count, dtype=np.uint64)

    return offsets


def joint(values, first, bits, offsets):
    numbers = choose_offsets(first, offsets)
    second = values.view(np.uint64) - first
    parts = (
        truncated(first, bits, numbers, offsets, leading=True),
        truncated(second, bits, numbers, offsets, leading=False),
    )
    return (parts[0] + parts[1]).view(np.int64)


@given(st.integers(-(2**SAFE_BITS) + 1, 2**SAFE_BITS - 1), st.integers(0, 2**64 - 1), st.integers(1, 40))
def test_truncation_is_off_by_at_most_one_whatever_the_shares(value, first, bits):
    found = joint(np.array([value]), np.array([first], np.uint64), bits, offsets_of(1, bits))
    assert abs(int(found[0]) - (value >> bits)) <= 1


@pytest.mark.parametrize("first", [0, 1, 2**64 - 1, 2**60, 2**63])
def test_truncation_holds_where_a_share_is_about_to_wrap(first):
    values = np.array([2**59, -(2**59), 0, 1, -1])
    found = joint(values, np.full(5, first, np.uint64), 20, offsets_of(5))
    assert np.abs(found - (values >> 20)).max() <= 1


def test_a_million_truncations_are_all_within_one():
    random = np.random.default_rng(1)
    values = random.integers(-(2**58), 2**58, 10**6)
    first = random.integers(0, 2**64, 10**6, dtype=np.uint64)
    assert np.abs(joint(values, first, 24, offsets_of(10**6)) - (values >> 24)).max() <= 1


def test_truncated_shares_stay_spread_over_their_whole_range():
    random = np.random.default_rng(3)
    first = random.integers(0, 2**64, 50_000, dtype=np.uint64)
    numbers = choose_offsets(first, offsets_of(50_000))
    share = truncated(first, 8, numbers, offsets_of(50_000), leading=True)
    edge = 2.0**SAFE_BITS
    assert stats.kstest((share * 256.0 - edge) / (2.0**64 - 2 * edge), "uniform").pvalue > 1e-5


def test_a_share_that_is_never_safe_is_refused():
    still = np.zeros(3, np.uint64)
    with pytest.raises(
        CryptoError, match=rf"3 of 3 values stay near 0 under {MOST_OFFSETS} offsets. Start the run anew"
    ):
        choose_offsets(still, lambda number: still)


@given(st.lists(st.floats(-1e6, 1e6), min_size=1))
def test_fixed_point_comes_back(values):
    values = np.array(values)
    assert np.abs(reals(fixed(values, 30, "x"), 30) - values).max() <= 2.0**-31


def test_values_beyond_the_range_are_refused():
    with pytest.raises(Overflow, match=r"bank's labels should be at most 1.09951e\+12 .* but 1 of 1 are larger"):
        fixed(np.array([1e13]), 20, "bank's labels")
