"""The report as one page of HTML that needs nothing else: no scripts, fonts or images."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

from colonnade.auditing.contents import ReportContents
from colonnade.auditing.render import plots, summary, words
from colonnade.errors import imported


def html(report: ReportContents) -> str:
    """The report as a page."""
    asked = words.questions(report)
    return rendered(
        "report.html.jinja",
        report=report,
        headline=words.headline(report),
        matrix=summary.matrix(report),
        meanings=summary.MEANINGS,
        quality=summary.quality(report),
        next_steps=summary.next_steps(report),
        worst=summary.worst(report),
        joined=summary.joined(report),
        trade=plots.trade(report),
        luck=words.luck(report),
        questions=asked,
        unattacked=[question for question in asked if not question.findings and not question.stated],
        lines=words.traffic(report),
        in_the_clear=words.IN_THE_CLEAR,
        known_noise=words.KNOWN_NOISE,
        null_unit="run" if report.run.mode == "simulated" else "permutation",
    )


def rendered(template: str, **values: Any) -> str:
    """A page of this folder with its values."""
    jinja2 = imported("jinja2", "report", "Writing the report as HTML")
    environment = jinja2.Environment(
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
        loader=jinja2.FunctionLoader(_text),
    )
    for name in ("number", "alone", "interval", "size", "knowledge", "protection"):
        environment.filters[name] = getattr(words, name)
    environment.filters |= {"slug": _slug, "shaded": plots.shaded}
    page: str = environment.get_template(template).render(signs=summary.SIGNS, style=_text("style.css"), **values)
    return page


def _text(name: str) -> str:
    return files("colonnade.auditing.render").joinpath(name).read_text("utf-8")


def _slug(answer: str) -> str:
    return answer.replace(",", "").replace(" ", "-")
