"""The log of a command that takes part in a run: lines with times on the error stream, as text or as JSON."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Literal, TypeAlias

from colonnade.cli.console import say

LogForm: TypeAlias = Literal["text", "json"]

chosen_form: ContextVar[LogForm | None] = ContextVar("chosen_form", default=None)
"""What --log or COLONNADE_LOG says; the plan decides where they say nothing."""


class _ErrorStream(logging.Handler):
    """Writes each record as a line; peers' words may be in it, so the terminal obeys none of its characters."""

    def emit(self, record: logging.LogRecord) -> None:
        say(self.format(record), stderr=True)


class _Line(logging.Formatter):
    """A record with its time, as text or as JSON."""

    def __init__(self, form: LogForm) -> None:
        super().__init__()
        self._form = form

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC)
        if self._form == "text":
            return f"{at.astimezone():%Y-%m-%d %H:%M:%S} {record.getMessage()}"
        about = {"at": at.isoformat(timespec="milliseconds"), "level": record.levelname.lower(), "from": record.name}
        return json.dumps({**about, "message": record.getMessage()})


@contextmanager
def logged(form: LogForm) -> Iterator[logging.Logger]:
    """Write what the package logs to the error stream as long as this lasts; gives the logger of the command line."""
    package, handler = logging.getLogger("colonnade"), _ErrorStream()
    handler.setFormatter(_Line(form))
    before = package.level
    package.addHandler(handler)
    package.setLevel(logging.INFO)
    try:
        yield logging.getLogger("colonnade.cli")
    finally:
        package.removeHandler(handler)
        package.setLevel(before)
