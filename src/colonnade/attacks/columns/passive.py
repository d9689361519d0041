"""Passive reconstruction: a regression from embeddings to columns, learned from a few known records.

An embedding is a function of a row's columns. An attacker that knows some records sees pairs of embedding and record,
fits a ridge regression to them, and applies it to the embeddings of all other rows. It changes nothing in the run.

The baseline of every stronger attack on columns: most of their power lies in these pairs.
"""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import ClassVar

import numpy as np

from colonnade.attacks.base import Attack, Grant, Guess, Inapplicable, Needs, View
from colonnade.attacks.points import Points
from colonnade.models.networks.messages import Embedding
from colonnade.secret import Secret
from colonnade.tables.encode import filled_with_labels
from colonnade.wire.message import Float64Array

KNOWN_RECORDS = 50
PENALTIES = np.logspace(-3, 3, 13)


class PassiveRidge(Attack):
    """Each column is a linear function of the embedding, fitted by ridge regression to a few known records.

    Attributes:
        received: What records are predicted from, in words.

    >>> PassiveRidge().needs.known_records
    50
    """

    needs = Needs(messages=(Embedding,), known_records=KNOWN_RECORDS, inference_rows=True)
    about = Secret.FEATURES
    received: ClassVar[str] = "embeddings"

    def why_not(self, view: View) -> str | None:
        return why_not_regressed(self.points(view), view, self.received)

    def guess(self, view: View) -> Guess:
        return ridge_guess(self.points(view), view.grant)

    def points(self, view: View) -> Points:
        """What each row's record is predicted from."""
        return Points.of_embeddings(view, received_from=view.grant.owner)


class InformedRidge(PassiveRidge):
    """Each column is a linear function of the embedding and of the attacker's own columns and labels."""

    needs = replace(PassiveRidge.needs, own_features=True)

    def points(self, view: View) -> Points:
        points = super().points(view)
        own = filled_with_labels(view.own.table)[points.rows]
        return Points(points.rows, np.concatenate([points.values, own], axis=1))


def ridge_guess(points: Points, grant: Grant) -> Guess:
    """A guess of every point's record, by a ridge regression that is fitted to the known records."""
    points = points.standardised()
    has_point = np.isin(grant.rows, points.rows)
    known = np.searchsorted(points.rows, grant.rows[has_point])
    weights, intercept = ridge(points.values[known], grant.records[has_point])
    return Guess(points.rows, values=points.values @ weights + intercept)


def ridge(x: Float64Array, records: Float64Array) -> tuple[Float64Array, Float64Array]:
    """The weights (numbers, numbers of a record) and the intercept of a ridge regression, penalised by column."""
    from sklearn.linear_model import RidgeCV

    with warnings.catch_warnings():
        # An ill-conditioned fit is a weak one, and counts as it is.
        warnings.simplefilter("ignore")
        fitted = RidgeCV(PENALTIES, alpha_per_target=True).fit(x, records)
    return np.atleast_2d(fitted.coef_).T, np.atleast_1d(fitted.intercept_)


def why_not_regressed(points: Points, view: View, called: str) -> str | None:
    """Why points of an owner's rows cannot be regressed on known records; None if they can."""
    if not len(points.rows):
        return Inapplicable(f"it received no {called} from {view.grant.owner}")
    n_known = int(np.isin(view.grant.rows, points.rows).sum())
    return f"it received {called} of only {n_known} known records" if n_known < 2 else None
