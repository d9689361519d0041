"""What the command line writes: results to the output stream, everything else to the error stream."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import TaskID

PLAIN_WIDTH = 100


def console(*, stderr: bool = False) -> Console:
    """The terminal, or whatever stands in its place."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    return Console(stderr=stderr, highlight=False, width=None if stream.isatty() else PLAIN_WIDTH)


def say(text: str, *, style: str | None = None, stderr: bool = False) -> None:
    """Write a sentence, of which a terminal obeys nothing: a peer's words may be in it."""
    plain = "".join(letter if letter.isprintable() or letter == "\n" else "?" for letter in text)
    console(stderr=stderr).print(plain, style=style, markup=False, soft_wrap=True)


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

    def __init__(self, *, waits_every_s: float = 30.0, steps_every_s: float = 10.0) -> None:
        self._waits_every_s, self._steps_every_s = waits_every_s, steps_every_s
        self._live = sys.stderr.isatty()
        self._said_at = time.monotonic()
        self._waiting_for: tuple[str, ...] | None = None
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> Progress:
        """Begin to show."""
        if self._live:
            from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
            from rich.progress import Progress as Bars

            columns = (BarColumn(), TextColumn("{task.fields[figures]}"), TimeRemainingColumn())
            self._bars = Bars(
                TextColumn("{task.description}", markup=False),
                *columns,
                console=console(stderr=True),
                transient=True,
                # Sentences stand above the bars, unless they go elsewhere.
                redirect_stdout=sys.stdout.isatty(),
            )
            self._bars.start()
        return self

    def __exit__(self, *exception: object) -> None:
        """Leave the terminal as it was."""
        if self._live:
            self._bars.stop()

    def wait(self, names: Sequence[str], seconds: float) -> None:
        """Say who has not come yet, and for how long they are still waited for."""
        whom = f"Waiting for {', '.join(names)}" if names else "Waiting until all others are there"
        if self._live:
            self._show("wait", f"{whom}, {seconds:.0f} s left", None, None, "")
        elif self._waiting_for != tuple(names) or time.monotonic() - self._said_at > self._waits_every_s:
            self._say(f"{whom}, for {seconds:.0f} more seconds.")
        self._waiting_for = tuple(names)

    def step(self, party: str, loop: str, done: int, total: int, figures: Mapping[str, float]) -> None:
        """Say how far a loop has come."""
        self._waiting_for = None
        shown = "  ".join(f"{name} {value:.4g}" for name, value in figures.items())
        if self._live:
            if "wait" in self._tasks:
                self._bars.remove_task(self._tasks.pop("wait"))
            self._show(loop, loop, done, total, f"{done} of {total}  {shown}")
        elif done == total or time.monotonic() - self._said_at > self._steps_every_s:
            self._say(f"{loop}: step {done} of {total}  {shown}".rstrip())

    def _show(self, key: str, description: str, done: int | None, total: int | None, figures: str) -> None:
        if key not in self._tasks:
            self._tasks[key] = self._bars.add_task(description, total=total, figures=figures)
        self._bars.update(self._tasks[key], description=description, completed=done, figures=figures)

    def _say(self, text: str) -> None:
        self._said_at = time.monotonic()
        say(text, stderr=True)
