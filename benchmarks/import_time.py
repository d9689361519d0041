"""Importing the package and reading a plan in a fresh interpreter, less what the interpreter takes to start."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter

TARGETS: Mapping[str, float] = {"import_s": 0.1, "read_plan_s": 0.5}

PLAN = """
[data]
name = "breast-cancer"
[roles]
label = "bank"
features = ["shop"]
[model]
name = "logistic-regression"
"""


def start(program: str) -> float:
    """How long an interpreter takes to start, run a program and end, in seconds."""
    begin = perf_counter()
    subprocess.run([sys.executable, "-c", program], check=True)
    return perf_counter() - begin


def measure(*, quick: bool) -> dict[str, float]:
    """The median time of importing the package, importing the README's first names, and reading a regression's plan."""
    with TemporaryDirectory() as folder:
        plan = Path(folder) / "plan.toml"
        plan.write_text(PLAN)
        return _measure(plan, repeats=2 if quick else 15)


def _measure(plan: Path, repeats: int) -> dict[str, float]:
    programs = {
        "bare": "pass",
        "package": "import colonnade",
        "simulate": "from colonnade import Roles, Table, simulate",
        "plan": f"from colonnade.plans.plan import Plan; Plan.read({str(plan)!r})",
    }
    durations: dict[str, list[float]] = {name: [] for name in programs}
    for _ in range(repeats):
        for name, program in programs.items():
            durations[name].append(start(program))
    bare = median(durations["bare"])
    return {
        "import_s": median(durations["package"]) - bare,
        "import_simulate_s": median(durations["simulate"]) - bare,
        "read_plan_s": median(durations["plan"]) - bare,
        "bare_interpreter_s": bare,
    }
