import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from colonnade.errors import PlanError
from colonnade.plans.toml import Signature, conform, to_toml

if TYPE_CHECKING:
    from colonnade.tables.table import NoSuchName

KEYS = st.text(max_size=8)
PLAIN = st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.text()
TREES = st.dictionaries(
    KEYS,
    PLAIN
    | st.lists(PLAIN, max_size=3)
    | st.dictionaries(KEYS, PLAIN | st.dictionaries(KEYS, PLAIN, max_size=2), max_size=3)
    | st.lists(st.dictionaries(KEYS, PLAIN, max_size=2), min_size=1, max_size=2),
    max_size=5,
)


@given(TREES)
def test_what_is_written_as_toml_reads_back(tree: dict[str, Any]) -> None:
    assert tomllib.loads(to_toml(tree)) == tree


def test_what_is_none_is_not_written() -> None:
    assert to_toml({"a": None, "b": {"c": None}}) == "[b]\n"


@pytest.mark.parametrize(
    ("value", "wanted", "conformed"),
    [
        (3, int, 3),
        (3, float, 3.0),
        (True, bool, True),
        ("data.csv", Path, Path("data.csv")),
        ([8, 4], tuple[int, ...], (8, 4)),
        ([8, 4], Sequence[float], (8.0, 4.0)),
        ([8, "x"], tuple[int, str], (8, "x")),
        ({"a": 1}, Mapping[str, float], {"a": 1.0}),
        ("sum", Literal["concat", "sum"], "sum"),
        (3, int | None, 3),
        ("none", int | None, None),
        ("mlp", str | Callable[[int], int] | None, "mlp"),
        ("none", str, "none"),
        ({"any": [1]}, Any, {"any": [1]}),
    ],
)
def test_a_value_becomes_what_its_type_wants(value: Any, wanted: Any, conformed: Any) -> None:
    result = conform(value, wanted, "[model] key")
    assert result == conformed
    assert type(result) is type(conformed)


@pytest.mark.parametrize(
    ("value", "wanted", "said"),
    [
        ("3", int, 'should be a whole number, but is "3".'),
        (3.5, int, "should be a whole number, but is 3.5."),
        (True, int, "should be a whole number, but is true."),
        (True, float, "should be a number, but is true."),
        (1, bool, "should be true or false, but is 1."),
        (["a", 1], tuple[str, ...], 'should be a list of texts, but is ["a", 1].'),
        ([1, 2, 3], tuple[int, int], "should be a list of whole numbers, but is [1, 2, 3]."),
        ("ab", tuple[str, ...], 'should be a list of texts, but is "ab".'),
        ([1], tuple[dict[str, Any], ...], "should be a list of sections, but is [1]."),
        (1, dict[str, Any], "should be a section, but is 1."),
        ({"a": 1}, int, "should be a whole number, but is a section."),
        ("5", int | None, 'should be a whole number or "none", but is "5".'),
        (5, str | Callable[[int], int], "should be text, but is 5."),
        ("summ", Literal["concat", "sum"], 'should be "concat" or "sum", but is "summ". The nearest name is \'sum\'.'),
    ],
)
def test_a_value_of_another_type_is_refused_with_both_in_words(value: Any, wanted: Any, said: str) -> None:
    with pytest.raises(PlanError) as caught:
        conform(value, wanted, "[model] key")
    assert str(caught.value) == f"[model] key {said} Correct the value."


def test_a_date_is_refused_by_the_name_of_its_type() -> None:
    date = tomllib.loads("day = 2001-01-01")["day"]
    with pytest.raises(PlanError, match="should be text, but is a date"):
        conform(date, str, "[data] name")


@dataclass(frozen=True)
class Sample:
    needed: int
    rate: float = 0.5
    unknowable: "NoSuchName | None" = None


def test_a_signature_refuses_an_unknown_name_with_the_nearest() -> None:
    with pytest.raises(PlanError) as caught:
        Signature.of(Sample, "[sample]").checked({"needed": 1, "ratte": 2})
    assert str(caught.value) == (
        "[sample] takes needed, rate, unknowable, but has the key 'ratte'. The nearest name is 'rate'. "
        "Correct the key or leave it out."
    )


def test_a_signature_refuses_to_do_without_what_has_no_default() -> None:
    with pytest.raises(PlanError) as caught:
        Signature.of(Sample, "[sample]").checked({"rate": 1})
    assert str(caught.value) == "[sample] needs the key 'needed', but it is missing. Add it."


def test_a_parameter_left_out_of_a_signature_is_unknown() -> None:
    with pytest.raises(PlanError, match="takes needed, unknowable, but has the key 'rate'"):
        Signature.of(Sample, "[sample]", without="rate").checked({"needed": 1, "rate": 1})


def test_a_type_that_only_type_checkers_know_lets_any_value_through() -> None:
    assert Signature.of(Sample, "[sample]").checked({"needed": 1, "unknowable": [1]}) == {
        "needed": 1,
        "unknowable": [1],
    }
