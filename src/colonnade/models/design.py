"""Design: a party's columns as the matrix of a linear model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from colonnade.models.inputs import Inputs
from colonnade.storage import Tree
from colonnade.table import Table
from colonnade.wire.message import Float64Array


@dataclass(frozen=True)
class Design:
    """How a party's columns become columns of numbers, learned from its own rows and known to nobody else.

    Numbers and booleans come first, standardised or as they are; then flags of missing values; then one column of
    0 and 1 for each level of a categorical column; last, where there is one, the intercept.
    """

    inputs: Inputs
    standardised: bool
    intercept: bool

    @classmethod
    def learned(cls, table: Table, *, standardised: bool, intercept: bool) -> Design:
        """Learn means, scales and levels from all rows of a table."""
        return cls(Inputs.learned(table, np.arange(len(table))), standardised, intercept)

    @property
    def names(self) -> tuple[str, ...]:
        """What each column of the matrix is called."""
        flags = tuple(f"{name} missing" for name in self.inputs.flagged)
        levels = tuple(f"{name}={level}" for name, found in self.inputs.levels.items() for level in found)
        return (*self.inputs.numeric, *flags, *levels, *(("intercept",) if self.intercept else ()))

    @property
    def penalised(self) -> Float64Array:
        """1 for each column whose coefficient is penalised, 0 for the intercept."""
        return np.array([float(not (self.intercept and i == len(self.names) - 1)) for i in range(len(self.names))])

    def matrix(self, table: Table) -> Float64Array:
        """The matrix of a table's rows."""
        self.inputs.require_columns(table)
        parts = [np.zeros((len(table), 0))]
        missing = {}
        for name, mean, scale in zip(self.inputs.numeric, self.inputs.means, self.inputs.scales, strict=True):
            values = np.asarray(table.column(name), np.float64)
            missing[name] = np.isnan(values)
            filled = np.where(missing[name], mean, values)
            parts.append(((filled - mean) / scale if self.standardised else filled)[:, None])
        parts += [missing[name].astype(np.float64)[:, None] for name in self.inputs.flagged]
        for name, levels in self.inputs.levels.items():
            column = np.asarray(table.column(name), object)
            parts += [(column == level).astype(np.float64)[:, None] for level in levels]
        if self.intercept:
            parts.append(np.ones((len(table), 1)))
        return np.hstack(parts)

    def state(self) -> Tree:
        """The learned values as a tree."""
        return {"inputs": self.inputs.state(), "standardised": self.standardised, "intercept": self.intercept}

    @classmethod
    def of(cls, tree: Mapping[str, Any]) -> Design:
        """The design that `state` wrote down."""
        return cls(Inputs.of(tree["inputs"]), tree["standardised"], tree["intercept"])
