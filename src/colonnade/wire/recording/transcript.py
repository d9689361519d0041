"""Recording and Transcript: all that one party sent and received, as far as it is kept.

A recording is written while a run goes on; a transcript is read afterwards. Of every message the digest, the length and
what it reveals are kept. Whether the message itself is kept is said by `Keep`:

    "all"      every message
    "audit"    messages outside training loops, and those of each loop's first and last epoch; of the others the mean
               per row over epochs (what the catalogue's attacks read)
    "digests"  none

A recording in a folder may be encrypted under a `StorageKey`: messages, row means and entries, which hold digests by
which a short message could be guessed. File names and lengths stay readable.
"""

from __future__ import annotations

import base64
import json
import os
import struct
import weakref
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO, Generic, Literal, NamedTuple, TypeAlias, TypeVar

import numpy as np
from blake3 import blake3

from colonnade.errors import PrivacyError, StorageError
from colonnade.storage import Tree, explained, pack, read_tree, unpack, write_atomically, write_tree
from colonnade.wire.codec import Frame, decode
from colonnade.wire.message import Float32Array, Int64Array, Message
from colonnade.wire.recording.storage_key import OVERHEAD, StorageKey

M = TypeVar("M", bound=Message)
Keep: TypeAlias = Literal["all", "audit", "digests"]
Section: TypeAlias = tuple[int, int] | None
"""Which loop of the run and which epoch of it a message belongs to; None outside loops."""

_INDEX, _SEALED_INDEX = "index.safetensors", "index.sealed"
_MEANS = b"means in a checkpoint"


class Entry(NamedTuple):
    """One message as a party's recording saw it: everything but its contents."""

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


@dataclass(frozen=True)
class Recorded(Generic[M]):
    """A message with what the recording knows about it."""

    message: M
    peer: str
    sent: bool
    rows: Int64Array | None
    epoch: int | None


@dataclass(frozen=True)
class RowMeans:
    """Running sums per row over the epochs of a loop, of one kind of message to or from one peer."""

    kind: str
    peer: str
    sent: bool
    loop: int
    sums: Float32Array
    counts: Int64Array

    @property
    def line(self) -> tuple[str, str, bool, int]:
        """What these are the sums of."""
        return self.kind, self.peer, self.sent, self.loop

    def grown(self, n_rows: int) -> RowMeans:
        """The same with room for at least so many rows."""
        missing = n_rows - len(self.counts)
        if missing <= 0:
            return self
        return RowMeans(*self.line, np.pad(self.sums, ((0, missing), (0, 0))), np.pad(self.counts, (0, missing)))


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
        weakref.finalize(self, _close, self._open)
        with explained("open the recording"):
            directory.mkdir(parents=True, exist_ok=True)

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
                body = file.read(split + size + (OVERHEAD if self.key else 0))
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
            self._open[name] = (self.directory / name).open("ab")
        return self._open[name]

    def _files(self) -> list[Path]:
        return [*self.directory.glob("*.frames"), *self.directory.glob(self._ENTRIES)]


@dataclass(frozen=True)
class Transcript:
    """All one party saw of a run: what it sent, what it received.

    >>> Transcript("shop").entries
    ()
    """

    party: str
    entries: tuple[Entry, ...] = ()
    means: tuple[RowMeans, ...] = ()
    frames: FramesInMemory | FramesOnDisk = field(default_factory=FramesInMemory, repr=False, compare=False)

    def messages(self, kind: type[M], *, peer: str | None = None, sent: bool | None = None) -> Iterator[Recorded[M]]:
        """The kept messages of one kind, in the order in which they crossed."""
        for entry in self.entries:
            if entry.kind != kind.kind or entry.place is None:
                continue
            if peer not in (None, entry.peer) or sent not in (None, entry.sent):
                continue
            kept = self.frames.read(entry.section, entry.place)
            if kept is None:
                continue
            frame, rows = kept
            if blake3(frame).hexdigest() != entry.digest:
                raise StorageError(
                    f"A recorded {entry.kind} of {self.party} is not what was recorded. The recording is damaged."
                )
            yield Recorded(decode(frame, kind, peer=entry.peer), entry.peer, entry.sent, rows, entry.epoch)

    def row_means(self, kind: type[Message], *, peer: str | None = None, sent: bool | None = None) -> Float32Array:
        """The mean over epochs, per row, of a message's rows in the last loop; NaN for rows it was never about."""
        found = [m for m in self.means if m.kind == kind.kind and peer in (None, m.peer) and sent in (None, m.sent)]
        found = [m for m in found if m.loop == max(other.loop for other in found)]
        if len(found) != 1:
            raise PrivacyError(
                f"Row means of {kind.kind} should come from one line, but {self.party} recorded {len(found)}. "
                "Name the peer and the direction, and record with keep='audit' or 'all'."
            )
        counts = found[0].counts[:, None].astype(np.float32)
        with np.errstate(invalid="ignore"):
            return found[0].sums / counts

    def mirrored(self, peer: str) -> Transcript:
        """What a peer saw of its line to this party: the same messages with sender and receiver exchanged."""
        return Transcript(
            peer,
            tuple(e._replace(sent=not e.sent, peer=self.party) for e in self.entries if e.peer == peer),
            tuple(replace(m, sent=not m.sent, peer=self.party) for m in self.means if m.peer == peer),
            self.frames,
        )

    def after(self, earlier: Transcript) -> Transcript:
        """This transcript with an earlier run's before it, of which is kept what crossed, but not its contents."""
        before = tuple(entry._replace(place=None) for entry in earlier.entries)
        return replace(self, entries=before + self.entries)

    def digests(self, *, fresh: bool = False) -> tuple[tuple[str, bool, str, str], ...]:
        """Peer, direction, kind and digest of each message: what must be equal when a run is repeated.

        Args:
            fresh: Include kinds drawn from system randomness, which differ by design.
        """
        return tuple((e.peer, e.sent, e.kind, e.digest) for e in self.entries if fresh or not e.fresh)

    def save(self, directory: Path) -> None:
        """Write the transcript into a folder."""
        frames = FramesOnDisk(directory)
        frames.cut({})
        for entry in self.entries:
            kept = None if entry.place is None else self.frames.read(entry.section, entry.place)
            place = None if kept is None else frames.add(entry.section, *kept)
            frames.add_entry(entry._replace(place=place))
        frames.flush()
        frames.close()
        _write_index(directory, self.party, self.means)

    @classmethod
    def load(cls, directory: Path, key: StorageKey | None = None) -> Transcript:
        """Read a transcript from a folder; messages are read when they are asked for.

        Args:
            directory: Where a recording was kept, or where `save` wrote.
            key: Under which it is encrypted; None where it is in the clear.
        """
        tree = _read_index(directory, key)
        frames = FramesOnDisk(directory, key)
        entries = tuple(frames.entries())
        frames.close()
        return cls(tree["party"], entries, tuple(_means(item) for item in tree["means"]), frames)


