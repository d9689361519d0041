"""Residue: what a party of a regression with an arbiter can compute from its own gradients and coefficients.

A gradient is X'z, with the party's own columns X and the residuals z of a batch. Of all residuals that give this
gradient least squares finds the shortest; with as many columns as rows it is the only one, which is why small batches
are refused. In the first epoch residuals are little else than the labels.
"""

from __future__ import annotations

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
        return _why_not(view) or (None if self._batches(view) else "no batches of the first epoch were kept")

    def guess(self, view: View) -> Guess:
        matrix, model = _matrix(view), _model(view)
        rows, scores = [], []
        for step, batch in enumerate(self._batches(view)):
            residuals = np.linalg.lstsq(matrix[batch].T, model.gradients_[step], rcond=None)[0]
            rows.append(batch)
            scores.append(-residuals)
        return Guess(np.concatenate(rows), scores=np.concatenate(scores))

    def _batches(self, view: View) -> list[Int64Array]:
        recorded = view.messages(EncryptedResiduals, sent=False)
        return [each.rows for each in recorded if each.epoch == 0 and each.rows is not None]


class CoefficientScore(Attack):
    """A row's label is what the party's own columns and coefficients say."""

    needs = Needs(own_features=True, own_model=True)
    example_run = ExampleRun("logistic-regression")

    def why_not(self, view: View) -> str | None:
        return _why_not(view)

    def guess(self, view: View) -> Guess:
        matrix = _matrix(view)
        return Guess(np.arange(len(matrix)), scores=matrix @ _model(view).coef_)


def _model(view: View) -> GeneralisedLinearModel:
    model = view.own.model
    assert isinstance(model, GeneralisedLinearModel)
    return model


def _matrix(view: View) -> Float64Array:
    design = _model(view).design_
    assert design is not None
    return design.matrix(view.own.table)


def _why_not(view: View) -> str | None:
    if not isinstance(view.own.model, GeneralisedLinearModel):
        return "it reads the coefficients of a regression"
    if view.own.model.design_ is None:
        return "the attacker has no columns of its own"
    if view.grant.n_classes != 2:
        return f"it tells two classes apart and this run has {view.grant.n_classes}"
    return None
