"""The report for a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from colonnade.auditing.contents import Finding, ReportContents
from colonnade.auditing.render import summary, words
from colonnade.text import printable

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table as RichTable
    from rich.text import Text

STYLES: dict[summary.Cell, str] = {
    "leaks": "bold red",
    "leaks, classes unnamed": "bold yellow",
    "leaks, nobody singled out": "bold yellow",
    "no more than alone": "bold magenta",
    "no leak found": "bold blue",
    "measured by its owner": "bold magenta",
    "not tested": "dim",
    "no attack applies": "dim",
    "nothing sent": "dim",
    "own": "dim",
}


def terminal(report: ReportContents) -> RenderableType:
    """The report for a terminal."""
    from rich.console import Group
    from rich.padding import Padding
    from rich.rule import Rule

    run = report.run
    parts: list[RenderableType] = [
        plain_text(words.headline(report), "bold"),
        *(plain_text(line) for line in summary.joined(report)),
        plain_text(words.audited(report), "dim"),
    ]
    if report.attacks:
        parts.append(plain_text(words.luck(report), "dim"))
    parts += [plain_text(""), Rule("Who could learn what about whom", align="left", style="dim"), _matrix(report)]
    parts += [plain_text(f"Quality: {summary.quality(report)}")]
    parts += [plain_text(f"Next: {step}") for step in summary.next_steps(report)]
    for question in words.questions(report):
        parts += [plain_text(""), Rule(plain_text(question.title), align="left", style="dim")]
        parts.append(plain_text(question.answer.capitalize(), STYLES[question.answer]))
        parts.append(plain_text(question.sentence))
        if question.findings:
            parts.append(_findings_table(question.findings))
            parts += [plain_text(f"{f.attack}: {f.rebuilt}", "dim") for f in question.findings if f.rebuilt is not None]
    if grounds := summary.grounds(report):
        parts += [plain_text(""), Rule("What was measured of the next steps", align="left", style="dim")]
        parts += [plain_text(f"- {each}") for each in grounds]
    if report.guarded:
        parts += [plain_text(""), Rule("Received gradients", align="left", style="dim")]
        parts += [plain_text(str(seen), "bold red" if seen.alarms else "") for seen in report.guarded]
    parts += [plain_text(""), Rule("Messages", align="left", style="dim")]
    if run.insecure:
        parts.append(plain_text(words.IN_THE_CLEAR, "bold red"))
    parts.append(_messages_table(report))
    parts += [plain_text(""), Rule("Privacy budget", align="left", style="dim")]
    if run.noise_is_known:
        parts.append(plain_text(words.KNOWN_NOISE, "bold red"))
    parts += [plain_text(f"{secret}: {spent}") for secret, spent in report.budget.items()] or [
        plain_text("No secret was touched.")
    ]
    for party, over_runs in report.over_runs.items():
        parts += [
            plain_text(f"{secret}, over all runs on {party}'s records: {spent}") for secret, spent in over_runs.items()
        ]
    if report.gaps:
        parts += [plain_text(""), Rule("Not tested", align="left", style="dim")]
        parts += [plain_text(f"- {line}") for line in report.gaps]
    if n := len(report.inapplicable):
        parts.append(
            plain_text(f"\n{n} attack{'s' if n > 1 else ''} cannot apply to such a run; report.json says why.")
        )
    parts.append(
        plain_text(
            f"\nplan {run.plan[:16]}, seed {run.seed}, {run.randomness} randomness, {run.mode} audit, "
            f"colonnade {run.code_version}",
            "dim",
        )
    )
    return Padding(Group(*parts), (0, 1))


def _matrix(report: ReportContents) -> RichTable:
    table = plain_table("secret", *(f"{party} ({role})" for party, role in report.run.parties.items()), numbers=())
    for row in summary.matrix(report):
        cells = (plain_text(summary.told(cell), STYLES[cell]) for cell in row.cells)
        table.add_row(plain_text(row.title), *cells)
    return table


def _findings_table(findings: tuple[Finding, ...]) -> RichTable:
    table = plain_table("attack", "measure", numbers=("score", "95% interval", "chance", "null", "alone"))
    for finding in findings:
        about = f"  {finding.rows:,} rows, {finding.coverage:.0%}; classes unnamed"
        first = plain_text(finding.attack) + plain_text(f" {finding.verdict}", STYLES[finding.verdict])
        for name, evidence in zip((first, plain_text(about, "dim")), finding.tests, strict=False):
            table.add_row(
                name,
                plain_text(finding.measure),
                plain_text(words.number(evidence.score.value, finding.measure), "bold" if evidence.leaks else ""),
                plain_text(words.interval(evidence, finding.measure)),
                plain_text(words.number(evidence.chance, finding.measure)),
                plain_text(words.number(evidence.null_high, finding.measure)),
                plain_text(words.alone(evidence, finding.measure)),
            )
    return table


def _messages_table(report: ReportContents) -> RichTable:
    table = plain_table("from", "to", "message", "reveals", "protection", numbers=("messages", "size"))
    for line in words.traffic(report):
        for disclosure in line.disclosures:
            table.add_row(
                plain_text(line.sender),
                plain_text(line.receiver),
                plain_text(disclosure.kind + (" (recordings differ)" if disclosure.confirmed is False else "")),
                plain_text(", ".join(disclosure.reveals) or "nothing"),
                plain_text(words.protection(disclosure.under)),
                plain_text(f"{disclosure.messages:,}"),
                plain_text(words.size(disclosure.bytes)),
            )
        total = (line.sender, line.receiver, "total", "", "", f"{line.messages:,}", words.size(line.bytes))
        table.add_row(*(plain_text(cell, "bold") for cell in total), end_section=True)
    return table


def plain_table(*texts: str, numbers: tuple[str, ...]) -> RichTable:
    """A table with headings and no rows yet."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for heading in texts:
        table.add_column(plain_text(heading), overflow="fold")
    for heading in numbers:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def plain_text(line: str, style: str = "") -> Text:
    """Words that a terminal shows and never obeys: neither as markup nor as control characters."""
    from rich.text import Text

    return Text(printable(line, lines=True), style)
