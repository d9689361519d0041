"""The commands of a run between machines: doctor, align, join, predict."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from colonnade.cli.budget import BudgetOption
from colonnade.cli.console import Progress, say, warn
from colonnade.cli.engine import OwnCluster
from colonnade.cli.log import chosen_form, logged

if TYPE_CHECKING:
    from colonnade.auditing.report import PrivacyReport
    from colonnade.deploy.doctor.checklist import Check
    from colonnade.deploy.party_run import PartyRun, ProgressCallbacks
    from colonnade.plans.plan import Plan
    from colonnade.plans.sections import PlannedAudit
    from colonnade.wire.certs.credentials import Identity

STYLES = {"good": ("ok", "green"), "wrong": ("WRONG", "red"), "note": ("note", "yellow")}

PlanPath = Annotated[Path, typer.Argument(metavar="PLAN", help="A plan in TOML, with a section \\[network].")]
As = Annotated[str, typer.Option("--as", metavar="PARTY", help="Which of the plan's parties this is.")]
Certs = Annotated[Path | None, typer.Option("--certs", help="The folder of certificate and key, if not the plan's.")]
Insecure = Annotated[
    bool, typer.Option("--insecure", help="Send everything in the clear; only where every address is on this machine.")
]
Listen = Annotated[str | None, typer.Option(metavar="HOST:PORT", help="Where to listen, if not as the plan says.")]


class Terminated(KeyboardInterrupt):
    """The operator or the system asked this process to end."""


def doctor(
    plan: PlanPath,
    *,
    name: As,
    certificates: Certs = None,
    insecure: Insecure = False,
    listen: Listen = None,
    engine: OwnCluster = None,
    wait: Annotated[float, typer.Option(min=1, help="How many seconds to wait for the others.")] = 60.0,
    out: Annotated[Path, typer.Option(help="Where runs are kept, whose counts say what is left.")] = Path("runs"),
    rehearse: Annotated[
        bool, typer.Option("--rehearse", help="Train and audit at the label party alone, with made-up partners.")
    ] = False,
) -> None:
    """Look for what would keep a run from going well; all parties run this at the same time.

    With --rehearse nobody is met: the label party trains as planned with made-up columns in the place of the others',
    and audits what those could have learned about its labels.
    """
    from colonnade.deploy.doctor.checklist import exit_code
    from colonnade.deploy.doctor.doctor import examine
    from colonnade.plans.plan import Plan

    planned = Plan.read(plan).on_own_engine(name, engine)
    if rehearse:
        _rehearse(planned, name)
        return
    options: dict[str, Any] = {"certificates": certificates, "insecure": insecure, "listen": listen, "wait": wait}
    options["out"] = out
    with terminated_in_order():
        checks = examine(planned, name, told=_tell, **options)
    wrong = [check for check in checks if check.state == "wrong"]
    if wrong:
        say(f"{len(wrong)} of {len(checks)} lines are wrong.", style="red")
        raise typer.Exit(exit_code(checks))
    command = "align" if planned.model is None else "join"
    say("Nothing is wrong. Run: " + f"colonnade {command} {plan} --as {name}", style="green")


def _rehearse(plan: Plan, name: str) -> None:
    from colonnade.deploy.rehearsal import rehearse

    report, written = rehearse(plan, name), Path("rehearsal.html")
    for finding in report.attacks:
        if finding.owner == name:
            say(f"{finding.attack} by {finding.attacker}: {finding.plain.score.value:.3f}, {finding.verdict}")
    say(f"With made-up columns in the place of the others': {report!r}")
    report.to_html(written)
    say(f"Written to {written}.")


def align(
    plan: Annotated[Path, typer.Argument(metavar="PLAN", help="A plan in TOML, with a section \\[align].")],
    *,
    name: Annotated[
        str | None, typer.Option("--as", metavar="PARTY", help="Which party this is; without, all are simulated here.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with an alignment that was interrupted.")] = False,
    out: Annotated[Path, typer.Option(help="Where runs are kept.")] = Path("runs"),
    certificates: Certs = None,
    insecure: Insecure = False,
    listen: Listen = None,
    engine: OwnCluster = None,
) -> None:
    """Find the rows that all parties have in common, and say what each learned by that."""
    if name is None:
        _simulate_alignment(plan, out)
        return
    side = _side(plan, name, out, certificates, insecure, listen, engine).of_alignment()
    if side.status == "finished":
        side.erase_secrets()
        say(f"{name}'s side of this alignment has finished; it lies in {side.alignment_path}.")
        return
    with terminated_in_order(lambda: _again(side)), _shown(side) as shown:
        alignment = side.align(resume=resume, shown=shown)
    say(alignment.summary())
    say(f"Written to {side.alignment_path}.")


def _simulate_alignment(plan: Path, out: Path) -> None:
    from colonnade.experiment.run_folder import RunFolder
    from colonnade.plans.plan import Plan

    folder = RunFolder.create(Plan.read(plan), out, existing="resume")
    for party, alignment in folder.alignments(progress=None).items():
        say(f"{party}:")
        for line in alignment.summary().splitlines():
            say(f"  {line}")
    say(f"Written to {folder.path / 'alignment'}.")


def join(
    plan: PlanPath,
    *,
    name: As,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with a run that was interrupted.")] = False,
    out: Annotated[Path, typer.Option(help="Where runs are kept.")] = Path("runs"),
    certificates: Certs = None,
    insecure: Insecure = False,
    listen: Listen = None,
    engine: OwnCluster = None,
    budgets: BudgetOption = None,
) -> None:
    """Take part in a plan's training with your own table; the others do the same at their machines."""
    side = _side(plan, name, out, certificates, insecure, listen, engine)
    if budgets:
        side = replace(side, plan=replace(side.plan, privacy=side.plan.privacy.with_options(budgets)))
    if side.status == "finished":
        side.erase_secrets()
        say(f"{name}'s side of this run has finished; its model lies in {side.model_path}.")
        if side.has_other_rows:
            say(f"{name}'s rows have changed since: the model was trained on what they were.", style="red")
        say("To train again, delete its folder or choose another one with --out.")
        return
    with terminated_in_order(lambda: _again(side)), _shown(side) as shown:
        share = side.train(resume=resume, shown=shown)
    say(share.summary())
    if side.plan.evaluate is not None and name != side.plan.roles.label:
        say(f"Some rows were held out. {side.plan.roles.label} is told how well the model predicts them.")
    if insecure:
        warn("This run was in the clear: anyone on the network path could read and change it. run.json says so.")
    say(f"Written to {side.path}. Predict with: colonnade predict {plan} --as {name} --model {side.path}")


