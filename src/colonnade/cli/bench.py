"""`colonnade bench`: the standing benchmark, run or gone on with, and its results written."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from colonnade.cli.console import say, warn
from colonnade.cli.engine import EngineOption, Jobs
from colonnade.errors import PlanError
from colonnade.text import how_many


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
    rows_per_class: Annotated[
        int | None,
        typer.Option(min=0, help="Use more rows where the rarest class would have fewer than this to train on."),
    ] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="How many seeds.")] = None,
    nulls: Annotated[int | None, typer.Option(min=1, help="How many null runs of each attack, with each seed.")] = None,
    epochs: Annotated[
        int | None, typer.Option(min=1, help="Train networks for so many epochs; as they do by default if not given.")
    ] = None,
    rounds: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Train encrypted regressions for so many epochs at most, boosted trees for a third as many rounds.",
        ),
    ] = None,
    thorough: Annotated[bool, typer.Option("--thorough", help="Make every attack, in several forms.")] = False,
    engine: EngineOption = None,
    jobs: Jobs = None,
    out: Annotated[Path, typer.Option(help="Where results and the journal are kept.")] = Path("runs/bench"),
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with a benchmark, or add to it: lines of other cells are kept.")
    ] = False,
    retry: Annotated[bool, typer.Option("--retry", help="With --resume: run failed trials again.")] = False,
    readme: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Run nothing; write bench.md again, and a table between the marks of a page."
        ),
    ] = None,
) -> None:
    """Measure every model with every defence on every set: quality, and what attacks find."""
    from colonnade.catalogue import DEFENCES, MODELS
    from colonnade.experiment.bench import QUICK, SETS, SPLITS, Scale, cells, measure, trials
    from colonnade.experiment.bench_page import readme_block, with_block
    from colonnade.experiment.bench_results import ATTACKS, CELLS, PAGE, write_page, write_results
    from colonnade.experiment.sweep import Journal, sweep
    from colonnade.plans.engine import PlannedEngine
    from colonnade.storage import explained, write_atomically

    if readme is not None:
        with explained(f"read {readme}"):
            text = readme.read_text(encoding="utf-8")
        block = readme_block(*write_page(out))
        write_atomically(readme, with_block(text, block).encode())
        say(f"Written to {out / PAGE} and {readme}.")
        return
    grid = cells(sets or SETS, splits or SPLITS, models or tuple(MODELS), defences or tuple(DEFENCES))
    given = {
        "rows": rows,
        "rows_per_class": rows_per_class,
        "seeds": seeds,
        "nulls": nulls,
        "epochs": epochs,
        "rounds": rounds,
    }
    chosen: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    scale = replace(QUICK if quick else Scale(), thorough=thorough, **chosen)
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
        if retry:
            journal.requeue_quarantined()
        states = journal.states()
        try:
            table = sweep(measure, wanted, journal=journal, executor=PlannedEngine().with_options(engine, jobs).build())
        except KeyboardInterrupt as interrupt:
            write_results(out, grid, journal.table(wanted))
            interrupt.add_note(
                f"What was measured is written to {out}. The same command with --resume measures the rest."
            )
            raise
    write_results(out, grid, table)
    say(f"Written to {out / PAGE}, with figures in {CELLS} and {ATTACKS}.")
    ended = zip(table["trial.key"].to_pylist(), table["trial.state"].to_pylist(), strict=True)
    failed = [key for key, state in ended if state == "quarantined"]
    if failed:
        before = sum(states.get(key) == "quarantined" for key in failed)
        earlier = f", {before:,} of them in an earlier run," if before else ""
        warn(f"{how_many(len(failed), 'trial')} failed{earlier} as the page says. --resume --retry runs them again.")
        raise typer.Exit(1)
