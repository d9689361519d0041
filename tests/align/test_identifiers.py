"""One person has one id however two organisations write it, and two people never share one by accident."""

import sys
import unicodedata

import numpy as np
import pyarrow as pa
import pytest
from blake3 import blake3
from hypothesis import example, given
from hypothesis import strategies as st

from colonnade.align.identifiers import Identifiers, as_text, normalised
from colonnade.errors import DataError, PlanError
from colonnade.tables.table import Table

SALT = bytes(32)


def read(values, rule):
    return normalised(pa.array(values), rule).to_pylist()


def digests(ids, table, key=0, salt=SALT):
    parts = list(ids.digests(table, key, salt))
    rows = np.concatenate([rows for _, rows in parts]).tolist()
    return dict(zip(rows, (bytes(d) for part, _ in parts for d in part), strict=True))


@given(st.lists(st.text()))
@example(["\x1c a\x0b\x0cb ", "ß", "İ", "ﬁ", "\u00a0x", "Å", "A\u030a", "", "\u200b", "e\u200b\u0301"])
def test_text_is_read_alike_one_by_one_and_all_at_once(values):
    assert read(pa.array(values, pa.large_string()), "text") == [as_text(value) or None for value in values]


@given(st.text())
@example("e\u200b\u0301")
@example("ŉ")
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
        ("\ufeffAnn\u200b Lee\u200e", "ann lee"),
        ("Müller\u00ad\u2010\u2011\u2013Lüdenscheidt", "müller---lüdenscheidt"),
        ("O\u2019Brien", "o'brien"),
        ("\u0661\u0662\u0663", "123"),
    ],
)
def test_texts_that_mean_the_same_are_the_same(one, other):
    assert read([one], "text") == read([other], "text")


def test_leading_zeros_count_in_text_and_not_in_integers():
    assert read(["007", "7"], "text") == ["007", "7"]
    assert read(["007", "7", " +7 ", "-0", "-07", "000", "7.0", "7.00"], "integer") == [
        "7", "7", "7", "0", "-7", "0", "7", "7",
    ]  # fmt: skip
    assert read(["\u22127", "\u0660\u0667", "\u200e7"], "integer") == ["-7", "7", "7"]
    assert read(["seven", "7.5", ".0", "7 8", "", None], "integer") == [None] * 6
    assert read([7, None], "integer") == ["7", None]


def test_whole_numbers_are_not_read_one_by_one():
    calls = []
    sys.setprofile(lambda frame, event, argument: calls.append(event))
    try:
        read(np.arange(5_000), "integer")
    finally:
        sys.setprofile(None)
    assert len(calls) < 5_000


def test_exact_keeps_text_as_it_stands_and_takes_a_number_for_its_digits():
    assert read([7, -7], "exact") == read(["7", "-7"], "exact") == ["7", "-7"]
    assert read(["007", "A ", "a", "\uff21", "\u200ba"], "exact") == ["007", "A ", "a", "\uff21", "\u200ba"]
    assert read(["", None], "exact") == [None, None]


@pytest.mark.parametrize(
    ("rule", "expected"), [("integer", "7"), ("exact", "7"), ("text", "7"), ("phone:41", "+41791234567")]
)
def test_whole_numbers_with_gaps_are_read_though_they_came_as_floats(rule, expected):
    number = 791234567.0 if rule == "phone:41" else 7.0
    assert read([number, float("nan"), None], rule) == [expected, None, None]


@pytest.mark.parametrize("rule", ["exact", "text", "integer", "email", "phone:41"])
@pytest.mark.parametrize("column", [[None, None], [float("nan")] * 2, pa.array([None, None], pa.int64())])
def test_a_column_without_a_single_value_has_no_ids(rule, column):
    table = Table.of({"id": [1, 2], "key": column})
    assert digests(Identifiers((rule,), ("key",)), table) == {}


def test_what_is_no_address_is_no_id():
    assert read([" Ann@Example.COM", "ann.example.com", "a@b@c", "@b", "a b@c", None], "email") == [
        "ann@example.com", None, None, None, None, None,
    ]  # fmt: skip
    assert read(["a@x.org; b@x.org", "Ann <a@x.org>, Bob <b@x.org>", "<>", "mailto:", "ann@."], "email") == [None] * 5


