"""Binary columns: where embeddings are linear in columns, every column of two values lies in the space they span.

    unknown      b in {0, 1}^n, a column up to its two values
    equations    b = Z a + c, for embeddings Z = X W with any W
    search       r rows that determine the others, r the rank of [Z, 1]; each of their 2^r patterns is tried on all rows

A pattern that is 0 or 1 on every row is hardly there by accident: it is a column. A few known records say which one.

Ye et al. 2022, "Feature reconstruction attacks and countermeasures of DNN training in vertical federated learning".
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from colonnade.attacks.base import Attack, ExampleRun, Guess, Needs, View
from colonnade.attacks.columns.passive import KNOWN_RECORDS, why_not_regressed
from colonnade.attacks.points import Points
from colonnade.models.networks.messages import Embedding
from colonnade.secret import Secret
from colonnade.wire.message import Float64Array

MOST_RANK = 14
_RANK, _CLOSE, _FIRST_ROWS = 1e-5, 1e-2, 64


class BinaryColumns(Attack):
    """A column of two values is one of those that embeddings linear in the columns allow.

    >>> BinaryColumns().needs.known_records
    50
    """

    needs = Needs(messages=(Embedding,), known_records=KNOWN_RECORDS, inference_rows=True)
    about = Secret.FEATURES
    example_run = ExampleRun("one-shot")

    def why_not(self, view: View) -> str | None:
        points = Points.of_embeddings(view, received_from=view.grant.owner)
        if reason := why_not_regressed(points, view, "embeddings"):
            return reason
        rank = np.linalg.matrix_rank(_with_constant(points), rtol=_RANK)
        return f"embeddings have rank {rank}, and patterns are tried up to {MOST_RANK}" if rank > MOST_RANK else None

    def guess(self, view: View) -> Guess:
        points, grant = Points.of_embeddings(view, received_from=view.grant.owner), view.grant
        found = binary_columns(_with_constant(points))
        has_point = np.isin(grant.rows, points.rows)
        known, records = np.searchsorted(points.rows, grant.rows[has_point]), grant.records[has_point]
        values = np.zeros((len(points.rows), records.shape[1]))
        for place, record in enumerate(records.T):
            told = np.unique(record)
            if len(told) == 2:
                fits = (found[:, known] == (record == told[1])).all(axis=1)
                if fits.any():
                    values[:, place] = told[found[fits.argmax()].astype(np.int64)]
        return Guess(points.rows, values=values)


def _with_constant(points: Points) -> Float64Array:
    return np.concatenate([points.standardised().values, np.ones((len(points.rows), 1))], axis=1)


def binary_columns(spanning: Float64Array) -> NDArray[np.bool_]:
    """All vectors of zeros and ones, constant ones excepted, in the space that some columns span; one in each row.

    >>> hidden = np.array([[0, 0, 1, 1, 0, 1.0], [0, 1, 1, 0, 0, 0.0]]).T
    >>> spanning = np.column_stack([hidden @ [[0.3, 1.2], [-2.0, 0.7]], np.ones(6)])
    >>> sorted(binary_columns(spanning).astype(int).tolist())[:2]
    [[0, 0, 1, 1, 0, 1], [0, 1, 1, 0, 0, 0]]
    """
    from scipy.linalg import qr

    directions, sizes, _ = np.linalg.svd(spanning, full_matrices=False)
    basis = directions[:, sizes > _RANK * sizes[0]]
    rank = basis.shape[1]
    # Rows that determine all others as well as any do.
    chosen = np.sort(qr(basis.T, mode="r", pivoting=True)[1][:rank])
    patterns = (np.arange(2**rank)[:, None] >> np.arange(rank)) & 1
    weights = np.linalg.solve(basis[chosen], patterns.T.astype(np.float64))
    # Most patterns fail on the first rows already.
    for rows in (slice(0, _FIRST_ROWS), slice(None)):
        made = basis[rows] @ weights
        weights = weights[:, (np.abs(made - np.round(np.clip(made, 0, 1))) < _CLOSE).all(axis=0)]
    made = np.round(basis @ weights).T.astype(np.bool_)
    return np.asarray(made[made.any(axis=1) & ~made.all(axis=1)], np.bool_)
