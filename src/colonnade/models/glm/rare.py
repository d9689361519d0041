"""Rare: levels and columns that few rows of a batch have, whose gradients would be the labels of these few.

The gradient of a level is the sum of the residuals of its rows: a group sum of labels. So every group that a party's
own columns tell apart has at least `fewest` rows in each batch that has any. Only the owner sees the columns, so only
the owner can keep this rule: no other party can check the rule.

Rare levels become "other": like missing values and levels not seen in training they have no column. Rows without a
column are a group too, since levels of another column may add up to all rows; the group is filled up with the rarest
of the remaining levels. Differences between two columns of numbers can still single out a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from colonnade.errors import PrivacyError
from colonnade.tables.encode import Design, Inputs
from colonnade.tables.table import Table
from colonnade.wire.message import Int64Array


def without_rare(design: Design, table: Table, batches: Sequence[Int64Array], fewest: int) -> Design:
    """The design with rare levels merged.

    Args:
        design: What was learned from the table.
        table: The rows to train on.
        batches: The rows of each batch.
        fewest: How many rows of a batch a group needs.

    Raises:
        PrivacyError: A column of numbers or a flag differs from its commonest value in too few rows of a batch.
    """
    inputs = design.inputs
    thin = _thin_columns(inputs, table, batches, fewest)
    if thin:
        raise PrivacyError(
            f"{table.owner}'s columns should differ from their commonest value in at least {fewest} rows of each batch "
            f"(fewest_rows) or their gradients would tell labels of single rows, but {', '.join(map(repr, thin))} "
            f"do{'es' if len(thin) == 1 else ''} not. Leave the columns out, fill in missing values, use larger "
            "batches, or train without an arbiter."
        )
    kept = {name: _common_levels(inputs, table, name, batches, fewest) for name in inputs.levels}
    return replace(design, inputs=replace(inputs, levels={name: levels for name, levels in kept.items() if levels}))


def _common_levels(
    inputs: Inputs, table: Table, name: str, batches: Sequence[Int64Array], fewest: int
) -> tuple[str, ...]:
    """The levels of a column that keep a column of their own."""
    codes, size = inputs.codes(table, name), len(inputs.levels[name]) + 1
    counts = np.stack([np.bincount(codes[rows], minlength=size) for rows in batches])
    common = (_enough(counts, fewest).all(axis=0) & (counts.sum(axis=0) > 0))[1:]
    levels = counts[:, 1:]
    # The rarest first; they fill up the group of rows without a column.
    order = [level for level in np.argsort(levels.sum(axis=0), kind="stable") if common[level]]
    other = counts[:, 0] + levels[:, ~common].sum(axis=1)
    while order and not _enough(other, fewest).all():
        level = order.pop(0)
        other = other + levels[:, level]
    return tuple(inputs.levels[name][level] for level in sorted(order))


def _thin_columns(inputs: Inputs, table: Table, batches: Sequence[Int64Array], fewest: int) -> list[str]:
    """The columns of numbers, and flags of missing values, that tell too few rows from the others."""
    found = []
    for name in inputs.numeric:
        values, missing = inputs.numbers(table, name)
        for what, column in ((name, values), *(((f"{name} missing", missing),) if name in inputs.flagged else ())):
            if not all(_is_spread(column[rows], fewest) for rows in batches):
                found.append(what)
    return found


def _is_spread(column: NDArray[np.generic], fewest: int) -> bool:
    """Whether a column of a batch is constant, or differs from its commonest value in enough rows."""
    n = len(column)
    if n < 2 * fewest:
        counts = np.unique(column, return_counts=True)[1]
        apart = n - int(counts.max(initial=0))
    else:
        # A value that more than half of the rows have is the median, which takes no sorting to find.
        apart = int((column != np.partition(column, n // 2)[n // 2]).sum())
    return apart == 0 or apart >= fewest


def _enough(counts: Int64Array, fewest: int) -> NDArray[np.bool_]:
    return np.asarray((counts == 0) | (counts >= fewest))
