"""Encode: a party's columns as numbers, learned from its rows. All models and rankings read tables through here.

One treatment for all readers:

    numbers, booleans    standardised over the rows that have a value; a missing value becomes the mean
    missing values       one flag of 0 and 1 for each column of numbers that misses some
    categories           codes 1, 2, ... of the sorted levels; 0 for missing and for levels not seen in training

Readers differ only in the form they ask for:

    Inputs.encode        numbers, flags, codes: for networks, which embed codes
    Inputs.one_hot       numbers, flags, 0 and 1 for each code: for encoders and baselines
    Inputs.plain         one number for each column, not standardised, without flags: for rankings of columns
    Design.matrix        numbers, flags, 0 and 1 for each level, an intercept: for linear models; may be sparse
    centred              numbers of one variance for each column, curves too, gaps left open: for audits of columns
    filled               the same with gaps at the mean, and flags: for what an attacker could do alone
    filled_with_labels   the same beside the labels: for what a label party could do alone
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from colonnade.errors import DataError
from colonnade.storage import Tree
from colonnade.tables.placement import total
from colonnade.tables.table import Table

if TYPE_CHECKING:
    from scipy.sparse import csr_array

# A column of numbers is mostly zero if at least this share of it is.
MOSTLY = 0.9
# A matrix is sparse if at most one in SPARSE of its numbers differs from 0.
SPARSE = 4
# An audit looks at this many levels of a category.
COMMONEST = 50
# With fewer rows for each level of a text column, a network learns rare levels by heart.
ROWS_PER_LEVEL = 10


@dataclass(frozen=True)
class Inputs:
    """How a party's columns become numbers, learned from its training rows.

    >>> table = Table.of({"id": [1, 2, 3], "age": [20.0, None, 40.0], "job": ["cook", "nurse", None]})
    >>> inputs = Inputs.learned(table, np.arange(3))
    >>> inputs.encode(table).tolist()
    [[-1.0, 0.0, 1.0], [0.0, 1.0, 2.0], [1.0, 0.0, 0.0]]
    """

    numeric: tuple[str, ...]
    means: NDArray[np.float64]
    scales: NDArray[np.float64]
    flagged: tuple[str, ...]
    levels: Mapping[str, tuple[str, ...]]

    @classmethod
    def learned(cls, table: Table, rows: NDArray[np.int64], most_levels: int | None = None) -> Inputs:
        """Learn means, scales and the commonest levels from some rows of a table."""
        for name, kind in table.kinds.items():
            if kind == "curves":
                raise DataError(
                    f"{table.owner} should bring numbers, text or booleans for this model, but its column {name!r} "
                    "holds curves. Leave it out, or use a model for curves such as FunctionalBoost."
                )
        kinds = table.kinds
        numeric = tuple(name for name in table.columns if kinds[name] != "categorical")
        text = tuple(name for name in table.columns if kinds[name] == "categorical")
        rows, bounds = np.sort(rows), table.partitions.bounds
        ends = np.searchsorted(rows, bounds)
        cut = [rows[first:last] - begin for begin, (first, last) in zip(bounds, pairwise(ends), strict=False)]
        n_present, sums = total(table.map(_sums, numeric, per_part=cut))
        means = np.divide(sums, n_present, out=np.zeros(len(numeric)), where=n_present > 0)
        squares = total(table.map(_squared_deviations, numeric, means, per_part=cut))
        deviations = np.sqrt(np.divide(squares, n_present, out=np.zeros(len(numeric)), where=n_present > 0))
        for name, deviation in zip(numeric, deviations, strict=True):
            if not np.isfinite(deviation):
                raise _too_large(table, name)
        # A constant column has a deviation of rounding errors, which must not be divided by.
        scales = np.where(deviations > 1e-12 * np.abs(means), deviations, 1.0)
        flagged = tuple(name for name, n in zip(numeric, n_present, strict=True) if n < len(rows))
        counts = total(table.map(_level_counts, text, per_part=cut))
        levels = {}
        for name in text:
            found = {level: n for (column, level), n in counts.items() if column == name}
            levels[name] = tuple(sorted(sorted(found, key=lambda level: (-found[level], level))[:most_levels]))
        return cls(numeric, means, scales, flagged, levels)

    @property
    def n_numbers(self) -> int:
        """How many of the array's columns are numbers; the others are codes."""
        return len(self.numeric) + len(self.flagged)

    @property
    def level_counts(self) -> tuple[int, ...]:
        """For each column of codes, how many codes there are, the unknown included."""
        return tuple(len(levels) + 1 for levels in self.levels.values())

    @property
    def width(self) -> int:
        """How many columns the array has."""
        return self.n_numbers + len(self.levels)

    def require_few_levels(self, table: Table, most: int) -> None:
        """Refuse text of very many levels, each of which would become a column of its own."""
        n_levels = sum(map(len, self.levels.values()))
        if n_levels > most:
            widest = max(self.levels, key=lambda name: len(self.levels[name]))
            raise DataError(
                f"{table.owner}'s text columns should have at most {most:,} levels together for this model, each of "
                f"which becomes a column, but have {n_levels:,}, {len(self.levels[widest]):,} of them in {widest!r}. "
                f"{hashing_advice(table.owner, widest)}"
            )

    def require_columns(self, table: Table) -> None:
        """Refuse a table that lacks a column, or has numbers where there was text or the other way round."""
        for name in (*self.numeric, *self.levels):
            if name not in table.kinds:
                raise DataError(
                    f"{table.owner} trained with the column {name!r} but its table has only "
                    f"{', '.join(table.columns) or 'no columns'}. Bring the columns the model was trained with."
                )
            was_categorical = name in self.levels
            if (table.kinds[name] == "categorical") != was_categorical:
                raise DataError(
                    f"{table.owner} trained with {'text' if was_categorical else 'numbers'} in the column {name!r}, "
                    f"which now holds {table.kinds[name]} values. Bring it in the form the model was trained with."
                )

    def numbers(self, table: Table, name: str) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """One column of numbers with missing values at the mean, and which values are missing."""
        values = np.asarray(table.column(name), np.float64)
        missing = np.isnan(values)
        return np.where(missing, self.means[self.numeric.index(name)], values), missing

    def codes(self, table: Table, name: str) -> NDArray[np.int64]:
        """One column of categories as codes."""
        codes = {level: code for code, level in enumerate(self.levels[name], start=1)}
        return np.array([codes.get(value, 0) for value in table.column(name)], np.int64)

    def encode(self, table: Table) -> NDArray[np.float32]:
        """Standardised numbers, flags and codes of a table's rows."""
        self.require_columns(table)
        encoded = np.zeros((len(table), self.width), np.float32)
        for i, name in enumerate(self.numeric):
            values, missing = self.numbers(table, name)
            with np.errstate(over="ignore"):
                values = (values - self.means[i]) / self.scales[i]
            if np.abs(values).max(initial=0.0) > np.finfo(np.float32).max:
                raise _too_large(table, name)
            encoded[:, i] = values
            if name in self.flagged:
                encoded[:, len(self.numeric) + self.flagged.index(name)] = missing
        for i, name in enumerate(self.levels, start=self.n_numbers):
            encoded[:, i] = self.codes(table, name)
        return encoded

    @property
    def owners(self) -> tuple[str, ...]:
        """The column of the table that each number of `one_hot` is of."""
        levels = zip(self.levels, self.level_counts, strict=True)
        return (*self.numeric, *self.flagged, *(name for name, count in levels for _ in range(count)))

    def one_hot(self, table: Table) -> tuple[NDArray[np.float64], tuple[str, ...]]:
        """Encoded rows with a column of 0 and 1 for each code, and the column of the table that each number is of."""
        encoded, n = self.encode(table), self.n_numbers
        numbers, begin = np.zeros((len(encoded), n + sum(self.level_counts))), n
        numbers[:, :n] = encoded[:, :n]
        for i, count in enumerate(self.level_counts, start=n):
            numbers[np.arange(len(encoded)), begin + encoded[:, i].astype(np.int64)] = 1
            begin += count
        return numbers, self.owners

    def plain(self, table: Table) -> NDArray[np.float64]:
        """One number for each column of a table, in its order."""
        self.require_columns(table)
        columns = [self.codes(table, n) if n in self.levels else self.numbers(table, n)[0] for n in table.columns]
        return np.stack(columns, axis=1).astype(np.float64)

    def state(self) -> Tree:
        """The learned values as a tree."""
        return dict(vars(self))

    @classmethod
    def of(cls, tree: Mapping[str, Any]) -> Inputs:
        """The inputs that `state` wrote down."""
        levels = {name: tuple(values) for name, values in tree["levels"].items()}
        return cls(tuple(tree["numeric"]), tree["means"], tree["scales"], tuple(tree["flagged"]), levels)


