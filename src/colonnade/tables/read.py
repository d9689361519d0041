"""Reading: CSV, Parquet and folders of Parquet parts as one Arrow table, in memory or mapped from a temporary file."""

from __future__ import annotations

import itertools
import os
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from colonnade.errors import DataError, StorageError
from colonnade.tables.columns import normalised, refuse_repeated, require_columns, require_ids_and_labels, whole_numbers
from colonnade.tables.dialect import Dialect, wrong_encoding

if TYPE_CHECKING:
    import pyarrow.dataset as ds

Reading: TypeAlias = Callable[[Any], Any]
"""How texts of a CSV become numbers; None if something would be lost."""
UNREADABLE = (pa.ArrowException, OSError, UnicodeError)
"""What reading raises; its words quote values, so it is no cause of the errors that are raised instead."""


def read_arrow(
    path: Path,
    ids: str | None,
    labels: str | None,
    columns: Sequence[str] | None,
    keys: Sequence[str],
    owner: str | None,
    memory: int | None,
    exclude: Sequence[str],
    dialect: Dialect,
) -> pa.Table:
    """Ids, columns, keys and labels of a file, each in the Arrow type its kind is stored in; see `Table.read`."""
    matched = dict.fromkeys(name for name in (ids, *keys) if name is not None)
    source = _open(path, matched, dialect)
    names = source.schema.names
    refuse_repeated(names, owner)
    if _is_csv(path):
        dialect.check_columns(path, source.schema, set(names if columns is None else columns) - set(exclude))
    wanted = chosen_columns(names, ids, labels, columns, keys, exclude, owner)
    readings: dict[str, Reading] = {}
    if _is_csv(path):
        texts = [name for name in wanted if pa.types.is_string(source.schema.field(name).type)]
        readings = _readings(source, {name: _of_whole_numbers for name in matched}, path)
        others = [name for name in texts if name not in matched and dialect.types.get(name) != "text"]
        if dialect.thousands is not None:
            readings |= _readings(source, dict.fromkeys(others, dialect.numbers), path)
        for name, kind in dialect.types.items():
            if kind == "number" and name in others and name not in readings:
                raise DataError(
                    f"{path} should have numbers in column {name!r}, as types says, but has other values. Clean the "
                    "column, or name its missing values by missing."
                )
    batches = _batches(source, wanted, readings, ids, labels, owner, path)
    limit = _available_memory() // 4 if memory is None else memory
    return _gathered(batches, limit, path)


def chosen_columns(
    names: Sequence[str],
    ids: str | None,
    labels: str | None,
    columns: Sequence[str] | None,
    keys: Sequence[str],
    exclude: Sequence[str],
    owner: str | None,
) -> list[str]:
    """Ids, columns, keys and labels among the names of a file's columns; see `Table.read`."""
    require_ids_and_labels(ids, labels, names, owner)
    require_columns(exclude, names, owner, "Correct exclude.")
    for name in (name for name in exclude if name in (ids, labels)):
        raise DataError(
            f"exclude should name columns that are not used, but names {name!r}, which holds the "
            f"{'ids' if name == ids else 'labels'}. Take {name!r} out of exclude."
        )
    columns = [name for name in (names if columns is None else columns) if name not in exclude]
    require_columns(columns, names, owner)
    require_columns(keys, names, owner, "Correct the columns that people are matched by.")
    return list(dict.fromkeys(name for name in (ids, *columns, *keys, labels) if name is not None))


def _is_csv(path: Path) -> bool:
    return any(suffix in (".csv", ".tsv", ".txt") for suffix in path.suffixes[-2:])


def _readings(source: ds.Dataset, tried: Mapping[str, Reading], path: Path) -> dict[str, Reading]:
    """Those of the text columns of a CSV that can be read in a way without a loss."""
    kept = dict(tried)
    try:
        for batch in source.to_batches(columns=list(kept)) if kept else ():
            kept = {name: reading for name, reading in kept.items() if reading(batch.column(name)) is not None}
            if not kept:
                break
    except UNREADABLE as error:
        raise unreadable(path, error) from None
    return kept


def _of_whole_numbers(texts: Any) -> Any:
    """Texts as 64-bit integers, also 7.0, as pandas writes those with gaps; None if something would be lost."""
    written = r"^\s*(0|-?[1-9]\d{0,18})(\.0)?\s*$"
    if pc.all(pc.match_substring_regex(texts, written)).as_py() is False:
        return None
    numbers = whole_numbers(texts)
    return whole_numbers(pc.replace_substring_regex(texts, written, r"\1")) if numbers is None else numbers