@pytest.mark.parametrize(
    "written",
    [
        "<ann@x.org>",
        "Ann Lee <Ann@x.org>",
        '"Lee, Ann" <ann@x.org>;',
        "mailto:ann@x.org",
        "<mailto:ann@x.org>",
        "MAILTO: ann@x.org",
        "mailto:ann@x.org?subject=hi&cc=bob@x.org",
        "ann@x.org,",
        "ann@x.org.",
        "'ann@x.org'",
        "(ann@x.org)",
        "an\u200bn@x.org",
        "\ufeffann@x.org",
    ],
)
def test_what_stands_around_an_address_does_not_count(written):
    assert read([written], "email") == ["ann@x.org"]


@pytest.mark.parametrize(
    ("rule", "number", "written"),
    [
        (
            "phone:41",
            "+41791234567",
            ["+41 (0)79 123 45 67", "0041 79 123 45 67", "079/123.45.67", "79 123 45 67", "+41791234567",
             "+41 079 123 45 67", "(+41) 79 123 45 67", "(0041) 79-123-45-67", "(079) 123 45 67", "41791234567",
             "+41 (0)079 123 45 67", "079\u2013123\u201145\u221267", "\u202a+41 79 123 45 67\u202c",
             "\u0660\u0667\u0669 \u0661\u0662\u0663 \u0664\u0665 \u0666\u0667",
             "\uff0b\uff14\uff11 79 123 45 67", "tel:+41791234567", "Tel: 079 123 45 67",
             "TEL.: 0791234567", "Tel 079 123 45 67", "791234567.0", "41791234567.0"],
        ),
        ("phone:41", "+41417901234", ["041 790 12 34", "41 790 12 34", "+41 41 790 12 34"]),
        ("phone:41", "+442079460958", ["+44 (0)20 7946 0958", "0044 020 7946 0958"]),
        ("phone:39", "+390612345678", ["+39 (0)6 1234 5678", "06 1234 5678", "0039 06 1234 5678", "390612345678"]),
        ("phone:41", "+390612345678", ["+39 (0)6 1234 5678", "0039 06 1234 5678"]),
        ("phone:39", "+393471234567", ["347 1234567", "+39 347 1234567", "393471234567"]),
        ("phone:1", "+14155552671", ["1-415-555-2671", "(415) 555-2671", "+1 415 555 2671", "1 (415) 555.2671"]),
        ("phone:7", "+74951234567", ["8 (495) 123-45-67", "+7 495 123-45-67", "495 123-45-67", "74951234567",
                                     "+7 (8) 495 123-45-67"]),
        ("phone:7", "+78121234567", ["812 123-45-67", "8 812 123-45-67"]),
        ("phone:7", "+78121234567", ["+7 812 123-45-67", "+7 8 812 123-45-67"]),
        ("phone:36", "+36301234567", ["06 30 123 4567", "+36 30 123 4567", "30 123 4567", "+36 (06) 30 123 4567",
                                      "0036 06 30 123 4567", "36 06 30 123 4567"]),
        ("phone:41", "+3611234567", ["+36 (06) 1 123 4567", "+36 1 123 4567"]),
        ("phone:43", "+434352123456", ["04352 123456", "4352 123456", "+43 4352 123456", "43 4352 123456"]),
        ("phone:43", "+436641234567", ["0664 1234567", "664 1234567", "436641234567", "+43 664 1234567",
                                       "43 (0)664 1234567"]),
        ("phone:43", "+43512123456", ["0512 123456", "512 123456", "43 512 123456"]),
        ("phone:352", "+352621123456", ["621 123 456", "352621123456", "+352 621 123 456"]),
        ("phone:352", "+352352123", ["35 21 23", "+352 35 21 23"]),
    ],
)  # fmt: skip
def test_a_telephone_number_has_one_form_however_it_is_written(rule, number, written):
    assert dict(zip(written, read(written, rule), strict=True)) == dict.fromkeys(written, number)


