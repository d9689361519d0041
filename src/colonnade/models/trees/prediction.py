"""Joint prediction of a forest, both roles: rows go down all trees at once, level by level.

    feature party                    label party
         ◀──────────────────────────── TransferPoint          once
         TransferPoints ───────────────────────────▶          once
         ◀────────────────────────────── AskedSplits          per batch of rows and level; a last one ends
         ◀────────────────────────────── SideChoices          one oblivious transfer for each row and tree
         RowSides ─────────────────────────────────▶

The label party learns the leaf of each row in each tree: of each row the side of each split that the row meets, and of
no other. A feature party learns how many rows there are, and which of its splits stand on one level of a tree, which it
knows from training; of paths, leaves and predictions it learns nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from colonnade.errors import ProtocolError
from colonnade.models.trees.bins import BinMatrix, Column
from colonnade.models.trees.grow import Tree
from colonnade.models.trees.messages import AskedSplits
from colonnade.models.trees.rows import BinnedRows
from colonnade.models.trees.sides import MOST_SPLITS, SideFetching, SideServing, choice_bits
from colonnade.models.trees.splits import Split
from colonnade.runtime.party import Party
from colonnade.wire.channel import Channel
from colonnade.wire.message import Float64Array, Int64Array

# About how many pairs of a row and a tree a batch has.
PAIRS_AT_ONCE = 2**20
_OVER = -1


@dataclass(frozen=True)
class Crossing:
    """Nodes of one tree and level that split by one party's columns.

    Attributes:
        tree: The tree's number.
        nodes: The nodes' numbers; at a feature party empty, which knows none.
        numbers: The splits' numbers among this party's splits of the tree, in the order in which they were chosen.
    """

    tree: int
    nodes: tuple[int, ...]
    numbers: tuple[int, ...]


def crossings(trees: Sequence[Tree], owners: Sequence[str], name: str) -> list[list[Crossing]]:
    """For each level of a forest where rows meet splits by one party's columns.

    Args:
        trees: The forest.
        owners: The owner of each column of all parties.
        name: The party.
    """
    levels: list[list[Crossing]] = []
    for number, tree in enumerate(trees):
        inner = [(node, split) for node, split in enumerate(tree.splits) if split is not None]
        # Children are numbered when their parent is split.
        own = sorted((node for node, split in inner if owners[split.column] == name), key=lambda n: tree.children[n])
        places, depths = {node: place for place, node in enumerate(own)}, _depths(tree)
        for level in range(max(depths) + 1):
            if level == len(levels):
                levels.append([])
            nodes = tuple(node for node in own if depths[node] == level)
            for start in range(0, len(nodes), MOST_SPLITS):
                some = nodes[start : start + MOST_SPLITS]
                levels[level].append(Crossing(number, some, tuple(places[node] for node in some)))
    return levels


def predict_as_label_party(
    party: Party, trees: Sequence[Tree], parts: Mapping[str, tuple[Column, ...]], bins: BinMatrix
) -> Float64Array:
    """What each tree adds to the score of each row (rows, trees).

    Args:
        party: The label party.
        trees: The forest.
        parts: The columns of each party, the label party's first.
        bins: The label party's rows.
    """
    lines, n_rows = party.feature_parties, len(bins.codes)
    owners = [name for name, columns in parts.items() for _ in columns]
    met = {name: crossings(trees, owners, name) for name in parts}
    fetching = {line.peer: SideFetching(line) for line in lines}
    for each in fetching.values():
        each.begin()
    out = np.zeros((n_rows, len(trees)))
    size = max(1, PAIRS_AT_ONCE // max(1, len(trees)))
    for start in range(0, n_rows, size):
        rows = np.arange(start, min(start + size, n_rows))
        nodes = np.zeros((len(trees), len(rows)), np.int64)
        for level in range(max(map(len, met.values()), default=0)):
            goes_left = np.zeros(nodes.shape, np.bool_)
            asked = {
                line.peer: _ask(line, fetching[line.peer], level, rows, met[line.peer][level], nodes) for line in lines
            }
            for crossing in met[party.name][level]:
                for node in crossing.nodes:
                    split, some = trees[crossing.tree].splits[node], np.flatnonzero(nodes[crossing.tree] == node)
                    assert split is not None
                    goes_left[crossing.tree, some] = split.left_rows(bins, rows[some])
            for line in lines:
                for group, flat in asked[line.peer]:
                    numbers = np.array([crossing.tree for crossing in group])
                    for places, side in zip(flat, fetching[line.peer].read(level), strict=True):
                        goes_left[numbers[places // len(rows)], places % len(rows)] = side
            nodes = _below(trees, nodes, goes_left)
        for number, tree in enumerate(trees):
            out[rows, number] = np.array(tree.values)[nodes[number]]
    for line in lines:
        line.send(AskedSplits(_OVER, 0, 0, *(np.zeros(0, np.int64) for _ in range(3))))
    return out


def predict_as_feature_party(party: Party, splits: Sequence[Sequence[Split]], rows: BinnedRows) -> None:
    """Serve the sides of this party's rows under its splits."""
    line, n_rows = party.label_party, len(rows)
    serving, served = SideServing(line), set[tuple[int, int]]()
    first = n_served = 0
    while True:
        message = line.receive(AskedSplits, within={"level": (_OVER, 2**20)})
        if message.level == _OVER:
            return
        if message.first != first:
            # The next batch: rows that were served before are over.
            first, served = n_served, set()
        met = _received(message, splits, n_rows, line.peer)
        asked = [(crossing.tree, number) for crossing in met for number in crossing.numbers]
        if message.first != first or len(set(asked)) < len(asked) or not served.isdisjoint(asked):
            raise ProtocolError(
                f"Expected each row to be asked about once at each split from {line.peer}, got a row again. "
                f"{line.peer} is faulty; stop the run."
            )
        served |= set(asked)
        n_served = message.first + message.n_rows
        for group in _by_bits(met):
            sides = np.zeros((_width(group), len(group), message.n_rows), np.bool_)
            places = [(number, place) for place, each in enumerate(group) for number in range(len(each.numbers))]
            asked_of = [splits[crossing.tree][each] for crossing in group for each in crossing.numbers]
            for at, side in zip(places, rows.left(asked_of, message.first, n_served), strict=True):
                sides[at] = side
            serving.serve(message.level, list(sides.reshape(len(sides), -1)))


