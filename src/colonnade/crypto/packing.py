"""Packing: residues as they cross between parties, 26 or 50 bits each and none wasted.

Eight residues of 26 bits take 26 bytes instead of the 32 of memory. Bits follow each other from the lowest of the first
word on.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

RESIDUE_BITS = 26


def n_words(n_residues: int, bits: int = RESIDUE_BITS) -> int:
    """How many words residues take, packed one after the other.

    >>> n_words(8192), n_words(8192, 50)
    (3328, 6400)
    """
    return -(-n_residues * bits // 64)


def packed(residues: NDArray[np.uint32] | NDArray[np.uint64], bits: int = RESIDUE_BITS) -> NDArray[np.uint64]:
    """Residues (..., n) as words (..., n_words(n, bits)).

    >>> packed(np.array([1, 2, 3], np.uint32)).tolist() == [1 + (2 << 26) + (3 << 52) % 2**64, 0]
    True
    """
    from colonnade.crypto import kernels

    *outer, n = residues.shape
    flat = np.ascontiguousarray(residues).reshape(-1, n)
    words = np.zeros((len(flat), n_words(n, bits)), np.uint64)
    kernels.pack(flat, words, bits)
    return words.reshape(*outer, words.shape[1])


def unpacked(words: NDArray[np.uint64], n: int) -> NDArray[np.uint32]:
    """The residues (..., n) of 26 bits in words; each below 2^26, which does not make them canonical."""
    residues = np.empty((*words.shape[:-1], n), np.uint32)
    _unpack(words, residues, RESIDUE_BITS)
    return residues


def unpacked_wide(words: NDArray[np.uint64], n: int, bits: int) -> NDArray[np.uint64]:
    """The residues (..., n) of `bits` bits in words."""
    residues = np.empty((*words.shape[:-1], n), np.uint64)
    _unpack(words, residues, bits)
    return residues


def _unpack(words: NDArray[np.uint64], residues: NDArray[np.uint32] | NDArray[np.uint64], bits: int) -> None:
    from colonnade.crypto import kernels

    assert words.shape[-1] == n_words(residues.shape[-1], bits)
    kernels.unpack(
        np.ascontiguousarray(words).reshape(-1, words.shape[-1]), residues.reshape(-1, residues.shape[-1]), bits
    )
