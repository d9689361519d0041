"""Shares add up and truncate to within one unit, always."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from colonnade.crypto.shares import MOST_BITS, fixed, low_half, raised, reals, truncated
from colonnade.errors import Overflow


def joint(values, first, bits, mask=12345):
    """The truncated values, with the product of the private bits shared as `products` would."""
    second = values.view(np.uint64) - first
    first = raised(first, leading=True)
    own = np.full(len(values), mask, np.uint64)
    parts = (
        truncated(first, own, bits, leading=True),
        truncated(second, low_half(first) * low_half(second) - own, bits, leading=False),
    )
    return (parts[0] + parts[1]).view(np.int64)


@given(
    st.integers(-(2**MOST_BITS) + 1, 2**MOST_BITS - 1),
    st.integers(0, 2**64 - 1),
    st.integers(1, MOST_BITS),
    st.integers(0, 2**64 - 1),
)
def test_truncation_is_off_by_at_most_one_whatever_the_shares(value, first, bits, mask):
    found = joint(np.array([value]), np.array([first], np.uint64), bits, mask)
    assert (value >> bits) - 1 <= int(found[0]) <= value >> bits


@pytest.mark.parametrize("first", [0, 1, 2**64 - 1, 2**62, 2**63 - 1, 2**63, 3 * 2**62])
def test_truncation_holds_where_a_share_is_about_to_wrap(first):
    values = np.array([2**61, -(2**61), 0, 1, -1])
    for near in range(-2, 3):
        found = joint(values, np.full(5, (first + near) % 2**64, np.uint64), 20)
        assert np.abs(found - (values >> 20)).max() <= 1


def test_a_million_truncations_are_all_within_one():
    random = np.random.default_rng(1)
    values = random.integers(-(2**58), 2**58, 10**6)
    first = random.integers(0, 2**64, 10**6, dtype=np.uint64)
    assert np.abs(joint(values, first, 24) - (values >> 24)).max() <= 1


@given(st.lists(st.floats(-1e6, 1e6), min_size=1))
def test_fixed_point_comes_back(values):
    values = np.array(values)
    assert np.abs(reals(fixed(values, 30, "x"), 30) - values).max() <= 2.0**-31


def test_values_beyond_the_range_are_refused():
    with pytest.raises(Overflow, match=r"bank's labels should be at most 2.19902e\+12 .* but 1 of 1 are larger"):
        fixed(np.array([1e13]), 20, "bank's labels")
