"""Transcript: all one party saw of a run, read from what its recording kept."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
from blake3 import blake3

from colonnade.errors import PrivacyError, StorageError
from colonnade.storage import Tree, explained, pack, read_tree, unpack, write_atomically, write_tree
from colonnade.wire.codec import decode
from colonnade.wire.message import Float32Array, Int64Array, Message
from colonnade.wire.recording.frames import Entry, FramesInMemory, FramesOnDisk
from colonnade.wire.recording.storage_key import StorageKey

M = TypeVar("M", bound=Message)

_INDEX, _SEALED_INDEX = "index.safetensors", "index.sealed"


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

    @classmethod
    def of(cls, tree: Mapping[str, Any]) -> RowMeans:
        """The means that `tree` turned into a tree."""
        return cls(**{**tree, "sums": tree["sums"].copy(), "counts": tree["counts"].copy()})

    def tree(self) -> dict[str, Any]:
        """The means as a tree."""
        return {**vars(self), "sums": self.sums.copy(), "counts": self.counts.copy()}

    @property
    def line(self) -> tuple[str, str, bool, int]:
        """What these are the sums of."""
        return self.kind, self.peer, self.sent, self.loop

    def grown(self, n_rows: int) -> RowMeans:
        """The same with room for at least this many rows."""
        missing = n_rows - len(self.counts)
        if missing <= 0:
            return self
        return RowMeans(*self.line, np.pad(self.sums, ((0, missing), (0, 0))), np.pad(self.counts, (0, missing)))


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
        """This transcript behind an earlier run's; of the earlier run only the entries are kept, not the messages."""
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
        write_index(directory, self.party, self.means)

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
        return cls(tree["party"], entries, tuple(RowMeans.of(item) for item in tree["means"]), frames)


def write_index(directory: Path, party: str, means: tuple[RowMeans, ...], key: StorageKey | None = None) -> None:
    """Write what `Transcript.load` needs beside the frames and entries."""
    tree = {"party": party, "means": [m.tree() for m in means]}
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
