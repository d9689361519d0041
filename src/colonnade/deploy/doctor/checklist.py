"""Check: one line of the doctor's list, good or wrong, with what to do about it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

from colonnade.errors import ColonnadeError


@dataclass(frozen=True)
class Check:
    """One line of the doctor's list.

    >>> Check("bank", "port", "good", "it is free").exit_code
    0
    """

    about: str
    topic: str
    state: Literal["good", "wrong", "note"]
    said: str
    fix: str = ""
    exit_code: int = 0


class Checklist:
    """The checks made of one party, in the order in which they were made.

    >>> found = Checklist("bank")
    >>> with found.trying("port"):
    ...     raise ColonnadeError("The port is in use. Choose another one.")
    >>> found.all[0].said, found.all[0].fix
    ('The port is in use', 'Choose another one.')
    """

    def __init__(self, about: str, told: Callable[[Check], None] = lambda check: None) -> None:
        self.all: list[Check] = []
        self._about, self._told = about, told

    @property
    def wrong(self) -> list[str]:
        """What was found wrong, by topic."""
        return [check.topic for check in self.all if check.state == "wrong"]

    def good(self, topic: str, said: str) -> None:
        """Something is as it should be."""
        self._add(Check(self._about, topic, "good", said))

    def note(self, topic: str, said: str, fix: str = "") -> None:
        """Something is worth knowing."""
        self._add(Check(self._about, topic, "note", said, fix))

    def fail(self, topic: str, error: ColonnadeError) -> None:
        """Something is wrong: an error that would end a run."""
        # What to do is the last sentence of every error.
        said, _, fix = str(error).rpartition(". ")
        self._add(Check(self._about, topic, "wrong", said or fix, fix if said else "", error.exit_code))

    @contextmanager
    def trying(self, topic: str) -> Iterator[None]:
        """Turn an error into a line of the list."""
        try:
            yield
        except ColonnadeError as error:
            self.fail(topic, error)

    def _add(self, check: Check) -> None:
        self.all.append(check)
        self._told(check)


def exit_code(checks: Iterable[Check]) -> int:
    """The code of the first thing that is wrong; 0 if nothing is."""
    return next((check.exit_code for check in checks if check.state == "wrong"), 0)
