"""Copies: an inner join where several rows have one id, every row of one party with every row of the others."""

from __future__ import annotations

import numpy as np

from colonnade.align.buckets import Rows
from colonnade.errors import DataError

# So many rows take a few gigabytes, at every party.
MOST_ROWS = 1 << 27


def expanded(counts: Rows, own: int) -> tuple[Rows, Rows]:
    """For each combination of rows, which id it is of, and which of the own rows with that id is in it.

    Args:
        counts: How many rows each party has for each id, one column per party.
        own: Which column is the own one.

    >>> expanded(np.array([[2, 1], [1, 2]]), own=0)
    (array([0, 0, 1, 1]), array([0, 1, 0, 0]))
    """
    with np.errstate(over="ignore"):
        n_rows = counts.astype(float).prod(axis=1)  # whole numbers would wrap around
        total = n_rows.sum()
    if total > MOST_ROWS:
        most = int(n_rows.argmax())
        raise DataError(
            f"Rows that have one id should combine to at most {MOST_ROWS:,} rows with duplicates = 'all', but would to "
            f"{total:.3g}: of one id the parties have {' and '.join(f'{n:,}' for n in counts[most].tolist())} "
            "rows. That is most often an id which stands for none: leave it empty, or use duplicates = 'first'."
        )
    each = counts.prod(axis=1)
    ids = np.repeat(np.arange(len(counts)), each)
    number = np.arange(each.sum()) - np.repeat(np.cumsum(each) - each, each)
    after = counts[:, own + 1 :].prod(axis=1)
    return ids, (number // after[ids]) % counts[ids, own]
