"""PrivacyReport: what each party could learn about the others, computed and never written by hand.

Who sent whom what is read from the recordings, what that costs from the ledgers.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from colonnade.auditing.contents import (
    BestBaseline,
    Disclosure,
    Evidence,
    Finding,
    Granted,
    GuardRecord,
    Leakage,
    Picture,
    Reconstruction,
    ReportContents,
    RunIdentity,
    Score,
    SelfReportedLeak,
    revealed,
)
from colonnade.errors import StorageError
from colonnade.models.networks.messages import LeakStatement
from colonnade.models.quality import Quality
from colonnade.privacy.ledger import Event, Ledger, Spent, compose
from colonnade.secret import Secret
from colonnade.wire.recording.recording import Transcript

if TYPE_CHECKING:
    from rich.console import RenderableType

VERSION = 1


@dataclass(frozen=True, repr=False)
class PrivacyReport(ReportContents):
    """What each party could learn about the others in one run, to be shown, written and read back.

    >>> identity = RunIdentity("0" * 64, "SplitClassifier.fit", {"bank": "label party"}, 9, 0, "seeded", "simulated")
    >>> report = PrivacyReport(identity, (), {}, (), ("NormScore by shop: it tells two classes apart",))
    >>> PrivacyReport.from_json(report.to_json()) == report
    True
    """

    def file_name(self, folder: Path) -> str:
        """What its files are called in the folder of a run: a partial report does not replace a whole one."""
        try:
            is_taken = not PrivacyReport.read(folder).partial
        except StorageError:
            is_taken = False  # There is none, or a damaged one.
        return "report-partial" if self.partial and is_taken else "report"

    def write(self, folder: Path) -> None:
        """Write the report into the folder of a run, as JSON and as a page."""
        from colonnade.storage import write_atomically

        name = self.file_name(folder)
        write_atomically(folder / f"{name}.json", self.to_json().encode())
        self.to_html(folder / f"{name}.html")

    @classmethod
    def read(cls, folder: Path, name: str = "report") -> PrivacyReport:
        """A report in the folder of a run.

        Raises:
            StorageError: The run was not audited yet, or the report is damaged.
        """
        from colonnade.storage import explained

        path = folder / f"{name}.json"
        with explained(f"read {path}"):
            if path.is_file():
                return cls.from_json(path.read_bytes().decode("utf-8", "replace"))
        raise StorageError(
            f"{folder} should hold a report, but the run was not audited yet. Run: colonnade audit {folder}"
        )

    def to_json(self) -> str:
        """The report as JSON, which later versions can still read; verdicts and summary are there for other readers."""
        from colonnade.auditing.render.summary import summary

        tree = {"version": VERSION, **asdict(self)}
        over_runs = (spent for party in tree["over_runs"].values() for spent in party.values())
        for spent in (*tree["budget"].values(), *over_runs):
            # JSON has no infinity.
            spent["epsilon"] = spent["epsilon"] if math.isfinite(spent["epsilon"]) else None
        for finding, told in zip(tree["attacks"], self.attacks, strict=True):
            finding["verdict"] = told.verdict
        tree["summary"] = summary(self)
        return json.dumps(tree, indent=2, ensure_ascii=False, allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> PrivacyReport:
        """The report that `to_json` wrote, in this version or an earlier one."""
        try:
            tree = json.loads(text)
            version = tree["version"]
        except (ValueError, KeyError, TypeError) as error:
            raise StorageError(
                f"A privacy report should be JSON with a version, but this is not ({type(error).__name__}). "
                "Give the file that colonnade wrote, undamaged."
            ) from error
        if version not in range(1, VERSION + 1):
            raise StorageError(
                f"A privacy report of version 1 to {VERSION} can be read, but this one is of version {version}. "
                "Upgrade colonnade."
            )
        try:
            return cls(
                run=RunIdentity(**tree["run"]),
                disclosures=tuple(_disclosure(item) for item in tree["disclosures"]),
                budget={secret: _spent(item) for secret, item in tree["budget"].items()},
                attacks=tuple(_finding(item) for item in tree["attacks"]),
                untested=tuple(tree["untested"]),
                stated=tuple(SelfReportedLeak(**item) for item in tree.get("stated", ())),
                over_runs={
                    party: {secret: _spent(item) for secret, item in spent.items()}
                    for party, spent in tree.get("over_runs", {}).items()
                },
                inapplicable=tuple(tree.get("inapplicable", ())),
                tried=tuple(Secret(name) for name in tree.get("tried", ())),
                attackers=tuple(tree.get("attackers", ())),
                partial=tree.get("partial", False),
                quality=None if tree.get("quality") is None else Quality.of(tree["quality"]),
                guarded=tuple(GuardRecord(**{**item, "rows": tuple(item["rows"])}) for item in tree.get("guarded", ())),
            )
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise StorageError(
                f"A privacy report of version {version} should have all its parts, but this one cannot be read "
                f"({type(error).__name__}: {error}). Write the report again."
            ) from error

    def to_markdown(self) -> str:
        """The report as Markdown: the content of the page without its drawings."""
        from colonnade.auditing.render.markdown import markdown

        return markdown(self)

    def to_html(self, path: Path | str) -> None:
        """Write the report as one page that needs nothing else."""
        from colonnade.auditing.render.html import html
        from colonnade.storage import write_atomically

        write_atomically(Path(path), html(self).encode())

    def render(self, width: int = 100) -> str:
        """The report as plain text."""
        from rich.console import Console

        console = Console(width=width, color_system=None, force_terminal=False, legacy_windows=False)
        with console.capture() as capture:
            console.print(self)
        return capture.get()

    def __repr__(self) -> str:
        from colonnade.auditing.render import words

        return f"PrivacyReport({words.headline(self)})"

    def __str__(self) -> str:
        return self.render()

    def _repr_html_(self) -> str:
        """The page in a frame, so that its styles stay within it."""
        from colonnade.auditing.render.html import html

        return f'<iframe srcdoc="{escape(html(self))}" style="width: 100%; height: 800px; border: 0"></iframe>'

    def __rich__(self) -> RenderableType:
        from colonnade.auditing.render.terminal import terminal

        return terminal(self)


def _disclosure(item: Mapping[str, Any]) -> Disclosure:
    secrets = tuple(Secret(name) for name in item["reveals"])
    return Disclosure(**{**item, "reveals": secrets, "under": tuple(item["under"])})


def _spent(item: Mapping[str, Any]) -> Spent:
    epsilon = math.inf if item["epsilon"] is None else item["epsilon"]
    return Spent(
        **{**item, "protects": Secret(item["protects"]), "epsilon": epsilon, "notes": tuple(item["notes"])},
    )


def _finding(item: Mapping[str, Any]) -> Finding:
    given = item["granted"]
    granted = Granted(**{**given, **{name: tuple(given.get(name) or ()) for name in ("messages", "forest")}})
    parts = {
        "about": Secret(item["about"]),
        "granted": granted,
        "plain": _evidence(item["plain"]),
        "up_to_naming": None if item["up_to_naming"] is None else _evidence(item["up_to_naming"]),
        "rebuilt": None if item.get("rebuilt") is None else _rebuilt(item["rebuilt"]),
        "leakage": None if item.get("leakage") is None else _leakage(item["leakage"]),
        "over_epochs": tuple((epoch, score) for epoch, score in item.get("over_epochs", ())),
    }
    return Finding(**{name: value for name, value in {**item, **parts}.items() if name != "verdict"})


def _rebuilt(item: Mapping[str, Any]) -> Reconstruction:
    categories = {name: tuple(each) for name, each in item["categories"].items()}
    pictures = tuple(Picture(tuple(each["true"]), tuple(each["rebuilt"])) for each in item.get("pictures", ()))
    return Reconstruction(**{**item, "categories": categories, "pictures": pictures})


def _leakage(item: Mapping[str, Any]) -> Leakage:
    excess, normalised = (None if item[name] is None else Score(**item[name]) for name in ("excess", "normalised"))
    all_labels = None if item["all_labels"] is None else BestBaseline(**item["all_labels"])
    return Leakage(tuple(item["joined"]), item["luck"], excess, all_labels, normalised)


def _evidence(item: Mapping[str, Any]) -> Evidence:
    alone = None if item["alone"] is None else BestBaseline(**item["alone"])
    return Evidence(Score(**item["score"]), item["chance"], tuple(item["null"]), alone)


def disclosures(transcripts: Mapping[str, Transcript]) -> tuple[Disclosure, ...]:
    """Everything that was sent, as the senders' recordings say, checked against the receivers' that are given."""
    found = []
    for sender, transcript in transcripts.items():
        messages: Counter[tuple[str, str, tuple[str, ...], tuple[str, ...]]] = Counter()
        sizes: Counter[tuple[str, str, tuple[str, ...], tuple[str, ...]]] = Counter()
        for entry in transcript.entries:
            if entry.sent:
                group = (entry.peer, entry.kind, entry.reveals, entry.under)
                messages[group] += 1
                sizes[group] += entry.size
        for group, n in messages.items():
            receiver, kind, reveals, under = group
            secrets = tuple(Secret(name) for name in reveals)
            confirmed = None
            if receiver in transcripts:
                received = _digests(transcripts[receiver], sender, kind, sent=False)
                confirmed = _digests(transcript, receiver, kind, sent=True) == received
            found.append(Disclosure(sender, receiver, kind, secrets, under, n, sizes[group], confirmed))
    return tuple(found)


def budget(found: Iterable[Disclosure], ledgers: Mapping[str, Ledger], delta: float) -> dict[str, Spent]:
    """What was spent on each secret, from all ledgers.

    A message that reveals a secret counts as not private unless its sender's ledger holds a private event about that
    secret by a protection that the message went out under.
    """
    in_the_clear = Ledger()
    for disclosure in found:
        events = ledgers[disclosure.sender].events
        accounted = {event.protects for event in events if event.is_private and event.by in disclosure.under}
        for secret in disclosure.reveals:
            if secret not in accounted:
                note = f"{disclosure.kind} from {disclosure.sender} to {disclosure.receiver}"
                in_the_clear.spend(Event.not_private(secret, note), disclosure.messages)
    composed = compose([*ledgers.values(), in_the_clear], delta)
    return {str(secret): composed[secret] for secret in sorted(composed)}


def budget_over_runs(ledgers: Mapping[str, Ledger], delta: float) -> dict[str, dict[str, Spent]]:
    """What all runs on the same records spent on each secret, by party, where a ledger knows of other runs."""
    found = {}
    for party, ledger in ledgers.items():
        if ledger.has_history:
            spent = {str(secret): ledger.spent_over_runs(secret, delta) for secret in sorted(Secret)}
            found[party] = {secret: each for secret, each in spent.items() if each.releases}
    return {party: spent for party, spent in found.items() if spent}


def _digests(transcript: Transcript, peer: str, kind: str, *, sent: bool) -> list[str]:
    return [e.digest for e in transcript.entries if (e.peer, e.kind, e.sent) == (peer, kind, sent)]


def never_attacked(
    sent: Iterable[Disclosure],
    parties: Mapping[str, str],
    findings: Sequence[Finding],
    tried: Collection[tuple[str, Secret]] = (),
) -> Iterator[str]:
    """What was revealed to a party without an attack that made use of it; `tried` is who attacked what."""
    for (receiver, owner, secret), kinds in revealed(sent, parties).items():
        made = [f for f in findings if (f.attacker, f.owner, f.about) == (receiver, owner, secret)]
        unread = [kind for kind in kinds if not any(finding.reads(kind) for finding in made)]
        if unread:
            unused = (
                "none of the attacks that were tried applies" if (receiver, secret) in tried else "no attack was made"
            )
            reason = "no attack read them" if made else unused
            yield f"{receiver} about {owner}'s {secret}, given {' and '.join(unread)}: {reason}"


def self_reported_leaks(transcripts: Mapping[str, Transcript]) -> tuple[SelfReportedLeak, ...]:
    """Every statement that was kept in the recordings of its sender or its receiver."""
    found: dict[tuple[str, str], SelfReportedLeak] = {}
    for party, transcript in transcripts.items():
        for recorded in transcript.messages(LeakStatement):
            pair = (party, recorded.peer) if recorded.sent else (recorded.peer, party)
            said = recorded.message
            found[pair] = SelfReportedLeak(*pair, said.width, said.relative_mse, said.worst_r2)
    return tuple(found.values())


def guarded(transcripts: Mapping[str, Transcript]) -> tuple[GuardRecord, ...]:
    """What parties' guards noted in their recordings."""
    return tuple(
        GuardRecord(party, **{**note, "rows": tuple(note["rows"])})
        for party, transcript in transcripts.items()
        for name, note in transcript.notes.items()
        if name.startswith("guard ")
    )
