"""Table: one party's rows, Arrow in and Arrow out.

A table is held in memory, or mapped from a file where it is too large, or its columns are placed on workers
(`colonnade.runtime.placed`); all behave alike:

    Table.of(frame)      from pandas, polars, a dict of arrays or anything that speaks Arrow
    Table.read(path)     from Parquet, CSV or a directory of Parquet parts
    Table.load(path)     from a file that ``save`` wrote
    table.map(function)  calls a function on each partition of rows, wherever the rows lie
"""

from __future__ import annotations

import itertools
import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from html import escape
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from blake3 import blake3

from colonnade.errors import DataError, StorageError
from colonnade.tables.columns import (
    ROW_NUMBER,
    Kind,
    as_arrow,
    is_curves,
    kind_of,
    normalised,
    refuse_repeated,
    require_columns,
    require_ids_and_labels,
    whose,
)
from colonnade.tables.dialect import Dialect
from colonnade.tables.parts import Parts, PlacedColumns, RowNumbers
from colonnade.tables.placement import InMemory, Placement, bounds_of, total
from colonnade.tables.read import mapped, read_arrow, reason_of, write_arrow
from colonnade.text import how_many

if TYPE_CHECKING:
    from colonnade.curves import Curves

R = TypeVar("R")

_METADATA_KEY = b"colonnade.table"
MICROSECONDS_A_DAY = 86_400_000_000


