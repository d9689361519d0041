"""Ring: polynomials modulo X^n + 1 whose coefficients are residues modulo several primes.

A polynomial is an array (L, n) of uint32, one row per prime; operations take any number of them at once. Transforms are
those of Microsoft SEAL, bit for bit: the least primitive root, bit-reversed order.
"""

from __future__ import annotations

from functools import cache
from math import prod
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from colonnade.crypto.profiles import Profile
from colonnade.crypto.sampling import Stream

Residues: TypeAlias = NDArray[np.uint32]


class Ring:
    """Arithmetic modulo X^n + 1 and modulo q, the product of NTT primes below 2^26.

    >>> ring = Ring(8, (17, 97))
    >>> x = ring.residues(np.array([0, 1, 0, 0, 0, 0, 0, 0]))  # the polynomial X
    >>> power = x
    >>> for _ in range(7):
    ...     power = ring.product(power, x)
    >>> ring.integers(power).tolist()  # X^8 = -1
    [-1, 0, 0, 0, 0, 0, 0, 0]
    """

    def __init__(self, n: int, primes: tuple[int, ...]) -> None:
        assert n & (n - 1) == 0, "the degree is a power of two"
        assert all(p < 2**26 and p % (2 * n) == 1 for p in primes), "every prime is below 2^26 and 1 modulo 2n"
        self.n, self.primes, self.modulus = n, np.array(primes, np.uint64), prod(primes)
        self._narrow = self.primes.astype(np.uint32)[:, None]
        order = _bit_reversed(n)
        roots = [_least_root(n, p) for p in primes]
        self._forward = _with_quotients([_powers(w, n, p)[order] for w, p in zip(roots, primes, strict=True)], primes)
        inverse = [_powers(pow(w, -1, p), n, p)[order] for w, p in zip(roots, primes, strict=True)]
        self._inverse = _with_quotients(inverse, primes)
        self._ends = _with_quotients([np.array([pow(n, -1, p)], np.uint64) for p in primes], primes)
        # For the Chinese remainder: what a residue is multiplied by, and the rest of the modulus.
        self._weights = np.array([pow(self.modulus // p, -1, p) for p in primes], np.uint64)
        self._cofactors = [self.modulus // p for p in primes]

    def forward(self, x: Residues) -> Residues:
        """Transform polynomials in place; returns them."""
        from colonnade.crypto import kernels

        kernels.forward(self._flat(x), *self._forward, self.primes)
        return x

    def inverse(self, x: Residues) -> Residues:
        """Undo `forward` in place; returns the polynomials."""
        from colonnade.crypto import kernels

        ends, quotients = (each[:, 0] for each in self._ends)
        kernels.inverse(self._flat(x), *self._inverse, self.primes, ends, quotients)
        return x

    def dot(self, a: Residues, b: Residues) -> Residues:
        """Sums over k of a[r, k] * b[c, k], transformed in and out: (R, K, L, n) and (C, K, L, n) to (R, C, L, n)."""
        from colonnade.crypto import kernels

        out = np.empty((len(a), len(b), *a.shape[2:]), np.uint32)
        kernels.dot(a, b, self.primes, out)
        return out

    def times(self, a: Residues, b: Residues) -> Residues:
        """Products of many transformed polynomials (..., L, n) and one (L, n)."""
        return self.dot(np.ascontiguousarray(a).reshape(-1, 1, *a.shape[-2:]), b[None, None]).reshape(a.shape)

    def product(self, a: Residues, b: Residues) -> Residues:
        """The product of two polynomials that are not transformed."""
        return self.inverse(self.times(self.forward(a.copy()), self.forward(b.copy())))

    def add(self, a: Residues, b: Residues) -> Residues:
        """Sums."""
        total: Residues = a + b
        np.minimum(total, total - self._narrow, out=total)
        return total

    def subtract(self, a: Residues, b: Residues) -> Residues:
        """Differences."""
        difference: Residues = a - b
        np.minimum(difference, difference + self._narrow, out=difference)
        return difference

    def residues(self, integers: NDArray[Any]) -> Residues:
        """The residues (..., L, n) of integers (..., n)."""
        return self.combined([integers.astype(np.int64)], [1])

    def combined(self, words: list[NDArray[np.int64]], factors: list[int]) -> Residues:
        """The residues (..., L, n) of a sum of integers (..., n), each times a factor of any size."""
        from colonnade.crypto import kernels

        shape = words[0].shape
        stacked = np.stack([word.reshape(-1, shape[-1]) for word in words])
        small = np.array([[factor % int(p) for p in self.primes] for factor in factors], np.int64)
        out = np.empty((stacked.shape[1], len(self.primes), shape[-1]), np.uint32)
        kernels.combine(stacked, small, self.primes, out)
        return out.reshape(*shape[:-1], *out.shape[1:])

    def small(self, integers: NDArray[np.int8]) -> Residues:
        """The residues of integers between -128 and 127."""
        out = np.empty((*integers.shape[:-1], len(self.primes), integers.shape[-1]), np.uint32)
        for limb, p in enumerate(self.primes):
            wrapped = np.concatenate([np.arange(128), np.arange(-128, 0) + int(p)]).astype(np.uint32)
            np.take(wrapped, integers.view(np.uint8), out=out[..., limb, :], mode="clip")
        return out

    def integers(self, residues: Residues) -> NDArray[Any]:
        """The integers between -q/2 and q/2 that have these residues (..., L, m), as Python numbers (..., m)."""
        terms = residues.astype(np.uint64) * self._weights[:, None] % self.primes[:, None]
        pieces = [terms[..., limb, :].astype(object) * each for limb, each in enumerate(self._cofactors)]
        total = np.add.reduce(pieces) % self.modulus
        centred: NDArray[Any] = np.where(total > self.modulus // 2, total - self.modulus, total)
        return centred

    def scaled(self, integers: NDArray[np.int64], bits: int) -> Residues:
        """Messages modulo 2^bits as residues: the integers nearest to m * q / 2^bits, give or take 3."""
        whole, rest = divmod(self.modulus, 2**bits)
        rest <<= 64 - bits
        high, low = np.int64(rest >> 32), np.int64(rest & 0xFFFFFFFF)
        top, bottom = integers >> 32, integers & 0xFFFFFFFF
        # The high half of the product of rest and m; the lower halves of the cross terms are the 3 it may be off by.
        cross = (high.astype(np.uint64) * bottom.astype(np.uint64)) >> np.uint64(32)
        fraction = high * top + cross.astype(np.int64) + ((low * top) >> 32)
        return self.combined([integers, fraction], [whole, 1])

    def rounded(self, residues: Residues, bits: int) -> tuple[NDArray[np.uint64], NDArray[np.float64]]:
        """The messages modulo 2^bits nearest to residues (..., L, m), and how far off these are, in messages."""
        terms = residues.astype(np.uint64) * self._weights[:, None] % self.primes[:, None]
        whole = np.array([2**bits // int(p) for p in self.primes], np.uint64)[:, None]
        rest = np.array([2**bits % int(p) / int(p) for p in self.primes])[:, None]
        fraction = (terms * rest).sum(axis=-2)
        nearest = np.rint(fraction)
        # Sums modulo 2^64 are what is wanted here.
        total = (terms * whole).sum(axis=-2, dtype=np.uint64) + nearest.astype(np.uint64)
        return total & np.uint64(2**bits - 1), fraction - nearest

    def flood(self, stream: Stream, shape: tuple[int, ...], bits: int) -> Residues:
        """The flood of answers, as residues: U1 + U2 + U3 - 3 * 2^(bits - 1), each U uniform in [0, 2^bits).

        It is exact in every bit: a rounded float would leave the low bits of an answer bare.
        """
        pieces = [(place, min(50, bits - place)) for place in range(0, bits, 50)] * 3
        words = [(stream.words(prod(shape)) >> np.uint64(64 - width)).astype(np.int64) for _, width in pieces]
        constant = np.full(shape, -3, np.int64)
        integers = [word.reshape(shape) for word in words] + [constant]
        return self.combined(integers, [2**place for place, _ in pieces] + [2 ** (bits - 1)])

    def _flat(self, x: Residues) -> Residues:
        assert x.flags.c_contiguous
        assert x.shape[-2:] == (len(self.primes), self.n)
        return x.reshape(-1, *x.shape[-2:])


@cache
def ring_of(profile: Profile) -> Ring:
    """The ring of a profile, made once."""
    return Ring(profile.n, profile.primes)


def _bit_reversed(n: int) -> NDArray[np.int64]:
    order = np.zeros(1, np.int64)
    while len(order) < n:
        order = np.concatenate([2 * order, 2 * order + 1])
    return order


def _least_root(n: int, p: int) -> int:
    """The least primitive 2n-th root of unity modulo p."""
    base = next(g for g in range(2, p) if pow(g, (p - 1) // 2, p) == p - 1)
    root = pow(base, (p - 1) // (2 * n), p)
    return int(_powers(root, 2 * n, p)[1::2].min())


def _powers(root: int, n: int, p: int) -> NDArray[np.uint64]:
    powers = np.ones(1, np.uint64)
    while len(powers) < n:
        powers = np.concatenate([powers, powers * np.uint64(pow(root, len(powers), p)) % np.uint64(p)])
    return powers


def _with_quotients(
    tables: list[NDArray[np.uint64]], primes: tuple[int, ...]
) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """Factors, and Shoup's quotients floor(factor * 2^32 / p) that replace a division by a multiplication."""
    factors = np.stack(tables)
    return factors, (factors << np.uint64(32)) // np.array(primes, np.uint64)[:, None]
