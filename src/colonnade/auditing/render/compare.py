"""Two runs beside each other: what leaks and how good the model is, with a defence and without for instance."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from colonnade.auditing.contents import ReportContents
from colonnade.auditing.render import summary, words
from colonnade.auditing.render.html import rendered
from colonnade.auditing.render.markdown import table as markdown_table
from colonnade.auditing.render.terminal import STYLES, plain_table, plain_text

if TYPE_CHECKING:
    from rich.table import Table as RichTable


@dataclass(frozen=True)
class Line:
    """One thing that two runs are compared by: a text for each, and a verdict where there is one."""

    title: str
    texts: tuple[str, str]
    verdicts: tuple[summary.Cell | None, summary.Cell | None] = (None, None)


@dataclass(frozen=True)
class Comparison:
    """Two reports by name."""

    names: tuple[str, str]
    reports: tuple[ReportContents, ReportContents]

    @property
    def lines(self) -> tuple[Line, ...]:
        """Quality first, then every secret by attacker, then what went out under which protection."""
        first, second = map(_protections, self.reports)
        return (*self._quality(), *self._leaks(), Line("protections", (first, second)))

    def _quality(self) -> Iterator[Line]:
        measures = dict.fromkeys(name for report in self.reports for name in report.figures)
        for name in measures:
            first, second = (report.figures.get(name) for report in self.reports)
            yield Line(f"model: {name}", (_figure(first), _figure(second)))

    def _leaks(self) -> Iterator[Line]:
        first, second = ({(q.about, q.owner, q.attacker): q for q in words.questions(r)} for r in self.reports)
        for key in sorted({**first, **second}):
            about, owner, attacker = key
            asked = first.get(key), second.get(key)
            if any(question is not None and question.findings for question in asked):
                answers: list[summary.Cell] = ["nothing sent" if each is None else each.answer for each in asked]
                texts = tuple("" if each is None else _worst(each) for each in asked)
                title = f"{attacker} about {words.secret_of(owner, about)}"
                yield Line(title, (texts[0], texts[1]), (answers[0], answers[1]))

    def to_json(self) -> str:
        """The comparison as JSON."""
        lines = [{"title": line.title, "verdicts": line.verdicts, "texts": line.texts} for line in self.lines]
        return json.dumps({"names": self.names, "lines": lines}, indent=2, ensure_ascii=False)

    def to_markdown(self) -> str:
        """The comparison as a table of Markdown."""
        rows = []
        for line in self.lines:
            signed = zip(line.verdicts, line.texts, strict=True)
            cells = ((f"{summary.told(verdict)} {text}" if verdict else text) for verdict, text in signed)
            rows.append((line.title, *cells))
        return "\n".join(markdown_table(("", *self.names), rows)).lstrip() + "\n"

    def html(self) -> str:
        """The comparison as a page."""
        return rendered("compare.html.jinja", comparison=self)

    def to_html(self, path: Path | str) -> None:
        """Write the comparison as one page that needs nothing else."""
        from colonnade.storage import write_atomically

        write_atomically(Path(path), self.html().encode())

    def __rich__(self) -> RichTable:
        table = plain_table("", *self.names, numbers=())
        for line in self.lines:
            cells = []
            for verdict, told in zip(line.verdicts, line.texts, strict=True):
                signed = plain_text(f"{summary.told(verdict)} ", STYLES[verdict]) if verdict else plain_text("")
                cells.append(signed + plain_text(told))
            table.add_row(plain_text(line.title), *cells)
        return table


def _figure(value: float | None) -> str:
    return "not measured" if value is None else f"{value:.3f}"


def _worst(question: words.Question) -> str:
    """The worst finding as a figure beside the attacker alone."""
    if not question.findings:
        return ""
    worst = question.findings[0]
    evidence, measure = worst.strongest, worst.measure
    score = words.number(evidence.score.value, measure)
    return f"{worst.attack}: {measure} {score}, alone {words.alone(evidence, measure)}"


def _protections(report: ReportContents) -> str:
    return words.protection(dict.fromkeys(name for sent in report.disclosures for name in sent.under))
