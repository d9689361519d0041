"""The report as Markdown, for a ticket or a repository: the content of the page without its drawings."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from colonnade.auditing.contents import Finding, ReportContents
from colonnade.auditing.render import plots, summary, words
from colonnade.text import printable


def markdown(report: ReportContents) -> str:
    """The report as Markdown."""
    return "\n".join(_lines(report)) + "\n"


def _lines(report: ReportContents) -> Iterator[str]:
    run = report.run
    yield f"# {_plain(words.headline(report))}"
    dated = f" of {run.date}" if run.date else ""
    yield from _paragraph(f"Privacy report{dated}: {words.audited(report)}")
    yield from _list(summary.joined(report))
    if told := words.luck(report):
        yield from _paragraph(told)
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
    asked, unit = words.questions(report), words.null_unit(report)
    for question in asked:
        if question.findings or question.stated:
            yield from _section(question.title)
            yield from _paragraph(f"{question.answer.capitalize()}. {question.sentence}")
            yield from table(
                ("attack", "verdict", "measure", "score", "95% interval", "chance", "null", "alone"),
                (line for finding in question.findings for line in _finding(finding, unit)),
            )
            yield from _list(_remarks(finding) for finding in question.findings)
    if grounds := summary.grounds(report):
        yield from _section("What was measured of the next steps")
        yield from _list(grounds)
    if trade := plots.trade(report):
        yield from _section("Privacy beside quality")
        yield from _paragraph(trade.caption)
        yield from table(("defence", "AUC", "points beyond alone"), trade.told)
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
    if report.guarded:
        yield from _section("Received gradients")
        yield from _list(map(str, report.guarded))
    open_questions = (f"{q.title} {q.sentence}" for q in asked if not q.findings and not q.stated)
    for title, reasons in (
        ("Not tested", (*open_questions, *report.gaps)),
        ("Attacks that cannot apply to such a run", report.inapplicable),
    ):
        if reasons:
            yield from _section(title)
            yield from _list(reasons)
    yield from _paragraph(
        f"plan {run.plan[:16]}, seed {run.seed}, {run.randomness} randomness, colonnade {run.code_version}"
    )


def _remarks(finding: Finding) -> str:
    """What there is to say of a finding beside its figures."""
    rebuilt = "" if finding.rebuilt is None else str(finding.rebuilt)
    said = finding.summary, words.joined_from(finding), rebuilt, words.scored(finding), words.over_epochs(finding)
    return f"{finding.attack}: {' '.join(each for each in said if each)}"


def _finding(finding: Finding, unit: str) -> Iterator[Sequence[str]]:
    for name, evidence in zip((finding.attack, "under the best names"), finding.tests, strict=False):
        yield (
            name,
            finding.verdict,
            finding.measure,
            words.number(evidence.score.value, finding.measure),
            words.interval(evidence, finding.measure),
            words.number(evidence.chance, finding.measure),
            words.null(evidence, finding.measure, unit),
            words.alone(evidence, finding.measure) + (f" ({method})" if (method := words.alone_by(evidence)) else ""),
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
