"""One person has one id however two organisations write it, and two people never share one by accident."""

import unicodedata

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from colonnade.align.identifiers import Identifiers, as_text, normalised
from colonnade.errors import DataError, PlanError
from colonnade.table import Table

SALT = bytes(32)


def read(values, rule):
    return normalised(pa.array(values), rule).to_pylist()


def digests(ids, table, key=0, salt=SALT):
    parts = list(ids.digests(table, key, salt))
    rows = np.concatenate([rows for _, rows in parts]).tolist()
    return dict(zip(rows, (bytes(d) for part, _ in parts for d in part), strict=True))


@given(st.lists(st.text()))
@example(["\x1c a\x0b\x0cb ", "ß", "İ", "ﬁ", "\u00a0x", "Å", "A\u030a", ""])
def test_text_is_read_alike_one_by_one_and_all_at_once(values):
    assert read(pa.array(values, pa.large_string()), "text") == [as_text(value) or None for value in values]


@given(st.text())
def test_reading_text_twice_changes_nothing(value):
    assert as_text(as_text(value)) == as_text(value)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Ann Lee", "  ann   LEE\n"),
        ("Strasse", "STRAßE"),
        ("ﬁnn", "finn"),
        ("Zoë", "Zoe\u0308"),
        ("\uff11\uff12", "12"),
    ],
)
def test_texts_that_mean_the_same_are_the_same(one, other):
    assert read([one], "text") == read([other], "text")


def test_leading_zeros_count_in_text_and_not_in_integers():
    assert read(["007", "7"], "text") == ["007", "7"]
    assert read(["007", "7", " +7 ", "-0", "-07", "seven", "7.0", "", None], "integer") == [
        "7", "7", "7", "0", "-7", None, None, None, None,
    ]  # fmt: skip
    assert read([7, None], "integer") == ["7", None]


def test_exact_keeps_numbers_and_text_apart():
    assert read([7], "exact") != read(["7"], "exact")
    assert read(["A ", "a"], "exact") != read(["A", "a"], "exact")
    assert read(["", None], "exact") == [None, None]


def test_what_is_no_address_is_no_id():
    assert read([" Ann@Example.COM", "ann.example.com", "a@b@c", "@b", "a b@c", None], "email") == [
        "ann@example.com", None, None, None, None, None,
    ]  # fmt: skip


def test_telephone_numbers_are_written_in_one_way():
    written = ["+41 (0)79 123 45 67", "0041 79 123 45 67", "079/123.45.67", "79 123 45 67", "+41791234567"]
    assert set(read(written, "phone:41")) == {"+41791234567"}
    assert read(["12", "no number", "+41" + "7" * 20, "", None], "phone:41") == [None] * 5
    assert read([791234567], "phone:41") == ["+41791234567"]
    assert read(["06 1234567", "+39 06 1234567", "0039061234567"], "phone:39") == ["+39061234567"] * 3


def test_parts_of_a_composite_key_do_not_run_together():
    table = Table.of({"id": [1, 2, 3], "a": ["ab", "a", None], "b": ["c", "bc", "x"]})
    found = digests(Identifiers(("text+text",), ("a+b",)), table)
    assert sorted(found) == [0, 1]
    assert found[0] != found[1]


def test_digests_depend_on_the_salt_the_rules_and_the_key():
    table = Table.of({"id": ["7"], "other": ["7"]})
    text = digests(Identifiers(("text",), ("id",)), table)[0]
    assert digests(Identifiers(("text",), ("other",)), table)[0] == text
    assert digests(Identifiers(("integer",), ("id",)), table)[0] != text
    assert digests(Identifiers(("text",), ("id",)), table, salt=b"1" * 32)[0] != text
    assert digests(Identifiers(("text", "text"), ("id", "other")), table, key=1)[0] != text


def test_rows_are_counted_over_all_chunks_of_a_table():
    n = 150_000
    table = Table.of({"id": np.arange(n)})
    found = digests(Identifiers.of(table, None, None), table)
    assert sorted(found) == list(range(n))
    assert len(set(found.values())) == n


def test_the_hash_is_that_of_the_rules_and_not_of_the_columns():
    assert Identifiers(("text",), ("mail",)).hash == Identifiers(("text",), ("e_mail",)).hash
    assert Identifiers(("text",), ("mail",)).hash != Identifiers(("email",), ("mail",)).hash


def test_without_rules_whole_numbers_are_integers_and_the_rest_is_text():
    assert Identifiers.of(Table.of({"id": [1]}), None, None).keys == ("integer",)
    assert Identifiers.of(Table.of({"id": ["1"]}), None, None).keys == ("text",)


@pytest.mark.parametrize(
    ("keys", "columns", "said"),
    [
        ((), (), "at least one key, but none was named"),
        (("txet",), ("a",), "'txet' was named. The nearest name is 'text'"),
        (("phone",), ("a",), "as in 'phone:41', but is 'phone'"),
        (("text:x",), ("a",), "'text' takes nothing behind a colon"),
        (("text", "email"), ("a",), "Each of the 2 keys .* but 1 were named"),
        (("text+text",), ("a",), "has 2 parts, but 'a' names 1"),
    ],
)
def test_rules_that_cannot_be_followed_are_refused(keys, columns, said):
    with pytest.raises(PlanError, match=said):
        Identifiers(keys, columns)


def test_several_keys_without_columns_are_refused():
    with pytest.raises(PlanError, match=r"The keys email, text need columns, but bank named none"):
        Identifiers.of(Table.of({"id": ["a"]}, owner="bank"), ("email", "text"), None)


def test_a_column_that_is_not_there_is_refused_by_name():
    table = Table.of({"id": ["a"], "mail": ["b"]}, owner="bank")
    with pytest.raises(DataError, match=r"bank should be matched by its column 'mial'.*nearest name is 'mail'"):
        digests(Identifiers(("email",), ("mial",)), table)


def test_numbers_are_not_read_as_text_unasked():
    with pytest.raises(DataError, match=r"bank should bring text for the rule 'text', but its column 'no'"):
        normalised(pa.array([1]), "text", column="no", owner="bank")
    with pytest.raises(DataError, match=r"text or whole numbers, but its column 'ids' is of type double"):
        normalised(pa.array([1.5]), "text")


def test_nothing_that_is_compared_depends_on_how_accents_are_stored():
    for form in ("NFC", "NFD", "NFKC", "NFKD"):
        assert read([unicodedata.normalize(form, "Ångström Œuvre №5")], "text") == read(["ångström œuvre no5"], "text")
