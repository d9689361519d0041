"""Products of matrices that different parties hold, computed on numbers that are masked modulo 2^64.

Every holder h has a matrix X_h of integers and a mask A_h, uniform modulo 2^64, which a dealer knows too. With the
masked E_h = X_h - A_h in everybody's hands,

    X_p'X_q = E_p'E_q + A_p'E_q + E_p'A_q + A_p'A_q

where p can compute the second term, q the third and the dealer the last. Each adds a pad to its term; the dealer's pads
cancel the others', and its term carries the noise. Whoever adds up all terms learns the noisy product and nothing else:
each term by itself is uniform. (Beaver 1991, "Efficient multiparty protocols using circuit randomization".) The dealer
must not collude with whoever holds the masked matrices. Semi-honest parties; not audited.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from colonnade.curves.basis import FloatArray
from colonnade.errors import CryptoError
from colonnade.privacy.randomness import Randomness, Step
from colonnade.wire.message import UInt64Array

_LIMB_BITS = 16
_LIMBS = 4
_MOST_ROWS = 2**20
LEAST_BITS = 8
MOST_BITS = 22


def fraction_bits(largest: float) -> int:
    """How many bits after the point numbers may have whose products stay below a bound, noise included.

    >>> fraction_bits(1e6)
    21
    """
    bits = min(MOST_BITS, (62 - math.ceil(math.log2(max(largest, 1.0)))) // 2)
    if bits < LEAST_BITS:
        raise CryptoError(
            f"Products up to {largest:.2g} should fit into 62 bits with {LEAST_BITS} bits after the point, but do not. "
            "Bring fewer rows, clip to a smaller radius, or allow a larger epsilon."
        )
    return bits


def to_ring(values: FloatArray, bits: int) -> UInt64Array:
    """Numbers as integers modulo 2^64, rounded towards zero, so that no row becomes longer."""
    return np.trunc(np.ldexp(values, bits)).astype(np.int64).view(np.uint64)


def clipped_to_ring(values: FloatArray, bits: int, *, clip: float, size: int) -> UInt64Array:
    """Curves as integers modulo 2^64, none of them longer than the radius, by exact arithmetic.

    Curves clipped in floating point may be too long by a rounding error, and sensitivities on the ring allow for none.

    Args:
        values: Curves in coordinates, clipped; each row has one or several.
        bits: How many bits after the point the integers have.
        clip: The radius.
        size: How many coordinates a curve has.
    """
    curves = to_ring(values, bits).view(np.int64).reshape(-1, size)
    longest = math.floor(Fraction(clip) ** 2 * 4**bits)
    while len(rows := np.flatnonzero((excess := (curves**2).sum(axis=1) - longest) > 0)):
        columns = np.abs(curves[rows]).argmax(axis=1)
        largest = curves[rows, columns]
        shorter = np.abs(largest) - excess[rows] // (2 * np.abs(largest)) - 1
        curves[rows, columns] = np.sign(largest) * np.maximum(shorter, 0)
    return curves.reshape(values.shape).view(np.uint64)


def from_ring(values: UInt64Array, bits: int) -> FloatArray:
    """The numbers that integers modulo 2^64 stand for."""
    return np.ldexp(values.view(np.int64).astype(np.float64), -bits)


def uniform(random: Randomness, shape: tuple[int, ...], *path: Step) -> UInt64Array:
    """A matrix uniform modulo 2^64, from a cryptographic stream."""
    return random.uniform_bits(math.prod(shape), *path).reshape(shape)


def ring_product(left: UInt64Array, right: UInt64Array) -> UInt64Array:
    """Left' right modulo 2^64: exact products of 16-bit pieces in floating point, which is fast.

    >>> a = np.array([[2**63, 3], [5, 2**64 - 1]], dtype=np.uint64)
    >>> bool((ring_product(a, a) == a.T @ a).all())
    True
    """
    total: UInt64Array = np.zeros((left.shape[1], right.shape[1]), np.uint64)
    # 16 + 16 bits and 2^20 rows make 52 bits, which a double holds exactly.
    for start in range(0, len(left), _MOST_ROWS):
        lefts = _limbs(left[start : start + _MOST_ROWS])
        rights = _limbs(right[start : start + _MOST_ROWS])
        for i in range(_LIMBS):
            for j in range(_LIMBS - i):
                product = (lefts[i].T @ rights[j]).astype(np.uint64)
                total += product << np.uint64(_LIMB_BITS * (i + j))
    return total


def _limbs(values: UInt64Array) -> list[NDArray[np.float64]]:
    mask = np.uint64(2**_LIMB_BITS - 1)
    return [((values >> np.uint64(_LIMB_BITS * i)) & mask).astype(np.float64) for i in range(_LIMBS)]
