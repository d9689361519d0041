"""Packing: residues as they cross between parties, 26 bits each and none wasted.

Eight residues take 26 bytes instead of the 32 of memory. Bits follow each other from the lowest of the first word on.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

RESIDUE_BITS = 26


def n_words(n_residues: int) -> int:
    """How many words so many residues take.

    >>> n_words(8192)
    3328
    """
    return -(-n_residues * RESIDUE_BITS // 64)


def packed(residues: NDArray[np.uint32]) -> NDArray[np.uint64]:
    """Residues (..., n) as words (..., n_words(n)).

    >>> packed(np.array([1, 2, 3], np.uint32)).tolist() == [1 + (2 << 26) + (3 << 52) % 2**64, 0]
    True
    """
    from colonnade.crypto import kernels

    *outer, n = residues.shape
    flat = np.ascontiguousarray(residues).reshape(-1, n)
    words = np.zeros((len(flat), n_words(n)), np.uint64)
    kernels.pack(flat, words)
    return words.reshape(*outer, -1)


def unpacked(words: NDArray[np.uint64], n: int) -> NDArray[np.uint32]:
    """The residues (..., n) in words; each below 2^26, which does not make them canonical."""
    from colonnade.crypto import kernels

    *outer, width = words.shape
    assert width == n_words(n)
    flat = np.ascontiguousarray(words).reshape(-1, width)
    residues = np.empty((len(flat), n), np.uint32)
    kernels.unpack(flat, residues)
    return residues.reshape(*outer, n)
