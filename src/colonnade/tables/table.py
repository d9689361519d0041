"""Table: one party's rows, Arrow in and Arrow out.

A table is held in memory, or mapped from a file where it is too large; both behave alike:

    Table.of(frame)      from pandas, polars, a dict of arrays or anything that speaks Arrow
    Table.read(path)     from Parquet, CSV or a directory of Parquet parts
    Table.load(path)     from a file that ``save`` wrote
"""

from __future__ import annotations

import difflib
import itertools
import json
import os
import re
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from blake3 import blake3

from colonnade.curves import Curves, CurvesType
from colonnade.errors import DataError, StorageError

if TYPE_CHECKING:
    import pyarrow.dataset as ds

Kind: TypeAlias = Literal["numeric", "categorical", "boolean", "curves"]

ROW_NUMBER = "row_number"
_METADATA_KEY = b"colonnade.tables.table"
_NOT_ARROW = (pa.ArrowException, TypeError, ValueError, OverflowError)


@dataclass(frozen=True, eq=False, repr=False)
class Table:
    """One party's rows: ids, typed columns and, at the label party, labels.

    Columns hold numbers, text, booleans or curves (`colonnade.curves.Curves`); a null is a missing value, and so is
    NaN. Ids are 64-bit integers or text. Ids may still be missing or repeated here, and labels missing: `checked`
    refuses such a table.

    After an alignment that keeps rows without a partner, `present` says which rows this party has (None: all), and
    `partners` at the label party which of its rows each feature party has.

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
        arrow = _as_arrow(data, owner)
        _require_ids_and_labels(ids, labels, arrow.column_names, owner)
        return cls(_normalised(arrow, ids, labels, owner), ids or ROW_NUMBER, labels, owner)

    @classmethod
    def read(
        cls,
        path: str | os.PathLike[str],
        *,
        ids: str | None,
        labels: str | None = None,
        columns: Sequence[str] | None = None,
        keys: Sequence[str] = (),
        owner: str | None = None,
        memory: int | None = None,
    ) -> Table:
        """Read a table from Parquet, CSV or a directory of Parquet parts.

        A CSV says nothing of types. Its ids and keys are whole numbers where all of a column are written as such, and
        otherwise text as it stands, so that no zero or plus sign in front is lost; other columns are what they look
        like.

        Args:
            path: A ``.csv`` or ``.csv.gz`` file, a Parquet file, or a directory of ``.parquet`` files.
            ids: The id column; None numbers the rows.
            labels: The label column, at the label party.
            columns: The columns to read; all when None.
            keys: The columns that people are matched by, which are read besides.
            owner: The party's name, for error messages.
            memory: Bytes the table may take; a larger one is kept in a temporary file. A quarter of the available
                memory when None.

        Raises:
            DataError: A named column does not exist, or a column is of a type no model can use.
            StorageError: The file is missing or unreadable, or there is no room for the temporary file.
        """
        path = Path(path)
        matched = dict.fromkeys(name for name in (ids, *keys) if name is not None)
        source = _open(path, matched)
        names = source.schema.names
        _refuse_repeated(names, owner)
        _require_ids_and_labels(ids, labels, names, owner)
        columns = names if columns is None else columns
        _require_columns(columns, names, owner)
        _require_columns(keys, names, owner, "Correct the columns that people are matched by.")
        whole = _columns_of_whole_numbers(source, list(matched), path) if _is_csv(path) else []
        wanted = dict.fromkeys(name for name in (ids, *columns, *keys, labels) if name is not None)
        batches = _batches(source, list(wanted), whole, ids, labels, owner, path)
        limit = _available_memory() // 4 if memory is None else memory
        return cls(_gathered(batches, limit, path), ids or ROW_NUMBER, labels, owner)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Table:
        """Open a table that `save` wrote; its bytes are mapped, not copied.

        Raises:
            StorageError: The file is missing, damaged, or not a saved table.
        """
        try:
            arrow = _mapped(Path(path))
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
        """Write the table, with its owner and the names of ids and labels, to one Arrow file.

        Raises:
            StorageError: The disk is full or read-only.
        """
        path = Path(path)
        partial = path.with_name(path.name + ".partial")
        names: dict[str, Any] = {"owner": self.owner, "ids": self.id_name, "labels": self.label_name}
        if self.present is not None:
            names["present"] = _packed(self.present)
        if self.partners:
            names["partners"] = {party: _packed(mask) for party, mask in self.partners.items()}
        arrow = self._arrow.replace_schema_metadata({_METADATA_KEY: json.dumps(names)})
        try:
            try:
                _write([arrow], arrow.schema, partial)
                partial.replace(path)
            finally:
                partial.unlink(missing_ok=True)
        except OSError as error:
            raise StorageError(
                f"{_whose(self.owner)} was to be saved at {path}, but writing its {self._arrow.nbytes:,} bytes failed: "
                f"{_reason(error)}. Free some space or choose another place."
            ) from error

    @property
    def ids(self) -> pa.ChunkedArray:
        """The ids, in row order: int64 or large_string."""
        return self._arrow.column(self.id_name)

    @property
    def labels(self) -> pa.ChunkedArray | None:
        """The labels, in row order; None away from the label party. ``labels.to_numpy()`` is a plain array."""
        return None if self.label_name is None else self._arrow.column(self.label_name)

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns, without ids and labels."""
        return tuple(name for name in self._arrow.column_names if name not in (self.id_name, self.label_name))

    @property
    def kinds(self) -> Mapping[str, Kind]:
        """The kind of each column."""
        return {name: _kind(self._arrow.schema.field(name).type, name, self.owner) for name in self.columns}

    def __len__(self) -> int:
        """Return the number of rows."""
        return int(self._arrow.num_rows)

    def __repr__(self) -> str:
        """Describe the table without showing a value."""
        kinds = list(self.kinds.values())
        count = {kind: kinds.count(kind) for kind in dict.fromkeys(kinds)}
        detail = f" ({', '.join(f'{n} {kind}' for kind, n in count.items())})" if count else ""
        labels = "no labels" if self.label_name is None else f"labels {self.label_name!r}"
        return f"Table({self.owner or 'no owner'}: {len(self):,} rows, {len(kinds):,} columns{detail}, {labels})"

    def column(self, name: str) -> npt.NDArray[Any]:
        """One column's values: numbers and booleans as float64 with NaN for missing, text as objects with None.

        Of curves these are the coefficients, one row each; see `curves`.
        """
        if name in (self.id_name, self.label_name) or self._arrow.schema.get_field_index(name) < 0:
            _require_columns([name], self.columns, self.owner)
        values = self._arrow.column(name)
        if isinstance(values.type, CurvesType):
            return Curves.of_arrow(values).coefficients
        if pa.types.is_large_string(values.type):
            return np.asarray(values.to_numpy(), dtype=object)
        return np.asarray(values.cast(pa.float64(), safe=False).to_numpy())

    def curves(self, name: str) -> Curves:
        """One column's curves, or the labels' where they are curves."""
        if name == self.id_name or self._arrow.schema.get_field_index(name) < 0:
            _require_columns([name], self.columns, self.owner)
        values = self._arrow.column(name)
        if not isinstance(values.type, CurvesType):
            raise DataError(
                f"{_whose(self.owner)} was expected to have curves in column {name!r}, but it holds "
                f"{_kind(values.type, name, self.owner)} values. Smooth values on a grid with Curves.smooth first."
            )
        return Curves.of_arrow(values)

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
                f"{_whose(self.owner)} has rows 0 to {len(self) - 1:,}, but rows from {numbers.min():,} to "
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
        return replace(self, _arrow=self._arrow.take(indices), present=present, partners=partners)

    def select(self, columns: Iterable[str]) -> Table:
        """The same rows, ids and labels with only these columns, in this order."""
        columns = list(columns)
        _require_columns(columns, self.columns, self.owner)
        _refuse_repeated(columns, self.owner)
        labels = [] if self.label_name is None else [self.label_name]
        return replace(self, _arrow=self._arrow.select([self.id_name, *columns, *labels]))

    def with_labels(self, labels: Any, *, name: str | None = None) -> Table:
        """The same rows with other labels, one per row."""
        values = _as_arrow({"labels": labels}, self.owner).column("labels")
        if len(values) != len(self):
            raise DataError(
                f"{_whose(self.owner)} has {len(self):,} rows and needs as many labels, but got {len(values):,}. "
                "Give one label per row, in row order."
            )
        name = name or self.label_name or "label"
        arrow = self.without_labels()._arrow.append_column(name, values)
        table = Table.of(arrow, ids=self.id_name, labels=name, owner=self.owner)
        return replace(table, present=self.present, partners=self.partners)

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
        infinite = {
            field.name: n
            for field in self._arrow.schema
            if pa.types.is_floating(field.type) and (n := _count(pc.is_inf(self._arrow.column(field.name))))
        }
        if infinite:
            found = ", ".join(f"{name!r} ({n:,} of {len(self):,} rows)" for name, n in infinite.items())
            raise DataError(
                f"The numbers in {owner}'s table must be finite or missing, but there are infinite values in {found}. "
                "Clip them or make them missing."
            )
        for column in self._arrow.schema:
            if isinstance(column.type, CurvesType):
                self._check_curves(column.name, owner)
        return replace(self, owner=owner)

    def _check_curves(self, name: str, owner: str) -> None:
        bad = int((~np.isfinite(Curves.of_arrow(self._arrow.column(name)).coefficients)).any(axis=1).sum())
        if bad:
            raise DataError(
                f"The curves in {owner}'s table must be finite, but {bad:,} of {len(self):,} in column {name!r} are "
                "missing or not finite. Leave these rows out, or smooth the curves from the points that are there."
            )

    def check_ids(self, owner: str) -> None:
        """Refuse missing and repeated ids.

        Raises:
            DataError: Some rows have no id, or the id of an earlier row.
        """
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
        with pa.ipc.new_stream(pa.PythonFile(hashing, mode="w"), self._arrow.schema) as writer:
            writer.write_table(self._arrow.combine_chunks())
        return hashing.digest.hexdigest()

    def to_arrow(self) -> pa.Table:
        """The ids, columns and labels as one Arrow table, without a copy."""
        return self._arrow

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Hand the table to anything that speaks Arrow."""
        return self._arrow.__arrow_c_stream__(requested_schema)


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


def nearest(name: str, names: Iterable[str]) -> str:
    """A hint at the existing name most like a wrong one, or an empty string where none is alike.

    Example:
        >>> nearest("incme", ["income", "age"])
        " The nearest name is 'income'."
    """
    lowered = {other.lower(): other for other in names}
    found = difflib.get_close_matches(name.lower(), lowered, n=1)
    return f" The nearest name is {lowered[found[0]]!r}." if found else ""


def whole_numbers(values: Any) -> Any:
    """Numbers as 64-bit integers, as pandas did not leave those with gaps; None if some are not whole.

    Example:
        >>> whole_numbers(pa.array([7.0, float("nan")])).to_pylist(), whole_numbers(pa.array([7.5]))
        ([7, None], None)
    """
    if pa.types.is_floating(values.type):
        values = pc.if_else(pc.is_nan(values), pa.scalar(None, values.type), values)
    try:
        return values.cast(pa.int64())
    except pa.ArrowInvalid:
        return None


def _packed(mask: npt.NDArray[np.bool_]) -> str:
    return np.packbits(mask).tobytes().hex()


def _unpacked(text: str, n: int) -> npt.NDArray[np.bool_]:
    return np.unpackbits(np.frombuffer(bytes.fromhex(text), np.uint8), count=n).astype(bool)


def _whose(owner: str | None) -> str:
    return "The table" if owner is None else f"{owner}'s table"


def _reason(error: OSError) -> str:
    return os.strerror(error.errno) if error.errno else "the system refused"


def _is_null(values: pa.ChunkedArray) -> pa.ChunkedArray:
    return values.is_null() if isinstance(values.type, CurvesType) else values.is_null(nan_is_null=True)


def _count(flags: pa.ChunkedArray) -> int:
    return int(pc.sum(flags).as_py() or 0)


def _require_columns(
    wanted: Iterable[str], names: Sequence[str], owner: str | None, advice: str = "Correct the name."
) -> None:
    existing = set(names)
    for name in wanted:
        if name not in existing:
            raise DataError(
                f"{_whose(owner)} was expected to have a column {name!r}, but none of its {len(names):,} columns is "
                f"named so.{nearest(name, names)} {advice}"
            )


def _require_ids_and_labels(ids: str | None, labels: str | None, names: Sequence[str], owner: str | None) -> None:
    if ids is not None:
        _require_columns([ids], names, owner, "Name the id column with ids=, or number the rows with ids=None.")
    if labels is not None:
        _require_columns([labels], names, owner, "Name the label column with labels=.")


def _refuse_repeated(names: Sequence[str], owner: str | None) -> None:
    repeated = [name for name, n in Counter(names).items() if n > 1]
    if repeated:
        raise DataError(
            f"{_whose(owner)} needs a different name for every column, but {', '.join(map(repr, repeated))} occurs "
            "more than once. Rename the others or leave them out."
        )


def _kind(arrow_type: pa.DataType, name: str, owner: str | None) -> Kind:
    """The kind of column an Arrow type makes; the one place that decides it."""
    if isinstance(arrow_type, CurvesType):
        return "curves"
    if pa.types.is_boolean(arrow_type):
        return "boolean"
    if _is_text(arrow_type) or pa.types.is_dictionary(arrow_type):
        return "categorical"
    # A column without a single value has no type of its own in Arrow.
    if any(f(arrow_type) for f in (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal, pa.types.is_null)):
        return "numeric"
    raise DataError(
        f"{_whose(owner)} may hold numbers, text, booleans and curves, but its column {name!r} is of Arrow type "
        f"{arrow_type}. Turn it into one of these (a date into a number, or into text if people are matched by it, a "
        "list into one column per element, values on a grid into Curves) or leave it out."
    )


def _is_text(arrow_type: pa.DataType) -> bool:
    return any(f(arrow_type) for f in (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view))


def _as_arrow(data: Any, owner: str | None) -> pa.Table:
    try:
        arrow = pa.table(data)
    except _NOT_ARROW as error:
        raise DataError(
            f"{_whose(owner)} was expected as a pandas or polars frame, an Arrow table or a dict of arrays, but "
            f"{_why_not_arrow(data)}"
        ) from error
    # pandas hands over an unnamed index under this name; it is not the owner's data.
    return arrow.drop_columns([name for name in arrow.column_names if re.fullmatch(r"__index_level_\d+__", name)])


def _why_not_arrow(data: Any) -> str:
    """Say what is wrong with data Arrow refused, and what to do, without Arrow's own words: they quote values."""
    lengths = {}
    for name in data.keys() if isinstance(data, Mapping) else getattr(data, "columns", ()):
        if not isinstance(name, str):
            return f"its column name {name!r} is not text. Rename the column."
        try:
            lengths[name] = len(pa.array(data[name]))
        except _NOT_ARROW:
            return f"column {name!r} is not a flat list of values of one type. Make them all numbers, text or booleans."
    if len(set(lengths.values())) > 1:
        found = ", ".join(f"{name!r} has {n:,}" for name, n in lengths.items())
        return f"its columns differ in their number of rows: {found}. Make them equally long."
    return f"an object of type {type(data).__name__} came. Convert it first."


