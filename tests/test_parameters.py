"""Every class of the catalogue refuses what its table of limits calls wrong, in the same words."""

from collections.abc import Iterator
from typing import Any

import pytest

from colonnade.catalogue import ATTACKS, DEFENCES, MODELS
from colonnade.errors import PlanError
from colonnade.models import LogisticRegression, SplitClassifier
from colonnade.parameters import Limit, check_parameters, choice, count, each, number, optional


def limited() -> Iterator[tuple[type, str, Limit]]:
    for table in (ATTACKS, DEFENCES, MODELS):
        for name in table:
            cls: type = table[name]  # type: ignore[assignment]
            for parameter, limit in getattr(cls, "limits", {}).items():
                yield cls, parameter, limit


CASES = [
    pytest.param(cls, parameter, limit, value, id=f"{cls.__name__}-{parameter}-{value}")
    for cls, parameter, limit in limited()
    for value in limit.wrong
]


@pytest.mark.parametrize(("cls", "parameter", "limit", "value"), CASES)
def test_a_wrong_value_is_refused_with_the_parameters_name(cls: type, parameter: str, limit: Limit, value: Any) -> None:
    owner = object.__new__(cls)
    for name, other in cls.limits.items():  # type: ignore[attr-defined]
        object.__setattr__(owner, name, _fitting(other))
    check_parameters(owner)
    object.__setattr__(owner, parameter, value)
    with pytest.raises(PlanError) as raised:
        check_parameters(owner)
    assert str(raised.value) == f"{cls.__name__}'s {parameter} should be {limit.words}, but is {value!r}. Change it."


def _fitting(limit: Limit) -> Any:
    candidates = (None, True, 1, 2, 3, 0.5, 0.0, 10, *limit.words.replace("'", "").replace(",", "").split())
    return next(value for value in candidates if limit.holds(value))


@pytest.mark.parametrize("cls", [MODELS[name] for name in MODELS], ids=list(MODELS))
def test_every_model_says_what_its_numbers_may_be(cls: type) -> None:
    assert cls.limits  # type: ignore[attr-defined]


@pytest.mark.parametrize("cls", [MODELS[name] for name in MODELS], ids=list(MODELS))
def test_an_unknown_parameter_is_refused_in_the_name_of_the_class_that_was_called(cls: type) -> None:
    with pytest.raises(PlanError, match=f"^{cls.__name__} has no parameter 'no_such_name'; it has "):
        cls(no_such_name=1)


def test_the_refusal_of_an_unknown_parameter_names_the_nearest_one() -> None:
    with pytest.raises(PlanError, match=r"^SplitClassifier has no parameter 'epoch'.* The nearest name is 'epochs'"):
        SplitClassifier(epoch=3)  # type: ignore[call-arg]
    with pytest.raises(PlanError, match=r"^LogisticRegression has no parameter 'epoch'.* Its name is now max_iter"):
        LogisticRegression(epoch=3)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("limit", "right"),
    [
        (count(), [1, 5]),
        (count(0), [0]),
        (number(0), [0, 0.5]),
        (number(above=0, below=1), [0.5]),
        (number(above=0, most=1), [1, 0.1]),
        (choice("a", "b"), ["a", "b"]),
        (optional(count()), [None, 1]),
        (each(number(0)), [1, {"x": 2}]),
    ],
    ids=lambda value: value.words if isinstance(value, Limit) else "",
)
def test_a_limit_allows_what_it_says_and_nothing_it_calls_wrong(limit: Limit, right: list[Any]) -> None:
    assert all(limit.holds(value) for value in right)
    assert not any(limit.holds(value) for value in limit.wrong)
