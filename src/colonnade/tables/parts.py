"""Parts: Parquet files that hold a table too large for one process, and rows of them read by number."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from blake3 import blake3

from colonnade.errors import StorageError
from colonnade.tables.columns import normalised
from colonnade.tables.placement import Placement
from colonnade.tables.read import UNREADABLE, open_parts, unreadable

if TYPE_CHECKING:
    import pyarrow.dataset as ds

RowNumbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Parts:
    """Where the columns of a table lie, so that any process that reaches the files reads the same.

    Attributes:
        path: A Parquet file, or a folder of them.
        ids: The id column.
        columns: The columns that are read besides.
        owner: The party's name, for error messages.
        digest: A digest of the files' names and contents.
        hashed: For text columns of very many levels, into how many buckets these are hashed.
    """

    path: Path
    ids: str
    columns: tuple[str, ...]
    owner: str | None
    digest: str
    hashed: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, path: Path, ids: str, columns: Sequence[str], owner: str | None) -> Parts:
        """The parts that lie at a path now."""
        return cls(path, ids, tuple(columns), owner, _digest(open_parts(path)))

    def select(self, columns: Sequence[str]) -> Parts:
        """The parts with fewer columns."""
        kept = {name: n for name, n in self.hashed.items() if name in columns}
        return replace(self, columns=tuple(columns), hashed=kept)

    def schema(self) -> pa.Schema:
        """The names of ids and columns, each with the one Arrow type its kind is stored in."""
        empty = open_parts(self.path).schema.empty_table().select([self.ids, *self.columns])
        return normalised(empty, self.ids, None, self.owner).schema

    def read(self, rows: RowNumbers) -> pa.Table:
        """The rows of these numbers, in this order; a row of number -1 has nothing but missing values.

        One group of rows of a file is in memory at a time, besides what is read.

        Raises:
            StorageError: The files are other ones than when the table was placed.
        """
        source = open_parts(self.path)
        if _digest(source) != self.digest:
            raise StorageError(
                f"{self.path.name} should hold the same Parquet files as when the run began, here and on all workers, "
                "but holds others. Leave the files alone while a run goes on, or begin a new run."
            )
        order = np.argsort(rows, kind="stable")
        wanted = rows[order]
        n_absent = int(np.searchsorted(wanted, 0))
        names, begin = [self.ids, *self.columns], 0
        found = [normalised(source.schema.empty_table().select(names), self.ids, None, self.owner)]
        try:
            for group, n_rows in _groups(source):
                first, last = np.searchsorted(wanted, (begin, begin + n_rows))
                if first < last:
                    there = group.to_table(schema=source.schema, columns=names)
                    some = there.take(pa.array(wanted[first:last] - begin))
                    found.append(normalised(some, self.ids, None, self.owner))
                begin += n_rows
        except UNREADABLE as error:
            raise unreadable(self.path, error) from None
        places = np.empty(len(rows), np.int64)
        places[order] = np.arange(len(rows)) - n_absent
        return pa.concat_tables(found).take(pa.array(places, mask=places < 0)).combine_chunks()

    def n_rows(self) -> int:
        """How many rows all parts have."""
        return sum(n_rows for _, n_rows in _groups(open_parts(self.path)))


class Placer(Protocol):
    """What places rows of parts on workers."""

    @property
    def workers(self) -> Any:
        """The workers."""

    def place(self, parts: Parts, rows: RowNumbers, bounds: Sequence[int]) -> Placement[Any]:
        """These rows, cut at these bounds, each partition a table."""


@dataclass(frozen=True, eq=False)
class PlacedColumns:
    """The columns of a table that workers hold, and which rows of the parts the table has.

    Attributes:
        rows: The numbers of the rows in the parts, -1 for a row that is absent.
        schema: The names and types of ids and columns.
        placer: What places rows of parts on workers.
    """

    parts: Parts
    rows: RowNumbers
    schema: pa.Schema
    placer: Placer

    @property
    def digest(self) -> bytes:
        """A digest of everything that the columns depend on."""
        said = repr((self.parts.digest, self.parts.columns, sorted(self.parts.hashed.items())))
        return blake3(said.encode() + self.rows.tobytes()).digest()

    def take(self, numbers: RowNumbers) -> PlacedColumns:
        """The columns of other rows, in another order; -1 stands for an absent row."""
        return replace(self, rows=np.where(numbers < 0, -1, self.rows[numbers]))

    def select(self, columns: Sequence[str]) -> PlacedColumns:
        """Fewer columns."""
        parts = self.parts.select(columns)
        return replace(self, parts=parts, schema=pa.schema([self.schema.field(name) for name in (parts.ids, *columns)]))

    def hashed(self, buckets: Mapping[str, int]) -> PlacedColumns:
        """The columns with the levels of some hashed into buckets."""
        return replace(self, parts=replace(self.parts, hashed={**self.parts.hashed, **buckets}))


def _groups(source: ds.Dataset) -> Iterator[tuple[ds.Fragment, int]]:
    """The groups of rows of all files, in their order, and how many rows each has."""
    for part in source.get_fragments():
        for group in part.split_by_row_group():
            yield group, group.row_groups[0].num_rows


def _digest(source: ds.Dataset) -> str:
    # All bytes: a footer is the same after a value has changed, and a run that goes on from its checkpoints would hide
    # other values under the masks that it used before.
    digest = blake3()
    for part in source.get_fragments():
        path = Path(part.path)
        now = path.stat()
        digest.update(f"{path.name} ".encode() + _file_digest(path, now.st_size, now.st_mtime_ns, now.st_ino))
    return digest.hexdigest()


@lru_cache(maxsize=4096)
def _file_digest(path: Path, *state: int) -> bytes:
    """The digest of a file's bytes, found once for each state of the file that the system tells."""
    digest = blake3()
    with path.open("rb") as file:
        while some := file.read(1 << 20):
            digest.update(some)
    return digest.digest()
