"""Additive secret sharing modulo 2^64 between two parties, a leading one and a following one.

    value         x = first + second  modulo 2^64, each of them uniform by itself
    fixed point   a real r is round(r 2^f); sums are sums, a product has 2f bits behind the point
    truncation    both shift their own share, after both have added and subtracted a public random offset

Shifting shares goes wrong where they wrap around, which happens if the leading share is within |x| of 0. The leading
party sees that and names another offset for such a value; its share says nothing about x, so neither does its choice.
The result is off by at most one unit in its last place, always, while |x| < 2^60.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from colonnade.crypto.fixedpoint import encoded
from colonnade.errors import CryptoError

Share = NDArray[np.uint64]

# Values that are truncated are below this, so a leading share farther from 0 cannot wrap.
SAFE_BITS = 60
MOST_OFFSETS = 255


def fixed(values: NDArray[np.float64], fraction_bits: int, what: str) -> Share:
    """Reals in fixed point.

    >>> reals(fixed(np.array([-1.5]), 20, "example"), 20).tolist()
    [-1.5]
    """
    return encoded(values, fraction_bits, SAFE_BITS, what).view(np.uint64)


def reals(values: Share, fraction_bits: int) -> NDArray[np.float64]:
    """Reals from fixed point."""
    return np.ldexp(values.view(np.int64).astype(np.float64), -fraction_bits)


def choose_offsets(share: Share, offsets: Callable[[int], Share]) -> NDArray[np.uint8]:
    """For each value of the leading share the number of the first public offset under which it cannot wrap.

    Args:
        share: The leading party's share.
        offsets: Uniform values by number, the same at both parties.
    """
    numbers = np.zeros(len(share), np.uint8)
    edge = np.uint64(2**SAFE_BITS)
    unsafe = np.arange(len(share))
    for number in range(MOST_OFFSETS):
        moved = share[unsafe] + offsets(number)[unsafe]
        numbers[unsafe] = number
        unsafe = unsafe[moved + edge < edge + edge]
        if not len(unsafe):
            return numbers
    raise CryptoError(
        f"A share should be uniform, but {len(unsafe)} of {len(share)} values stay near 0 under {MOST_OFFSETS} offsets."
        " Start the run anew; if it happens again, a party is faulty."
    )


def truncated(
    share: Share, bits: int, numbers: NDArray[np.uint8], offsets: Callable[[int], Share], *, leading: bool
) -> Share:
    """One party's share of a value divided by 2^bits, off by at most one together with the other's.

    >>> zero = lambda number: np.zeros(1, np.uint64)
    >>> first, second = np.array([2**62 + 40], np.uint64), np.array([2**64 - 2**62], np.uint64)
    >>> numbers = choose_offsets(first, zero)
    >>> parts = [truncated(each, 3, numbers, zero, leading=each is first) for each in (first, second)]
    >>> (parts[0] + parts[1]).tolist()
    [5]
    """
    moved = np.empty_like(share)
    for number in np.unique(numbers):
        chosen = numbers == number
        moved[chosen] = offsets(int(number))[chosen]
    places = np.uint64(bits)
    if leading:
        return (share + moved) >> places
    return np.uint64(0) - ((moved - share) >> places)
