"""The report in words: on a terminal, and as one page of HTML that needs nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from typing import TYPE_CHECKING, Literal, TypeAlias

from colonnade.auditing.disclosure import Disclosure
from colonnade.auditing.report import Evidence, Finding, PrivacyReport, Verdict
from colonnade.auditing.score import Measure
from colonnade.auditing.stated import Stated
from colonnade.errors import MissingExtra
from colonnade.secret import Secret
from colonnade.text import printable

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table as RichTable
    from rich.text import Text

Answer: TypeAlias = Verdict | Literal["not tested", "measured by its owner"]

_ORDER: tuple[Answer, ...] = (
    "not tested",
    "no leak found",
    "measured by its owner",
    "no more than alone",
    "leaks up to naming",
    "leaks",
)
IN_THE_CLEAR = "TLS was off in this run: whoever was on the way could read and change every message."
_STYLES: dict[Answer, str] = {
    "leaks": "bold red",
    "leaks up to naming": "bold yellow",
    "no more than alone": "bold magenta",
    "no leak found": "bold blue",
    "measured by its owner": "bold magenta",
    "not tested": "dim",
}


@dataclass(frozen=True)
class Question:
    """What one party could learn about a secret of another, and the answer: the worst finding, which comes first.

    Attributes:
        kinds: The messages that depend on the secret.
        is_repeated: Whether the null repeats the run, and so tells what the messages say from what the attacker knows.
        stated: What the owner itself found could be rebuilt; None where it stated nothing.

    >>> Question("bank", "shop", Secret.FEATURES, (), ("split/embedding",)).title
    "What could bank learn about shop's features?"
    """

    attacker: str
    owner: str
    about: Secret
    findings: tuple[Finding, ...]
    kinds: tuple[str, ...]
    is_repeated: bool = True
    stated: Stated | None = None

    @property
    def title(self) -> str:
        """The question."""
        return f"What could {self.attacker} learn about {self.owner}'s {self.about}?"

    @property
    def answer(self) -> Answer:
        """The answer in one word."""
        if self.findings:
            return self.findings[0].verdict
        return "not tested" if self.stated is None else "measured by its owner"

    @property
    def sentence(self) -> str:
        """The answer in a few sentences."""
        if self.stated is not None:
            return f"{self.stated} {self._found() if self.findings else 'This audit made no attack on them.'}"
        unread = [kind for kind in self.kinds if not any(finding.reads(kind) for finding in self.findings)]
        found = self._found() if self.findings else "Nobody tried."
        return f"{found} What {' and '.join(unread)} may give away has not been measured." if unread else found

    def _found(self) -> str:
        worst = self.findings[0]
        evidence = worst.strongest
        said = number(evidence.score.value, worst.measure)
        if self.answer == "no leak found":
            n = n_attacks(self.findings)
            tried = "One attack was tried" if n == 1 else f"{n} attacks were tried"
            return f"{tried} and none found a leak. That is no proof that there is none: a stronger attack may exist."
        if self.answer == "no more than alone":
            told = (
                f"The messages do tell {self.about}" if self.is_repeated else f"{worst.attack} finds out {self.about}"
            )
            without = "without them" if self.is_repeated else "by luck"
            most, reached = number(evidence.floor, worst.measure), alone(evidence, worst.measure)
            return f"{told} ({said}; {without} at most {most}), but {self.attacker} reaches {reached} by itself."
        share = f", {worst.coverage:.0%} of those it could have guessed" if round(worst.coverage, 2) < 1 else ""
        rows = f"{worst.rows:,} rows{share}"
        if worst.measure == "accuracy":
            found = f"{worst.attack} names {said} correctly of {rows}"
        elif worst.measure == "balanced accuracy":
            found = f"{worst.attack} names {said} of each class correctly on average, on {rows}"
        else:
            found = f"{worst.attack} tells the last class from the others with an AUC of {said} on {rows}"
        naming = ", up to the names of the classes" if self.answer == "leaks up to naming" else ""
        by_chance = f"By chance it would be {number(evidence.chance, worst.measure)}"
        if evidence.alone is None:
            unknown = f"whether {self.attacker} could know as much by itself was not measured"
            return f"{found}{naming}. {by_chance}; {unknown}."
        if evidence.alone.value <= evidence.chance:
            return f"{found}{naming}. {by_chance}, and {self.attacker} alone does no better."
        reached = alone(evidence, worst.measure)
        return f"{found}{naming}. {by_chance}; without collaboration {self.attacker} reaches {reached}."


@dataclass(frozen=True)
class Line:
    """All that one party sent another.

    >>> Line("bank", "shop", ()).messages
    0
    """

    sender: str
    receiver: str
    disclosures: tuple[Disclosure, ...]

    @property
    def messages(self) -> int:
        """How many messages."""
        return sum(disclosure.messages for disclosure in self.disclosures)

    @property
    def bytes(self) -> int:
        """How many bytes."""
        return sum(disclosure.bytes for disclosure in self.disclosures)


def questions(report: PrivacyReport) -> tuple[Question, ...]:
    """Every question that the report answers, and those it leaves open, the worst answers first."""
    kinds: dict[tuple[str, str, Secret], list[str]] = {}
    for finding in report.attacks:
        kinds.setdefault((finding.attacker, finding.owner, finding.about), [])
    for disclosure in report.disclosures:
        for secret in disclosure.reveals:
            kinds.setdefault((disclosure.receiver, disclosure.sender, secret), []).append(disclosure.kind)
    stated = {(said.receiver, said.owner, Secret.FEATURES): said for said in report.stated}
    for key in stated:
        kinds.setdefault(key, [])
    asked = [
        Question(
            *key,
            tuple(sorted((f for f in report.attacks if (f.attacker, f.owner, f.about) == key), key=_severity)),
            tuple(dict.fromkeys(revealing)),
            is_repeated=report.run.mode == "simulated",
            stated=stated.get(key),
        )
        for key, revealing in kinds.items()
    ]
    return tuple(sorted(asked, key=lambda question: -_ORDER.index(question.answer)))


def lines(report: PrivacyReport) -> tuple[Line, ...]:
    """The message ledger: what crossed between each pair of parties, in each direction."""
    pairs = dict.fromkeys((d.sender, d.receiver) for d in report.disclosures)
    return tuple(Line(*pair, tuple(d for d in report.disclosures if (d.sender, d.receiver) == pair)) for pair in pairs)


def _severity(finding: Finding) -> tuple[int, float]:
    """The worst finding first."""
    return -_ORDER.index(finding.verdict), -finding.strongest.excess


def headline(report: PrivacyReport) -> str:
    """The whole report in one line."""
    asked = questions(report)
    leaks = [q for q in asked if q.answer in ("leaks", "leaks up to naming")]
    if leaks:
        owners = dict.fromkeys(f"{q.owner}'s {q.about}" for q in leaks)
        return f"{_listed(owners)} can be inferred by {_listed(dict.fromkeys(q.attacker for q in leaks))}"
    if known := [q for q in asked if q.answer == "no more than alone"]:
        owners = dict.fromkeys(f"{q.owner}'s {q.about}" for q in known)
        attackers = _listed(dict.fromkeys(q.attacker for q in known))
        return f"{attackers} can infer {_listed(owners)}, but no more than alone"
    if n := n_attacks(report.attacks):
        return f"No leak found by {n} attack{'s' if n > 1 else ''}"
    return "Nothing has been tested"


def n_attacks(findings: tuple[Finding, ...]) -> int:
    """How many different attacks findings come from."""
    return len({finding.attack for finding in findings})


def luck(report: PrivacyReport) -> str:
    """How many tests were made, and how many of them luck alone would decide."""
    tests = [evidence for finding in report.attacks for evidence in (finding.plain, finding.up_to_naming)]
    if not tests:
        return ""
    exceeding = sum(evidence.luck for evidence in tests)
    return (
        f"{len(tests)} tests were made, each guess as it is and up to naming. "
        f"By luck alone about {exceeding:.1f} of them would exceed their null."
    )


def number(value: float, measure: Measure) -> str:
    """A score as people read it: accuracy in per cent, AUC as a fraction."""
    return f"{value:.3f}" if measure == "AUC" else f"{value:.1%}"


def alone(evidence: Evidence, measure: Measure) -> str:
    """What the attacker reached by itself, if that was measured."""
    return "not measured" if evidence.alone is None else number(evidence.alone.value, measure)


def interval(evidence: Evidence, measure: Measure) -> str:
    """The ends of a score's interval."""
    return f"{number(evidence.score.low, measure)} to {number(evidence.score.high, measure)}"


