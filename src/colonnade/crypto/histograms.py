"""Histograms: sums of residues over the bins of private columns, by plain additions.

Two columns at a time share one histogram over their pairs of bins, as far as these are few: half as many additions, and
both sums are margins of it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property
from hmac import compare_digest
from pathlib import Path
from typing import Any

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from colonnade.crypto.packing import n_words, packed, unpacked_wide
from colonnade.crypto.wide import PRIME_BITS, Float64Array, WideRing, mirrored
from colonnade.errors import CryptoError, DataError
from colonnade.storage import explained, write_atomically

# Pairs of columns with at most this number of pairs of bins are added up together.
_MOST_CELLS = 1024


class BinnedColumns(ABC):
    """A party's private columns cut into bins: for each bin but the last one of each column a row of sums.

    Attributes:
        widths: How many bins each column has.
    """

    widths: tuple[int, ...]

    @property
    @abstractmethod
    def n_rows(self) -> int:
        """How long vectors are."""

    @property
    def n_sums(self) -> int:
        """How many sums an answer has for each number."""
        return sum(width - 1 for width in self.widths)

    @property
    @abstractmethod
    def digest(self) -> bytes:
        """What tells these bins from others."""

    @abstractmethod
    def narrowed(self, columns: NDArray[np.bool_]) -> BinnedColumns:
        """Some of the columns alone."""

    @abstractmethod
    def hints(self, ring: WideRing, blocks: Float64Array) -> Float64Array:
        """For each bin the sum of public polynomials (blocks, L, n) over its rows, transformed (sums, L, n)."""

    def widths_of(self, columns: NDArray[np.bool_]) -> tuple[int, ...]:
        """How many bins each of some columns has."""
        return tuple(np.array(self.widths)[columns].tolist())

    def sums_of(self, columns: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Which of the sums are over bins of some columns."""
        return np.repeat(columns, np.array(self.widths) - 1)


class HistogramBins(BinnedColumns):
    """Columns whose rows are in this process.

    Args:
        codes: The bin of each row (columns, rows), unsigned.
        widths: How many bins each column has.

    Raises:
        DataError: No column has two bins, so there is nothing to add up.
    """

    def __init__(self, codes: NDArray[Any], widths: Sequence[int]) -> None:
        assert len(codes) == len(widths)
        if max(widths, default=0) < 2:
            raise DataError(
                "A party that answers for sums should have a column with two bins at least, but all of its columns are "
                "constant. Leave this party out of the sums."
            )
        assert all((row < width).all() for row, width in zip(codes, widths, strict=True)), "every code has a bin"
        self.codes, self.widths = codes, tuple(widths)

    @property
    def n_rows(self) -> int:
        return int(self.codes.shape[1])

    def narrowed(self, columns: NDArray[np.bool_]) -> HistogramBins:
        return HistogramBins(self.codes[columns], self.widths_of(columns))

    @cached_property
    def digest(self) -> bytes:
        content = blake3(repr(self.widths).encode())
        content.update(np.ascontiguousarray(self.codes, np.uint16).tobytes())
        return content.digest()

    def hints(self, ring: WideRing, blocks: Float64Array) -> Float64Array:
        out = np.empty((self.n_sums, *blocks.shape[1:]))
        padded, place = np.zeros((len(blocks), ring.n), np.int8), 0
        for codes, width in zip(self.codes, self.widths, strict=True):
            for bin in range(width - 1):
                padded.reshape(-1)[: self.n_rows] = codes == bin
                out[place] = ring.dot(ring.forward(ring.small(mirrored(padded))), blocks)
                place += 1
        return out

    @cached_property
    def _groups(self) -> list[tuple[NDArray[np.uint16], list[int], int]]:
        """Columns by ones and twos: the pair of bins of each row, the columns, and how many rows are added at once."""
        groups: list[tuple[NDArray[np.uint16], list[int], int]] = []
        column = 0
        while column < len(self.widths):
            pair = [column, column + 1]
            if column + 1 == len(self.widths) or self.widths[column] * self.widths[column + 1] > _MOST_CELLS:
                pair = [column]
            cells = self.codes[column].astype(np.uint16)
            for other in pair[1:]:
                cells = cells * np.uint16(self.widths[other]) + self.codes[other].astype(np.uint16)
            groups.append((cells, pair, _rows_at_once(cells)))
            column += len(pair)
        return groups

    def sums(self, values: NDArray[np.uint64], limits: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """For each bin the sums of residues (rows, lanes), four or eight lanes, modulo the lanes' primes."""
        from colonnade.crypto import wide_kernels

        lanes = values.shape[1]
        add = wide_kernels.add_four if lanes == 4 else wide_kernels.add_eight
        found: list[NDArray[np.uint64]] = [np.zeros((width, lanes), np.uint64) for width in self.widths]
        nowhere = np.zeros((1, lanes), np.uint64)
        for cells, columns, at_once in self._groups:
            one, two = (nowhere, found[columns[0]]) if len(columns) == 1 else (found[each] for each in columns)
            totals = np.zeros((len(one) * len(two), lanes), np.uint64)
            for start in range(0, self.n_rows, at_once):
                some = slice(start, start + at_once)
                add(cells[some], values[some], totals)
                wide_kernels.margins(totals, limits, one, two)
        return np.concatenate([each[:-1] for each in found])


def faulty_query() -> CryptoError:
    """What is raised where a residue of a query is not below its prime."""
    return CryptoError("A query should hold residues below their primes and does not. The asker is faulty.")


def kept_hints(
    bins: BinnedColumns, ring: WideRing, blocks: Float64Array, seed: bytes, folder: Path | None
) -> Float64Array:
    """Bare hints, from the folder if an earlier start of the training with this seed left them there."""
    if folder is None:
        return bins.hints(ring, blocks)
    name = blake3(seed + bins.digest).hexdigest()
    path, shape = folder / f"hints-{name}", (bins.n_sums, len(ring.primes), n_words(ring.n, PRIME_BITS))
    if path.exists():
        with explained(f"read {path.name}"):
            data = path.read_bytes()
        content, digest = data[:-32], data[-32:]
        if compare_digest(blake3(content).digest(), digest) and len(content) == 8 * int(np.prod(shape)):
            words = np.frombuffer(content, "<u8").astype(np.uint64, copy=False).reshape(shape)
            return ring.centred(unpacked_wide(words, ring.n, PRIME_BITS))
    bare = bins.hints(ring, blocks)
    content = packed(ring.canonical(bare), PRIME_BITS).astype("<u8", copy=False).tobytes()
    write_atomically(path, content + blake3(content).digest())
    return bare


def _rows_at_once(cells: NDArray[np.uint16]) -> int:
    """How many rows can be added up before numbers in any cell might not fit a word any more."""
    from colonnade.crypto import wide_kernels

    most, at_once = wide_kernels.MOST_ADDED, len(cells)
    while at_once > most and any(
        np.bincount(cells[start : start + at_once]).max() > most for start in range(0, len(cells), at_once)
    ):
        at_once = -(-at_once // 2)
    return max(1, at_once)
