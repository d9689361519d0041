"""The report as Markdown, for a ticket or a repository: the content of the page without its drawings."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from colonnade.auditing.contents import Finding, ReportContents
from colonnade.auditing.render import summary, words
from colonnade.text import printable


def markdown(report: ReportContents) -> str:
    """The report as Markdown."""
    return "\n".join(_lines(report)) + "\n"


def _lines(report: ReportContents) -> Iterator[str]:
    run = report.run
    yield f"# {_plain(words.headline(report))}"
    dated = f" of {run.date}" if run.date else ""
    yield from _paragraph(f"Privacy report{dated}: {run.protocol} on {run.n_rows:,} rows, {run.mode} audit.")
    yield from _list(summary.joined(report))
    yield from _section("Who could learn what about whom")
    yield from table(
        ("secret", *(f"{party} ({role})" for party, role in run.parties.items())),
        ((row.title, *(summary.told(cell) for cell in row.cells)) for row in summary.matrix(report)),
    )
    yield from _section("Quality of the model")
    yield from _paragraph(summary.quality(report))
    yield from _section("What to do next")
    yield from _list(summary.next_steps(report))
    if found := summary.worst(report):
        yield from _section("The worst findings")
        yield from _list(found)
    for question in words.questions(report):
        if question.findings or question.stated:
            yield from _section(question.title)
            yield from _paragraph(f"{question.answer.capitalize()}. {question.sentence}")
            yield from table(
                ("attack", "verdict", "measure", "score", "95% interval", "chance", "null", "alone"),
                (line for finding in question.findings for line in _finding(finding)),
            )
            yield from _list(f"{f.attack}: {f.rebuilt}" for f in question.findings if f.rebuilt is not None)
    yield from _section("What crossed")
    if run.insecure:
        yield from _paragraph(words.IN_THE_CLEAR)
    yield from table(
        ("from", "to", "message", "reveals", "protection", "messages", "size"),
        (
            (
                line.sender,
                line.receiver,
                each.kind + (" (recordings differ)" if each.confirmed is False else ""),
                ", ".join(each.reveals) or "nothing",
                words.protection(each.under),
                f"{each.messages:,}",
                words.size(each.bytes),
            )
            for line in words.traffic(report)
            for each in line.disclosures
        ),
    )
    yield from _section("Privacy budget")
    if run.noise_is_known:
        yield from _paragraph(words.KNOWN_NOISE)
    yield from _list(f"{secret}: {spent}" for secret, spent in report.budget.items())
    yield from _list(
        f"{secret}, over all runs on {party}'s records: {spent}"
        for party, over_runs in report.over_runs.items()
        for secret, spent in over_runs.items()
    )
    for title, reasons in (
        ("Not tested", report.gaps),
        ("Attacks that cannot apply to such a run", report.inapplicable),
    ):
        if reasons:
            yield from _section(title)
            yield from _list(reasons)
    yield from _paragraph(
        f"plan {run.plan[:16]}, seed {run.seed}, {run.randomness} randomness, colonnade {run.code_version}"
    )


def _finding(finding: Finding) -> Iterator[Sequence[str]]:
    for name, evidence in zip((finding.attack, "under the best names"), finding.tests, strict=False):
        yield (
            name,
            finding.verdict,
            finding.measure,
            words.number(evidence.score.value, finding.measure),
            words.interval(evidence, finding.measure),
            words.number(evidence.chance, finding.measure),
            words.number(evidence.null_high, finding.measure),
            words.alone(evidence, finding.measure),
        )


def _section(title: str) -> Iterator[str]:
    yield from ("", f"## {_plain(title)}")


def _paragraph(text: str) -> Iterator[str]:
    yield from ("", _plain(text))


def _list(items: Iterable[str]) -> Iterator[str]:
    lines = [f"- {_plain(item)}" for item in items]
    yield from ("", *lines) if lines else ()


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """The lines of a table after an empty line; none where it has no rows."""
    lines = [_row(row) for row in rows]
    if lines:
        yield from ("", _row(head), "|" + "---|" * len(head), *lines)


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(map(_plain, cells))} |"


def _plain(text: str) -> str:
    """Words of other parties that a reader of Markdown shows and never obeys."""
    return re.sub(r"([\\`*_\[\]<>|#])", r"\\\1", " ".join(printable(text, lines=True).split()))
