"""Placed: partitions of a table that lie with workers, each portion made by a recipe that can be followed again.

    the driver                                       worker k of n
         portion: which rows of which files ──────────▶       once, and again where a worker was lost
         function, what all calls share ──────────────▶       for partitions k, k + n, ...
         ◀───────────────────────────────────── results       in the order of the rows, a few at a time

A worker reads all rows of its portion in one pass over the files.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from colonnade.errors import DataError
from colonnade.runtime.workers import Call, Crew, new_name, portion_name
from colonnade.tables.parts import Parts, PlacedColumns, RowNumbers
from colonnade.tables.placement import Placement, arguments
from colonnade.tables.read import chosen_columns, open_parts
from colonnade.tables.table import Table, read_partitions

P = TypeVar("P")
Q = TypeVar("Q")
R = TypeVar("R")


@dataclass(frozen=True)
class ReadRecipe:
    """Partitions of a table: rows of Parquet parts."""

    name: str
    parts: Parts
    rows: Mapping[int, RowNumbers]

    def made(self, held: Mapping[str, Mapping[int, Any]]) -> Mapping[int, Table]:
        """The partitions, read in one pass."""
        return dict(zip(self.rows, read_partitions(self.parts, list(self.rows.values())), strict=True))

    def portion(self, slot: int, n: int) -> ReadRecipe:
        """The recipe of one of n workers."""
        return replace(self, name=portion_name(self.name, slot), rows=_portion(self.rows, slot, n))


@dataclass(frozen=True)
class AppliedRecipe:
    """What a function makes of the partitions of another recipe."""

    name: str
    before: ReadRecipe | AppliedRecipe
    function: Callable[..., Any]
    shared: tuple[Any, ...]
    own: Mapping[int, tuple[Any, ...]]

    def made(self, held: Mapping[str, Mapping[int, Any]]) -> Mapping[int, Any]:
        """What the function makes of the partitions, which are made first if they are not held."""
        before = held[self.before.name] if self.before.name in held else self.before.made(held)
        return {number: self.function(part, *self.shared, *self.own[number]) for number, part in before.items()}

    def portion(self, slot: int, n: int) -> AppliedRecipe:
        """The recipe of one of n workers."""
        before, own = self.before.portion(slot, n), _portion(self.own, slot, n)
        return replace(self, name=portion_name(self.name, slot), before=before, own=own)


class Placed(Placement[P]):
    """Partitions that lie with workers, the k-th with the worker in the k-th place, over and over."""

    def __init__(self, crew: Crew, bounds: Sequence[int], recipe: ReadRecipe | AppliedRecipe) -> None:
        self.bounds, self._crew, self._recipe = tuple(bounds), crew, recipe
        weakref.finalize(self, crew.forget, recipe.name)

    def map(
        self,
        function: Callable[..., R],
        *shared: Any,
        per_part: Iterable[Any] | None = None,
        only: range | None = None,
    ) -> Iterator[R]:
        n = self._crew.n
        portions = [self._recipe.portion(slot, n) for slot in range(n)]
        calls = (
            Call(function, (*shared, *own), number % n, portions[number % n], number)
            for number, own in zip(range(len(self)) if only is None else only, arguments(per_part), strict=False)
        )
        return self._crew.results(calls)

    def then(self, function: Callable[..., Q], *shared: Any, per_part: Iterable[Any] | None = None) -> Placed[Q]:
        own = dict(zip(range(len(self)), arguments(per_part), strict=False))
        self._crew.require_known(function, *shared, *itertools.chain.from_iterable(own.values()))
        return Placed(self._crew, self.bounds, AppliedRecipe(new_name(), self._recipe, function, shared, own))


@dataclass(frozen=True)
class OnWorkers:
    """Places tables on workers."""

    workers: Crew

    def place(self, parts: Parts, rows: RowNumbers, bounds: Sequence[int]) -> Placed[Table]:
        """These rows of Parquet parts, cut at these bounds."""
        cut = {number: rows[begin:end] for number, (begin, end) in enumerate(itertools.pairwise(bounds))}
        return Placed(self.workers, bounds, ReadRecipe(new_name(), parts, cut))


def placed_table(
    path: Path,
    crew: Crew,
    *,
    ids: str,
    labels: str | None = None,
    columns: Sequence[str] | None = None,
    keys: Sequence[str] = (),
    exclude: Sequence[str] = (),
    owner: str | None = None,
) -> Table:
    """A table whose columns lie with workers, and whose ids and labels are in this process.

    Args:
        path: A Parquet file, or a folder of Parquet parts, which all workers reach by this path.
        crew: The workers.
        ids: The id column.
        labels: The label column, at the label party.
        columns: The columns to use; all when None.
        keys: The columns that people are matched by, which are placed besides.
        exclude: Columns that are not used.
        owner: The party's name, for error messages.

    Raises:
        DataError: The table is no Parquet file, a named column does not exist, or a column is of a type no model can
            use.
        StorageError: A file is missing or unreadable.
    """
    if path.suffix != ".parquet" and not path.is_dir():
        raise DataError(
            "A table that is placed on workers should be a Parquet file or a folder of Parquet parts, but is "
            f"{path.name}. Write it as Parquet, or leave placed out."
        )
    wanted = chosen_columns(open_parts(path).schema.names, ids, labels, columns, keys, exclude, owner)
    parts = Parts.of(path.absolute(), ids, [name for name in wanted if name not in (ids, labels)], owner)
    table = Table.read(path, ids=ids, labels=labels, columns=[], owner=owner)
    placed = PlacedColumns(parts, np.arange(len(table)), parts.schema(), OnWorkers(crew))
    return replace(table, placed=placed)


@contextmanager
def released(table: Table | None) -> Iterator[Table | None]:
    """A table whose workers, if it has some, end with the block, and with them what they hold."""
    try:
        yield table
    finally:
        if table is not None and table.placed is not None:
            table.placed.placer.workers.end()


def _portion(values: Mapping[int, Any], slot: int, n: int) -> dict[int, Any]:
    return {number: value for number, value in values.items() if number % n == slot}
