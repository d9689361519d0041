"""Text for people is safe on a terminal."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from colonnade.text import data_size, nearest, printable


@given(st.text())
def test_printable_text_has_no_control_characters_and_keeps_its_length(text: str) -> None:
    shown = printable(text)
    assert shown.isprintable()
    assert len(shown) == len(text)


@given(st.text())
def test_line_breaks_stay_only_where_they_are_wanted(text: str) -> None:
    assert printable(text, lines=True).count("\n") == text.count("\n")
    assert "\n" not in printable(text)


def test_no_name_is_near_to_one_that_is_unlike_all() -> None:
    assert nearest("zzz", ["income", "age"]) == ""
    assert nearest("INCOME", ["income"]) == " The nearest name is 'income'."


def test_from_a_billion_bytes_on_a_size_is_in_gigabytes() -> None:
    assert [data_size(n_bytes) for n_bytes in (0, 99_999, 100_000, 999_900_000, 10**9, 119_808_000_000)] == [
        "0 kB",
        "100 kB",
        "0.1 MB",
        "999.9 MB",
        "1.0 GB",
        "119.8 GB",
    ]
