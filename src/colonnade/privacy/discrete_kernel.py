"""The loop that draws from the discrete Gaussian, compiled by numba at first use and cached on disk.

Every number here is a signed 64-bit integer, and every decision compares two of them: there is no floating point.
`colonnade.privacy.discrete_gaussian` says what is drawn and why it is exact. How long a draw takes depends on the
number drawn.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

# What a function returns when the words are used up. Other returns are 0 (no), 1 (yes), or a number from 0.
_EMPTY = -1


@njit(cache=True, nogil=True)
def fill(
    out: NDArray[np.int64], start: int, numerator: int, denominator: int, words: NDArray[np.int64], cursor: Any
) -> int:
    """Fill `out` from `start` on with draws, modulo 2^64; return how many places are filled.

    The width is numerator / denominator, below 2^62 and at most 2^40. Words are uniform 63-bit numbers. The cursor, an
    array of one number, is the place of the next unused word, and is moved on; an attempt for which the words did not
    suffice is taken back.
    """
    place = start
    while place < len(out):
        before = cursor[0]
        status, drawn = _attempt(numerator, denominator, words, cursor)
        if status == _EMPTY:
            cursor[0] = before
            return place
        if status == 1:
            out[place] = drawn
            place += 1
    return place


@njit(cache=True, nogil=True)
def _attempt(numerator: int, denominator: int, words: NDArray[np.int64], cursor: Any) -> tuple[int, int]:
    """Propose a number and return (1, the number) if it is kept, (0, 0) if it is not."""
    whole, rest = numerator // denominator, numerator % denominator
    steps = 0
    happens = _happens(0, 1, 0, 2, words, cursor)
    while happens == 1:
        steps += 1
        happens = _happens(0, 1, 0, 2, words, cursor)
    if happens == _EMPTY:
        return _EMPTY, 0
    for _ in range(steps * (steps - 1)):
        happens = _happens(0, 1, 0, 2, words, cursor)
        if happens != 1:
            return happens, 0
    choice = _below((numerator + denominator - 1) // denominator, words, cursor)
    if choice == _EMPTY:
        return _EMPTY, 0
    offset = choice * denominator + (-rest * steps) % denominator
    if offset >= numerator:
        return 0, 0
    for _ in range(steps):
        happens = _happens(offset, numerator, 1, 1, words, cursor)
        if happens != 1:
            return happens, 0
    happens = _happens(offset, numerator, 2, 2, words, cursor)
    if happens != 1:
        return happens, 0
    sign = _below(2, words, cursor)
    # Zero has one sign only.
    if sign == _EMPTY or (sign == 1 and steps == 0 and offset == 0):
        return min(sign, 0), 0
    size = whole * steps + (rest * steps + offset) // denominator
    return 1, -size if sign == 1 else size


@njit(cache=True, nogil=True)
def _happens(part: int, total: int, power: int, divisor: int, words: NDArray[np.int64], cursor: Any) -> int:
    """Return 1 with probability exp(-(part / total)**power / divisor), else 0 (von Neumann 1951)."""
    k = 1
    while True:
        for _ in range(power):
            drawn = _below(total, words, cursor)
            if drawn == _EMPTY:
                return _EMPTY
            if drawn >= part:
                return k & 1
        drawn = _below(divisor * k, words, cursor)
        if drawn == _EMPTY:
            return _EMPTY
        if drawn != 0:
            return k & 1
        k += 1


@njit(cache=True, nogil=True)
def _below(n: int, words: NDArray[np.int64], cursor: Any) -> int:
    """Return a uniform number below n: the low bits of the first word whose low bits are below n."""
    if n == 1:
        return 0
    mask = n - 1
    for shift in (1, 2, 4, 8, 16, 32):
        mask |= mask >> shift
    while cursor[0] < len(words):
        found: int = words[cursor[0]] & mask
        cursor[0] += 1
        if found < n:
            return found
    return _EMPTY
