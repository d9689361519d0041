"""Killing a run and going on with it: processes that end in the middle of what they do."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import signal
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any, Literal, TypeAlias

from colonnade.catalogue import MODELS
from colonnade.models.base import Estimator
from colonnade.runtime.party import Defence
from colonnade.runtime.simulate import Run
from colonnade.testing.assertions import must, must_be_alike
from colonnade.testing.setup import Setup, ending
from colonnade.wire.memory import MemoryTransport

# What models import when they need it: PyTorch its compiler, for seconds, with the first optimiser, and pyarrow pandas
# with the first list.
_LATE = (
    "torch._dynamo",
    "pandas",
    "colonnade.crypto.kernels",
    "colonnade.privacy.discrete_kernel",
    "sklearn.linear_model",
)

Defences: TypeAlias = Mapping[str, Sequence[Defence]]
Act: TypeAlias = Literal["rename", "frame"]

CHECKPOINT_EVERY = 2


def killed_runs_end_alike(setup: Setup, defences: Defences, *, renames: Iterable[int]) -> None:
    """Demand that runs which were killed and taken up again end like one that was left in peace.

    They are killed at their first, last and some other frames, between writing a file and renaming it, and three times
    in a row.

    Args:
        setup: What is trained.
        defences: Who holds what while it is trained.
        renames: Before which renames to kill; later ones than a run has are left out.
    """
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        straight = _fit(setup, defences, root / "straight")
        expected = ending(straight)
        n_frames = sum(entry.sent for transcript in straight.transcripts.values() for entry in transcript.entries)
        frames = (1, max(1, n_frames // 3), max(1, 2 * n_frames // 3), n_frames)
        moments: dict[str, list[tuple[Act, int]]] = {f"at frame {number}": [("frame", number)] for number in frames}
        moments["three times"] = [("frame", max(1, n_frames // 2)), ("rename", 4), ("frame", max(1, n_frames // 4))]
        for moment, deaths in moments.items():
            died = [_dies(setup, defences, root / moment, act, number) for act, number in deaths]
            must(all(died), f"A process that was to be killed {moment} should die, but came to its end.")
            must_be_alike(ending(_fit(setup, defences, root / moment)), expected, f"A run that was killed {moment}")
        for number in renames:
            moment = f"before rename {number}"
            if not _dies(setup, defences, root / moment, "rename", number):
                break
            must_be_alike(ending(_fit(setup, defences, root / moment)), expected, f"A run that was killed {moment}")


def _fit(setup: Setup, defences: Defences, directory: Path) -> Run[Estimator]:
    return setup.fit(defences=defences, directory=directory, checkpoint_every=CHECKPOINT_EVERY)


def forking(*modules: str) -> ForkServerContext:
    """What starts processes that have imported these modules, and those of all models, before they begin.

    Forking this process would copy the state of libraries that cannot bear it; spawning would import them each time.
    """
    context = multiprocessing.get_context("forkserver")
    # What the first caller asks for is what all later ones get: one server forks all processes.
    context.set_forkserver_preload([__name__, "colonnade.align", *MODELS.modules, *_LATE, *modules])
    return context


def _dies(setup: Setup, defences: Defences, directory: Path, act: Act, number: int) -> bool:
    """Run in a process that kills itself at the n-th act; False if it came to its end before."""
    process = forking(type(setup.make()).__module__).Process(
        target=_live, args=(setup, defences, directory, act, number, _torch_threads())
    )
    process.start()
    process.join()
    code = process.exitcode
    process.close()
    must(code in (0, -signal.SIGKILL), f"A run in its own process should end or be killed, but failed with {code}.")
    return code != 0


def _live(setup: Setup, defences: Defences, directory: Path, act: Act, number: int, threads: int | None) -> None:
    owner: Any = os if act == "rename" else MemoryTransport
    name = "replace" if act == "rename" else "send"
    honest, calls = getattr(owner, name), itertools.count(1)

    def fatal(*arguments: Any) -> Any:
        if next(calls) == number:
            os.kill(os.getpid(), signal.SIGKILL)
        return honest(*arguments)

    setattr(owner, name, fatal)
    if threads is not None:
        import torch

        torch.set_num_threads(threads)
    _fit(setup, defences, directory)


def _torch_threads() -> int | None:
    # The number of threads changes the last bits of a sum.
    torch = sys.modules.get("torch")
    return None if torch is None else torch.get_num_threads()
