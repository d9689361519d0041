"""Sums: a forest's released sums are linear equations in whose rows are in which bin, and few of them are enough.

    unknown     X (rows, bins) of a column, a 1 in each row
    equations   A X = S, with a row of A for each node asked for: the gradients of its rows, and another: their hessians
    linear      the X nearest to a uniform one that fulfils the equations
    boxed       besides, rows of X are probabilities, and 0 at bins that a split has ruled out; found by ADMM
    noisy       sums with noise of a known deviation are fulfilled as well as the noise allows

The boxed solution needs 0.2 to 0.3 equations for each row to be exact, whether or not the column ever wins a split.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from colonnade.attacks.base import Attack, ExampleRun, Guess, Needs, View
from colonnade.attacks.columns.bins import KNOWN_RECORDS, attacked_columns, guessed, why_no_columns, why_no_forest
from colonnade.attacks.columns.narrowing import possible_bins
from colonnade.models.trees.bins import starts
from colonnade.models.trees.messages import ColumnOutline, EncryptedSums, RowSides, SumsAnswer
from colonnade.models.trees.record import ForestRecord
from colonnade.parameters import Limit, check_parameters, count, truth
from colonnade.secret import Secret
from colonnade.wire.message import Float64Array, Int64Array

_RANK = 1e-9
_CLOSE = 1e-4
_STEP = 40.0


@dataclass(frozen=True)
class Equations:
    """The equations that sums over one party's bins give.

    Attributes:
        matrix: One row for each sum over a node, a sparse matrix of SciPy (equations, rows).
        sums: The sums over the bins of each attacked column (equations, bins).
        noise: The deviation of the noise in each equation; zeros where sums are exact.
    """

    matrix: Any
    sums: list[Float64Array]
    noise: Float64Array

    @classmethod
    def of(cls, record: ForestRecord, owner: str, columns: list[int], most: int) -> Equations:
        """The equations of a forest's first trees, at most `most` of them."""
        import scipy.sparse as sparse

        ends = starts(record.columns[owner])
        rows: list[Int64Array] = []
        data: list[Float64Array] = []
        sums: list[Float64Array] = []
        noise: list[float] = []
        for tree in record.trees:
            units = 2.0 ** -np.array([tree.gradients.g_bits, tree.gradients.h_bits])
            deviations = tree.noise.get(owner, (0.0, 0.0))
            for members, found in zip(tree.nodes, tree.sums.get(owner, ()), strict=True):
                for part, each in enumerate((tree.gradients.g, tree.gradients.h)):
                    rows.append(members)
                    data.append(each[members] * units[part])
                    sums.append(found[:, part] * units[part])
                    noise.append(float(deviations[part] * units[part]))
            if len(rows) >= most:
                break
        rows, data, sums, noise = rows[:most], data[:most], sums[:most], noise[:most]
        begins = np.concatenate([[0], np.cumsum([len(each) for each in rows])])
        matrix = sparse.csr_matrix(
            (np.concatenate(data), np.concatenate(rows), begins), shape=(len(rows), record.n_rows)
        )
        told = np.stack(sums)
        parts = [told[:, ends[column] : ends[column + 1]] for column in columns]
        # Equations of equal length weigh the same; those of noisy sums have noise of deviation 1.
        spread_of_noise = np.array(noise)
        exact = np.sqrt(np.asarray(matrix.multiply(matrix).sum(axis=1)).ravel())
        scale = 1 / np.maximum(spread_of_noise if spread_of_noise.any() else exact, 1e-12)
        return cls(sparse.diags(scale) @ matrix, [part * scale[:, None] for part in parts], spread_of_noise)

    @cached_property
    def _spectrum(self) -> tuple[Float64Array, Float64Array]:
        """Eigenvalues and eigenvectors of the products of equations, without those that exact sums say nothing by."""
        from scipy.linalg import eigh

        values, vectors = eigh((self.matrix @ self.matrix.T).toarray(), overwrite_a=True, check_finite=False)
        kept = self.noise.any() | (values > _RANK * values[-1])
        return values[kept], vectors[:, kept]

    def solved(self, possible: list[NDArray[np.bool_]], iterations: int) -> list[Float64Array]:
        """For each column how likely each bin is, row by row; linear without iterations, boxed with some.

        Args:
            possible: For each column which bins are possible, row by row.
            iterations: How many steps ADMM takes at most.
        """
        noisy, (values, vectors) = bool(self.noise.any()), self._spectrum
        found = []
        for sums, allowed in zip(self.sums, possible, strict=True):
            uniform, width = allowed / allowed.sum(axis=1, keepdims=True), allowed.shape[1]
            spread = width**2 / max(width - 1, 1)
            # The last bin has the noise of all others.
            share = np.append(np.ones(width - 1), max(width - 1, 1)) * noisy

            def nearest(
                x: Float64Array, firmness: float, sums: Float64Array = sums, share: Float64Array = share
            ) -> Float64Array:
                """The numbers nearest to x that fulfil the equations, or do so as well as noise allows."""
                rest = vectors.T @ (self.matrix @ x - sums)
                scaled = rest / (np.maximum(values, 0)[:, None] + firmness * share)
                return np.asarray(x - self.matrix.T @ (vectors @ scaled), np.float64)

            x = nearest(uniform, spread)
            away = np.zeros_like(x)
            for _ in range(iterations):
                inside = on_simplex(x + away, allowed)
                moved = nearest(inside - away, _STEP)
                away += moved - inside
                change, x = float(np.abs(moved - x).max()), moved
                if change < _CLOSE:
                    break
            found.append(on_simplex(x + away, allowed) if iterations else x)
        return found


