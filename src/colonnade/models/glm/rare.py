"""Rare: levels and columns that few rows of a batch have, whose gradients would be the labels of these few.

The gradient of a level is the sum of the residuals of its rows: a group sum of labels. So every group that a party's
own columns tell apart has at least `fewest` rows in each batch that has any. Only the owner sees the columns, so only
the owner can keep this rule: no other party can check the rule.

Rare levels become "other": like missing values and levels not seen in training they have no column. Rows without a
column are a group too, since levels of another column may add up to all rows; the group is filled up with the rarest
of the remaining levels. Differences between two columns of numbers can still single out a row.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from colonnade.errors import PrivacyError
from colonnade.models.glm.rows import BatchedRows
from colonnade.tables.encode import Design, Inputs
from colonnade.tables.placement import total
from colonnade.tables.table import Table
from colonnade.wire.message import Int64Array


def without_rare(design: Design, rows: BatchedRows[Table], fewest: int, owner: str | None) -> Design:
    """The design with rare levels merged.

    Args:
        design: What was learned from the rows.
        rows: The rows to train on, in batches.
        fewest: How many rows of a batch a group needs.
        owner: Whose rows they are, for the error.

    Raises:
        PrivacyError: A column of numbers or a flag differs from its commonest value in too few rows of a batch.
    """
    inputs = design.inputs
    thin = _thin_columns(inputs, rows, fewest)
    if thin:
        raise PrivacyError(
            f"{owner}'s columns should differ from their commonest value in at least {fewest} rows of each batch "
            f"(fewest_rows) or their gradients would tell labels of single rows, but {', '.join(map(repr, thin))} "
            f"do{'es' if len(thin) == 1 else ''} not. Leave the columns out, fill in missing values, use larger "
            "batches, or train without an arbiter."
        )
    counts = [total(rows.of_batch(batch, _level_counts, inputs)) for batch in range(len(rows.batches))]
    kept = {}
    for place, (name, levels) in enumerate(inputs.levels.items()):
        kept[name] = _common_levels(levels, np.stack([each[place][: len(levels) + 1] for each in counts]), fewest)
    return replace(design, inputs=replace(inputs, levels={name: levels for name, levels in kept.items() if levels}))


def _level_counts(part: Table, inputs: Inputs) -> Int64Array:
    """How many rows of a partition have each code of each column of categories."""
    counts = np.zeros((len(inputs.levels), max(inputs.level_counts, default=0)), np.int64)
    for place, name in enumerate(inputs.levels):
        found = np.bincount(inputs.codes(part, name))
        counts[place, : len(found)] = found
    return counts


def _common_levels(names: tuple[str, ...], counts: Int64Array, fewest: int) -> tuple[str, ...]:
    """The levels of a column that keep a column of their own, given how many rows of each batch have each code."""
    common = (_enough(counts, fewest).all(axis=0) & (counts.sum(axis=0) > 0))[1:]
    levels = counts[:, 1:]
    # The rarest first; they fill up the group of rows without a column.
    order = [level for level in np.argsort(levels.sum(axis=0), kind="stable") if common[level]]
    other = counts[:, 0] + levels[:, ~common].sum(axis=1)
    while order and not _enough(other, fewest).all():
        level = order.pop(0)
        other = other + levels[:, level]
    return tuple(names[level] for level in sorted(order))


def _thin_columns(inputs: Inputs, rows: BatchedRows[Table], fewest: int) -> list[str]:
    """The columns of numbers, and flags of missing values, that tell too few rows from the others."""
    spread: dict[str, bool] = {}
    for batch in range(len(rows.batches)):
        parts = list(rows.of_batch(batch, _commonest, inputs, fewest))
        for name in parts[0]:
            spread[name] = spread.get(name, True) and _is_spread([part[name] for part in parts], fewest)
    return [name for name, is_spread in spread.items() if not is_spread]


def _commonest(part: Table, inputs: Inputs, fewest: int) -> dict[str, Counter[float] | None]:
    """How many rows have each value of a column, for each column of numbers and each flag.

    None stands for a column that differs from its commonest value in enough rows of this partition; so does it then,
    whatever other partitions hold, in the rows of all of them. The others have few values.
    """
    found: dict[str, Counter[float] | None] = {}
    for name in inputs.numeric:
        values, missing = inputs.numbers(part, name)
        for what, column in ((name, values), *(((f"{name} missing", missing),) if name in inputs.flagged else ())):
            n = len(column)
            # A value that more than half of the rows have is the median, which takes no sorting to find.
            if n >= 2 * fewest and int((column != np.partition(column, n // 2)[n // 2]).sum()) >= fewest:
                found[what] = None
                continue
            counts = Counter(dict(zip(*(each.tolist() for each in np.unique(column, return_counts=True)), strict=True)))
            found[what] = None if n - max(counts.values(), default=0) >= fewest else counts
    return found


def _is_spread(counts: Sequence[Counter[float] | None], fewest: int) -> bool:
    """Whether a column of a batch is constant, or differs from its commonest value in enough rows."""
    if any(each is None for each in counts):
        return True
    merged = total(each for each in counts if each is not None)
    apart = merged.total() - max(merged.values(), default=0)
    return apart == 0 or apart >= fewest


def _enough(counts: Int64Array, fewest: int) -> NDArray[np.bool_]:
    return np.asarray((counts == 0) | (counts >= fewest))
