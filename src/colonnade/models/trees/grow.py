"""Grow: one tree from sums over bins, wherever these come from.

A *source of sums* (`Sums`) stands for the columns of one party. The label party's own source adds up its codes; a
source for a feature party asks this party, under encryption or not. `grow` knows no difference: with the same whole
numbers it grows the same tree, so a federated tree equals the centralised one by construction.

    grow                                            source of each party
    the root's rows                       ---->     sums over its bins, for each node asked for
    choose the best split of each node    <----
    the split, the rows of its node       ---->     which of these rows go to the left
    the smaller child of each pair        ---->     sums; the sibling's are the parent's less these
    ...

What a protocol writes is a source for the label party's side, whose two methods send and receive, and a feature party's
loop that answers them:

    label party      `sums`:  ask under encryption for all nodes of the call at once, wait, read
                     `left`:  fetch the sides of the rows, by oblivious transfer for rows of the node only
    feature party    for each call of `sums`: add up and answer;  for each call of `left`: serve its chosen splits

Where sums stay secret shares, `sums` returns the label party's shares (the difference of a parent and a child is a
difference of shares) and a `chooser` compares candidates without opening them (`hidden`). Totals of children come from
their rows, so they are exact where the sums that chose a split are not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from colonnade.models.trees.bins import BinMatrix, Column, starts
from colonnade.models.trees.losses import Gradients
from colonnade.models.trees.splits import Candidates, Choice, Split, TreeParameters, split_gains
from colonnade.wire.message import Float64Array, Int64Array


@dataclass(frozen=True)
class Node:
    """A node that may be split.

    Attributes:
        number: Its number in the tree.
        parent: The number of the node it comes from; None for the root.
        depth: How many splits there are above it.
        rows: Its rows.
        totals: Its whole-number sums of gradients and hessians.
        sums: Its sums over bins, as its source gave them.
        asked: Whether the source was asked for these sums; those of a sibling are the parent's less them.
        along: Rows that have no say in its split and go to a leaf all the same.
    """

    number: int
    parent: int | None
    depth: int
    rows: Int64Array
    totals: tuple[int, int]
    sums: NDArray[Any]
    asked: bool
    along: Int64Array = field(default_factory=lambda: np.zeros(0, np.int64))

    @property
    def all_rows(self) -> Int64Array:
        """Its rows, then those that go along."""
        return np.concatenate([self.rows, self.along])

    def parted(self, side: NDArray[np.bool_]) -> tuple[_Part, _Part]:
        """The rows on the left and on the right side, and those that go along with each; from the sides of all rows."""
        here, there = side[: len(self.rows)], side[len(self.rows) :]
        return (self.rows[here], self.along[there]), (self.rows[~here], self.along[~there])


_Part: TypeAlias = tuple[Int64Array, Int64Array]
Chooser = Callable[[Sequence[Node]], list[Choice | None]]
"""The best splits of nodes; of two siblings the left one comes first."""


class Sums(Protocol):
    """A source of sums: the columns of one party."""

    @property
    def columns(self) -> tuple[Column, ...]:
        """What everybody knows of the columns."""

    def sums(self, gradients: Gradients, nodes: Sequence[Int64Array]) -> NDArray[Any]:
        """For each node, given by its rows, the sums over all bins of all columns (nodes, bins, 2)."""

    def left(self, asked: Sequence[tuple[Split, Int64Array]]) -> list[NDArray[np.bool_]]:
        """For each split and the rows of its node, which of these rows go to the left.

        The columns of these splits are numbered within this source.
        """


@dataclass(frozen=True)
class PlainSums:
    """Sums over codes that are at hand: the label party's own columns, or the whole of a centralised run."""

    bins: BinMatrix

    @property
    def columns(self) -> tuple[Column, ...]:
        """What everybody knows of the columns."""
        return self.bins.columns

    def sums(self, gradients: Gradients, nodes: Sequence[Int64Array]) -> NDArray[np.int64]:
        """For each node the sums over all bins (nodes, bins, 2)."""
        from colonnade.models.trees import kernels

        out = np.zeros((len(nodes), int(starts(self.columns)[-1]), 2), np.int64)
        for place, rows in enumerate(nodes):
            # Loops that add up do not look again whether a place exists.
            assert self.bins.placed[rows].all(), "every code has a bin of sums"
            kernels.add_up(self.bins.places, rows, gradients.g, gradients.h, out[place])
        return out

    def left(self, asked: Sequence[tuple[Split, Int64Array]]) -> list[NDArray[np.bool_]]:
        """For each split and the rows of its node, which of these rows go to the left."""
        return [split.left_rows(self.bins, rows) for split, rows in asked]