@dataclass(frozen=True)
class Design:
    """How a party's columns become the matrix of a linear model, learned from its own rows and known to nobody else.

    Numbers and booleans come first, standardised or as they are; then flags of missing values; then one column of
    0 and 1 for each level of a categorical column; last, if wanted, the intercept.

    If few of these numbers differ from 0, the matrix is sparse and no dense one is ever made. Standardised columns that
    are mostly zero are then divided by their deviation but not centred, or no zero would be left. With an intercept,
    this changes no coefficient but the intercept.
    """

    inputs: Inputs
    standardised: bool
    intercept: bool
    mostly_zero: tuple[str, ...] = ()

    @classmethod
    def learned(cls, table: Table, *, standardised: bool, intercept: bool) -> Design:
        """Learn means, scales and levels from all rows of a table."""
        inputs = Inputs.learned(table, np.arange(len(table)))
        zeros = total(table.map(_zeros, inputs.numeric))
        mostly_zero = tuple(name for name, n in zip(inputs.numeric, zeros, strict=True) if n / len(table) >= MOSTLY)
        return cls(inputs, standardised, intercept, mostly_zero)

    @property
    def names(self) -> tuple[str, ...]:
        """What each column of the matrix is called."""
        flags = tuple(f"{name} missing" for name in self.inputs.flagged)
        levels = tuple(f"{name}={level}" for name, found in self.inputs.levels.items() for level in found)
        return (*self.inputs.numeric, *flags, *levels, *(("intercept",) if self.intercept else ()))

    @property
    def is_sparse(self) -> bool:
        """Whether few numbers of the matrix differ from 0: one for each categorical column, and some of the others."""
        full = len(self.inputs.numeric) - len(self.mostly_zero) + len(self.inputs.flagged) + self.intercept
        filled = full + len(self.inputs.levels) + (1 - MOSTLY) * len(self.mostly_zero)
        return SPARSE * filled < len(self.names)

    def matrix(self, table: Table) -> NDArray[Any] | csr_array:
        """The matrix of a table's rows."""
        from scipy import sparse

        self.inputs.require_columns(table)
        parts = list(self._parts(table))
        if self.is_sparse:
            return sparse.hstack([sparse.csr_array(part) for part in parts], format="csr")
        empty = np.zeros((len(table), 0))
        return np.hstack([empty, *(part if isinstance(part, np.ndarray) else part.toarray() for part in parts)])

    def _parts(self, table: Table) -> Iterator[NDArray[np.float64] | csr_array]:
        """The matrix from left to right, in parts of a column or of all levels of one."""
        from scipy import sparse

        flags = {}
        for name, mean, scale in zip(self.inputs.numeric, self.inputs.means, self.inputs.scales, strict=True):
            values, flags[name] = self.inputs.numbers(table, name)
            if self.standardised:
                centred = not (self.is_sparse and name in self.mostly_zero)
                values = (values - mean if centred else values) / scale
            yield sparse.csr_array(values[:, None]) if self.is_sparse else values[:, None]
        for name in self.inputs.flagged:
            yield flags[name].astype(np.float64)[:, None]
        for name, levels in self.inputs.levels.items():
            codes = self.inputs.codes(table, name)
            rows = np.flatnonzero(codes)
            ones = (np.ones(len(rows)), (rows, codes[rows] - 1))
            yield sparse.csr_array(ones, shape=(len(codes), len(levels)))
        if self.intercept:
            yield np.ones((len(table), 1))

    def state(self) -> Tree:
        """The learned values as a tree."""
        return {**vars(self), "inputs": self.inputs.state()}

    @classmethod
    def of(cls, tree: Mapping[str, Any]) -> Design:
        """The design that `state` wrote down."""
        inputs, mostly_zero = Inputs.of(tree["inputs"]), tuple(tree["mostly_zero"])
        return cls(inputs, tree["standardised"], tree["intercept"], mostly_zero)


