"""Reduction: short vectors of integer lattices, by LLL and by BKZ with linear pruning.

Gram-Schmidt coefficients are doubles and are computed again where a row changes, so entries should stay below about
2^40 and dimensions below about 150. Rows change by integer operations alone: a wrong digit costs length, and the rows
still span the same lattice.

Lenstra, Lenstra and Lovász 1982; Schnorr and Euchner 1994, "Lattice basis reduction: improved practical algorithms".
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

import numpy as np
from numba import njit
from numpy.typing import NDArray

DELTA = 0.99
Basis = NDArray[np.int64]


def reduced(
    basis: Basis, *, block: int = 2, found: Callable[[Basis], bool] = lambda basis: False, seconds: float = 60.0
) -> Basis:
    """A basis of the same lattice whose vectors are shorter; vectors are rows, linearly independent.

    The shortest vector is searched in `block` dimensions at a time; 2 is LLL. The search goes on until `found` says
    that a basis holds what is looked for, or time is up; a block that was begun is ended.

    >>> reduced(np.array([[1, 1, 1], [-1, 0, 2], [3, 5, 6]])).tolist()
    [[0, 1, 0], [1, 0, 1], [-1, 0, 2]]
    """
    rows = np.array(basis, np.int64)
    lll(rows, 0)
    deadline = monotonic() + seconds
    changed = block > 2
    while changed and not found(rows):
        changed = False
        for start in range(len(rows) - 1):
            if monotonic() > deadline:
                return rows
            changed |= bool(_improve(rows, start, min(start + block, len(rows))))
    return rows


@njit(cache=True)
def _orthogonalise(rows, mu, norms, k):  # type: ignore[no-untyped-def]
    """Coefficients and squared length of row k against the rows before it, through scalar products."""
    n = rows.shape[1]
    products = np.empty(k + 1)
    for j in range(k + 1):
        total = 0.0
        for c in range(n):
            total += float(rows[k, c]) * float(rows[j, c])
        products[j] = total
    partial = np.empty(k + 1)
    for j in range(k):
        value = products[j]
        for i in range(j):
            value -= mu[j, i] * partial[i]
        partial[j] = value
        mu[k, j] = value / norms[j]
    value = products[k]
    for j in range(k):
        value -= mu[k, j] * partial[j]
    norms[k] = value


@njit(cache=True)
def _size_reduce(rows, mu, norms, k):  # type: ignore[no-untyped-def]
    """Subtract multiples of earlier rows until every coefficient of row k is at most a half."""
    n = rows.shape[1]
    for _ in range(20):
        _orthogonalise(rows, mu, norms, k)
        changed = False
        for j in range(k - 1, -1, -1):
            q = np.rint(mu[k, j])
            if q != 0.0:
                changed = True
                for c in range(n):
                    rows[k, c] -= np.int64(q) * rows[j, c]
                for i in range(j):
                    mu[k, i] -= q * mu[j, i]
                mu[k, j] -= q
        if not changed:
            return


@njit(cache=True)
def lll(rows, start):  # type: ignore[no-untyped-def]
    """Reduce a basis in place, whose rows before `start` are reduced; returns coefficients and squared lengths."""
    d = rows.shape[0]
    mu = np.zeros((d, d))
    norms = np.zeros(d)
    for k in range(start):
        _orthogonalise(rows, mu, norms, k)
    k = start
    while k < d:
        _size_reduce(rows, mu, norms, k)
        if k == 0 or norms[k] >= (DELTA - mu[k, k - 1] ** 2) * norms[k - 1]:
            k += 1
            continue
        for c in range(rows.shape[1]):
            rows[k, c], rows[k - 1, c] = rows[k - 1, c], rows[k, c]
        k -= 1
    return mu, norms


@njit(cache=True)
def _shortest(mu, norms, start, stop):  # type: ignore[no-untyped-def]
    """Coefficients of a vector of rows start to stop that is shorter than the first, once projected; zeros if none."""
    size = stop - start
    best = np.zeros(size, np.int64)
    bound = DELTA * norms[start]
    v = np.zeros(size, np.int64)
    centre = np.zeros(size)
    length = np.zeros(size + 1)
    step = np.zeros(size, np.int64)
    sign = np.ones(size, np.int64)
    v[0] = 1
    level, last = 0, 0
    while True:
        offset = float(v[level]) - centre[level]
        length[level] = length[level + 1] + offset * offset * norms[start + level]
        # Linear pruning: of a vector's length, as much is allowed in its last coordinates as their share of all.
        allowed = bound * min(1.0, 1.05 * (size - level) / size)
        if length[level] < allowed:
            if level == 0:
                if length[0] > 1e-9 * norms[start]:
                    best[:] = v
                    bound = length[0] * DELTA
            else:
                level -= 1
                total = 0.0
                for i in range(level + 1, size):
                    total -= float(v[i]) * mu[start + i, start + level]
                centre[level] = total
                v[level] = np.int64(np.rint(total))
                step[level] = 0
                sign[level] = 1 if total > float(v[level]) else -1
                continue
        else:
            level += 1
            if level == size:
                return best
        if level >= last:
            # The first coefficient that is not zero may be taken positive.
            last = level
            v[level] += 1
        else:
            step[level] += 1
            v[level] += sign[level] * step[level]
            sign[level] = -sign[level]


@njit(cache=True)
def _improve(rows, start, stop):  # type: ignore[no-untyped-def]
    """Put the shortest vector of a block at its start; whether there was a shorter one."""
    d = rows.shape[0]
    mu = np.zeros((d, d))
    norms = np.zeros(d)
    for k in range(stop):
        _orthogonalise(rows, mu, norms, k)
    v = _shortest(mu, norms, start, stop)
    if not v.any():
        return False
    # Euclid's steps turn v into (1, 0, ..., 0) while the rows keep spanning the same lattice.
    for i in range(stop - start - 1, 0, -1):
        while v[i] != 0:
            q = v[i - 1] // v[i]
            for c in range(rows.shape[1]):
                rows[start + i, c] += q * rows[start + i - 1, c]
                rows[start + i, c], rows[start + i - 1, c] = rows[start + i - 1, c], rows[start + i, c]
            v[i - 1], v[i] = v[i], v[i - 1] - q * v[i]
    lll(rows, 0)
    return True
