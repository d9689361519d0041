"""The report as one page of HTML that needs nothing else: no scripts, fonts or images."""

from __future__ import annotations

from functools import cache
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
        grounds=summary.grounds(report),
        worst=summary.worst(report),
        joined=summary.joined(report),
        trade=plots.trade(report),
        luck=words.luck(report),
        questions=asked,
        unattacked=[question for question in asked if not question.findings and not question.stated],
        lines=words.traffic(report),
        in_the_clear=words.IN_THE_CLEAR,
        known_noise=words.KNOWN_NOISE,
        audited=words.audited(report),
        null_unit=words.null_unit(report),
    )


def rendered(template: str, **values: Any) -> str:
    """A page of this folder with its values."""
    imported("jinja2", "report", "Writing the report as HTML")
    page: str = _template(template).render(signs=summary.SIGNS, style=_text("style.css"), **values)
    return page


@cache
def _template(name: str) -> Any:
    import jinja2

    environment = jinja2.Environment(
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
        loader=jinja2.FunctionLoader(_text),
    )
    for each in ("number", "null", "alone", "alone_by", "interval", "joined_from", "scored", "size", "protection"):
        environment.filters[each] = getattr(words, each)
    environment.filters |= {"slug": _slug, "shaded": plots.shaded}
    return environment.get_template(name)


def _text(name: str) -> str:
    return files("colonnade.auditing.render").joinpath(name).read_text("utf-8")


def _slug(answer: str) -> str:
    return answer.replace(",", "").replace(" ", "-")