def _ask(
    line: Channel, fetching: SideFetching, level: int, rows: Int64Array, met: Sequence[Crossing], nodes: Int64Array
) -> list[tuple[list[Crossing], list[Int64Array]]]:
    """Ask one feature party for the sides of rows at one level of all trees.

    Returns:
        For each batch of transfers its trees, and for each choice the rows that make it, counted from tree to tree.
    """
    trees = np.array([crossing.tree for crossing in met], np.int64)
    counts = np.array([len(crossing.numbers) for crossing in met], np.int64)
    numbers = np.array([number for crossing in met for number in crossing.numbers], np.int64)
    line.send(AskedSplits(level, int(rows[0]), len(rows), trees, counts, numbers))
    asked = []
    for group in _by_bits(met):
        flat = [np.zeros(0, np.int64)] * _width(group)
        for place, crossing in enumerate(group):
            for number, node in enumerate(crossing.nodes):
                here = place * len(rows) + np.flatnonzero(nodes[crossing.tree] == node)
                flat[number] = np.concatenate([flat[number], here])
        fetching.ask(level, flat, len(group) * len(rows))
        asked.append((group, flat))
    return asked


def _by_bits(met: Sequence[Crossing]) -> list[list[Crossing]]:
    """Crossings in groups whose transfers have as many messages."""
    bits = sorted({choice_bits(len(crossing.numbers)) for crossing in met})
    return [[crossing for crossing in met if choice_bits(len(crossing.numbers)) == each] for each in bits]


def _width(group: Sequence[Crossing]) -> int:
    return max(len(crossing.numbers) for crossing in group)


def _received(message: AskedSplits, splits: Sequence[Sequence[Split]], n_rows: int, sender: str) -> list[Crossing]:
    """Which of this party's splits are asked about, if it has them."""
    counts = message.counts
    sound = (
        0 <= message.first <= message.first + message.n_rows <= n_rows
        and message.n_rows * len(message.trees) <= max(PAIRS_AT_ONCE, len(message.trees)) * 2
        and message.trees.shape == counts.shape
        and ((message.trees >= 0) & (message.trees < len(splits)) & (counts > 0) & (counts <= MOST_SPLITS)).all()
        and message.numbers.shape == (int(counts.sum()),)
    )
    met = []
    if sound:
        parts = np.split(message.numbers, np.cumsum(counts)[:-1]) if len(counts) else []
        for tree, numbers in zip(message.trees.tolist(), parts, strict=True):
            sound &= bool(((numbers >= 0) & (numbers < len(splits[tree]))).all())
            met.append(Crossing(tree, (), tuple(numbers.tolist())))
    if not sound:
        raise ProtocolError(
            f"Expected a question about {n_rows} rows and this party's splits from {sender}, got something else. "
            "Check that both parties predict with shares of the same training, on the same rows."
        )
    return met


def _below(trees: Sequence[Tree], nodes: Int64Array, goes_left: NDArray[np.bool_]) -> Int64Array:
    """The nodes of rows one level deeper; rows at leaves stay."""
    out = nodes.copy()
    for number, tree in enumerate(trees):
        left, right = np.array(tree.children)[nodes[number]].T
        out[number] = np.where(left < 0, nodes[number], np.where(goes_left[number], left, right))
    return out


def _depths(tree: Tree) -> list[int]:
    depths = [0] * len(tree)
    for node, (left, right) in enumerate(tree.children):
        if left >= 0:
            depths[left] = depths[right] = depths[node] + 1
    return depths
