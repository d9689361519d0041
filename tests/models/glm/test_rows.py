"""What a worker computes of a partition keeps what noise and limits over runs rely on."""

import numpy as np
import pytest
from scipy.sparse import csr_array

from colonnade.models.glm.gradient_privacy import GradientPrivacy
from colonnade.models.glm.rows import BatchedRows, column_digest, quantised
from colonnade.tables.placement import InMemory

BITS = 10
WHOLE = [np.arange(8)]


def rows(seed=0):
    return 3 * np.random.default_rng(seed).standard_normal((8, 3))


def placed(matrix, *, cut=4):
    return BatchedRows(InMemory((0, cut, 8), [matrix[:cut], matrix[cut:]]), (range(2),))


@pytest.mark.parametrize("kind", [np.asarray, csr_array])
def test_no_row_is_longer_than_noise_is_made_for_once_it_is_an_integer(kind):
    """Rounding to the nearest integer would make rows longer than they were clipped to."""
    noise, whole = GradientPrivacy(epsilon=1.0, clip=1.0), 0
    for seed in range(40):
        x = placed(kind(rows(seed)))
        parts = quantised(x, np.zeros(0), np.full(3, BITS), noise, intercept=False).parts.map(
            lambda part: part.integers
        )
        found = np.vstack([part if isinstance(part, np.ndarray) else part.toarray() for part in parts])
        lengths = np.linalg.norm(found.astype(float), axis=1)
        assert lengths.max() <= 2.0**BITS
        whole += (lengths > 2.0**BITS - 2).sum()
    # Rows that are clipped stand at the bound, so that a longer one would show.
    assert whole > 100


def test_other_columns_and_other_batches_of_the_same_columns_are_told_apart():
    """Both give other equations in the labels, and a limit over runs counts them again."""
    halves = [np.arange(4), np.arange(4, 8)]
    digests = {
        column_digest(placed(rows()), (8, 3), WHOLE),
        column_digest(placed(rows(1)), (8, 3), WHOLE),
        column_digest(placed(rows()), (8, 3), halves),
        column_digest(placed(rows()), (8, 3), [halves[0][::-1], halves[1]]),
    }
    assert len(digests) == 4


def test_the_one_batch_of_all_rows_is_alike_in_any_order_of_numbers():
    assert column_digest(placed(rows()), (8, 3), WHOLE) == column_digest(placed(rows()), (8, 3), [np.arange(8)[::-1]])
