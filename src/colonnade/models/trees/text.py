"""Text: trees and splits in words, as far as one party knows them."""

from __future__ import annotations

from collections.abc import Sequence

from colonnade.models.trees.bins import Bins
from colonnade.models.trees.grow import Tree
from colonnade.models.trees.splits import Split


def described_split(split: Split, bins: Bins) -> str:
    """Which rows go to the left by a split of the party's own columns.

    >>> import numpy as np
    >>> bins = Bins({"age": np.array([30.0, 50.0])}, {"job": ("cook", "nurse")}, ("age",))
    >>> described_split(Split(0, 1, None, True), bins), described_split(Split(1, -1, (1,), False), bins)
    ('age < 50 or missing', "job is 'nurse'")
    """
    name, column = bins.names[split.column], bins.columns[split.column]
    gap = " or missing" if split.missing_left else ""
    if split.levels is not None:
        levels = ", ".join(repr(bins.levels[name][level]) for level in split.levels)
        return f"{name} is {levels or 'none'}{gap}"
    if split.bin >= column.n_bins - 1:
        return f"{name} is missing" if split.missing_left else f"{name} is not missing"
    return f"{name} < {bins.cuts[name][split.bin]:g}{gap}"


def described_tree(tree: Tree, names: Sequence[str], bins: Bins) -> str:
    """A tree as indented lines: own splits in full, others' by their owner.

    Args:
        tree: The tree.
        names: For each column its name, or its owner's where another party has it.
        bins: The party's own columns, which come first.
    """
    lines: list[str] = []

    def describe(node: int, depth: int, before: str) -> None:
        split, indent = tree.splits[node], "  " * (depth + 1)
        if split is None:
            lines.append(f"{indent}{before}leaf {tree.values[node]:+.6g}")
            return
        if split.column < len(bins.names):
            words = described_split(split, bins)
        else:
            # Columns of a party follow each other.
            words = f"{names[split.column]}'s column {split.column - names.index(names[split.column])}"
            words += f", bins up to {split.bin}" if split.levels is None else f", bins {list(split.levels)}"
            words += " or missing" if split.missing_left else ""
        lines.append(f"{indent}{before}{words} (gain {tree.gains[node]:.6g})")
        left, right = tree.children[node]
        describe(left, depth + 1, "yes: ")
        describe(right, depth + 1, "no: ")

    describe(0, 0, "")
    return "\n".join(lines)


def described_splits(splits: Sequence[Sequence[Split]], bins: Bins) -> str:
    """A feature party's splits, tree by tree, in the order in which they were chosen."""
    return "\n".join(
        f"tree {number}: {described_split(split, bins)}" for number, tree in enumerate(splits) for split in tree
    )