@dataclass
class Tree:
    """A tree as lists over its nodes, the root first; a leaf has no split and a value.

    Attributes:
        splits: Which rows go to the left; None at leaves.
        children: The numbers of the left and the right child; (-1, -1) at leaves.
        gains: What splits gain; 0 at leaves.
        totals: The whole-number sums of gradients and hessians.
        values: What leaves add to a row's score; 0 elsewhere.
    """

    splits: list[Split | None] = field(default_factory=list)
    children: list[tuple[int, int]] = field(default_factory=list)
    gains: list[float] = field(default_factory=list)
    totals: list[tuple[int, int]] = field(default_factory=list)
    values: list[float] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.splits)

    @property
    def n_leaves(self) -> int:
        """How many leaves there are."""
        return sum(split is None for split in self.splits)

    def add(self, totals: tuple[int, int]) -> int:
        """A new leaf; returns its number."""
        self.splits.append(None)
        self.children.append((-1, -1))
        self.gains.append(0.0)
        self.totals.append(totals)
        self.values.append(0.0)
        return len(self.splits) - 1

    def leaves(self, source: Sums, n_rows: int) -> Int64Array:
        """The leaf of each row of a source that knows all columns: level by level, one call of `left` for each."""
        out, level = np.zeros(n_rows, np.int64), {0: np.arange(n_rows)}
        while level:
            asked = [(node, split, rows) for node, rows in level.items() if (split := self.splits[node]) is not None]
            sides = source.left([(split, rows) for _, split, rows in asked]) if asked else []
            level = {}
            for (node, _, rows), side in zip(asked, sides, strict=True):
                for child, some in zip(self.children[node], (rows[side], rows[~side]), strict=True):
                    out[some] = child
                    level[child] = some
        return out


def grow(
    gradients: Gradients,
    source: Sums,
    parameters: TreeParameters,
    *,
    rows: Int64Array | None = None,
    along: Int64Array | None = None,
    allowed: NDArray[np.bool_] | None = None,
    chooser: Chooser | None = None,
) -> tuple[Tree, Float64Array]:
    """Grow one tree.

    Nodes are numbered as they come into being: a level's nodes from left to right, or those of the leaf that is split
    next. Of each pair of children the one with fewer rows is asked for, the left one where both have as many.

    Args:
        gradients: Whole-number gradients and hessians of all rows.
        source: Where sums come from.
        parameters: How the tree grows.
        rows: The rows the tree learns from; None for all.
        along: Further rows that the tree gives a score to; they go to a leaf without a say in any split.
        allowed: Which columns may split; None for all.
        chooser: What chooses the best splits; by default `Candidates.best` on the sums as they are.

    Returns:
        The tree, and what it adds to the score of each row it learned from and each that went along, 0 for others.
    """
    chooser = _plain_chooser(gradients, source, parameters, allowed) if chooser is None else chooser
    tree, rows = Tree(), np.arange(len(gradients.g)) if rows is None else rows
    along = np.zeros(0, np.int64) if along is None else along
    tree.add(_totals(gradients, rows))
    root = Node(0, None, 0, rows, tree.totals[0], source.sums(gradients, [rows])[0], asked=True, along=along)
    places = {0: root.all_rows}
    open_nodes = _opened(chooser, [root])
    while open_nodes:
        batch, open_nodes = _taken(open_nodes, tree, parameters)
        sides = source.left([(choice.split, node.all_rows) for node, choice in batch])
        born: list[tuple[Node, tuple[int, int], tuple[_Part, _Part]]] = []
        for (node, choice), side in zip(batch, sides, strict=True):
            parts = node.parted(side)
            pair = _split(tree, node, choice, _totals(gradients, parts[0][0]), gradients, parameters)
            places.pop(node.number)
            places |= {number: np.concatenate(part) for number, part in zip(pair, parts, strict=True)}
            if parameters.max_depth == 0 or node.depth + 1 < parameters.max_depth:
                born.append((node, pair, parts))
        if parameters.max_leaves and tree.n_leaves >= parameters.max_leaves:
            break
        if born:
            smaller = [int(len(there) < len(here)) for _, _, ((here, _), (there, _)) in born]
            asked = [parts[place][0] for place, (_, _, parts) in zip(smaller, born, strict=True)]
            ready = []
            for (node, pair, parts), place, found in zip(born, smaller, source.sums(gradients, asked), strict=True):
                for which, (number, (some, others)) in enumerate(zip(pair, parts, strict=True)):
                    sums = found if which == place else node.sums - found
                    totals = tree.totals[number]
                    ready.append(Node(number, node.number, node.depth + 1, some, totals, sums, which == place, others))
            open_nodes += _opened(chooser, ready)
    return tree, _filled(tree, places, gradients, parameters)