def _sums(part: Table, names: tuple[str, ...], rows: NDArray[np.int64]) -> NDArray[np.float64]:
    """How many values some rows of each column have (first row), and their sums (second row)."""
    found = np.zeros((2, len(names)))
    for i, name in enumerate(names):
        values = part.column(name)[rows]
        present = values[~np.isnan(values)]
        with np.errstate(over="ignore"):
            found[:, i] = len(present), present.sum()
    return found


def _squared_deviations(
    part: Table, names: tuple[str, ...], means: NDArray[np.float64], rows: NDArray[np.int64]
) -> NDArray[np.float64]:
    found = np.zeros(len(names))
    for i, name in enumerate(names):
        values = part.column(name)[rows]
        with np.errstate(over="ignore", invalid="ignore"):
            found[i] = ((values[~np.isnan(values)] - means[i]) ** 2).sum()
    return found


def _level_counts(part: Table, names: tuple[str, ...], rows: NDArray[np.int64]) -> Counter[tuple[str, str]]:
    """How many rows have each level of each column."""
    return Counter((name, level) for name in names for level in part.column(name)[rows] if level is not None)


def _zeros(part: Table, names: tuple[str, ...]) -> NDArray[np.int64]:
    return np.array([int((part.column(name) == 0).sum()) for name in names], np.int64)