class Digests:
    """Digests of frames, the last few remembered: two parties of one process record the very same object.

    >>> digests, frame = Digests(), b"frame"
    >>> digests.of(frame) is digests.of(frame)
    True
    """

    def __init__(self) -> None:
        self._recent: deque[tuple[Frame, str]] = deque(maxlen=8)

    def of(self, frame: Frame) -> str:
        """The digest of a frame."""
        for known, digest in self._recent:
            if known is frame:
                return digest
        digest = blake3(frame).hexdigest()
        self._recent.append((frame, digest))
        return digest


class Recording:
    """What a party writes down while a run goes on.

    >>> recording = Recording("shop", keep="digests")
    >>> recording.transcript().entries
    ()
    """

    def __init__(
        self,
        party: str,
        keep: Keep,
        directory: Path | None = None,
        *,
        keep_received: Keep | None = None,
        key: StorageKey | None = None,
        digests: Digests | None = None,
    ) -> None:
        self.party, self.keep, self.directory = party, keep, directory
        self._keep_received = keep if keep_received is None else keep_received
        self._thins = "audit" in (self.keep, self._keep_received) and "all" not in (self.keep, self._keep_received)
        self._digests = Digests() if digests is None else digests
        self._entries: list[Entry] = []
        self._means: dict[tuple[str, str, bool, int], RowMeans] = {}
        self._frames: FramesInMemory | FramesOnDisk
        self._frames = FramesInMemory() if directory is None else FramesOnDisk(directory, key)
        self._loop = self._epoch = 0
        self._superseded: list[tuple[int, int]] = []
        self._droppable: list[tuple[int, int]] = []

    def add(
        self,
        message: Message,
        frame: Frame,
        *,
        sent: bool,
        peer: str,
        under: tuple[str, ...] = (),
        rows: Int64Array | None = None,
        epoch: int | None = None,
    ) -> None:
        """Write down one message."""
        section = None if epoch is None else self._enter(epoch)
        place = None
        if (self.keep if sent else self._keep_received) != "digests":
            place = self._frames.add(section, frame, rows)
            if rows is not None and section is not None and message.per_row is not None:
                self._average(message, peer, sent, rows)
        entry = Entry(
            sent=sent,
            peer=peer,
            kind=message.kind,
            reveals=message.revealed,
            under=under,
            fresh=message.fresh,
            size=len(frame),
            digest=self._digests.of(frame),
            section=section,
            place=place,
        )
        self._entries.append(entry)
        if isinstance(self._frames, FramesOnDisk):
            self._frames.add_entry(entry)

    def transcript(self) -> Transcript:
        """What has been recorded so far; with a folder, it is also written there."""
        self._drop(self._droppable + self._superseded)
        self._droppable, self._superseded = [], []
        if isinstance(self._frames, FramesOnDisk):
            self._frames.flush()
            self._frames.close()
            _write_index(self._frames.directory, self.party, tuple(self._means.values()), self._frames.key)
        return Transcript(self.party, tuple(self._entries), tuple(self._means.values()), self._frames)

    def state(self) -> Tree:
        """What a checkpoint needs in order to cut the recording back to this moment."""
        assert isinstance(self._frames, FramesOnDisk), "only a recording on disk can be cut back"
        # The checkpoint before this one may still be the one that all parties go back to, so what was superseded
        # since then must stay until the next.
        self._drop(self._droppable)
        self._droppable, self._superseded = self._superseded, []
        means: Tree = [_means_tree(m) for m in self._means.values()]
        if self._frames.key is not None:
            means = np.frombuffer(self._frames.key.seal(pack(means), _MEANS), np.uint8)
        return {
            "means": means,
            "sizes": self._frames.sizes(),
            "loop": self._loop,
            "epoch": self._epoch,
            "droppable": self._droppable,
        }

    def restore(self, tree: Tree) -> None:
        """Cut the recording back to a checkpoint."""
        assert isinstance(self._frames, FramesOnDisk), "only a recording on disk can be cut back"
        self._frames.cut(tree["sizes"])
        self._entries = self._frames.entries()
        means = tree["means"]
        if self._frames.key is not None:
            means = unpack(self._frames.key.unseal(means.tobytes(), _MEANS))
        self._means = {m.line: m for m in (_means(item) for item in means)}
        self._loop, self._epoch = tree["loop"], tree["epoch"]
        self._droppable, self._superseded = [(loop, epoch) for loop, epoch in tree["droppable"]], []

    def _enter(self, epoch: int) -> tuple[int, int]:
        """The section of an epoch; one that is smaller than the last begins another loop."""
        if epoch < self._epoch:
            self._loop += 1
        elif epoch > self._epoch and self._epoch > 0 and self._thins:
            self._superseded.append((self._loop, self._epoch))
            if self.directory is None:
                self._drop(self._superseded)
                self._superseded = []
        self._epoch = epoch
        return self._loop, epoch

    def _drop(self, sections: list[tuple[int, int]]) -> None:
        for section in sections:
            self._frames.drop(section)

    def _average(self, message: Message, peer: str, sent: bool, rows: Int64Array) -> None:
        assert message.per_row is not None
        values = getattr(message, message.per_row).reshape(len(rows), -1)
        line = (message.kind, peer, sent, self._loop)
        means = self._means.get(line)
        if means is None:
            means = RowMeans(*line, np.zeros((0, values.shape[1]), np.float32), np.zeros(0, np.int64))
        try:
            summed = means.sums.take(rows, axis=0)
        except IndexError:
            means = means.grown(int(rows.max()) + 1)
            summed = means.sums.take(rows, axis=0)
        summed += values
        _as_items(means.sums)[rows] = _as_items(summed)
        means.counts[rows] += 1
        self._means[line] = means


