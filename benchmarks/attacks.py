"""Processor time and peak memory of every attack on labels, at 10,000 to a million rows.

Attacked is a split network's run of two epochs between a bank and a shop, embeddings of width 16, three classes; two
classes for attacks that tell only two apart, and shares of logits for the attack that reads these. Attacks on
regressions and on forests are made on two epochs of a logistic regression with an arbiter and on one tree. Each attack
is made from its saved view in a process of its own, whose peak memory is counted above what the process had before it
opened the view. Messages are read one at a time: a run of three times as many epochs, all kept, needs as much memory.

An active attack takes part in the training, so that its time and memory hold those of a training in its process, the
other party's included. `shared-nodes` needs a tree whose nodes are revealed, which only Paillier's backend grows: it is
measured at 10,000 rows alone. `strongest` joins the guesses of an ordinary audit's attacks; what these took is not part
of its figures.

With BENCHMARK_JOURNAL naming a file, a run that was stopped goes on where it was.
`python -m benchmarks.attacks` prints what is in the journal as a table.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from importlib import import_module
from multiprocessing.connection import Connection
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np
import psutil

from benchmarks.psi import forget_peak, peak
from colonnade import Roles, Table, simulate
from colonnade.attacks.base import ActiveAttack
from colonnade.attacks.labels.strongest import Strongest
from colonnade.attacks.view import View
from colonnade.auditing.attempt import Attempt
from colonnade.auditing.engine import make
from colonnade.auditing.settings import Simulated
from colonnade.auditing.subjects.base import Made
from colonnade.catalogue import ATTACKS, MODELS, attacks_of_audit
from colonnade.models.estimate import unlogged
from colonnade.runtime.simulate import Run
from colonnade.secret import Secret
from colonnade.testing import attempt_on

TARGETS: Mapping[str, float] = {"epochs_memory_ratio": 1.2}
ROLES = Roles(label="bank", features=("shop",))
WITH_ARBITER = Roles(label="bank", features=("shop",), arbiter="judge")
SIZES = {"10k": 10_000, "100k": 100_000, "1M": 1_000_000}
WIDTH, N_COLUMNS = 16, 6
LEVELS = 20


@dataclass(frozen=True)
class Kind:
    """A run to attack.

    Attributes:
        most_rows: How many rows it is trained on at most; attacks on it are not measured at more.
    """

    model: str = "split-classifier"
    n_classes: int = 3
    settings: Mapping[str, Any] = field(default_factory=dict)
    roles: Roles = ROLES
    most_rows: int = 1_000_000


NETWORK = {"embedding": WIDTH, "batch_size": 1024, "n_iter_no_change": None}
TREE = {"n_estimators": 1, "early_stopping_rounds": None, "leak_budget": None}
# An attack is made on the first that it applies to.
KINDS: Mapping[str, Kind] = {
    "three classes": Kind(settings=NETWORK),
    "two classes": Kind(n_classes=2, settings=NETWORK),
    "logits": Kind(settings=NETWORK | {"fusion": "sum", "top": None, "embedding": 3}),
    "regression": Kind("logistic-regression", 2, roles=WITH_ARBITER),
    "tree": Kind("secureboost-classifier", 2, TREE),
    "revealed tree": Kind(
        "secureboost-classifier", 2, TREE | {"backend": "paillier", "membership": "revealed"}, most_rows=10_000
    ),
}
# Attacks that read messages in different ways: means over epochs, first and last gradients, embeddings, all of these.
STREAMED = ("gradient-nearest", "permuted-labels", "embedding-nearest", "co-training")
# What all attacks joined are called.
JOINED = "strongest"
# Imported before anything is measured.
LIBRARIES = (
    *("scipy.optimize", "scipy.sparse", "scipy.spatial", "scipy.stats"),
    *("sklearn.cluster", "sklearn.linear_model"),
)


def measure(*, quick: bool) -> dict[str, float]:
    """Seconds and megabytes of each attack at each size, and how much more memory three times the epochs take."""
    journal = _Journal(os.environ.get("BENCHMARK_JOURNAL"))
    figures: dict[str, float] = {}
    for size, n_rows in {"1k": 1_000}.items() if quick else SIZES.items():
        run = cache(partial(trained, n_rows, epochs=2))
        for name in (*(STREAMED[::3] if quick else on_labels()), JOINED):
            measured = partial(joined, run) if name == JOINED else partial(attacked, n_rows, run, name)
            made = journal.noted(f"{name}_{size}", measured)
            if made is not None:
                figures |= {f"{name}_{size}_s": made[0], f"{name}_{size}_mb": made[1]}
    n_rows = 5_000 if quick else 100_000
    runs = {epochs: cache(partial(trained, n_rows, epochs=epochs)) for epochs in (2, 6)}
    ratios = []
    for name in STREAMED[:1] if quick else STREAMED:
        few, many = (
            journal.noted(f"{name} {n} epochs", partial(attacked, n_rows, run, name)) for n, run in runs.items()
        )
        assert few is not None
        assert many is not None
        ratios.append(many[1] / few[1])
    return figures | {"epochs_memory_ratio": max(ratios)}


def on_labels() -> Iterator[str]:
    """The attacks that guess labels."""
    return (name for name in ATTACKS if ATTACKS[name].about is Secret.LABELS)


def trained(n_rows: int, kind: str = "three classes", *, epochs: int) -> Run[Any]:
    """A run in which the classes depend on both parties' columns; every message is kept."""
    random, how = np.random.default_rng(0), KINDS[kind]
    values = random.standard_normal((n_rows, 2 * N_COLUMNS))
    labels = (values @ random.standard_normal((2 * N_COLUMNS, how.n_classes))).argmax(axis=1)
    ids = {"id": np.arange(n_rows)}
    bank = {f"x{i}": values[:, i] for i in range(N_COLUMNS)} | {"label": labels}
    shop = {f"x{i}": values[:, i] for i in range(N_COLUMNS, 2 * N_COLUMNS)}
    if how.roles.arbiter is not None:
        # An attack on sums over small groups needs columns that most rows have a 0 in.
        shop["level"] = random.integers(LEVELS, size=n_rows).astype(str)
    tables = {"bank": Table.of(ids | bank, labels="label", owner="bank"), "shop": Table.of(ids | shop, owner="shop")}
    model: Any = MODELS[how.model]
    lasting = {"epochs": epochs, "max_iter": epochs}
    settings = {**{name: n for name, n in lasting.items() if name in model().get_params()}, **how.settings}
    with unlogged():
        return simulate(model(**settings).fit, tables, roles=how.roles, keep="all")


