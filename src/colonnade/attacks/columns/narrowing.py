"""Narrowing: each side of a split that a row was sent to rules out bins, and what is left is few after some trees."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from colonnade.attacks.base import Attack, ExampleRun, Guess, Needs, View
from colonnade.attacks.columns.bins import KNOWN_RECORDS, guessed, why_no_forest
from colonnade.models.trees.record import ForestRecord
from colonnade.secret import Secret


class SplitNarrowing(Attack):
    """A row's bin is one of those that no split has ruled out, each as likely as the others."""

    needs = Needs(forest=True, known_records=KNOWN_RECORDS)
    about = Secret.FEATURES
    example_run = ExampleRun("secureboost-classifier", {"keep_record": True})

    def why_not(self, view: View) -> str | None:
        return why_no_forest(view, sums=False)

    def guess(self, view: View) -> Guess:
        record, owner = view.own.forest, view.grant.owner
        columns = list(range(len(record.columns[owner])))
        possible = possible_bins(record, owner, columns)
        likely = [each / each.sum(axis=1, keepdims=True) for each in possible]
        return guessed(likely, record.columns[owner], view.grant)


def possible_bins(record: ForestRecord, owner: str, columns: list[int]) -> list[NDArray[np.bool_]]:
    """For each of some columns which bins (rows, bins) the sides of rows leave possible."""
    known = record.columns[owner]
    possible = {column: np.ones((record.n_rows, known[column].width), np.bool_) for column in columns}
    for tree in record.trees:
        for seen in tree.sides.get(owner, ()):
            if seen.split.column in possible:
                column = known[seen.split.column]
                goes_left = seen.split.left(np.arange(column.width, dtype=np.uint16), column.n_bins)
                possible[seen.split.column][seen.rows] &= goes_left == seen.left[:, None]
    return [possible[column] for column in columns]
