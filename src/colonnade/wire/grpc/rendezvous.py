"""From where all parties go on when they meet, at the start of a run or after one of them was started anew.

Every party tells the leader what it holds. A run is known by the folders that its parties keep it in: whoever begins
with a new folder draws new randomness, and with it all begin a new run. So the sides of different runs of one plan,
whose checkpoints have equal numbers, are told apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from typing import NamedTuple

from colonnade.errors import AuthError

NAME_BYTES = 16


class Held(NamedTuple):
    """What a party holds when it comes to a meeting.

    Attributes:
        newest: The number of its newest checkpoint, 0 if it has none.
        folder: The name of its folder, drawn when the folder was made.
        run: The name of the run that its checkpoints are of; empty if it has none.
    """

    newest: int
    folder: bytes
    run: bytes = b""


class Start(NamedTuple):
    """How all go on.

    Attributes:
        epoch: Counts the meetings; what was sent before counts no more.
        common: The checkpoint that all go on from, 0 to begin anew.
        run: The name of the run that all go on with.
    """

    epoch: int
    common: int
    run: bytes


def next_start(epoch: int, held: Mapping[str, Held]) -> Start:
    """How all go on, from what each of them holds.

    Args:
        epoch: The number of the coming epoch.
        held: What each party holds.

    Raises:
        AuthError: Some hold checkpoints of different runs, neither of which is the one of all their folders.

    >>> next_start(1, {"bank": Held(7, b"a", b"another run"), "shop": Held(0, b"b")}).common
    0
    """
    run = sha256(b"".join(held[name].folder for name in sorted(held))).digest()[:NAME_BYTES]
    holders: dict[bytes, str] = {}
    for name, each in held.items():
        if each.newest:
            holders.setdefault(each.run, name)
    # Where one was killed before it heard that all begin anew, others hold checkpoints of the new run already.
    if len(holders) > 1 and run not in holders:
        first, second, *_ = holders.values()
        raise AuthError(
            f"{first} and {second} go on with different runs of the same plan. Give both their side of one run, or "
            "delete one side to start anew."
        )
    common = min(each.newest for each in held.values()) if set(holders) == {run} else 0
    return Start(epoch, common, run)