def rare_levels(table: Table) -> Iterator[str]:
    """Yield a sentence for each text column whose levels are so many that a network learns rows by heart.

    >>> list(rare_levels(Table.of({"id": [1, 2], "job": ["nurse", "cook"]})))
    []
    """
    for name, kind in table.kinds.items():
        n_levels = len(set(table.column(name)) - {None}) if kind == "categorical" else 0
        if n_levels > COMMONEST and len(table) < ROWS_PER_LEVEL * n_levels:
            yield (
                f"{table.owner}'s text column {name!r} has {n_levels:,} levels in {len(table):,} rows: a network "
                f"learns rare levels by heart. {hashing_advice(table.owner, name)}"
            )


def hashing_advice(owner: str | None, column: str) -> str:
    """What to do about a text column of very many levels."""
    return (
        f"Hash it with Table.hashed({{{column!r}: 256}}), in a plan by {column} = 256 under [data.{owner}.hashed], or "
        "leave it out."
    )


def centred(table: Table) -> tuple[NDArray[np.float64], tuple[str, ...]]:
    """Numbers of mean 0 and, together, variance 1 for each column that varies, and the column that each number is of.

    Text becomes one number for each of its commonest levels, a curve one number for each coordinate. NaN stands where a
    value is missing.

    >>> centred(Table.of({"id": [1, 2], "age": [30.0, 50.0], "job": ["nurse", "cook"]}))[1]
    ('age', 'job', 'job')
    """
    text = [name for name, kind in table.kinds.items() if kind == "categorical"]
    inputs = Inputs.learned(table.select(text), np.arange(len(table)), most_levels=COMMONEST)
    parts, owners = [np.zeros((len(table), 0))], []
    for name, kind in table.kinds.items():
        if kind == "categorical":
            levels = np.eye(len(inputs.levels[name]) + 1)[inputs.codes(table, name), 1:]
            part = np.where(_present(table, name)[:, None], levels, np.nan)
        else:
            part = table.curves(name).coordinates if kind == "curves" else table.column(name)[:, None]
        if np.isnan(part).all(axis=0).any():
            continue
        part = part - np.nanmean(part, axis=0)
        scale = np.sqrt(np.nanvar(part, axis=0).sum())
        if scale > 0:
            parts.append(part / scale)
            owners += [name] * part.shape[1]
    return np.concatenate(parts, axis=1), tuple(owners)


def filled(table: Table) -> NDArray[np.float64]:
    """The numbers of `centred` with missing ones at the mean, beside flags of what is missing."""
    values, _ = centred(table)
    missing = np.isnan(values)
    flags = np.unique(missing[:, missing.any(axis=0)].astype(np.float64), axis=1)
    return np.concatenate([np.where(missing, 0.0, values), flags - flags.mean(axis=0)], axis=1)


def filled_with_labels(table: Table) -> NDArray[np.float64]:
    """The numbers of `filled` beside the labels, if there are some: one number for each class where there are few."""
    if table.labels is None:
        return filled(table)
    numbers, _ = centred(Table.of(table.select([]).to_arrow(), ids=table.id_name))
    classes = np.unique(numbers)
    if numbers.shape[1] == 1 and 2 < len(classes) <= COMMONEST:
        numbers = (numbers == classes).astype(np.float64)
    return np.concatenate([filled(table), np.nan_to_num(numbers)], axis=1)


def present_rows(table: Table) -> NDArray[np.bool_]:
    """Which rows a party holds: those in which at least one of its columns has a value."""
    present = np.zeros(len(table), bool)
    for name in table.columns:
        present |= _present(table, name)
    return present


def _present(table: Table, name: str) -> NDArray[np.bool_]:
    column = table.column(name)
    return np.array([value is not None for value in column], bool) if column.dtype == object else ~np.isnan(column)


def _too_large(table: Table, name: str) -> DataError:
    return DataError(
        f"{table.owner}'s column {name!r} should hold numbers whose mean and deviation can be computed, but some are "
        "too large for that. Make those missing that stand for missing values, clip the others, or rescale the column."
    )
