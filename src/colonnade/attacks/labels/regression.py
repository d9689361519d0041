"""Residue: what a party of a regression with an arbiter can compute from its own gradients and coefficients.

A gradient is X'z, with the party's own columns X and the residuals z of a batch. Of all residuals that give this
gradient least squares finds the shortest; with as many columns as rows it is the only one, which is why small batches
are refused. In the first epoch residuals are little else than the labels.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from colonnade.attacks.base import Attack, ExampleRun, Guess, Needs, View
from colonnade.models.glm.estimator import GeneralisedLinearModel
from colonnade.models.glm.messages import EncryptedResiduals
from colonnade.wire.message import Float64Array, Int64Array


class Residue(Attack):
    """A row's label is what the shortest residuals behind the first epoch's gradients say, with the sign changed."""

    needs = Needs(messages=(EncryptedResiduals,), own_features=True, own_model=True)
    example_run = ExampleRun("logistic-regression")

    def why_not(self, view: View) -> str | None:
        return why_no_regression(view) or (None if first_batches(view) else "no batches of the first epoch were kept")

    def guess(self, view: View) -> Guess:
        batches = first_batches(view)
        scores = shortest_residuals(own_matrix(view), own_regression(view).gradients_, batches)
        return Guess(np.concatenate(batches), scores=np.concatenate(scores))


class CoefficientScore(Attack):
    """A row's label is what the party's own columns and coefficients say."""

    needs = Needs(own_features=True, own_model=True)
    example_run = ExampleRun("logistic-regression")

    def why_not(self, view: View) -> str | None:
        return why_no_regression(view)

    def guess(self, view: View) -> Guess:
        matrix = own_matrix(view)
        return Guess(np.arange(len(matrix)), scores=matrix @ own_regression(view).coef_)


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


def first_batches(view: View) -> list[Int64Array]:
    """The rows of each batch of the first epoch."""
    recorded = view.messages(EncryptedResiduals, sent=False)
    return [each.rows for each in recorded if each.epoch == 0 and each.rows is not None]


def shortest_residuals(
    matrix: Float64Array, gradients: Float64Array, batches: Sequence[Int64Array]
) -> list[Float64Array]:
    """For each batch of the first epoch, minus the shortest residuals that give its gradient."""
    solved = (np.linalg.lstsq(matrix[rows].T, gradients[step], rcond=None)[0] for step, rows in enumerate(batches))
    return [-residuals for residuals in solved]


def why_no_regression(view: View) -> str | None:
    """Why a view holds no regression with two classes and columns of the attacker; None if it does."""
    if not isinstance(view.own.model, GeneralisedLinearModel):
        return "it reads the coefficients of a regression"
    if view.own.model.design_ is None:
        return "the attacker has no columns of its own"
    if view.grant.n_classes != 2:
        return f"it tells two classes apart and this run has {view.grant.n_classes}"
    return None
