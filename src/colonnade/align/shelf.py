"""Shelf: what the buckets of an alignment leave, on disk until all are done, and the order that is made of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from colonnade.align.settings import Settings
from colonnade.storage import Tree, read_tree, write_tree


class Shelf:
    """What each bucket left, in their order; in memory if there is one only.

    Args:
        folder: Where it is kept.
        n_keys: How many keys there are.
        n_buckets: How many buckets each key has.
    """

    def __init__(self, folder: Path, n_keys: int, n_buckets: int) -> None:
        self._folder, self._n_keys, self._in_memory = folder, n_keys, n_keys * n_buckets == 1
        self._held: list[Tree] = []
        self._n = 0

    def put(self, tree: Tree) -> None:
        """Keep what the next bucket left."""
        if self._in_memory:
            self._held.append(tree)
        else:
            write_tree(self._path(self._n), tree)
        self._n += 1

    def __iter__(self) -> Iterator[Tree]:
        """What each left, one after the other."""
        return iter(self._held) if self._in_memory else (read_tree(self._path(number)) for number in range(self._n))

    def stretches(self, settings: Settings) -> Iterator[list[Tree]]:
        """The stretches of the common order, each with the buckets whose rows are in it.

        By one key a person is in the same bucket everywhere, so the order goes bucket by bucket, and no more than one
        is in memory. By several keys it may be in any. Where rows without a partner are kept, the length of a stretch
        would tell how many ids are in its bucket, so all are one stretch.
        """
        if self._n_keys == 1 and settings.join == "inner":
            return ([tree] for tree in self)
        return iter([list(self)])

    def _path(self, number: int) -> Path:
        return self._folder / f"{number:05d}.safetensors"
