"""Buckets: a party's ids cut by their keyed digests into parts that fit into memory, each matched by itself.

An id lies in the same bucket at every party. A bucket that goes out is filled up to `slots`, a number that follows from
how many ids there are in all, so that its length tells nothing about the ids in it. Up to one bucket's worth of ids is
held in memory; more is kept in files of 24 bytes for each id.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from colonnade.align.identifiers import DIGEST_BYTES, Identifiers
from colonnade.errors import DataError, StorageError
from colonnade.privacy.randomness import Randomness
from colonnade.storage import explained
from colonnade.tables.table import Table

Duplicates: TypeAlias = Literal["error", "first", "all"]
Digests: TypeAlias = npt.NDArray[np.uint8]
Rows: TypeAlias = npt.NDArray[np.int64]

MOST_BUCKETS = 1 << 14

_RECORD = np.dtype([("digest", np.uint8, (DIGEST_BYTES,)), ("row", "<i8")])
_GATHERED = 1 << 20


@dataclass(frozen=True)
class Bucket:
    """The ids of one bucket: each once, with the row that stands for it and how many rows have it.

    `repeats` are the numbers of all rows, by id: those of the i-th are `repeats[starts[i] : starts[i] + copies[i]]`.
    """

    digests: Digests
    rows: Rows
    copies: Rows
    starts: Rows = field(repr=False)
    repeats: Rows = field(repr=False)

    @classmethod
    def of(cls, digests: Digests, rows: Rows) -> Bucket:
        """The bucket of these digests, of rows from the first on; of several with one id the first stands for it."""
        order = digest_order(digests)
        digests, rows = digests[order], rows[order]
        new = np.ones(len(rows), bool)
        new[1:] = (digests[1:] != digests[:-1]).any(axis=1)
        starts = np.flatnonzero(new)
        return cls(digests[new], rows[new], np.diff(starts, append=len(rows)), starts, rows)

    def without(self, matched: npt.NDArray[np.bool_]) -> Bucket:
        """The ids whose row has not been matched yet."""
        left = ~matched[self.rows]
        return Bucket(self.digests[left], self.rows[left], self.copies[left], self.starts[left], self.repeats)

    def __len__(self) -> int:
        return len(self.rows)


@dataclass(frozen=True)
class Listed:
    """A bucket as it goes out: filled up and shuffled. The row of a digest that only fills up is -1."""

    digests: Digests
    rows: Rows

    @classmethod
    def of(cls, bucket: Bucket, slots: int, random: Randomness) -> Listed:
        """Fill a bucket up with digests of nothing, and shuffle it.

        Args:
            bucket: The ids.
            slots: How many digests go out.
            random: A secret source that serves this list only; the same one gives the same list again.
        """
        n_filling = slots - len(bucket)
        if n_filling < 0:
            raise DataError(
                f"A bucket should have at most {slots:,} ids but has {len(bucket):,}: they are cut most unevenly. "
                "Check that the ids were not made to collide, then run the alignment anew."
            )
        filling = random.uniform_bits(2 * n_filling, "filling").view(np.uint8).reshape(-1, DIGEST_BYTES)
        rows = np.concatenate([bucket.rows, np.full(n_filling, -1)])
        order = np.argsort(random.uniform_bits(slots, "shuffle"), kind="stable")
        return cls(np.concatenate([bucket.digests, filling])[order], rows[order])

    def chunks(self, size: int) -> Iterator[Digests]:
        """The digests in parts."""
        for begin in range(0, len(self.digests), size):
            yield self.digests[begin : begin + size]


class Buckets:
    """A party's ids under one key, by bucket.

    Args:
        identifiers: How ids are read.
        table: The rows.
        key: Which of the keys.
        salt: What the digests are keyed with.
        n: How many buckets there are.
        folder: Where they are kept if there are several.
    """

    def __init__(self, identifiers: Identifiers, table: Table, key: int, salt: bytes, *, n: int, folder: Path) -> None:
        self.n, self._folder = n, folder / f"key-{key}"
        self._only: Bucket | None = None
        self._sizes = np.zeros(n, np.int64)
        chunks = identifiers.digests(table, key, salt)
        if n == 1:
            parts = list(chunks)
            digests = np.concatenate([np.zeros((0, DIGEST_BYTES), np.uint8), *(part for part, _ in parts)])
            self._only = Bucket.of(digests, np.concatenate([np.zeros(0, np.int64), *(rows for _, rows in parts)]))
            return
        with explained("write the buckets of an alignment"):
            self._folder.mkdir(parents=True, exist_ok=True)
            for path in self._folder.iterdir():
                path.unlink()
            for records in _gathered(chunks):
                self._add(records)

    def __getitem__(self, number: int) -> Bucket:
        """The bucket of a number."""
        if self._only is not None:
            return self._only
        with explained("read a bucket of an alignment"):
            path = self._path(number)
            records = np.fromfile(path, _RECORD) if path.exists() else np.zeros(0, _RECORD)
        if len(records) != self._sizes[number]:
            raise StorageError(
                f"{path} should hold {self._sizes[number]:,} ids, but holds {len(records):,}: somebody else changed "
                "it. Go on with --resume, which writes it anew."
            )
        return Bucket.of(np.ascontiguousarray(records["digest"]), np.ascontiguousarray(records["row"]))

    def __iter__(self) -> Iterator[Bucket]:
        """All buckets, one after the other."""
        return (self[number] for number in range(self.n))

    def delete(self) -> None:
        """Delete the files."""
        if self._only is None:
            with explained("delete the buckets of an alignment"):
                for path in self._folder.iterdir():
                    path.unlink()

    def _add(self, records: npt.NDArray[np.void]) -> None:
        numbers = _bucket_of(records["digest"], self.n)
        order = np.argsort(numbers, kind="stable")
        bounds = np.searchsorted(numbers[order], np.arange(self.n + 1))
        records = records[order]
        for number in range(self.n):
            part = records[bounds[number] : bounds[number + 1]]
            self._sizes[number] += len(part)
            if len(part):
                with self._path(number).open("ab") as file:
                    part.tofile(file)

    def _path(self, number: int) -> Path:
        return self._folder / f"{number:05d}"


def digest_order(digests: Digests) -> Rows:
    """The order that sorts digests; equal ones keep the order they have."""
    high, low = np.ascontiguousarray(digests).view(">u8").astype(np.uint64).reshape(-1, 2).T
    order = np.argsort(high)
    heads = high[order]
    # Halves that are alike are almost always those of equal digests, for which a quick sort is not enough.
    return np.lexsort((low, high)) if (heads[1:] == heads[:-1]).any() else order


def n_buckets(n_ids: int, per_bucket: int) -> int:
    """Into how many buckets so many ids are cut."""
    return max(1, math.ceil(n_ids / per_bucket))


def slots(n_ids: int, n: int) -> int:
    """To how many ids each of n buckets is filled up; eight standard deviations above what chance puts into one.

    >>> slots(1000, 1), slots(1_000_000, 8)
    (1000, 127837)
    """
    if n == 1:
        return n_ids
    mean = n_ids / n
    return math.ceil(mean + 8 * math.sqrt(mean) + 8)


def _bucket_of(digests: Digests, n: int) -> npt.NDArray[np.int64]:
    head = np.ascontiguousarray(digests[:, :4]).view(">u4").reshape(-1).astype(np.uint64)
    return ((head * np.uint64(n)) >> np.uint64(32)).astype(np.int64)


def _gathered(chunks: Iterator[tuple[Digests, Rows]]) -> Iterator[npt.NDArray[np.void]]:
    """Chunks joined until a file is worth opening."""
    held: list[npt.NDArray[np.void]] = []
    for digests, rows in chunks:
        records = np.zeros(len(rows), _RECORD)
        records["digest"], records["row"] = digests, rows
        held.append(records)
        if sum(map(len, held)) >= _GATHERED:
            yield np.concatenate(held)
            held = []
    if held:
        yield np.concatenate(held)
