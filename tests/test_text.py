"""Text for people is safe on a terminal."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from colonnade.text import nearest, printable


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
