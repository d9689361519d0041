"""Progress: bars on the error stream, one for each named loop."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Self, TypeVar

if TYPE_CHECKING:
    from rich.progress import TaskID

T = TypeVar("T")

BETWEEN_LINES_S = 0.5
WIDTH = 70


class Bars:
    """Bars that can be drawn or not; where they are not, all methods do nothing.

    Args:
        shown: Whether to draw; None draws on a terminal only.
        transient: Whether the bars vanish at the end.

    >>> with Bars(shown=False) as bars:
    ...     bars.update("train", 1, 2)
    """

    def __init__(self, shown: bool | None = None, *, transient: bool = False) -> None:
        self.shown = sys.stderr.isatty() if shown is None else shown
        self._transient = transient
        self._tasks: dict[str, TaskID] = {}
        # A notebook or a file shows lines: there are no bars to draw again and again.
        self._as_lines = not sys.stderr.isatty()
        self._last = 0.0

    def __enter__(self) -> Self:
        if self.shown and not self._as_lines:
            from rich.console import Console
            from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
            from rich.text import Text

            class Speed(ProgressColumn):
                """Steps per second."""

                def render(self, task: Task) -> Text:
                    return Text(f"{task.speed:.3g}/s" if task.speed else "")

            self._progress = Progress(
                TextColumn("{task.description}", markup=False),
                BarColumn(),
                TextColumn("{task.fields[figures]}", markup=False),
                Speed(),
                TimeRemainingColumn(),
                console=Console(stderr=True, highlight=False),
                transient=self._transient,
                # Sentences stand above the bars, unless they go elsewhere.
                redirect_stdout=sys.stdout.isatty(),
            )
            self._progress.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self.shown and not self._as_lines:
            self._progress.stop()

    def update(
        self,
        name: str,
        done: int,
        total: int | None,
        figures: Mapping[str, float] | None = None,
        text: str | None = None,
    ) -> None:
        """Draw how far a loop has come."""
        if not self.shown:
            return
        counted = "" if total is None else f"{done} of {total}  "
        shown = counted + in_words(figures or {})
        if self._as_lines:
            self._write_line(f"{text or name}: {shown}", ends=done == total)
            return
        if name not in self._tasks:
            self._tasks[name] = self._progress.add_task(text or name, total=total, figures=shown)
        self._progress.update(self._tasks[name], description=text or name, completed=done, figures=shown)

    def _write_line(self, line: str, *, ends: bool) -> None:
        if ends or time.monotonic() - self._last >= BETWEEN_LINES_S:
            self._last = time.monotonic()
            print(f"\r{line:<{WIDTH}}", end="\n" if ends else "", file=sys.stderr, flush=True)

    def remove(self, name: str) -> None:
        """Take a bar away, if it is there."""
        if name in self._tasks:
            self._progress.remove_task(self._tasks.pop(name))

    def counter(self, name: str, total: int) -> Callable[[], None]:
        """A function that counts one more step of a loop each time it is called."""
        steps = iter(range(1, total + 1))
        self.update(name, 0, total)
        return lambda: self.update(name, next(steps, total), total)

    def track(self, name: str, items: Sequence[T]) -> Iterator[T]:
        """The items, with a bar over them."""
        advance = self.counter(name, len(items))
        for item in items:
            yield item
            advance()


def in_words(figures: Mapping[str, float]) -> str:
    """Figures beside a bar.

    >>> in_words({"loss": 0.51234})
    'loss 0.5123'
    """
    return "  ".join(f"{name} {value:.4g}" for name, value in figures.items())
