"""The command line.

    colonnade demo              the whole story on built-in data
    colonnade align PLAN        find the common rows, in this process or (--as PARTY) between machines
    colonnade simulate PLAN     train as a plan says, all parties in this process
    colonnade audit RUN         measure what each party could have learned
    colonnade report RUN        show the last audit's report, or two of them side by side
    colonnade evaluate RUN      show how well its model predicts, alone or beside another run's
    colonnade sweep PLAN        train, measure and attack for every combination of a grid plan
    colonnade data list         the data sets a plan can name
    colonnade bench             every model with every defence on every set: quality, and what attacks find
    colonnade certs ...         certificates, by which parties know each other
    colonnade doctor PLAN       look for what would keep a run between machines from going well
    colonnade join PLAN         train as a plan says, as one organisation among others
    colonnade predict PLAN      predict with a model that was trained so
    colonnade status RUN        how a run stands, while it goes on and afterwards
    colonnade functional ...    experiments with simulated curves

Results go to the output stream. An error is one sentence on the error stream and exits with the code that
`colonnade.errors` gives it. Progress is shown on the error stream where that is a terminal.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from colonnade._version import __version__
from colonnade.cli.bench import bench
from colonnade.cli.budget import BudgetOption, budget
from colonnade.cli.certs import certs
from colonnade.cli.console import complain, console, say
from colonnade.cli.engine import EngineOption, Jobs
from colonnade.cli.functional import functional
from colonnade.cli.log import LogForm, chosen_form
from colonnade.cli.network import Certs, Insecure, Listen, Terminated, align, audit_jointly, doctor, join, predict
from colonnade.cli.status import status
from colonnade.cli.sweep import sweep
from colonnade.errors import ColonnadeError, PlanError, StorageError

if TYPE_CHECKING:
    from colonnade.auditing.report import PrivacyReport
    from colonnade.deploy.party_run import PartyRun
    from colonnade.experiment.run_folder import RunFolder

INTERRUPTED = 130
TERMINATED = 143


class _Shell(TyperGroup):
    """The commands, behind one place where errors become sentences and exit codes."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except ColonnadeError as error:
            if ctx.params["debug"]:
                raise
            complain(f"Error: {error}", error)
            raise typer.Exit(error.exit_code) from error
        except Terminated as end:
            complain("Terminated.", end)
            raise typer.Exit(TERMINATED) from end
        except KeyboardInterrupt as interrupt:
            complain("Interrupted.", interrupt)
            raise typer.Exit(INTERRUPTED) from interrupt


app = typer.Typer(cls=_Shell, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
data = typer.Typer(no_args_is_help=True, help="The data sets a plan can name.")
app.add_typer(data, name="data")
app.add_typer(certs, name="certs")
app.add_typer(functional, name="functional")
app.add_typer(sweep, name="sweep")

Out = Annotated[Path, typer.Option(help="Where runs are kept.")]
RunPath = Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run.")]


def main() -> None:
    """Run the command line."""
    # gRPC reads both when it is imported. Its log would stand between our sentences; what matters of it is raised.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    # Every connection's version is checked. In a process of our own no 1.2 handshake need succeed either: this suite
    # for TLS 1.2 needs a key that is shared beforehand. TLS 1.3 chooses its suites by itself.
    os.environ["GRPC_SSL_CIPHER_SUITES"] = "ECDHE-PSK-CHACHA20-POLY1305"
    app(prog_name="colonnade")


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"colonnade {__version__}")
        raise typer.Exit


@app.callback()
def colonnade(
    *,
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version and exit.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    log: Annotated[
        LogForm | None,
        typer.Option(envvar="COLONNADE_LOG", help="How lines with times are written while parties run together."),
    ] = None,
) -> None:
    """Vertical federated learning that measures what each party could learn about the others."""
    chosen_form.set(log)


@app.command()
def demo(
    *,
    out: Out = Path("runs"),
    quick: Annotated[bool, typer.Option("--quick", help="Fewer rows and fewer repetitions.")] = False,
    engine: EngineOption = None,
    jobs: Jobs = None,
) -> None:
    """Tell the whole story on built-in data: train together, attack, defend, report."""
    from colonnade.experiment.demo import demonstrate
    from colonnade.plans.engine import PlannedEngine

    demonstrate(console(), out, PlannedEngine().with_options(engine, jobs).build(), quick=quick)


