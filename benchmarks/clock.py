"""How long things take, on a machine that does other things as well."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from time import perf_counter


def median_time(act: Callable[[], object], *, times: int) -> float:
    """The median duration of an act in seconds, after a tenth as many acts that do not count."""
    for _ in range(times // 10):
        act()
    durations = []
    for _ in range(times):
        start = perf_counter()
        act()
        durations.append(perf_counter() - start)
    return median(durations)
