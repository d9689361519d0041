"""The loops that must be fast, compiled by numba at first use and cached on disk.

Residues are 26-bit, stored as uint32; a product of two has 52 bits, so 2^11 of them can be added up in a signed 64-bit
word before one reduction, and a double holds each exactly. Nothing here branches on a residue's value except through
`min`, but the compiler promises no constant time.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

MOST_TERMS = 2048
_HALF = np.uint64(32)


@njit(cache=True, nogil=True, inline="always")
def _reduced(x: Any, p: Any, reciprocal: Any) -> Any:
    # The quotient is off by at most one either way: it has 38 bits, and a double 53.
    rest = x - np.int64(np.float64(x) * reciprocal) * p
    rest = rest + p if rest < 0 else rest
    return rest - p if rest >= p else rest


@njit(cache=True, nogil=True)
def combine(words: NDArray[np.int64], factors: NDArray[np.int64], primes: Any, out: NDArray[np.uint32]) -> None:
    """out[k, l, j] = sum over w of words[w, k, j] * factors[w, l] modulo the l-th prime."""
    total = np.empty(words.shape[2], np.int64)
    for k in range(words.shape[1]):
        for limb in range(out.shape[1]):
            p = np.int64(primes[limb])
            reciprocal = 1.0 / p
            total[:] = 0
            for w in range(words.shape[0]):
                factor, row = factors[w, limb], words[w, k]
                for j in range(words.shape[2]):
                    total[j] += _reduced(row[j], p, reciprocal) * factor
            for j in range(words.shape[2]):
                out[k, limb, j] = np.uint32(_reduced(total[j], p, reciprocal))


@njit(cache=True, nogil=True, inline="always")
def _halves(a: Any, i: Any, length: Any) -> Any:
    """The two halves of the i-th stretch of 2 * length residues."""
    start = 2 * i * length
    return a[start : start + length], a[start + length : start + 2 * length]


@njit(cache=True, nogil=True)
def forward(x: NDArray[np.uint32], roots: Any, quotients: Any, primes: Any) -> None:
    """Number-theoretic transform of every x[k, l], in place, to bit-reversed order (Cooley-Tukey, Shoup's products)."""
    n = x.shape[2]
    for k in range(x.shape[0]):
        for limb in range(x.shape[1]):
            p, a = primes[limb], x[k, limb]
            length, count = n, 1
            while count < n:
                length >>= 1
                for i in range(count):
                    w, wq = roots[limb, count + i], quotients[limb, count + i]
                    low, high = _halves(a, i, length)
                    for j in range(length):
                        u, v = np.uint64(low[j]), np.uint64(high[j])
                        r = w * v - ((wq * v) >> _HALF) * p
                        r = min(r, r - p)
                        s, d = u + r, u + p - r
                        low[j], high[j] = np.uint32(min(s, s - p)), np.uint32(min(d, d - p))
                count <<= 1


@njit(cache=True, nogil=True)
def inverse(x: NDArray[np.uint32], roots: Any, quotients: Any, primes: Any, ends: Any, end_quotients: Any) -> None:
    """Undo `forward`, in place (Gentleman-Sande)."""
    n = x.shape[2]
    for k in range(x.shape[0]):
        for limb in range(x.shape[1]):
            p, a = primes[limb], x[k, limb]
            length, count = 1, n >> 1
            while count >= 1:
                for i in range(count):
                    w, wq = roots[limb, count + i], quotients[limb, count + i]
                    low, high = _halves(a, i, length)
                    for j in range(length):
                        u, v = np.uint64(low[j]), np.uint64(high[j])
                        s, d = u + v, u + p - v
                        r = w * d - ((wq * d) >> _HALF) * p
                        low[j], high[j] = np.uint32(min(s, s - p)), np.uint32(min(r, r - p))
                length <<= 1
                count >>= 1
            w, wq = ends[limb], end_quotients[limb]
            for j in range(n):
                v = np.uint64(a[j])
                r = w * v - ((wq * v) >> _HALF) * p
                a[j] = np.uint32(min(r, r - p))


@njit(cache=True, nogil=True)
def dot(a: NDArray[np.uint32], b: NDArray[np.uint32], primes: Any, out: NDArray[np.uint32]) -> None:
    """out[r, c] = sum over k of a[r, k] * b[c, k], for each residue by itself."""
    n = a.shape[3]
    total = np.empty(n, np.int64)
    for r in range(a.shape[0]):
        for c in range(b.shape[0]):
            for limb in range(a.shape[2]):
                p = np.int64(primes[limb])
                reciprocal = 1.0 / p
                for j in range(n):
                    total[j] = 0
                for k in range(a.shape[1]):
                    x, y = a[r, k, limb], b[c, k, limb]
                    for j in range(n):
                        total[j] += np.int64(np.uint64(x[j]) * np.uint64(y[j]))
                    if k % MOST_TERMS == MOST_TERMS - 1 or k == a.shape[1] - 1:
                        for j in range(n):
                            total[j] = _reduced(total[j], p, reciprocal)
                for j in range(n):
                    out[r, c, limb, j] = np.uint32(total[j])


@njit(cache=True, nogil=True)
def pack(residues: Any, words: NDArray[np.uint64], bits: Any) -> None:
    """Write residues of `bits` bits one after the other into words of 0."""
    for k in range(residues.shape[0]):
        for i in range(residues.shape[1]):
            value, word, place = np.uint64(residues[k, i]), i * bits // 64, i * bits % 64
            words[k, word] |= value << np.uint64(place)
            if place + bits > 64:
                words[k, word + 1] |= value >> np.uint64(64 - place)


@njit(cache=True, nogil=True)
def unpack(words: NDArray[np.uint64], residues: Any, bits: Any) -> None:
    """Undo `pack`."""
    mask = np.uint64(0xFFFFFFFFFFFFFFFF) >> np.uint64(64 - bits)
    for k in range(residues.shape[0]):
        for i in range(residues.shape[1]):
            word, place = i * bits // 64, i * bits % 64
            value = words[k, word] >> np.uint64(place)
            if place + bits > 64:
                value |= words[k, word + 1] << np.uint64(64 - place)
            residues[k, i] = value & mask


@njit(cache=True, nogil=True)
def transpose_bits(columns: NDArray[np.uint64], rows: NDArray[np.uint64]) -> None:
    """Bit i of rows[r, c] is bit r % 64 of columns[64 c + i, r // 64]: squares of 64 bits, halved again and again."""
    square = np.empty(64, np.uint64)
    for word in range(columns.shape[1]):
        for part in range(rows.shape[1]):
            for i in range(64):
                square[i] = columns[64 * part + i, word]
            size, mask = 32, np.uint64(0x00000000FFFFFFFF)
            while size:
                shift = np.uint64(size)
                for start in range(0, 64, 2 * size):
                    for i in range(start, start + size):
                        # The upper right and the lower left quarter change places.
                        moved = ((square[i] >> shift) ^ square[i + size]) & mask
                        square[i + size] ^= moved
                        square[i] ^= moved << shift
                size >>= 1
                mask ^= mask << np.uint64(size)
            for r in range(64):
                rows[64 * word + r, part] = square[r]


@njit(cache=True, nogil=True)
def choose_keys(keys: Any, out: NDArray[np.uint64]) -> None:
    """out[k, b, v] = of both keys[k, b] the one that bit b of v chooses, its first word xored with v."""
    for k in range(out.shape[0]):
        for bit in range(out.shape[1]):
            for value in range(out.shape[2]):
                key = keys[k, bit, value >> bit & 1]
                out[k, bit, value, 0] = key[0] ^ np.uint64(value)
                out[k, bit, value, 1] = key[1]


@njit(cache=True, nogil=True)
def count_blocks(keys: Any, out: NDArray[np.uint64]) -> None:
    """out[k, v, j] = keys[k, v], its first word xored with j."""
    for k in range(out.shape[0]):
        for value in range(out.shape[1]):
            for j in range(out.shape[2]):
                out[k, value, j, 0] = keys[k, value, 0] ^ np.uint64(j)
                out[k, value, j, 1] = keys[k, value, 1]


@njit(cache=True, nogil=True)
def mask_table(table: Any, share: Any, own: Any, low: Any, high: Any, out: NDArray[np.uint64]) -> None:
    """out[k, i] = (table[i + share[k]] - own[k]) under low[k, low half of i, high half] and high[k, high, low half]."""
    n_low = low.shape[1]
    mask = np.uint64(len(table) - 1)
    for k in range(len(share)):
        for upper in range(high.shape[1]):
            for lower in range(n_low):
                i = upper * n_low + lower
                word = table[(np.uint64(i) + share[k]) & mask] - own[k]
                out[k, i] = word ^ low[k, lower, upper] ^ high[k, upper, lower]
