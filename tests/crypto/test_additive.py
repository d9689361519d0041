"""Fixed point is exact within its bounds and refuses everything beyond them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from colonnade.crypto.additive import MOST_ROWS, PRODUCT_BITS, Widths, column_scales, encoded, unmasked
from colonnade.errors import Overflow


@given(st.integers(1, MOST_ROWS))
def test_a_product_of_the_widest_numbers_fits(n_rows):
    widths = Widths.of(n_rows)
    assert n_rows * 2**widths.column_bits * 2**widths.residual_bits <= 2**PRODUCT_BITS
    assert widths.column_bits >= 12
    assert widths.residual_bits >= 20
    # The noise of an encrypted product is never larger than at the most rows.
    assert n_rows * 4**widths.column_bits <= MOST_ROWS * 4**12


def test_too_many_rows_are_refused():
    with pytest.raises(Overflow, match=r"at most 524288 rows, but 524289 were given. Use smaller batches."):
        Widths.of(MOST_ROWS + 1)


@given(st.lists(st.floats(-1000, 1000), min_size=1), st.integers(0, 20))
def test_encoding_is_off_by_half_a_step_at_most(values, bits):
    values = np.array(values)
    assert np.abs(np.ldexp(encoded(values, bits, 40, "x").astype(float), -bits) - values).max() <= 2.0 ** -(bits + 1)


@pytest.mark.parametrize("value", [1025.0, -1025.0, 1e300, np.inf, np.nan])
def test_numbers_that_do_not_fit_are_refused_by_count_and_never_shown(value):
    with pytest.raises(Overflow, match=r"shop's scores should be at most 1024 .* but 1 of 3 are larger") as refusal:
        encoded(np.array([0.0, value, 1.0]), 10, 20, "shop's scores")
    assert "1025" not in str(refusal.value)


@given(st.floats(1e-30, 1e30), st.integers(8, 20))
def test_a_column_fills_the_bits_it_is_given(largest, bits):
    (scale,) = column_scales(np.array([largest]), bits)
    assert 2 ** (bits - 1) <= np.ldexp(largest, int(scale)) <= 2**bits


def test_a_column_of_zeros_has_a_scale():
    assert column_scales(np.zeros(1), 12).tolist() == [12]


@given(st.integers(-(2**52), 2**52 - 1), st.integers(0, 2**53 - 1))
def test_unmasking_undoes_a_mask_modulo_2_to_the_53(value, mask):
    opened = np.array([(value + mask) % 2**53], np.uint64)
    assert unmasked(opened, np.array([mask], np.uint64)).tolist() == [value]
