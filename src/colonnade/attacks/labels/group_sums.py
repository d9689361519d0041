"""GroupSums: the gradient of a column that few rows have is the sum of the labels of these few.

Attacker: a feature party of a regression with an arbiter that keeps to the protocol. Knowledge: its own columns and the
gradients of its own coefficients. Steps:

1. In the first epoch scores are small, so a residual is a label with the sign changed. Take each batch's gradients.
2. A level of a categorical column is a column of 0 and 1; its gradient is the sum of the residuals of its rows. Divide
   by the number of rows: the mean label of the group, and in a group of one row, the label.
3. For each row keep the smallest group. Guess about rows of groups of at most `largest` rows; where all groups are
   larger, about rows of the smallest ones.

Source: the sums are those of Hardy et al. 2017, arXiv 1711.10677; that sums over small groups tell single values is the
oldest result of statistical disclosure control (Fellegi 1972, "On the question of statistical confidentiality").
"""

from __future__ import annotations

import numpy as np

from colonnade.attacks.base import Attack, ExampleRun, Guess, Needs, View
from colonnade.attacks.labels.regression import first_batches, own_matrix, own_regression, why_no_regression
from colonnade.models.glm.messages import EncryptedResiduals


class GroupSums(Attack):
    """A row's label is the mean label of the smallest group that the attacker's columns put the row into.

    Args:
        largest: How many rows a group may have to be guessed about.
    """

    needs = Needs(messages=(EncryptedResiduals,), own_features=True, own_model=True)
    example_run = ExampleRun("logistic-regression")

    def __init__(self, largest: int = 3) -> None:
        self.largest = largest

    def why_not(self, view: View) -> str | None:
        why = why_no_regression(view)
        if why is not None:
            return why
        if not first_batches(view):
            return "no batches of the first epoch were kept"
        return None if len(self.guess(view).rows) else "every column differs from 0 in most rows"

    def guess(self, view: View) -> Guess:
        matrix, gradients = own_matrix(view), own_regression(view).gradients_
        sizes = np.full(len(matrix), len(matrix) + 1)
        scores = np.zeros(len(matrix))
        for gradient, rows in zip(gradients, first_batches(view), strict=False):
            columns = matrix[rows]
            for column, total in zip(columns.T, gradient, strict=True):
                members = np.flatnonzero(column)
                if not 0 < 2 * len(members) < len(rows):
                    continue
                smaller = members[sizes[rows[members]] > len(members)]
                sizes[rows[smaller]] = len(members)
                # Residuals of a group have one mean: the least squares solution for a column of any numbers.
                scores[rows[smaller]] = -total * column[smaller] / (column**2).sum()
        known = np.flatnonzero(sizes <= max(self.largest, int(sizes.min(initial=len(sizes) + 1))))
        known = known[sizes[known] <= len(matrix)]
        return Guess(known, scores=scores[known])
