"""Data sets by name: built-in ones, and files of a folder the user names in $COLONNADE_DATA.

What each set is (file, checksum, licence, labels, suggested cut) stands in ``datasets.toml``. A folder that holds other
rows of a set, such as a slice of them, says so in a ``datasets.toml`` of its own: `rows` and `sha256` by name.
"""

from __future__ import annotations

import hashlib
import io
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from colonnade.curves import BSplines, Curves
from colonnade.data.bank_shop_telco import generate
from colonnade.data.partition import intersect, split
from colonnade.errors import DataError, PlanError, imported
from colonnade.storage import explained
from colonnade.tables.table import Table
from colonnade.text import nearest

FOLDER_VARIABLE = "COLONNADE_DATA"
DESCRIPTION = "datasets.toml"

Task: TypeAlias = Literal["binary", "classes", "count", "regression", "curves", "alignment"]


@dataclass(frozen=True, kw_only=True)
class DatasetInfo:
    """What is known of a data set without reading it.

    Example:
        >>> {info.name: info.task for info in available()}["digits"]
        'classes'
    """

    name: str
    rows: int
    columns: int
    task: Task
    licence: str
    file: str | None = None

    @property
    def built_in(self) -> bool:
        """Whether the set needs no file."""
        return self.file is None

    @property
    def present(self) -> bool:
        """Whether the set is built in, or its file is in the folder that the user named."""
        folder = os.environ.get(FOLDER_VARIABLE)
        return self.file is None or (folder is not None and (Path(folder) / self.file).is_file())


@dataclass(frozen=True, kw_only=True)
class _Entry(DatasetInfo):
    """One set's lines in datasets.toml: also how to read it."""

    sha256: str = ""
    labels: str | None = None
    ids: str | None = None
    drop: tuple[str, ...] = ()
    shop: tuple[str, ...] = ()


@dataclass(frozen=True)
class Dataset:
    """A data set as the parties of a simulation hold it.

    Example:
        >>> digits = load("digits")
        >>> digits.label_party, digits.tables["shop"]
        ('bank', Table(shop: 1,797 rows, 32 columns (32 numeric), no labels))
    """

    name: str
    tables: Mapping[str, Table]
    task: Task
    licence: str

    @property
    def label_party(self) -> str | None:
        """The party that holds the labels, if any does."""
        return next((party for party, table in self.tables.items() if table.labels is not None), None)

    @property
    def columns(self) -> dict[str, tuple[str, ...]]:
        """Each party's columns."""
        return {party: table.columns for party, table in self.tables.items()}

    def split(self) -> dict[str, Table]:
        """The parties' tables, cut to the rows all of them hold, in one common order."""
        if len({table.id_digest() for table in self.tables.values()}) == 1:
            return dict(self.tables)
        return intersect(self.tables)

    def joined(self) -> Table:
        """One table of all parties' columns, with the labels: what a trusted centre would hold."""
        tables = self.split()
        first = tables[self.label_party] if self.label_party else next(iter(tables.values()))
        others = [table.to_arrow().select(table.columns) for table in tables.values() if table is not first]
        parts = [first.to_arrow(), *others]
        names = [name for part in parts for name in part.column_names]
        arrow = pa.table([values for part in parts for values in part.columns], names=names)
        return Table.of(arrow, ids=first.id_name, labels=first.label_name)


def available() -> tuple[DatasetInfo, ...]:
    """All sets that `load` knows, and whether each is there."""
    return tuple(_entries().values())


def load(name: str, *, rows: int | None = None, seed: int = 0) -> Dataset:
    """Load a data set by name; rows without a label are left out.

    Args:
        name: One of the names `available` lists.
        rows: How many rows to draw at random, kept in order; all when None. A generated set makes this many people.
        seed: Which rows to draw, or which set to generate.

    Raises:
        PlanError: There is no set of this name.
        DataError: The file is missing or not the one that is meant, or it has fewer rows.
    """
    entry = _entries().get(name)
    if entry is None:
        raise PlanError(
            f"A data set was expected, but none is called {name!r}.{nearest(name, _entries())} "
            "List the names with: colonnade data list"
        )
    if rows is not None and rows < 1:
        raise PlanError(f"At least one row of {name!r} must be drawn, but rows is {rows}. Choose a larger number.")
    if name == "bank-shop-telco":
        tables = generate(entry.rows if rows is None else rows, seed)
    else:
        tables = _tables(entry, rows, seed)
    return Dataset(name, tables, entry.task, entry.licence)


def _entries() -> Mapping[str, _Entry]:
    folder = os.environ.get(FOLDER_VARIABLE)
    return _described(Path(folder) / DESCRIPTION if folder else None)


@cache
def _described(path: Path | None) -> Mapping[str, _Entry]:
    """All sets, with what a folder's own description says of them."""
    text = resources.files("colonnade.data").joinpath(DESCRIPTION).read_text(encoding="utf-8")
    entries = {name: _Entry(name=name, **values) for name, values in tomllib.loads(text).items()}
    if path is None or not path.is_file():
        return entries
    with explained(f"read {path}"):
        own = tomllib.loads(path.read_text(encoding="utf-8"))
    for name, values in own.items():
        if name not in entries or set(values) != {"rows", "sha256"}:
            raise DataError(
                f"{path} should say rows and sha256 of data sets that are known, but says {', '.join(values)} of "
                f"{name!r}.{nearest(name, entries)} Correct the file."
            )
        entries[name] = replace(entries[name], **values)
    return entries


