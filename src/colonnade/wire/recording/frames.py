"""Frames: the messages that a recording keeps, in memory or on disk, and an entry about each message that crossed."""

from __future__ import annotations

import base64
import json
import os
import struct
import weakref
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, TypeAlias

import numpy as np

from colonnade.errors import StorageError
from colonnade.storage import explained, make_private, open_private
from colonnade.wire.codec import Frame
from colonnade.wire.message import Int64Array

if TYPE_CHECKING:
    from colonnade.wire.recording.storage_key import StorageKey

Section: TypeAlias = tuple[int, int] | None
"""Which loop of the run and which epoch of it a message belongs to; None outside loops."""


class Entry(NamedTuple):
    """One message as a party's recording saw it: everything but its contents. Of a secret one the digest is empty."""

    sent: bool
    peer: str
    kind: str
    reveals: tuple[str, ...]
    under: tuple[str, ...]
    fresh: bool
    size: int
    digest: str
    section: Section
    place: int | None

    @property
    def epoch(self) -> int | None:
        """The pass over the data, within its loop."""
        return None if self.section is None else self.section[1]


class FramesInMemory:
    """Kept frames as objects."""

    def __init__(self) -> None:
        self._lists: dict[Section, list[tuple[Frame, Int64Array | None]]] = {}

    def add(self, section: Section, frame: Frame, rows: Int64Array | None) -> int:
        """Keep a frame; returns its place within the section."""
        frames = self._lists.setdefault(section, [])
        frames.append((frame, rows))
        return len(frames) - 1

    def read(self, section: Section, place: int) -> tuple[Frame, Int64Array | None] | None:
        """A kept frame, or None if it was dropped."""
        frames = self._lists.get(section)
        return None if frames is None else frames[place]

    def drop(self, section: Section) -> None:
        """Forget a section."""
        self._lists.pop(section, None)


class FramesOnDisk:
    """Kept frames in one append-only file per section, and the entries in one beside them.

    The files are cut back to a checkpoint when a run resumes.
    """

    _HEAD = struct.Struct("<qq")
    _ENTRIES = "entries.jsonl"

    def __init__(self, directory: Path, key: StorageKey | None = None) -> None:
        self.directory, self.key = directory, key
        self._open: dict[str, BinaryIO] = {}
        weakref.finalize(self, _abandon, self._open)
        with explained("open the recording"):
            make_private(directory)

    def add(self, section: Section, frame: Frame, rows: Int64Array | None) -> int:
        """Append a frame; returns its offset in the section's file."""
        name = _file_name(section)
        with explained("write the recording"):
            if name not in self._open and section is not None:
                self._close_sections()
            file = self._file(name)
            place = file.tell()
            head = self._HEAD.pack(len(frame), -1 if rows is None else len(rows))
            parts = [b"" if rows is None else rows.tobytes(), frame]
            if self.key is not None:
                parts = [self.key.seal(b"".join(parts), _at(name, place, head))]
            file.writelines([head, *parts])
        return place

    def read(self, section: Section, place: int) -> tuple[Frame, Int64Array | None] | None:
        """A kept frame, or None if its section was dropped."""
        name = _file_name(section)
        with explained("read the recording"):
            if name in self._open:
                self._open[name].flush()
            if not (self.directory / name).exists():
                return None
            with (self.directory / name).open("rb") as file:
                file.seek(place)
                head = file.read(self._HEAD.size)
                size, n_rows = self._HEAD.unpack(head) if len(head) == self._HEAD.size else (0, -1)
                split = 8 * max(n_rows, 0)
                body = file.read(split + size + (self.key.overhead if self.key else 0))
        if self.key is not None:
            body = self.key.unseal(body, _at(name, place, head))
        return body[split:], None if n_rows < 0 else np.frombuffer(body[:split], np.int64)

    def drop(self, section: Section) -> None:
        """Delete a section's file."""
        name = _file_name(section)
        with explained("write the recording"):
            if name in self._open:
                self._open.pop(name).close()
            (self.directory / name).unlink(missing_ok=True)

    def add_entry(self, entry: Entry) -> None:
        """Append an entry."""
        line = json.dumps(entry).encode()
        with explained("write the recording"):
            file = self._file(self._ENTRIES)
            if self.key is not None:
                line = base64.b64encode(self.key.seal(line, _at(self._ENTRIES, file.tell())))
            file.write(line + b"\n")

    def entries(self) -> list[Entry]:
        """All entries."""
        self.flush()
        with explained("read the recording"):
            lines = (self.directory / self._ENTRIES).read_bytes().splitlines(keepends=True)
        found, place = [], 0
        try:
            for line in lines:
                at = _at(self._ENTRIES, place)
                said = line if self.key is None else self.key.unseal(base64.b64decode(line), at)
                found.append(_entry(json.loads(said)))
                place += len(line)
            return found
        except (ValueError, TypeError) as error:
            raise StorageError(
                f"The recording's {self._ENTRIES} should hold one entry per line and does not. It is damaged."
            ) from error

    def flush(self) -> None:
        """Hand everything to the disk."""
        with explained("write the recording"):
            self._file(self._ENTRIES)
            for file in self._open.values():
                file.flush()
                os.fsync(file.fileno())

    def sizes(self) -> dict[str, int]:
        """The length of every file, all of it being on the disk."""
        self.flush()
        with explained("write the recording"):
            return {path.name: path.stat().st_size for path in self._files()}

    def cut(self, sizes: Mapping[str, int]) -> None:
        """Cut every file back to an earlier length."""
        self.close()
        with explained("cut back the recording"):
            for path in self._files():
                if path.name not in sizes:
                    path.unlink()
                elif path.stat().st_size < sizes[path.name]:
                    raise StorageError(
                        f"The recording's {path.name} is shorter than its checkpoint says. "
                        "It was changed from outside; start the run in a new folder."
                    )
                else:
                    os.truncate(path, sizes[path.name])

    def close(self) -> None:
        """Close all files."""
        with explained("write the recording"):
            _close(self._open)

    def _close_sections(self) -> None:
        for name in [name for name in self._open if name.startswith("loop-")]:
            self._open.pop(name).close()

    def _file(self, name: str) -> BinaryIO:
        if name not in self._open:
            self._open[name] = open_private(self.directory / name, "ab")
        return self._open[name]

    def _files(self) -> list[Path]:
        return [*self.directory.glob("*.frames"), *self.directory.glob(self._ENTRIES)]


def _close(files: dict[str, BinaryIO]) -> None:
    while files:
        files.popitem()[1].close()


def _abandon(files: dict[str, BinaryIO]) -> None:
    """Close files that nobody writes to any more; what a full disk did not take was told when it was written."""
    while files:
        with suppress(OSError):
            files.popitem()[1].close()


def _file_name(section: Section) -> str:
    return "other.frames" if section is None else f"loop-{section[0]:03d}-epoch-{section[1]:06d}.frames"


def _entry(values: list[Any]) -> Entry:
    sent, peer, kind, reveals, under, fresh, size, digest, section, place = values
    at = None if section is None else (section[0], section[1])
    return Entry(sent, peer, kind, tuple(reveals), tuple(under), fresh, size, digest, at, place)


def _at(name: str, place: int, head: bytes = b"") -> bytes:
    """What is authenticated with a record: its file, where in it, and its head, which stands in the clear."""
    return f"{name} {place} ".encode() + head
