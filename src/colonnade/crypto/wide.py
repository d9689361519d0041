"""WideRing: polynomials modulo X^n + 1 over primes of 50 bits, as doubles, by fused multiply-adds.

Half as many residues as with primes of 26 bits carry the same number, and a transform costs less per bit. A polynomial
is an array (L, n) of doubles that hold whole numbers, centred: between -p/2 and p/2. Transformed values stand in an
order of their own, so they mean something to this ring only.
"""

from __future__ import annotations

from functools import cache
from math import prod
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from colonnade.crypto.profiles import Profile
from colonnade.crypto.sampling import Stream

Float64Array: TypeAlias = NDArray[np.float64]

PRIME_BITS = 50


class WideRing:
    """Arithmetic modulo X^n + 1 and modulo q, the product of NTT primes below 2^50.

    >>> ring = WideRing(8, (17, 97))
    >>> x = np.zeros((1, 2, 8))
    >>> x[..., 1] = 1  # the polynomial X
    >>> power = x
    >>> for _ in range(7):
    ...     power = ring.product(power, x)
    >>> ring.canonical(power)[0].tolist()  # X^8 = -1
    [[16, 0, 0, 0, 0, 0, 0, 0], [96, 0, 0, 0, 0, 0, 0, 0]]
    """

    def __init__(self, n: int, primes: tuple[int, ...]) -> None:
        assert n & (n - 1) == 0, "the degree is a power of two"
        assert all(p < 2**PRIME_BITS and p % (2 * n) == 1 for p in primes), "primes are below 2^50 and 1 modulo 2n"
        self.n, self.modulus, self._integers = n, prod(primes), primes
        self.primes = np.array(primes, np.float64)
        self.limits = np.array(primes, np.uint64)
        self.columns = 1 << n.bit_length() // 2
        rows = n // self.columns
        order = _bit_reversed(n)
        forward, backward, ends = [], [], []
        for p in primes:
            root = _root(n, p)
            powers = _powers(root, 2 * n, p)
            forward.append([powers[i] for i in order])
            # At place d + j the j-th power of the inverse of a root of order 2d, that is of root^(n / d).
            backward.append([0] + [powers[-j * (n // d) % (2 * n)] for d, j in _stages(n)])
            scale = pow(n, -1, p)
            ends.append([scale * powers[-i % (2 * n)] % p for i in range(n)])
        self._wide = self._with_quotients([table[:rows] for table in forward])
        # A short stage of row r with some number of groups is a stage of all rows with `rows` times as many.
        index = np.array([(rows + np.arange(rows)) * count + i for count, i in [(0, 0), *_stages(self.columns)]])
        factors, quotients = self._with_quotients(forward)
        self._short = np.ascontiguousarray(factors[:, index]), np.ascontiguousarray(quotients[:, index])
        self._roots = self._with_quotients(backward)
        self._ends = self._with_quotients(ends)
        # For the division by the first prime.
        self.inverses = np.array([float(_centre(pow(primes[0], -1, p), p)) for p in primes[1:]])

    def __reduce__(self) -> tuple[Any, ...]:
        # A worker makes the tables of a ring itself, once.
        return _ring, (self.n, self._integers)

    @property
    def inverse_tables(self) -> tuple[tuple[Float64Array, Float64Array], tuple[Float64Array, Float64Array]]:
        """The roots of the stages of `inverse` and its last factors (L, n), each of them also over the primes."""
        return self._roots, self._ends

    def forward(self, x: Float64Array) -> Float64Array:
        """Transform polynomials (..., L, n) in place; returns them."""
        from colonnade.crypto import wide_kernels

        wide_kernels.forward(self._flat(x), *self._wide, *self._short, self.primes)
        return x

    def inverse(self, x: Float64Array) -> Float64Array:
        """Undo `forward` in place; returns the polynomials."""
        from colonnade.crypto import wide_kernels

        wide_kernels.inverse(self._flat(x), *self._roots, *self._ends, self.primes, self.columns)
        return x

    def times(self, a: Float64Array, b: Float64Array, out: Float64Array | None = None) -> Float64Array:
        """Products of many transformed polynomials (K, L, n) and one (L, n)."""
        from colonnade.crypto import wide_kernels

        out = np.empty_like(a) if out is None else out
        wide_kernels.times(a, b, self.primes, out)
        return out

    def dot(self, a: Float64Array, b: Float64Array) -> Float64Array:
        """The sum over k of the products of transformed polynomials a[k] and b[k], both (K, L, n)."""
        from colonnade.crypto import wide_kernels

        out = np.empty(a.shape[1:])
        wide_kernels.dot(a, b, self.primes, out)
        return out

    def product(self, a: Float64Array, b: Float64Array) -> Float64Array:
        """The products of polynomials (K, L, n) and one (1, L, n) that are not transformed."""
        return self.inverse(self.times(self.forward(a.copy()), self.forward(b.copy())[0]))

    def small(self, integers: NDArray[np.int8]) -> Float64Array:
        """The residues (..., L, n) of small integers (..., n)."""
        shape = (*integers.shape[:-1], len(self.primes), self.n)
        return np.ascontiguousarray(np.broadcast_to(integers[..., None, :], shape), np.float64)

    def centred(self, residues: NDArray[np.uint64]) -> Float64Array:
        """Canonical residues (..., L, n), centred."""
        values = residues.astype(np.float64)
        primes = self.primes[-residues.shape[-2] :, None]
        return np.where(values > primes / 2, values - primes, values)

    def canonical(self, x: Float64Array) -> NDArray[np.uint64]:
        """Centred residues (..., L, n) of the last L primes as integers from 0 to p - 1."""
        primes = self.primes[-x.shape[-2] :, None]
        return np.where(x < 0, x + primes, x).astype(np.uint64)

    def with_errors(self, x: Float64Array, stream: Stream) -> Float64Array:
        """Add an error to every coefficient of polynomials (K, L, n), in place."""
        from colonnade.crypto import wide_kernels

        wide_kernels.add_errors(x, stream.words(len(x) * self.n).reshape(-1, self.n), self.primes)
        return x

    def rescaled(self, x: Float64Array) -> Float64Array:
        """Numbers (K, L, m) divided by the first prime and rounded: residues (K, L - 1, m) of the other primes."""
        from colonnade.crypto import wide_kernels

        out = np.empty((len(x), len(self.primes) - 1, x.shape[2]))
        wide_kernels.rescale(x, self.inverses, self.primes, out)
        return out

    def _with_quotients(self, tables: list[list[int]]) -> tuple[Float64Array, Float64Array]:
        """Centred factors (L, m), and these over their primes."""
        pairs = list(zip(tables, self._integers, strict=True))
        factors = np.array([[float(_centre(value, p)) for value in table] for table, p in pairs])
        return factors, np.array([[_centre(value, p) / p for value in table] for table, p in pairs])

    def _flat(self, x: Float64Array) -> Float64Array:
        assert x.flags.c_contiguous
        assert x.shape[-2:] == (len(self.primes), self.n)
        return x.reshape(-1, *x.shape[-2:])


def mirrored(polynomials: NDArray[Any]) -> NDArray[Any]:
    """P(1/X): coefficient 0 of a product with it is an inner product."""
    return np.concatenate([polynomials[..., :1], -polynomials[..., :0:-1]], axis=-1)


def wide_ring_of(profile: Profile) -> WideRing:
    """The ring of a profile, made once."""
    return _ring(profile.n, profile.primes)


@cache
def _ring(n: int, primes: tuple[int, ...]) -> WideRing:
    return WideRing(n, primes)


def _stages(n: int) -> list[tuple[int, int]]:
    """(count, i) for count = 1, 2, 4, ... below n and i < count: places 1 to n - 1 of a table of roots."""
    return [(1 << (place.bit_length() - 1), place - (1 << (place.bit_length() - 1))) for place in range(1, n)]


def _bit_reversed(n: int) -> list[int]:
    order = [0]
    while len(order) < n:
        order = [2 * i for i in order] + [2 * i + 1 for i in order]
    return order


def _root(n: int, p: int) -> int:
    """A primitive 2n-th root of unity modulo p."""
    base = next(g for g in range(2, p) if pow(g, (p - 1) // 2, p) == p - 1)
    return pow(base, (p - 1) // (2 * n), p)


def _powers(root: int, n: int, p: int) -> list[int]:
    powers = [1]
    while len(powers) < n:
        powers.append(powers[-1] * root % p)
    return powers


def _centre(value: int, p: int) -> int:
    return value - p if value > p // 2 else value
