"""Rows: a feature party's rows as codes of bins, where they lie, and what is computed there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from colonnade.crypto.histograms import BinnedColumns, HistogramBins
from colonnade.crypto.placed_bins import PlacedBins
from colonnade.crypto.profiles import HISTOGRAM
from colonnade.models.trees.bins import BinMatrix, Bins, Column, in_pieces, masks_of
from colonnade.models.trees.splits import Split
from colonnade.tables import placement
from colonnade.tables.placement import Placement, bounds_of
from colonnade.tables.table import Table
from colonnade.wire.message import Int64Array


@dataclass(frozen=True)
class BinnedRows:
    """A feature party's rows as codes of bins.

    Attributes:
        table: The rows.
        bins: How they become codes.
        parts: The codes; in one piece where the rows are in this process.

    >>> table = Table.of({"id": [1, 2, 3], "age": [30.0, 50.0, 40.0]})
    >>> rows = BinnedRows.of(table, Bins.learned(table, np.arange(3), max_bin=2))
    >>> rows.left([Split(0, 0, None, False)]).tolist()
    [[True, False, False]]
    """

    table: Table
    bins: Bins
    parts: Placement[BinMatrix]

    @classmethod
    def of(cls, table: Table, bins: Bins) -> BinnedRows:
        """The codes of a table's rows.

        Raises:
            DataError: The table lacks a column, or holds text where there were numbers or the other way round.
        """
        bins.require_columns(table)
        return cls(table, bins, in_pieces(table).then(_encoded, bins))

    @property
    def columns(self) -> tuple[Column, ...]:
        """What everybody knows of the columns."""
        return self.bins.columns

    def __len__(self) -> int:
        return len(self.table)

    def left(self, splits: Sequence[Split], begin: int = 0, end: int | None = None) -> NDArray[np.bool_]:
        """Which of the rows from `begin` up to `end` go to the left under each split (splits, rows)."""
        bounds, end = list(pairwise(self.parts.bounds)), len(self) if end is None else end
        met = [number for number, (first, last) in enumerate(bounds) if first < end and last > begin]
        if not met:
            return np.zeros((len(splits), 0), np.bool_)
        cut = ((max(begin - first, 0), min(end, last) - first) for first, last in bounds[met[0] : met[-1] + 1])
        found = self.parts.map(_left, tuple(splits), per_part=cut, only=range(met[0], met[-1] + 1))
        return np.concatenate(list(found), axis=1)

    def vary(self, rows: Int64Array) -> bool:
        """Whether some rows differ in any column."""
        ranges = reduce(_wider, self.parts.map(_ranges, per_part=masks_of(self.parts, rows)))
        return bool((ranges[0] < ranges[1]).any())

    def histogram(self, rows: Int64Array) -> BinnedColumns:
        """Some rows, in the order of their numbers, as encrypted sums over bins need them."""
        if self.table.placed is None:
            (found,) = self.parts.map(_histogram, rows)
            return found
        # Where a partition ends, a public polynomial ends.
        size = -(-placement.PARTITION_ROWS // HISTOGRAM.n) * HISTOGRAM.n
        bounds = bounds_of(len(rows), size)
        as_they_lie = bounds == self.parts.bounds and len(rows) == len(self)
        codes = self.parts if as_they_lie else self.table.take(rows).cut(bounds).then(_encoded, self.bins)
        return PlacedBins(codes.then(_histogram), tuple(column.width for column in self.columns))

    def collected(self) -> BinMatrix:
        """All codes, in this process."""
        return BinMatrix(self.columns, np.concatenate(list(self.parts.map(_codes))))


def _encoded(part: Table, bins: Bins) -> BinMatrix:
    return bins.encode(part)


def _codes(part: BinMatrix) -> NDArray[np.unsignedinteger]:
    return part.codes


def _left(part: BinMatrix, splits: Sequence[Split], rows: tuple[int, int]) -> NDArray[np.bool_]:
    found = [split.left_rows(part, slice(*rows)) for split in splits]
    return np.array(found, np.bool_).reshape(len(splits), rows[1] - rows[0])


def _ranges(part: BinMatrix, chosen: NDArray[np.bool_]) -> NDArray[np.int64]:
    """The lowest and the highest code of each column among some rows (2, columns)."""
    codes = part.codes[chosen].astype(np.int64)
    return np.stack([codes.min(axis=0, initial=np.iinfo(np.int64).max), codes.max(axis=0, initial=-1)])


def _wider(one: NDArray[np.int64], other: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.stack([np.minimum(one[0], other[0]), np.maximum(one[1], other[1])])


def _histogram(part: BinMatrix, rows: Int64Array | slice = slice(None)) -> HistogramBins:
    return HistogramBins(np.ascontiguousarray(part.codes[rows].T), [column.width for column in part.columns])
