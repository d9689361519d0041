"""join: one party's side of a protocol, among other organisations or within `simulate`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from colonnade.errors import PeerRestarted
from colonnade.runtime.checkpoint import GlobalGenerators
from colonnade.runtime.party import Party
from colonnade.runtime.protocol import Protocol

R = TypeVar("R")


def join(protocol: Protocol[R], party: Party, *, keep: Callable[[R], None] | None = None) -> R:
    """Run one party's side of a protocol: what an organisation does, and what `simulate` does for each party.

    Between machines this waits for all others first and last, and goes back to the newest common checkpoint, entering
    the protocol again, whenever a peer was started again.

    Args:
        protocol: What all parties run.
        party: This one's side.
        keep: Called with the result before the others may leave; what it writes down is safe from a crash afterwards.
            Later nothing else holds the result: a finished run erases its checkpoints and is not run again.
    """
    if party.session is None:
        result = _run(protocol, party)
        if keep is not None:
            keep(result)
        return result
    try:
        # Imports what it needs before anybody can wait for this party.
        GlobalGenerators().seed(0)
        while True:
            ready = party.session.begin(party)
            try:
                result = _run(protocol, ready)
                if keep is not None:
                    keep(result)
                party.session.finish(ready)
            except PeerRestarted:
                # The next attempt writes to the same files, even if something still refers to this recording.
                ready.recording.close()
                continue
            return result
    except BaseException as error:
        party.session.fail(party, error)
        raise
    finally:
        party.session.close()


def _run(protocol: Protocol[R], party: Party) -> R:
    GlobalGenerators().seed(party.random.seed("libraries"))
    return protocol(party)
