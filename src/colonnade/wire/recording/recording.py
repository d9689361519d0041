"""Recording: what a party writes down of its messages while a run goes on; and the transcript read from that.

Of every message the digest, the length and what it reveals are kept. `Keep` says which messages are kept themselves:

    "all"      every message
    "audit"    messages outside training loops, and those of each loop's first and last epoch; of the others the mean
               per row over epochs (what the catalogue's attacks read)
    "digests"  none

A message that is secret (`Message.secret`) is never kept, nor its digest: a digest lets others check a guess.

A recording in a folder may be encrypted under a `StorageKey`: messages, row means and entries, whose digests would let
others guess a short message. File names and lengths stay readable.
"""

from __future__ import annotations

import shutil
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeAlias, TypeVar

import numpy as np
from blake3 import blake3

from colonnade.errors import PrivacyError, StorageError
from colonnade.storage import Tree, explained, pack, read_tree, unpack, write_atomically, write_tree
from colonnade.wire.codec import Frame, decode
from colonnade.wire.message import Float32Array, Int64Array, Message
from colonnade.wire.recording.frames import Entry, FramesInMemory, FramesOnDisk

if TYPE_CHECKING:
    from colonnade.wire.recording.storage_key import StorageKey

M = TypeVar("M", bound=Message)
Keep: TypeAlias = Literal["all", "audit", "digests"]

_INDEX, _SEALED_INDEX = "index.safetensors", "index.sealed"
_MEANS = b"means in a checkpoint"


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
        self.notes: dict[str, Callable[[], Tree]] = {}
        """What the party's defences have to say of the run, asked for when the transcript is made."""
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
        if not message.secret and (self.keep if sent else self._keep_received) != "digests":
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
            digest="" if message.secret else self._digests.of(frame),
            section=section,
            place=place,
        )
        self._entries.append(entry)
        if isinstance(self._frames, FramesOnDisk):
            self._frames.add_entry(entry)

    @property
    def n_bytes(self) -> int:
        """How many bytes the messages so far have, both ways."""
        return sum(entry.size for entry in self._entries)

    def transcript(self) -> Transcript:
        """What has been recorded so far; with a folder, it is also written there."""
        self._drop(self._droppable + self._superseded)
        self._droppable, self._superseded = [], []
        notes = {name: said() for name, said in self.notes.items()}
        if isinstance(self._frames, FramesOnDisk):
            self._frames.flush()
            self._frames.close()
            write_index(self._frames.directory, self.party, tuple(self._means.values()), notes, self._frames.key)
        return Transcript(self.party, tuple(self._entries), tuple(self._means.values()), self._frames, notes)

    def beside(self, name: str) -> Recording:
        """An empty recording of the same kind, in a folder of this name beside that of this one."""
        folder = None if self.directory is None else self.directory.with_name(name)
        if folder is not None:
            # A run that was taken up again begins it again.
            shutil.rmtree(folder, ignore_errors=True)
        key = self._frames.key if isinstance(self._frames, FramesOnDisk) else None
        return Recording(
            self.party, self.keep, folder, keep_received=self._keep_received, key=key, digests=self._digests
        )

    def close(self) -> None:
        """Hand what was recorded to the disk, and close the files."""
        if isinstance(self._frames, FramesOnDisk):
            self._frames.close()

    def state(self) -> Tree:
        assert isinstance(self._frames, FramesOnDisk), "only a recording on disk can be cut back"
        # The checkpoint before this one may still be the one that all parties go back to, so what was superseded
        # since then must stay until the next.
        self._drop(self._droppable)
        self._droppable, self._superseded = self._superseded, []
        means: Tree = [m.tree() for m in self._means.values()]
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
        assert isinstance(self._frames, FramesOnDisk), "only a recording on disk can be cut back"
        self._frames.cut(tree["sizes"])
        self._entries = self._frames.entries()
        means = tree["means"]
        if self._frames.key is not None:
            means = unpack(self._frames.key.unseal(means.tobytes(), _MEANS))
        self._means = {m.line: m for m in (RowMeans.of(item) for item in means)}
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


def _as_items(table: Float32Array) -> Any:
    """Each row as one item: NumPy scatters items in a third of the time that it takes for rows of several items."""
    return table.view(f"V{table.itemsize * table.shape[1]}")[:, 0]


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
    """All one party saw of a run: what it sent, what it received, and what its defences noted.

    >>> Transcript("shop").entries
    ()
    """

    party: str
    entries: tuple[Entry, ...] = ()
    means: tuple[RowMeans, ...] = ()
    frames: FramesInMemory | FramesOnDisk = field(default_factory=FramesInMemory, repr=False, compare=False)
    notes: Mapping[str, Tree] = field(default_factory=dict)

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
        write_index(directory, self.party, self.means, self.notes)

    @classmethod
    def load(cls, directory: Path, key: StorageKey | None = None) -> Transcript:
        """Read a transcript from a folder; messages are read when they are asked for."""
        tree = _read_index(directory, key)
        frames = FramesOnDisk(directory, key)
        entries = tuple(frames.entries())
        frames.close()
        means = tuple(RowMeans.of(item) for item in tree["means"])
        return cls(tree["party"], entries, means, frames, tree.get("notes", {}))


def write_index(
    directory: Path,
    party: str,
    means: tuple[RowMeans, ...],
    notes: Mapping[str, Tree],
    key: StorageKey | None = None,
) -> None:
    """Write what `Transcript.load` needs beside the frames and entries."""
    tree = {"party": party, "means": [m.tree() for m in means], "notes": dict(notes)}
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
