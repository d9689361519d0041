"""What the command line writes: results to the output stream, everything else to the error stream."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from colonnade.progress import Bars, in_words
from colonnade.text import printable

if TYPE_CHECKING:
    from rich.console import Console

PLAIN_WIDTH = 100


def console(*, stderr: bool = False) -> Console:
    """The terminal, or whatever stands in its place."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    return Console(stderr=stderr, highlight=False, width=None if stream.isatty() else PLAIN_WIDTH)


def say(text: str, *, style: str | None = None, stderr: bool = False) -> None:
    """Write a sentence. A peer's words may be in it, so the terminal obeys none of its characters."""
    console(stderr=stderr).print(printable(text, lines=True), style=style, markup=False, soft_wrap=True)


def warn(text: str) -> None:
    """Write a sentence to the error stream, in red."""
    say(text, style="red", stderr=True)


def complain(sentence: str, error: BaseException) -> None:
    """Write what went wrong to the error stream, in red, and below it what was noted about it."""
    warn(sentence)
    for note in getattr(error, "__notes__", ()):
        say(note, stderr=True)


class Progress:
    """Shows for whom a run waits and how far it has come: live on a terminal, elsewhere a line now and then.

    >>> with Progress() as progress:
    ...     progress.step("bank", "train", 1, 2, {})
    """

    def __init__(
        self,
        *,
        waits_every_s: float = 30.0,
        steps_every_s: float = 10.0,
        line: Callable[[str], None] = lambda text: say(text, stderr=True),
    ) -> None:
        self._line = line
        self._waits_every_s, self._steps_every_s = waits_every_s, steps_every_s
        self._bars = Bars(transient=True)
        self._said_at = time.monotonic()
        self._waiting_for: tuple[str, ...] | None = None

    def __enter__(self) -> Progress:
        self._bars.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        self._bars.__exit__(*exception)

    def wait(self, names: Sequence[str], seconds: float) -> None:
        """Say who has not come yet, and for how long they are still waited for."""
        whom = f"Waiting for {', '.join(names)}" if names else "Waiting until all others are there"
        if self._bars.shown:
            self._bars.update("wait", 0, None, text=f"{whom}, {seconds:.0f} s left")
        elif self._waiting_for != tuple(names) or time.monotonic() - self._said_at > self._waits_every_s:
            self._say(f"{whom}, for {seconds:.0f} more seconds.")
        self._waiting_for = tuple(names)

    def step(self, party: str, loop: str, done: int, total: int, figures: Mapping[str, float]) -> None:
        """Say how far a loop has come."""
        self._waiting_for = None
        if self._bars.shown:
            self._bars.remove("wait")
            self._bars.update(loop, done, total, figures)
        elif done == total or time.monotonic() - self._said_at > self._steps_every_s:
            self._say(f"{loop}: step {done} of {total}  {in_words(figures)}".rstrip())

    def _say(self, text: str) -> None:
        self._said_at = time.monotonic()
        self._line(text)
