"""Relinking: bins of a column are known again from tree to tree by their sums alone.

A feature party might tell the sums over a column's bins in a new order for each tree. This attack uses no order, so its
score says what that would hide. The label party knows all gradients. Within each node of one tree it regresses the next
tree's gradients on this one's, and so predicts from a bin's sums what the next tree's sums over the same bin are. The
assignment of bins to bins that fits best links the two trees, and so on along the forest.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np

from colonnade.attacks.columns.sums import BoxedSums, Equations
from colonnade.models.trees.bins import starts
from colonnade.models.trees.record import ForestRecord, SeenTree
from colonnade.wire.message import Float64Array, Int64Array


class RelinkedSums(BoxedSums):
    """A bin's sums in one tree are linked to those in the next by their values; then as with sums in place."""

    def equations(self, record: ForestRecord, owner: str, columns: list[int]) -> Equations:
        return super().equations(relinked(record, owner), owner, columns)


def relinked(record: ForestRecord, owner: str) -> ForestRecord:
    """The record with a party's bins in the places that they have in its first tree, as far as they can be linked."""
    ends = starts(record.columns[owner])
    trees, order = [record.trees[0]], np.arange(ends[-1])
    for before, after in pairwise(record.trees):
        predicted, spread = _predicted(before, after, owner)
        found = _root_sums(after, owner)
        links = [first + _link(predicted[first:end], found[first:end], spread) for first, end in pairwise(ends)]
        order = np.concatenate(links)[order]
        trees.append(replace(after, sums={**after.sums, owner: [each[order] for each in after.sums[owner]]}))
    return replace(record, trees=trees)


def _root_sums(tree: SeenTree, owner: str) -> Float64Array:
    return np.asarray(tree.sums[owner][0], np.float64)


def _predicted(before: SeenTree, after: SeenTree, owner: str) -> tuple[Float64Array, Float64Array]:
    """The next tree's sums over bins, predicted from this tree's in each of its smallest nodes, and how these err."""
    now = np.stack([before.gradients.g, before.gradients.h], 1).astype(np.float64)
    then = np.stack([after.gradients.g, after.gradients.h], 1).astype(np.float64)
    total, errors = np.zeros_like(_root_sums(before, owner)), np.zeros((2, 2))
    for rows, sums in _partition(before, owner):
        factors = np.linalg.lstsq(now[rows], then[rows], rcond=1e-9)[0]
        missed = then[rows] - now[rows] @ factors
        total, errors = total + sums @ factors, errors + missed.T @ missed
    return total, errors


def _partition(tree: SeenTree, owner: str) -> list[tuple[Int64Array, Float64Array]]:
    """Nodes that have all rows between them, with their sums: each node less those asked for within it."""
    parts: list[tuple[Int64Array, Float64Array]] = []
    for rows, sums in zip(tree.nodes, tree.sums[owner], strict=True):
        inside = next((place for place, (others, _) in enumerate(parts) if np.isin(rows[:1], others).all()), None)
        if inside is not None:
            others, whole = parts[inside]
            parts[inside] = np.setdiff1d(others, rows), whole - sums
        parts.append((rows, sums.astype(np.float64)))
    return [part for part in parts if len(part[0])]


def _link(predicted: Float64Array, found: Float64Array, spread: Float64Array) -> Int64Array:
    """For each bin of a column its place in the next tree, with errors of predictions that spread so."""
    from scipy.optimize import linear_sum_assignment

    apart = predicted[:, None] - found[None]
    floor = 1e-9 * float(np.trace(spread)) + 1.0
    distance = np.einsum("ijk,kl,ijl->ij", apart, np.linalg.inv(spread + floor * np.eye(2)), apart)
    _, places = linear_sum_assignment(distance)
    return np.asarray(places, np.int64)
