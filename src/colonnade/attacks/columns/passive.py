"""Passive reconstruction: a regression from embeddings to columns, learned from a few known records.

An embedding is a function of a row's columns. An attacker that knows some records sees pairs of embedding and record,
fits a ridge regression to them, and applies it to the embeddings of all other rows. It changes nothing in the run.

The baseline of every stronger attack on columns: most of their power lies in these pairs.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar, Literal, Self

import numpy as np

from colonnade.attacks.base import Attack, Grant, Guess, Inapplicable, Needs, View
from colonnade.attacks.points import Points
from colonnade.models.networks.messages import Embedding
from colonnade.parameters import Limit, check_parameters, choice
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


class EpochRidge(PassiveRidge):
    """Each column is a linear function of what several epochs tell of a row together.

    A defence that draws anew for each epoch falls to the mean, one that draws once to the difference of two epochs. A
    sign that flips from epoch to epoch tells by its mean how near a row is to the sign's border.

    Args:
        read: The "mean" over all epochs, or the "difference" between a row's last embedding and its first.

    >>> EpochRidge(read="difference").needs.known_records
    50
    """

    needs = replace(PassiveRidge.needs, inference_rows=False)
    limits: ClassVar[Mapping[str, Limit]] = {"read": choice("mean", "difference")}

    def __init__(self, *, read: Literal["mean", "difference"] = "mean") -> None:
        self.read = read
        check_parameters(self)

    @classmethod
    def variants(cls) -> Sequence[Self]:
        return cls(), cls(read="difference")

    def why_not(self, view: View) -> str | None:
        if not any(each.epoch for each in view.messages(Embedding, peer=view.grant.owner, sent=False)):
            return f"it received embeddings of only one epoch from {view.grant.owner}"
        return super().why_not(view)

    def points(self, view: View) -> Points:
        owner = view.grant.owner
        if self.read == "mean":
            means = view.row_means(Embedding, peer=owner, sent=False).astype(np.float64)
            rows = np.flatnonzero(np.isfinite(means).all(axis=1))
            return Points(rows, means[rows])
        first = Points.of_embeddings(view, received_from=owner, when="first")
        last = Points.of_embeddings(view, received_from=owner)
        rows = np.intersect1d(first.rows, last.rows)
        return Points(rows, last.at(rows) - first.at(rows))


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
