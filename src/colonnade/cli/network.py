"""The commands of a run between machines: certs, doctor, align, join, predict."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from colonnade.cli.console import Progress, say, warn

if TYPE_CHECKING:
    from colonnade.auditing.report import PrivacyReport
    from colonnade.deploy.doctor.checklist import Check
    from colonnade.deploy.party_run import Shown, Side
    from colonnade.plans.plan import PlannedAudit
    from colonnade.wire.certs.authority import Identity

STYLES = {"good": ("ok", "green"), "wrong": ("WRONG", "red"), "note": ("note", "yellow")}

certs = typer.Typer(no_args_is_help=True, help="Certificates, by which parties know each other.")

PlanPath = Annotated[Path, typer.Argument(metavar="PLAN", help="A plan in TOML, with a section \\[network].")]
As = Annotated[str, typer.Option("--as", metavar="PARTY", help="Which of the plan's parties this is.")]
Certs = Annotated[Path | None, typer.Option("--certs", help="The folder of certificate and key, if not the plan's.")]
Insecure = Annotated[bool, typer.Option("--insecure", help="Send everything in the clear. For tests on one machine.")]
Listen = Annotated[str | None, typer.Option(metavar="HOST:PORT", help="Where to listen, if not as the plan says.")]
Folder = Annotated[Path, typer.Option("--certs", help="The folder of certificates.")]
Name = Annotated[str, typer.Argument(metavar="NAME", help="The party, as plans name it.")]
Days = Annotated[int, typer.Option(help="How long the certificate holds.")]


class Terminated(KeyboardInterrupt):
    """The operator, or the system on his behalf, asked this process to end."""


@certs.command("init")
def init_certs(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A folder for the authority.")] = Path("certs"),
    *,
    federation: Annotated[str, typer.Option(help="What the parties call themselves together.")] = "colonnade",
) -> None:
    """Make the authority of a federation, which vouches for its parties' names."""
    from colonnade.wire.certs.authority import init, show

    path = init(folder, federation=federation)
    say(f"Written to {path}, which every party needs, and {path.with_suffix('.key')}, which is for its keeper alone.")
    say(f"Fingerprint of the authority: {show(path).words}")


@certs.command("issue")
def issue_cert(
    name: Name,
    *,
    folder: Folder = Path("certs"),
    out: Annotated[
        Path | None, typer.Option(help="A folder to hand over; the authority's own if none is named.")
    ] = None,
    days: Days = 397,
) -> None:
    """Make a party's key and certificate, or renew its certificate."""
    from colonnade.wire.certs.authority import issue

    path = issue(folder, name, out=out, days=days)
    _say_issued(path)
    say(f"{name} needs ca.pem, {path.name} and {path.stem}.key from {path.parent}; the key is for {name} alone.")


@certs.command("request")
def request_cert(name: Name, *, folder: Folder = Path("certs")) -> None:
    """Make a party's own key, which never leaves it, and a request that the authority may sign."""
    from colonnade.wire.certs.authority import request, words_of

    path = request(folder, name)
    say(f"Written to {path}, which the authority needs, and {path.with_suffix('.key')}, which is for {name} alone.")
    say(f"Fingerprint of the request, to be compared by telephone: {words_of(path.read_bytes())}")


@certs.command("sign")
def sign_cert(
    name: Name,
    request: Annotated[Path, typer.Argument(metavar="REQUEST", help="What `certs request` wrote.")],
    *,
    folder: Folder = Path("certs"),
    out: Annotated[Path | None, typer.Option(help="A folder to hand over; the request's if none is named.")] = None,
    days: Days = 397,
) -> None:
    """Sign a party's request, once its fingerprint was compared by telephone."""
    from colonnade.wire.certs.authority import sign

    path = sign(folder, name, request, out=out, days=days)
    _say_issued(path)
    say(f"{name} needs {path.name} and ca.pem from {path.parent}.")


@certs.command("show")
def show_cert(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A certificate, or a request for one.")],
    *,
    words: Annotated[str | None, typer.Option(help="A fingerprint as somebody read it out, to compare with.")] = None,
) -> None:
    """Show whom a certificate names, until when, and its fingerprint in words for the telephone."""
    from colonnade.errors import AuthError
    from colonnade.storage import explained
    from colonnade.wire.certs.authority import from_words, show, words_of

    with explained(f"read {file}"):
        pem = file.read_bytes()
    if b"REQUEST" not in pem:
        identity = show(file)
        say(
            f"{identity.owner} of {identity.federation}, from {identity.not_before:%Y-%m-%d} to "
            f"{identity.not_after:%Y-%m-%d}."
        )
    say(f"Fingerprint: {words_of(pem)}")
    if words is not None:
        if from_words(words) != from_words(words_of(pem)):
            raise AuthError(
                f"Expected the fingerprint that was read out, but {file} has another one. "
                "Somebody may have exchanged it on the way; have it sent again."
            )
        say("They are the same.")


@certs.command("key")
def make_storage_key(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Where to write it.")] = Path("storage.key"),
) -> None:
    """Make a key under which recordings of runs are encrypted on disk; a plan names it as key_file."""
    from colonnade.wire.recording.storage_key import make_key

    say(f"Written to {make_key(file)}. Keep it where the recordings are not, and keep a copy.")


