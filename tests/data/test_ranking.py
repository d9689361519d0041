from __future__ import annotations

import numpy as np
import pytest

from colonnade.data.ranking import public_private
from colonnade.errors import DataError, PlanError
from colonnade.tables.table import Table


@pytest.mark.parametrize("by", ["shap", "importance", "mutual-information"])
def test_the_columns_that_tell_most_stay_private(by):
    """Of ten columns two decide the label; each ranking finds them."""
    generator = np.random.default_rng(0)
    x = generator.standard_normal((600, 10))
    telling = {f"c{i}": x[:, i] for i in range(10)}
    table = Table.of(
        {"id": np.arange(600), "y": (x[:, 3] + x[:, 7] > 0).astype(int), **telling}, labels="y", owner="bank"
    )
    partition = public_private(table, private=0.2, by=by)
    assert partition.private == ("c3", "c7")
    assert set(partition.public) | set(partition.private) == set(table.columns)
    ranked = partition.table()
    assert set(ranked.column("column").to_pylist()[:2]) == {"c3", "c7"}
    assert ranked.column("side").to_pylist().count("private") == 2


def test_whole_numbers_are_ranked_as_classes_unless_the_task_is_a_regression():
    generator = np.random.default_rng(0)
    x = generator.standard_normal((300, 4))
    counts = np.rint(10 * x[:, 1]).astype(int)
    columns = {f"c{i}": x[:, i] for i in range(4)}
    table = Table.of({"id": range(300), "visits": counts, **columns}, labels="visits", owner="bank")
    measured = public_private(table.with_labels(counts.astype(float)), private=0.25)
    assert public_private(table, private=0.25, task="regression") == measured
    assert public_private(table, private=0.25).scores != measured.scores


@pytest.mark.slow
def test_a_small_network_ranks_columns_too():
    generator = np.random.default_rng(0)
    x = generator.standard_normal((400, 6))
    columns = {f"c{i}": x[:, i] for i in range(6)}
    table = Table.of({"id": np.arange(400), "y": (x[:, 2] > 0).astype(int), **columns}, labels="y", owner="bank")
    assert public_private(table, private=0.17, by="shap-net").private == ("c2",)


@pytest.mark.parametrize("by", ["shap", "importance", "mutual-information", "random"])
def test_text_missing_values_and_numbers_as_labels_can_be_ranked(by):
    generator = np.random.default_rng(1)
    job = generator.choice(["cook", "nurse", "pilot"], 300)
    age = np.where(generator.random(300) < 0.1, np.nan, generator.normal(40, 9, 300))
    income = 10.0 * (job == "pilot") + generator.normal(size=300)
    data = {"id": range(300), "age": age, "job": job, "member": generator.random(300) < 0.5, "income": income}
    partition = public_private(Table.of(data, labels="income", owner="bank"), private=0.34, by=by)
    assert by == "random" or partition.private == ("job",)


def test_a_ranking_at_random_follows_from_its_seed():
    table = Table.of({"id": range(4), "y": [0, 1, 0, 1], **{f"c{i}": range(4) for i in range(40)}}, labels="y")
    first, again, other = (public_private(table, by="random", seed=seed).private for seed in (1, 1, 2))
    assert first == again != other


@pytest.mark.parametrize(
    ("table", "settings", "error", "words"),
    [
        ({"y": [0, 1], "a": [1, 2]}, {}, DataError, r"but 20% of 1 are 0. Change the share, or bring more columns"),
        ({"y": [0, 1], "a": [1, 2], "b": [1, 2]}, {"private": 0.9}, DataError, "but 90% of 2 are 2"),
        (
            {"y": [0, 1], "a": [1, 2]},
            {"private": 1.0},
            PlanError,
            "private, the share of columns, should lie between 0 and 1",
        ),
        ({"y": [0, 1], "a": [1, 2]}, {"by": "luck"}, PlanError, "Columns are ranked by one of shap, shap-net, "),
    ],
)
def test_a_partition_that_leaves_a_side_empty_is_refused(table, settings, error, words):
    with pytest.raises(error, match=words):
        public_private(Table.of({"id": [1, 2], **table}, labels="y", owner="bank"), **settings)


@pytest.mark.parametrize("by", ["mutual-information", "importance"])
@pytest.mark.parametrize("labels", [[0, 1], [0, 1, 2, 3, 4], [0.5, 1.5, 2.5]])
def test_columns_are_not_ranked_on_next_to_no_rows(by, labels):
    n = len(labels)
    columns = {f"x{i}": np.random.default_rng(i).standard_normal(n) for i in range(5)}
    table = Table.of({"id": range(n), **columns, "y": labels}, labels="y", owner="bank")
    of_class = ", at most 1 of one class" if isinstance(labels[0], int) else ""
    words = rf"bank should have at least 4 rows, and of some class two, .* but has {n} rows{of_class}\. Bring more"
    with pytest.raises(DataError, match=words):
        public_private(table, by=by)
    assert len(public_private(table, by="random").private) == 1


def test_columns_cannot_be_ranked_without_labels():
    with pytest.raises(DataError, match="bank's columns are ranked by what they say about labels, but it has none"):
        public_private(Table.of({"id": [1, 2], "a": [1, 2], "b": [1, 2]}, owner="bank"))
