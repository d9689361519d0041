"""Additive secret sharing modulo 2^64 between two parties, a leading one and a following one.

    value         x = first + second  modulo 2^64, each of them uniform by itself
    fixed point   a real r is round(r 2^f); sums are sums, a product has 2f bits behind the point
    truncation    both shift their own share, and take away what wrapped around

Where 0 <= x < 2^63, the two shares add up to x or to x + 2^64, and to x only if both have a top bit of 0. Whether they
wrapped is thus one less the product of two private bits, which `products` shares between the parties without telling
anybody. The result of a truncation is x / 2^bits or one unit less, always, while |x| < 2^62.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from colonnade.crypto.additive import encoded

Share = NDArray[np.uint64]

MOST_BITS = 62


def fixed(values: NDArray[np.float64], fraction_bits: int, what: str) -> Share:
    """Reals in fixed point.

    >>> reals(fixed(np.array([-1.5]), 20, "example"), 20).tolist()
    [-1.5]
    """
    return encoded(values, fraction_bits, MOST_BITS - 1, what).view(np.uint64)


def reals(values: Share, fraction_bits: int) -> NDArray[np.float64]:
    """Reals from fixed point."""
    return np.ldexp(values.view(np.int64).astype(np.float64), -fraction_bits)


def raised(share: Share, *, leading: bool) -> Share:
    """The share after 2^62 was added to the value, which makes it positive."""
    return share + np.uint64(2**MOST_BITS) if leading else share


def low_half(share: Share) -> Share:
    """1 where a raised share's top bit is 0: a party's factor of the product that says what did not wrap."""
    return np.uint64(1) - (share >> np.uint64(63))


def truncated(share: Share, unwrapped: Share, bits: int, *, leading: bool) -> Share:
    """One party's share of a value divided by 2^bits.

    Args:
        share: Its raised share.
        unwrapped: Its share of the product of both parties' `low_half`.
        bits: By how much to shift, from 1 to 62.
        leading: Whether it leads.

    >>> first, second = raised(np.array([2**63 + 40], np.uint64), leading=True), np.array([2**63], np.uint64)
    >>> shares = np.array([0], np.uint64), low_half(first) * low_half(second)
    >>> parts = truncated(first, shares[0], 3, leading=True), truncated(second, shares[1], 3, leading=False)
    >>> (parts[0] + parts[1]).tolist()
    [5]
    """
    # What wrapped counts 2^64, that is 2^(64 - bits) after the shift.
    wrap = np.uint64(2 ** (64 - bits))
    if leading:
        return (share >> np.uint64(bits)) - (np.uint64(1) - unwrapped) * wrap - np.uint64(2 ** (MOST_BITS - bits))
    return (share >> np.uint64(bits)) + unwrapped * wrap
