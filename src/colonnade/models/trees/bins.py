"""Bins: a party's columns cut into few bins each, the only form in which trees see them.

    numeric       bin b holds the values from cut b - 1 up to, but without, cut b
    categorical   bin b holds the b-th level
    missing       the code after the last bin holds missing values, levels never seen in training, and levels too rare
                  for a bin; sums are kept for this code only where the training rows have such values

Columns have as many bins as they need. Cuts and levels stay with their owner; the number of bins of a column, its kind,
and whether it has missing values are public (`Column`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from colonnade.errors import DataError
from colonnade.storage import Tree as Stored
from colonnade.tables.placement import Placement, total
from colonnade.tables.table import Table
from colonnade.wire.message import Float64Array, Int64Array

MOST_BINS = 2**16 - 2
"""A code has 16 bits, and one value stands for missing."""


@dataclass(frozen=True)
class Column:
    """What everybody knows of a column.

    Attributes:
        n_bins: How many bins hold values.
        missing: Whether one more bin holds missing values.
        categorical: Whether bins are levels without an order.
    """

    n_bins: int
    missing: bool = False
    categorical: bool = False

    @property
    def width(self) -> int:
        """How many sums a node has for this column."""
        return self.n_bins + self.missing


def told_columns(columns: Sequence[Column], allowed: NDArray[np.bool_] | None) -> NDArray[np.bool_] | None:
    """Of which columns sums are told where some may split; None for all."""
    return None if allowed is None else allowed & np.array([column.width > 1 for column in columns], np.bool_)


def starts(columns: Sequence[Column]) -> Int64Array:
    """Where each column's sums begin among those of all columns, and at last how many there are.

    >>> starts([Column(3), Column(2, missing=True)]).tolist()
    [0, 3, 6]
    """
    return np.concatenate([[0], np.cumsum([column.width for column in columns], dtype=np.int64)]).astype(np.int64)


@dataclass(frozen=True)
class BinMatrix:
    """One party's rows as codes of bins; private to this party.

    Attributes:
        columns: What everybody knows of the columns.
        codes: For each row and column the bin, unsigned integers (rows, columns).
    """

    columns: tuple[Column, ...]
    codes: NDArray[Any]

    @cached_property
    def places(self) -> NDArray[np.int32]:
        """For each row and column the place of the row's bin among all sums (rows, columns); -1 where it has none.

        Rows held out may have missing values or levels that no training row has.
        """
        exists = self.codes < np.array([column.width for column in self.columns])
        return np.ascontiguousarray(np.where(exists, self.codes + starts(self.columns)[:-1], -1), np.int32)

    @cached_property
    def placed(self) -> NDArray[np.bool_]:
        """Which rows have a place in each column."""
        return np.asarray((self.places >= 0).all(axis=1), np.bool_)


@dataclass(frozen=True)
class Bins:
    """How a party's columns become bins, learned from its training rows.

    Attributes:
        cuts: For each numeric or boolean column the values at which bins after the first begin.
        levels: For each categorical column the levels that have a bin.
        gaps: The columns in which training rows have missing values or levels without a bin.

    >>> table = Table.of({"id": [1, 2, 3], "age": [30.0, 50.0, None], "job": ["cook", "nurse", "cook"]})
    >>> bins = Bins.learned(table, np.arange(3), max_bin=32)
    >>> bins.encode(table).codes.tolist()
    [[0, 0], [1, 1], [2, 0]]
    >>> bins.columns
    (Column(n_bins=2, missing=True, categorical=False), Column(n_bins=2, missing=False, categorical=True))
    """

    cuts: Mapping[str, Float64Array]
    levels: Mapping[str, tuple[str, ...]]
    gaps: tuple[str, ...]

    @classmethod
    def learned(cls, table: Table, rows: Int64Array, *, max_bin: int) -> Bins:
        """Learn cuts and levels from some rows of a table, numeric columns first.

        Args:
            table: The party's table.
            rows: The training rows.
            max_bin: How many bins a column may have; of more levels, the most frequent ones have a bin.

        Raises:
            DataError: A column holds curves, or `max_bin` is out of range.
        """
        if not 2 <= max_bin <= MOST_BINS:
            raise DataError(f"max_bin should be between 2 and {MOST_BINS}, but is {max_bin}. Choose one in between.")
        cuts: dict[str, Float64Array] = {}
        levels: dict[str, tuple[str, ...]] = {}
        gaps = []
        for name, kind in table.kinds.items():
            if kind == "curves":
                raise DataError(
                    f"{table.owner} should bring numbers, text or booleans for trees, but its column {name!r} holds "
                    "curves. Leave this column out, or use a model for curves such as FunctionalBoost."
                )
            pieces = in_pieces(table)
            if kind == "categorical":
                counts = total(pieces.map(_level_counts, name, per_part=masks_of(pieces, rows)))
                frequent = sorted(counts, key=lambda level: (-counts[level], level))[:max_bin]
                levels[name] = tuple(sorted(frequent))
                n_binned = sum(counts[level] for level in frequent)
            else:
                values = _merged(list(pieces.map(_value_counts, name, per_part=masks_of(pieces, rows))))
                cuts[name] = quantile_cuts(values[0], max_bin, values[1])
                n_binned = int(values[1].sum())
            if n_binned < len(rows):
                gaps.append(name)
        return cls(cuts, levels, tuple(gaps))

    @property
    def names(self) -> tuple[str, ...]:
        """The columns in the order of codes: numeric and boolean ones, then categorical ones."""
        return (*self.cuts, *self.levels)

    @property
    def columns(self) -> tuple[Column, ...]:
        """What everybody may know of each column."""
        # A column without any value in training has one bin all the same, which stays empty.
        numeric = [Column(len(cuts) + 1, name in self.gaps) for name, cuts in self.cuts.items()]
        categorical = [Column(max(1, len(each)), name in self.gaps, True) for name, each in self.levels.items()]
        return (*numeric, *categorical)

    def encode(self, table: Table) -> BinMatrix:
        """The codes of a table's rows.

        Raises:
            DataError: The table lacks a column, or holds text where there were numbers or the other way round.
        """
        self.require_columns(table)
        columns = self.columns
        narrow = all(column.n_bins < 2**8 for column in columns)
        codes = np.empty((len(table), len(columns)), np.uint8 if narrow else np.uint16)
        for place, (name, column) in enumerate(zip(self.names, columns, strict=True)):
            values = table.column(name)
            if column.categorical:
                known = {level: code for code, level in enumerate(self.levels[name])}
                codes[:, place] = [known.get(value, column.n_bins) for value in values]
            else:
                found = np.searchsorted(self.cuts[name], values, side="right")
                codes[:, place] = np.where(np.isnan(values), column.n_bins, found)
        return BinMatrix(columns, codes)

    def require_columns(self, table: Table) -> None:
        """Refuse a table that lacks a column, or has text where there were numbers or the other way round."""
        for name in self.names:
            if name not in table.columns:
                raise DataError(
                    f"{table.owner} trained with the column {name!r}, but its table has only "
                    f"{', '.join(table.columns) or 'no columns'}. Bring the columns of the training."
                )
            if (table.kinds[name] == "categorical") != (name in self.levels):
                raise DataError(
                    f"{table.owner} trained with {'text' if name in self.levels else 'numbers'} in the column "
                    f"{name!r}, which now holds {table.kinds[name]} values. Bring the column as in the training."
                )

    def state(self) -> Stored:
        """The learned values as a tree."""
        return {"cuts": dict(self.cuts), "levels": dict(self.levels), "gaps": self.gaps}

    @classmethod
    def of(cls, tree: Mapping[str, Any]) -> Bins:
        """The bins that `state` wrote down."""
        levels = {name: tuple(values) for name, values in tree["levels"].items()}
        return cls(dict(tree["cuts"]), levels, tuple(tree["gaps"]))


def in_pieces(table: Table) -> Placement[Table]:
    """The rows where they lie, in one piece if that is this process: cuts change neither counts nor codes."""
    return table.cut((0, len(table))) if table.placed is None else table.partitions


def masks_of(pieces: Placement[Any], rows: Int64Array) -> Iterator[NDArray[np.bool_]]:
    """Which rows of each piece are among some rows."""
    chosen = np.zeros(pieces.bounds[-1], np.bool_)
    chosen[rows] = True
    return pieces.cut(chosen)


def _level_counts(part: Table, name: str, chosen: NDArray[np.bool_]) -> Counter[str]:
    return Counter(value for value in part.column(name)[chosen] if value is not None)


def _value_counts(part: Table, name: str, chosen: NDArray[np.bool_]) -> tuple[Float64Array, Int64Array]:
    values = part.column(name)[chosen]
    return np.unique(values[~np.isnan(values)], return_counts=True)


def _merged(found: Sequence[tuple[Float64Array, Int64Array]]) -> tuple[Float64Array, Int64Array]:
    """Different values in ascending order, and how often each occurs, from those of pieces."""
    if len(found) == 1:
        return found[0]
    values, counts = (np.concatenate(each) for each in zip(*found, strict=True))
    order = np.argsort(values, kind="stable")
    values, counts = values[order], counts[order]
    begin = np.flatnonzero(np.concatenate([np.ones(min(1, len(values)), np.bool_), values[1:] != values[:-1]]))
    return values[begin], np.add.reduceat(counts, begin) if len(begin) else counts


def quantile_cuts(values: Float64Array, max_bin: int, counts: Int64Array | None = None) -> Float64Array:
    """Cuts of numbers into at most `max_bin` bins that hold about as many values each.

    A value that fills a bin by itself gets the bin, and the rest is cut into bins of equal weight. Where there are no
    more different values than bins, each has a bin.

    Args:
        values: The numbers.
        max_bin: How many bins there are at most.
        counts: How often each number occurs, where `values` are different ones in ascending order.

    >>> quantile_cuts(np.array([0.0, 0, 0, 0, 0, 0, 1, 2, 3, 4]), 3).tolist()
    [0.5, 2.5]
    """
    unique, counts = np.unique(values, return_counts=True) if counts is None else (values, counts)
    if len(unique) <= max_bin:
        first = np.arange(1, len(unique))
    else:
        ends, chosen, done = np.cumsum(counts), [], 0
        for left in range(max_bin, 1, -1):
            begun = ends[done - 1] if done else 0
            wanted = begun + (ends[-1] - begun) / left
            # The end nearest to an equal share of what is left; a bin has at least one value, and leaves one for each.
            above = int(np.searchsorted(ends, wanted))
            nearer = above > done and wanted - ends[above - 1] <= ends[above] - wanted
            done = min(max(done + 1, above if nearer else above + 1), len(unique) - left + 1)
            chosen.append(done)
        first = np.array(chosen)
    lower, upper = unique[first - 1], unique[first]
    with np.errstate(over="ignore", invalid="ignore"):
        middle = lower + (upper - lower) / 2
    # Neighbouring floats have no number in between, and infinite ones no middle.
    cuts: Float64Array = np.where((middle > lower) & (middle <= upper), middle, upper)
    return cuts
