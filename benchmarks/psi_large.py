"""Two parties intersect ten million ids each, half of them common, in memory that hardly grows with their number.

As in `psi`, each party is a process of its own with one worker, on loopback, and the result is checked. Memory is the
higher of the two parties', above what it takes with its table loaded and before the alignment begins; what the side
process of RR22 takes, some 700 MB, comes besides. With the built-in engine this takes about half an hour on two cores.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path

from benchmarks.loopback import free_port
from benchmarks.psi import SPU, Pair, environment
from colonnade.align import Settings
from colonnade.align.settings import Engine

# Bytes by which each further id of a party raises its memory: the bound that the documentation states.
TARGETS: Mapping[str, float] = {"bytes_per_id": 32.0, "rr22_bytes_per_id": 32.0}


def measure(*, quick: bool) -> dict[str, float]:
    """Both engines, at two sizes each."""
    small, large = (20_000, 40_000) if quick else (2_000_000, 10_000_000)
    figures: dict[str, float] = {"ids": float(large)}
    engines: tuple[tuple[Engine, str], ...] = (("rr22", "rr22_"), ("ecdh", ""))
    for engine, prefix in engines:
        few, many = (intersect(engine, n_ids) for n_ids in (small, large))
        figures |= {
            f"{prefix}bytes_per_id": (many["mb"] - few["mb"]) * 1e6 / (large - small),
            f"{prefix}above_idle_mb": many["mb"],
            f"{prefix}peak_mb": many["peak_mb"],
            f"{prefix}s": many["wall"],
            f"{prefix}cpu_s": many["cpu"],
        }
        if engine == "ecdh":  # what RR22 sends goes over a line of its own
            figures["wire_mb"] = many["bytes"] / 1e6
    return figures


def intersect(engine: Engine, n_ids: int) -> dict[str, float]:
    """One intersection from start to end."""
    spu = environment("psi-fast", SPU, "--no-deps")
    with tempfile.TemporaryDirectory() as folder:
        found = Pair(Path(folder), free_port(), n_ids, Settings(engine=engine), spu, watched=True).run()
    print(f"{engine}, {n_ids:,} ids: {found}", flush=True)
    return found
