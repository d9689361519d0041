"""Word sums and pads of boosted trees on a GPU, beside the compiled kernels on one thread of the processor.

One tree of depth 5 asks for nine encrypted numbers in five queries, of 1, 1, 1, 2 and 4 numbers. A feature party adds
them up over its bins; the label party computes a pad for each. Seconds are of the clock, from packed bytes in the
processor's memory to sums or pads there, so copies to and from the device count; the two engines take turns, and the
least of their turns counts. Every sum and every pad is compared. Without a GPU PyTorch's own processor code takes its
place: the figures then say what that costs, and no target is asked of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np
import torch

from colonnade.crypto.accelerator import Accelerator
from colonnade.crypto.engines import Engine, Processor
from colonnade.crypto.hinted import PublicMatrix
from colonnade.crypto.histograms import HistogramBins
from colonnade.crypto.sampling import Stream

ON_GPU = torch.cuda.is_available()
SIZES = {"100k": (100_000, 20), "1m": (1_000_000, 100)}
BINS, QUERIES, STEPS = 32, (1, 1, 1, 2, 4), ("sums", "pads")
TARGETS: Mapping[str, float] = {f"{name}_{step}_ratio": 1.0 for name in SIZES for step in STEPS} if ON_GPU else {}


def least(acts: Mapping[str, Callable[[], None]], turns: int) -> dict[str, float]:
    """The least seconds of each act over turns, after one that is not counted."""
    seconds: dict[str, float] = {}
    for turn in range(turns + 1):
        for name, act in acts.items():
            begun = perf_counter()
            act()
            taken = perf_counter() - begun
            if turn:
                seconds[name] = min(taken, seconds.get(name, taken))
    return seconds


def tree(name: str, n_rows: int, n_columns: int, turns: int) -> dict[str, float]:
    """Milliseconds for the sums and the pads of one tree, by engine, and their ratios."""
    public, random = PublicMatrix(bytes(32), n_rows), np.random.default_rng(0)
    ring = public.ring
    engines: dict[str, Engine] = {"processor": Processor(), "device": Accelerator("cuda" if ON_GPU else "cpu")}
    bins = HistogramBins(random.integers(0, BINS, (n_columns, n_rows)).astype(np.uint8), [BINS] * n_columns)
    # Every prime lies above 2^49, so that any words of 49 bits pass for residues.
    four = random.integers(0, 2**49, (4, max(QUERIES), n_rows)).astype(np.uint64)
    words = [four[0] | four[1] << np.uint64(50), four[1] >> np.uint64(14) | four[2] << np.uint64(36)]
    packed = np.stack([*words, four[2] >> np.uint64(28) | four[3] << np.uint64(22)], axis=1)
    tails, secret = (four[3] >> np.uint64(42)).astype(np.uint8), public.blocks[0]
    sums: dict[str, list[np.ndarray[Any, Any]]] = {}
    rooms = {engine: np.empty(public.blocks.shape) for engine in engines}

    def add(which: str, engine: Engine) -> None:
        sums[which] = [engine.sums(bins, packed[:count], tails[:count], ring.limits) for count in QUERIES]

    def pad(which: str, engine: Engine) -> None:
        for number in range(sum(QUERIES)):
            engine.pad(ring, public.blocks, secret, Stream(bytes([number]) * 32), rooms[which])

    acts = {f"{which}_sums": partial(add, which, engine) for which, engine in engines.items()}
    acts |= {f"{which}_pads": partial(pad, which, engine) for which, engine in engines.items()}
    seconds = least(acts, turns)
    one, other = ((*sums[which], ring.canonical(rooms[which])) for which in engines)
    if not all(map(np.array_equal, one, other)):
        raise RuntimeError("Sums and pads of the device should equal those of the kernels and do not.")
    ratios = {step: seconds[f"device_{step}"] / seconds[f"processor_{step}"] for step in STEPS}
    figures = {f"{name}_{step}_ratio": ratio for step, ratio in ratios.items()}
    return figures | {f"{name}_{key}_ms": 1e3 * value for key, value in seconds.items()}


def measure(*, quick: bool) -> dict[str, float]:
    """Ratios and milliseconds for each size; a GPU's memory is told."""
    sizes = {"100k": (20_000, 3), "1m": (30_000, 4)} if quick else SIZES
    figures: dict[str, float] = {"on_gpu": float(ON_GPU)}
    for name, (n_rows, n_columns) in sizes.items():
        figures |= tree(name, n_rows, n_columns, 1 if quick else 5)
    return figures | ({"gpu_peak_mb": torch.cuda.max_memory_allocated() / 1e6} if ON_GPU else {})