def predict(
    plan: PlanPath,
    *,
    name: As,
    model: Annotated[Path, typer.Option(metavar="FOLDER", help="The folder that `colonnade join` wrote.")],
    rows: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The rows to predict; of the plan's file, or held out, if none.")
    ] = None,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="A .csv or .parquet file for the result.")] = None,
    head: Annotated[
        str | None,
        typer.Option(metavar="HEAD", help="federated or local, at the label party of a model that has both."),
    ] = None,
    lookup: Annotated[
        bool,
        typer.Option("--lookup", help="Predict for a few people; feature parties allow that by most_lookups."),
    ] = False,
    certificates: Certs = None,
    insecure: Insecure = False,
    listen: Listen = None,
    engine: OwnCluster = None,
) -> None:
    """Predict together with the other parties; only the label party learns the result."""
    side = replace(_side(plan, name, model.parent.parent, certificates, insecure, listen, engine), looks_up=lookup)
    with terminated_in_order(), _shown(side) as shown:
        written = side.predict(model, file=rows, out=out, head=head, shown=shown)
    say(f"{name} learns nothing of the prediction." if written is None else f"Written to {written}.")


def audit_jointly(
    folder: PartyRun,
    attacker: str,
    planned: PlannedAudit,
    certificates: Path | None,
    insecure: bool,
    listen: str | None,
    engine: str | None,
) -> PrivacyReport | None:
    """Audit a run together with another party; the report at the label party, None at the attacker."""
    plan, out = folder.path / "plan.toml", folder.path.parent.parent
    side = _side(plan, folder.name, out, certificates, insecure, listen, engine)
    with terminated_in_order(), _shown(side) as shown:
        return replace(side, path=folder.path).audit_jointly(attacker, planned, shown=shown)


def _side(
    plan: Path,
    name: str,
    out: Path,
    certificates: Path | None,
    insecure: bool,
    listen: str | None,
    engine: str | None,
) -> PartyRun:
    from colonnade.deploy.party_run import PartyRun
    from colonnade.plans.plan import Plan

    planned = Plan.read(plan).on_own_engine(name, engine)
    side = PartyRun.of(planned, name, out, certificates=certificates, insecure=insecure, listen=listen)
    if side.credentials is None:
        warn(
            "INSECURE: TLS is off. Anyone on the network path can read and change all traffic, and impersonate any "
            "party."
        )
    else:
        say(f"TLS on, own certificate {name}, fingerprint {side.credentials.identity.words}")
        for peer in side.addresses:
            expected = None if peer == name else side.expected(peer)
            if expected is not None:
                say(f"Expected of {peer}: fingerprint {expected.words}")
    if side.noise_is_known:
        warn(
            'NOT PRIVATE: the plan says randomness = "seeded". Everybody who knows the plan can compute this party\'s '
            "noise, so no epsilon holds."
        )
    return side


@contextmanager
def _shown(side: PartyRun) -> Iterator[ProgressCallbacks]:
    from colonnade.deploy.party_run import ProgressCallbacks

    form = chosen_form.get() or side.log

    said = set()

    def met(peer: str, identity: Identity | None) -> None:
        words = "TLS off" if identity is None else "TLS on"
        line = f"{words}, peer {peer}" + ("" if identity is None else f", fingerprint {identity.words}")
        if line not in said:
            said.add(line)
            say(line)

    def rows(n_common: int, n_own: int) -> None:
        say(f"{n_common:,} of your {n_own:,} rows ({n_common / max(1, n_own):.0%}) are common to all parties.")

    with logged(form) as log, Progress(line=log.info) as progress:
        yield ProgressCallbacks(progress.wait, met, rows, step=progress.step, quality=lambda found: say(str(found)))


def _again(side: PartyRun) -> str:
    if side.has_met:
        return "The same command with --resume goes on where this one stopped."
    return "The others were not met. The same command begins again."


@contextmanager
def terminated_in_order(advice: Callable[[], str] | None = None) -> Iterator[None]:
    """Let SIGTERM end a run as an interruption does: the others are told, the status and some advice are written."""

    def terminate(number: int, frame: object) -> None:
        # A second one ends the process at once.
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        raise Terminated

    before = signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    except KeyboardInterrupt as interrupt:
        if advice is not None:
            interrupt.add_note(advice())
        raise
    finally:
        signal.signal(signal.SIGTERM, before)


def _tell(check: Check) -> None:
    word, style = STYLES[check.state]
    say(f"{word:5}  {check.about}, {check.topic}: {check.said}", style=style)
    if check.fix:
        say(f"       -> {check.fix}")
