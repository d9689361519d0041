"""Bound: what a peer said in a run it must say again, byte for byte, where the run is taken up.

Whoever comes back after a crash sends its messages again, and they are the same, for its secrets were written down
before their first use. Somebody who sends others asks a second question in a run that counts once; and since the answer
would be given under the secrets of the first, both together would tell more than two runs do. So a digest of every
message is written down before anything is done with it, whoever sent it and in whatever step, and stays there when the
run has finished. Another message in its place is refused.

What side processes say to each other does not come this way, and a peer may give its one any list. What parties say
about where these meet differs each time. That they met is written down, and where they meet again over the same bucket
it counts as another alignment.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

from blake3 import blake3

from colonnade.align.limits import Limits
from colonnade.align.messages import Finished, Meeting
from colonnade.crypto.curve import make_key
from colonnade.errors import StorageError
from colonnade.storage import append_durably, drop_unfinished, explained
from colonnade.wire.codec import encode
from colonnade.wire.message import Message


class Said:
    """What peers said in the steps of a run, as a file that outlives every crash of this party.

    Args:
        path: The file; None remembers nothing, for a run that is never taken up.
        limits: What counts and refuses.
        party: Who listens.
        run: What the log calls this run.

    >>> Said(None, Limits(), "shop", "a run").keep("bank", Finished(1))
    """

    def __init__(self, path: Path | None, limits: Limits, party: str, run: str) -> None:
        self.step = ""
        self._path, self._limits, self._party, self._run = path, limits, party, run
        self._n_heard: Counter[tuple[str, str]] = Counter()
        self._kept = {} if path is None or not path.exists() else _read(path)

    def keep(self, peer: str, message: Message) -> None:
        """Write down the next message of a peer in this step, or compare it with the one that came there before."""
        number = self._n_heard[peer, self.step]
        self._n_heard[peer, self.step] += 1
        place, varies = (peer, self.step, number), isinstance(message, Meeting | Finished)
        digest = message.kind if varies else blake3(encode(message)).hexdigest()
        if place not in self._kept:
            if self._path is not None:
                append_durably(self._path, json.dumps([*place, digest]) + "\n")
        elif self._kept[place] != digest:
            self._limits.refuse_other(self._party, peer, self._run)
        elif varies and number == 0:
            self._limits.admit(self._party, peer, f"{self._run} again {make_key().hex()[:16]}")


def _read(path: Path) -> dict[tuple[str, str, int], str]:
    drop_unfinished(path)
    with explained(f"read {path}"):
        lines = path.read_text(encoding="utf-8").splitlines()
    try:
        return {(peer, step, number): digest for peer, step, number, digest in map(json.loads, lines)}
    except (ValueError, TypeError) as error:
        raise StorageError(
            f"{path} should hold one message per line, but is damaged. Restore it, or delete the folder of the run to "
            "start anew."
        ) from error