def _normalised(arrow: pa.Table, ids: str | None, labels: str | None, owner: str | None, first: int = 0) -> pa.Table:
    """Ids, columns and labels in this order, each in the one Arrow type its kind is stored in."""
    if ids is None:
        arrow = arrow.append_column(ROW_NUMBER, pa.array(np.arange(first, first + len(arrow))))
        ids = ROW_NUMBER
    _refuse_repeated(arrow.column_names, owner)
    if ids == labels:
        raise DataError(
            f"{_whose(owner)} needs different columns for ids and labels, but both are {ids!r}. Name two columns."
        )
    columns = [name for name in arrow.column_names if name not in (ids, labels)]
    stored = {ids: _as_ids(arrow.column(ids), ids, owner)}
    for name in columns if labels is None else [*columns, labels]:
        stored[name] = _as_values(arrow.column(name), name, owner)
    if labels is not None and pa.types.is_integer(stored[labels].type):
        # Small and unsigned integers invite overflow in the arithmetic done with labels.
        stored[labels] = stored[labels].cast(pa.int64(), safe=False)
    return pa.table(stored)


def _as_ids(values: pa.ChunkedArray, name: str, owner: str | None) -> pa.ChunkedArray:
    if pa.types.is_dictionary(values.type):
        values = _decoded(values)
    if _is_text(values.type):
        return values.cast(pa.large_string())
    kind = f"column {name!r} is of Arrow type {values.type}"
    if any(f(values.type) for f in (pa.types.is_integer, pa.types.is_floating, pa.types.is_null)):
        numbers = whole_numbers(values)
        if numbers is not None:
            return numbers
        kind += " and holds numbers that are not 64-bit integers"
    raise DataError(
        f"{_whose(owner)} needs whole numbers or text as ids, but {kind}. Convert them to text, at every party alike: "
        "a date, for one, to 1980-05-17."
    )


