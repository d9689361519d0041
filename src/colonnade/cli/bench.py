"""`colonnade bench`: the standing benchmark, run or gone on with, and its results written."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from colonnade.cli.console import say
from colonnade.cli.engine import EngineOption, Jobs
from colonnade.errors import PlanError


def bench(
    *,
    sets: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME", help="A set; all if none is named.")
    ] = None,
    models: Annotated[
        list[str] | None, typer.Option("--model", metavar="NAME", help="A model; all if none is named.")
    ] = None,
    defences: Annotated[
        list[str] | None, typer.Option("--defence", metavar="NAME", help="A defence, or none; all if none is named.")
    ] = None,
    splits: Annotated[
        list[str] | None,
        typer.Option(
            "--split",
            metavar="HOW",
            help="natural, random, importance=ALPHA or correlation=BETA; defences are held on the first.",
        ),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="One seed, fewer rows, epochs and null runs.")] = False,
    rows: Annotated[int | None, typer.Option(min=50, help="How many rows of a set to use at most.")] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="How many seeds.")] = None,
    thorough: Annotated[bool, typer.Option("--thorough", help="Make every attack, in several forms.")] = False,
    engine: EngineOption = None,
    jobs: Jobs = None,
    out: Annotated[Path, typer.Option(help="Where results and the journal are kept.")] = Path("runs/bench"),
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with a benchmark, or add to it: lines of other cells are kept.")
    ] = False,
    readme: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Run nothing; write the table of these results between the marks of a page."),
    ] = None,
) -> None:
    """Measure every model with every defence on every set: quality, and what attacks find."""
    from colonnade.catalogue import DEFENCES, MODELS
    from colonnade.experiment.bench import QUICK, SETS, SPLITS, Scale, cells, measure, trials
    from colonnade.experiment.bench_page import readme_block, with_block
    from colonnade.experiment.bench_results import CELLS, PAGE, read_results, write_results
    from colonnade.experiment.sweep import Journal, sweep
    from colonnade.plans.engine import PlannedEngine
    from colonnade.storage import explained, write_atomically

    if readme is not None:
        with explained(f"read {readme}"):
            text = readme.read_text(encoding="utf-8")
        block = readme_block(read_results(out)[0])
        write_atomically(readme, with_block(text, block).encode())
        say(f"Written to {readme}.")
        return
    grid = cells(sets or SETS, splits or SPLITS, models or tuple(MODELS), defences or tuple(DEFENCES))
    scale = QUICK if quick else Scale()
    scale = replace(scale, rows=rows or scale.rows, seeds=seeds or scale.seeds, thorough=thorough)
    path = out / "bench.sqlite"
    if (path.exists() or (out / CELLS).exists()) and not resume:
        raise PlanError(
            f"{out} should hold no benchmark yet, but has one. Go on with it or add to it with --resume, or choose "
            "another folder."
        )
    wanted = trials(grid, scale)
    impossible = sum(cell.why_not() is not None for cell in grid)
    say(f"{len(wanted):,} trials; {impossible:,} of {len(grid):,} cells cannot be and say why.")
    with Journal(path) as journal:
        try:
            table = sweep(measure, wanted, journal=journal, executor=PlannedEngine().with_options(engine, jobs).build())
        except KeyboardInterrupt as interrupt:
            write_results(out, grid, journal.table(wanted))
            interrupt.add_note(
                f"What was measured is written to {out}. The same command with --resume measures the rest."
            )
            raise
    found = write_results(out, grid, table)
    failed = sum(str(row.get("why") or "").startswith("failed") for row in found)
    say(f"{failed:,} trials failed. Written to {out / PAGE}, with figures in bench.csv and bench_attacks.parquet.")
