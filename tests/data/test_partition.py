from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from colonnade.data.partition import extend, intersect, require_same_rows, split, train_test_split
from colonnade.errors import DataError, PlanError
from colonnade.tables.table import Table


def whole(n: int = 4) -> Table:
    rows = np.arange(n)
    return Table.of(
        {"id": rows, "income": rows * 10, "spend": rows * 1.5, "job": ["cook"] * n, "late": rows % 2}, labels="late"
    )


def test_a_split_gives_every_party_its_columns_and_one_the_labels():
    parts = split(whole(), {"bank": ["income", "job"], "shop": ["spend"]}, labels="bank")
    assert {party: table.columns for party, table in parts.items()} == {"bank": ("income", "job"), "shop": ("spend",)}
    assert {party: table.owner for party, table in parts.items()} == {"bank": "bank", "shop": "shop"}
    assert parts["bank"].labels.to_pylist() == [0, 1, 0, 1]
    assert parts["shop"].labels is None
    assert parts["shop"].ids.equals(parts["bank"].ids)
    assert "late" not in parts["shop"].to_arrow().column_names


def test_a_label_party_needs_no_column_of_its_own():
    parts = split(whole(), {"bank": [], "shop": ["spend"]}, labels="bank")
    assert parts["bank"].columns == ()
    assert parts["bank"].labels is not None


def test_labels_go_to_nobody_unless_a_party_is_named():
    assert split(whole(), {"shop": ["spend"]})["shop"].labels is None


def test_a_feature_party_without_a_column_is_refused():
    with pytest.raises(DataError) as error:
        split(whole(), {"bank": ["income"], "shop": []}, labels="bank")
    assert str(error.value) == (
        "Every party but the label party needs a column, but 'shop' has none. Give it one or leave it out."
    )


def test_a_column_given_to_two_parties_is_refused():
    with pytest.raises(DataError) as error:
        split(whole(), {"bank": ["income"], "shop": ["spend", "income"]}, labels="bank")
    assert str(error.value) == (
        "A column belongs to one party, but 'income' is given to 'bank' and 'shop'. Name it once."
    )


def test_splitting_an_unknown_column_is_refused_with_the_nearest_name():
    with pytest.raises(DataError, match=r"a column 'incom', but none of its 3 columns .* nearest name is 'income'\."):
        split(whole(), {"bank": ["incom"]}, labels="bank")


def test_the_label_column_cannot_be_given_as_a_feature():
    with pytest.raises(DataError, match="a column 'late'"):
        split(whole(), {"bank": ["income"], "shop": ["late"]}, labels="bank")


def test_labels_for_an_unknown_party_are_refused():
    with pytest.raises(DataError) as error:
        split(whole(), {"bank": ["income"], "shop": ["spend"]}, labels="bnak")
    assert str(error.value) == (
        "The labels were to go to 'bnak', but the parties are 'bank', 'shop'. The nearest name is 'bank'. Name one of "
        "them, or give the label party an empty list of columns."
    )


def test_a_label_party_without_labels_is_refused():
    with pytest.raises(DataError) as error:
        split(whole().without_labels(), {"bank": ["income"]}, labels="bank")
    assert str(error.value) == "The labels were to go to 'bank', but the table has none. Name its label column first."


@given(held=st.lists(st.text("ab", max_size=3), unique=True, min_size=1), data=st.data())
@settings(max_examples=60, deadline=None)
def test_the_intersection_is_that_of_the_sets(held, data):
    tables = {}
    for party in ("bank", "shop", "telco"):
        own = data.draw(st.permutations([*held, *data.draw(st.lists(st.text("xyz", min_size=1), unique=True))]))
        tables[party] = Table.of({"id": own, "text": own}, owner=None)
    expected = sorted(set.intersection(*(set(table.ids.to_pylist()) for table in tables.values())))
    for party, table in intersect(tables).items():
        assert table.ids.to_pylist() == expected
        assert table.column("text").tolist() == expected
        assert table.owner == party


def test_common_rows_of_integer_ids_are_in_numeric_order():
    tables = {"bank": Table.of({"id": [10, 9, 2]}), "shop": Table.of({"id": [2, 11, 10]})}
    assert intersect(tables)["shop"].ids.to_pylist() == [2, 10]


def test_parties_without_a_common_id_are_refused_with_their_row_counts():
    with pytest.raises(DataError) as error:
        intersect({"bank": Table.of({"id": [1, 2]}), "shop": Table.of({"id": [3]})})
    assert str(error.value) == (
        "Some ids must be held by all parties, but none is (bank has 2, shop has 1 rows). Check the id columns."
    )


