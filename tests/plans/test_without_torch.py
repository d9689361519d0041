"""Plans that name no network are read and run where torch is not installed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

# Both `import torch` and `find_spec("torch")` answer as they do where torch is not installed.
WITHOUT_TORCH = """
import sys
from importlib.machinery import PathFinder

class NoTorch(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] == "torch" else super().find_spec(name, path, target)

sys.meta_path[:] = [NoTorch if finder is PathFinder else finder for finder in sys.meta_path]
"""

REGRESSION = """
[data]
name = "breast-cancer"
rows = 400
[roles]
label = "bank"
features = ["shop"]
arbiter = "arbiter"
[model]
name = "linear-regression"
max_iter = 1
rows_per_column = 10
"""

ALIGNMENT = """
[data]
name = "breast-cancer"
rows = 50
[roles]
features = ["bank", "shop"]
[align]
fewest = 0
workers = 1
"""


def _python(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH + program, *arguments],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )


def _colonnade(*arguments: str) -> subprocess.CompletedProcess[str]:
    return _python("from colonnade.cli.main import main; main()", *arguments)


def _plan(folder: Path, text: str) -> str:
    path = folder / "plan.toml"
    path.write_text(text)
    return str(path)


@pytest.mark.parametrize("text", [REGRESSION, ALIGNMENT], ids=["regression", "alignment"])
def test_a_plan_without_networks_is_read_without_torch(tmp_path, text):
    done = _python("import sys; from colonnade.plans.plan import Plan; Plan.read(sys.argv[1])", _plan(tmp_path, text))
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("text", [REGRESSION, ALIGNMENT], ids=["regression", "alignment"])
def test_reading_a_plan_imports_neither_attacks_nor_torch(tmp_path, text):
    program = """
import sys
from colonnade.plans.plan import Plan
Plan.read(sys.argv[1])
print([name for name in sys.modules if name.startswith(("torch", "colonnade.attacks", "colonnade.auditing"))])
"""
    done = subprocess.run(
        [sys.executable, "-c", program, _plan(tmp_path, text)], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


@pytest.mark.slow
def test_a_regression_is_simulated_without_torch(tmp_path):
    done = _colonnade("simulate", _plan(tmp_path, REGRESSION), "--out", str(tmp_path / "runs"))
    assert done.returncode == 0, done.stderr
    assert "On held-out rows" in done.stdout


@pytest.mark.slow
def test_an_alignment_is_simulated_without_torch(tmp_path):
    done = _colonnade("align", _plan(tmp_path, ALIGNMENT), "--out", str(tmp_path / "runs"))
    assert done.returncode == 0, done.stderr
    assert "50" in done.stdout


def test_a_network_says_without_torch_what_to_install(tmp_path):
    done = _colonnade("simulate", _plan(tmp_path, REGRESSION.replace("linear-regression", "split-classifier")))
    assert done.returncode == 2
    assert "extra 'torch'" in done.stderr