def _open(path: Path, text: Iterable[str], dialect: Dialect) -> ds.Dataset:
    """A file ready to be read; these columns of a CSV as text."""
    import pyarrow.dataset as ds

    if not _is_csv(path) or not path.exists():
        return open_parts(path)
    try:
        dialect.check_header(path)
        return ds.dataset(path, format=dialect.format(path, text))
    except UNREADABLE as error:
        raise unreadable(path, error) from None


def open_parts(path: Path) -> ds.Dataset:
    """A Parquet file, or a folder of them, ready to be read."""
    import pyarrow.dataset as ds

    files = sorted(path.rglob("*.parquet")) if path.is_dir() else [path]
    if not path.exists() or not files:
        raise StorageError(
            f"A Parquet or CSV file, or a directory of .parquet files, was expected at {path}, but there is none. "
            "Check the path."
        )
    try:
        source = ds.dataset([str(file) for file in files], format="parquet")
        for part in source.get_fragments():
            _require_same_columns(part, source.schema, path)
        return source
    except UNREADABLE as error:
        raise unreadable(path, error) from None


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
    readings: Mapping[str, Reading],
    ids: str | None,
    labels: str | None,
    owner: str | None,
    path: Path,
) -> Iterator[pa.Table]:
    """The rows in order, cut so that a batch of numbers takes about 16 MiB; at least one batch, if an empty one."""
    rows_per_batch = max(1024, 2**21 // max(1, len(names)))
    n_rows = 0
    yield normalised(_read_as(source.schema.empty_table().select(names), readings), ids, labels, owner)
    try:
        for batch in source.to_batches(
            columns=names, batch_size=rows_per_batch, batch_readahead=4, fragment_readahead=1
        ):
            rows = _read_as(pa.Table.from_batches([batch]), readings)
            yield normalised(rows, ids, labels, owner, n_rows)
            n_rows += len(batch)
    except UNREADABLE as error:
        raise unreadable(path, error, source.schema.names) from None


def _read_as(rows: pa.Table, readings: Mapping[str, Reading]) -> pa.Table:
    for name, reading in readings.items():
        rows = rows.set_column(rows.column_names.index(name), name, reading(rows.column(name)))
    return rows


def unreadable(path: Path, error: Exception, names: Sequence[str] = ()) -> DataError | StorageError:
    """The error for a file Arrow could not read, without Arrow's own words: they quote values."""
    said = str(error)
    line = f"line {int(found[1]):,}" if (found := re.search(r"Row #(\d+)", said)) else "a later line"
    if "invalid UTF8 data" in said or isinstance(error, UnicodeError):
        return wrong_encoding(path, line)
    if found := re.search(r"In CSV column #(\d+):.* conversion error to (\w+)", said):
        column = f"column {names[int(found[1])]!r}" if names else f"its column {int(found[1]) + 1}"
        return DataError(
            f"Every CSV column must be of one type, but in {path} {column} starts as {found[2]} and goes on as "
            f"something else in {line}. Clean the column, or name missing values by missing = [...] or its type by "
            "types."
        )
    if found := re.search(r"Expected (\d+) columns, got (\d+)", said):
        return StorageError(
            f"{path} should have {found[1]} fields in every line, but has {found[2]} in {line}. Quote fields that hold "
            "the delimiter, or correct the line."
        )
    if found := re.search(r"multiple columns named (.*)", said):
        return DataError(f"{path} should have columns of different names, but two are named {found[1]!r}. Rename one.")
    reason = reason_of(error) if isinstance(error, OSError) and error.errno else "it is damaged or of another format"
    if "Empty CSV file" in said:
        reason = "it is empty"
    elif path.suffix.startswith(".xls"):
        reason = "it is a spreadsheet, which is read as CSV or Parquet"
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
            write_arrow(batches, schema, file)
            # The mapping outlives the file's name: the space is freed with the table, even if the process is killed.
            return mapped(file)
    except OSError as error:
        raise StorageError(
            f"{path} does not fit in memory and was to be kept in a temporary file, but writing it failed: "
            f"{reason_of(error)}. Point TMPDIR at a larger disk, read fewer columns, or raise memory=."
        ) from error


def write_arrow(tables: Iterable[pa.Table], schema: pa.Schema, path: Path) -> None:
    """Write tables of one schema into one Arrow file."""
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
        for table in tables:
            writer.write_table(table)


def mapped(path: Path) -> pa.Table:
    """The table of an Arrow file, mapped into memory and not copied."""
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


def reason_of(error: OSError) -> str:
    """Why the system refused, without the path that is told elsewhere."""
    return os.strerror(error.errno) if error.errno else "the system refused"