def doctor(
    plan: PlanPath,
    *,
    name: As,
    certificates: Certs = None,
    insecure: Insecure = False,
    listen: Listen = None,
    wait: Annotated[float, typer.Option(min=1, help="How many seconds to wait for the others.")] = 60.0,
) -> None:
    """Look for what would keep a run from going well; all parties run this at the same time."""
    from colonnade.deploy.doctor.checklist import exit_code
    from colonnade.deploy.doctor.doctor import examine
    from colonnade.plans.plan import Plan

    planned = Plan.read(plan)
    options: dict[str, Any] = {"certificates": certificates, "insecure": insecure, "listen": listen, "wait": wait}
    with terminated_in_order():
        checks = examine(planned, name, told=_tell, **options)
    wrong = [check for check in checks if check.state == "wrong"]
    if wrong:
        say(f"{len(wrong)} of {len(checks)} lines are wrong.", style="red")
        raise typer.Exit(exit_code(checks))
    command = "align" if planned.model is None else "join"
    say("Nothing is wrong. Run: " + f"colonnade {command} {plan} --as {name}", style="green")


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
) -> None:
    """Find the rows that all parties have in common, and say what each learned by that."""
    if name is None:
        _simulate_alignment(plan, out)
        return
    side = _side(plan, name, out, certificates, insecure, listen).of_alignment()
    if side.status == "finished":
        say(f"{name}'s side of this alignment has finished; it lies in {side.alignment_path}.")
        return
    with terminated_in_order("The same command with --resume goes on where this one stopped."), _shown() as shown:
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
) -> None:
    """Take part in a plan's training with one's own table; the others do the same at their machines."""
    side = _side(plan, name, out, certificates, insecure, listen)
    if side.status == "finished":
        say(f"{name}'s side of this run has finished; its model lies in {side.model_path}.")
        say("To train again, delete its folder or choose another one with --out.")
        return
    with terminated_in_order("The same command with --resume goes on where this one stopped."), _shown() as shown:
        share = side.train(resume=resume, shown=shown)
    say(share.summary())
    if insecure:
        warn("This run was in the clear: whoever was on the way could read and change it. run.json says so.")
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
    certificates: Certs = None,
    insecure: Insecure = False,
    listen: Listen = None,
) -> None:
    """Predict together with the other parties; only the label party learns the result."""
    side = _side(plan, name, model.parent.parent, certificates, insecure, listen)
    with terminated_in_order(), _shown() as shown:
        written = side.predict(model, file=rows, out=out, head=head, shown=shown)
    say(f"{name} learns nothing of the prediction." if written is None else f"Written to {written}.")


def audit_jointly(
    folder: Side, attacker: str, planned: PlannedAudit, certificates: Path | None, insecure: bool, listen: str | None
) -> PrivacyReport | None:
    """Audit a run together with another party; the report at the label party, None at the attacker."""
    side = _side(folder.path / "plan.toml", folder.name, folder.path.parent.parent, certificates, insecure, listen)
    with terminated_in_order(), _shown() as shown:
        return replace(side, path=folder.path).audit_jointly(attacker, planned, shown=shown)


def _side(plan: Path, name: str, out: Path, certificates: Path | None, insecure: bool, listen: str | None) -> Side:
    from colonnade.deploy.party_run import Side
    from colonnade.plans.plan import Plan

    side = Side.of(Plan.read(plan), name, out, certificates=certificates, insecure=insecure, listen=listen)
    if side.credentials is None:
        warn("INSECURE: TLS is off. Whoever is on the way can read and change everything, and be anybody.")
    else:
        say(f"TLS on, own certificate {name}, fingerprint {side.credentials.identity.words}")
        for peer in side.addresses:
            expected = None if peer == name else side.expected(peer)
            if expected is not None:
                say(f"Expected of {peer}: fingerprint {expected.words}")
    return side


@contextmanager
def _shown() -> Iterator[Shown]:
    from colonnade.deploy.party_run import Shown

    said = set()

    def met(peer: str, identity: Identity | None) -> None:
        words = "TLS off" if identity is None else "TLS on"
        line = f"{words}, peer {peer}" + ("" if identity is None else f", fingerprint {identity.words}")
        if line not in said:
            said.add(line)
            say(line)

    with Progress() as progress:
        yield Shown(progress.wait, met, progress.step)


@contextmanager
def terminated_in_order(advice: str | None = None) -> Iterator[None]:
    """Let SIGTERM end a run as an interruption does: the others are told, and the status is written.

    Args:
        advice: What to say to whoever interrupts.
    """

    def terminate(number: int, frame: object) -> None:
        # A second one ends the process at once.
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        raise Terminated

    before = signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    except KeyboardInterrupt as interrupt:
        if advice is not None:
            interrupt.add_note(advice)
        raise
    finally:
        signal.signal(signal.SIGTERM, before)


def _say_issued(path: Path) -> None:
    from colonnade.wire.certs.authority import show

    identity = show(path)
    say(f"Written to {path}: {identity.owner} of {identity.federation}, until {identity.not_after:%Y-%m-%d}.")
    say(f"Fingerprint: {identity.words}")


def _tell(check: Check) -> None:
    word, style = STYLES[check.state]
    say(f"{word:5}  {check.about}, {check.topic}: {check.said}", style=style)
    if check.fix:
        say(f"       -> {check.fix}")
