"""ColumnNumbers: a table's columns as one array of standardised numbers, with which guesses are compared."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from colonnade.tables.table import Table
from colonnade.wire.message import Float64Array

LEVELS = 50


@dataclass(frozen=True)
class ColumnNumbers:
    """Columns as numbers of mean 0 and, together, variance 1 per column; NaN where a value is missing.

    Text becomes one number for each of its commonest levels, a curve one number per coordinate. Columns that do not
    vary are left out.

    Attributes:
        values: One row per row of the table.
        columns: For each number, the column that it comes from.

    >>> ColumnNumbers.of(Table.of({"id": [1, 2], "age": [30.0, 50.0], "job": ["nurse", "cook"]})).columns
    ('age', 'job', 'job')
    """

    values: Float64Array
    columns: tuple[str, ...]

    @classmethod
    def of(cls, table: Table) -> ColumnNumbers:
        """A table's columns as numbers."""
        parts, columns = [np.zeros((len(table), 0))], []
        for name, kind in table.kinds.items():
            if kind == "categorical":
                part = _one_hot(table.column(name))
            else:
                part = table.curves(name).coordinates if kind == "curves" else table.column(name)[:, None]
            if np.isnan(part).all(axis=0).any():
                continue
            part = part - np.nanmean(part, axis=0)
            scale = np.sqrt(np.nanvar(part, axis=0).sum())
            if scale > 0:
                parts.append(part / scale)
                columns += [name] * part.shape[1]
        return cls(np.concatenate(parts, axis=1), tuple(columns))

    def filled(self) -> Float64Array:
        """The numbers with missing ones at the mean, beside flags of what was missing."""
        missing = np.isnan(self.values)
        flags = np.unique(missing[:, missing.any(axis=0)].astype(np.float64), axis=1)
        return np.concatenate([np.where(missing, 0.0, self.values), flags - flags.mean(axis=0)], axis=1)


def _one_hot(column: np.ndarray) -> Float64Array:
    missing = np.array([item is None for item in column])
    text = np.array(["" if item is None else f"={item}" for item in column])
    levels, counts = np.unique(text[~missing], return_counts=True)
    common = levels[np.argsort(-counts, kind="stable")[:LEVELS]]
    return np.where(missing[:, None], np.nan, (text[:, None] == common).astype(np.float64))