def test_what_is_no_telephone_number_is_no_id():
    none = ["12", "no number", "+41" + "7" * 20, "", None, "-791234567", "\u2013791234567", "000000000", "0000000000",
            "+41 000 000 00 00", "+", "++41791234567", "+0791234567", "044 123 45 67 ext. 8"]  # fmt: skip
    assert read(none, "phone:41") == [None] * len(none)
    assert read(["0000000000", "+39 0000000000"], "phone:39") == [None, None]
    assert read([791234567, -791234567, 0], "phone:41") == ["+41791234567", None, None]


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


def test_a_party_that_reads_ids_by_older_rules_has_another_hash():
    older = blake3(b'{"version": 1, "keys": ["text"]}').hexdigest()
    assert Identifiers(("text",), ("mail",)).hash != older


def test_without_rules_whole_numbers_are_integers_and_the_rest_is_text():
    assert Identifiers.of(Table.of({"id": [1]}), None, None).keys == ("integer",)
    assert Identifiers.of(Table.of({"id": ["1"]}), None, None).keys == ("text",)
    assert Identifiers.of(Table.of({"id": [1], "name": ["a"]}), None, ("name",)).keys == ("text",)
    assert Identifiers.of(Table.of({"id": ["1"], "no": [1]}), None, ("no",)).keys == ("integer",)
    assert Identifiers.of(Table.of({"id": ["1", "2"], "no": [1.0, None]}), None, ("no",)).keys == ("integer",)
    assert Identifiers.of(Table.of({"id": ["1"], "no": [1.5]}), None, ("no",)).keys == ("text",)


@pytest.mark.parametrize(
    ("keys", "columns", "said"),
    [
        ((), (), "at least one key, but none was named"),
        ("integer", ("a",), r"Keys should be a list of rules, but are the text 'integer'. Write \['integer'\]."),
        (("txet",), ("a",), "'txet' was named. The nearest name is 'text'"),
        (("phone",), ("a",), "as in 'phone:41', but is 'phone'"),
        (("phone:411",), ("a",), "as in 'phone:41', but is 'phone:411'"),
        (("phone:0",), ("a",), "as in 'phone:41', but is 'phone:0'"),
        (("text:x",), ("a",), "'text' takes nothing behind a colon"),
        (("text", "email"), ("a",), "Each of the 2 keys .* but 1 were named"),
        (("text+text",), ("a",), "has 2 parts, but 'a' names 1"),
    ],
)
def test_rules_that_cannot_be_followed_are_refused(keys, columns, said):
    with pytest.raises(PlanError, match=said):
        Identifiers(keys, columns)


def test_columns_that_are_no_list_are_refused():
    with pytest.raises(PlanError, match=r"The columns of bank should be a list .*the text 'id'. Write \['id'\]\."):
        Identifiers.of(Table.of({"id": ["a"]}, owner="bank"), ("text",), "id")


def test_several_keys_without_columns_are_refused():
    with pytest.raises(PlanError, match=r"The keys email, text need columns, but bank named none"):
        Identifiers.of(Table.of({"id": ["a"]}, owner="bank"), ("email", "text"), None)


def test_a_column_that_is_not_there_is_refused_by_name():
    table = Table.of({"id": ["a"], "mail": ["b"]}, owner="bank")
    with pytest.raises(DataError, match=r"bank should be matched by its column 'mial'.*nearest name is 'mail'"):
        digests(Identifiers(("email",), ("mial",)), table)


def test_what_cannot_be_read_by_a_rule_is_refused():
    with pytest.raises(DataError) as error:
        normalised(pa.array([1]), "email", column="no", owner="bank")
    assert str(error.value) == (
        "bank should bring text for the rule 'email', but its column 'no' holds whole numbers. Name another column, or "
        "another rule at all parties."
    )
    with pytest.raises(DataError, match=r"text or whole numbers, but its column 'ids' is of type double"):
        normalised(pa.array([1.5]), "text")


def test_nothing_that_is_compared_depends_on_how_accents_are_stored():
    for form in ("NFC", "NFD", "NFKC", "NFKD"):
        assert read([unicodedata.normalize(form, "Ångström Œuvre №5")], "text") == read(["ångström œuvre no5"], "text")
