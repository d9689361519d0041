"""Engines: what computes the two dear steps of hinted sums, word sums at a holder and pads at the asker.

The processor's engine calls compiled kernels; `accelerator` has one for PyTorch's devices. Both give the same numbers.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from colonnade.crypto.histograms import HistogramBins, faulty_query
from colonnade.crypto.sampling import Stream
from colonnade.crypto.wide import Float64Array, WideRing
from colonnade.devices import computes_on_gpu


class Engine(Protocol):
    """What computes; one object serves one holder or one asker."""

    def sums(
        self, bins: HistogramBins, words: NDArray[np.uint64], tails: NDArray[np.uint8], limits: NDArray[np.uint64]
    ) -> NDArray[np.uint64]:
        """The sums over bins of each number of a query (words and tails as `Query` has them): (sums, Q, L).

        Raises:
            CryptoError: A residue is not below its prime.
        """

    def pad(
        self, ring: WideRing, blocks: Float64Array, secret: Float64Array, stream: Stream, out: Float64Array
    ) -> None:
        """Products of transformed polynomials (K, L, n) and one (L, n), transformed back, each with a new error."""


def engine_of(device: str) -> Engine:
    """The engine of a device: "cpu", "cuda", or "auto" for a GPU where there is one."""
    if not computes_on_gpu(device):
        return Processor()
    from colonnade.crypto.accelerator import Accelerator

    return Accelerator("cuda")


class Processor:
    """Compiled kernels on one thread."""

    def __init__(self) -> None:
        # Memory for unpacked residues, the same at every call: new memory of this size costs more than its use.
        self._rooms: dict[tuple[int, int], NDArray[np.uint64]] = {}

    def sums(
        self, bins: HistogramBins, words: NDArray[np.uint64], tails: NDArray[np.uint8], limits: NDArray[np.uint64]
    ) -> NDArray[np.uint64]:
        """Two numbers at a time, one row after the other."""
        from colonnade.crypto import wide_kernels

        out = np.empty((bins.n_sums, len(words), len(limits)), np.uint64)
        for first in range(0, len(words), 2):
            some = range(first, min(first + 2, len(words)))
            shape = bins.n_rows, len(limits) * len(some)
            if shape not in self._rooms:
                self._rooms[shape] = np.empty(shape, np.uint64)
            values = self._rooms[shape]
            for place, number in enumerate(some):
                if not wide_kernels.unseal(words[number], tails[number], limits, values, place * len(limits)):
                    raise faulty_query()
            found = bins.sums(values, np.tile(limits, len(some)))
            out[:, first : first + len(some)] = found.reshape(len(found), len(some), len(limits))
        return out

    def pad(
        self, ring: WideRing, blocks: Float64Array, secret: Float64Array, stream: Stream, out: Float64Array
    ) -> None:
        """One polynomial after the other."""
        ring.with_errors(ring.inverse(ring.times(blocks, secret, out=out)), stream)
