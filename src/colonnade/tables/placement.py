"""Placement: a table cut into partitions of consecutive rows, and functions that are called on each of them.

    map     calls a function on every partition; results come in the order of the rows, as a stream
    then    a placement of what a function makes of each partition, which stays where the partition lies

A table in memory has partitions too (`InMemory`). `colonnade.runtime.placed` has those that lie with workers.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import reduce
from operator import add
from typing import Any, Generic, TypeVar

P = TypeVar("P")
Q = TypeVar("Q")
R = TypeVar("R")

PARTITION_ROWS = 1 << 16
"""How many rows a partition has at most. Sums over rows are sums over partitions, so this number is part of results."""


class Placement(ABC, Generic[P]):
    """Partitions of rows, each held by somebody who computes on it.

    Functions are named by their module and draw nothing: a partition may be computed more than once, and must give the
    same bytes each time.

    Attributes:
        bounds: Where each partition begins, and how many rows there are.
    """

    bounds: tuple[int, ...]

    @abstractmethod
    def map(
        self,
        function: Callable[..., R],
        *shared: Any,
        per_part: Iterable[Any] | None = None,
        only: range | None = None,
    ) -> Iterator[R]:
        """Yield a function of each partition.

        Args:
            function: Called with a partition, `shared`, and the partition's own of `per_part` last.
            shared: What all calls are given.
            per_part: What each call is given besides, in the order of the partitions.
            only: The numbers of the partitions that are wanted; all when None.
        """

    @abstractmethod
    def then(self, function: Callable[..., Q], *shared: Any, per_part: Iterable[Any] | None = None) -> Placement[Q]:
        """The placement of what a function makes of each partition; its arguments are those of `map`."""

    def cut(self, values: Sequence[Any] | Any) -> Iterator[Any]:
        """Something that has one entry for each row, cut as the rows are."""
        return (values[begin:end] for begin, end in itertools.pairwise(self.bounds))

    def __len__(self) -> int:
        return len(self.bounds) - 1


class InMemory(Placement[P]):
    """Partitions in the memory of this process.

    >>> halves = InMemory((0, 2, 3), [[1, 2], [3]])
    >>> list(halves.map(sum)), total(halves.then(len).map(int))
    ([3, 3], 3)
    """

    def __init__(self, bounds: Sequence[int], parts: Sequence[P]) -> None:
        self.bounds, self._parts = tuple(bounds), parts

    def map(
        self,
        function: Callable[..., R],
        *shared: Any,
        per_part: Iterable[Any] | None = None,
        only: range | None = None,
    ) -> Iterator[R]:
        for number, own in zip(range(len(self)) if only is None else only, arguments(per_part), strict=False):
            yield function(self._parts[number], *shared, *own)

    def then(self, function: Callable[..., Q], *shared: Any, per_part: Iterable[Any] | None = None) -> InMemory[Q]:
        return InMemory(self.bounds, list(self.map(function, *shared, per_part=per_part)))


def arguments(per_part: Iterable[Any] | None) -> Iterator[tuple[Any, ...]]:
    """What each partition's call is given besides, as a tuple; without end if there is nothing."""
    return itertools.repeat(()) if per_part is None else ((own,) for own in per_part)


def bounds_of(n_rows: int, rows: int | None = None) -> tuple[int, ...]:
    """Where partitions of `rows` rows begin and the last one ends; no rows are one partition too.

    >>> bounds_of(5, 2), bounds_of(0)
    ((0, 2, 4, 5), (0, 0))
    """
    return (*range(0, max(n_rows, 1), rows or PARTITION_ROWS), n_rows)


def total(sums: Iterable[R]) -> R:
    """The sum of the sums of all partitions, in their order."""
    return reduce(add, sums)
