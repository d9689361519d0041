"""Every benchmark can be run and says what it found; how fast anything is, is asked by `make gate`."""

import json
import re
import subprocess
import sys
from importlib import import_module
from math import isfinite
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
FIGURES = {
    "codec": {"encode_us", "decode_us"},
    "channel": {"exchange_ms"},
    "split_overhead": {"digests_ratio", "audit_ratio"},
    "split": {"process_ratio", "network_ratio"},
    # Without a GPU nothing is asked of it.
    "gpu_process_ratio": set(),
    "import_time": {"import_s", "read_plan_s"},
    "transport": {"step_ratio", "bulk_ratio", "receiver_mb"},
    "attacks": {"epochs_memory_ratio"},
    "audit": {"audit_s"},
    "wandering": {"closed_form_share", "step_overhead"},
    "encrypted": {"paillier_2048_ratio"},
    "regression_accuracy": {"off_shares", "off_arbiter"},
    "small_tables": {"points_below_central"},
    "secureboost": {
        "all_ratio",
        "slower_party_ratio",
        "online_ratio",
        "mb_per_tree",
        "hidden_cpu_s",
        "hidden_mb",
        "paillier_2048_ratio",
        "secretflow_ratio",
    },
    # Without a GPU nothing is asked of it.
    "trees_gpu": set(),
    "trees_equality": {"different_share", "auc_off", "auc_off_raw"},
    "comparisons": {"cpu_s", "mb"},
    "lattice": {"distance_ratio", "attack_ratio"},
    "psi": {"cpu_ratio", "above_idle_mb", "rr22_ratio", "partition_cpu_s"},
    "psi_large": {"bytes_per_id", "rr22_bytes_per_id"},
    "glm": {"us_per_row", "fate_ratio", "shares_fate_ratio", "default_processor_s", "default_epoch_mb"},
    "walks": {"split_step_files", "regression_files", "multiplication_calls"},
    "reconstruction": {"worst_inversion_over_passive", "worst_imputed_over_generative", "guard_share_of_step"},
    "sweep": {"local_idle_share", "local_overhead_ms"},
    "scale": {"points_share", "sums_share", "points_growth", "sums_growth", "driver_bytes", "others_cores"},
    "scale_large": {"differ", "not_killed"},
    "resume": {"resume_s"},
    "functional": {"cached_over_kronecker", "step_ratio_32k_to_500", "fit_cpu_ms", "noisy_fit_cpu_ms"},
    "functional_accuracy": {
        "missed_active",
        "false_selected",
        "ratio_to_oracle",
        "low_rank_ril2",
        "worst_guarded_ril2",
    },
    "functional_guard": {"share_worse_than_the_mean", "largest_share"},
}
# `make gate`, which ends every `make test-slow`, runs these in full.
GATED = ("channel", "import_time", "encrypted", "functional")
MARKS = {
    "audit": [pytest.mark.slow],
    "reconstruction": [pytest.mark.slow],
    "regression_accuracy": [pytest.mark.slow],
    "small_tables": [pytest.mark.slow],
    "secureboost": [pytest.mark.slow, pytest.mark.network],
    "trees_equality": [pytest.mark.slow],
    "trees_gpu": [pytest.mark.slow],
    "gpu_process_ratio": [pytest.mark.slow],
    "glm": [pytest.mark.slow],
    "split_overhead": [pytest.mark.slow],
    "attacks": [pytest.mark.slow],
    "wandering": [pytest.mark.slow],
    "split": [pytest.mark.slow, pytest.mark.network],
    "transport": [pytest.mark.slow, pytest.mark.network],
    "psi": [pytest.mark.slow, pytest.mark.network],
    "psi_large": [pytest.mark.slow, pytest.mark.network],
    "walks": [pytest.mark.slow, pytest.mark.network],
    "sweep": [pytest.mark.slow, pytest.mark.network],
    "scale": [pytest.mark.slow],
    "scale_large": [pytest.mark.slow],
    "resume": [pytest.mark.slow, pytest.mark.network],
    "functional_accuracy": [pytest.mark.slow],
    "functional_guard": [pytest.mark.slow],
}


def benchmarks(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", "-m", "benchmarks", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


def outcome(*arguments: str) -> dict[str, Any]:
    done = benchmarks(*arguments)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert set(found) == {"name", "figures", "spread", "targets", "least", "load", "holds"}
    assert all(isfinite(value) for value in found["figures"].values())
    assert set(found["spread"]) == set(found["figures"])
    assert set(found["least"]) <= set(found["targets"])
    within = all(found["figures"][name] <= most for name, most in found["targets"].items())
    possible = all(found["figures"][name] >= least for name, least in found["least"].items())
    assert found["holds"] == (within and possible)
    return found


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=MARKS.get(name, [])) for name in FIGURES if name not in GATED]
)
def test_a_benchmark_ends_with_one_line_that_has_a_figure_for_each_target(name: str) -> None:
    found = outcome(name, "--quick")
    assert found["name"] == name
    assert set(found["targets"]) == FIGURES[name]
    assert FIGURES[name] < set(found["figures"])


@pytest.mark.parametrize("name", GATED)
def test_a_benchmark_that_the_gate_runs_has_these_targets(name: str) -> None:
    (gate,) = re.findall(r"-m benchmarks (.*) --gate", (ROOT / "Makefile").read_text())
    assert name in gate.split()
    assert set(import_module(f"benchmarks.{name}").TARGETS) == FIGURES[name]


