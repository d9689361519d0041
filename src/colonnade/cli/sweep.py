"""colonnade sweep: many trials of one grid plan, what came of them, and how far they are."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from colonnade.cli.console import console, say, warn
from colonnade.cli.engine import EngineOption, Jobs
from colonnade.errors import PlanError
from colonnade.text import how_many, nearest

if TYPE_CHECKING:
    from colonnade.experiment.grid import GridSweep
    from colonnade.experiment.results import Results
    from colonnade.plans.engine import PlannedEngine


class _PlanFirst(TyperGroup):
    """Commands, of which `run` need not be named: `colonnade sweep PLAN` is `colonnade sweep run PLAN`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in (*self.commands, "--help"):
            self._refuse_typo(args)
            args = ["run", *args]
        return super().parse_args(ctx, args)

    def _refuse_typo(self, args: list[str]) -> None:
        """Refuse a word before the plan that is no command: `colonnade sweep tabel PLAN`."""
        first, rest = args[0], args[1:]
        if rest and rest[0].endswith(".toml") and not first.startswith("-"):
            raise PlanError(
                f"colonnade sweep should be given a plan or one of {', '.join(self.commands)} and a plan, but has "
                f"{first!r} before {rest[0]}.{nearest(first, self.commands)} Correct the command."
            )


sweep = typer.Typer(
    cls=_PlanFirst,
    no_args_is_help=True,
    subcommand_metavar="PLAN | COMMAND PLAN",
    help="Train, measure and attack for every combination of a grid plan. `colonnade sweep PLAN` is "
    "`colonnade sweep run PLAN`, and takes the same options.",
)

PlanPath = Annotated[Path, typer.Argument(metavar="PLAN", help="A plan in TOML with a section [sweep].")]
Out = Annotated[Path, typer.Option(help="The folder of the journal, which remembers every trial.")]


@sweep.command()
def run(
    plan: PlanPath,
    *,
    out: Out = Path("runs"),
    resume: Annotated[bool, typer.Option("--resume", help="Go on with trials that were begun before.")] = False,
    retry: Annotated[bool, typer.Option("--retry", help="With --resume: run failed trials again.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check every combination and run none.")] = False,
    probe: Annotated[
        bool, typer.Option("--probe", help="Run the first trial only, and say how long all take.")
    ] = False,
    engine: EngineOption = None,
    jobs: Jobs = None,
    log_to: Annotated[
        str | None, typer.Option(metavar="NAME", help="Also write results for 'mlflow' or 'tensorboard'.")
    ] = None,
) -> None:
    """Run what the journal does not have yet; a sweep that was interrupted goes on with --resume."""
    from colonnade.experiment.trackers import require_tracker

    opened = _opened(plan, out)
    chosen = opened.plan.engine.with_options(engine, jobs)
    if log_to is not None:
        require_tracker(log_to)
    if dry_run:
        opened.plan.check()
        n, seeds = len(opened.plan.combinations), how_many(len(opened.plan.sweep.seeds), "seed")
        possible = f"{seeds} each; all are" if n > 1 else f"{seeds}; it is"
        say(f"{how_many(n, 'combination')} with {possible} possible.")
    try:
        if probe or not dry_run:
            results = opened.run(chosen.build(), resume=resume, retry=retry, most=1 if probe else None)
    except KeyboardInterrupt as interrupt:
        interrupt.add_note("The same command with --resume goes on where this one stopped.")
        raise
    if dry_run or probe:
        say(opened.status().told(_at_once(chosen)))
        return
    _show(results)
    if log_to is not None:
        where = results.log_to(log_to, opened.path.with_suffix(""), opened.plan.name)
        say(f"Written for {log_to} to {where}.")
    elsewhere = "" if out == Path("runs") else f" --out {out}"
    say(f"Written to {opened.path}. Figures: colonnade sweep figures {plan}{elsewhere}")
    if results.notes():
        warn("Some trials have no result, as told above. --resume --retry runs failed ones again.")
        raise typer.Exit(1)


@sweep.command()
def status(plan: PlanPath, *, out: Out = Path("runs"), engine: EngineOption = None, jobs: Jobs = None) -> None:
    """Say how many trials have finished, failed or not begun, and how long the rest may take."""
    opened = _opened(plan, out)
    say(opened.status().told(_at_once(opened.plan.engine.with_options(engine, jobs))))
    if opened.path.exists():
        for note in opened.results().notes():
            say(note)


@sweep.command()
def table(
    plan: PlanPath,
    *,
    out: Out = Path("runs"),
    to: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write every figure of each trial to .parquet, .jsonl or .csv.")
    ] = None,
) -> None:
    """Show a line for each setting, or write a row for each trial to a file."""
    results = _opened(plan, out).results()
    if to is None:
        _show(results)
    else:
        results.save(to)
        say(f"Written to {to}: {results.table.num_rows} trials, {results.table.num_columns} columns.")


@sweep.command()
def figures(
    plan: PlanPath,
    *,
    out: Out = Path("runs"),
    to: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Where the figures go; beside the journal by default.")
    ] = None,
) -> None:
    """Draw all figures as PDF and SVG, and one page of HTML that shows them."""
    opened = _opened(plan, out)
    page = opened.results().gallery(opened.path.with_suffix("") if to is None else to, opened.plan.name)
    say(f"Written to {page.parent}. Open {page} in a browser.")


def _opened(plan: Path, out: Path) -> GridSweep:
    from colonnade.experiment.grid import GridSweep
    from colonnade.plans.grid import GridPlan

    return GridSweep(GridPlan.read(plan), out)


def _at_once(engine: PlannedEngine) -> int | None:
    """How many trials an engine runs at the same time; None where only its cluster knows."""
    from colonnade.runtime.clusters import places_here

    if engine.address is not None:
        return engine.jobs
    return len(places_here(engine.jobs, engine.cores_per_job, engine.gpus_per_job))


def _show(results: Results) -> None:
    from rich.table import Table

    for note in results.notes():
        say(note)
    if not any(name.startswith("quality.") for name in results.table.column_names):
        return
    head, *lines = results.summary()
    grid = Table(*head, box=None, pad_edge=False)
    for line in lines:
        grid.add_row(*line)
    console().print(grid)
