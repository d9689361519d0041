"""Design: a party's columns as the matrix of a linear model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from colonnade.models.glm.matrix import Matrix
from colonnade.models.networks.inputs import Inputs
from colonnade.storage import Tree
from colonnade.tables.table import Table
from colonnade.wire.message import Float64Array

if TYPE_CHECKING:
    from scipy.sparse import csr_array

# A column of numbers is mostly zero if at least this share of it is.
MOSTLY = 0.9
# A matrix is sparse if at most one in so many of its numbers differs from 0.
SPARSE = 4


@dataclass(frozen=True)
class Design:
    """How a party's columns become columns of numbers, learned from its own rows and known to nobody else.

    Numbers and booleans come first, standardised or as they are; then flags of missing values; then one column of
    0 and 1 for each level of a categorical column; last, where there is one, the intercept.

    Where few of these numbers differ from 0, the matrix is sparse and no dense one is ever made. Standardised columns
    that are mostly zero are then divided by their deviation but not centred, or no zero would be left. With an
    intercept that changes no coefficient but the intercept.
    """

    inputs: Inputs
    standardised: bool
    intercept: bool
    mostly_zero: tuple[str, ...] = ()

    @classmethod
    def learned(cls, table: Table, *, standardised: bool, intercept: bool) -> Design:
        """Learn means, scales and levels from all rows of a table."""
        inputs = Inputs.learned(table, np.arange(len(table)))
        mostly_zero = tuple(name for name in inputs.numeric if (table.column(name) == 0).mean() >= MOSTLY)
        return cls(inputs, standardised, intercept, mostly_zero)

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

    @property
    def is_sparse(self) -> bool:
        """Whether few numbers of the matrix differ from 0: one for each categorical column, and some of the others."""
        full = len(self.inputs.numeric) - len(self.mostly_zero) + len(self.inputs.flagged) + self.intercept
        filled = full + len(self.inputs.levels) + (1 - MOSTLY) * len(self.mostly_zero)
        return SPARSE * filled < len(self.names)

    def matrix(self, table: Table) -> Matrix:
        """The matrix of a table's rows."""
        from scipy import sparse

        self.inputs.require_columns(table)
        parts = list(self._parts(table))
        if self.is_sparse:
            return sparse.hstack([sparse.csr_array(part) for part in parts], format="csr")
        empty = np.zeros((len(table), 0))
        return np.hstack([empty, *(part if isinstance(part, np.ndarray) else part.toarray() for part in parts)])

    def _parts(self, table: Table) -> Iterator[NDArray[np.float64] | csr_array]:
        """The matrix from left to right, in parts of a column or of all levels of one."""
        from scipy import sparse

        missing = {}
        for name, mean, scale in zip(self.inputs.numeric, self.inputs.means, self.inputs.scales, strict=True):
            values = np.asarray(table.column(name), np.float64)
            missing[name] = np.isnan(values)
            values = np.where(missing[name], mean, values)
            if self.standardised:
                centred = not (self.is_sparse and name in self.mostly_zero)
                values = (values - mean if centred else values) / scale
            yield sparse.csr_array(values[:, None]) if self.is_sparse else values[:, None]
        for name in self.inputs.flagged:
            yield missing[name].astype(np.float64)[:, None]
        for name, levels in self.inputs.levels.items():
            places = {level: place for place, level in enumerate(levels)}
            found = np.array([places.get(value, -1) for value in table.column(name)], np.int64)
            rows = np.flatnonzero(found >= 0)
            ones = (np.ones(len(rows)), (rows, found[rows]))
            yield sparse.csr_array(ones, shape=(len(found), len(levels)))
        if self.intercept:
            yield np.ones((len(table), 1))

    def state(self) -> Tree:
        """The learned values as a tree."""
        return {**vars(self), "inputs": self.inputs.state()}

    @classmethod
    def of(cls, tree: Mapping[str, Any]) -> Design:
        """The design that `state` wrote down."""
        inputs, mostly_zero = Inputs.of(tree["inputs"]), tuple(tree["mostly_zero"])
        return cls(inputs, tree["standardised"], tree["intercept"], mostly_zero)
