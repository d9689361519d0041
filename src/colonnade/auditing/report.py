"""PrivacyReport: what each party could learn about the others, computed and never written by hand."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from colonnade.auditing.contents import ReportContents, RunIdentity
from colonnade.auditing.disclosure import Disclosure, SelfReportedLeak
from colonnade.auditing.evidence import BestBaseline, Evidence, Finding, Granted, Score
from colonnade.errors import StorageError
from colonnade.privacy.ledger import Spent
from colonnade.secret import Secret

if TYPE_CHECKING:
    from rich.console import RenderableType

VERSION = 1


@dataclass(frozen=True)
class PrivacyReport(ReportContents):
    """What each party could learn about the others in one run, to be shown, written and read back.

    >>> identity = RunIdentity("0" * 64, "SplitClassifier.fit", {"bank": "label party"}, 9, 0, "seeded", "simulated")
    >>> report = PrivacyReport(identity, (), {}, (), ("NormScore by shop: it tells two classes apart",))
    >>> PrivacyReport.from_json(report.to_json()) == report
    True
    """

    def to_json(self) -> str:
        """The report as JSON, which later versions can still read."""
        tree = {"version": VERSION, **asdict(self)}
        over_runs = (spent for party in tree["over_runs"].values() for spent in party.values())
        for spent in (*tree["budget"].values(), *over_runs):
            # JSON has no infinity.
            spent["epsilon"] = spent["epsilon"] if math.isfinite(spent["epsilon"]) else None
        for finding, told in zip(tree["attacks"], self.attacks, strict=True):
            finding["verdict"] = told.verdict
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
            )
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise StorageError(
                f"A privacy report of version {version} should have all its parts, but this one cannot be read "
                f"({type(error).__name__}: {error}). Write the report again."
            ) from error

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

    def __rich__(self) -> RenderableType:
        """The report on a terminal."""
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
    granted = Granted(**{**item["granted"], "messages": tuple(item["granted"]["messages"])})
    parts = {
        "about": Secret(item["about"]),
        "granted": granted,
        "plain": _evidence(item["plain"]),
        "up_to_naming": None if item["up_to_naming"] is None else _evidence(item["up_to_naming"]),
    }
    return Finding(**{name: value for name, value in {**item, **parts}.items() if name != "verdict"})


def _evidence(item: Mapping[str, Any]) -> Evidence:
    alone = None if item["alone"] is None else BestBaseline(**item["alone"])
    return Evidence(Score(**item["score"]), item["chance"], tuple(item["null"]), alone)
