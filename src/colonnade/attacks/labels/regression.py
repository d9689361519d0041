"""What a party of a regression with an arbiter can compute from its own columns, gradients and coefficients.

A gradient is X'z, with the party's own columns X and the residuals z of a batch. In the first epoch scores are small,
so a residual is little else than a label with the sign changed.

Residue. Of all residuals that give a gradient, least squares finds the shortest; with as many columns as rows there is
only one, which is why small batches are refused.

Group sums. A level of a categorical column is a column of 0 and 1; its gradient is the sum of the residuals of its
rows. Divided by the number of rows it is the mean label of the group, and in a group of one row, the label. Each row
keeps its smallest group. The sums are those of Hardy et al. 2017, arXiv 1711.10677; that sums over small groups tell
single values is the oldest result of statistical disclosure control (Fellegi 1972, "On the question of statistical
confidentiality").
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np

from colonnade.attacks.base import Attack, ExampleRun, Guess, Inapplicable, Needs, View
from colonnade.models.glm.estimator import GeneralisedLinearModel
from colonnade.models.glm.messages import EncryptedResiduals
from colonnade.parameters import Limit, check_parameters, count
from colonnade.wire.message import Float64Array, Int64Array


class Residue(Attack):
    """A row's label is what the shortest residuals behind the first epoch's gradients say, with the sign changed."""

    needs = Needs(messages=(EncryptedResiduals,), own_features=True, own_model=True)
    example_run = ExampleRun("logistic-regression")

    def why_not(self, view: View) -> str | None:
        return why_no_regression(view)

    def guess(self, view: View) -> Guess:
        batches = first_batches(view)
        found = shortest_residuals(own_matrix(view), own_regression(view).gradients_, batches)
        return guess_of(np.concatenate(batches), np.concatenate(found, axis=-1))


class GroupSums(Attack):
    """A row's label is the mean label of the smallest group that the attacker's columns put the row into.

    Args:
        largest: How many rows a group may have to be guessed about.
    """

    needs = Needs(messages=(EncryptedResiduals,), own_features=True, own_model=True)
    example_run = ExampleRun("logistic-regression")
    limits: ClassVar[Mapping[str, Limit]] = {"largest": count()}

    def __init__(self, largest: int = 3) -> None:
        self.largest = largest
        check_parameters(self)

    def why_not(self, view: View) -> str | None:
        why = why_no_regression(view)
        if why is None and not len(self.guess(view).rows):
            why = "every column differs from 0 in most rows"
        return why

    def guess(self, view: View) -> Guess:
        matrix, gradients = own_matrix(view), own_regression(view).gradients_
        sizes = np.full(len(matrix), len(matrix) + 1)
        scores = np.zeros((*gradients.shape[1:-1], len(matrix)))
        for gradient, rows in zip(gradients, first_batches(view), strict=False):
            columns = matrix[rows]
            for column, total in zip(columns.T, np.moveaxis(gradient, -1, 0), strict=True):
                members = np.flatnonzero(column)
                if not 0 < 2 * len(members) < len(rows):
                    continue
                smaller = members[sizes[rows[members]] > len(members)]
                sizes[rows[smaller]] = len(members)
                # Residuals of a group have one mean: the least squares solution for a column of any numbers.
                scores[..., rows[smaller]] = -np.multiply.outer(total, column[smaller]) / (column**2).sum()
        known = np.flatnonzero(sizes <= max(self.largest, int(sizes.min(initial=len(sizes) + 1))))
        known = known[sizes[known] <= len(matrix)]
        return guess_of(known, scores[..., known])


class CoefficientScore(Attack):
    """A row's label is what the party's own columns and coefficients say."""

    needs = Needs(own_features=True, own_model=True)
    example_run = ExampleRun("logistic-regression")

    def why_not(self, view: View) -> str | None:
        return why_no_regression(view)

    def guess(self, view: View) -> Guess:
        matrix = own_matrix(view)
        return guess_of(np.arange(len(matrix)), own_regression(view).coef_ @ matrix.T)


def own_regression(view: View) -> GeneralisedLinearModel:
    """The attacker's own share of the regression."""
    model = view.own.model
    assert isinstance(model, GeneralisedLinearModel)
    return model


def own_matrix(view: View) -> Float64Array:
    """The attacker's columns as the dense numbers that were multiplied, up to rounding."""
    design = own_regression(view).design_
    assert design is not None
    matrix = design.matrix(view.own.table)
    return matrix if isinstance(matrix, np.ndarray) else np.asarray(matrix.toarray())


def n_outputs(view: View) -> int:
    """How many models were trained: one, or one for each class but the last."""
    coefficients = own_regression(view).coef_
    return len(coefficients) - 1 if coefficients.ndim == 2 else 1


def guess_of(rows: Int64Array, scores: Float64Array) -> Guess:
    """The guess that scores (rows,), or of more than two classes (classes, rows), make."""
    return Guess(rows, scores=scores) if scores.ndim == 1 else Guess(rows, classes=scores.argmax(axis=0))


def first_batches(view: View) -> list[Int64Array]:
    """The rows of each batch of the first epoch."""
    recorded = view.messages(EncryptedResiduals, sent=False)
    # Each model has residuals of its own.
    return [each.rows for each in recorded if each.epoch == 0 and each.rows is not None][:: n_outputs(view)]


def shortest_residuals(
    matrix: Float64Array, gradients: Float64Array, batches: Sequence[Int64Array]
) -> list[Float64Array]:
    """For each batch of the first epoch, minus the shortest residuals that give its gradient, for each model."""
    solved = (np.linalg.lstsq(matrix[rows].T, gradients[step].T, rcond=None)[0] for step, rows in enumerate(batches))
    return [-residuals.T for residuals in solved]


def why_no_regression(view: View) -> str | None:
    """Why a view holds no regression of classes with columns and batches of the attacker; None if it does."""
    if not isinstance(view.own.model, GeneralisedLinearModel):
        return Inapplicable("it reads the coefficients of a regression")
    if view.own.model.design_ is None:
        return Inapplicable("the attacker has no columns of its own")
    if view.grant.n_classes != n_outputs(view) + 1:
        return Inapplicable(f"it tells {n_outputs(view) + 1} classes apart and this run has {view.grant.n_classes}")
    if EncryptedResiduals in view.needs.messages and not first_batches(view):
        return "no batches of the first epoch were kept"
    return None