def test_several_benchmarks_end_with_one_line_for_all_of_them() -> None:
    found = outcome("lattice", "codec", "--quick")
    assert found["name"] == "all"
    wanted = {f"{name}.{figure}" for name in ("lattice", "codec") for figure in FIGURES[name]}
    assert set(found["targets"]) == wanted < set(found["figures"])


def test_all_benchmarks_are_those_that_take_less_than_an_hour() -> None:
    program = (
        "from benchmarks import __main__ as ours\nimport sys\n"
        "class Empty:\n    TARGETS = {}\n    measure = staticmethod(lambda quick: {'figure': 1.0})\n"
        "ours.import_module = lambda name: Empty\nsys.argv[1:] = ['--all', '--quick']\nours.main()"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    found = json.loads(done.stdout.splitlines()[-1])
    assert set(found["figures"]) == {
        f"{name}.figure" for name in FIGURES if name not in ("psi_large", "reconstruction", "scale", "scale_large")
    }


def test_without_a_name_the_benchmarks_are_listed() -> None:
    done = benchmarks()
    assert [line.split()[0] for line in done.stdout.splitlines()] == list(FIGURES)


def with_bounds(bounds: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """`codec` with other bounds than its own."""
    program = (
        f"from benchmarks import codec\n{bounds}\n"
        f"import sys\nfrom benchmarks.__main__ import main\nsys.argv[1:] = ['codec', '--quick', *{arguments!r}]\nmain()"
    )
    return subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)


def test_a_missed_target_is_said_plainly_and_is_no_error_without_a_gate() -> None:
    # Nothing that takes time takes none, so a target of 0 is missed on every machine.
    done = with_bounds("codec.TARGETS = {'encode_us': 0.0}")
    assert done.returncode == 0
    assert "MISSED" in done.stdout
    assert json.loads(done.stdout.splitlines()[-1])["holds"] is False
    gated = with_bounds("codec.TARGETS = {'encode_us': 0.0}", "--gate")
    assert gated.returncode == 1
    assert "clearly missed or invalid: encode_us" in gated.stdout


def test_a_gate_lets_a_figure_pass_that_is_above_its_target_by_less_than_the_factor() -> None:
    # Encoding takes less than a second on every machine, and more than a nanosecond.
    done = with_bounds("codec.TARGETS = {'encode_us': 1e-3}", "--gate", "1e9")
    assert done.returncode == 0
    assert json.loads(done.stdout.splitlines()[-1])["holds"] is False


def test_a_figure_that_cannot_be_is_invalid_and_never_holds() -> None:
    bounds = "codec.TARGETS, codec.LEAST = {'encode_us': 1e9}, {'encode_us': 1e8}"
    done = with_bounds(bounds)
    assert done.returncode == 0
    assert "INVALID" in done.stdout
    assert json.loads(done.stdout.splitlines()[-1])["holds"] is False
    assert with_bounds(bounds, "--gate").returncode == 1


@pytest.mark.parametrize("value", ["nan", "inf"])
def test_a_figure_that_is_no_finite_number_is_invalid_and_does_not_pass_the_gate(value: str) -> None:
    done = with_bounds(f"codec.measure = lambda quick: {{'encode_us': float({value!r}), 'decode_us': 1.0}}", "--gate")
    assert done.returncode == 1, done.stderr
    assert "INVALID: it cannot be so" in done.stdout
    assert "clearly missed or invalid: encode_us" in done.stdout
    assert '"holds": false' in done.stdout


@pytest.mark.parametrize(
    ("name", "least"),
    [
        ("gpu_process_ratio", {"large_gpu_process_ratio": 1.0, "small_gpu_process_ratio": 1.0}),
        ("sweep", {"local_idle_share": 0.0, "local_overhead_ms": 0.0}),
    ],
)
def test_a_benchmark_calls_a_figure_that_cannot_be_invalid(name: str, least: dict[str, float]) -> None:
    # As on a machine with a GPU: without one, nothing is asked of `gpu_process_ratio`.
    program = (
        f"import json, sys, torch\ntorch.cuda.is_available = lambda: True\nfrom benchmarks import {name} as ours\n"
        "from benchmarks.__main__ import Outcome, main\n"
        "possible = {key: ours.LEAST.get(key, 0.0) for key in ours.TARGETS}\n"
        f"ours.measure = lambda quick: {{key: value - 0.01 * (key in {least!r}) for key, value in possible.items()}}\n"
        f"print(Outcome.of({name!r}, [possible], ours.TARGETS, ours.LEAST, (0.0, 0.0)).holds)\n"
        f"sys.argv[1:] = [{name!r}, '--quick', '--gate']\nmain()"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1, done.stderr
    holds, *lines, last = done.stdout.splitlines()
    assert holds == "True"
    assert {line.split()[0] for line in lines if "INVALID" in line} == set(least)
    assert json.loads(last)["least"] == least
    assert json.loads(last)["holds"] is False


def test_threads_are_pinned_before_a_benchmark_is_imported() -> None:
    shown = with_bounds(
        "import os\ncodec.measure = lambda quick: {'threads': float(os.environ['OMP_NUM_THREADS'])}\ncodec.TARGETS = {}"
    )
    assert json.loads(shown.stdout.splitlines()[-1])["figures"] == {"threads": 1.0}


def test_an_unknown_benchmark_is_an_error_that_names_the_known_ones() -> None:
    done = benchmarks("speed")
    assert done.returncode == 2
    assert all(name in done.stderr for name in FIGURES)
