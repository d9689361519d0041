"""Comparison: whether a shared number is negative, in two looks into private tables.

    asker     first; sends a 1 for each of eight digits of its lower 63 bits, among 8 x 256 zeros, encrypted
    helper    b = -second; its table holds, for each digit and value, 2^digit times the sign of value less b's digit
    both      share the entries at the asker's ones, added up: negative exactly if the asker's lower bits are below b's
    asker     its share modulo 512 and its top bit, as a 1 among 1,024 zeros, encrypted
    helper    its table holds, for each of these, whether first + second is then negative
    both      share the entry at the asker's one: the answer

A look is a product of a private vector and a private column (`rlwe`), masked and flooded, so that before the answer is
opened nobody learns anything. The number must be between -2^63 and 2^63, as shared numbers are. The highest digit in
which two numbers differ decides which is larger, and 2^digit outweighs all lower ones. This is for a number now and
then, under the key that two parties have anyway; `signs` compares thousands at once, after transfers made ahead. For
semi-honest parties, unreviewed.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

DIGITS, DIGIT_BITS = 8, 8
ROWS = (DIGITS << DIGIT_BITS, 1024)
"""How long the asker's two vectors are."""
_TOP = 63
_AROUND = 512


def digits_asked(first: int) -> NDArray[np.int64]:
    """The asker's first vector."""
    vector = np.zeros(ROWS[0], np.int64)
    vector[_places(first)] = 1
    return vector


def digits_table(second: int) -> NDArray[np.int64]:
    """The helper's first column."""
    own = _places(-second % 2**64)
    values = np.arange(ROWS[0])
    digit = values >> DIGIT_BITS
    column: NDArray[np.int64] = np.sign(values - own[digit]) * (1 << digit)
    return column[:, None]


def sign_asked(first: int, sign: int) -> NDArray[np.int64]:
    """The asker's second vector, from its number and its share of what the first gave."""
    vector = np.zeros(ROWS[1], np.int64)
    vector[(first >> _TOP) * _AROUND + sign % _AROUND] = 1
    return vector


def sign_table(second: int, sign: int) -> NDArray[np.int64]:
    """The helper's second column, from its number and its share of what the first gave."""
    top, value = np.divmod(np.arange(ROWS[1]), _AROUND)
    borrows = (value + sign % _AROUND) % _AROUND >= _AROUND // 2
    column: NDArray[np.int64] = top ^ (-second % 2**64 >> _TOP) ^ borrows
    return column[:, None]


def _places(number: int) -> NDArray[np.int64]:
    """For each digit of the lower 63 bits, the lowest first, its place among the rows."""
    low = number % 2**_TOP
    found = [(digit << DIGIT_BITS) + (low >> DIGIT_BITS * digit) % 2**DIGIT_BITS for digit in range(DIGITS)]
    return np.array(found, np.int64)
