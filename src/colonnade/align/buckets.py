"""Buckets: a party's ids cut by their keyed digests into parts that fit into memory, each matched by itself.

An id lies in the same bucket at every party. A bucket that goes out is filled up to `slots` ids. That number depends
only on how many ids there are in all, so its length tells nothing about the ids in it. One bucket of ids is held in
memory; more are kept in files of 24 bytes for each id, and so is what each bucket leaves.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from colonnade.align.identifiers import DIGEST_BYTES, Identifiers
from colonnade.errors import DataError, StorageError
from colonnade.privacy.randomness import Randomness
from colonnade.storage import Tree, explained, make_private, open_private, read_tree, write_tree
from colonnade.tables.table import Table

DigestArray: TypeAlias = npt.NDArray[np.uint8]
RowNumbers: TypeAlias = npt.NDArray[np.int64]

MOST_BUCKETS = 1 << 14

_RECORD = np.dtype([("digest", np.uint8, (DIGEST_BYTES,)), ("row", "<i8")])
_GATHERED = 1 << 20


@dataclass(frozen=True)
class Bucket:
    """The ids of one bucket: each once, with the row that stands for it and how many rows have it.

    `repeats` are the numbers of all rows, by id: those of the i-th are `repeats[starts[i] : starts[i] + copies[i]]`.
    """

    digests: DigestArray
    rows: RowNumbers
    copies: RowNumbers
    starts: RowNumbers = field(repr=False)
    repeats: RowNumbers = field(repr=False)

    @classmethod
    def of(cls, digests: DigestArray, rows: RowNumbers) -> Bucket:
        """The bucket of these digests; the first of several rows with one id stands for the id."""
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
class PaddedBucket:
    """A bucket as it goes out: filled up with random digests, whose row is -1, and shuffled."""

    digests: DigestArray
    rows: RowNumbers

    @classmethod
    def of(cls, bucket: Bucket, slots: int, random: Randomness) -> PaddedBucket:
        """Fill a bucket up with random digests, and shuffle it.

        The secret source of randomness serves this list only, and gives the same list again.
        """
        n_filling = slots - len(bucket)
        if n_filling < 0:
            raise DataError(
                f"A bucket should have at most {slots:,} ids but has {len(bucket):,}: they are cut most unevenly. "
                "Check that nobody made the ids collide, then align again."
            )
        filling = random.uniform_bits(2 * n_filling, "filling").view(np.uint8).reshape(-1, DIGEST_BYTES)
        rows = np.concatenate([bucket.rows, np.full(n_filling, -1)])
        order = np.argsort(random.uniform_bits(slots, "shuffle"), kind="stable")
        return cls(np.concatenate([bucket.digests, filling])[order], rows[order])

    def chunks(self, size: int) -> Iterator[DigestArray]:
        """The digests in parts."""
        for begin in range(0, len(self.digests), size):
            yield self.digests[begin : begin + size]


class Buckets:
    """A party's ids under one key, keyed with a salt and cut into n buckets; a folder keeps several."""

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
            make_private(self._folder)
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
                "it. Go on with --resume, which writes the file again."
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
                with open_private(self._path(number), "ab") as file:
                    part.tofile(file)

    def _path(self, number: int) -> Path:
        return self._folder / f"{number:05d}"


class BucketResults:
    """What each bucket leaves, in their order, in memory or in a folder.

    With `whole` the common order is made of all results at once.
    """

    def __init__(self, folder: Path, *, in_memory: bool, whole: bool) -> None:
        self._folder, self._whole = folder, whole
        self._held: list[Tree] | None = [] if in_memory else None
        self._n = 0

    def put(self, tree: Tree) -> None:
        """Keep what the next bucket leaves."""
        if self._held is None:
            write_tree(self._path(self._n), tree)
        else:
            self._held.append(tree)
        self._n += 1

    def __iter__(self) -> Iterator[Tree]:
        """Yield what each bucket left."""
        return (read_tree(self._path(n)) for n in range(self._n)) if self._held is None else iter(self._held)

    def stretches(self, needed: Callable[[Tree], Tree] = lambda tree: tree) -> Iterator[list[Tree]]:
        """Yield the stretches of the common order, each as what is needed of the buckets whose rows are in it."""
        trees = map(needed, self)
        return iter([list(trees)]) if self._whole else ([tree] for tree in trees)

    def _path(self, number: int) -> Path:
        return self._folder / f"{number:05d}.safetensors"


def digest_order(digests: DigestArray) -> RowNumbers:
    """The order that sorts digests; equal ones keep the order they have."""
    high, low = np.ascontiguousarray(digests).view(">u8").astype(np.uint64).reshape(-1, 2).T
    order = np.argsort(high)
    heads = high[order]
    # Equal halves almost always belong to equal digests, which need a stable sort.
    return np.lexsort((low, high)) if (heads[1:] == heads[:-1]).any() else order


def n_buckets(n_ids: int, per_bucket: int) -> int:
    """The number of buckets that ids are cut into."""
    return max(1, math.ceil(n_ids / per_bucket))


def slots(n_ids: int, n: int) -> int:
    """The number of ids that each of n buckets is filled up to: eight standard deviations above the expected number.

    >>> slots(1000, 1), slots(1_000_000, 8)
    (1000, 127837)
    """
    if n == 1:
        return n_ids
    mean = n_ids / n
    return math.ceil(mean + 8 * math.sqrt(mean) + 8)


def _bucket_of(digests: DigestArray, n: int) -> npt.NDArray[np.int64]:
    head = np.ascontiguousarray(digests[:, :4]).view(">u4").reshape(-1).astype(np.uint64)
    return ((head * np.uint64(n)) >> np.uint64(32)).astype(np.int64)


def _gathered(chunks: Iterator[tuple[DigestArray, RowNumbers]]) -> Iterator[npt.NDArray[np.void]]:
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
