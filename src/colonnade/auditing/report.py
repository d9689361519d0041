"""PrivacyReport: what each party could learn about the others, computed and never written by hand."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from colonnade._version import __version__
from colonnade.auditing.alone import Best
from colonnade.auditing.disclosure import Disclosure
from colonnade.auditing.score import Measure, Score
from colonnade.auditing.stated import Stated
from colonnade.errors import StorageError
from colonnade.privacy.ledger import Spent
from colonnade.privacy.randomness import Source
from colonnade.roles import PublicPlan
from colonnade.secret import Secret

if TYPE_CHECKING:
    from rich.console import RenderableType

VERSION = 1
NULL_QUANTILE = 0.95

Verdict: TypeAlias = Literal["leaks", "leaks up to naming", "no more than alone", "no leak found"]


@dataclass(frozen=True)
class Simulated:
    """All parties ran in one process: every attack can be made and scored.

    >>> Simulated().name
    'simulated'
    """

    name = "simulated"


@dataclass(frozen=True)
class Mirror:
    """A deployed party, alone, attacks what it itself sent, with the grants it can give.

    >>> Mirror("bank").name
    'mirror'
    """

    party: str
    name = "mirror"


@dataclass(frozen=True)
class Joint:
    """Deployed parties by consent: the attacker sends its guess, and the score stays with the owner of the truth.

    >>> Joint(attacker="shop", owner="bank").name
    'joint'
    """

    attacker: str
    owner: str
    name = "joint"


Mode: TypeAlias = Simulated | Mirror | Joint


@dataclass(frozen=True)
class RunIdentity:
    """Which run a report is about.

    Attributes:
        parties: Each party's role.
        randomness: "seeded" where whoever knows the seed knows all noise; "system" where nobody does.
        mode: Who could audit what: "simulated", "mirror" or "joint".
        insecure: Whether messages crossed between machines without TLS.

    >>> RunIdentity("0" * 64, "SplitClassifier.fit", {"bank": "label party"}, 9, 0, "seeded", "simulated").mode
    'simulated'
    """

    plan: str
    protocol: str
    parties: Mapping[str, str]
    n_rows: int
    seed: int
    randomness: str
    mode: str
    code_version: str = __version__
    insecure: bool = False

    @classmethod
    def of(
        cls,
        plan: PublicPlan,
        mode: Mode,
        *,
        n_rows: int,
        randomness: Source,
        seed: int | None = None,
        insecure: bool = False,
    ) -> RunIdentity:
        """The identity of a plan's run.

        Args:
            plan: What was run.
            mode: Who audits it.
            n_rows: How many rows the parties have in common.
            randomness: How the parties' noise was drawn.
            seed: All randomness, where it followed from one seed; the plan's, which is public, if None.
            insecure: Whether messages crossed between machines without TLS.
        """
        roles = plan.roles
        special = {roles.label: "label party", roles.arbiter: "arbiter", roles.server: "server"}
        return cls(
            plan=plan.hash,
            protocol=plan.protocol,
            parties={name: special.get(name, "feature party") for name in roles.parties},
            n_rows=n_rows,
            seed=plan.seed if seed is None else seed,
            randomness=randomness,
            insecure=insecure,
            mode=mode.name,
        )


@dataclass(frozen=True)
class Granted:
    """What an attack was given: what it had declared to need.

    Attributes:
        messages: The kinds of messages it read.
        known_labels: How many labels of each class it was told.

    >>> Granted(("split/gradient",), own_features=False, own_model=False, known_labels=1).known_labels
    1
    """

    messages: tuple[str, ...]
    own_features: bool
    own_model: bool
    known_labels: int


@dataclass(frozen=True)
class Evidence:
    """A score beside everything that it must exceed to count as a leak.

    Attributes:
        null: The scores of the same attack in runs with permuted labels; where nothing can be run again, those of the
            same guess against permuted labels.
        alone: The best that the attacker could do by itself; None where only the attacker could measure it.

    >>> Evidence(Score(0.9, 0.85, 0.94), 0.5, (0.48, 0.6), Best(0.7, "label spreading")).leaks
    True
    """

    score: Score
    chance: float
    null: tuple[float, ...]
    alone: Best | None

    @property
    def null_high(self) -> float:
        """The null's 95th percentile; with fewer than 39 null runs this is their maximum."""
        return sorted(self.null)[self._null_rank - 1]

    @property
    def luck(self) -> float:
        """How likely a score exceeds `null_high` where there is nothing to find: about 0.05."""
        return (len(self.null) + 1 - self._null_rank) / (len(self.null) + 1)

    @property
    def _null_rank(self) -> int:
        n = len(self.null)
        return min(n, math.ceil(NULL_QUANTILE * (n + 1)))

    @property
    def floor(self) -> float:
        """The higher of chance and null: what can be reached where the messages tell nothing."""
        return max(self.chance, self.null_high)

    @property
    def carries(self) -> bool:
        """Whether the whole interval lies above chance and null, whatever the attacker could do alone."""
        return self.score.low > self.floor

    @property
    def bar(self) -> float:
        """The highest of chance, null and, where it was measured, attacker alone."""
        return self.floor if self.alone is None else max(self.floor, self.alone.value)

    @property
    def excess(self) -> float:
        """By how much the score exceeds the bar."""
        return self.score.value - self.bar

    @property
    def leaks(self) -> bool:
        """Whether the whole interval lies above the bar."""
        return self.score.low > self.bar


