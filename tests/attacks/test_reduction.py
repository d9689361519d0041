"""Lattice reduction: the same lattice, shorter vectors, and what is hidden in it comes out."""

import numpy as np
import pytest

from colonnade.attacks.labels.lattice import determined, solution
from colonnade.attacks.reduction import DELTA, reduced


def drawn(n, bits, seed):
    random = np.random.default_rng(seed)
    return random.integers(-(2**bits), 2**bits, (n, n))


def gram_schmidt(rows):
    """Coefficients and squared lengths, by QR in double precision."""
    r = np.linalg.qr(rows.T.astype(float))[1]
    lengths = np.diag(r)
    return (r / lengths[:, None]).T, lengths**2


@pytest.mark.parametrize("seed", range(5))
def test_lll_ends_with_rows_that_meet_its_conditions_and_span_the_same_lattice(seed):
    basis = drawn(20, 12, seed)
    rows = reduced(basis)
    change = rows @ np.linalg.inv(basis.astype(float))
    assert np.abs(change - np.rint(change)).max() < 1e-6
    assert abs(np.linalg.det(np.rint(change))) == pytest.approx(1.0)
    mu, norms = gram_schmidt(rows)
    assert np.abs(np.tril(mu, -1)).max() <= 0.5 + 1e-9
    for k in range(1, len(rows)):
        assert norms[k] >= (DELTA - mu[k, k - 1] ** 2) * norms[k - 1] * (1 - 1e-9)


@pytest.mark.parametrize("seed", range(5))
def test_a_planted_short_vector_is_found_as_the_first(seed):
    random = np.random.default_rng(seed)
    n, modulus = 24, 2**20
    short = np.r_[1, random.integers(-2, 3, n - 2), 1]
    # All v with v_last = h v modulo 2^20; the first number of h puts the planted vector among them.
    h = random.integers(0, modulus, n - 1)
    h[0] = (short[-1] - h[1:] @ short[1:-1]) % modulus
    basis = np.zeros((n, n), np.int64)
    basis[: n - 1, : n - 1] = np.eye(n - 1, dtype=np.int64)
    basis[: n - 1, n - 1] = h
    basis[n - 1, n - 1] = modulus
    found = reduced(basis, block=16, seconds=20)[0]
    assert (found**2).sum() <= (short**2).sum()


def test_larger_blocks_give_first_vectors_that_are_no_longer():
    basis = np.eye(50, dtype=np.int64)
    basis[0, 0], basis[1:, 0] = 2**30, np.random.default_rng(1).integers(0, 2**30, 49)
    lengths = [float((reduced(basis, block=block, seconds=30)[0] ** 2).sum()) for block in (2, 10, 20)]
    assert lengths[0] >= lengths[1] >= lengths[2]
    assert lengths[2] < lengths[0]


def test_sums_of_more_bits_than_rows_give_every_row_away():
    random = np.random.default_rng(0)
    columns = np.rint(random.normal(size=(40, 5)) * 2**16).astype(np.int64)
    chosen = random.integers(0, 2, 40)
    np.testing.assert_array_equal(solution(columns, chosen @ columns, seconds=20), chosen)


@pytest.mark.slow
def test_sums_that_no_choice_of_rows_has_give_nothing():
    columns = 2 * np.rint(np.random.default_rng(0).normal(size=(12, 3)) * 2**16).astype(np.int64)
    assert solution(columns, columns.sum(axis=0) + 1, seconds=5) is None


def test_sixty_four_rows_per_column_do_not_determine_the_labels():
    random = np.random.default_rng(0)
    for n_columns in (1, 2, 10):
        few = np.rint(random.normal(size=(11 * n_columns, n_columns)) * 2**16).astype(np.int64)
        many = np.rint(random.normal(size=(64 * n_columns, n_columns)) * 2**20).astype(np.int64)
        assert determined(few)
        assert not determined(many)