def _as_values(values: pa.ChunkedArray, name: str, owner: str | None) -> pa.ChunkedArray:
    if pa.types.is_dictionary(values.type):
        _kind(values.type.value_type, name, owner)
        values = _decoded(values).cast(pa.large_string())
    kind = _kind(values.type, name, owner)
    if kind == "categorical":
        return values.cast(pa.large_string())
    if kind == "numeric" and not (pa.types.is_integer(values.type) or values.type in (pa.float32(), pa.float64())):
        return values.cast(pa.float64())
    return values


def _decoded(values: pa.ChunkedArray) -> pa.ChunkedArray:
    stored = pa.large_string() if _is_text(values.type.value_type) else values.type.value_type
    # Arrow itself cannot decode a dictionary of string views, which is what polars makes.
    return pa.chunked_array([chunk.dictionary.cast(stored).take(chunk.indices) for chunk in values.chunks], type=stored)


def _text_bytes(texts: pa.LargeStringArray) -> memoryview:
    """The bytes of all texts in a row, without a copy."""
    _, offsets, data = texts.buffers()
    if data is None:
        return memoryview(b"")
    bounds = np.frombuffer(offsets, dtype=np.int64)[texts.offset : texts.offset + len(texts) + 1]
    return memoryview(data)[bounds[0] : bounds[-1]]