@dataclass(frozen=True, eq=False, repr=False)
class Table:
    """One party's rows: ids, typed columns and, at the label party, labels.

    Columns hold numbers, text, booleans, dates or curves (`colonnade.curves.Curves`); a null is a missing value, and
    so is NaN. Models read a date as the number of days since 1970. Ids are 64-bit integers or text. Ids may still be
    missing or repeated here, and labels missing: `checked` refuses such a table.

    After an alignment that keeps rows without a partner, `present` says which rows this party has (None: all), and
    `partners` at the label party which of its rows each feature party has.

    Where `placed` is given, this process holds ids and labels only, and workers hold the columns.

    Example:
        >>> table = Table.of({"id": ["a", "b"], "income": [1.5, None], "job": ["nurse", "cook"]}, owner="bank")
        >>> table
        Table(bank: 2 rows, 2 columns (1 numeric, 1 categorical), no labels)
        >>> table.column("income")
        array([1.5, nan])
    """

    _arrow: pa.Table
    id_name: str
    label_name: str | None = None
    owner: str | None = None
    present: npt.NDArray[np.bool_] | None = None
    partners: Mapping[str, npt.NDArray[np.bool_]] = field(default_factory=dict)
    placed: PlacedColumns | None = None

    @classmethod
    def of(cls, data: Any, *, ids: str | None = "id", labels: str | None = None, owner: str | None = None) -> Table:
        """Build a table from data held in memory.

        Args:
            data: A pandas or polars frame, an Arrow table, a dict of arrays, or anything that speaks Arrow.
            ids: The id column; None numbers the rows.
            labels: The label column, at the label party.
            owner: The party's name, for error messages.

        Raises:
            DataError: A named column does not exist, or a column is of a type no model can use.
        """
        arrow = as_arrow(data, owner)
        require_ids_and_labels(ids, labels, arrow.column_names, owner)
        return cls(normalised(arrow, ids, labels, owner), ids or ROW_NUMBER, labels, owner)

    @classmethod
    def read(
        cls,
        path: str | os.PathLike[str],
        *,
        ids: str | None,
        labels: str | None = None,
        columns: Sequence[str] | None = None,
        keys: Sequence[str] = (),
        exclude: Sequence[str] = (),
        owner: str | None = None,
        memory: int | None = None,
        delimiter: str | None = None,
        encoding: str = "utf-8",
        decimal: str = ".",
        thousands: str | None = None,
        missing: Sequence[str] | None = None,
        dates: Sequence[str] = (),
        types: Mapping[str, Literal["number", "text", "date"]] = MappingProxyType({}),
    ) -> Table:
        """Read a table from Parquet, CSV or a directory of Parquet parts.

        A CSV says nothing of types. Its ids and keys are whole numbers where all of a column are written as such, and
        otherwise text as it stands, so that no zero or plus sign in front is lost; other columns are what they look
        like.

        Args:
            path: A ``.csv``, ``.tsv`` or ``.txt`` file, perhaps with ``.gz``, a Parquet file, or a directory of
                ``.parquet`` files.
            ids: The id column; None numbers the rows.
            labels: The label column, at the label party.
            columns: The columns to read; all when None.
            keys: The columns that people are matched by, which are read besides.
            exclude: Columns that are not read.
            owner: The party's name, for error messages.
            memory: Bytes the table may take; a larger one is kept in a temporary file. A quarter of the available
                memory when None.
            delimiter: The mark between the fields of a CSV; a comma when None, a tab in ``.tsv``.
            encoding: How a CSV's characters are stored, such as "latin-1".
            decimal: The mark before the decimals of a CSV's numbers.
            thousands: The mark that sets apart the thousands of a CSV's numbers, if there is one.
            missing: What stands for a missing value in a CSV, besides an empty field; words such as NA when None.
            dates: How a CSV's dates are written, such as "%d.%m.%Y", besides 1980-05-17.
            types: What a CSV's columns hold, where it is not what they look like.

        Raises:
            DataError: A named column does not exist, a column is of a type no model can use, or a CSV is written in
                another dialect.
            StorageError: The file is missing or unreadable, or there is no room for the temporary file.
        """
        named = None if missing is None else tuple(missing)
        dialect = Dialect(delimiter, encoding, decimal, thousands, named, tuple(dates), types)
        arrow = read_arrow(Path(path), ids, labels, columns, keys, owner, memory, exclude, dialect)
        return cls(arrow, ids or ROW_NUMBER, labels, owner)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Table:
        """Open a table that `save` wrote; its bytes are mapped, not copied."""
        try:
            arrow = mapped(Path(path))
            names = json.loads(arrow.schema.metadata[_METADATA_KEY])
            table = cls.of(arrow, ids=names["ids"], labels=names["labels"], owner=names["owner"])
            masks = {party: _unpacked(mask, len(table)) for party, mask in names.get("partners", {}).items()}
            present = None if names.get("present") is None else _unpacked(names["present"], len(table))
            return replace(table, present=present, partners=masks)
        except FileNotFoundError as error:
            raise StorageError(f"A saved table was expected at {path}, but there is none. Check the path.") from error
        except (OSError, pa.ArrowException, DataError, KeyError, TypeError, ValueError) as error:
            raise StorageError(
                f"A table written by Table.save was expected at {path}, but the file is something else or damaged. "
                "Save the table again, or open other formats with Table.read."
            ) from error

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the table, with its owner and the names of ids and labels, to one Arrow file."""
        path = Path(path)
        partial = path.with_name(path.name + ".partial")
        names: dict[str, Any] = {"owner": self.owner, "ids": self.id_name, "labels": self.label_name}
        if self.present is not None:
            names["present"] = _packed(self.present)
        if self.partners:
            names["partners"] = {party: _packed(mask) for party, mask in self.partners.items()}
        arrow = self.to_arrow().replace_schema_metadata({_METADATA_KEY: json.dumps(names)})
        try:
            try:
                write_arrow([arrow], arrow.schema, partial)
                partial.replace(path)
            finally:
                partial.unlink(missing_ok=True)
        except OSError as error:
            raise StorageError(
                f"{whose(self.owner)} was to be saved at {path}, but writing its {arrow.nbytes:,} bytes failed: "
                f"{reason_of(error)}. Free some space or choose another place."
            ) from error

    @property
    def ids(self) -> pa.ChunkedArray:
        """The ids, in row order: int64 or large_string."""
        return self._arrow.column(self.id_name)

    @property
    def labels(self) -> pa.ChunkedArray | None:
        """The labels, in row order; None away from the label party. ``labels.to_numpy()`` is a plain array."""
        return None if self.label_name is None else self._arrow.column(self.label_name)

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns, without ids and labels."""
        return tuple(name for name in self._schema.names if name not in (self.id_name, self.label_name))

    @cached_property
    def kinds(self) -> Mapping[str, Kind]:
        """The kind of each column."""
        return {name: kind_of(self._schema.field(name).type, name, self.owner) for name in self.columns}

    @property
    def _schema(self) -> pa.Schema:
        return self._arrow.schema if self.placed is None else self.placed.schema

    @cached_property
    def partitions(self) -> Placement[Table]:
        """The rows cut into partitions, each a table without labels, wherever they lie."""
        return self.cut(bounds_of(len(self)))

    def cut(self, bounds: Sequence[int]) -> Placement[Table]:
        """The rows cut into partitions that begin at these rows; the last number is that of all rows."""
        if self.placed is not None:
            return self.placed.placer.place(self.placed.parts, self.placed.rows, bounds)
        bare = replace(self.without_labels(), present=None, partners={})
        return InMemory(bounds, [bare._slice(begin, end) for begin, end in itertools.pairwise(bounds)])

    def map(self, function: Callable[..., R], *shared: Any, per_part: Iterable[Any] | None = None) -> Iterator[R]:
        """Yield a function of each partition, in the order of the rows; see `Placement.map`.

        >>> list(Table.of({"id": [1, 2], "income": [3.0, 4.0]}).map(len))
        [2]
        """
        return self.partitions.map(function, *shared, per_part=per_part)

    def _slice(self, begin: int, end: int) -> Table:
        return replace(self, _arrow=self._arrow.slice(begin, end - begin))

    def _values(self, name: str) -> pa.ChunkedArray:
        """One column, collected from workers if it is placed there."""
        if self.placed is None or name in self._arrow.column_names:
            return self._arrow.column(name)
        return pa.chunked_array([each for part in self.select([name]).map(_chunks, name) for each in part])

    def __len__(self) -> int:
        return int(self._arrow.num_rows)

    def __repr__(self) -> str:
        """Describe the table without showing a value."""
        kinds = list(self.kinds.values())
        count = {kind: kinds.count(kind) for kind in dict.fromkeys(kinds)}
        detail = f" ({', '.join(f'{n} {kind}' for kind, n in count.items())})" if count else ""
        labels = "no labels" if self.label_name is None else f"labels {self.label_name!r}"
        size = f"{how_many(len(self), 'row')}, {how_many(len(kinds), 'column')}"
        return f"Table({self.owner or 'no owner'}: {size}{detail}, {labels})"

    def column(self, name: str) -> npt.NDArray[Any]:
        """One column's values: numbers and booleans as float64 with NaN for missing, text as objects with None.

        Dates are the days since 1970.
        Of curves these are the coefficients, one row each; see `curves`.
        """
        if name in (self.id_name, self.label_name) or self._schema.get_field_index(name) < 0:
            require_columns([name], self.columns, self.owner)
        values = self._values(name)
        if is_curves(values.type):
            return _curves_of(values).coefficients
        if pa.types.is_large_string(values.type):
            return np.asarray(values.to_numpy(), dtype=object)
        if pa.types.is_temporal(values.type):
            return np.asarray(values.cast(pa.timestamp("us")).cast(pa.int64()).to_numpy() / MICROSECONDS_A_DAY)
        return np.asarray(values.cast(pa.float64(), safe=False).to_numpy())

    def curves(self, name: str) -> Curves:
        """One column's curves, or the labels' where they are curves."""
        if name == self.id_name or (name != self.label_name and self._schema.get_field_index(name) < 0):
            require_columns([name], self.columns, self.owner)
        values = self._values(name)
        if not is_curves(values.type):
            raise DataError(
                f"{whose(self.owner)} was expected to have curves in column {name!r}, but it holds "
                f"{kind_of(values.type, name, self.owner)} values. Smooth values on a grid with Curves.smooth first."
            )
        return _curves_of(values)

    def take(self, rows: npt.ArrayLike) -> Table:
        """The rows of the given numbers, in the given order; a boolean mask is also accepted."""
        numbers = np.asarray(rows)
        if numbers.dtype == bool and numbers.shape == (len(self),):
            numbers = np.flatnonzero(numbers)
        if numbers.size == 0:
            numbers = numbers.astype(np.int64)
        if numbers.ndim != 1 or not np.issubdtype(numbers.dtype, np.integer):
            raise DataError(
                f"take needs one whole row number per row, or a mask of {len(self):,} booleans, but got an array of "
                f"{numbers.dtype} and shape {numbers.shape}. Pass a flat array of row numbers."
            )
        if numbers.size and not (numbers.min() >= 0 and numbers.max() < len(self)):
            raise DataError(
                f"{whose(self.owner)} has rows 0 to {len(self) - 1:,}, but rows from {numbers.min():,} to "
                f"{numbers.max():,} were asked for. Take only rows that exist."
            )
        return self._taken(numbers, pa.array(numbers))

    def arranged(self, rows: npt.ArrayLike, partners: Mapping[str, npt.NDArray[np.bool_]] | None = None) -> Table:
        """The rows of the given numbers, in the given order, as an alignment says; -1 stands for a row that is absent.

        Args:
            rows: The numbers. An absent row has nothing but missing values, its id among them.
            partners: Which of these rows other parties have, at the label party.
        """
        numbers = np.asarray(rows, np.int64)
        absent = numbers < 0
        taken = self._taken(numbers, pa.array(numbers, mask=absent))
        return replace(taken, present=~absent if absent.any() else None, partners=dict(partners or {}))

    def numbered(self) -> Table:
        """The same rows with the numbers of their places as ids."""
        arrow = self._arrow.set_column(0, self.id_name, pa.array(np.arange(len(self))))
        return replace(self, _arrow=arrow)

    def _taken(self, numbers: npt.NDArray[Any], indices: pa.Array) -> Table:
        partners = {name: mask[numbers] for name, mask in self.partners.items()}
        present = None if self.present is None else self.present[numbers]
        placed = None if self.placed is None else self.placed.take(numbers)
        return replace(self, _arrow=self._arrow.take(indices), present=present, partners=partners, placed=placed)

    def select(self, columns: Iterable[str]) -> Table:
        """The same rows, ids and labels with only these columns, in this order."""
        columns = list(columns)
        require_columns(columns, self.columns, self.owner)
        refuse_repeated(columns, self.owner)
        labels = [] if self.label_name is None else [self.label_name]
        if self.placed is not None:
            return replace(self, placed=self.placed.select(columns))
        return replace(self, _arrow=self._arrow.select([self.id_name, *columns, *labels]))

    def hashed(self, buckets: Mapping[str, int]) -> Table:
        """The same rows with the levels of some text columns hashed into buckets, whose names are the new levels.

        A column of thousands of levels, such as streets or diagnoses, is too wide for most models, and a network
        learns rare levels by heart. A level is in the same bucket in every table, so a model that was trained on a
        hashed table predicts on tables that are hashed alike.

        Args:
            buckets: For each of these columns the number of buckets.

        Raises:
            DataError: A column does not exist or does not hold text, or there are fewer than two buckets.

        Example:
            >>> Table.of({"id": [1, 2, 3], "street": ["Elm", "Oak", "Elm"]}).hashed({"street": 8}).column("street")
            array(['bucket 3', 'bucket 2', 'bucket 3'], dtype=object)
        """
        require_columns(list(buckets), self.columns, self.owner)
        for name, n in buckets.items():
            if self.kinds[name] != "categorical":
                raise DataError(
                    f"{whose(self.owner)} should have text in the column {name!r} to be hashed, but it holds "
                    f"{self.kinds[name]} values. Leave the column out of what is hashed."
                )
            if n < 2:
                raise DataError(f"hashed should give column {name!r} at least 2 buckets, but gives {n}. Use 256.")
        if self.placed is not None:
            return replace(self, placed=self.placed.hashed(buckets))
        arrow = self._arrow
        for name, n in buckets.items():
            levels = arrow.column(name).combine_chunks().dictionary_encode()
            digests = [blake3(level.encode()).digest(8) for level in levels.dictionary.to_pylist()]
            names = pa.array([f"bucket {int.from_bytes(each, 'little') % n}" for each in digests], pa.large_string())
            place = arrow.schema.get_field_index(name)
            arrow = arrow.set_column(place, name, names.take(levels.indices))
        return replace(self, _arrow=arrow)

    def with_labels(self, labels: Any, *, name: str | None = None) -> Table:
        """The same rows with other labels, one per row."""
        values = as_arrow({"labels": labels}, self.owner).column("labels")
        if len(values) != len(self):
            raise DataError(
                f"{whose(self.owner)} has {len(self):,} rows and needs as many labels, but got {len(values):,}. "
                "Give one label per row, in row order."
            )
        name = name or self.label_name or "label"
        arrow = self.without_labels()._arrow.append_column(name, values)
        table = Table.of(arrow, ids=self.id_name, labels=name, owner=self.owner)
        return replace(table, present=self.present, partners=self.partners, placed=self.placed)

    def without_labels(self) -> Table:
        """The same rows without labels."""
        if self.label_name is None:
            return self
        return replace(self, _arrow=self._arrow.drop_columns([self.label_name]), label_name=None)

    def checked(self, owner: str, *, ids: bool = True) -> Table:
        """The table under its owner's name, fit to train on.

        Args:
            owner: The party's name.
            ids: Whether rows are known by their ids; not so where an alignment says which rows belong together.

        Raises:
            DataError: There are no rows, ids are missing or repeated, a label is missing, or a number is infinite.
        """
        if len(self) == 0:
            raise DataError(
                f"{owner}'s table must have at least one row, but it is empty. Check the file or filter it came from."
            )
        if ids:
            self.check_ids(owner)
        unlabelled = 0 if self.labels is None else _count(_is_null(self.labels))
        if unlabelled:
            raise DataError(
                f"Every row of {owner}'s table needs a label, but {unlabelled:,} of {len(self):,} rows have none in "
                f"column {self.label_name!r}. Drop these rows or find their labels."
            )
        infinite = total(self.map(_infinite)) + _infinite(self.select([]))
        if infinite:
            found = ", ".join(f"{name!r} ({n:,} of {len(self):,} rows)" for name, n in infinite.items())
            raise DataError(
                f"The numbers in {owner}'s table must be finite or missing, but there are infinite values in {found}. "
                "Clip them or make them missing."
            )
        for column in pa.unify_schemas([self._schema, self._arrow.schema]):
            if is_curves(column.type):
                self._check_curves(column.name, owner)
        return replace(self, owner=owner)

    def _check_curves(self, name: str, owner: str) -> None:
        bad = int((~np.isfinite(_curves_of(self._values(name)).coefficients)).any(axis=1).sum())
        if bad:
            raise DataError(
                f"The curves in {owner}'s table must be finite, but {bad:,} of {len(self):,} in column {name!r} are "
                "missing or not finite. Leave these rows out, or smooth the curves from the points that are there."
            )

    def check_ids(self, owner: str) -> None:
        """Refuse missing and repeated ids."""
        if self.ids.null_count:
            raise DataError(
                f"Every row of {owner}'s table needs an id, but {self.ids.null_count:,} of {len(self):,} rows have "
                f"none in column {self.id_name!r}. Drop these rows or find their ids."
            )
        repeated = len(self) - pc.count_distinct(self.ids).as_py()
        if repeated:
            raise DataError(
                f"{owner}'s table needs one row per id, but {repeated:,} of {len(self):,} rows repeat an earlier id in "
                f"column {self.id_name!r}. Drop or merge the repeated rows."
            )

    def id_digest(self) -> str:
        """A digest of the ids in row order: equal at two parties exactly when their rows are in the same order.

        The integer 7 and the text "7" are different ids.
        """
        digest = blake3(str(self.ids.type).encode())
        if pa.types.is_int64(self.ids.type):
            for chunk in self.ids.chunks:
                digest.update(chunk.fill_null(0).to_numpy().view(np.uint8))
            for chunk in self.ids.chunks:
                digest.update(chunk.is_null().cast(pa.uint8()).to_numpy())
            return digest.hexdigest()
        # All lengths go before all bytes, so that the digest depends neither on chunks nor on how ids abut.
        for chunk in self.ids.chunks:
            digest.update(pc.binary_length(chunk).fill_null(-1).to_numpy().view(np.uint8))
        for chunk in self.ids.chunks:
            digest.update(_text_bytes(chunk.fill_null("")))
        return digest.hexdigest()

    def digest(self) -> str:
        """A digest of everything in the table: ids, columns and labels."""
        hashing = _Hashing()
        if self.placed is not None:
            hashing.write(self.placed.digest)
        with pa.ipc.new_stream(pa.PythonFile(hashing, mode="w"), self._arrow.schema) as writer:
            writer.write_table(self._arrow.combine_chunks())
        return hashing.digest.hexdigest()

    def counted_as(self) -> str:
        """What encrypted answers about these rows are counted under, over all runs.

        Parquet parts are written anew with other bytes and the same rows, so a placed table is known by its ids.
        """
        return self.digest() if self.placed is None else self.id_digest()

    def to_arrow(self) -> pa.Table:
        """The ids, columns and labels as one Arrow table, without a copy unless workers hold the columns."""
        arrow = self._arrow
        for place, name in enumerate(() if self.placed is None else self.columns, start=1):
            arrow = arrow.add_column(place, name, self._values(name))
        return arrow

    def to_pandas(self) -> Any:
        """The ids, columns and labels as a pandas frame."""
        return self.to_arrow().to_pandas()

    def to_polars(self) -> Any:
        """The ids, columns and labels as a polars frame."""
        import polars

        return polars.from_arrow(self.to_arrow())

    def _repr_html_(self) -> str:
        """The columns with their kinds and missing values, and no value."""
        rows = "".join(
            f"<tr><td>{escape(name)}</td><td>{kind}</td><td>{_count(_is_null(self._values(name))):,}</td></tr>"
            for name, kind in self.kinds.items()
        )
        return f"<p>{escape(repr(self))}</p><table><tr><th>column</th><th>kind</th><th>missing</th></tr>{rows}</table>"

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Hand the table to anything that speaks Arrow."""
        return self.to_arrow().__arrow_c_stream__(requested_schema)


def read_partitions(parts: Parts, rows: Sequence[RowNumbers]) -> list[Table]:
    """Partitions of these rows of Parquet parts, read in one pass."""
    bounds = np.cumsum([0, *map(len, rows)])
    table = Table(parts.read(np.concatenate(rows)), parts.ids, owner=parts.owner).hashed(parts.hashed)
    return [table._slice(begin, end) for begin, end in itertools.pairwise(bounds.tolist())]


class _Hashing:
    """A file that keeps nothing of what is written to it but a digest."""

    closed = False

    def __init__(self) -> None:
        self.digest = blake3()

    def write(self, data: Any) -> int:
        self.digest.update(data)
        return len(data)

    def flush(self) -> None:
        """There is nothing to flush."""

    def close(self) -> None:
        """There is nothing to close."""


def _chunks(table: Table, name: str) -> list[pa.Array]:
    return list(table._values(name).chunks)


def _infinite(table: Table) -> Counter[str]:
    """How many infinite values the columns of numbers have that this process holds."""
    floating = [field.name for field in table._arrow.schema if pa.types.is_floating(field.type)]
    return +Counter({name: _count(pc.is_inf(table._arrow.column(name))) for name in floating})


def _curves_of(values: pa.ChunkedArray) -> Curves:
    from colonnade.curves import Curves

    return Curves.of_arrow(values)


def _packed(mask: npt.NDArray[np.bool_]) -> str:
    return np.packbits(mask).tobytes().hex()


def _unpacked(text: str, n: int) -> npt.NDArray[np.bool_]:
    return np.unpackbits(np.frombuffer(bytes.fromhex(text), np.uint8), count=n).astype(bool)


def _is_null(values: pa.ChunkedArray) -> pa.ChunkedArray:
    return values.is_null() if is_curves(values.type) else values.is_null(nan_is_null=True)


def _count(flags: pa.ChunkedArray) -> int:
    return int(pc.sum(flags).as_py() or 0)


def _text_bytes(texts: pa.LargeStringArray) -> memoryview:
    """The bytes of all texts in a row, without a copy."""
    _, offsets, data = texts.buffers()
    if data is None:
        return memoryview(b"")
    bounds = np.frombuffer(offsets, dtype=np.int64)[texts.offset : texts.offset + len(texts) + 1]
    return memoryview(data)[bounds[0] : bounds[-1]]
