"""Two runs beside each other."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from colonnade.auditing.contents import BestBaseline
from colonnade.auditing.render.compare import Comparison, Line
from colonnade.auditing.report import PrivacyReport
from colonnade.models.quality import Figure, Quality

GOLDEN = Path(__file__).parent / "golden" / "report-v1.json"


@pytest.fixture
def comparison() -> Comparison:
    measured = Quality(90, "d", 200, "", {"AUC": Figure(0.79)})
    bare = replace(PrivacyReport.from_json(GOLDEN.read_text()), quality=measured)
    known = tuple(
        replace(f, plain=replace(f.plain, alone=BestBaseline(1.0, "x")), up_to_naming=None)
        for f in bare.attacks
        if f.attack == "DirectionScore"
    )
    under = tuple(replace(d, under=("GradientNoise(ratio=20)",)) for d in bare.disclosures)
    worse = replace(measured, figures={"AUC": Figure(0.75), "accuracy": Figure(0.9)})
    noisy = replace(
        bare,
        attacks=known,
        disclosures=under,
        quality=worse,
    )
    return Comparison(("bare", "<noisy>"), (bare, noisy))


def test_quality_leaks_and_protections_stand_side_by_side(comparison: Comparison) -> None:
    assert comparison.lines == (
        Line("model: AUC", ("0.790", "0.750")),
        Line("model: accuracy", ("not measured", "0.900")),
        Line(
            "shop about bank's labels",
            ("DirectLabel: accuracy 100.0%, alone 62.7%", "DirectionScore: AUC 1.000, alone 1.000"),
            ("leaks", "no more than alone"),
        ),
        Line("protections", ("none", "GradientNoise(ratio=20)")),
    )


def test_the_page_the_terminal_and_the_texts_say_the_same(comparison: Comparison, tmp_path: Path) -> None:
    comparison.to_html(tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert re.findall(r"https?:|<script|<img|url\(|<noisy>", page) == []
    console = Console(width=160, color_system=None, force_terminal=False)
    with console.capture() as capture:
        console.print(comparison)
    for text in (page, capture.get(), comparison.to_markdown(), comparison.to_json()):
        for figure in ("0.790", "0.750", "DirectLabel: accuracy 100.0%, alone 62.7%", "GradientNoise(ratio=20)"):
            assert figure in text
    assert "| shop about bank's labels | ✖ leaks DirectLabel" in comparison.to_markdown()
    assert json.loads(comparison.to_json())["lines"][2]["verdicts"] == ["leaks", "no more than alone"]
