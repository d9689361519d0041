"""`python -m benchmarks NAME ...` or `--all`: measure claims; the last line is the outcome as JSON."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from math import isfinite
from statistics import median

BENCHMARKS: Mapping[str, str] = {
    "codec": "a message of 256 KiB to a frame and back",
    "channel": "an exchange of 2 x 256 KiB between two parties of one process",
    "split_overhead": "a split network against the same network trained centrally",
    "split": "a split network in one process and over the network, against central training",
    "gpu_process_ratio": "split networks that fill a GPU, against the same networks trained there centrally",
    "import_time": "importing the package",
    "transport": "bytes between two processes under TLS, against bare gRPC",
    "attacks": "time and memory of every attack on labels, at 10,000 to a million rows",
    "audit": "the default audit of the demonstration's run, null runs included, on two cores",
    "wandering": "the boundary-wandering loss against a matrix of all pairs, and per step of training",
    "encrypted": "an encrypted gradient of 100,000 x 20, against Paillier",
    "regression_accuracy": "logistic regression on real tables beside scikit-learn's",
    "small_tables": "split networks at their defaults on small tables, beside a tuned central network",
    "secureboost": "boosted trees: the kernel, a forest between two processes under TLS, growth, against their peers",
    "trees_gpu": "word sums and pads of boosted trees on a GPU, beside the processor's kernels",
    "trees_equality": "trees on real data against xgboost, node by node",
    "comparisons": "signs of shared numbers by oblivious transfer, for one tree with hidden sums",
    "lattice": "how well the frozen lattice profiles hide, by arithmetic and by the lattice-estimator",
    "psi": "two parties intersect their ids, against openmined.psi and RR22",
    "psi_large": "two parties intersect ten million ids each, in bounded memory",
    "glm": "logistic regression with and without an arbiter, per row and per epoch",
    "walks": "files and calls that a reader of three walks through the source meets",
    "reconstruction": "columns rebuilt by dishonest and by passive label parties",
    "sweep": "200 short trials on two cores: how busy these are, and what a trial costs beyond itself",
    "scale": "a table that lies with workers: what a second worker is worth, what a row costs, what the driver keeps",
    "scale_large": "whole protocols of 5 million rows on a cluster of two nodes, against one process",
    "resume": "from the return of a killed party to the next step",
    "functional": "boosting of curves: the solver, a step, a whole fit",
    "functional_accuracy": "boosting of curves: errors against their limits, under privacy and on real data",
    "functional_guard": "noisy fits of real curves: how often one is worse than predicting the mean",
}


ALONE = ("psi_large", "reconstruction", "scale", "scale_large")
"""Each takes up to an hour, so that it runs only if it is named."""

TURNS = 3
ONCE = (
    *(
        "functional_accuracy",
        "functional_guard",
        "gpu_process_ratio",
        "regression_accuracy",
        "secureboost",
        "small_tables",
        "trees_equality",
        "trees_gpu",
        "reconstruction",
    ),
    *("attacks", "lattice", "walks", "psi", "psi_large", "scale", "scale_large"),
)
"""Measured in one turn: they count or compare instead of timing, or take turns among themselves for many minutes."""

ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"), "1")


@dataclass(frozen=True)
class Outcome:
    """What was measured: medians over turns, the least and the largest of each, and what each may be.

    A figure below its least value cannot be, such as a split network that is faster than its own centre: the machine
    did something else meanwhile. Nor can one that is no finite number. `load` is the mean number of running processes
    of the last minute, before and after.
    """

    name: str
    figures: Mapping[str, float]
    spread: Mapping[str, tuple[float, float]]
    targets: Mapping[str, float]
    least: Mapping[str, float]
    load: tuple[float, float]
    holds: bool

    @classmethod
    def of(
        cls,
        name: str,
        turns: Sequence[Mapping[str, float]],
        targets: Mapping[str, float],
        least: Mapping[str, float],
        load: tuple[float, float],
    ) -> Outcome:
        """Compare the medians with their targets."""
        figures = {key: _rounded(median(turn[key] for turn in turns)) for key in turns[0]}
        spread = {key: (_rounded(min(t[key] for t in turns)), _rounded(max(t[key] for t in turns))) for key in turns[0]}
        holds = all(figures[key] <= most for key, most in targets.items())
        return cls(name, figures, spread, targets, least, load, holds and not _invalid(figures, least))

    @classmethod
    def of_all(cls, outcomes: Sequence[Outcome]) -> Outcome:
        """Several outcomes as one, each figure under the name of its benchmark."""

        def named(part: str) -> dict[str, float]:
            return {f"{o.name}.{key}": value for o in outcomes for key, value in getattr(o, part).items()}

        spread = {f"{o.name}.{key}": value for o in outcomes for key, value in o.spread.items()}
        load = (outcomes[0].load[0], outcomes[-1].load[1])
        holds = all(o.holds for o in outcomes)
        return cls("all", named("figures"), spread, named("targets"), named("least"), load, holds)

    def clear_misses(self, factor: float) -> list[str]:
        """The figures that are invalid, or above their targets by more than a factor."""
        invalid = _invalid(self.figures, self.least)
        missed = [key for key, most in self.targets.items() if self.figures[key] > factor * most]
        return [*(key for key in missed if key not in invalid), *invalid]

    def table(self) -> str:
        """The outcome for a reader."""
        lines = [f"{self.name}: {BENCHMARKS[self.name]}; load {self.load[0]:.1f} before, {self.load[1]:.1f} after"]
        invalid = _invalid(self.figures, self.least)
        for key, value in self.figures.items():
            low, high = self.spread[key]
            span = "" if low == high else f"{low:g} to {high:g}"
            verdict = ""
            if (most := self.targets.get(key)) is not None:
                verdict = f"  at most {most:<6g} {'holds' if value <= most else 'MISSED'}"
            if key in invalid:
                least = self.least.get(key)
                verdict = f"  INVALID: it cannot be {'so' if least is None else f'below {least:g}'}"
            lines.append(f"    {key:<26}{value:>10g}  {span:<22}{verdict}".rstrip())
        return "\n".join(lines)


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")


def _invalid(figures: Mapping[str, float], least: Mapping[str, float]) -> list[str]:
    return [key for key, value in figures.items() if not isfinite(value) or value < least.get(key, value)]


def measure(name: str, *, quick: bool) -> Outcome:
    """Run one benchmark."""
    module = import_module(f"benchmarks.{name}")
    before = os.getloadavg()[0]
    turns = [module.measure(quick=quick) for _ in range(1 if quick or name in ONCE else TURNS)]
    load = (_rounded(before), _rounded(os.getloadavg()[0]))
    return Outcome.of(name, turns, module.TARGETS, getattr(module, "LEAST", {}), load)


def main() -> None:
    """Read the command line and measure."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measure a claim about speed.")
    # `choices` would refuse the empty list that stands for no name.
    parser.add_argument("names", nargs="*", metavar="NAME", help="a benchmark; without one they are listed")
    parser.add_argument("--all", action="store_true", help="run all of them but those that take up to an hour")
    parser.add_argument("--quick", action="store_true", help="measure so briefly that the figures mean little")
    parser.add_argument(
        "--gate",
        type=float,
        nargs="?",
        const=1.5,
        metavar="FACTOR",
        help="end with 1 if a figure is invalid or above its target by more than this factor, by default 1.5",
    )
    options = parser.parse_args()
    for name in options.names:
        if name not in BENCHMARKS:
            parser.error(f"{name!r} is no benchmark; the benchmarks are {', '.join(BENCHMARKS)}")
    names = [name for name in BENCHMARKS if name not in ALONE] if options.all else options.names
    if not names:
        print("\n".join(f"{name:<22}{claim}" for name, claim in BENCHMARKS.items()))
        return
    # Read by libraries when a benchmark imports them, and by the processes that it starts.
    os.environ.update(ONE_THREAD)
    outcomes = []
    for name in names:
        outcomes.append(measure(name, quick=options.quick))
        print(outcomes[-1].table(), flush=True)
    outcome = outcomes[0] if len(outcomes) == 1 else Outcome.of_all(outcomes)
    missed = [] if options.gate is None else outcome.clear_misses(options.gate)
    if missed:
        print(f"clearly missed or invalid: {', '.join(missed)}")
    print(json.dumps(asdict(outcome)))
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
