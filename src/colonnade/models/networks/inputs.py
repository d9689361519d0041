"""Inputs: a party's columns as one array of numbers that a network can read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from colonnade.errors import DataError
from colonnade.storage import Tree
from colonnade.tables.table import Table
from colonnade.wire.message import Float32Array, Float64Array, Int64Array


@dataclass(frozen=True)
class Inputs:
    """How a party's columns become numbers, learned from its training rows.

    First come numeric and boolean columns, standardised, a missing value becoming 0; then a flag for each of these that
    had missing values; then categorical columns as codes, 0 standing for missing and for levels never seen in training.
    """

    numeric: tuple[str, ...]
    means: Float64Array
    scales: Float64Array
    flagged: tuple[str, ...]
    levels: Mapping[str, tuple[str, ...]]

    @classmethod
    def learned(cls, table: Table, rows: Int64Array) -> Inputs:
        """Learn means, scales and levels from some rows of a table."""
        for name, kind in table.kinds.items():
            if kind == "curves":
                raise DataError(
                    f"{table.owner} should bring numbers, text or booleans for this model, but its column {name!r} "
                    "holds curves. Leave it out, or use a model for curves such as FunctionalBoost."
                )
        numeric = tuple(name for name in table.columns if table.kinds[name] != "categorical")
        means, scales, flagged = [], [], []
        for name in numeric:
            values = table.column(name)[rows]
            present = values[~np.isnan(values)]
            with np.errstate(over="ignore"):
                mean, deviation = (present.mean(), present.std()) if len(present) else (0.0, 0.0)
            if not np.isfinite(deviation):
                raise _too_large(table, name)
            # A constant column has a deviation of rounding errors, which must not be divided by.
            varies = deviation > 1e-12 * abs(mean)
            means.append(mean)
            scales.append(deviation if varies else 1.0)
            if len(present) < len(values):
                flagged.append(name)
        levels = {}
        for name in table.columns:
            if table.kinds[name] == "categorical":
                levels[name] = tuple(sorted({value for value in table.column(name)[rows] if value is not None}))
        return cls(numeric, np.array(means), np.array(scales), tuple(flagged), levels)

    @property
    def n_numbers(self) -> int:
        """How many of the array's columns are numbers; the others are codes."""
        return len(self.numeric) + len(self.flagged)

    @property
    def level_counts(self) -> tuple[int, ...]:
        """For each column of codes, how many codes there are, the unknown included."""
        return tuple(len(levels) + 1 for levels in self.levels.values())

    @property
    def width(self) -> int:
        """How many columns the array has."""
        return self.n_numbers + len(self.levels)

    def require_columns(self, table: Table) -> None:
        """Refuse a table that lacks a column, or has numbers where there was text or the other way round."""
        for name in (*self.numeric, *self.levels):
            if name not in table.columns:
                raise DataError(
                    f"{table.owner} trained with the column {name!r} but its table has only "
                    f"{', '.join(table.columns) or 'no columns'}. Bring the columns the model was trained with."
                )
            was_categorical = name in self.levels
            if (table.kinds[name] == "categorical") != was_categorical:
                raise DataError(
                    f"{table.owner} trained with {'text' if was_categorical else 'numbers'} in the column {name!r}, "
                    f"which now holds {table.kinds[name]} values. Bring it in the form the model was trained with."
                )

    def encode(self, table: Table) -> Float32Array:
        """The array of a table's rows."""
        self.require_columns(table)
        encoded = np.zeros((len(table), self.width), np.float32)
        for i, name in enumerate(self.numeric):
            with np.errstate(over="ignore"):
                values = (table.column(name) - self.means[i]) / self.scales[i]
            missing = np.isnan(values)
            if np.abs(values[~missing]).max(initial=0.0) > np.finfo(np.float32).max:
                raise _too_large(table, name)
            encoded[:, i] = np.where(missing, 0.0, values)
            if name in self.flagged:
                encoded[:, len(self.numeric) + self.flagged.index(name)] = missing
        for i, (name, levels) in enumerate(self.levels.items(), start=self.n_numbers):
            codes = {level: code for code, level in enumerate(levels, start=1)}
            encoded[:, i] = [codes.get(value, 0) for value in table.column(name)]
        return encoded

    def state(self) -> Tree:
        """The learned values as a tree."""
        return dict(vars(self))

    @classmethod
    def of(cls, tree: Mapping[str, Any]) -> Inputs:
        """The inputs that `state` wrote down."""
        levels = {name: tuple(values) for name, values in tree["levels"].items()}
        return cls(tuple(tree["numeric"]), tree["means"], tree["scales"], tuple(tree["flagged"]), levels)


def _too_large(table: Table, name: str) -> DataError:
    return DataError(
        f"{table.owner}'s column {name!r} should hold numbers of which a mean and a deviation can be computed, but "
        "some are too large for that. Make those missing that stand for missing values, clip the others, or rescale "
        "the column."
    )


def present_rows(table: Table) -> NDArray[np.bool_]:
    """Which rows a party holds: those in which at least one of its columns has a value."""
    present = np.zeros(len(table), bool)
    for name, kind in table.kinds.items():
        column = table.column(name)
        present |= np.array([value is not None for value in column]) if kind == "categorical" else ~np.isnan(column)
    return present