@app.command()
def simulate(
    plan: Annotated[Path, typer.Argument(metavar="PLAN", help="A plan in TOML.")],
    *,
    out: Out = Path("runs"),
    resume: Annotated[bool, typer.Option("--resume", help="Go on with a run that was interrupted.")] = False,
    seed: Annotated[int | None, typer.Option(help="Another seed than the plan's.")] = None,
    budgets: BudgetOption = None,
) -> None:
    """Train as a plan says, with all parties in this process."""
    from colonnade.auditing.report import self_reported_leaks
    from colonnade.experiment.run_folder import RunFolder
    from colonnade.plans.plan import Plan

    planned = Plan.read(plan)
    if seed is not None:
        planned = replace(planned, seed=seed)
    if budgets:
        planned = replace(planned, privacy=planned.privacy.with_options(budgets))
    planned.require_training()
    folder = RunFolder.create(planned, out, existing="resume" if resume else "refuse")
    try:
        alignments = None if planned.align is None else folder.alignments(progress=None)
        tables = folder.tables()
        n_train, n_test = (len(next(iter(part.values()))) for part in (tables.train, tables.test))
        how = "in the clear as only a simulation may" if alignments is None else "by private set intersection"
        label = planned.roles.holders[0]
        partners = {} if alignments is None else alignments[label].partners
        having = ", ".join(f"{party} has {int(mask.sum()):,}" for party, mask in partners.items())
        held = (
            f"{label} keeps {n_train + n_test:,} rows, of which {having}"
            if partners
            else f"{', '.join(tables.held)} hold {n_train + n_test:,} common rows"
        )
        say(f"{held}, found {how}: {n_train:,} to train on, {n_test:,} held out.")
        run = folder.simulate(progress=None, tables=tables)
    except KeyboardInterrupt as interrupt:
        interrupt.add_note("The same command with --resume goes on where this one stopped.")
        raise
    found = folder.quality()
    say(_in_words(folder.metrics()) if found is None or not found.alone_by else str(found))
    for stated in self_reported_leaks(run.transcripts):
        say(str(stated))
    say(f"Written to {folder.path}. What could the parties have learned? Run: colonnade audit {folder.path}")


@app.command()
def audit(
    run: RunPath,
    *,
    attack: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="An attack to make; the plan's if none is named.")
    ] = None,
    nulls: Annotated[int | None, typer.Option(help="How many runs with a shuffled secret to compare with.")] = None,
    engine: EngineOption = None,
    jobs: Jobs = None,
    attacker: Annotated[
        str | None,
        typer.Option(metavar="PARTY", help="The party that attacks; between machines, the label party scores."),
    ] = None,
    certificates: Certs = None,
    insecure: Insecure = False,
    listen: Listen = None,
) -> None:
    """Measure what each party of a run could have learned about the others.

    Of a run between machines, give the folder of this party's side. The party then audits alone what it sent. With
    --attacker the label party and the attacker audit together; both run the command at the same time.

    Of a simulated run every party attacks, or --attacker alone. The same command goes on with an audit that was
    interrupted. An audit with fewer attacks, attackers, null runs or epochs than the plan asks for, or not as thorough,
    does not replace the report of the planned audit.
    """
    from colonnade.auditing.render.summary import verdict
    from colonnade.auditing.render.words import warnings
    from colonnade.deploy.party_run import PartyRun

    folder = _run_or_side(run)
    planned = folder.plan.audit
    if attack:
        planned = replace(planned, attacks=tuple(attack))
    if nulls is not None:
        planned = replace(planned, nulls=nulls)
    if isinstance(folder, PartyRun):
        if attacker is None:
            report = folder.audit(planned)
        else:
            jointly = audit_jointly(folder, attacker, planned, certificates, insecure, listen, engine)
            if jointly is None:
                say(f"{folder.name} made its guesses. The scores stay with {folder.plan.roles.label}.")
                return
            report = jointly
    else:
        executor = folder.plan.engine.with_options(engine, jobs).build()
        report = folder.audit(planned, executor=executor, attackers=None if attacker is None else (attacker,))
    for warning in warnings(report):
        say(warning, style="bold red")
    for line in verdict(report):
        say(line)
    name, more = report.file_name(folder.path), f"In full: colonnade report {folder.path}"
    if name != "report":
        more = "The report of the planned audit stays as it was."
    say(f"Written to {folder.path / f'{name}.html'} and {name}.json beside it. {more}")


