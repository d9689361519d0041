"""Recording and Transcript: all that one party sent and received, as far as it is kept.

A recording is written while a run goes on; a transcript is read afterwards. Of every message the digest, the length and
what it reveals are kept. Whether the message itself is kept is said by `Keep`:

    "all"      every message
    "audit"    messages outside the training loop, and those of the first and the last epoch; of the others the mean per
               row over epochs (what the catalogue's attacks read)
    "digests"  none
"""

from __future__ import annotations

import json
import os
import struct
import weakref
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Generic, Literal, TypeAlias, TypeVar

import numpy as np
from blake3 import blake3

from colonnade.errors import PrivacyError, StorageError
from colonnade.storage import Tree, explained, read_tree, write_tree
from colonnade.wire.codec import decode
from colonnade.wire.message import Float32Array, Int64Array, Message

M = TypeVar("M", bound=Message)
Keep: TypeAlias = Literal["all", "audit", "digests"]


@dataclass(frozen=True, slots=True)
class Entry:
    """One message as a party's recording saw it: everything but its contents."""

    sent: bool
    peer: str
    kind: str
    reveals: tuple[str, ...]
    under: tuple[str, ...]
    fresh: bool
    size: int
    digest: str
    epoch: int | None
    place: int | None


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
    """Running sums per row over epochs, of one kind of message to or from one peer."""

    kind: str
    peer: str
    sent: bool
    sums: Float32Array
    counts: Int64Array

    def grown(self, n_rows: int) -> RowMeans:
        """The same with room for at least so many rows."""
        missing = n_rows - len(self.counts)
        if missing <= 0:
            return self
        sums = np.pad(self.sums, ((0, missing), (0, 0)))
        return RowMeans(self.kind, self.peer, self.sent, sums, np.pad(self.counts, (0, missing)))


class FramesInMemory:
    """Kept frames as objects."""

    def __init__(self) -> None:
        self._lists: dict[int | None, list[tuple[bytes, Int64Array | None]]] = {}

    def add(self, epoch: int | None, frame: bytes, rows: Int64Array | None) -> int:
        """Keep a frame; returns its place within the epoch."""
        frames = self._lists.setdefault(epoch, [])
        frames.append((frame, rows))
        return len(frames) - 1

    def read(self, epoch: int | None, place: int) -> tuple[bytes, Int64Array | None] | None:
        """A kept frame, or None if it was dropped."""
        frames = self._lists.get(epoch)
        return None if frames is None else frames[place]

    def drop(self, epoch: int) -> None:
        """Forget an epoch."""
        self._lists.pop(epoch, None)

    def epochs(self) -> list[int]:
        """The epochs of which something is kept."""
        return [epoch for epoch in self._lists if epoch is not None]