def on_simplex(x: Float64Array, possible: NDArray[np.bool_]) -> Float64Array:
    """The probabilities nearest to each row, 0 where a bin is not possible.

    >>> on_simplex(np.array([[0.9, 0.4, 5.0]]), np.array([[True, True, False]])).round(2).tolist()
    [[0.75, 0.25, 0.0]]
    """
    lowest = np.where(possible, x, -1e9)
    descending = -np.sort(-lowest, axis=1)
    excess = np.cumsum(descending, axis=1) - 1
    n_above = (descending > excess / np.arange(1, x.shape[1] + 1)).sum(axis=1)
    threshold = excess[np.arange(len(x)), n_above - 1] / n_above
    return np.asarray(np.maximum(lowest - threshold[:, None], 0), np.float64)


class LinearSums(Attack):
    """A row's bins are those of the least-squares solution of the equations that a forest's sums give.

    Args:
        never_chosen: Whether only columns are attacked that no split ever used.
        most_columns: How many columns are attacked at most.
        most_equations: How many equations are used at most.
    """

    needs = Needs(forest=(ColumnOutline, SumsAnswer, EncryptedSums), known_records=KNOWN_RECORDS)
    about = Secret.FEATURES
    example_run = ExampleRun("secureboost-classifier", {"keep_record": True})
    iterations: ClassVar[int] = 0
    limits: ClassVar[Mapping[str, Limit]] = {
        "never_chosen": truth(),
        "most_columns": count(),
        "most_equations": count(),
    }

    def __init__(self, *, never_chosen: bool = False, most_columns: int = 4, most_equations: int = 3000) -> None:
        self.never_chosen, self.most_columns, self.most_equations = never_chosen, most_columns, most_equations
        check_parameters(self)

    def why_not(self, view: View) -> str | None:
        reason = why_no_forest(view, sums=True)
        return reason or why_no_columns(view, self._columns(view.own.forest, view.grant.owner))

    def guess(self, view: View) -> Guess:
        record, owner = view.own.forest, view.grant.owner
        columns = self._columns(record, owner)
        likely = self.likely(record, owner, columns)
        return guessed(likely, [record.columns[owner][column] for column in columns], view.grant, record.n_rows)

    def likely(self, record: ForestRecord, owner: str, columns: list[int]) -> list[Float64Array]:
        """For each of some columns how likely each bin is, row by row."""
        shapes = [(record.n_rows, record.columns[owner][column].width) for column in columns]
        every = [np.ones(shape, np.bool_) for shape in shapes]
        possible = dict(zip(columns, possible_bins(record, owner, columns) if self.iterations else every, strict=True))
        # Columns whose sums were told in the same trees share their equations.
        groups: dict[tuple[bool, ...], list[int]] = {}
        for column in columns:
            groups.setdefault(tuple(tree.tells(owner, column) for tree in record.trees), []).append(column)
        found: dict[int, Float64Array] = {column: each.astype(np.float64) for column, each in possible.items()}
        for told, group in groups.items():
            if any(told):
                equations = self.equations(record.about(owner, group[0]), owner, group)
                solved = equations.solved([possible[column] for column in group], self.iterations)
                found |= dict(zip(group, solved, strict=True))
        return [found[column] for column in columns]

    def equations(self, record: ForestRecord, owner: str, columns: list[int]) -> Equations:
        """The equations of trees in all of which sums over the bins of some columns were told."""
        return Equations.of(record, owner, columns, self.most_equations)

    def _columns(self, record: ForestRecord, owner: str) -> list[int]:
        return attacked_columns(record, owner, self.most_columns, never_chosen=self.never_chosen)


class BoxedSums(LinearSums):
    """A row's bins are probabilities that fulfil the equations of a forest's sums, split by split fewer of them."""

    needs = replace(LinearSums.needs, forest=(*LinearSums.needs.forest, RowSides))
    iterations = 250
