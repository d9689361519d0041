"""The report as one page of HTML that needs nothing else: no scripts, fonts or images."""

from __future__ import annotations

from importlib.resources import files

from colonnade.auditing.contents import ReportContents
from colonnade.auditing.render import plots, summary, words
from colonnade.errors import imported


def html(report: ReportContents) -> str:
    """The report as a page."""
    jinja2 = imported("jinja2", "report", "Writing the report as HTML")
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    for name in ("number", "alone", "interval", "size", "knowledge"):
        environment.filters[name] = getattr(words, name)
    environment.filters |= {"slug": _slug, "shaded": plots.shaded}
    asked = words.questions(report)
    rendered: str = environment.from_string(_text("report.html.jinja")).render(
        style=_text("style.css"),
        report=report,
        headline=words.headline(report),
        matrix=summary.matrix(report),
        signs=summary.SIGNS,
        meanings=summary.MEANINGS,
        quality=summary.quality(report),
        next_steps=summary.next_steps(report),
        worst=summary.worst(report),
        trade=plots.trade(report),
        luck=words.luck(report),
        questions=asked,
        unattacked=[question for question in asked if not question.findings and not question.stated],
        lines=words.traffic(report),
        in_the_clear=words.IN_THE_CLEAR,
        known_noise=words.KNOWN_NOISE,
        null_unit="run" if report.run.mode == "simulated" else "permutation",
    )
    return rendered


def _text(name: str) -> str:
    return files("colonnade.auditing.render").joinpath(name).read_text("utf-8")


def _slug(answer: str) -> str:
    return answer.replace(",", "").replace(" ", "-")
