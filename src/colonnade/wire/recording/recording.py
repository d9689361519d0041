"""Recording: what a party writes down of its messages while a run goes on.

Of every message the digest, the length and what it reveals are kept. `Keep` says which messages are kept themselves:

    "all"      every message
    "audit"    messages outside training loops, and those of each loop's first and last epoch; of the others the mean
               per row over epochs (what the catalogue's attacks read)
    "digests"  none

A recording in a folder may be encrypted under a `StorageKey`: messages, row means and entries, whose digests would let
others guess a short message. File names and lengths stay readable.
"""

from __future__ import annotations

from collections import deque
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
from blake3 import blake3

from colonnade.storage import Tree, pack, unpack
from colonnade.wire.codec import Frame
from colonnade.wire.message import Float32Array, Int64Array, Message
from colonnade.wire.recording.frames import Entry, FramesInMemory, FramesOnDisk
from colonnade.wire.recording.storage_key import StorageKey
from colonnade.wire.recording.transcript import RowMeans, Transcript, write_index

Keep: TypeAlias = Literal["all", "audit", "digests"]

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

    @property
    def n_bytes(self) -> int:
        """How many bytes the messages so far have, both ways."""
        return sum(entry.size for entry in self._entries)

    def transcript(self) -> Transcript:
        """What has been recorded so far; with a folder, it is also written there."""
        self._drop(self._droppable + self._superseded)
        self._droppable, self._superseded = [], []
        if isinstance(self._frames, FramesOnDisk):
            self._frames.flush()
            self._frames.close()
            write_index(self._frames.directory, self.party, tuple(self._means.values()), self._frames.key)
        return Transcript(self.party, tuple(self._entries), tuple(self._means.values()), self._frames)

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
