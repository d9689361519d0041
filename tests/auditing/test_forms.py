"""A report says the same as a page, as Markdown and as JSON."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from html import unescape
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest

from colonnade.auditing.contents import (
    BestBaseline,
    GuardRecord,
    Leakage,
    Picture,
    Reconstruction,
    Score,
    SelfReportedLeak,
)
from colonnade.auditing.render.html import html
from colonnade.auditing.render.summary import summary
from colonnade.auditing.report import PrivacyReport
from colonnade.models.quality import Figure, Quality
from colonnade.privacy.ledger import Spent
from colonnade.secret import Secret

GOLDEN = Path(__file__).parent / "golden" / "report-v1.json"
# Of hexadecimal digits, so that it may also stand for pixels.
MARK = "facade"
# What stands in the file alone: what other figures follow from, and what would need a drawing or a long table.
IN_THE_FILE_ALONE = {
    "attacks.leakage.normalised.high",
    "attacks.leakage.normalised.low",
    "attacks.rebuilt.pictures.rebuilt",
    "attacks.rebuilt.pictures.true",
    "attacks.rebuilt.singled_out_at_best",
    "attacks.rebuilt.worst_column",  # The summary of the finding names it.
    *(f"{where}.{name}" for where in ("budget", "over_runs") for name in ("doubled", "notes", "protects", "rho")),
    "guarded.alarms.keys",
    "guarded.figures",
    "guarded.figures.keys",
    "guarded.rows",
    "quality.alone_by",
    "quality.confusion",
    "quality.confusion.keys",
    "quality.digest",
    "quality.positive",
    "quality.threshold",
    "quality.trained_rows",
    "tried",  # The answers to questions take it up.
}


@pytest.fixture(scope="module")
def report() -> PrivacyReport:
    """A report that has something in every field."""
    report = PrivacyReport.from_json(GOLDEN.read_text())
    (direct,) = (each for each in report.attacks if each.attack == "DirectionScore")
    granted = replace(
        direct.granted, own_features=True, own_model=True, known_labels=3, known_records=50, prior=60,
        forest=("trees/row-sides",),
    )  # fmt: skip
    leakage = Leakage(
        ("NormScore", "DirectionScore"), 0.05, Score(0.31, 0.29, 0.33), BestBaseline(0.8, "forest"),
        Score(0.4, 0.3, 0.5),
    )  # fmt: skip
    rebuilt = Reconstruction(
        0.3, {"mean": 1.0}, "age", 0.5, 0.5, 1.0, 20.0, 200, {"job": (0.6, 0.4)}, 15.5, 0.89,
        (Picture(("00",), ("0f",)),),
    )  # fmt: skip
    finding = replace(
        direct, granted=granted, leakage=leakage, rebuilt=rebuilt, over_epochs=((0, 0.9), (3, 0.6)), coverage=0.8,
        plain=replace(direct.plain, score=Score(0.9, 0.8, 0.95), alone=BestBaseline(0.6, "network")),
    )  # fmt: skip
    spent = Spent(Secret.LABELS, 1.5, 1e-5, "label", "replace-one", {"gaussian": 2}, 0.3, 1, ("a note",))
    return replace(
        report,
        run=replace(report.run, date="2026-05-31", mode="joint", randomness="system", n_classes=2),
        budget={"labels": spent},
        over_runs={"bank": {"labels": spent}},
        disclosures=tuple(replace(each, under=("GradientNoise(ratio=20)",)) for each in report.disclosures),
        attacks=(finding,),
        untested=("one reason", "another reason"),
        inapplicable=("another reason",),
        stated=(SelfReportedLeak("shop", "bank", 16, 0.25, 0.875),),
        guarded=(GuardRecord("shop", "GradientGuard", 40, {"zero rows": "rows of zeros"}, {"zero rows": 0.5}, (3,)),),
        tried=(Secret.LABELS,),
        attackers=("shop",),
        quality=Quality(
            926, "d", 2000, "boosted trees", {"AUC": Figure(0.784, 0.75, (0.01, 0.05))},
            {"together": {"true positives": 3}}, 0.4, "yes",
        ),
        partial=True,
    )  # fmt: skip


def another(value: Any, hint: Any) -> Any:
    """Another value of the same kind."""
    if isinstance(value, Secret):
        return Secret.FEATURES if value is Secret.LABELS else Secret.LABELS
    if options := [each for each in get_args(hint) if isinstance(each, str)]:
        return next(each for each in options if each != value)
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 7
    return value * 0.7 + 0.11 if isinstance(value, float) else MARK + value


def changes(node: Any, hint: Any = None) -> Iterator[tuple[str, Any]]:
    """The names of all fields below a node, each with the node in which that field says something else."""
    assert node not in (None, (), {}), "the report has something in every field"
    if is_dataclass(node):
        hints = get_type_hints(type(node))
        for field in fields(node):
            for name, value in changes(getattr(node, field.name), hints[field.name]):
                yield ".".join(filter(None, (field.name, name))), replace(node, **{field.name: value})
    elif isinstance(node, Mapping):
        yield "keys", {"KS" if key == "AUC" else MARK + str(key): value for key, value in node.items()}
        first, *_ = node
        for name, value in changes(node[first]):
            yield name, {**node, first: value}
    elif isinstance(node, tuple):
        if len(node) == 1 or isinstance(node[0], str) or is_dataclass(node[0]):
            for name, value in changes(node[0]):
                yield name, (value, *node[1:])
        else:
            yield "", tuple(each for first in node for _, each in list(changes(first))[:1])
    else:
        yield "", another(node, hint)


def visible(page: str) -> str:
    """All words of a page, and what its drawings are called."""
    drawn = " ".join(re.findall(r'aria-label="([^"]*)"', page))
    return " ".join(unescape(re.sub(r"<style>.*?</style>|<[^>]*>", " ", page, flags=re.DOTALL) + drawn).split())


def forms(report: PrivacyReport) -> dict[str, str]:
    markdown = re.sub(r"\\(.)", r"\1", report.to_markdown())
    return {"page": visible(html(report)), "markdown": " ".join(markdown.split()), "file": report.to_json()}


def leaves(node: Any) -> Iterator[str]:
    """All texts of plain data."""
    if isinstance(node, Mapping):
        for value in node.values():
            yield from leaves(value)
    elif isinstance(node, list | tuple):
        for each in node:
            yield from leaves(each)
    elif isinstance(node, str):
        yield node


def test_every_field_of_a_report_stands_on_the_page_and_in_markdown_and_in_the_file(report: PrivacyReport) -> None:
    before, silent = forms(report), set()
    for name, changed in changes(report):
        after = forms(changed)
        silent |= {(name, form) for form in after if after[form] == before[form]}
    assert {name for name, form in silent if form == "file"} == set()
    assert {name for name, form in silent if form == "page"} == IN_THE_FILE_ALONE
    assert {name for name, form in silent if form == "markdown"} == IN_THE_FILE_ALONE


def test_all_that_the_file_says_in_words_stands_on_the_page_and_in_markdown(report: PrivacyReport) -> None:
    told = forms(report)
    said = set(leaves(json.loads(json.dumps(summary(report)))))
    assert len(said) > 40
    for form in ("page", "markdown"):
        missing = {text for text in said if text and text not in told[form] and text.capitalize() not in told[form]}
        assert missing - {"own"} == set(), form
