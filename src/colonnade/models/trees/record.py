"""Record: what the label party saw of a forest, from which an audit attacks the feature parties' columns.

For each tree these are the label party's gradients, the rows of each node that it asked for, the sums that came back,
and the side of each row at each split. Where sums are hidden there are none; where they are noisy, the noise is known
by its deviation. The label party could keep all of this in any run, so an audit lets it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from colonnade.models.trees.bins import Column
from colonnade.models.trees.losses import Gradients
from colonnade.models.trees.splits import Split
from colonnade.storage import Tree as Stored
from colonnade.wire.message import Int64Array


@dataclass(frozen=True)
class Sides:
    """The sides of a node's rows under one party's split; its column is numbered within this party."""

    split: Split
    rows: Int64Array
    left: NDArray[np.bool_]


@dataclass
class SeenTree:
    """What the label party saw of one tree.

    Attributes:
        gradients: Its own gradients and hessians.
        nodes: The rows of each node it asked for.
        sums: For each feature party the sums (bins, 2) of each of these nodes, in the order of `nodes`.
        sides: For each feature party the sides of rows under its splits.
        noise: For each feature party the deviations of the noise in sums of gradients and of hessians, in their units;
            a party that is not named here tells exact sums. The last bin of a column, which is the node's sum less
            those over the other bins, has the noise of all of these.
        told: For each feature party of which columns sums were told, where these were not all; other sums are 0.
    """

    gradients: Gradients
    nodes: list[Int64Array] = field(default_factory=list)
    sums: dict[str, list[NDArray[Any]]] = field(default_factory=dict)
    sides: dict[str, list[Sides]] = field(default_factory=dict)
    noise: dict[str, tuple[float, float]] = field(default_factory=dict)
    told: dict[str, NDArray[np.bool_]] = field(default_factory=dict)

    def tells(self, owner: str, column: int) -> bool:
        """Whether sums over the bins of a party's column were told."""
        return bool(self.sums.get(owner)) and (owner not in self.told or bool(self.told[owner][column]))


@dataclass
class ForestRecord:
    """What the label party saw of a forest.

    Attributes:
        n_rows: How many rows there are.
        columns: What it knows of each feature party's columns.
        trees: The trees.

    >>> ForestRecord(3, {"shop": (Column(2),)}).released("shop")
    False
    """

    n_rows: int
    columns: Mapping[str, tuple[Column, ...]]
    trees: list[SeenTree] = field(default_factory=list)

    def released(self, owner: str) -> bool:
        """Whether sums of a party were told."""
        return any(tree.tells(owner, column) for tree in self.trees for column in range(len(self.columns[owner])))

    def about(self, owner: str, column: int) -> ForestRecord:
        """The trees in which sums over the bins of a party's column were told."""
        return replace(self, trees=[tree for tree in self.trees if tree.tells(owner, column)])

    def n_splits(self, owner: str) -> Int64Array:
        """How often each of a party's columns was chosen."""
        chosen = [each.split.column for tree in self.trees for each in tree.sides.get(owner, ())]
        return np.bincount(np.array(chosen, np.int64), minlength=len(self.columns[owner]))

    def state(self) -> Stored:
        """The record as a tree of arrays."""
        return {
            "n_rows": self.n_rows,
            "columns": {name: [list(vars(each).values()) for each in found] for name, found in self.columns.items()},
            "trees": [
                {
                    "gradients": dict(vars(tree.gradients)),
                    "nodes": list(tree.nodes),
                    "sums": {name: list(found) for name, found in tree.sums.items()},
                    "sides": {name: [_stored(each) for each in found] for name, found in tree.sides.items()},
                    "noise": {name: list(deviations) for name, deviations in tree.noise.items()},
                    "told": dict(tree.told),
                }
                for tree in self.trees
            ],
        }

    @classmethod
    def of(cls, tree: Mapping[str, Any]) -> ForestRecord:
        """The record that `state` wrote down."""
        columns = {name: tuple(Column(*each) for each in found) for name, found in tree["columns"].items()}
        trees = [
            SeenTree(
                Gradients(**each["gradients"]),
                list(each["nodes"]),
                {name: list(found) for name, found in each["sums"].items()},
                {name: [_sides(some) for some in found] for name, found in each["sides"].items()},
                {name: (g, h) for name, (g, h) in each["noise"].items()},
                dict(each.get("told", {})),
            )
            for each in tree["trees"]
        ]
        return cls(tree["n_rows"], columns, trees)


@runtime_checkable
class SawForest(Protocol):
    """A share of a model that may hold what its party saw of a forest."""

    @property
    def forest_record(self) -> ForestRecord | None:
        """What the party saw; None where it kept nothing, or saw nothing."""


def _stored(sides: Sides) -> Stored:
    return {"split": list(vars(sides.split).values()), "rows": sides.rows, "left": sides.left}


def _sides(tree: Mapping[str, Any]) -> Sides:
    column, last, levels, missing_left = tree["split"]
    split = Split(column, last, None if levels is None else tuple(levels), missing_left)
    return Sides(split, tree["rows"], tree["left"])
