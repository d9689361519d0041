"""Bins: from how likely each bin of each column is, row by row, to the numbers of records.

Attacks on forests find bins, without the values that these stand for and without the names of columns. A few known
records tell both: a column of the forest is the one whose bins explain a column of the records best, and a bin stands
for the mean of the known records in this bin and, where bins have an order, in those beside it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from colonnade.attacks.base import Grant, Guess, Inapplicable
from colonnade.attacks.view import View
from colonnade.models.trees.bins import Column
from colonnade.models.trees.record import ForestRecord
from colonnade.wire.message import Float64Array

KNOWN_RECORDS = 50
_NEIGHBOURS = 1.5
_LITTLE = 0.05


def why_no_forest(view: View, *, sums: bool) -> str | None:
    """Why a view holds nothing of the owner's columns in a forest; None if it does."""
    record, owner = view.own.forest, view.grant.owner
    if owner not in record.columns:
        return Inapplicable(f"it saw nothing of {owner}'s columns")
    if sums and not record.released(owner):
        return Inapplicable(f"no sums over {owner}'s bins were told: they were hidden")
    return None


def why_no_columns(view: View, columns: Sequence[int]) -> str | None:
    """Why there are no columns to attack; None where there are some."""
    return None if columns else f"every column of {view.grant.owner} was chosen by a split"


def attacked_columns(record: ForestRecord, owner: str, most: int, *, never_chosen: bool) -> list[int]:
    """The columns to attack: those chosen most and least often by turns, or those never chosen; at most `most`."""
    chosen = record.n_splits(owner)
    order = [int(each) for each in np.argsort(-chosen, kind="stable")]
    if never_chosen:
        return [each for each in order if not chosen[each]][:most]
    by_turns = [each for pair in zip(order, reversed(order), strict=True) for each in pair]
    return list(dict.fromkeys(by_turns))[:most]


def guessed(likely: Sequence[Float64Array], columns: Sequence[Column], grant: Grant, n_rows: int) -> Guess:
    """A guess of all rows' records: the mean where no attacked column tells more.

    Args:
        likely: For each attacked column how likely each bin is, row by row (rows, bins), up to a factor.
        columns: What is known of these columns.
        grant: The known records.
        n_rows: How many rows there are.
    """
    names = np.array(grant.columns)
    positive = [np.maximum(each, 0) + 1e-9 for each in likely]
    likely = [each / each.sum(axis=1, keepdims=True) for each in positive]
    values = np.zeros((n_rows, len(names)))
    for name in dict.fromkeys(grant.columns):
        mine = names == name
        known = grant.records[:, mine]
        spread = float(((known - known.mean(axis=0)) ** 2).sum())
        best = 0.0
        for found, column in zip(likely, columns, strict=True):
            left_out, everybody = _explained(found, column, known, grant)
            explained = 1 - float(((left_out - known) ** 2).sum()) / max(spread, 1e-300)
            if explained > best:
                best, values[:, mine] = explained, everybody
    return Guess(np.arange(n_rows), values=values)


def _explained(
    likely: Float64Array, column: Column, known: Float64Array, grant: Grant
) -> tuple[Float64Array, Float64Array]:
    """What bins say of known records, each left out of what its bin stands for, and of all rows."""
    bins = np.arange(likely.shape[1])
    near = np.eye(len(bins)) + _LITTLE
    if not column.categorical:
        near = np.exp(-0.5 * ((bins[:, None] - bins) / _NEIGHBOURS) ** 2) + 1e-6
    # How much each known record says of each bin.
    weights = likely[grant.rows] @ near + 1e-12
    total, sums = weights.sum(axis=0), weights.T @ known
    inside = likely[grant.rows]
    left_out = np.stack(
        [
            inside[k] @ ((sums - weights[k][:, None] * known[k]) / np.maximum(total - weights[k], 1e-12)[:, None])
            for k in range(len(known))
        ]
    )
    return left_out, likely @ (sums / total[:, None])
