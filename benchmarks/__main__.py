"""`python -m benchmarks NAME` or `--all`: measure a claim about speed; the last line is the outcome as JSON."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib import import_module

BENCHMARKS: Mapping[str, str] = {
    "codec": "a message of 256 KiB to a frame and back",
    "channel": "an exchange of 2 x 256 KiB between two parties of one process",
    "split_overhead": "a split network against the same network trained centrally",
    "split": "a split network in one process and over the network, against central training",
    "import_time": "importing the package",
    "transport": "bytes between two processes under TLS, against bare gRPC",
    "wandering": "the boundary-wandering loss against a matrix of all pairs, and per step of training",
    "encrypted": "an encrypted gradient of 100,000 x 20, against Paillier",
    "histograms": "sums of trees under encryption, against xgboost",
    "regression_accuracy": "logistic regression on real tables beside scikit-learn's",
    "small_tables": "split networks at their defaults on small tables, beside a tuned central network",
    "secureboost": "a forest between two processes under TLS, against SecretFlow and xgboost",
    "trees_equality": "trees on real data against xgboost, node by node",
    "comparisons": "signs of shared numbers by oblivious transfer, for one tree with hidden sums",
    "lattice": "how well the frozen lattice profiles hide, by arithmetic and by the lattice-estimator",
    "psi": "two parties intersect their ids, against openmined.psi and RR22",
    "psi_large": "two parties intersect ten million ids each, in bounded memory",
    "glm": "logistic regression with and without an arbiter, per row and per epoch",
    "walks": "files and calls that a reader of three walks through the source meets",
    "resume": "from the return of a killed party to the next step",
    "functional": "boosting of curves: the solver, a step, a whole fit",
    "functional_accuracy": "boosting of curves: errors against their limits, under privacy and on real data",
}


# Takes about an hour, so that it runs only if it is named.
ALONE = ("psi_large",)


@dataclass(frozen=True)
class Outcome:
    """What was measured, the most it may be, and whether it is no more."""

    name: str
    figures: Mapping[str, float]
    targets: Mapping[str, float]
    holds: bool

    @classmethod
    def of(cls, name: str, figures: Mapping[str, float], targets: Mapping[str, float]) -> Outcome:
        """Compare figures with their targets."""
        rounded = {key: float(f"{value:.4g}") for key, value in figures.items()}
        return cls(name, rounded, targets, all(rounded[key] <= most for key, most in targets.items()))

    @classmethod
    def of_all(cls, outcomes: list[Outcome]) -> Outcome:
        """Several outcomes as one, each figure under the name of its benchmark."""
        figures = {f"{o.name}.{key}": value for o in outcomes for key, value in o.figures.items()}
        targets = {f"{o.name}.{key}": value for o in outcomes for key, value in o.targets.items()}
        return cls("all", figures, targets, all(o.holds for o in outcomes))

    def table(self) -> str:
        """The outcome for a reader."""
        lines = [f"{self.name}: {BENCHMARKS[self.name]}"]
        for key, value in self.figures.items():
            most = self.targets.get(key)
            verdict = "" if most is None else f"  at most {most:<6g} {'holds' if value <= most else 'MISSED'}"
            lines.append(f"    {key:<26}{value:>10g}{verdict}")
        return "\n".join(lines)


def measure(name: str, *, quick: bool) -> Outcome:
    """Run one benchmark."""
    module = import_module(f"benchmarks.{name}")
    return Outcome.of(name, module.measure(quick=quick), module.TARGETS)


def main() -> None:
    """Read the command line and measure."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measure a claim about speed.")
    parser.add_argument("name", nargs="?", choices=BENCHMARKS, help="the benchmark; without one they are listed")
    parser.add_argument("--all", action="store_true", help="run all of them but psi_large")
    parser.add_argument("--quick", action="store_true", help="measure so briefly that the figures mean little")
    options = parser.parse_args()
    if not options.all and options.name is None:
        print("\n".join(f"{name:<22}{claim}" for name, claim in BENCHMARKS.items()))
        return
    outcomes = []
    for name in [name for name in BENCHMARKS if name not in ALONE] if options.all else [options.name]:
        outcomes.append(measure(name, quick=options.quick))
        print(outcomes[-1].table(), flush=True)
    print(json.dumps(asdict(Outcome.of_all(outcomes) if options.all else outcomes[0])))


if __name__ == "__main__":
    main()