def _tables(entry: _Entry, rows: int | None, seed: int) -> dict[str, Table]:
    name, read = entry.name, _READERS.get(entry.name, _parquet)
    arrow = read(b"" if entry.file is None else _verified(entry.file, entry.sha256)).drop_columns(list(entry.drop))
    if entry.labels is not None:
        arrow = arrow.filter(pc.is_valid(arrow.column(entry.labels)))
    if rows is not None:
        if rows > len(arrow):
            raise DataError(
                f"{rows:,} rows of {name!r} were to be drawn, but it has {len(arrow):,}. Draw fewer, or leave rows out."
            )
        arrow = arrow.take(np.sort(np.random.default_rng(seed).choice(len(arrow), rows, replace=False)))
    if name == "cifar10":
        arrow = _decoded_images(arrow)
    if entry.task == "alignment":
        copies = arrow.column("is_duplicate")
        parts = {"bank": arrow.filter(pc.invert(copies)), "shop": arrow.filter(copies)}
        return {
            party: Table.of(part.drop_columns("is_duplicate"), ids=entry.ids, owner=party)
            for party, part in parts.items()
        }
    table = Table.of(arrow, ids=entry.ids, labels=entry.labels)
    cut: dict[str, list[str]] = {"bank": [], "shop": []}
    for i, column in enumerate(table.columns):
        at_shop = any(fnmatchcase(column, pattern) for pattern in entry.shop) if entry.shop else i % 2 == 1
        cut["shop" if at_shop else "bank"].append(column)
    return split(table, cut, labels="bank")


def _verified(file: str, sha256: str) -> bytes:
    """The bytes of a file under $COLONNADE_DATA, if they are the ones that are meant."""
    folder = os.environ.get(FOLDER_VARIABLE)
    if not folder:
        raise DataError(
            f"The file {file} was sought in the folder that ${FOLDER_VARIABLE} names, but this variable is not set. "
            f"Set ${FOLDER_VARIABLE} to the folder that holds the file."
        )
    path = Path(folder) / file
    if not path.exists():
        raise DataError(
            f"The file {file} was sought in {folder}, but it is not there. Put it there, or set ${FOLDER_VARIABLE} to "
            "the folder that holds it."
        )
    with explained(f"read {path}"):
        data = path.read_bytes()
    found = hashlib.sha256(data).hexdigest()
    if found != sha256:
        raise DataError(
            f"The SHA-256 of {path} should begin with {sha256[:12]}, but it begins with {found[:12]}: the file is "
            "damaged or another version. Fetch it again."
        )
    return data


def _parquet(data: bytes) -> pa.Table:
    import pyarrow.parquet as pq

    return pq.read_table(pa.BufferReader(data))


def _breast_cancer(_: bytes) -> pa.Table:
    from sklearn.datasets import load_breast_cancer

    bunch = load_breast_cancer()
    names = [name.replace(" ", "_") for name in bunch.feature_names]
    return _frame(bunch.data, names, malignant=1 - bunch.target)


def _digits(_: bytes) -> pa.Table:
    from sklearn.datasets import load_digits

    bunch = load_digits()
    return _frame(bunch.data.astype(np.uint8), _pixels(8), digit=bunch.target)


def _a9a(data: bytes) -> pa.Table:
    with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
        bits = np.unpackbits(arrays["x"], axis=1)[:, : int(arrays["n_features"])]
        return _frame(bits, [f"bit_{i}" for i in range(1, bits.shape[1] + 1)], income=arrays["y"])


def _mnist(data: bytes) -> pa.Table:
    with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
        images = np.concatenate([arrays["x_train"], arrays["x_test"]])
        digits = np.concatenate([arrays["y_train"], arrays["y_test"]])
    return _frame(images.reshape(len(images), -1), _pixels(28), digit=digits)


def _bike_sharing_curves(data: bytes) -> pa.Table:
    """Days with at least 20 observed hours: rentals, temperature, humidity and wind as curves over the hours."""
    with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
        observed = np.isfinite(arrays["cnt"]).sum(axis=1) >= 20
        names = {"temperature": "temp", "humidity": "hum", "wind": "windspeed", "rentals": "cnt"}
        hours, basis = np.arange(24.0), BSplines((0.0, 23.0), 12)
        curves = {name: Curves.smooth(arrays[key][observed], hours, basis) for name, key in names.items()}
        return pa.table({"day": arrays["date"][observed].tolist()} | curves)


def _canadian_weather(data: bytes) -> pa.Table:
    """Temperature and the logarithm of precipitation at 35 places, as curves over the days of a year."""
    with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
        days, basis = np.arange(365) + 0.5, BSplines((0.0, 365.0), 11)
        names = {"temperature": "temperature_c", "precipitation": "log10_precip"}
        curves = {name: Curves.smooth(arrays[key], days, basis) for name, key in names.items()}
        return pa.table({"place": arrays["place"].tolist()} | curves)


def _decoded_images(arrow: pa.Table) -> pa.Table:
    pillow = imported("PIL.Image", "report", "Decoding the images of cifar10")
    images = np.stack([np.asarray(pillow.open(io.BytesIO(jpeg.as_py()))) for jpeg in arrow.column("jpeg")])
    names = [name for colour in ("red", "green", "blue") for name in _pixels(32, colour)]
    return _frame(images.transpose(0, 3, 1, 2).reshape(len(images), -1), names, label=arrow.column("label"))


_READERS = {
    "breast-cancer": _breast_cancer,
    "digits": _digits,
    "a9a": _a9a,
    "mnist": _mnist,
    "bike-sharing-curves": _bike_sharing_curves,
    "canadian-weather": _canadian_weather,
}


def _pixels(side: int, prefix: str = "pixel") -> list[str]:
    return [f"{prefix}_{row:02d}_{column:02d}" for row in range(side) for column in range(side)]


def _frame(matrix: npt.NDArray[Any], names: list[str], **labels: Any) -> pa.Table:
    columns = np.ascontiguousarray(matrix.T)
    return pa.table(dict(zip(names, columns, strict=True)) | labels)
