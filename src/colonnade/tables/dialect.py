"""Dialect: how a CSV is written, which the file itself does not say."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

from colonnade.errors import DataError

if TYPE_CHECKING:
    import pyarrow.dataset as ds

DELIMITERS = (";", "\t", "|", ",")
_HEADER = 2**16
_TYPES = {"number": pa.float64(), "text": pa.string(), "date": pa.timestamp("s")}


@dataclass(frozen=True)
class Dialect:
    r"""How a CSV is written; see `Table.read`.

    >>> Dialect(thousands=".", decimal=",").numbers(pa.array(["1.037,50", "12"])).to_pylist()
    [1037.5, 12.0]
    >>> Dialect().delimiter_of(Path("bank.tsv"))
    '\t'
    """

    delimiter: str | None = None
    encoding: str = "utf-8"
    decimal: str = "."
    thousands: str | None = None
    missing: tuple[str, ...] | None = None
    dates: tuple[str, ...] = ()
    types: Mapping[str, Literal["number", "text", "date"]] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        for name in ("delimiter", "decimal", "thousands"):
            mark = getattr(self, name)
            if mark is not None and (len(mark) != 1 or not mark.isascii() or mark.isalnum() or mark in '"\r\n'):
                raise DataError(f"{name} should be one mark such as ';', but is {mark!r}. Write one mark.")
        if self.decimal in (self.thousands, self.delimiter) or (self.thousands and self.thousands == self.delimiter):
            raise DataError(
                f"delimiter, decimal and thousands should be different marks, but are {self.delimiter!r}, "
                f"{self.decimal!r} and {self.thousands!r}. Correct one of them."
            )
        try:
            "".encode(self.encoding)
        except LookupError as error:
            raise DataError(
                f"encoding should be one that Python knows, but is {self.encoding!r}. Write utf-8, latin-1 or cp1252."
            ) from error
        for column, kind in self.types.items():
            if kind not in _TYPES:
                raise DataError(
                    f"types should be {', '.join(_TYPES)}, but is {kind!r} for column {column!r}. Choose one of these."
                )

    def delimiter_of(self, path: Path) -> str:
        """The mark between the fields of a file."""
        return self.delimiter or ("\t" if ".tsv" in path.suffixes else ",")

    def format(self, path: Path, text: Iterable[str]) -> ds.CsvFileFormat:
        """The dialect as Arrow knows it; these columns are read as text."""
        import pyarrow.csv as csv
        import pyarrow.dataset as ds

        types = {name: _TYPES[kind] for name, kind in self.types.items()}
        if self.thousands is not None:
            types |= {name: pa.string() for name, kind in self.types.items() if kind == "number"}
        convert = csv.ConvertOptions(
            # An empty field is missing in text as well.
            strings_can_be_null=True,
            column_types=types | dict.fromkeys(text, pa.string()),
            decimal_point=self.decimal,
            timestamp_parsers=[*self.dates, csv.ISO8601],
            null_values=None if self.missing is None else ["", *self.missing],
        )
        return ds.CsvFileFormat(
            parse_options=csv.ParseOptions(delimiter=self.delimiter_of(path), newlines_in_values=True),
            # Types are inferred from the first block, so it is made large.
            read_options=csv.ReadOptions(block_size=2**24, encoding=self.encoding),
            convert_options=convert,
        )

    def numbers(self, texts: Any) -> Any:
        """Texts as numbers whose thousands are set apart by a mark; None if some are no numbers."""
        if self.thousands is None:
            return None
        group, point = re.escape(self.thousands), re.escape(self.decimal)
        written = rf"^\s*-?(\d{{1,3}}({group}\d{{3}})+|\d+)({point}\d*)?\s*$"
        if pc.all(pc.match_substring_regex(texts, written)).as_py() is False:
            return None
        plain = pc.replace_substring(pc.utf8_trim_whitespace(texts), self.thousands, "")
        return pc.replace_substring(plain, self.decimal, ".").cast(pa.float64())

    def check_header(self, path: Path) -> None:
        """Refuse a file whose first line shows another mark between the fields."""
        with pa.input_stream(str(path)) as stream:
            header = stream.read(_HEADER).decode(self.encoding, errors="replace").partition("\n")[0]
        delimiter = self.delimiter_of(path)
        if delimiter not in header:
            for mark in DELIMITERS:
                if mark in header:
                    raise DataError(
                        f"{path} should have fields apart by {delimiter!r}, but in its first line they seem to be "
                        f"apart by {mark!r}. Write delimiter = {mark!r}."
                    )

    def check_columns(self, path: Path, schema: pa.Schema, columns: Iterable[str]) -> None:
        """Refuse types of columns that do not exist, and columns whose characters are stored otherwise."""
        for name in self.types:
            if name not in schema.names:
                raise DataError(f"types names the column {name!r}, but {path} has none of that name. Correct the name.")
        for name in columns:
            if name in schema.names and pa.types.is_binary(schema.field(name).type):
                raise wrong_encoding(path, f"column {name!r}")


def wrong_encoding(path: Path, where: str) -> DataError:
    """The error about characters that are stored otherwise than expected."""
    return DataError(
        f"{path} should be readable in the encoding that was named, or in utf-8, but {where} is not. Name another "
        "one, such as encoding = 'latin-1' or 'cp1252'."
    )
