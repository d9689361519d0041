"""Columns: the kinds of columns a table may hold, and the one Arrow type in which each kind is stored."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from colonnade.errors import DataError
from colonnade.text import nearest

Kind: TypeAlias = Literal["numeric", "categorical", "boolean", "curves"]

ROW_NUMBER = "row_number"
_CURVES = "colonnade.curves"
_NOT_ARROW = (pa.ArrowException, TypeError, ValueError, OverflowError)


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


def whose(owner: str | None) -> str:
    """The subject of an error about a table."""
    return "The table" if owner is None else f"{owner}'s table"


def require_columns(
    wanted: Iterable[str], names: Sequence[str], owner: str | None, advice: str = "Correct the name."
) -> None:
    """Refuse names that no column has."""
    existing = set(names)
    for name in wanted:
        if name not in existing:
            raise DataError(
                f"{whose(owner)} was expected to have a column {name!r}, but none of its {len(names):,} columns is "
                f"named so.{nearest(name, names)} {advice}"
            )


def require_ids_and_labels(ids: str | None, labels: str | None, names: Sequence[str], owner: str | None) -> None:
    """Refuse an id column or a label column that does not exist."""
    if ids is not None:
        require_columns([ids], names, owner, "Name the id column with ids=, or number the rows with ids=None.")
    if labels is not None:
        require_columns([labels], names, owner, "Name the label column with labels=.")


def refuse_repeated(names: Sequence[str], owner: str | None) -> None:
    """Refuse two columns of one name."""
    repeated = [name for name, n in Counter(names).items() if n > 1]
    if repeated:
        raise DataError(
            f"{whose(owner)} needs a different name for every column, but {', '.join(map(repr, repeated))} occurs "
            "more than once. Rename the others or leave them out."
        )


def kind_of(arrow_type: pa.DataType, name: str, owner: str | None) -> Kind:
    """The kind of column an Arrow type makes; the one place that decides it."""
    if is_curves(arrow_type):
        return "curves"
    if pa.types.is_boolean(arrow_type):
        return "boolean"
    if _is_text(arrow_type) or pa.types.is_dictionary(arrow_type):
        return "categorical"
    # A column without a single value has no type of its own in Arrow.
    numbers = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal, pa.types.is_null)
    if any(is_number(arrow_type) for is_number in (*numbers, is_date)):
        return "numeric"
    raise DataError(
        f"{whose(owner)} may hold numbers, text, booleans, dates and curves, but its column {name!r} is of Arrow type "
        f"{arrow_type}. Turn it into one of these (a list into one column per element, values on a grid into Curves) "
        "or leave it out."
    )


def is_date(arrow_type: pa.DataType) -> bool:
    """Whether a column holds days, or moments."""
    return bool(pa.types.is_date(arrow_type) or pa.types.is_timestamp(arrow_type))


def is_curves(arrow_type: pa.DataType) -> bool:
    """Whether a column holds curves; by the name of its type, so that tables without curves need none of their code."""
    return isinstance(arrow_type, pa.BaseExtensionType) and arrow_type.extension_name == _CURVES


def _is_text(arrow_type: pa.DataType) -> bool:
    return any(f(arrow_type) for f in (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view))


def as_arrow(data: Any, owner: str | None) -> pa.Table:
    """Data held in memory as an Arrow table."""
    try:
        arrow = pa.table(data)
    except _NOT_ARROW as error:
        raise DataError(
            f"{whose(owner)} was expected as a pandas or polars frame, an Arrow table or a dict of arrays, but "
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


def normalised(arrow: pa.Table, ids: str | None, labels: str | None, owner: str | None, first: int = 0) -> pa.Table:
    """Ids, columns and labels in this order, each in the one Arrow type its kind is stored in."""
    if ids is None:
        arrow = arrow.append_column(ROW_NUMBER, pa.array(np.arange(first, first + len(arrow))))
        ids = ROW_NUMBER
    refuse_repeated(arrow.column_names, owner)
    arrow = _with_curves(arrow)
    if ids == labels:
        raise DataError(
            f"{whose(owner)} needs different columns for ids and labels, but both are {ids!r}. Name two columns."
        )
    columns = [name for name in arrow.column_names if name not in (ids, labels)]
    stored = {ids: _as_ids(arrow.column(ids), ids, owner)}
    for name in columns if labels is None else [*columns, labels]:
        stored[name] = _as_values(arrow.column(name), name, owner)
    if labels is not None and is_date(stored[labels].type):
        raise DataError(
            f"{whose(owner)} needs numbers, text, booleans or curves as labels, but column {labels!r} holds dates. "
            "Turn them into numbers or classes."
        )
    if labels is not None and pa.types.is_integer(stored[labels].type):
        # Small and unsigned integers invite overflow in the arithmetic done with labels.
        stored[labels] = stored[labels].cast(pa.int64(), safe=False)
    return pa.table(stored)


def _with_curves(arrow: pa.Table) -> pa.Table:
    """The same with columns of curves as such, which Arrow read before `colonnade.curves` told it what they are."""
    for place, field in enumerate(arrow.schema):
        described = field.metadata or {}
        if described.get(b"ARROW:extension:name") == _CURVES.encode():
            from colonnade.curves import CurvesType

            curves = CurvesType.__arrow_ext_deserialize__(field.type, described.get(b"ARROW:extension:metadata", b"{}"))
            stored = arrow.column(place).cast(curves.storage_type)
            chunks = [pa.ExtensionArray.from_storage(curves, chunk) for chunk in stored.chunks]
            arrow = arrow.set_column(place, field.name, pa.chunked_array(chunks, type=curves))
    return arrow


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
        f"{whose(owner)} needs whole numbers or text as ids, but {kind}. Convert them to text, at every party alike: "
        "a date, for one, to 1980-05-17."
    )


def _as_values(values: pa.ChunkedArray, name: str, owner: str | None) -> pa.ChunkedArray:
    if pa.types.is_dictionary(values.type):
        kind_of(values.type.value_type, name, owner)
        values = _decoded(values).cast(pa.large_string())
    kind = kind_of(values.type, name, owner)
    if kind == "categorical":
        return values.cast(pa.large_string())
    if is_date(values.type):
        return values.cast(pa.date32() if pa.types.is_date(values.type) else pa.timestamp("us"), safe=False)
    if kind == "numeric" and not (pa.types.is_integer(values.type) or values.type in (pa.float32(), pa.float64())):
        return values.cast(pa.float64())
    return values


def _decoded(values: pa.ChunkedArray) -> pa.ChunkedArray:
    stored = pa.large_string() if _is_text(values.type.value_type) else values.type.value_type
    # Arrow itself cannot decode a dictionary of string views, which is what polars makes.
    return pa.chunked_array([chunk.dictionary.cast(stored).take(chunk.indices) for chunk in values.chunks], type=stored)
