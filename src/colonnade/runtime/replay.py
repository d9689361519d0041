"""ReplayGuard: a peer that resumes a run must resend exactly the bytes it sent before the crash.

What a party draws once in a run, such as secrets of an alignment or masks and noise of a release, answers one question.
A peer that came back with other inputs would ask a second one under the same draws, and the difference of the two
answers would be free of them. So a party stores a digest of every message before it uses the message, keeps the digests
after the run, and refuses a different message in the same place.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from blake3 import blake3

from colonnade.errors import PrivacyError, StorageError
from colonnade.runtime.party import Party
from colonnade.storage import append_durably, drop_unfinished, explained
from colonnade.wire.codec import encode
from colonnade.wire.message import Message


class ReplayGuard:
    """Digests of all messages of a run, in a file that outlives every crash of this party.

    Args:
        path: The file; None stores nothing, for a run that is never resumed.
        refuse: Called with a peer that sent another message than before; raises.
        varying: Kinds of messages that differ whenever they are sent, because fresh randomness hides what they hold.
            Of these only the kind is compared.
        met_again: Called with a peer that sends the first message of a step again, if that message varies.

    Attributes:
        step: The step of the run that messages are counted in.

    >>> ReplayGuard(None, refuse=print).step
    ''
    """

    def __init__(
        self,
        path: Path | None,
        *,
        refuse: Callable[[str], object],
        varying: tuple[type[Message], ...] = (),
        met_again: Callable[[str], None] = lambda peer: None,
    ) -> None:
        self.step = ""
        self._path, self._refuse, self._varying, self._met_again = path, refuse, varying, met_again
        self._n_heard: Counter[tuple[str, str]] = Counter()
        self._kept = {} if path is None or not path.exists() else _read(path)

    def keep(self, peer: str, message: Message) -> None:
        """Store the digest of a peer's next message in this step, or compare it with the stored one."""
        number = self._n_heard[peer, self.step]
        self._n_heard[peer, self.step] += 1
        place, varies = (peer, self.step, number), isinstance(message, self._varying)
        digest = message.kind if varies else blake3(encode(message)).hexdigest()
        if place not in self._kept:
            if self._path is not None:
                append_durably(self._path, json.dumps([*place, digest]) + "\n")
        elif self._kept[place] != digest:
            self._refuse(peer)
        elif varies and number == 0:
            self._met_again(peer)


def guarded(party: Party, name: str, *, varying: tuple[type[Message], ...] = ()) -> Party:
    """The same party, which holds every peer to the bytes that the peer sent before a run was resumed.

    Args:
        party: The party.
        name: What the exchange is called, in the name of a file and in errors.
        varying: Kinds of messages that differ whenever they are sent.

    Raises:
        PrivacyError: Later, where a peer resumes with other inputs.
    """

    def refuse(peer: str) -> None:
        raise PrivacyError(
            f"{peer} should resend {party.name} exactly the bytes it sent before when a run resumes, but sent other "
            f"bytes: {party.name}'s masks and noise of the {name} serve one release only. Resume {peer} from the "
            "folder and the table that it had, or begin another run in new folders, which is charged by itself."
        )

    folder = party.checkpoints.directory
    guard = ReplayGuard(folder and folder / f"said-{name}", refuse=refuse, varying=varying)
    return replace(party, peers={peer: line.heard_by(guard.keep) for peer, line in party.peers.items()})


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
