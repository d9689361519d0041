"""Additive: what a protocol asks of an additively homomorphic key, whichever scheme it belongs to.

Ciphertexts are arrays: of words as they cross between parties, of whatever suits a scheme while it computes. A vector
of N rows is encrypted in blocks; a prepared matrix times it gives one sum per column, several to a ciphertext. Sums are
integers below 2^52, and what a secret key returns of them is modulo 2^53.
"""

from __future__ import annotations

from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

Data: TypeAlias = NDArray[Any]
"""Ciphertexts as a scheme computes with them."""

SUM_BITS = 53


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