def _is_csv(path: Path) -> bool:
    return path.name.endswith((".csv", ".csv.gz"))


def _columns_of_whole_numbers(source: ds.Dataset, names: list[str], path: Path) -> list[str]:
    """Those of the text columns of a CSV that can be held as whole numbers without a loss."""
    try:
        for batch in source.to_batches(columns=names):
            names = [name for name in names if _of_whole_numbers(batch.column(name)) is not None]
            if not names:
                break
    except (pa.ArrowException, OSError) as error:
        raise _unreadable(path, error) from error
    return names


def _of_whole_numbers(texts: Any) -> Any:
    """Texts as 64-bit integers, also 7.0, as pandas writes those with gaps; None if something would be lost."""
    written = r"^\s*(0|-?[1-9]\d{0,18})(\.0)?\s*$"
    if pc.all(pc.match_substring_regex(texts, written)).as_py() is False:
        return None
    numbers = whole_numbers(texts)
    return whole_numbers(pc.replace_substring_regex(texts, written, r"\1")) if numbers is None else numbers


def _open(path: Path, text: Iterable[str]) -> ds.Dataset:
    """A file ready to be read; these columns of a CSV as text."""
    import pyarrow.csv as csv
    import pyarrow.dataset as ds

    files = sorted(path.rglob("*.parquet")) if path.is_dir() else [path]
    if not path.exists() or not files:
        raise StorageError(
            f"A Parquet or CSV file, or a directory of .parquet files, was expected at {path}, but there is none. "
            "Check the path."
        )
    try:
        if _is_csv(path):
            # Types are inferred from the first block, so it is made large; an empty field is missing in text as well.
            read = csv.ReadOptions(block_size=2**24)
            convert = csv.ConvertOptions(strings_can_be_null=True, column_types=dict.fromkeys(text, pa.string()))
            return ds.dataset(path, format=ds.CsvFileFormat(read_options=read, convert_options=convert))
        source = ds.dataset([str(file) for file in files], format="parquet")
        for part in source.get_fragments():
            _require_same_columns(part, source.schema, path)
        return source
    except (pa.ArrowException, OSError) as error:
        raise _unreadable(path, error) from error


