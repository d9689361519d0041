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
difference of shares) and a `chooser` compares candidates without opening them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from colonnade.models.trees.bins import BinMatrix, Column, starts
from colonnade.models.trees.losses import Gradients
from colonnade.models.trees.splits import Candidates, Choice, Split, TreeParameters
from colonnade.wire.message import Float64Array, Int64Array

Chooser = Callable[[NDArray[Any], NDArray[np.int64]], list[Choice | None]]
"""The best splits of nodes, from their sums over bins and their totals."""


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
class Joined:
    """Several sources as one: the columns of the first, then those of the second, and so on."""

    parts: tuple[Sums, ...]

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns of all parts."""
        return tuple(column for part in self.parts for column in part.columns)

    def sums(self, gradients: Gradients, nodes: Sequence[Int64Array]) -> NDArray[Any]:
        """The sums of all parts, one part after the other."""
        return np.concatenate([part.sums(gradients, nodes) for part in self.parts], axis=1)

    def left(self, asked: Sequence[tuple[Split, Int64Array]]) -> list[NDArray[np.bool_]]:
        """The sides of rows, each split asked of the part that has its column."""
        out: list[NDArray[np.bool_]] = [np.zeros(0, np.bool_)] * len(asked)
        first = 0
        for part in self.parts:
            end = first + len(part.columns)
            own = [place for place, (split, _) in enumerate(asked) if first <= split.column < end]
            moved = [(_renumbered(asked[place][0], -first), asked[place][1]) for place in own]
            for place, sides in zip(own, part.left(moved) if own else [], strict=True):
                out[place] = sides
            first = end
        return out


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
            kernels.add_up(self.bins.places, rows, gradients.g, gradients.h, out[place])
        return out

    def left(self, asked: Sequence[tuple[Split, Int64Array]]) -> list[NDArray[np.bool_]]:
        """For each split and the rows of its node, which of these rows go to the left."""
        codes = self.bins.codes
        return [split.left(codes[rows, split.column], self.columns[split.column].n_bins) for split, rows in asked]


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


_Parts: TypeAlias = tuple[tuple[Int64Array, Int64Array], tuple[Int64Array, Int64Array]]


@dataclass
class _Open:
    """A node that has a split but has not been split yet; `along` are rows that have no say in it."""

    node: int
    depth: int
    rows: Int64Array
    along: Int64Array
    sums: NDArray[Any]
    choice: Choice

    def parted(self, side: NDArray[np.bool_]) -> _Parts:
        """The rows on the left and on the right side, each with those that go along."""
        here, there = side[: len(self.rows)], side[len(self.rows) :]
        return (self.rows[here], self.along[there]), (self.rows[~here], self.along[~there])


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
    if chooser is None:
        candidates = Candidates(source.columns, parameters.max_cat_to_onehot)
        chooser = lambda sums, totals: candidates.best(sums, totals, gradients, parameters, allowed)  # noqa: E731
    tree, rows = Tree(), np.arange(len(gradients.g)) if rows is None else rows
    along = np.zeros(0, np.int64) if along is None else along
    tree.add(_totals(gradients, rows))
    places = {0: np.concatenate([rows, along])}
    open_nodes = _opened(chooser, tree, [(0, 0, rows, along, source.sums(gradients, [rows])[0])])
    while open_nodes:
        batch, open_nodes = _taken(open_nodes, tree, parameters)
        sides = source.left([(each.choice.split, np.concatenate([each.rows, each.along])) for each in batch])
        born: list[tuple[tuple[int, int], _Parts, _Open]] = []
        for each, side in zip(batch, sides, strict=True):
            parts = each.parted(side)
            # Of a node's rows the label party knows gradients itself; sums from others may have noise or be shares.
            pair = _split(tree, each, [_totals(gradients, here) for here, _ in parts])
            places.pop(each.node)
            places |= {child: np.concatenate(part) for child, part in zip(pair, parts, strict=True)}
            if parameters.max_depth == 0 or each.depth + 1 < parameters.max_depth:
                born.append((pair, parts, each))
        if parameters.max_leaves and tree.n_leaves >= parameters.max_leaves:
            break
        if born:
            asked = [min((here, there), key=len) for _, ((here, _), (there, _)), _ in born]
            ready = []
            for (pair, parts, each), found in zip(born, source.sums(gradients, asked), strict=True):
                other = each.sums - found
                both = (found, other) if len(parts[0][0]) <= len(parts[1][0]) else (other, found)
                ready += [
                    (child, each.depth + 1, *part, sums) for child, part, sums in zip(pair, parts, both, strict=True)
                ]
            open_nodes += _opened(chooser, tree, ready)
    return tree, _filled(tree, places, gradients, parameters)


def _opened(
    chooser: Chooser, tree: Tree, nodes: list[tuple[int, int, Int64Array, Int64Array, NDArray[Any]]]
) -> list[_Open]:
    """The nodes that have a split."""
    totals = np.array([tree.totals[node] for node, *_ in nodes], np.int64)
    choices = chooser(np.stack([sums for *_, sums in nodes]), totals)
    return [_Open(*node, choice) for node, choice in zip(nodes, choices, strict=True) if choice is not None]


def _taken(open_nodes: list[_Open], tree: Tree, parameters: TreeParameters) -> tuple[list[_Open], list[_Open]]:
    """What is split next, and what waits."""
    if parameters.grow_policy == "lossguide":
        best = max(range(len(open_nodes)), key=lambda place: (open_nodes[place].choice.gain, -open_nodes[place].node))
        return [open_nodes[best]], open_nodes[:best] + open_nodes[best + 1 :]
    room = parameters.max_leaves - tree.n_leaves if parameters.max_leaves else len(open_nodes)
    return open_nodes[:room], []


def _split(tree: Tree, each: _Open, totals: Sequence[tuple[int, int]]) -> tuple[int, int]:
    """Turn a leaf into a split, whose children have these totals; returns the children's numbers."""
    pair = tree.add(totals[0]), tree.add(totals[1])
    tree.splits[each.node], tree.gains[each.node] = each.choice.split, each.choice.gain
    tree.children[each.node] = pair
    return pair


def _totals(gradients: Gradients, rows: Int64Array) -> tuple[int, int]:
    return int(gradients.g[rows].sum()), int(gradients.h[rows].sum())


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


def _renumbered(split: Split, by: int) -> Split:
    return Split(split.column + by, split.bin, split.levels, split.missing_left)
