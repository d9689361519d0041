import numpy as np
import pytest

from colonnade.models.batches import Batches, fixed_batches, hold_out, ordered_batches
from colonnade.privacy.randomness import PublicRandomness


def test_every_epoch_uses_every_row_once_in_another_order():
    batches = Batches(np.arange(10, 31), 4, PublicRandomness.seeded(0))
    epochs = [np.concatenate([batches.at(e * batches.per_epoch + b)[1] for b in range(5)]) for e in range(2)]
    assert [sorted(rows) for rows in epochs] == [list(range(10, 31))] * 2
    assert not np.array_equal(*epochs)
    assert batches.at(9)[0] == 1
    assert batches.at(10)[0] == 2


@pytest.mark.parametrize("n_rows", range(1, 12))
def test_a_row_is_trained_on_alone_only_where_batches_are_of_one_row_or_there_is_no_other(n_rows):
    for size in range(1, 13):
        batches = Batches(np.arange(n_rows), size, PublicRandomness.seeded(0))
        sizes = [len(batches.at(step)[1]) for step in range(batches.per_epoch)]
        assert sum(sizes) == n_rows
        assert all(each == size for each in sizes[:-1])
        assert sizes[-1] <= size + 1
        assert sizes[-1] > 1 or size == 1 or n_rows == 1


def test_the_schedule_follows_from_the_shared_randomness_alone():
    one, other = (Batches(np.arange(9), 2, PublicRandomness.seeded(5)) for _ in range(2))
    other.at(40)
    np.testing.assert_array_equal(one.at(7)[1], other.at(7)[1])


@pytest.mark.parametrize(("size", "sizes"), [(None, [4, 3, 3]), (2, [2] * 5), (9, [4, 3, 3])])
def test_no_fixed_batch_has_more_rows_than_an_encrypted_product_sums_over(size, sizes):
    batches = fixed_batches(10, size, PublicRandomness.seeded(0), most=4)
    assert [len(rows) for rows in batches] == sizes
    assert sorted(np.concatenate(batches)) == list(range(10))


def test_held_out_rows_are_not_trained_on():
    train, held_out = hold_out(50, 0.2, PublicRandomness.seeded(1))
    assert len(held_out) == 10
    assert sorted([*train, *held_out]) == list(range(50))
    assert len(hold_out(50, 0.0, PublicRandomness.seeded(1))[1]) == 0


def test_rows_in_order_cover_everything():
    assert [rows.tolist() for rows in ordered_batches(np.arange(5), 2)] == [[0, 1], [2, 3], [4]]