def _require_same_columns(part: ds.Fragment, schema: pa.Schema, path: Path) -> None:
    # Arrow would fill a column that a part lacks with nulls.
    differing = set(part.physical_schema.names) ^ set(schema.names)
    if differing:
        raise DataError(
            f"All parts under {path} must have the same columns, but {Path(part.path).name} differs from the first "
            f"part in {', '.join(map(repr, sorted(differing)))}. Write the parts again with one schema."
        )


def _batches(
    source: ds.Dataset,
    names: list[str],
    whole: list[str],
    ids: str | None,
    labels: str | None,
    owner: str | None,
    path: Path,
) -> Iterator[pa.Table]:
    """The rows in order, cut so that a batch of numbers takes about 16 MiB; at least one batch, if an empty one."""
    rows_per_batch = max(1024, 2**21 // max(1, len(names)))
    n_rows = 0
    yield _normalised(_with_whole_numbers(source.schema.empty_table().select(names), whole), ids, labels, owner)
    try:
        for batch in source.to_batches(
            columns=names, batch_size=rows_per_batch, batch_readahead=4, fragment_readahead=1
        ):
            rows = _with_whole_numbers(pa.Table.from_batches([batch]), whole)
            yield _normalised(rows, ids, labels, owner, n_rows)
            n_rows += len(batch)
    except (pa.ArrowException, OSError) as error:
        raise _unreadable(path, error, source.schema.names) from error


def _with_whole_numbers(rows: pa.Table, names: list[str]) -> pa.Table:
    for name in names:
        rows = rows.set_column(rows.column_names.index(name), name, _of_whole_numbers(rows.column(name)))
    return rows


def _unreadable(path: Path, error: Exception, names: Sequence[str] = ()) -> DataError | StorageError:
    """The error for a file Arrow could not read, without Arrow's own words: they quote values."""
    found = re.search(r"In CSV column #(\d+): (?:Row #\d+: )?CSV conversion error to (\w+)", str(error))
    if found and names:
        return DataError(
            f"Every CSV column must be of one type, but in {path} column {names[int(found[1])]!r} starts as {found[2]} "
            "and goes on as something else. Clean the column, or write the table as Parquet."
        )
    reason = _reason(error) if isinstance(error, OSError) and error.errno else "it is damaged or of another format"
    return StorageError(
        f"A readable Parquet or CSV table was expected at {path}, but {reason}. Check the file or write it again."
    )


def _gathered(batches: Iterator[pa.Table], limit: int, path: Path) -> pa.Table:
    """All batches as one table: in memory up to the limit, otherwise mapped from a temporary file."""
    held: list[pa.Table] = []
    size = 0
    for batch in batches:
        held.append(batch)
        size += batch.nbytes
        if size > limit:
            return _spilled(itertools.chain(held, batches), batch.schema, path)
    return pa.concat_tables(held).combine_chunks()


def _spilled(batches: Iterable[pa.Table], schema: pa.Schema, path: Path) -> pa.Table:
    try:
        with tempfile.TemporaryDirectory(prefix="colonnade-") as folder:
            file = Path(folder) / "table.arrow"
            _write(batches, schema, file)
            # The mapping outlives the file's name: the space is freed with the table, even if the process is killed.
            return _mapped(file)
    except OSError as error:
        raise StorageError(
            f"{path} does not fit in memory and was to be kept in a temporary file, but writing it failed: "
            f"{_reason(error)}. Point TMPDIR at a larger disk, read fewer columns, or raise memory=."
        ) from error


def _write(tables: Iterable[pa.Table], schema: pa.Schema, path: Path) -> None:
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
        for table in tables:
            writer.write_table(table)


def _mapped(path: Path) -> pa.Table:
    arrow = pa.ipc.open_file(pa.memory_map(str(path))).read_all()
    arrow.validate()
    return arrow


def _available_memory() -> int:
    """Bytes this process may still take, as far as the system and its container say."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for file, pattern, unit in (
        ("/proc/meminfo", r"MemAvailable:\s+(\d+)", 1024),
        ("/sys/fs/cgroup/memory.max", r"(\d+)", 1),
    ):
        try:
            found = re.search(pattern, Path(file).read_text())
        except OSError:
            continue
        if found:
            limits.append(int(found[1]) * unit)
    return min(limits)
