"""Copies: an inner join where several rows have one id, every row of one party with every row of the others."""

from __future__ import annotations

import numpy as np

from colonnade.align.buckets import Rows


def expanded(counts: Rows, own: int) -> tuple[Rows, Rows]:
    """For each combination of rows, which id it is of, and which of the own rows with that id is in it.

    Args:
        counts: How many rows each party has for each id, one column per party.
        own: Which column is the own one.

    >>> expanded(np.array([[2, 1], [1, 2]]), own=0)
    (array([0, 0, 1, 1]), array([0, 1, 0, 0]))
    """
    each = counts.prod(axis=1)
    ids = np.repeat(np.arange(len(counts)), each)
    number = np.arange(each.sum()) - np.repeat(np.cumsum(each) - each, each)
    after = counts[:, own + 1 :].prod(axis=1)
    return ids, (number // after[ids]) % counts[ids, own]
