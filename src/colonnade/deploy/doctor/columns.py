"""What is odd about a table's columns and labels, with what to write into the plan about it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from colonnade.tables.table import Table
from colonnade.text import how_many

MOST_CLASSES = 20
FEW_ROWS = 10
NEARLY_ALL = 0.8
OWN_LEVELS = 0.5
_NUMBER = r"-?\d+(?:\.\d+)?"

LOOKS: Mapping[str, tuple[str, str]] = {
    "numbers whose thousands are set apart": (
        r"^-?\d{1,3}([,.' ]\d{3})+([.,]\d+)?$",
        'Name the mark, such as thousands = ",".',
    ),
    "numbers with a decimal comma": (r"^-?\d+,\d+$", 'Write decimal = ","; the delimiter is then ";" as a rule.'),
    "dates": (r"^\d{1,2}[./-]\d{1,2}[./-]\d{4}$", 'Say how they are written, such as dates = ["%d.%m.%Y"].'),
    "numbers with a unit": (r"^[^\d\s-]{0,3}\s*-?\d[\d.,]*\s*[^\d\s]{1,3}$", "Take the unit away in the file."),
}
"""What the values of a column of text may look like: a pattern, and what to do."""


def odd_columns(table: Table) -> Iterator[tuple[str, str]]:
    """What is odd about columns: in words, and what to do.

    >>> table = Table.of({"id": [1, 2], "rent": ["1037,50", "980,00"]})
    >>> [said for said, _ in odd_columns(table)]
    ["'rent' is read as text of 2 levels in 2 rows, which look like numbers with a decimal comma"]
    """
    for name, kind in table.kinds.items():
        values = table.select([name]).to_arrow().column(name)
        if kind == "categorical":
            found = _odd_text(values)
            if found is not None:
                yield f"{name!r} is read as text of {found[0]}", found[1]
        elif kind == "numeric" and pa.types.is_integer(values.type) and len(table) > FEW_ROWS and _counts(values):
            yield f"{name!r} counts the rows", f"Leave it out: exclude = [{name!r}]."


def told_place(table: Table) -> str:
    """Where the rows of a placed table will lie, and what this process keeps of each."""
    assert table.placed is not None
    crew = table.placed.placer.workers
    at = "processes of this machine" if crew.engine == "local" else f"{crew.engine} at {crew.address or 'this machine'}"
    kept = (table.select([]).to_arrow().nbytes + table.placed.rows.nbytes) / max(len(table), 1)
    return (
        f"{len(table):,} rows lie with {how_many(crew.n, 'worker')} ({at}), {-(-len(table) // crew.n):,} each; this "
        f"process keeps ids, labels and row numbers, {kept:.0f} bytes a row"
    )


def odd_labels(labels: pa.ChunkedArray) -> Iterator[str]:
    """What is odd about classes: those that differ by case or spaces only, and those of a few rows."""
    counts = _counted(labels)
    if len(counts) > MOST_CLASSES:
        return
    alike: dict[str, list[str]] = {}
    for value in counts:
        alike.setdefault(str(value).strip().lower(), []).append(repr(value))
    for same in alike.values():
        if len(same) > 1:
            yield f"{' and '.join(same)} are different classes, though they differ by case or spaces only"
    for value, count in counts.items():
        if count < FEW_ROWS:
            yield f"class {value!r} has {count:,} of {len(labels):,} rows"


def told_labels(labels: pa.ChunkedArray) -> str:
    """The classes with their counts, the most frequent one first; of many different values only how many there are."""
    counts = _counted(labels)
    if len(counts) > MOST_CLASSES:
        return f"{len(counts):,} different values in {len(labels):,} rows"
    return ", ".join(f"{value!r} {count:,}" for value, count in counts.items())


def _counted(values: pa.ChunkedArray) -> dict[Any, int]:
    counts = sorted(values.drop_null().value_counts().to_pylist(), key=lambda each: -each["counts"])
    return {each["values"]: each["counts"] for each in counts}


def _odd_text(values: pa.ChunkedArray) -> tuple[str, str] | None:
    texts = pc.utf8_trim_whitespace(values.drop_null())
    levels = pc.count_distinct(texts).as_py()
    counted = f"{levels:,} levels in {len(values):,} rows"
    for look, (pattern, fix) in LOOKS.items():
        if len(texts) and _share(texts, pattern) >= NEARLY_ALL:
            return f"{counted}, which look like {look}", fix
    others = texts.filter(pc.invert(pc.match_substring_regex(texts, rf"^{_NUMBER}$")))
    words = pc.unique(others).to_pylist()
    if 0 < len(others) < (1 - NEARLY_ALL) * len(texts) and len(words) <= 3:
        named = ", ".join(f'"{word}"' for word in words)
        return f"{counted}, all numbers but for {named}", f"If that is a missing value, write missing = [{named}]."
    if len(values) > FEW_ROWS and levels > OWN_LEVELS * len(values):
        return f"{counted}, nearly one for each row", "Leave it out by exclude, unless a model should learn from it."
    return None


def _share(texts: Any, pattern: str) -> float:
    return float(pc.mean(pc.match_substring_regex(texts, pattern).cast(pa.float64())).as_py())


def _counts(values: pa.ChunkedArray) -> bool:
    """Whether whole numbers go up by one from row to row, as an index does that was written into the file."""
    return values.null_count == 0 and bool((np.diff(values.to_numpy()) == 1).all())
