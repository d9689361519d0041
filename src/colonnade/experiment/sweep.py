"""Many trials: run side by side, written down one by one, run again only where something is missing.

    Trial ──▶ Journal ── claim ──▶ Executor ──▶ function(trial) in a worker
                 ◀── finish ────────────────────────── result

`sweep` joins the three. Kill it at any moment and start it again, and it runs what is not done yet. Several processes
of one machine may sweep over one journal.
"""

from __future__ import annotations

import importlib.util
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from functools import partial
from typing import Any

import pyarrow as pa

from colonnade.experiment.executor import Executor
from colonnade.experiment.journal import Journal, Trial, flat, plain_mapping, refuse_clashes
from colonnade.progress import Bars
from colonnade.runtime.checkpoint import GlobalGenerators

_POLL_SECONDS = 0.2


def sweep(
    function: Callable[[Trial], Mapping[str, Any]],
    trials: Iterable[Trial],
    *,
    journal: Journal,
    executor: Executor,
    progress: bool = True,
) -> pa.Table:
    """Run the trials that the journal does not have yet and return the results of all, in the order given.

    Before each trial the global generators of Python, NumPy and PyTorch are seeded from its configuration and seed, so
    that results depend neither on the number of workers nor on what ran before. A trial that fails twice is
    quarantined: its row has a traceback instead of a result, and it rests until `Journal.requeue_quarantined`.

    Args:
        function: Turns a trial into a mapping of what JSON can hold. A change of code outside of this package goes
            unnoticed, so put a version of it into the configuration.
        trials: What to run.
        journal: Where results are kept. What another process runs at the moment is waited for.
        executor: What calls the function.
        progress: Whether to draw a bar, where standard error is a terminal.
    """
    trials = list(trials)
    journal.add(trials, function=_name(function))
    by_key = {trial.key: trial for trial in trials}
    call = partial(_run, function)
    try:
        with Bars(None if progress else False) as bars:
            while True:
                journal.requeue_abandoned()
                states = journal.states()
                unfinished = [trial for key, trial in by_key.items() if states[key] in ("queued", "running")]
                n_done = len(by_key) - len(unfinished)
                bars.update("trials", n_done, len(by_key))
                if not unfinished:
                    return journal.table(trials)
                claimed: list[Trial] = []
                with closing(executor.map_unordered(call, _claims(journal, unfinished, claimed))) as outcomes:
                    for index, outcome in outcomes:
                        journal.finish(claimed[index], outcome)
                        n_done += 1
                        bars.update("trials", n_done, len(by_key))
                if not claimed:
                    time.sleep(_POLL_SECONDS)
    finally:
        journal.release()


def _claims(journal: Journal, trials: Iterable[Trial], claimed: list[Trial]) -> Iterator[Trial]:
    for trial in trials:
        if journal.claim(trial):
            claimed.append(trial)
            yield trial


def _run(function: Callable[[Trial], Mapping[str, Any]], trial: Trial) -> dict[str, Any]:
    with _seeded(trial.digest):
        result = plain_mapping(function(trial), "result")
    refuse_clashes([name for name, _ in (*flat(trial.configuration), *flat(result))])
    return result


@contextmanager
def _seeded(digest: bytes) -> Iterator[None]:
    # Seeding reaches only what is loaded; torch imported during the trial would start from a state of its own.
    if importlib.util.find_spec("torch"):
        import torch  # noqa: F401
    generators = GlobalGenerators()
    before = random.getstate(), generators.capture()
    random.seed(digest)
    generators.seed(int.from_bytes(digest[:8]) >> 1)
    try:
        yield
    finally:
        random.setstate(before[0])
        generators.put(before[1])


def _name(function: Callable[..., Any]) -> str:
    while isinstance(function, partial):
        function = function.func
    named = function if hasattr(function, "__qualname__") else type(function)
    return f"{named.__module__}.{named.__qualname__}"
