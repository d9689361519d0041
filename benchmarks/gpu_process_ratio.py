"""Split networks that fill a GPU, both parties on the one GPU, against the same networks trained there centrally.

65,536 rows; "large" has bottoms with two hidden layers of 4,096 and batches of 8,192, "small" has layers of 1,024 and
batches of 4,096. Embeddings, tops, batches and first weights are those of `split_overhead`. Both ways use PyTorch's
fused Adam and its default stream, and neither reads a loss before it has to. Both take turns after one epoch each that
does not count; times are of the clock, of whole fits. `process_over_same_step` compares with a central network whose
steps are made by the parties' code, see `split_overhead`. `loss_difference` says how far apart the mean losses of the
first epoch are, relatively.

Where the time of a step goes is measured in a fit of its own, in milliseconds of the processor: `wait` is for the GPU,
`upload` fills pinned memory, `forward`, `backward` and `optimiser` give the GPU work, `hand_over` exchanges the states
of generators, and `other` is everything else. Without a GPU networks of 64 are trained on the processor: the figures
then only show that the benchmark works, and no target is asked of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial, wraps
from statistics import median
from time import perf_counter
from typing import Any
from unittest.mock import patch

import torch
from torch import nn

from benchmarks.split_overhead import EMBEDDING, Timings, make_tables, top, train_apart, train_centrally
from colonnade.models import SplitClassifier
from colonnade.models.networks import split
from colonnade.models.networks.modules import TabularMLP
from colonnade.models.networks.training import HostCopy, Machine, Optimizers
from colonnade.runtime.party import shared_randomness
from colonnade.runtime.simulate import StateByTurn
from colonnade.tables.encode import Inputs
from colonnade.wire import channel
from colonnade.wire.recording.recording import Digests, Recording

ON_GPU = torch.cuda.is_available()
SIZES = {"large": (4_096, 8_192, 10), "small": (1_024, 4_096, 40)} if ON_GPU else {"tiny": (64, 1_024, 2)}
"""By name: the width of hidden layers, the rows of a batch, the epochs."""
MOST = {"large": 1.25, "small": 1.8}
TARGETS: Mapping[str, float] = {
    key: most
    for name in (SIZES if ON_GPU else ())
    for key, most in ((f"{name}_gpu_process_ratio", MOST[name]), (f"{name}_loss_difference", 0.02))
}
LEAST: Mapping[str, float] = {key: 1.0 for key in TARGETS if key.endswith("_ratio")}
PARTS: Mapping[str, tuple[tuple[Any, str], ...]] = {
    "wait": ((HostCopy, "array"),),
    "upload": ((Machine, "_uploaded"),),
    "forward": ((Machine, "forward"),),
    "backward": ((split, "trace_back"),),
    "optimiser": ((Optimizers, "step"), (Optimizers, "forget_gradients")),
    "encode": ((channel, "encode"),),
    "decode": ((channel, "decode"),),
    "finite": ((channel.Channel, "_require_finite"),),
    "digest": ((Digests, "of"),),
    "record": ((Recording, "add"),),
    "hand_over": ((StateByTurn, "enter"), (StateByTurn, "leave")),
}
"""What is timed in a step; none of these waits for another party."""


def bottom(inputs: Inputs, width: int, hidden: int) -> nn.Module:
    """A bottom network with two hidden layers, always with the same weights."""
    torch.manual_seed(1)
    return TabularMLP(inputs, width, hidden=(hidden, hidden))


def finished(train: Callable[[], object]) -> None:
    """Train, and wait until the GPU has ended."""
    train()
    if ON_GPU:
        torch.cuda.synchronize()


@contextmanager
def timed(seconds: dict[str, float]) -> Iterator[None]:
    """Add up how long each part takes while this lasts."""

    def watched(part: str, act: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(act)
        def measured(*args: Any, **settings: Any) -> Any:
            begun = perf_counter()
            try:
                return act(*args, **settings)
            finally:
                seconds[part] += perf_counter() - begun

        return measured

    with ExitStack() as patches:
        for part, places in PARTS.items():
            seconds[part] = 0.0
            for home, name in places:
                patches.enter_context(patch.object(home, name, watched(part, getattr(home, name))))
        yield


def measure_size(name: str, hidden: int, batch_size: int, epochs: int, turns: int) -> dict[str, float]:
    """Ratio, milliseconds per step, and the parts of a step, of one size."""
    tables = make_tables(65_536)
    make = partial(
        SplitClassifier,
        embedding=EMBEDDING,
        bottom=partial(bottom, hidden=hidden),
        top=top,
        batch_size=batch_size,
        n_iter_no_change=None,
        learning_rate=1e-4,
        device="cuda" if ON_GPU else "cpu",
    )
    short, model = make(epochs=1), make(epochs=epochs)
    first = train_apart(short, tables, "digests")
    shared = shared_randomness(first.plan, first.id_digest)
    apart, together = first.results["bank"].history_[0]["loss"], train_centrally(short, tables, shared)[0]
    central, same_step, process, n_steps = Timings(), Timings(), Timings(), epochs * (65_536 // batch_size)
    for _ in range(turns):
        central.add(lambda: finished(lambda: train_centrally(model, tables, shared)))
        same_step.add(lambda: finished(lambda: train_centrally(model, tables, shared, as_parties=True)))
        process.add(lambda: finished(lambda: train_apart(model, tables, "digests")))
    figures = {
        "gpu_process_ratio": median(process.wall) / median(central.wall),
        "process_over_same_step": median(process.wall) / median(same_step.wall),
        "loss_difference": abs(apart - together) / together,
        "central_step_ms": 1e3 * median(central.wall) / n_steps,
        "process_step_ms": 1e3 * median(process.wall) / n_steps,
    }
    seconds: dict[str, float] = {}
    with timed(seconds):
        begun = perf_counter()
        finished(lambda: train_apart(model, tables, "digests"))
        whole = perf_counter() - begun
    seconds["record"] -= seconds["digest"]
    seconds["other"] = whole - sum(seconds.values())
    figures |= {f"{part}_ms": 1e3 * spent / n_steps for part, spent in seconds.items()}
    return {f"{name}_{key}": value for key, value in figures.items()}


def measure(*, quick: bool) -> dict[str, float]:
    """The figures of all sizes; the central networks, and so the ratios, feel other work on the GPU."""
    figures: dict[str, float] = {"on_gpu": float(ON_GPU)}
    for name, (hidden, batch_size, epochs) in SIZES.items():
        figures |= measure_size(name, hidden, batch_size, 1 if quick else epochs, 1 if quick else 3)
    return figures