class FramesOnDisk:
    """Kept frames in one append-only file per epoch, cut back to a checkpoint when a run resumes."""

    _HEAD = struct.Struct("<qq")

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._open: dict[int | None, BinaryIO] = {}
        weakref.finalize(self, _close, self._open)
        with explained("open the recording"):
            directory.mkdir(parents=True, exist_ok=True)

    def add(self, epoch: int | None, frame: bytes, rows: Int64Array | None) -> int:
        """Append a frame; returns its offset in the epoch's file."""
        with explained("write the recording"):
            if epoch not in self._open:
                self._open[epoch] = self._path(epoch).open("ab")
            file = self._open[epoch]
            place = file.tell()
            file.write(self._HEAD.pack(len(frame), -1 if rows is None else len(rows)))
            if rows is not None:
                file.write(rows.tobytes())
            file.write(frame)
        return place

    def read(self, epoch: int | None, place: int) -> tuple[bytes, Int64Array | None] | None:
        """A kept frame, or None if its epoch was dropped."""
        if epoch in self._open:
            self._open[epoch].flush()
        elif not self._path(epoch).exists():
            return None
        with explained("read the recording"), self._path(epoch).open("rb") as file:
            file.seek(place)
            size, n_rows = self._HEAD.unpack(file.read(self._HEAD.size))
            rows = None if n_rows < 0 else np.frombuffer(file.read(8 * n_rows), np.int64)
            return file.read(size), rows

    def drop(self, epoch: int) -> None:
        """Delete an epoch's file."""
        file = self._open.pop(epoch, None)
        if file is not None:
            file.close()
        self._path(epoch).unlink(missing_ok=True)

    def epochs(self) -> list[int]:
        """The epochs of which something is kept."""
        stems = (path.stem for path in self.directory.glob("epoch-*.frames"))
        return sorted(int(stem.removeprefix("epoch-")) for stem in stems)

    def sizes(self) -> dict[str, int]:
        """The length of every file, after all of it has reached the disk."""
        with explained("write the recording"):
            for file in self._open.values():
                file.flush()
                os.fsync(file.fileno())
            return {path.name: path.stat().st_size for path in self.directory.glob("*.frames")}

    def cut(self, sizes: Mapping[str, int]) -> None:
        """Cut every file back to an earlier length."""
        self.close()
        with explained("cut back the recording"):
            for path in self.directory.glob("*.frames"):
                if path.name not in sizes:
                    path.unlink()
                elif path.stat().st_size < sizes[path.name]:
                    raise StorageError(
                        f"The recording's {path.name} is shorter than its checkpoint says. "
                        "It was changed from outside; start the run in a new folder."
                    )
                else:
                    with path.open("r+b") as file:
                        file.truncate(sizes[path.name])

    def close(self) -> None:
        """Close all files."""
        with explained("write the recording"):
            _close(self._open)

    def _path(self, epoch: int | None) -> Path:
        return self.directory / ("other.frames" if epoch is None else f"epoch-{epoch:06d}.frames")


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
            kept = self.frames.read(entry.epoch, entry.place)
            if kept is not None:
                frame, rows = kept
                yield Recorded(decode(frame, kind, peer=entry.peer), entry.peer, entry.sent, rows, entry.epoch)

    def row_means(self, kind: type[Message], *, peer: str | None = None, sent: bool | None = None) -> Float32Array:
        """The mean over epochs, per row, of a message's rows; NaN for rows it was never about."""
        found = [m for m in self.means if m.kind == kind.kind and peer in (None, m.peer) and sent in (None, m.sent)]
        if len(found) != 1:
            raise PrivacyError(
                f"Row means of {kind.kind} should come from one line, but {self.party} recorded {len(found)}. "
                "Name the peer and the direction, and record with keep='audit' or 'all'."
            )
        counts = found[0].counts[:, None].astype(np.float32)
        with np.errstate(invalid="ignore"):
            return found[0].sums / counts

    def digests(self, *, fresh: bool = False) -> tuple[tuple[str, bool, str, str], ...]:
        """Peer, direction, kind and digest of each message: what must be equal when a run is repeated.

        Args:
            fresh: Include kinds drawn from system randomness, which differ by design.
        """
        return tuple((e.peer, e.sent, e.kind, e.digest) for e in self.entries if fresh or not e.fresh)

    def save(self, directory: Path) -> None:
        """Write the transcript into a folder."""
        frames = FramesOnDisk(directory)
        entries = []
        for entry in self.entries:
            kept = None if entry.place is None else self.frames.read(entry.epoch, entry.place)
            place = None if kept is None else frames.add(entry.epoch, *kept)
            entries.append({**asdict(entry), "place": place})
        frames.close()
        _write_index(directory, self.party, entries, self.means)

    @classmethod
    def load(cls, directory: Path) -> Transcript:
        """Read a transcript from a folder; messages are read when they are asked for."""
        tree = read_tree(directory / "index.safetensors")
        entries = tuple(_entry(item) for item in json.loads(tree["entries"]))
        means = tuple(_means(item) for item in tree["means"])
        return cls(tree["party"], entries, means, FramesOnDisk(directory))


