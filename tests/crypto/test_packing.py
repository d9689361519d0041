"""Residues cross in 26 or 50 bits each and come back as they were."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from colonnade.crypto.packing import n_words, packed, unpacked, unpacked_wide


@given(st.lists(st.integers(0, 2**26 - 1), min_size=1, max_size=200))
def test_residues_come_back_as_they_were(values):
    residues = np.array(values, np.uint32)
    words = packed(residues)
    assert words.shape == (n_words(len(values)),)
    assert unpacked(words, len(values)).tolist() == values
    # One after the other from the lowest bit on, by definition.
    number = sum(value << 26 * place for place, value in enumerate(values))
    assert sum(int(word) << 64 * place for place, word in enumerate(words)) == number


@given(st.lists(st.integers(0, 2**50 - 1), min_size=1, max_size=200))
def test_wide_residues_come_back_as_they_were(values):
    words = packed(np.array(values, np.uint64), 50)
    assert words.shape == (n_words(len(values), 50),)
    assert unpacked_wide(words, len(values), 50).tolist() == values
    number = sum(value << 50 * place for place, value in enumerate(values))
    assert sum(int(word) << 64 * place for place, word in enumerate(words)) == number


def test_every_row_is_packed_by_itself():
    residues = np.random.default_rng(0).integers(0, 2**26, (2, 3, 64)).astype(np.uint32)
    words = packed(residues)
    assert words.shape == (2, 3, 26)
    assert (unpacked(words, 64) == residues).all()
    assert (words[1, 2] == packed(residues[1, 2])).all()


@pytest.mark.parametrize(("n", "words"), [(8, 4), (32, 13), (4096, 1664), (8192, 3328)])
def test_no_bit_is_wasted(n, words):
    assert n_words(n) == words
