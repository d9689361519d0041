"""Ports of this machine, for tests in which parties listen."""

from __future__ import annotations

import os
import random
import socket
from itertools import count

FIRST, PER_WORKER, MOST_WORKERS = 10_000, 1_000, 10
_drawn = count(random.SystemRandom().randrange(PER_WORKER))


def free_port() -> int:
    """A port at which nobody listens, another one with each call.

    It lies below the range from which the system takes ports of its own accord, so that a listener that was killed
    gets its port back. Workers of pytest that run at the same time have ranges of their own: a port that was given out
    may have no listener yet.

    >>> 10_000 <= free_port() < 20_000
    True
    """
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % MOST_WORKERS
    while True:
        port = FIRST + PER_WORKER * worker + next(_drawn) % PER_WORKER
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)):
                return port