@app.command()
def report(
    run: RunPath,
    *,
    beside: Annotated[
        Path | None, typer.Option(metavar="RUN", help="Compare with another run: leaks and quality side by side.")
    ] = None,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the report as a page.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the report as Markdown.")] = False,
) -> None:
    """Show the report of a run's last audit, or two of them side by side."""
    from colonnade.auditing.render.compare import Comparison

    found: PrivacyReport | Comparison = _run_or_side(run).report()
    if beside is not None:
        names = (run.name, beside.name) if run.name != beside.name else (str(run), str(beside))
        found = Comparison(names, (_run_or_side(run).report(), _run_or_side(beside).report()))
    if html is not None:
        found.to_html(html)
    if json:
        print(found.to_json())
    elif markdown:
        print(found.to_markdown(), end="")
    elif html is None:
        console().print(found)
    else:
        say(f"Written to {html}.")


@app.command()
def evaluate(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="The folder of a run or prediction, or of two.")],
    *,
    prediction: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Measure a prediction that was written to this file.")
    ] = None,
    rows: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The rows that were predicted, with their labels.")
    ] = None,
) -> None:
    """Show how well a model predicts rows that it was not trained on, beside the label party alone.

    Of a run between machines, give the folder of the label party's side. With two folders, the second model is compared
    with the first one on the same rows. With --prediction and --rows, a prediction is measured whose labels came later.
    """
    from colonnade.deploy.party_run import PartyRun
    from colonnade.models.evaluation import compare
    from colonnade.models.quality import Quality

    given = sum(option is not None for option in (prediction, rows))
    if (len(runs), given) not in ((1, 0), (2, 0), (1, 2)):
        raise PlanError(
            "evaluate takes one or two folders, or one folder with --prediction and --rows, but got "
            f"{len(runs)} folders and {given} of these options. Leave out what is too many."
        )
    if prediction is not None and rows is not None:
        say(str(PartyRun.open(runs[0]).evaluate(prediction, rows)))
    elif len(runs) == 2:
        say("\n".join(compare(*runs).table(("second", "first"))))
    elif (runs[0] / "quality.json").exists():
        say(str(Quality.load(runs[0] / "quality.json")))
    else:
        raise StorageError(
            f"{runs[0]} should hold a quality.json, but has none. Write a section [evaluate] into the plan before "
            "training, or predict rows that have labels, at the label party."
        )


@data.command("list")
def list_data() -> None:
    """List the data sets a plan can name."""
    from rich.table import Table

    from colonnade.data.datasets import FOLDER_VARIABLE, available

    grid = Table("name", "rows", "columns", "task", "licence", "where", box=None, pad_edge=False)
    for info in available():
        where = "built in" if info.built_in else f"{info.file}{'' if info.present else ' (missing)'}"
        grid.add_row(info.name, f"{info.rows:,}", f"{info.columns:,}", info.task, info.licence, where)
    console().print(grid)
    say(f"Files are sought in the folder that ${FOLDER_VARIABLE} names.")


def _run_or_side(path: Path) -> RunFolder | PartyRun:
    """What a folder holds: a simulated run, or one party's side of a run between machines."""
    from colonnade.deploy.party_run import PartyRun
    from colonnade.experiment.run_folder import RunFolder
    from colonnade.runtime.status import has_begun

    is_side = has_begun(path) and (path / "transcript").is_dir()
    return PartyRun.open(path) if is_side else RunFolder.open(path)


def _in_words(metrics: Mapping[str, float]) -> str:
    figures = [f"{name} {value:.3f}" for name, value in metrics.items() if name not in ("rows", "commonest")]
    if "commonest" in metrics:
        figures.append(f"where always naming the commonest class has accuracy {metrics['commonest']:.3f}")
    return f"On held-out rows: {', '.join(figures)}."


for command in (align, bench, budget, doctor, join, predict, status):
    app.command()(command)
