"""Patience: how long a party waits for what."""

from __future__ import annotations

from dataclasses import dataclass

from colonnade.wire.grpc.link import HEARTBEAT_S


@dataclass(frozen=True)
class Patience:
    """How long a party waits, in seconds, before it gives up with a reason.

    Attributes:
        start: For all parties to come together at the beginning.
        rejoin: For a peer whose connection broke, or who crashed, to come back.
        silence: Without any sign of life before a connection counts as broken.
        message: For a message of a peer that is alive.
        heartbeat: Between two signs of life of this party while it has nothing else to send.
    """

    start: float = 600.0
    rejoin: float = 1800.0
    silence: float = 30.0
    message: float = 3600.0
    heartbeat: float = HEARTBEAT_S
