"""Two parties on one machine: where they listen, and their certificates."""

from __future__ import annotations

import random
import socket
from pathlib import Path

from colonnade.wire import certs

BANK, SHOP = "bank", "shop"


def free_port() -> int:
    """A port at which nobody listens."""
    # Below the range from which the system takes ports of its own, so that a killed listener gets its port back.
    while True:
        port = random.SystemRandom().randrange(20_000, 32_000)
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)):
                return port


def issue_certificates(directory: Path) -> None:
    """Make both parties' certificates."""
    certs.init(directory)
    for name in (BANK, SHOP):
        certs.issue(directory, name)