def _plain_chooser(
    gradients: Gradients, source: Sums, parameters: TreeParameters, allowed: NDArray[np.bool_] | None
) -> Chooser:
    candidates = Candidates(source.columns, parameters.max_cat_to_onehot)

    def choose(nodes: Sequence[Node]) -> list[Choice | None]:
        totals = np.array([node.totals for node in nodes], np.int64)
        return candidates.best(np.stack([node.sums for node in nodes]), totals, gradients, parameters, allowed)

    return choose


def _totals(gradients: Gradients, rows: Int64Array) -> tuple[int, int]:
    return int(gradients.g[rows].sum()), int(gradients.h[rows].sum())


def _opened(chooser: Chooser, nodes: list[Node]) -> list[tuple[Node, Choice]]:
    """The nodes that have a split."""
    return [(node, choice) for node, choice in zip(nodes, chooser(nodes), strict=True) if choice is not None]


def _taken(
    open_nodes: list[tuple[Node, Choice]], tree: Tree, parameters: TreeParameters
) -> tuple[list[tuple[Node, Choice]], list[tuple[Node, Choice]]]:
    """What is split next, and what waits."""
    if parameters.grow_policy == "lossguide":
        best = max(open_nodes, key=lambda each: (each[1].gain, -each[0].number))
        return [best], [each for each in open_nodes if each is not best]
    room = parameters.max_leaves - tree.n_leaves if parameters.max_leaves else len(open_nodes)
    return open_nodes[:room], []


def _split(
    tree: Tree, node: Node, choice: Choice, left: tuple[int, int], gradients: Gradients, parameters: TreeParameters
) -> tuple[int, int]:
    """Turn a leaf into a split; returns the numbers of its children.

    Totals and gain are those of the rows themselves, however precise the sums are that the split was chosen by.
    """
    totals = np.array([left, node.totals], np.int64)
    pair = tree.add(left), tree.add((node.totals[0] - left[0], node.totals[1] - left[1]))
    tree.splits[node.number] = choice.split
    tree.gains[node.number] = float(split_gains(totals[0], totals[1], gradients, parameters))
    tree.children[node.number] = pair
    return pair


def _filled(
    tree: Tree, places: dict[int, Int64Array], gradients: Gradients, parameters: TreeParameters
) -> Float64Array:
    """Give leaves their values; returns the value of each row's leaf."""
    added = np.zeros(len(gradients.g))
    for node, rows in places.items():
        totals = gradients.reals(np.array(tree.totals[node], np.int64))
        tree.values[node] = float(parameters.eta * parameters.weights(totals))
        added[rows] = tree.values[node]
    return added