def size(n_bytes: int) -> str:
    """A number of bytes as people read it."""
    amount = float(n_bytes)
    for unit in ("B", "kB", "MB"):
        if amount < 1000:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1000
    return f"{amount:.1f} GB"


def knowledge(finding: Finding) -> str:
    """What an attack was given, in words."""
    granted = finding.granted
    parts = [f"the messages {' and '.join(granted.messages)}"] if granted.messages else []
    parts += ["its own columns"] if granted.own_features else []
    parts += ["its own model"] if granted.own_model else []
    if granted.known_labels:
        parts.append(f"{granted.known_labels} known label{'s' if granted.known_labels > 1 else ''} per class")
    return _listed(parts) if parts else "nothing but its own part in the run"


def html(report: PrivacyReport) -> str:
    """The report as one page without scripts, fonts or images from elsewhere."""
    try:
        import jinja2
    except ImportError as error:
        raise MissingExtra("report", "Writing the report as HTML") from error
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    environment.filters.update(number=number, alone=alone, interval=interval, size=size, knowledge=knowledge)
    template = environment.from_string(files("colonnade.auditing").joinpath("report.html.jinja").read_text("utf-8"))
    return template.render(
        report=report,
        headline=headline(report),
        luck=luck(report),
        questions=questions(report),
        lines=lines(report),
        in_the_clear=IN_THE_CLEAR,
        null_unit="run" if report.run.mode == "simulated" else "permutation",
    )


