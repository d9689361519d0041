import numpy as np
import pytest

from colonnade.errors import DataError
from colonnade.storage import pack, unpack
from colonnade.tables.encode import Inputs, centred, filled
from colonnade.tables.table import Table

TABLE = Table.of(
    {
        "id": range(5),
        "income": [1.0, 3.0, None, 5.0, 100.0],
        "job": ["cook", None, "nurse", "cook", "pilot"],
        "flat": [2.0] * 5,
        "member": [True, False, None, True, True],
    },
    owner="shop",
)
TRAIN = np.arange(4)


def test_numbers_are_standardised_on_training_rows_and_missing_ones_are_flagged():
    inputs = Inputs.learned(TABLE, TRAIN)
    encoded = inputs.encode(TABLE)
    assert inputs.numeric == ("income", "flat", "member")
    assert inputs.flagged == ("income", "member")
    deviation = np.std([1, 3, 5])
    np.testing.assert_allclose(encoded[:, 0], [-2 / deviation, 0, 0, 2 / deviation, 97 / deviation], rtol=1e-6)
    np.testing.assert_array_equal(encoded[:, 1], 0)
    np.testing.assert_array_equal(encoded[:, 3], [0, 0, 1, 0, 0])


def test_missing_and_unseen_levels_get_code_zero():
    inputs = Inputs.learned(TABLE, TRAIN)
    np.testing.assert_array_equal(inputs.encode(TABLE)[:, -1], [1, 0, 2, 1, 0])
    assert inputs.level_counts == (3,)


def test_a_column_without_any_value_is_no_obstacle():
    table = Table.of({"id": [1, 2], "x": np.array([np.nan, np.nan])})
    inputs = Inputs.learned(table, np.arange(2))
    np.testing.assert_array_equal(inputs.encode(table), [[0, 1], [0, 1]])


def test_a_column_that_training_had_must_be_there():
    inputs = Inputs.learned(TABLE, TRAIN)
    with pytest.raises(
        DataError, match="shop trained with the column 'flat' but its table has only income, job, member"
    ):
        inputs.encode(TABLE.select(["income", "job", "member"]))


def test_inputs_come_back_from_disk():
    inputs = Inputs.learned(TABLE, TRAIN)
    np.testing.assert_array_equal(Inputs.of(unpack(pack(inputs.state()))).encode(TABLE), inputs.encode(TABLE))


def test_numbers_too_large_to_be_standardised_are_refused():
    words = r"shop's column 'x' should hold numbers whose mean .* but some are too large for that\. Make those missing"
    vast = Table.of({"id": range(3), "x": [1.0, 2.0, 1e300]}, owner="shop")
    with pytest.raises(DataError, match=words):
        Inputs.learned(vast, np.arange(3))
    inputs = Inputs.learned(vast, np.arange(2))
    with pytest.raises(DataError, match=words):
        inputs.encode(vast)
    assert inputs.encode(vast.take([0, 1])).tolist() == [[-1.0], [1.0]]


def test_one_hot_has_a_column_for_each_code_and_names_its_owner():
    table = Table.of({"id": [1, 2, 3], "age": [20.0, None, 40.0], "job": ["cook", None, "nurse"]}, owner="shop")
    numbers, owners = Inputs.learned(table, np.arange(3)).one_hot(table)
    assert numbers.tolist() == [[-1, 0, 0, 1, 0], [0, 1, 1, 0, 0], [1, 0, 0, 0, 1]]
    assert owners == ("age", "age", "job", "job", "job")


def test_plain_numbers_keep_the_order_and_the_units_of_the_columns():
    table = Table.of({"id": [1, 2, 3], "job": ["cook", None, "nurse"], "age": [20.0, None, 40.0]}, owner="shop")
    assert Inputs.learned(table, np.arange(3)).plain(table).tolist() == [[1, 20], [0, 30], [2, 40]]


def test_of_more_levels_than_allowed_the_commonest_are_kept_and_the_others_are_unknown():
    table = Table.of({"id": range(6), "job": ["cook", "pilot", "cook", "nurse", "nurse", "vet"]}, owner="shop")
    inputs = Inputs.learned(table, np.arange(6), most_levels=2)
    assert inputs.levels == {"job": ("cook", "nurse")}
    assert inputs.encode(table)[:, 0].tolist() == [1, 0, 1, 2, 2, 0]


def test_centred_columns_count_alike_whatever_their_kind_and_constant_ones_are_left_out():
    values, owners = centred(TABLE)
    assert owners == ("income", "job", "job", "job", "member")
    of = {name: values[:, np.array(owners) == name] for name in owners}
    for numbers in of.values():
        assert np.nanmean(numbers, axis=0) == pytest.approx(0, abs=1e-12)
        assert np.nanvar(numbers, axis=0).sum() == pytest.approx(1)
    assert np.isnan(of["job"]).all(axis=1).tolist() == [False, True, False, False, False]
    assert np.isnan(values[2]).tolist() == [True, False, False, False, True]


def test_gaps_are_filled_with_the_mean_and_flagged_once_for_each_pattern():
    numbers = filled(TABLE)
    assert np.isfinite(numbers).all()
    # Five numbers; income and member lack the same row, job another.
    assert numbers.shape == (5, 7)
    assert numbers.mean(axis=0)[5:] == pytest.approx(0, abs=1e-12)
