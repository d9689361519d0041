"""Placed bins: private columns in partitions of rows, and hints and sums made where these lie.

Residues are whole numbers, so sums over partitions add up to those over all rows, to the last bit.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from colonnade.crypto.engines import Engine, engine_of
from colonnade.crypto.histograms import BinnedColumns, HistogramBins
from colonnade.crypto.wide import Float64Array, WideRing
from colonnade.tables.placement import Placement

Residues: TypeAlias = NDArray[np.uint64]


class PlacedBins(BinnedColumns):
    """A party's private columns cut into bins, in partitions each of which begins where a public polynomial begins.

    Args:
        parts: The partitions.
        widths: How many bins each column has.
    """

    def __init__(self, parts: Placement[HistogramBins], widths: tuple[int, ...]) -> None:
        self.parts, self.widths = parts, widths

    @property
    def n_rows(self) -> int:
        return self.parts.bounds[-1]

    def narrowed(self, columns: NDArray[np.bool_]) -> PlacedBins:
        return PlacedBins(self.parts.then(HistogramBins.narrowed, columns), self.widths_of(columns))

    @property
    def digest(self) -> bytes:
        return blake3(b"".join(self.parts.map(_digest))).digest()

    def hints(self, ring: WideRing, blocks: Float64Array) -> Float64Array:
        out, primes = np.zeros((self.n_sums, *blocks.shape[1:])), ring.primes[:, None]
        cut = (blocks[begin // ring.n : -(-end // ring.n)] for begin, end in pairwise(self.parts.bounds))
        for found in self.parts.map(HistogramBins.hints, ring, per_part=cut):
            # The sum of two centred numbers is exact, and a prime more or less centres it.
            out += found
            out -= primes * np.rint(out / primes)
        return out


def adding_up(bins: BinnedColumns, device: str) -> Callable[[Any, Residues, NDArray[np.uint8], Residues], Residues]:
    """What gives the sums over bins of a query as `Engine.sums` does, on a device of whoever holds the rows."""
    return partial(_placed_sums, device) if isinstance(bins, PlacedBins) else engine_of(device).sums


def _placed_sums(
    device: str, bins: PlacedBins, words: Residues, tails: NDArray[np.uint8], limits: Residues
) -> Residues:
    bounds = pairwise(bins.parts.bounds)
    cut = ((words[..., begin:end], tails[..., begin:end]) for begin, end in bounds)
    out = np.zeros((bins.n_sums, len(words), len(limits)), np.uint64)
    for found in bins.parts.map(_sums, device, limits, per_part=cut):
        out = (out + found) % limits
    return out


def _sums(bins: HistogramBins, device: str, limits: Residues, query: tuple[Residues, NDArray[np.uint8]]) -> Residues:
    words, tails = map(np.ascontiguousarray, query)
    return _engine(device).sums(bins, words, tails, limits)


@cache
def _engine(device: str) -> Engine:
    return engine_of(device)


def _digest(bins: HistogramBins) -> bytes:
    return bins.digest
