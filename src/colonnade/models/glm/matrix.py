"""Matrix: a party's columns as numbers, dense, or sparse where most of them are 0.

Both kinds know their shape, products, transposes, sums and rows by number. What else a linear model does with one works
on its entries, which are all numbers of a dense matrix and the stored ones of a sparse matrix, so it is written once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from colonnade.errors import DataError

if TYPE_CHECKING:
    from scipy.sparse import csr_array

Matrix: TypeAlias = "NDArray[Any] | csr_array"

MOST_WHITENED = 2048
# Whitened columns are dense; a sparse matrix that would have more numbers than this stays as it is.
MOST_DENSE = 2**24


def entries(matrix: Matrix) -> NDArray[Any]:
    """The numbers that may differ from 0.

    >>> from scipy.sparse import csr_array
    >>> entries(csr_array(np.array([[0, 5], [7, 0]]))).tolist()
    [5, 7]
    """
    return matrix if isinstance(matrix, np.ndarray) else np.asarray(matrix.data)


def with_entries(matrix: Matrix, values: NDArray[Any]) -> Matrix:
    """The matrix that has other numbers at the same places."""
    if isinstance(matrix, np.ndarray):
        return values
    from scipy.sparse import csr_array

    return csr_array((values, matrix.indices, matrix.indptr), shape=matrix.shape)


def of_columns(matrix: Matrix, values: NDArray[Any]) -> NDArray[Any]:
    """For each entry, the value of its column."""
    return values[None] if isinstance(matrix, np.ndarray) else values[matrix.indices]


def of_rows(matrix: Matrix, values: NDArray[Any]) -> NDArray[Any]:
    """For each entry, the value of its row."""
    return values[:, None] if isinstance(matrix, np.ndarray) else np.repeat(values, np.diff(matrix.indptr))


def weighted(matrix: Matrix, weights: NDArray[np.float64]) -> Matrix:
    """Each row times its weight; an empty vector of weights weighs nothing."""
    return with_entries(matrix, entries(matrix) * of_rows(matrix, weights)) if len(weights) else matrix


def largest(matrix: Matrix) -> NDArray[np.float64]:
    """The largest absolute value of each column."""
    found = np.zeros(matrix.shape[1])
    if isinstance(matrix, np.ndarray):
        return np.asarray(np.abs(matrix).max(axis=0, initial=0.0))
    np.maximum.at(found, matrix.indices, np.abs(matrix.data))
    return found


def squares(matrix: Matrix, *, axis: int) -> NDArray[np.float64]:
    """The sums of the squares over rows (0) or columns (1)."""
    with np.errstate(over="ignore"):
        return np.asarray(with_entries(matrix, entries(matrix).astype(np.float64) ** 2).sum(axis=axis))


def totals(matrix: Matrix, *, axis: int) -> NDArray[np.float64]:
    """The sums of the absolute values over rows (0) or columns (1)."""
    return np.asarray(with_entries(matrix, np.abs(entries(matrix)).astype(np.float64)).sum(axis=axis))


def stacked(matrix: Matrix, below: Matrix) -> Matrix:
    """Two matrices of the same kind, one below the other."""
    if isinstance(matrix, np.ndarray):
        return np.vstack([matrix, below])
    from scipy.sparse import csr_array, vstack

    return csr_array(vstack([matrix, below]))


def words(matrix: Matrix) -> Matrix:
    """The integers of a matrix modulo 2^64."""
    return with_entries(matrix, entries(matrix).view(np.uint64))


def require_finite(owner: str, matrix: Matrix) -> None:
    """Refuse columns whose squares are not finite."""
    require_finite_squares(owner, squares(matrix, axis=0))


def require_finite_squares(owner: str, found: NDArray[np.float64]) -> None:
    """Refuse columns if a sum of squares is not finite."""
    if not np.isfinite(found).all():
        raise DataError(f"{owner} has columns whose squares are not finite. Standardise them or leave them out.")


def largest_eigenvalue(owner: str, matrix: Matrix) -> float:
    """The largest eigenvalue of the mean square matrix of a party's columns."""
    n_rows, n_columns = matrix.shape
    if not n_columns:
        return 0.0
    require_finite(owner, matrix)
    if isinstance(matrix, np.ndarray):
        return float(np.linalg.eigvalsh(matrix.T @ matrix / max(n_rows, 1))[-1])
    return largest_eigenvalue_by(lambda vector: matrix.T @ (matrix @ vector) / n_rows, n_columns)


