"""`python -m experiments NAME`: run what is not in the journal yet, and write docs/results/NAME.md and .csv.

`--page` runs nothing: it writes the page again from the figures in the .csv.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import pyarrow as pa

from colonnade.experiment.sweep import Journal, sweep
from colonnade.runtime.executor import Local
from experiments.tables import read

EXPERIMENTS = {
    "wandering": "boundary-wandering learning in both of its forms, on five data sets",
    "utility": "split, one-shot and label-private networks against central training",
    "protection": "defences of labels beside the figures of an earlier study",
    "defences": "every defence of the catalogue, boundary wandering with others after it, and the label-private shadow",
    "reconstruction": "columns rebuilt by label parties, defences of embeddings, and the gradient guard",
    "private_models": "regressions and trees instead of a split network: quality, and what attacks on labels find",
    "vflair_mnist": "batch and direct label inference on MNIST, beside the figures of another benchmark",
}
RESULTS = Path(__file__).parents[1] / "docs" / "results"


def main() -> None:
    """Read the command line, sweep, and write the results."""
    parser = argparse.ArgumentParser(prog="python -m experiments", description="Measure many runs.")
    parser.add_argument("name", choices=EXPERIMENTS)
    parser.add_argument("--quick", action="store_true", help="one seed and fewer rows: minutes instead of hours")
    parser.add_argument("--jobs", type=int, default=None, help="trials at the same time; as many as cores by default")
    parser.add_argument("--journal", type=Path, default=None, help="where finished trials are kept")
    parser.add_argument("--out", type=Path, default=RESULTS, help="where the results are written")
    parser.add_argument("--page", action="store_true", help="write the page again from the figures that are there")
    options = parser.parse_args()
    module = import_module(f"experiments.{options.name}")
    if options.page:
        rows = read((options.out / options.name).with_suffix(".csv"))
        page = module.page(rows, quick=options.quick)
        (options.out / options.name).with_suffix(".md").write_text(page, encoding="utf-8")
        return
    trials = module.trials(quick=options.quick)
    path = options.journal or Path("runs") / f"{options.name}.sqlite"
    with Journal(path) as journal:
        table = sweep(module.measure, trials, journal=journal, executor=Local(options.jobs))
    write(table, partial(module.page, quick=options.quick), options.out / options.name)
    failed = [text for text in table.column("trial.traceback").to_pylist() if text]
    print(f"{len(trials)} trials, {len(failed)} of them failed; results are in {options.out / options.name}.md")
    if failed:
        raise SystemExit(failed[0])


def write(table: pa.Table, page: Callable[[Sequence[Mapping[str, Any]]], str], path: Path) -> None:
    """Write every figure of each trial into a CSV file, and beside it a page for a reader."""
    rows = [row for row in table.to_pylist() if row["trial.state"] == "done"]
    shown = [name for name in table.column_names if name not in ("trial.key", "trial.traceback", "trial.started")]
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_suffix(".csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, shown, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)
    path.with_suffix(".md").write_text(page(rows), encoding="utf-8")


if __name__ == "__main__":
    main()
