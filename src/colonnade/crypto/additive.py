"""Additive: what a protocol asks of an additively homomorphic key, whichever scheme it belongs to.

Ciphertexts are arrays: of words as they cross between parties, of whatever suits a scheme while it computes. A vector
of N rows is encrypted in blocks; a prepared matrix times it gives one sum per column, several to a ciphertext. Sums are
integers below 2^52, and what a secret key returns of them is modulo 2^53.

Reals are integers in fixed point, with bounds under which no sum overflows. A product sums, over at most N rows, a
column of at most 2^c times a residual of at most 2^r. It is exact while N 2^c 2^r <= 2^51. `Widths` divides these 51
bits so that at 2^19 rows columns have 12 and residuals 20, and with fewer rows both have more; the noise of an
encrypted product, which grows with sqrt(N) 2^c, is then never larger.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, frexp, log2
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from colonnade.errors import Overflow

Data: TypeAlias = NDArray[Any]
"""Ciphertexts as a scheme computes with them."""

SUM_BITS = 53
PRODUCT_BITS = 51
MOST_ROWS = 2**19
_NORM_BITS = 43


class PublicKey(Protocol):
    """Encrypts, adds, multiplies by a matrix, masks; cannot decrypt."""

    scheme: str
    fingerprint: bytes
    coefficients: int
    """How many values of one masked ciphertext count towards the budget of a profile."""

    def to_bytes(self) -> bytes:
        """The key as it crosses."""

    def vector_size(self, n_rows: int, block: int) -> int:
        """How many ciphertexts a vector has."""

    def masked_size(self, n_values: int, block: int) -> int:
        """How many ciphertexts `n_values` masked sums have."""

    def encrypt(self, values: NDArray[np.int64], block: int) -> Data:
        """Encrypt a vector, fresh every time."""

    def packed(self, data: Data) -> NDArray[np.uint64]:
        """Ciphertexts as they cross."""

    def unpacked(self, words: NDArray[np.uint64], n_ciphertexts: int, sender: str) -> Data:
        """Ciphertexts that crossed; refuses another number of ciphertexts, or another scheme."""

    def add(self, a: Data, b: Data) -> Data:
        """Encryptions of sums."""

    def prepare(self, matrix: Any, block: int, *, cached: bool = True) -> Any:
        """A matrix (rows, columns), dense or sparse, for `product`; `cached` if it is used often and memory allows."""

    def product(self, prepared: Any, data: Data) -> Data:
        """Encryptions of the sums over rows, for each column; not for anybody's eyes before `refreshed` or `masked`."""

    def refreshed(self, data: Data) -> Data:
        """The same sums in ciphertexts that tell somebody without the key nothing about the matrix."""

    def masked(
        self, data: Data, block: int, n_values: int, chosen: NDArray[np.uint64] | None = None
    ) -> tuple[Data, NDArray[np.uint64]]:
        """The sums plus uniform masks, in ciphertexts that tell the holder of the key nothing else; and the masks.

        Masks modulo 2^53 may be chosen, if they were drawn uniformly elsewhere.
        """


class SecretKey(Protocol):
    """Decrypts what was masked for it."""

    public: PublicKey
    """The key to give away."""

    def to_bytes(self) -> bytes:
        """All of the key, for its owner's own checkpoint."""

    def decrypt(self, data: Data, block: int, n_values: int) -> NDArray[np.uint64]:
        """The first `n_values` sums of ciphertexts, rounded to integers, modulo 2^53."""


def unmasked(opened: NDArray[np.uint64], masks: NDArray[np.uint64]) -> NDArray[np.int64]:
    """The sums behind masks, between -2^52 and 2^52.

    >>> unmasked(np.array([3], np.uint64), np.array([5], np.uint64)).tolist()
    [-2]
    """
    shift = np.uint64(64 - SUM_BITS)
    return ((opened - masks) << shift).view(np.int64) >> np.int64(64 - SUM_BITS)


@dataclass(frozen=True)
class Widths:
    """How many bits the numbers of a product may have.

    >>> Widths.of(2**19)
    Widths(column_bits=12, residual_bits=20)
    >>> Widths.of(4096)
    Widths(column_bits=15, residual_bits=24)
    """

    column_bits: int
    residual_bits: int

    @classmethod
    def of(cls, n_rows: int) -> Widths:
        """The widths for sums over `n_rows` rows."""
        if n_rows > MOST_ROWS:
            raise Overflow(
                f"An encrypted product sums over at most {MOST_ROWS} rows, but {n_rows} were given. "
                "Use smaller batches."
            )
        rows = ceil(log2(max(n_rows, 1)))
        columns = min((_NORM_BITS - rows) // 2, 20)
        return cls(columns, min(PRODUCT_BITS - rows - columns, 30))


def encoded(values: NDArray[np.float64], fraction_bits: int, most_bits: int, what: str) -> NDArray[np.int64]:
    """Reals as integer multiples of 2^-fraction_bits; raises `Overflow` if one is above 2^most_bits or not a number.

    `what` says what the values are, and whose, for the error.

    >>> encoded(np.array([1.5, -0.25]), 8, 20, "example's scores").tolist()
    [384, -64]
    """
    with np.errstate(over="ignore", invalid="ignore"):
        scaled = np.rint(np.ldexp(values, fraction_bits))
        within = np.abs(scaled) <= 2.0**most_bits
    if not within.all():
        raise Overflow(
            f"{what} should be at most {2.0 ** (most_bits - fraction_bits):g} in absolute value to be encrypted, but "
            f"{np.count_nonzero(~within)} of {within.size} are larger or not finite. Standardise the columns or lower "
            "the learning rate."
        )
    return scaled.astype(np.int64)


def column_scales(largest: NDArray[np.float64], column_bits: int) -> NDArray[np.int64]:
    """For each column, given its largest absolute value, the bits behind the point with which that just fits."""
    exponents = np.array([frexp(value)[1] if value > 0 else 0 for value in largest], np.int64)
    return column_bits - exponents