class Recording:
    """What a party writes down while a run goes on.

    >>> recording = Recording("shop", keep="digests")
    >>> recording.transcript().entries
    ()
    """

    def __init__(
        self, party: str, keep: Keep, directory: Path | None = None, *, keep_received: Keep | None = None
    ) -> None:
        self.party, self.keep, self.directory = party, keep, directory
        self._keep_received = keep if keep_received is None else keep_received
        self._entries: list[Entry] = []
        self._means: dict[tuple[str, str, bool], RowMeans] = {}
        self._frames: FramesInMemory | FramesOnDisk = FramesInMemory() if directory is None else FramesOnDisk(directory)
        self._epoch = 0
        self._epoch_at_checkpoint = 0

    def add(
        self,
        message: Message,
        frame: bytes,
        *,
        sent: bool,
        peer: str,
        under: tuple[str, ...] = (),
        rows: Int64Array | None = None,
        epoch: int | None = None,
    ) -> None:
        """Write down one message."""
        place = None
        if (self.keep if sent else self._keep_received) != "digests":
            if epoch is not None and epoch > self._epoch:
                self._epoch = epoch
                if self.directory is None:
                    self._forget_epochs_before(epoch)
            place = self._frames.add(epoch, frame, rows)
            if rows is not None and epoch is not None and message.per_row is not None:
                self._average(message, peer, sent, rows)
        self._entries.append(
            Entry(
                sent=sent,
                peer=peer,
                kind=message.kind,
                reveals=tuple(sorted(message.reveals)),
                under=under,
                fresh=message.fresh,
                size=len(frame),
                digest=blake3(frame).hexdigest(),
                epoch=epoch,
                place=place,
            )
        )

    def transcript(self) -> Transcript:
        """What has been recorded so far; with a folder, it is also written there."""
        if isinstance(self._frames, FramesOnDisk):
            self._forget_epochs_before(self._epoch)
            self._frames.close()
            entries = [asdict(entry) for entry in self._entries]
            _write_index(self._frames.directory, self.party, entries, tuple(self._means.values()))
        return Transcript(self.party, tuple(self._entries), tuple(self._means.values()), self._frames)

    def counts(self) -> dict[str, int]:
        """How many messages went to and came from each peer."""
        counted = Counter(f"{'to' if entry.sent else 'from'} {entry.peer}" for entry in self._entries)
        return dict(sorted(counted.items()))

    def state(self) -> Tree:
        """What a checkpoint needs in order to cut the recording back to this moment."""
        assert isinstance(self._frames, FramesOnDisk), "only a recording on disk can be cut back"
        # An earlier checkpoint may still be the one that all parties go back to, so its epoch stays whole.
        self._forget_epochs_before(self._epoch_at_checkpoint)
        self._epoch_at_checkpoint = self._epoch
        return {
            "entries": json.dumps([asdict(entry) for entry in self._entries]),
            "means": [_means_tree(m) for m in self._means.values()],
            "sizes": self._frames.sizes(),
            "epoch": self._epoch,
        }

    def restore(self, tree: Tree) -> None:
        """Cut the recording back to a checkpoint."""
        assert isinstance(self._frames, FramesOnDisk), "only a recording on disk can be cut back"
        self._frames.cut(tree["sizes"])
        self._entries = [_entry(item) for item in json.loads(tree["entries"])]
        means = (_means(item) for item in tree["means"])
        self._means = {(m.kind, m.peer, m.sent): m for m in means}
        self._epoch = self._epoch_at_checkpoint = tree["epoch"]

    def _forget_epochs_before(self, epoch: int) -> None:
        if self.keep == "audit":
            for old in self._frames.epochs():
                if 0 < old < epoch:
                    self._frames.drop(old)

    def _average(self, message: Message, peer: str, sent: bool, rows: Int64Array) -> None:
        assert message.per_row is not None
        values = getattr(message, message.per_row)
        key = (message.kind, peer, sent)
        means = self._means.get(key)
        if means is None:
            empty = np.zeros((0, values.shape[1]), np.float32)
            means = RowMeans(message.kind, peer, sent, empty, np.zeros(0, np.int64))
        means = means.grown(int(rows.max(initial=-1)) + 1)
        means.sums[rows] += values
        means.counts[rows] += 1
        self._means[key] = means


def _close(files: dict[int | None, BinaryIO]) -> None:
    for file in files.values():
        file.close()
    files.clear()


def _means_tree(means: RowMeans) -> dict[str, Any]:
    plain = {"kind": means.kind, "peer": means.peer, "sent": means.sent}
    return {**plain, "sums": means.sums.copy(), "counts": means.counts.copy()}


def _means(item: Mapping[str, Any]) -> RowMeans:
    return RowMeans(**{**item, "sums": item["sums"].copy(), "counts": item["counts"].copy()})


def _entry(item: Mapping[str, Any]) -> Entry:
    return Entry(**{**item, "reveals": tuple(item["reveals"]), "under": tuple(item["under"])})


def _write_index(directory: Path, party: str, entries: list[dict[str, Any]], means: tuple[RowMeans, ...]) -> None:
    tree = {"party": party, "entries": json.dumps(entries), "means": [_means_tree(m) for m in means]}
    write_tree(directory / "index.safetensors", tree)