def attacked(n_rows: int, run: Callable[[str], Run[Any]], name: str) -> tuple[float, float] | None:
    """Seconds and megabytes of one attack in a process of its own; None where it applies to none of the runs."""
    attack: Any = ATTACKS[name]()
    for kind, how in KINDS.items():
        # Forests take long to grow, and only attacks on forests read them.
        if how.model not in ("split-classifier", attack.example_run.model) or n_rows > how.most_rows:
            continue
        try:
            attempt = attempt_on(run(kind), attack)
        except AssertionError:
            continue
        if isinstance(attack, ActiveAttack):
            return _in_a_process(_played, attempt, run(kind))
        with tempfile.TemporaryDirectory() as folder:
            attempt.view(run(kind)).save(Path(folder))
            return _in_a_process(_made, folder, name, how.model)
    return None


def joined(run: Callable[[str], Run[Any]]) -> tuple[float, float]:
    """Seconds and megabytes of joining the guesses of an ordinary audit's attacks, in a process of its own."""
    setting = Simulated(run("three classes"))
    guesses, _ = make(setting, [attack for attack in attacks_of_audit() if attack.about is Secret.LABELS])
    return _in_a_process(_joined, setting, guesses)


def _in_a_process(made: Callable[..., None], *given: Any) -> tuple[float, float]:
    here, there = multiprocessing.Pipe()
    # A run cannot be sent to a new process, and one that takes part in it needs the run.
    fork, spawn = multiprocessing.get_context("fork"), multiprocessing.get_context("spawn")
    process = (spawn if made is _made else fork).Process(target=made, args=(there, *given))
    process.start()
    figures: tuple[float, float] = here.recv()
    process.join()
    return figures


def _made(line: Connection, folder: str, name: str, model_name: str) -> None:
    """Make an attack on a saved view, in another process."""
    for library in LIBRARIES:
        import_module(library)
    warnings.simplefilter("ignore")
    attack: Any = ATTACKS[name]()
    model: Any = MODELS[model_name]
    forget_peak()
    before = psutil.Process().memory_info().rss
    view = View.load(Path(folder), attack.needs, model.load)
    begin = process_time()
    attack.guess(view)
    line.send((process_time() - begin, max(peak() - before, 1) / 1e6))


def _played(line: Connection, attempt: Attempt, run: Run[Any]) -> None:
    """Let an active attack take part in a run once more, in another process."""
    warnings.simplefilter("ignore")
    forget_peak()
    before, begin = psutil.Process().memory_info().rss, process_time()
    attempt.guess(run.simulation, lambda: run)
    line.send((process_time() - begin, max(peak() - before, 1) / 1e6))


def _joined(line: Connection, setting: Simulated, guesses: list[Made]) -> None:
    """Join guesses, in another process."""
    forget_peak()
    before, begin = psutil.Process().memory_info().rss, process_time()
    found, _ = make(setting, [Strongest()], before=guesses)
    assert len(found) == 1
    line.send((process_time() - begin, max(peak() - before, 1) / 1e6))


class _Journal:
    """Figures in a file, one a line; in memory where no file is named."""

    def __init__(self, path: str | None) -> None:
        self._path = None if path is None else Path(path)
        lines = self._path.read_text().splitlines() if self._path and self._path.exists() else []
        self.figures: dict[str, tuple[float, float] | None] = dict(json.loads(line) for line in lines)

    def noted(self, name: str, measured: Callable[[], tuple[float, float] | None]) -> tuple[float, float] | None:
        """What is in the file, or else what is measured now."""
        if name not in self.figures:
            self.figures[name] = measured()
            if self._path is not None:
                with self._path.open("a") as file:
                    file.write(json.dumps([name, self.figures[name]]) + "\n")
        return self.figures[name]


def table(figures: Mapping[str, tuple[float, float] | None]) -> Iterator[str]:
    """Seconds and megabytes of each attack, as lines of Markdown."""
    yield f"| attack | {' | '.join(f'{n_rows:,} rows' for n_rows in SIZES.values())} |"
    yield "|" + "---|" * (1 + len(SIZES))
    for name in sorted((*on_labels(), JOINED)):
        found = [figures.get(f"{name}_{size}") for size in SIZES]
        if any(found):
            cells = ["" if each is None else f"{each[0]:.1f} s, {each[1]:,.0f} MB" for each in found]
            yield f"| `{name}` | {' | '.join(cells)} |"


if __name__ == "__main__":
    for row in table(_Journal(os.environ.get("BENCHMARK_JOURNAL")).figures):
        print(row)
