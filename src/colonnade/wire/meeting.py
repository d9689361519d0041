"""From where all parties go on when they meet, at the start of a run or after one of them was started anew.

Every party tells the leader what it holds: the number of its newest checkpoint, and the runs it has taken part in. A
run that begins anew gets a name of its own, drawn by the leader, so that sides of different runs of one plan, whose
checkpoints have equal numbers, are told apart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from colonnade.errors import AuthError

RUNS_KEPT = 32
RUN_BYTES = 16


class Held(NamedTuple):
    """What a party holds when it comes to a meeting.

    Attributes:
        newest: The number of its newest checkpoint, 0 if it has none.
        runs: The runs it has taken part in, that of its checkpoints last.
    """

    newest: int
    runs: tuple[bytes, ...] = ()


class Start(NamedTuple):
    """How all go on.

    Attributes:
        epoch: Counts the meetings; what was sent before counts no more.
        common: The checkpoint that all go on from, 0 to begin anew.
        runs: The runs up to now, the one that all go on with last.
    """

    epoch: int
    common: int
    runs: tuple[bytes, ...]


def next_start(epoch: int, held: Mapping[str, Held], run: bytes) -> Start:
    """How all go on, from what each of them holds.

    Args:
        epoch: The number of the coming epoch.
        held: What each party holds, the leader first.
        run: The name of the run if all begin anew.

    Raises:
        AuthError: Some hold checkpoints of runs that have nothing to do with each other.

    >>> next_start(2, {"bank": Held(7, (b"first",)), "shop": Held(5, (b"first",))}, b"second")
    Start(epoch=2, common=5, runs=(b'first',))
    >>> next_start(2, {"bank": Held(7, (b"first",)), "shop": Held(0)}, b"second")
    Start(epoch=2, common=0, runs=(b'first', b'second'))
    """
    histories = {name: runs for name, (newest, runs) in held.items() if newest}
    current = {run for runs in histories.values() for run in runs[-1:]}
    # Whoever was killed before it heard that all begin anew comes with the run before, of which others know.
    complete = [runs for runs in histories.values() if current <= set(runs)]
    if histories and not complete:
        first = next(iter(histories))
        other = next(name for name, runs in histories.items() if not set(runs[-1:]) <= set(histories[first]))
        raise AuthError(
            f"{first} and {other} go on with different runs of the same plan. Give both their side of one run, or "
            "delete one side to start anew."
        )
    common = min(each.newest for each in held.values()) if len(current) <= 1 else 0
    past = complete[0] if complete else ()
    return Start(epoch, common, past if common else (*past, run)[-RUNS_KEPT:])


def are_runs(names: Sequence[Any]) -> bool:
    """Whether what a peer sent are the names of runs."""
    return len(names) <= RUNS_KEPT and all(isinstance(name, bytes) and len(name) == RUN_BYTES for name in names)
