"""What the doctor says of columns and labels."""

import numpy as np
import pyarrow as pa
import pytest

from colonnade.deploy.doctor.columns import odd_columns, odd_labels, told_labels
from colonnade.tables.table import Table

N = 40


@pytest.mark.parametrize(
    ("values", "words", "fix"),
    [
        (
            [f"{i},50" for i in range(N)],
            "40 levels in 40 rows, which look like numbers with a decimal comma",
            "decimal",
        ),
        ([f"1,{i:03}" for i in range(N)], "look like numbers whose thousands are set apart", "thousands"),
        ([f"{1 + i % 28}.01.2001" for i in range(N)], "which look like dates", 'dates = ["%d.%m.%Y"]'),
        ([f"{i} €" for i in range(N)], "which look like numbers with a unit", "unit"),
        ([*map(str, range(N - 2)), "?", "?"], 'all numbers but for "?"', 'missing = ["?"]'),
        ([f"name {i}" for i in range(N)], "nearly one for each row", "exclude"),
        (list(range(N)), "'x' counts the rows", "exclude = ['x']"),
    ],
)
def test_columns_that_are_not_what_they_seem_are_noted_with_what_to_write(values, words, fix):
    ((said, advice),) = odd_columns(Table.of({"id": range(N), "x": values}))
    assert words in said
    assert fix in advice


def test_nothing_is_said_of_plain_columns():
    rng = np.random.default_rng(0)
    plain = {"job": rng.choice(["cook", "nurse"], N), "age": rng.integers(20, 60, N), "income": rng.normal(size=N)}
    assert list(odd_columns(Table.of({"id": range(N), **plain, "none": [None] * N}))) == []


def test_classes_are_told_with_their_counts_and_look_alikes_are_noted():
    labels = pa.chunked_array([["no"] * 20 + ["yes"] * 15 + ["YES"] * 4 + [" yes"]])
    assert told_labels(labels) == "'no' 20, 'yes' 15, 'YES' 4, ' yes' 1"
    assert list(odd_labels(labels)) == [
        "'yes' and 'YES' and ' yes' are different classes, though they differ by case or spaces only",
        "class 'YES' has 4 of 40 rows",
        "class ' yes' has 1 of 40 rows",
    ]
    assert told_labels(pa.chunked_array([np.arange(50.0)])) == "50 different values in 50 rows"
    assert list(odd_labels(pa.chunked_array([np.arange(50.0)]))) == []
