"""Signs of shared numbers by oblivious transfer: as many comparisons as a tree with hidden sums takes.

38,409 comparisons of numbers of 40 bits, for trees of depth 5 on 20 columns with 32 bins. Both sides run in this
process by one thread, and times are processor seconds. What is made ahead depends on no input. Bytes are those of both
sides.
"""

from __future__ import annotations

from collections.abc import Mapping
from time import process_time
from typing import Any

import numpy as np

from colonnade.crypto.paired import chooser_stock, negative, sender_stock
from colonnade.crypto.shares import Share
from colonnade.crypto.transfers import Chooser, Sender, Turns, in_turns

TARGETS: Mapping[str, float] = {"cpu_s": 1.0, "mb": 60.0}
COUNT, BITS = 38_409, 40


def counted(turns: Turns[Any], sent: list[int]) -> Turns[Any]:
    """The same turns, with the bytes and the number of those that send anything noted down."""
    try:
        out = next(turns)
        while True:
            sent.append(out.nbytes)
            out = turns.send((yield out))
    except StopIteration as end:
        return end.value


def shares(count: int) -> tuple[Share, Share, np.ndarray[Any, Any]]:
    """Shares of numbers of 39 bits and a sign, and which of them are negative."""
    random = np.random.default_rng(0)
    numbers = random.integers(-(2**39), 2**39, count)
    first = random.integers(0, 2**64, count, dtype=np.uint64)
    return first, numbers.view(np.uint64) - first, numbers < 0


def measure(*, quick: bool) -> dict[str, float]:
    """Seconds and megabytes for one tree's comparisons, and microseconds for one."""
    count = 1000 if quick else COUNT
    chooser = Chooser()
    start = process_time()
    sender = Sender(chooser.point)
    chooser.begin(sender.points)
    base = process_time() - start
    # The first stock pays for the compiler.
    sender_stock(sender, 10, BITS, chooser_stock(chooser, 10, BITS)[1])
    first, second, expected = shares(count)
    start = process_time()
    ours, sent = chooser_stock(chooser, count, BITS)
    theirs = sender_stock(sender, count, BITS, sent)
    ahead = process_time() - start
    messages: list[int] = []
    start = process_time()
    found = in_turns(counted(negative(first, BITS, ours), messages), counted(negative(second, BITS, theirs), messages))
    online = process_time() - start
    if not ((found[0] ^ found[1]).astype(bool) == expected).all():
        raise RuntimeError("Shared signs should be those of the numbers and are not.")
    scale = COUNT / count
    return {
        "cpu_s": (ahead + online) * scale,
        "mb": (sent.nbytes + sum(messages)) * scale / 1e6,
        "online_s": online * scale,
        "online_mb": sum(messages) * scale / 1e6,
        "turns": len(messages) / 2,
        "base_ms": 1e3 * base,
        "us_per_comparison": (ahead + online) / count * 1e6,
    }
