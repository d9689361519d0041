"""Epochs: from where the parties of a run go on when they meet, at the start or after one of them was started again.

Every party says which checkpoints it holds. A run is known by the folders its parties keep it in, whose names follow
from what the parties bring: with a party that has a new folder or another table, all parties begin another run and draw
their randomness again. So two runs of one plan, whose checkpoints have equal numbers, are told apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from typing import Any, NamedTuple

from colonnade.errors import AuthError, VersionMismatch, WireError

NAME_BYTES = 16


class HeldCheckpoint(NamedTuple):
    """What a party holds when it meets the others.

    Attributes:
        newest: The number of its newest checkpoint, 0 if it has none.
        folder: The name of its folder, which follows from a number drawn when the folder was made and from its table.
        run: The name of the run its checkpoints belong to; empty if it has none.
    """

    newest: int
    folder: bytes
    run: bytes = b""


class EpochStart(NamedTuple):
    """How all parties go on.

    Attributes:
        epoch: Counts the meetings; frames of earlier epochs are dropped.
        common: The checkpoint that all go on from, 0 to begin at the beginning.
        run: The name of the run that all go on with.
    """

    epoch: int
    common: int
    run: bytes


def next_start(epoch: int, held: Mapping[str, HeldCheckpoint]) -> EpochStart:
    """How all parties go on, from what each of them holds.

    Args:
        epoch: The number of the coming epoch.
        held: What each party holds.

    Raises:
        AuthError: Some hold checkpoints of different runs, neither of which is the run of all their folders.

    >>> next_start(1, {"bank": HeldCheckpoint(7, b"a", b"another run"), "shop": HeldCheckpoint(0, b"b")}).common
    0
    """
    run = sha256(b"".join(held[name].folder for name in sorted(held))).digest()[:NAME_BYTES]
    holders: dict[bytes, str] = {}
    for name, each in held.items():
        if each.newest:
            holders.setdefault(each.run, name)
    # If a party was killed before it heard of the new run, others hold checkpoints of the new run already.
    if len(holders) > 1 and run not in holders:
        first, second, *_ = holders.values()
        raise AuthError(
            f"{first} and {second} go on with different runs of the same plan. Give both their side of one run, or "
            "delete one side to start anew."
        )
    common = min(each.newest for each in held.values()) if set(holders) == {run} else 0
    return EpochStart(epoch, common, run)


def agree(own: str, mine: dict[str, str], peer: str, theirs: Mapping[str, Any]) -> None:
    """Require that a peer agrees with this party, and take the peer's rows over if this party has none.

    Args:
        own: This party.
        mine: What must be equal at all parties, by name. An arbiter or a server has no rows at first.
        peer: The peer.
        theirs: What the peer says.

    Raises:
        WireError: Something differs.
    """
    for key, value in mine.items():
        if theirs.get(key) != value and not (key == "rows" and theirs.get(key) is None):
            raise _disagreement(key, own, value, peer, theirs.get(key))
    if isinstance(rows := theirs.get("rows"), str):
        mine.setdefault("rows", rows)


def _disagreement(key: str, own: str, mine: str, peer: str, theirs: Any) -> WireError:
    if key == "version":
        return VersionMismatch(
            f"{own} runs Colonnade {mine} and {peer} runs {theirs}. Install the same version at both."
        )
    if key == "protocol":
        return AuthError(f"{own} runs {mine} and {peer} runs {theirs}. Run the same command at both.")
    what = {"plan": "plans", "rows": "rows, or the same rows in another order"}.get(key, key)
    advice = {"plan": "Give both the same plan file.", "rows": "Align the tables first."}.get(key, "Make them equal.")
    return AuthError(f"{own} and {peer} have different {what}. {advice}")
