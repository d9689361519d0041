"""Passive reconstruction: a regression from embeddings to columns, learned from a few known records.

An embedding is a function of a row's columns. An attacker that knows some records sees pairs of embedding and record,
fits a ridge regression to them, and applies it to the embeddings of all other rows. It changes nothing in the run.

The baseline of every stronger attack on columns: most of their power lies in these pairs.
"""

from __future__ import annotations

import warnings

import numpy as np

from colonnade.attacks.base import Attack, Guess, Needs, View
from colonnade.attacks.points import Points
from colonnade.models.networks.messages import Embedding
from colonnade.secret import Secret

KNOWN_RECORDS = 50
PENALTIES = np.logspace(-3, 3, 13)


class PassiveRidge(Attack):
    """Each column is a linear function of the embedding, fitted by ridge regression to a few known records.

    >>> PassiveRidge().needs.known_records
    50
    """

    needs = Needs(messages=(Embedding,), known_records=KNOWN_RECORDS, inference_rows=True)
    about = Secret.FEATURES

    def why_not(self, view: View) -> str | None:
        points = Points.of_embeddings(view, received_from=view.grant.owner)
        if not len(points.rows):
            return f"it received no embeddings from {view.grant.owner}"
        n_known = int(np.isin(view.grant.rows, points.rows).sum())
        return f"it received embeddings of only {n_known} known records" if n_known < 2 else None

    def guess(self, view: View) -> Guess:
        from sklearn.linear_model import RidgeCV

        points = Points.of_embeddings(view, received_from=view.grant.owner).standardised()
        has_point = np.isin(view.grant.rows, points.rows)
        known = np.searchsorted(points.rows, view.grant.rows[has_point])
        with warnings.catch_warnings():
            # An ill-conditioned fit is a weak attack, and counts as it is.
            warnings.simplefilter("ignore")
            ridge = RidgeCV(PENALTIES, alpha_per_target=True).fit(points.values[known], view.grant.records[has_point])
        values = np.asarray(ridge.predict(points.values), np.float64).reshape(len(points.rows), -1)
        return Guess(points.rows, values=values)
