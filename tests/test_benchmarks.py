"""Every benchmark can be run and says what it found; how fast anything is, is not asked here."""

import json
import subprocess
import sys
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
    "import_time": {"import_s", "read_plan_s"},
    "transport": {"step_ratio", "bulk_ratio", "receiver_mb"},
    "wandering": {"closed_form_share", "step_overhead"},
    "encrypted": {"paillier_2048_ratio"},
    "histograms": {
        "all_ratio",
        "slower_party_ratio",
        "online_ratio",
        "mb_per_tree",
        "hidden_cpu_s",
        "hidden_mb",
    },
    "regression_accuracy": {"auc_off_shares", "auc_off_arbiter"},
    "secureboost": {"secretflow_ratio", "auc_off_bins", "auc_off_raw"},
    "trees_equality": {"different_share", "auc_off"},
    "comparisons": {"cpu_s", "mb"},
    "lattice": {"distance_ratio", "primal_ratio"},
    "psi": {"cpu_ratio", "above_idle_mb", "rr22_ratio", "partition_cpu_s"},
    "psi_large": {"bytes_per_id", "rr22_bytes_per_id"},
    "glm": {"us_per_row", "fate_ratio", "shares_fate_ratio"},
    "walks": {"split_step_files", "regression_files", "multiplication_calls"},
    "reconstruction": {"worst_inversion_over_passive", "worst_imputed_over_generative"},
    "resume": {"resume_s"},
    "functional": {"cached_over_kronecker", "step_ratio_32k_to_500", "fit_ms"},
    "functional_accuracy": {
        "missed_active",
        "false_selected",
        "ratio_to_oracle",
        "low_rank_ril2",
        "worst_guarded_ril2",
    },
}
MARKS = {
    "encrypted": [pytest.mark.slow],
    "histograms": [pytest.mark.slow],
    "reconstruction": [pytest.mark.slow],
    "regression_accuracy": [pytest.mark.slow],
    "secureboost": [pytest.mark.slow, pytest.mark.network],
    "trees_equality": [pytest.mark.slow],
    "glm": [pytest.mark.slow],
    "split_overhead": [pytest.mark.slow],
    "wandering": [pytest.mark.slow],
    "split": [pytest.mark.slow, pytest.mark.network],
    "transport": [pytest.mark.slow, pytest.mark.network],
    "psi": [pytest.mark.slow, pytest.mark.network],
    "psi_large": [pytest.mark.slow, pytest.mark.network],
    "walks": [pytest.mark.slow, pytest.mark.network],
    "resume": [pytest.mark.slow, pytest.mark.network],
    "functional": [pytest.mark.slow],
    "functional_accuracy": [pytest.mark.slow],
}


def benchmarks(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", "-m", "benchmarks", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


def outcome(*arguments: str) -> dict[str, Any]:
    done = benchmarks(*arguments)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert set(found) == {"name", "figures", "targets", "holds"}
    assert all(isfinite(value) for value in found["figures"].values())
    assert found["holds"] == all(found["figures"][name] <= most for name, most in found["targets"].items())
    return found


@pytest.mark.parametrize("name", [pytest.param(name, marks=MARKS.get(name, [])) for name in FIGURES])
def test_a_benchmark_ends_with_one_line_that_has_a_figure_for_each_target(name: str) -> None:
    found = outcome(name, "--quick")
    assert found["name"] == name
    assert set(found["targets"]) == FIGURES[name]
    assert FIGURES[name] < set(found["figures"])


@pytest.mark.slow
@pytest.mark.network
def test_all_benchmarks_together_end_with_one_line_for_all_of_them() -> None:
    found = outcome("--all", "--quick")
    assert found["name"] == "all"
    wanted = {name: figures for name, figures in FIGURES.items() if name != "psi_large"}
    assert set(found["targets"]) == {f"{name}.{figure}" for name, figures in wanted.items() for figure in figures}


def test_without_a_name_the_benchmarks_are_listed() -> None:
    done = benchmarks()
    assert [line.split()[0] for line in done.stdout.splitlines()] == list(FIGURES)


def test_a_missed_target_is_said_plainly_and_is_no_error() -> None:
    # Nothing that takes time takes none, so a target of 0 is missed on every machine.
    program = (
        "from benchmarks import codec\ncodec.TARGETS = {'encode_us': 0.0}\n"
        "import sys\nfrom benchmarks.__main__ import main\nsys.argv[1:] = ['codec', '--quick']\nmain()"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0
    assert "MISSED" in done.stdout
    assert json.loads(done.stdout.splitlines()[-1])["holds"] is False


def test_an_unknown_benchmark_is_an_error_that_names_the_known_ones() -> None:
    done = benchmarks("speed")
    assert done.returncode == 2
    assert all(name in done.stderr for name in FIGURES)
