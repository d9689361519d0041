"""The report as one page of HTML that needs nothing else: no scripts, fonts or images."""

from __future__ import annotations

from importlib.resources import files

from colonnade.auditing.contents import ReportContents
from colonnade.auditing.render import words
from colonnade.errors import imported


def html(report: ReportContents) -> str:
    """The report as a page."""
    jinja2 = imported("jinja2", "report", "Writing the report as HTML")
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    for name in ("number", "alone", "interval", "size", "knowledge"):
        environment.filters[name] = getattr(words, name)
    page = files("colonnade.auditing.render").joinpath("report.html.jinja").read_text("utf-8")
    rendered: str = environment.from_string(page).render(
        report=report,
        headline=words.headline(report),
        luck=words.luck(report),
        questions=words.questions(report),
        lines=words.traffic(report),
        in_the_clear=words.IN_THE_CLEAR,
        known_noise=words.KNOWN_NOISE,
        null_unit="run" if report.run.mode == "simulated" else "permutation",
    )
    return rendered
