"""SharedLog: an append-only file of JSON lines that counts something over all runs of a party.

Four counts outlive runs: encrypted values answered (`colonnade.crypto.budget`), alignments (`colonnade.align.limits`),
columns opened (`colonnade.models.glm.openings`) and privacy events (`colonnade.privacy.history`). Two runs of one party
may count at the same time, so a cap is read, checked and written to under one lock of the operating system; a crash
frees the lock.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from colonnade.errors import StorageError
from colonnade.storage import explained, make_private, sync_directory

Entry = dict[str, Any]


class SharedLog:
    """One log, as one process uses it.

    Args:
        path: The file; a missing file has no entries.
        holds: What a line is, in words, for the error that names a damaged file.

    >>> import tempfile
    >>> log = SharedLog(Path(tempfile.mkdtemp()) / "answers", "one portion of answers")
    >>> with log.locked() as held:
    ...     if not held.entries():
    ...         held.append({"values": 3})
    >>> log.entries()
    [{'values': 3}]
    """

    def __init__(self, path: Path, holds: str) -> None:
        self.path, self.holds = path, holds

    def entries(self) -> list[Entry]:
        """All whole lines; a line that a crash left unfinished is removed, because nothing followed from it."""
        if not self.path.exists():
            return []
        with self.locked() as held:
            return held.entries()

    @contextmanager
    def locked(self) -> Iterator[HeldLog]:
        """Keep all other processes and threads out of the log while its entries are checked and more are added.

        The lock is not re-entrant: a second `locked` inside the first waits for ever.
        """
        with explained(f"write {self.path.name}"):
            make_private(self.path.parent)
            new = not self.path.exists()
            # The log says who asked how much of whom.
            handle = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            if new:
                sync_directory(self.path.parent)
        try:
            with explained(f"write {self.path.name}"):
                fcntl.flock(handle, fcntl.LOCK_EX)
            yield HeldLog(self, handle)
        finally:
            # A process that was forked meanwhile has the file open too, and closing it here would not free the lock.
            fcntl.flock(handle, fcntl.LOCK_UN)
            os.close(handle)

    def damaged(self) -> StorageError:
        """The error of a file that cannot be read."""
        return StorageError(
            f"{self.path} should hold {self.holds} per line, but is damaged. Restore it; do not delete it, because it "
            "counts over all runs how much was told to whom."
        )

    def _parsed(self, data: bytes) -> list[Entry]:
        try:
            entries = [json.loads(line) for line in data.splitlines()]
        except ValueError as error:
            raise self.damaged() from error
        if not all(isinstance(entry, dict) for entry in entries):
            raise self.damaged()
        return entries


class HeldLog:
    """A log while its lock is held."""

    def __init__(self, log: SharedLog, handle: int) -> None:
        self._log, self._handle = log, handle

    @property
    def size(self) -> int:
        """How many bytes of whole lines there are; a line that a crash left unfinished is removed."""
        with explained(f"read {self._log.path}"):
            size = os.fstat(self._handle).st_size
            if not size or os.pread(self._handle, 1, size - 1) == b"\n":
                return size
            whole = self._read(0, size).rfind(b"\n") + 1
            os.ftruncate(self._handle, whole)
            return whole

    def entries(self, start: int = 0) -> list[Entry]:
        """The entries from a byte on at which a line begins."""
        with explained(f"read {self._log.path}"):
            data = self._read(start, self.size)
        return self._log._parsed(data)

    def append(self, entry: Entry) -> None:
        """Add a line and wait until it is on the disk; what fails leaves the file as it was."""
        size, data = self.size, (json.dumps(entry) + "\n").encode()
        with explained(f"write {self._log.path.name}"):
            try:
                while data:
                    data = data[os.write(self._handle, data) :]
                os.fsync(self._handle)
            except OSError:
                os.ftruncate(self._handle, size)
                raise

    def _read(self, start: int, end: int) -> bytes:
        parts = []
        while start < end and (part := os.pread(self._handle, end - start, start)):
            parts.append(part)
            start += len(part)
        return b"".join(parts)
