"""The plain values of a plan: checked against what a constructor takes, and written as TOML."""

from __future__ import annotations

import inspect
import json
import sys
import tomllib
import types
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, is_dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import tomli_w

from colonnade.errors import PlanError
from colonnade.text import nearest

_WORDS = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    Path: "a path",
    type(None): '"none"',
}
_PLURALS = {int: "whole numbers", float: "numbers", str: "texts"}
_UNIONS = (Union, types.UnionType)


@dataclass(frozen=True)
class Signature:
    """What a constructor takes: names, the type of each, which have no default, and what earlier names are now.

    >>> Signature("[run]", {"rate": float}).checked({"rate": 1})
    {'rate': 1.0}
    """

    where: str
    types: Mapping[str, Any]
    required: tuple[str, ...] = ()
    former: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, constructor: type, where: str, *, without: str | None = None) -> Signature:
        """The signature of a class, perhaps without one of its parameters."""
        parameters = [p for p in inspect.signature(constructor).parameters.values() if p.name != without]
        return cls(
            where,
            {parameter.name: _resolved(parameter.annotation, constructor) for parameter in parameters},
            tuple(parameter.name for parameter in parameters if parameter.default is parameter.empty),
            getattr(constructor, "former_names", {}),
        )

    def checked(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The given values, each as its type wants it."""
        self.check_names(given)
        return {name: conform(value, self.types[name], f"{self.where} {name}") for name, value in given.items()}

    def check_names(self, given: Iterable[str]) -> None:
        """Refuse unknown and missing names."""
        for name in given:
            if name not in self.types:
                known = ", ".join(self.types) or "no keys"
                hint = nearest(name, self.types, self.former)
                raise PlanError(
                    f"{self.where} takes {known}, but has the key {name!r}.{hint} Correct the key or leave it out."
                )
        for name in self.required:
            if name not in given:
                raise PlanError(f"{self.where} needs the key {name!r}, but it is missing. Add it.")


def conform(value: Any, wanted: Any, where: str) -> Any:
    """A plain value as a type wants it: whole numbers become numbers, lists tuples, text paths, "none" None.

    >>> conform([8, 4], tuple[int, ...], "[model] hidden")
    (8, 4)
    """
    if _is_kind(get_origin(wanted), Mapping) and isinstance(value, Mapping):
        return {key: conform(item, get_args(wanted)[1], f"{where}.{key}") for key, item in value.items()}
    # A section may stand for an object: its keys are those of the object's class.
    classes = [one for one in (wanted, *get_args(wanted)) if isinstance(one, type) and is_dataclass(one)]
    if classes and isinstance(value, Mapping):
        return Signature.of(classes[0], where).checked(value)
    try:
        return _conformed(value, wanted)
    except _Mismatch as mismatch:
        hint = nearest(value, _choices(wanted)) if isinstance(value, str) else ""
        raise PlanError(
            f"{where} should be {_words(wanted)}, but is {_shown(value)}.{hint} Correct the value."
        ) from mismatch


def read_toml(path: Path) -> dict[str, Any]:
    """The tree of a plan's file.

    Raises:
        PlanError: The file is missing or is no TOML.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise PlanError(f"A plan was expected at {path}, but cannot be read: {reason}. Check the path.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise PlanError(f"{path} should be a plan in TOML, but is not: {error}. Correct the file.") from error


def to_toml(tree: Mapping[str, Any]) -> str:
    """Plain values as TOML; what is None is left out.

    >>> print(to_toml({"seed": 1, "roles": {"label": "bank", "features": ("shop",)}}), end="")
    seed = 1
    <BLANKLINE>
    [roles]
    label = "bank"
    features = [
        "shop",
    ]
    """
    return tomli_w.dumps(_writable(tree))


class _Mismatch(Exception):
    """A value is not of the wanted type."""


def _conformed(value: Any, wanted: Any) -> Any:
    origin, arguments = get_origin(wanted), get_args(wanted)
    # type() rather than isinstance(): true is no whole number.
    if wanted is Any or wanted is type(value):
        return value
    if (wanted, type(value)) in ((float, int), (Path, str)):
        return wanted(value)
    if origin is Literal and value in arguments:
        return value
    if origin in _UNIONS:
        return None if value == "none" and type(None) in arguments else _first_conformed(value, arguments)
    if _is_kind(origin, Mapping) and isinstance(value, Mapping):
        return {key: _conformed(item, arguments[1]) for key, item in value.items()}
    if _is_kind(origin, Sequence) and isinstance(value, list | tuple):
        each = arguments if len(arguments) > 1 and arguments[1] is not ... else (arguments[0],) * len(value)
        if len(each) == len(value):
            return tuple(_conformed(item, one) for item, one in zip(value, each, strict=True))
    raise _Mismatch


def _first_conformed(value: Any, wanted: Sequence[Any]) -> Any:
    for one in wanted:
        with suppress(_Mismatch):
            return _conformed(value, one)
    raise _Mismatch


def _is_kind(origin: Any, kind: type) -> bool:
    return isinstance(origin, type) and issubclass(origin, kind)


def _resolved(annotation: Any, constructor: type) -> Any:
    """An annotation as a type; Any where its names exist for type checkers only."""
    # A dataclass inherits parameters whose annotations use names of another module.
    names = {name: value for base in reversed(constructor.__mro__) for name, value in _module_names(base).items()}
    try:
        holder = SimpleNamespace(__annotations__={"it": annotation})
        return get_type_hints(holder, names)["it"]
    except NameError:
        return Any


def _module_names(cls: type) -> dict[str, Any]:
    return vars(sys.modules[cls.__module__])


def _choices(wanted: Any) -> list[str]:
    if get_origin(wanted) is Literal:
        return [choice for choice in get_args(wanted) if isinstance(choice, str)]
    return [choice for one in get_args(wanted) for choice in _choices(one)]


def _words(wanted: Any) -> str:
    """What a type is called in a sentence; empty for one that no plan can hold."""
    origin, arguments = get_origin(wanted), get_args(wanted)
    if origin is Literal:
        return " or ".join(map(_shown, arguments))
    if origin in _UNIONS:
        return " or ".join(filter(None, dict.fromkeys(map(_words, arguments))))
    if _is_kind(origin, Mapping):
        return "a section"
    if _is_kind(origin, Sequence):
        return f"a list of {_PLURALS.get(arguments[0], 'sections')}"
    return _WORDS.get(wanted, "")


def _shown(value: Any) -> str:
    if isinstance(value, Mapping):
        return "a section"
    if isinstance(value, bool | int | float | str | list | tuple):
        return json.dumps(value, ensure_ascii=False)
    return f"a {type(value).__name__}"


def _writable(value: Any) -> Any:
    """A value as `tomli_w` takes it: without None, tuples and paths."""
    if isinstance(value, Mapping):
        return {key: _writable(item) for key, item in value.items() if item is not None}
    if isinstance(value, list | tuple):
        return [_writable(item) for item in value]
    return str(value) if isinstance(value, Path) else value