def test_text_ids_do_not_meet_integer_ids():
    with pytest.raises(DataError) as error:
        intersect({"bank": Table.of({"id": [1]}), "shop": Table.of({"id": ["1"]})})
    assert str(error.value) == (
        "All parties need ids of one type, but bank has int64, shop has large_string. Convert the ids of one side, or "
        'align by a rule that reads both alike: in a plan by keys = ["integer"] under [align], if 007 and 7 are the '
        'same, and otherwise by ["exact"].'
    )


@pytest.mark.parametrize(("wrong", "text"), [([1, 1], "repeat an earlier id"), ([1, None], "needs an id")])
def test_an_intersection_of_unusable_ids_is_refused(wrong, text):
    with pytest.raises(DataError, match=f"shop's table .*{text}"):
        intersect({"bank": Table.of({"id": [1]}), "shop": Table.of({"id": wrong})})


def parties(n: int) -> dict[str, Table]:
    return split(whole(n), {"bank": ["income"], "shop": ["spend"]}, labels="bank")


@given(n=st.integers(2, 60), test=st.floats(0.01, 0.99), seed=st.integers(0, 99), stratify=st.booleans())
@settings(max_examples=80, deadline=None)
def test_training_and_test_rows_are_the_same_at_every_party_and_together_all(n, test, seed, stratify):
    train, held_out = train_test_split(parties(n), test=test, seed=seed, stratify=stratify)
    require_same_rows(train)
    require_same_rows(held_out)
    rows = train["bank"].ids.to_pylist(), held_out["bank"].ids.to_pylist()
    assert sorted([*rows[0], *rows[1]]) == list(range(n))
    assert len(rows[1]) == min(max(round(n * test), 1), n - 1)
    assert held_out["shop"].column("spend").tolist() == [1.5 * row for row in rows[1]]


def test_classes_keep_their_shares():
    rare = Table.of({"id": np.arange(1000), "y": (np.arange(1000) % 20 == 0).astype(int)}, labels="y")
    _, stratified = train_test_split({"shop": rare.without_labels(), "bank": rare}, test=0.2)
    assert stratified["bank"].labels.to_numpy().sum() == 10
    assert len(stratified["bank"]) == 200


@pytest.mark.parametrize("labels", [np.linspace(0, 1, 200), np.arange(200)], ids=["real numbers", "many integers"])
def test_labels_that_are_no_classes_are_cut_at_random(labels):
    table = Table.of({"id": np.arange(200), "y": labels}, labels="y")
    plain = train_test_split({"bank": table}, stratify=False)
    assert train_test_split({"bank": table})[1]["bank"].ids.equals(plain[1]["bank"].ids)


def test_a_cut_depends_on_the_seed_alone():
    cuts = [train_test_split(parties(100), seed=seed)[1]["bank"].id_digest() for seed in (0, 0, 1)]
    assert cuts[0] == cuts[1] != cuts[2]


@pytest.mark.parametrize("n_shop", [3, 4], ids=["fewer rows", "another order"])
def test_rows_that_differ_between_parties_are_refused_with_both_counts(n_shop):
    tables = {"bank": whole(4), "shop": whole(4).take([3, 2, 1, 0][:n_shop])}
    with pytest.raises(DataError) as error:
        train_test_split(tables)
    assert str(error.value) == (
        f"All parties need the same rows in the same order, but those of bank (4 rows) and shop ({n_shop} rows) "
        "differ. Align the tables first, in simulation with intersect."
    )


def test_one_row_cannot_be_cut():
    with pytest.raises(
        DataError, match=r"A train/test split needs at least two rows, but there are 1\. Give more rows\."
    ):
        train_test_split({"bank": whole(1)})


@pytest.mark.parametrize("share", [0, 1, -0.5, 20])
def test_a_share_that_is_none_is_refused(share):
    with pytest.raises(PlanError) as error:
        train_test_split({"bank": whole()}, test=share)
    assert str(error.value) == (f"test, the share of test rows, must lie between 0 and 1, but is {share}. Choose 0.25.")


def test_a_table_is_extended_to_another_partys_rows():
    bank = Table.of({"id": ["b", "a", "c"], "income": [2, 1, 3]})
    shop = Table.of({"id": ["c", "d", "b"], "spend": [30, 40, 20], "city": ["Bern", "Rom", None]})
    extended = extend({"bank": bank, "shop": shop}, to="bank")
    assert extended["shop"].ids.to_pylist() == ["b", "a", "c"]
    np.testing.assert_array_equal(extended["shop"].column("spend"), [20, np.nan, 30])
    assert extended["shop"].column("city").tolist() == [None, None, "Bern"]
    assert extended["bank"].column("income").tolist() == [2, 1, 3]


def test_tables_with_ids_of_different_types_are_not_extended():
    with pytest.raises(DataError, match="ids of one type, but bank has int64, shop has large_string"):
        extend({"bank": Table.of({"id": [1]}), "shop": Table.of({"id": ["1"], "x": [1]})}, to="bank")
