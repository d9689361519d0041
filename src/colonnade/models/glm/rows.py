"""Rows: a party's columns of a regression in batches, where its rows lie, and what is computed there in a step.

No partition lies in two batches, and a partition ends where a block of an encrypted vector ends. So an encrypted
product over a batch is the sum of the products over its partitions, to the last bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial, reduce
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from colonnade.crypto.profiles import ARBITER
from colonnade.models.glm.matrix import (
    Matrix,
    StepBasis,
    can_whiten,
    entries,
    largest,
    largest_eigenvalue_by,
    of_columns,
    require_finite_squares,
    squares,
    weighted,
    whitening,
    with_entries,
)
from colonnade.tables import placement
from colonnade.tables.encode import Design
from colonnade.tables.placement import Placement, bounds_of, total
from colonnade.tables.table import Table
from colonnade.wire.message import Float64Array, Int64Array

if TYPE_CHECKING:
    from colonnade.crypto.additive import Data, PublicKey
    from colonnade.models.glm.gradient_privacy import GradientPrivacy

P = TypeVar("P")
Q = TypeVar("Q")
R = TypeVar("R")


@dataclass(frozen=True)
class BatchedRows(Generic[P]):
    """Rows in the order of batches.

    Attributes:
        parts: The partitions.
        batches: The numbers of the partitions of each batch.
    """

    parts: Placement[P]
    batches: tuple[range, ...]

    @classmethod
    def of(cls, table: Table, batches: Sequence[Int64Array]) -> BatchedRows[Table]:
        """The rows of a table, batch after batch.

        >>> BatchedRows.of(Table.of({"id": [1, 2, 3]}), [np.array([2]), np.array([0, 1])]).parts.bounds
        (0, 1, 3)
        """
        # Whatever number of rows a block has, it divides the number of coefficients.
        size = -(-placement.PARTITION_ROWS // ARBITER.n) * ARBITER.n
        bounds, ranges = [0], []
        for rows in batches:
            first, begin = len(bounds) - 1, bounds[-1]
            bounds += [begin + end for end in bounds_of(len(rows), size)[1:]]
            ranges.append(range(first, len(bounds) - 1))
        return BatchedRows(table.take(np.concatenate(batches)).cut(bounds), tuple(ranges))

    def then(self, function: Callable[..., Q], *shared: Any, per_part: Iterable[Any] | None = None) -> BatchedRows[Q]:
        """What a function makes of each partition; see `Placement.then`."""
        return BatchedRows(self.parts.then(function, *shared, per_part=per_part), self.batches)

    def of_batch(
        self, batch: int, function: Callable[..., R], *shared: Any, per_part: Iterable[Any] | None = None
    ) -> Iterator[R]:
        """Yield a function of each partition of a batch."""
        return self.parts.map(function, *shared, per_part=per_part, only=self.batches[batch])

    def batch_bounds(self, batch: int) -> list[tuple[int, int]]:
        """Where the partitions of a batch begin and end, counted from the beginning of the batch."""
        numbers = self.batches[batch]
        found = self.parts.bounds[numbers.start : numbers.stop + 1]
        return list(pairwise(bound - found[0] for bound in found))


def matrix_of(part: Table, design: Design) -> Matrix:
    """The matrix of a partition."""
    return design.matrix(part)


def own_scores(part: Table, design: Design, weights: Float64Array, constant: Float64Array) -> Float64Array:
    """What the columns of a partition add to the scores of its rows."""
    return np.asarray(design.matrix(part) @ weights + constant)


def basis_of(
    owner: str, x: BatchedRows[Matrix], design: Design, penalised: NDArray[np.bool_], ridge: float, *, whiten: bool
) -> tuple[StepBasis, float]:
    """A basis in which few steps go far, and the largest eigenvalue of the columns' mean square matrix in that basis.

    Args:
        owner: Whose columns they are.
        x: The columns.
        design: How they were made.
        penalised: Which of them are penalised.
        ridge: What the penalty adds to the mean square matrix.
        whiten: Whether to whiten columns where that is possible; otherwise they are multiplied by a number.
    """
    n_rows, n_columns = x.parts.bounds[-1], len(design.names)
    require_finite_squares(owner, total(x.parts.map(_squares)))
    factor = np.asarray(min(1.0, 1 / np.sqrt(max(ridge, 1e-300))))
    whiten = whiten and can_whiten((n_rows, n_columns), is_dense=not design.is_sparse)
    if not n_columns:
        return StepBasis(factor), 0.0
    if design.is_sparse and not whiten:
        times = partial(_mean_square_times, x, float(factor) ** 2 / n_rows)
        return StepBasis(factor), largest_eigenvalue_by(times, n_columns)
    found = total(x.parts.map(_gram)) / n_rows
    squared = np.asarray(found if isinstance(found, np.ndarray) else found.toarray())
    basis = StepBasis(whitening(squared, penalised, ridge) if whiten else factor)
    turned = basis.back @ squared @ basis.back if whiten else factor**2 * squared
    return basis, float(np.linalg.eigvalsh(turned)[-1])


def _mean_square_times(x: BatchedRows[Matrix], factor: float, vector: Float64Array) -> Float64Array:
    return total(x.parts.map(_gram_times, vector)) * factor


def column_digest(x: BatchedRows[Matrix], shape: tuple[int, int], batches: Sequence[Int64Array]) -> bytes:
    """A digest of a matrix, cut into batches; it leaves its owner only under a key."""
    hashed = blake3(repr(shape).encode())
    for part in x.parts.map(_bytes_digest):
        hashed.update(part)
    # Sums over other batches are other equations, even of the same columns; the one batch of all rows is always alike.
    for rows in batches if len(batches) > 1 else ():
        hashed.update(np.ascontiguousarray(rows).tobytes())
    return hashed.digest()


@dataclass(frozen=True)
class Quantised:
    """The columns of a partition: as integers for products, as numbers for scores, and the sum of their squares."""

    integers: Matrix
    matrix: Matrix
    squares: float


def largest_entries(x: BatchedRows[Matrix], weights: Float64Array) -> Float64Array:
    """The largest absolute value of each column, its rows weighted."""
    return reduce(np.maximum, x.parts.map(_largest, per_part=_cut(x, weights)))


def quantised(
    x: BatchedRows[Matrix],
    weights: Float64Array,
    scales: Int64Array,
    noise: GradientPrivacy | None,
    *,
    intercept: bool,
) -> BatchedRows[Quantised]:
    """The columns with `scales` bits behind the point, their rows weighted, and clipped where gradients have noise."""
    return x.then(_quantised, scales, noise, intercept, per_part=_cut(x, weights))


def scores_of(part: Quantised, coefficients: Float64Array) -> Float64Array:
    """The scores of the rows of a partition, (rows, outputs)."""
    return np.asarray(part.matrix @ coefficients)


def sum_of_squares(part: Quantised) -> float:
    """The sum of the squares of all numbers."""
    return part.squares


def prepared_for(part: Quantised, scheme: str, key: bytes, block: int, cached: bool) -> Any:
    """The columns of a partition as products need them."""
    return public_key(scheme, key).prepare(part.integers, block, cached=cached)


def product_of(part: Any, scheme: str, key: bytes, residuals: Data) -> Data:
    """The encrypted sums over the rows of a partition, given their encrypted residuals."""
    return public_key(scheme, key).product(part, residuals)


@lru_cache(maxsize=2)
def public_key(scheme: str, key: bytes) -> PublicKey:
    """A key that crossed."""
    from colonnade.crypto import paillier, rlwe

    found: PublicKey = (rlwe if scheme == "rlwe" else paillier).PublicKey.from_bytes(key)
    return found


def _cut(x: BatchedRows[Matrix], weights: Float64Array) -> Iterator[Float64Array]:
    """The weights of each partition's rows; none where there are none."""
    return x.parts.cut(weights) if len(weights) else (weights for _ in range(len(x.parts)))


