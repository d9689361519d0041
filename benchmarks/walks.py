"""How far a reader walks through the source: the files and calls of three walks, counted by a profiler.

split step        one step of the label party of a split network, in memory: the files of models/ with functions that
                  run in the step or wait for it, which are the protocol's files above the channel
regression files  `colonnade join` of a logistic regression on shares by two processes over gRPC, tables from files: all
                  files with code that runs at either party, in any thread. Bodies of classes count, bodies of modules
                  do not: a module that is imported counts once it defines a class or calls a function of its own.
multiplication    the longest chain of calls of this library from the runner of an alignment to one multiplication
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import CodeType, FrameType
from typing import Any

import numpy as np
import pyarrow.csv

import colonnade
from benchmarks.loopback import BANK, SHOP, free_port
from colonnade import Party, Roles, Table, simulate
from colonnade.align import Align
from colonnade.crypto.curve import multiply
from colonnade.models import SplitClassifier

TARGETS: Mapping[str, float] = {"split_step_files": 6, "regression_files": 60, "multiplication_calls": 11}
SOURCE = str(Path(colonnade.__path__[0]))
ROLES = Roles(label=BANK, features=(SHOP,))

PLAN = """
seed = 1
[data.{name}]
path = "{name}.csv"
ids = "id"
{labels}
[roles]
label = "bank"
features = ["shop"]
[model]
name = "logistic-regression"
max_iter = 1
[network.bank]
address = "localhost:{bank}"
[network.shop]
address = "localhost:{shop}"
"""

WALKER = """
import json, sys, threading
from pathlib import Path

source, found, *arguments = sys.argv[1:]
seen = set()

def note(frame, event, argument):
    if event == "call" and frame.f_code.co_name != "<module>" and frame.f_code.co_filename.startswith(source):
        seen.add(frame.f_code.co_filename)

threading.setprofile(note)
sys.setprofile(note)
from colonnade.cli.main import main

sys.argv = ["colonnade", *arguments]
try:
    main()
finally:
    sys.setprofile(None)
    Path(found).write_text(json.dumps(sorted(seen)))
"""


def rows(n_rows: int = 60) -> dict[str, dict[str, Any]]:
    """The columns of a bank and a shop, both with labels that depend on them."""
    random = np.random.default_rng(0)
    values = random.standard_normal((n_rows, 4))
    ids, labels = np.arange(n_rows), (values.sum(axis=1) > 0).astype(np.int64)
    return {
        BANK: {"id": ids, "a": values[:, 0], "b": values[:, 1], "label": labels},
        SHOP: {"id": ids, "c": values[:, 2], "d": values[:, 3]},
    }


def tables() -> dict[str, Table]:
    """The same columns as tables."""
    labels = {BANK: "label", SHOP: None}
    return {name: Table.of(columns, labels=labels[name], owner=name) for name, columns in rows().items()}


def watched(note: Callable[[FrameType], None], party: Party, honest: Callable[[Party], Any]) -> Any:
    """Run a party's side of a protocol with an eye on each call."""
    sys.setprofile(lambda frame, event, argument: note(frame) if event == "call" else None)
    try:
        return honest(party)
    finally:
        sys.setprofile(None)


def stack(frame: FrameType | None) -> list[CodeType]:
    """The calls of this library that lead to a frame, the last first."""
    found = []
    while frame is not None:
        if frame.f_code.co_filename.startswith(SOURCE):
            found.append(frame.f_code)
        frame = frame.f_back
    return found


def split_step() -> set[str]:
    """The files of models/ with functions that run in the label party's second step, or that have called for it."""
    steps, files = 0, set[str]()

    def count(party: str, loop: str, done: int, total: int, figures: Mapping[str, float]) -> None:
        nonlocal steps
        steps += 1

    def note(frame: FrameType) -> None:
        # Parties take turns in greenlets of one thread: each has a stack of its own.
        if steps == 1 and _starts_at(fit.__code__, frame):
            files.update(code.co_filename for code in stack(frame) if "/models/" in code.co_filename)

    def fit(party: Party, honest: Callable[[Party], Any]) -> Any:
        return watched(note, replace(party, watcher=count), honest)

    model = SplitClassifier(epochs=1, batch_size=16, n_iter_no_change=None)
    simulate(model.fit, tables(), roles=ROLES, instead={BANK: fit})
    return files


def _starts_at(code: CodeType, frame: FrameType | None) -> bool:
    while frame is not None and frame.f_code is not code:
        frame = frame.f_back
    return frame is not None


def regression() -> set[str]:
    """The files with code that runs when two processes join a regression on shares."""
    ports = {name: free_port() for name in (BANK, SHOP)}
    with TemporaryDirectory() as folder:
        processes, files = [], set[str]()
        for name, columns in rows().items():
            pyarrow.csv.write_csv(pyarrow.table(columns), Path(folder, f"{name}.csv"))
            labels = 'labels = "label"' if name == BANK else ""
            plan, found = Path(folder, f"{name}.toml"), Path(folder, f"{name}.json")
            plan.write_text(PLAN.format(name=name, labels=labels, **ports))
            arguments = ["join", str(plan), "--as", name, "--insecure", "--out", folder]
            command = [sys.executable, "-c", WALKER, SOURCE, str(found), *arguments]
            processes.append(subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
        if any(process.wait(300) for process in processes):
            raise RuntimeError("A party of the regression failed. Run its plan with `colonnade join` to see why.")
        for name in (BANK, SHOP):
            files |= set(json.loads(Path(folder, f"{name}.json").read_text()))
    return files


def multiplication() -> int:
    """How many calls lie between the runner of an alignment and its deepest multiplication."""
    depths = []

    def note(frame: FrameType) -> None:
        if frame.f_code is multiply.__code__:
            depths.append(len(stack(frame)) - 1)

    held = {name: Table.of({"id": np.arange(200)}, owner=name) for name in (BANK, SHOP)}
    simulate(Align(), held, roles=ROLES, instead=dict.fromkeys(held, partial(watched, note)))
    return max(depths)


def measure(*, quick: bool) -> dict[str, float]:
    """The three walks; there is no quicker way to count."""
    step, join = split_step(), regression()
    for what, files in {"split step": step, "regression": join}.items():
        print(f"{what}: {', '.join(sorted(str(Path(file).relative_to(SOURCE)) for file in files))}")
    return {
        "split_step_files": len(step),
        "regression_files": len(join),
        "multiplication_calls": multiplication(),
        "models_of_regression": sum("/models/" in file for file in join),
    }
