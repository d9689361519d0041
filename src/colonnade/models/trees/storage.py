"""Storage: trees and splits as arrays and plain values, for checkpoints and saved shares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from colonnade.models.trees.grow import Tree
from colonnade.models.trees.splits import Split
from colonnade.storage import Tree as Stored
from colonnade.wire.message import Int64Array

_LEAF = -1
_FIELDS = 4


def splits_array(splits: Sequence[Split | None]) -> Int64Array:
    """Splits and leaves one after the other as whole numbers, each: column, bin, missing to the left, levels and these.

    >>> splits_array([Split(2, 5, None, True), None, Split(0, -1, (1, 3), False)]).tolist()
    [2, 5, 1, -1, -1, 0, 0, 0, 0, -1, 0, 2, 1, 3]
    """
    out: list[int] = []
    for split in splits:
        if split is None:
            out += [_LEAF, 0, 0, 0]
        else:
            levels = split.levels
            out += [split.column, split.bin, int(split.missing_left), _LEAF if levels is None else len(levels)]
            out += levels or ()
    return np.array(out, np.int64)


def splits_of(numbers: Int64Array) -> list[Split | None]:
    """The splits and leaves that `splits_array` wrote down.

    Raises:
        ValueError: The numbers are no splits.
    """
    out: list[Split | None] = []
    values, place = numbers.tolist(), 0
    while place < len(values):
        column, bin, missing_left, n_levels = values[place : place + _FIELDS]
        place += _FIELDS
        if column == _LEAF:
            out.append(None)
            continue
        levels = None if n_levels == _LEAF else tuple(values[place : place + n_levels])
        if n_levels < _LEAF or (levels is not None and len(levels) != n_levels):
            raise ValueError("levels of a split are missing")
        place += max(0, n_levels)
        out.append(Split(column, bin, levels, bool(missing_left)))
    return out


def tree_state(tree: Tree) -> Stored:
    """A tree as arrays."""
    return {
        "splits": splits_array(tree.splits),
        "children": np.array(tree.children, np.int64),
        "gains": np.array(tree.gains),
        "totals": np.array(tree.totals, np.int64),
        "values": np.array(tree.values),
    }


def tree_of(stored: Mapping[str, Any]) -> Tree:
    """The tree that `tree_state` wrote down."""
    return Tree(
        splits_of(stored["splits"]),
        [(int(left), int(right)) for left, right in stored["children"]],
        stored["gains"].tolist(),
        [(int(g), int(h)) for g, h in stored["totals"]],
        stored["values"].tolist(),
    )