def largest_eigenvalue_by(times: Callable[[NDArray[np.float64]], NDArray[np.float64]], n: int) -> float:
    """The largest eigenvalue of an n by n matrix, of which only its products with vectors are known."""
    from scipy.sparse.linalg import LinearOperator, eigsh

    # The same start each time: all that is told to others must be the same when a run is repeated.
    square = LinearOperator((n, n), matvec=times, dtype=np.float64)
    return float(eigsh(square, k=1, v0=np.ones(n), return_eigenvectors=False)[0])


@dataclass(frozen=True)
class StepBasis:
    """Another basis for a party's columns, in which few steps along gradients go far.

    Attributes:
        back: The matrix, or number, that turns coefficients of this basis into those of the columns.
    """

    back: NDArray[np.float64]

    def coefficients(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """The coefficients of the columns themselves."""
        return np.asarray(self.back @ values if self.back.ndim else self.back * values)


@dataclass(frozen=True)
class Whitened(StepBasis):
    """A party's columns in another basis.

    Attributes:
        columns: The columns times `back`, each entry within a bound.
        penalty: What a ridge adds to the mean square matrix, in this basis; at most the identity.
    """

    columns: Matrix
    penalty: Matrix


def scaled(matrix: Matrix, penalised: NDArray[np.bool_], ridge: float, most: float) -> Whitened:
    """Columns times one number, so that neither an entry is larger than `most` nor a ridge larger than the identity."""
    factor = min(1.0, most / max(np.abs(entries(matrix)).max(initial=0.0), 1e-300), 1 / np.sqrt(max(ridge, 1e-300)))
    from scipy.sparse import diags_array

    penalty = diags_array(ridge * factor**2 * penalised, format="csr")
    kept: Matrix = penalty if not isinstance(matrix, np.ndarray) else penalty.toarray()
    return Whitened(np.asarray(factor), with_entries(matrix, entries(matrix) * factor), kept)


def whitened(matrix: Matrix, penalised: NDArray[np.bool_], ridge: float, most: float = np.inf) -> Whitened:
    """Columns whose mean square matrix plus a ridge on the penalised ones is about the identity.

    Matrices with more than 2,048 columns, and large sparse ones, are only multiplied by a number. Where an entry would
    be larger than `most`, less is whitened.
    """
    if not can_whiten(matrix.shape, is_dense=isinstance(matrix, np.ndarray)):
        return scaled(matrix, penalised, ridge, most)
    product = matrix.T @ matrix / max(matrix.shape[0], 1)
    squared = np.asarray(product if isinstance(product, np.ndarray) else product.toarray())
    times = 1
    while True:
        back = whitening(squared, penalised, ridge, times)
        columns = np.asarray(matrix @ back)
        if np.abs(columns).max(initial=0.0) <= most:
            return Whitened(back, columns, ridge * (back * penalised) @ back)
        times = 4 * times


def can_whiten(shape: tuple[int, int], *, is_dense: bool) -> bool:
    """Whether a matrix is small enough for whitened columns, which are dense."""
    return 0 < shape[1] <= MOST_WHITENED and (is_dense or shape[0] * shape[1] <= MOST_DENSE)


def whitening(
    squared: NDArray[np.float64], penalised: NDArray[np.bool_], ridge: float, times: int = 1
) -> NDArray[np.float64]:
    """What whitens columns of this mean square matrix, with `times` the ridge on the penalised ones added."""
    # Directions that hardly vary stay so: a millionth of a column's mean square is as far as they are stretched.
    added = times * (np.where(penalised, ridge, 0.0) + 1e-6 * np.maximum(np.diag(squared), 1e-6))
    values, vectors = np.linalg.eigh(squared + np.diag(added))
    return np.asarray((vectors / np.sqrt(values)) @ vectors.T)
