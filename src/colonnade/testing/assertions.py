"""Demands: how a check says that something does not hold."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from colonnade.errors import ColonnadeError


def must(holds: bool, sentence: str) -> None:
    """Fail with a sentence unless something holds."""
    if not holds:
        raise AssertionError(sentence)


def must_be_alike(found: Mapping[str, Any], expected: Mapping[str, Any], what: str) -> None:
    """Fail with the names of the parts in which two endings differ."""
    different = sorted(part for part in found.keys() | expected.keys() if found.get(part) != expected.get(part))
    must(not different, f"{what} should end like the first, but these differ: {', '.join(different)}.")


def must_refuse(act: Callable[[], Any], error: type[ColonnadeError], *words: str, what: str) -> None:
    """Fail unless an act raises an error of a class, whose message holds some words."""
    try:
        act()
    except error as refusal:
        missing = [word for word in words if word not in str(refusal)]
        must(not missing, f"{what} should be refused with mention of {', '.join(missing)}, but was with: {refusal}")
    else:
        raise AssertionError(f"{what} should be refused with a {error.__name__}, but was accepted.")
