"""LatticeLabels: sums of integers over labels of 0 and 1 are a knapsack, and a lattice holds its solution.

Attacker: a feature party of a logistic regression with an arbiter that keeps to the protocol. Knowledge: its own
columns as the integers that it multiplied with, and the gradients of its own coefficients at the first step. Steps:

1. At the first step all coefficients are 0, so all rows have the same mean m, and residuals are m less a label of 0 or
   1. So each gradient gives a sum T = sum of x_i over the rows of the second class, with integers x of 12 to 20 bits:
   exactly where all bits of a gradient are opened, else to within E, which follows from `gradient_bits`.
2. d columns give about 20 d bits about n labels, and fewer where T is rounded. Where these are more than n, the labels
   are most likely the only solution. The lattice of the rows [2 S I | 0 | W x] and [S | S | W T] then has the vector of
   +-S that the labels say as one of its shortest. Where T is exact W is large, else the error W E is about S.
3. Reduce the lattice with blocks of growing size, from several orders of its vectors, until a vector has the form or
   time is up.

Where the sums cannot determine the labels, or reduction fails, the guess is that of `Residue`.

Sources: Lagarias and Odlyzko 1985, "Solving low-density subset sum problems"; Coster et al. 1992, "Improved low-density
subset sum algorithms".
"""

from __future__ import annotations

from collections.abc import Mapping
from math import e, pi, sqrt
from time import monotonic
from typing import ClassVar

import numpy as np

from colonnade.attacks.base import Attack, ExampleRun, Guess, Inapplicable, Needs, View
from colonnade.attacks.labels.regression import (
    first_batches,
    n_outputs,
    own_matrix,
    own_regression,
    shortest_residuals,
    why_no_regression,
)
from colonnade.crypto.additive import SUM_BITS, Widths, column_scales
from colonnade.models.glm.estimator import LogisticRegression
from colonnade.models.glm.families import LOGISTIC
from colonnade.models.glm.messages import EncryptedResiduals, Schedule, StepOutline
from colonnade.parameters import Limit, check_parameters, number
from colonnade.wire.message import Float64Array, Int64Array

BLOCKS = (10, 34, 36, 38)
MOST_ROWS = 150
WEIGHT = 256
# What +-1 is multiplied by where sums are rounded, so that errors are small integers too.
SIGN = 8


class LatticeLabels(Attack):
    """Labels are the only choice of rows whose integers add up to the opened sums of the first step.

    Args:
        seconds: How long a batch is searched.
    """

    needs = Needs(messages=(EncryptedResiduals, Schedule, StepOutline), own_features=True, own_model=True)
    example_run = ExampleRun("logistic-regression")
    limits: ClassVar[Mapping[str, Limit]] = {"seconds": number(above=0)}

    def __init__(self, seconds: float = 60.0) -> None:
        self.seconds = seconds
        check_parameters(self)

    def why_not(self, view: View) -> str | None:
        why = why_no_regression(view)
        if why is not None:
            return why
        if not isinstance(view.own.model, LogisticRegression) or n_outputs(view) > 1:
            return Inapplicable("it knows the residuals of a logistic regression of two classes only")
        if view.own.model.gradient_privacy is not None:
            return Inapplicable("opened sums have noise")
        weighted = any(len(each.message.weights) for each in view.messages(StepOutline, sent=False))
        return Inapplicable("rows have weights") if weighted else None

    def guess(self, view: View) -> Guess:
        batches = first_batches(view)
        matrix, gradients = own_matrix(view), own_regression(view).gradients_
        first, most = batches[0], max(map(len, batches))
        scales = column_scales(np.abs(matrix).max(axis=0), Widths.of(most).column_bits)
        integers = np.rint(np.ldexp(matrix[first], scales)).astype(np.int64)
        (schedule, *_) = view.messages(Schedule, sent=False)
        fraction = schedule.message.fraction
        assert LOGISTIC.table is not None
        mean = np.ldexp(np.rint(np.ldexp(LOGISTIC.table(np.zeros(1)), fraction)), -fraction)
        sums = mean * integers.sum(axis=0) - np.ldexp(gradients[0], scales)
        found = solution(integers, sums, error=_error(view, fraction), seconds=self.seconds)
        if found is None:
            scores = shortest_residuals(matrix, gradients, batches)
            return Guess(np.concatenate(batches), scores=np.concatenate(scores))
        # Later batches have residuals that the first step has changed.
        return Guess(first, scores=found.astype(np.float64))


