import numpy as np
import pytest

from colonnade.errors import CryptoError
from colonnade.models.functional.moments_masked import (
    MomentBudget,
    fraction_bits,
    from_ring,
    ring_product,
    to_ring,
    uniform,
)
from colonnade.privacy.randomness import Randomness


def test_products_in_floating_point_are_exact_modulo_two_to_the_64():
    rng = np.random.default_rng(0)
    left, right = (rng.integers(0, 2**64, size=(3000, n), dtype=np.uint64) for n in (7, 5))
    np.testing.assert_array_equal(ring_product(left, right), left.T @ right)


def test_numbers_come_back_from_the_ring():
    values = np.array([[0.0, -1.5, 3.25, 1e5, -1e-9]])
    np.testing.assert_allclose(from_ring(to_ring(values, 20), 20), values, atol=2.0**-20)


def test_no_row_becomes_longer_by_rounding():
    rows = np.random.default_rng(1).normal(size=(1000, 20))
    rounded = from_ring(to_ring(rows, 8), 8)
    assert (np.linalg.norm(rounded, axis=1) <= np.linalg.norm(rows, axis=1)).all()


def test_masks_are_uniform_and_differ_by_path():
    random = Randomness.seeded(0)
    mask = uniform(random, (400, 50), "mask")
    bits = (mask[:, :, None] >> np.arange(64, dtype=np.uint64)) & np.uint64(1)
    assert np.abs(bits.mean(axis=(0, 1)) - 0.5).max() < 5 * 0.5 / np.sqrt(400 * 50)
    assert not np.array_equal(mask, uniform(random, (400, 50), "pad"))


def test_products_that_cannot_be_held_are_refused():
    assert fraction_bits(1.0) == 22
    with pytest.raises(CryptoError, match="should fit into 62 bits with 8 bits after the point, but do not"):
        fraction_bits(1e15)


def test_one_record_moves_squared_lengths_and_the_sum_of_outputs_no_further_than_the_budget_assumes():
    budget = MomentBudget(clip_x=3.0, clip_y=2.0, epsilon=1.0, delta=1e-5, inputs=4)
    # A record whose curves all lie at the radius, in the place of one whose curves are zero.
    assert budget.scalar_x.sensitivity >= 4 * 3.0**2
    assert budget.scalar_y.sensitivity >= 2.0**2
    # Two outputs at the radius on opposite sides, in the sum of all.
    assert budget.mean.sensitivity >= 2 * 2.0
