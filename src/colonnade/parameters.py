"""Parameters: what each may be, in a table beside its class, with one writer of messages.

A class lists its limits and calls `check_parameters` where it validates. One generated test hands every class of the
catalogue the values that each limit names as wrong.

>>> class Descent:
...     limits = {"max_iter": count(), "tol": number(0), "solver": choice("sgd", "newton")}
...     def __init__(self, max_iter: object = 10, tol: object = 0.1, solver: object = "sgd") -> None:
...         self.max_iter, self.tol, self.solver = max_iter, tol, solver
>>> check_parameters(Descent())
>>> check_parameters(Descent(tol=-1))
Traceback (most recent call last):
    ...
colonnade.errors.PlanError: Descent's tol should be a number, at least 0, but is -1. Change it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from math import inf, isfinite, nan
from numbers import Integral, Real
from typing import Any, TypeGuard, TypeVar

import numpy as np

from colonnade.errors import PlanError
from colonnade.text import nearest

S = TypeVar("S")


@dataclass(frozen=True)
class Limit:
    """What a parameter may be.

    Attributes:
        holds: Whether a value is allowed.
        words: What is allowed, as it stands behind "should be".
        wrong: Values that are not allowed, for the generated test.
    """

    holds: Callable[[Any], bool]
    words: str
    wrong: tuple[Any, ...]


def count(least: int = 1) -> Limit:
    """A whole number."""
    wrong = (least - 1, float(least), True, "3", nan, None)
    return Limit(lambda value: is_integer(value) and value >= least, f"a whole number, at least {least}", wrong)


def number(least: float | None = None, *, above: float | None = None, most: float = inf, below: float = inf) -> Limit:
    """A finite number within bounds; each bound may itself be allowed or not."""
    low = "" if least is None and above is None else f"at least {least:g}" if least is not None else f"above {above:g}"
    high = f"at most {most:g}" if most < inf else f"below {below:g}" if below < inf else ""
    bounds = " and ".join(bound for bound in (low, high) if bound)
    words = f"a number, {bounds}" if bounds else "a number"

    def holds(value: Any) -> bool:
        return (
            is_number(value)
            and isfinite(value)
            and (least is None or value >= least)
            and (above is None or value > above)
            and value <= most
            and value < below
        )

    beyond = [least - 1] if least is not None else [above] if above is not None else []
    beyond += [most + 1] if most < inf else [below] if below < inf else []
    return Limit(holds, words, (*beyond, "1", nan, inf, None))


def choice(*values: str) -> Limit:
    """One of several names."""
    *first, last = (repr(value) for value in values)
    words = f"{', '.join(first)} or {last}" if first else last
    return Limit(lambda value: isinstance(value, str) and value in values, words, ("no such name", 3, None))


def truth() -> Limit:
    """True or False."""
    return Limit(lambda value: isinstance(value, bool | np.bool_), "True or False", ("yes", 1, None))


def optional(limit: Limit) -> Limit:
    """None, or what another limit allows."""
    wrong = tuple(value for value in limit.wrong if value is not None)
    return Limit(lambda value: value is None or limit.holds(value), f"None or {limit.words}", wrong)


def or_auto(limit: Limit) -> Limit:
    """The word "auto", or what another limit allows."""
    return Limit(lambda value: value == "auto" or limit.holds(value), f"'auto' or {limit.words}", limit.wrong)


def each(limit: Limit) -> Limit:
    """What another limit allows, or a mapping from names to such values."""

    def holds(value: Any) -> bool:
        return all(map(limit.holds, value.values())) if isinstance(value, Mapping) else limit.holds(value)

    wrong = (*limit.wrong, {"default": limit.wrong[0]})
    return Limit(holds, f"{limit.words}, or a mapping of such values", wrong)


def check_parameters(owner: Any, limits: Mapping[str, Limit] | None = None, *, called: str = "") -> None:
    """Raise `PlanError` at the first parameter of an object that its limits do not allow.

    Args:
        owner: The object, whose class has a table `limits`.
        limits: Limits that depend on other parameters, checked after those of the class.
        called: What the message calls the owner; by default the name of its class.
    """
    for table in (type(owner).limits, limits or {}):
        for name, limit in table.items():
            value = getattr(owner, name)
            if not limit.holds(value):
                whose = called or f"{type(owner).__name__}'s"
                raise PlanError(f"{whose} {name} should be {limit.words}, but is {value!r}. Change it.")


def settings_of(choice: S | Mapping[str, Any], default: S, name: str) -> S:
    """The frozen dataclass that a parameter means: an object, or a mapping that changes fields of the default.

    Plans and saved shares hold mappings.

    >>> settings_of({"words": "even"}, Limit(bool, "odd", ()), "limit").words
    'even'
    """
    if not isinstance(choice, Mapping):
        if isinstance(choice, type(default)):
            return choice
        kind = type(default).__name__
        raise PlanError(f"{name} should be a {kind} or a mapping of its fields, but is {choice!r}. Change it.")
    known = [field.name for field in fields(default)]  # type: ignore[arg-type]
    # A saved share also names the object's class.
    given = {key: tuple(item) if isinstance(item, list) else item for key, item in choice.items() if key != "is"}
    for key in given:
        if key not in known:
            raise PlanError(
                f"{name} takes {', '.join(known) or 'no settings'}, but has the key {key!r}.{nearest(key, known)} "
                "Correct the key or leave it out."
            )
    return replace(default, **given)  # type: ignore[type-var]


def is_integer(value: object) -> TypeGuard[int]:
    """Whether a value is a whole number by type, NumPy's included and truth values not."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def is_number(value: object) -> TypeGuard[float]:
    """Whether a value is a real number by type, NumPy's included and truth values not."""
    return isinstance(value, Real) and not isinstance(value, bool)