def _error(view: View, fraction: int) -> float:
    """By how much a sum T may be off, as the arbiter rounded it: half a unit."""
    bits = own_regression(view).gradient_bits
    return 0.0 if bits is None else 2.0 ** (SUM_BITS - bits - 1 - fraction)


def determined(columns: Int64Array, error: float = 0.0) -> bool:
    """Whether sums of these columns over a choice of rows hold more bits than there are rows, and few enough rows."""
    n_rows = len(columns)
    lengths = np.sqrt((columns.astype(np.float64) ** 2).sum(axis=0))
    # The entropy of a sum that is normal with half the column's length as its deviation.
    bits = np.log2(np.maximum(lengths / 2 * sqrt(2 * pi * e) / max(2 * error, 1.0), 1.0)).sum()
    return bool(n_rows <= min(MOST_ROWS, bits))


def solution(
    columns: Int64Array, sums: Int64Array | Float64Array, *, error: float = 0.0, seconds: float = 60.0
) -> Int64Array | None:
    """The choice of rows, as 0 and 1, over which each column adds up to its sum; None if none is found in time.

    >>> columns = np.array([[3141, 5926], [5358, 9793], [2384, 6264], [3383, 2795]])
    >>> solution(columns, columns[[0, 3]].sum(axis=0)).tolist()
    [1, 0, 0, 1]
    >>> solution(columns, columns[[0, 3]].sum(axis=0) + [20, -30], error=40.0).tolist()
    [1, 0, 0, 1]

    Args:
        columns: One row for each unknown.
        sums: One for each column.
        error: By how much sums may be off.
        seconds: How long to search.
    """
    # Numba takes a while to import, which is spent only here.
    from colonnade.attacks.reduction import reduced

    n_rows, n_columns = columns.shape
    if not determined(columns, error):
        return None
    exact = error < 0.5
    # Errors are uniform: their deviation is the largest over the root of 3.
    sign, weight = (1, float(WEIGHT)) if exact else (SIGN, SIGN * np.sqrt(3) / error)
    targets = np.rint(sums) if exact else np.asarray(sums)
    basis = np.zeros((n_rows + 1, n_rows + 1 + n_columns), np.int64)
    basis[:n_rows, :n_rows] = 2 * sign * np.eye(n_rows, dtype=np.int64)
    basis[:n_rows, n_rows + 1 :] = np.rint(weight * columns)
    basis[n_rows, : n_rows + 1] = sign
    basis[n_rows, n_rows + 1 :] = np.rint(weight * targets)

    def read(rows: Int64Array) -> Int64Array | None:
        signs = rows[:, : n_rows + 1]
        for row in signs[(np.abs(signs) == sign).all(axis=1)] // sign:
            chosen = (1 - row[:n_rows] * row[n_rows]) // 2
            if (np.abs(chosen @ columns - targets) <= error).all():
                return np.asarray(chosen)
        return None

    deadline, order = monotonic() + seconds, np.random.default_rng(0)
    while True:
        tried = basis
        for block in BLOCKS:
            left = deadline - monotonic()
            if left <= 0:
                return None
            tried = reduced(tried, block=block, found=lambda rows: read(rows) is not None, seconds=left)
            chosen = read(tried)
            if chosen is not None:
                return chosen
        # Reduction ends elsewhere where it starts from another order of the same vectors.
        basis = order.permutation(basis)
