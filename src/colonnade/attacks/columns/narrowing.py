"""Narrowing: each side of a split that a row was sent to rules out bins, and what is left is few after some trees."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from colonnade.attacks.base import Attack, ExampleRun, Guess, Needs, View
from colonnade.attacks.columns.bins import (
    KNOWN_RECORDS,
    attacked_columns,
    guessed,
    why_no_columns,
    why_no_forest,
)
from colonnade.models.trees.messages import ColumnOutline, RowSides
from colonnade.models.trees.record import ForestRecord
from colonnade.parameters import Limit, check_parameters, truth
from colonnade.secret import Secret


class SplitNarrowing(Attack):
    """A row's bin is one of those that no split has ruled out, each as likely as the others.

    Args:
        never_chosen: Whether only columns are attacked that no split ever used. Of these nothing is ruled out, so the
            score is a control.
    """

    needs = Needs(forest=(ColumnOutline, RowSides), known_records=KNOWN_RECORDS)
    about = Secret.FEATURES
    example_run = ExampleRun("secureboost-classifier", {"keep_record": True})
    limits: ClassVar[Mapping[str, Limit]] = {"never_chosen": truth()}

    def __init__(self, *, never_chosen: bool = False) -> None:
        self.never_chosen = never_chosen
        check_parameters(self)

    def why_not(self, view: View) -> str | None:
        return why_no_forest(view, sums=False) or why_no_columns(view, self._columns(view))

    def guess(self, view: View) -> Guess:
        record, owner, columns = view.own.forest, view.grant.owner, self._columns(view)
        possible = possible_bins(record, owner, columns)
        likely = [each / each.sum(axis=1, keepdims=True) for each in possible]
        return guessed(likely, [record.columns[owner][column] for column in columns], view.grant, record.n_rows)

    def _columns(self, view: View) -> list[int]:
        record, owner = view.own.forest, view.grant.owner
        return attacked_columns(record, owner, len(record.columns[owner]), never_chosen=self.never_chosen)


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