@dataclass(frozen=True)
class Finding:
    """What one attack by one party found out.

    Attributes:
        rows: How many rows were scored.
        coverage: Which share that is of all rows that could have been guessed.
        plain: The guess as it was made.
        up_to_naming: The guess under the names of classes, or the sign, that suit it best, beside controls that were
            given the same help.

    >>> evidence = Evidence(Score(0.9, 0.85, 0.94), 0.5, (0.48, 0.6), Best(0.7, "label spreading"))
    >>> granted = Granted(("split/gradient",), own_features=False, own_model=False, known_labels=0)
    >>> about = ("NormScore", "Long gradients.", "shop", "bank", Secret.LABELS, False, granted)
    >>> Finding(*about, "AUC", 100, 0.9, evidence, evidence).verdict
    'leaks'
    """

    attack: str
    summary: str
    attacker: str
    owner: str
    about: Secret
    is_active: bool
    granted: Granted
    measure: Measure
    rows: int
    coverage: float
    plain: Evidence
    up_to_naming: Evidence

    @property
    def verdict(self) -> Verdict:
        """What the evidence allows to say. It never says "safe": a stronger attack may exist."""
        if self.plain.leaks:
            return "leaks"
        if self.up_to_naming.leaks:
            return "leaks up to naming"
        return "no more than alone" if self.plain.carries or self.up_to_naming.carries else "no leak found"

    @property
    def strongest(self) -> Evidence:
        """The evidence that the verdict rests on."""
        if self.verdict == "no more than alone":
            return self.plain if self.plain.carries else self.up_to_naming
        return self.up_to_naming if self.verdict == "leaks up to naming" else self.plain

    def reads(self, kind: str) -> bool:
        """Whether the attack may have made use of messages of a kind; who takes part and names none sees them all."""
        return kind in self.granted.messages or (self.is_active and not self.granted.messages)


@dataclass(frozen=True)
class PrivacyReport:
    """What each party could learn about the others in one run.

    Attributes:
        disclosures: Who sent whom what, from the recordings.
        budget: What was spent on each secret, from all ledgers; "not private" is spelled out.
        attacks: What the attacks found out.
        untested: Attacks that do not apply or were not made, and why.
        stated: What parties themselves found could be rebuilt of their columns.

    >>> identity = RunIdentity("0" * 64, "SplitClassifier.fit", {"bank": "label party"}, 9, 0, "seeded", "simulated")
    >>> report = PrivacyReport(identity, (), {}, (), ("NormScore by shop: it tells two classes apart",))
    >>> PrivacyReport.from_json(report.to_json()) == report
    True
    """

    run: RunIdentity
    disclosures: tuple[Disclosure, ...]
    budget: Mapping[str, Spent]
    attacks: tuple[Finding, ...]
    untested: tuple[str, ...]
    stated: tuple[Stated, ...] = ()

    def to_json(self) -> str:
        """The report as JSON, which later versions can still read."""
        tree = {"version": VERSION, **asdict(self)}
        for spent in tree["budget"].values():
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
                stated=tuple(Stated(**item) for item in tree.get("stated", ())),
            )
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise StorageError(
                f"A privacy report of version {version} should have all its parts, but this one cannot be read "
                f"({type(error).__name__}: {error}). Write the report again."
            ) from error

    def to_html(self, path: Path | str) -> None:
        """Write the report as one page that needs nothing else."""
        from colonnade.auditing.render import html
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
        from colonnade.auditing.render import terminal

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
        "up_to_naming": _evidence(item["up_to_naming"]),
    }
    return Finding(**{name: value for name, value in {**item, **parts}.items() if name != "verdict"})


def _evidence(item: Mapping[str, Any]) -> Evidence:
    alone = None if item["alone"] is None else Best(**item["alone"])
    return Evidence(Score(**item["score"]), item["chance"], tuple(item["null"]), alone)