def _close(files: dict[str, BinaryIO]) -> None:
    for file in files.values():
        file.close()
    files.clear()


def _file_name(section: Section) -> str:
    return "other.frames" if section is None else f"loop-{section[0]:03d}-epoch-{section[1]:06d}.frames"


def _as_items(table: Float32Array) -> Any:
    """Each row as one item: NumPy scatters items in a third of the time that it takes for rows of several items."""
    return table.view(f"V{table.itemsize * table.shape[1]}")[:, 0]


def _means_tree(means: RowMeans) -> dict[str, Any]:
    return {**vars(means), "sums": means.sums.copy(), "counts": means.counts.copy()}


def _means(item: Mapping[str, Any]) -> RowMeans:
    return RowMeans(**{**item, "sums": item["sums"].copy(), "counts": item["counts"].copy()})


def _entry(values: list[Any]) -> Entry:
    sent, peer, kind, reveals, under, fresh, size, digest, section, place = values
    at = None if section is None else (section[0], section[1])
    return Entry(sent, peer, kind, tuple(reveals), tuple(under), fresh, size, digest, at, place)


def _at(name: str, place: int, head: bytes = b"") -> bytes:
    """What is authenticated with a record: its file, where in it, and its head, which stands in the clear."""
    return f"{name} {place} ".encode() + head


def _write_index(directory: Path, party: str, means: tuple[RowMeans, ...], key: StorageKey | None = None) -> None:
    tree = {"party": party, "means": [_means_tree(m) for m in means]}
    if key is None:
        write_tree(directory / _INDEX, tree)
    else:
        write_atomically(directory / _SEALED_INDEX, key.seal(pack(tree), _SEALED_INDEX.encode()))


def _read_index(directory: Path, key: StorageKey | None) -> Tree:
    plain, sealed = directory / _INDEX, directory / _SEALED_INDEX
    if key is None:
        if sealed.exists() and not plain.exists():
            raise StorageError(
                f"A recording in the clear was expected in {directory}, but it is encrypted. Name its key file."
            )
        return read_tree(plain)
    if plain.exists() and not sealed.exists():
        raise StorageError(
            f"A recording under a key was expected in {directory}, but it is in the clear. Name no key file."
        )
    with explained(f"read {sealed.name}"):
        data = sealed.read_bytes()
    return unpack(key.unseal(data, _SEALED_INDEX.encode()), sealed.name)
