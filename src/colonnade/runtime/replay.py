"""ReplayGuard: a peer that takes up a run again repeats what it said, or is refused.

What a party draws serves one run: masks, pads, noise, keys, and the charges for them. A run is known by the folders in
which the parties keep it and by the rows that they bring (`colonnade.runtime.session`). So a peer with another folder
or other rows begins another run, for which every party draws and charges again.

A peer that stays in the run must repeat itself. If it said something else in the same place, it would be given a second
answer under the draws of the first, and the difference of the two answers would be free of them. So every line of a
party writes down a digest of each message before the protocol sees the message, and refuses another message in the
same place. Left out are messages that vary by themselves (`Message.varies`): what a party draws after one of these is
drawn from the system at that moment, or bound to the values that the draw protects.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

from blake3 import blake3

from colonnade.errors import PeerChanged, StorageError
from colonnade.runtime.checkpoint import SAID, Checkpoints
from colonnade.storage import append_durably, drop_unfinished, explained
from colonnade.wire.codec import Frame
from colonnade.wire.message import Message


class ReplayGuard:
    """Digests of what peers said in a run, in a file beside the checkpoints, which outlives a crash.

    Args:
        party: The party that hears.
        checkpoints: Its checkpoints, which say in which step of the run the party is. Without a folder, a run is never
            resumed and nothing is kept.

    >>> guard = ReplayGuard("bank", Checkpoints(None))
    """

    def __init__(self, party: str, checkpoints: Checkpoints) -> None:
        self._party, self._checkpoints = party, checkpoints
        self._path = None if checkpoints.directory is None else checkpoints.directory / SAID
        self._n_heard: Counter[tuple[str, str]] = Counter()
        self._kept = {} if self._path is None or not self._path.exists() else _read(self._path)

    def hear(self, peer: str, message: Message, frame: Frame) -> None:
        """Keep the digest of a message, or compare it with the digest of what the peer said in this place before.

        Raises:
            PeerChanged: The peer said something else before.
        """
        if self._path is None or message.varies:
            return
        step = self._checkpoints.at
        place = peer, step, self._n_heard[peer, step]
        self._n_heard[peer, step] += 1
        digest = blake3(frame).hexdigest()
        if place not in self._kept:
            append_durably(self._path, json.dumps([*place, digest]) + "\n")
        elif self._kept[place] != digest:
            raise PeerChanged(
                f"{peer} should resend {self._party} exactly the bytes it sent before when a run resumes, but sent "
                f"another {message.kind}{step and f' in {step}'}: masks and noise of a run serve one answer. Resume "
                f"{peer} from the folder and the table that it had, or let {peer} begin another run in a new folder, "
                "which is charged by itself.",
                peer,
            )


def _read(path: Path) -> dict[tuple[str, str, int], str]:
    drop_unfinished(path)
    with explained(f"read {path}"):
        lines = path.read_text(encoding="utf-8").splitlines()
    try:
        return {(peer, step, number): digest for peer, step, number, digest in map(json.loads, lines)}
    except (ValueError, TypeError) as error:
        raise StorageError(
            f"{path} should hold one message per line, but is damaged. Restore it, or delete the folder of the run to "
            "start again."
        ) from error