def _squares(x: Matrix) -> Float64Array:
    return squares(x, axis=0)


def _gram(x: Matrix) -> Matrix:
    return x.T @ x


def _gram_times(x: Matrix, vector: Float64Array) -> Float64Array:
    return np.asarray(x.T @ (x @ vector))


def _bytes_digest(x: Matrix) -> bytes:
    parts = [x] if isinstance(x, np.ndarray) else [x.data, x.indices, x.indptr]
    return blake3(b"".join(np.ascontiguousarray(part).tobytes() for part in parts)).digest()


def _largest(x: Matrix, weights: Float64Array) -> Float64Array:
    return largest(weighted(x, weights))


def _quantised(
    x: Matrix, scales: Int64Array, noise: GradientPrivacy | None, intercept: bool, weights: Float64Array
) -> Quantised:
    columns = weighted(x, weights)
    if noise is not None:
        columns = noise.clipped(columns, intercept=intercept)
    places = of_columns(columns, scales)
    shifted = np.ldexp(entries(columns), places)
    # Cutting off makes no row longer than it was clipped to.
    whole = np.rint(shifted) if noise is None else np.trunc(shifted)
    integers = with_entries(columns, whole.astype(np.int64))
    if not len(weights):
        # Scores are taken of the same columns as gradients, to the last bit.
        x = with_entries(columns, np.ldexp(entries(integers).astype(np.float64), -places))
    return Quantised(integers, x, float(squares(x, axis=1).sum()))