def terminal(report: PrivacyReport) -> RenderableType:
    """The report for a terminal."""
    from rich.console import Group
    from rich.padding import Padding
    from rich.rule import Rule

    run = report.run
    parts: list[RenderableType] = [
        _text(headline(report), "bold"),
        _text(
            f"{run.protocol} on {run.n_rows:,} rows: {', '.join(f'{n} ({r})' for n, r in run.parties.items())}", "dim"
        ),
    ]
    if report.attacks:
        parts.append(_text(luck(report), "dim"))
    for question in questions(report):
        parts += [_text(""), Rule(_text(question.title), align="left", style="dim")]
        parts.append(_text(question.answer.capitalize(), _STYLES[question.answer]))
        parts.append(_text(question.sentence))
        if question.findings:
            parts.append(_findings_table(question.findings))
    parts += [_text(""), Rule("Messages", align="left", style="dim")]
    if run.insecure:
        parts.append(_text(IN_THE_CLEAR, "bold red"))
    parts.append(_messages_table(report))
    parts += [_text(""), Rule("Privacy budget", align="left", style="dim")]
    parts += [_text(f"{secret}: {spent}") for secret, spent in report.budget.items()] or [
        _text("No secret was touched.")
    ]
    if report.untested:
        parts += [_text(""), Rule("Not tested", align="left", style="dim")]
        parts += [_text(f"- {line}") for line in report.untested]
    parts.append(
        _text(
            f"\nplan {run.plan[:16]}, seed {run.seed}, {run.randomness} randomness, {run.mode} audit, "
            f"colonnade {run.code_version}",
            "dim",
        )
    )
    return Padding(Group(*parts), (0, 1))


def _findings_table(findings: tuple[Finding, ...]) -> RichTable:
    table = _table("attack", "measure", numbers=("score", "95% interval", "chance", "null", "alone"))
    for finding in findings:
        about = f"  {finding.rows:,} rows, {finding.coverage:.0%}; up to naming"
        first = _text(finding.attack) + _text(f" {finding.verdict}", _STYLES[finding.verdict])
        rows = ((first, finding.plain), (_text(about, "dim"), finding.up_to_naming))
        for name, evidence in rows:
            table.add_row(
                name,
                _text(finding.measure),
                _text(number(evidence.score.value, finding.measure), "bold" if evidence.leaks else ""),
                _text(interval(evidence, finding.measure)),
                _text(number(evidence.chance, finding.measure)),
                _text(number(evidence.null_high, finding.measure)),
                _text(alone(evidence, finding.measure)),
            )
    return table


def _messages_table(report: PrivacyReport) -> RichTable:
    table = _table("from", "to", "message", "reveals", "protection", numbers=("messages", "size"))
    for line in lines(report):
        for disclosure in line.disclosures:
            table.add_row(
                _text(line.sender),
                _text(line.receiver),
                _text(disclosure.kind + (" (recordings differ)" if disclosure.confirmed is False else "")),
                _text(", ".join(disclosure.reveals) or "nothing"),
                _text(", ".join(disclosure.under) or "none"),
                _text(f"{disclosure.messages:,}"),
                _text(size(disclosure.bytes)),
            )
        total = (line.sender, line.receiver, "total", "", "", f"{line.messages:,}", size(line.bytes))
        table.add_row(*(_text(cell, "bold") for cell in total), end_section=True)
    return table


def _table(*words: str, numbers: tuple[str, ...]) -> RichTable:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for heading in words:
        table.add_column(heading, overflow="fold")
    for heading in numbers:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def _text(words: str, style: str = "") -> Text:
    """Words that a terminal shows and never obeys: neither as markup nor as control characters."""
    from rich.text import Text

    return Text(printable(words, lines=True), style)


def _listed(words: Iterator[str] | dict[str, None] | list[str]) -> str:
    *most, last = words
    return f"{', '.join(most)} and {last}" if most else last
