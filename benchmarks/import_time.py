"""`import colonnade` in a fresh interpreter, less what the interpreter itself takes to start."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from statistics import median
from time import perf_counter

TARGETS: Mapping[str, float] = {"import_s": 0.5}


def start(program: str) -> float:
    """How long an interpreter takes to start, run a program and end, in seconds."""
    begin = perf_counter()
    subprocess.run([sys.executable, "-c", program], check=True)
    return perf_counter() - begin


def measure(*, quick: bool) -> dict[str, float]:
    """The median time of importing the package; of importing it and the names of the README's first lines."""
    programs = {
        "bare": "pass",
        "package": "import colonnade",
        "simulate": "from colonnade import Roles, Table, simulate",
    }
    durations: dict[str, list[float]] = {name: [] for name in programs}
    for _ in range(2 if quick else 15):
        for name, program in programs.items():
            durations[name].append(start(program))
    bare = median(durations["bare"])
    return {
        "import_s": median(durations["package"]) - bare,
        "import_simulate_s": median(durations["simulate"]) - bare,
        "bare_interpreter_s": bare,
    }
