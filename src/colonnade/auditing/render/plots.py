"""The drawings of a report, as places between 0 and 1 and as paths; the page turns them into inline SVG."""

from __future__ import annotations

import re
from dataclasses import dataclass

from colonnade.auditing.contents import Finding, ReportContents
from colonnade.auditing.remedies import comparable_set, remedies, sufficient
from colonnade.auditing.render import words
from colonnade.secret import Secret

SHADES = 8
NAMES = {"none": "no defence"}
# Of the AUC so much is drawn; what is worse stands at the lower edge.
TALLEST = 0.12


@dataclass(frozen=True)
class Point:
    """A mark with its name; `left` and `top` are shares of the drawing's width and height."""

    name: str
    leak: float
    quality: float
    left: float
    top: float
    is_named: bool = False
    is_this_run: bool = False


@dataclass(frozen=True)
class Trade:
    """What labels leak beside how good the model is: the defences that were measured, and this run where it can be."""

    set: str
    points: tuple[Point, ...]
    low: float
    high: float
    alone: float

    @property
    def told(self) -> tuple[tuple[str, str, str], ...]:
        """Name, AUC and points beyond the attacker alone, those that leak least first."""
        ordered = sorted(self.points, key=lambda each: each.leak)
        return tuple((each.name, f"{each.quality:.3f}", f"{round(100 * each.leak):+d}") for each in ordered)

    @property
    def caption(self) -> str:
        """What the figures are about."""
        return (
            "AUC of the model beside what the best attack on labels finds beyond the attacker alone, in points. "
            f"Measured on {self.set.replace('-', ' ')}; this run has its own data, so only its points compare."
        )


def trade(report: ReportContents) -> Trade | None:
    """Defences on the comparable data set, and this run among them; None where no classes were attacked."""
    excess = [worst for finding in report.attacks if (worst := _excess_over_alone(finding)) is not None]
    classes = words.n_classes(report)
    if not excess or classes is None:
        return None
    measured = [each for each in remedies() if each.set == comparable_set(classes) and not each.is_model]
    here = [each for each in measured if each.excess is not None]
    named = {"none", *(each.name for each in sufficient(classes))}
    marks = [(each.name, each.excess or 0.0, each.after["AUC"], each.name in named, False) for each in here]
    if "AUC" in report.figures:
        marks.append(("this run", max(excess), report.figures["AUC"], True, True))
    leaks, quality = [mark[1] for mark in marks], [mark[2] for mark in marks]
    left, right = min(0.0, *leaks) - 0.02, max(leaks) + 0.02
    high = max(quality) + 0.01
    low = max(min(quality) - 0.01, high - TALLEST)
    points = tuple(
        Point(
            NAMES.get(name, name),
            leak,
            auc,
            (leak - left) / (right - left),
            min(1.0, (high - auc) / (high - low)),
            *flags,
        )
        for name, leak, auc, *flags in marks
    )
    return Trade(comparable_set(classes), points, low, high, -left / (right - left))


def _excess_over_alone(finding: Finding) -> float | None:
    """By how much a finding about labels exceeds the attacker alone, under the best names, as results are compared."""
    evidence = finding.tests[-1]
    if finding.about is not Secret.LABELS or evidence.alone is None:
        return None
    return evidence.score.value - evidence.alone.value


def shaded(lines: tuple[str, ...]) -> tuple[tuple[int, str], ...]:
    """An image as one path for each of a few shades, from 0 to 255; pixels of one shade in a row are drawn at once.

    >>> shaded(("0000ff..",))
    ((0, 'M0 0h2v1h-2z'), (255, 'M2 0h1v1h-1z'))
    """
    paths: dict[int, str] = {}
    for y, line in enumerate(lines):
        pixels = re.findall("..", line)
        steps = [-1 if pixel == ".." else round(int(pixel, 16) / 255 * (SHADES - 1)) for pixel in pixels]
        x = 0
        while x < len(steps):
            end = next((at for at in range(x, len(steps)) if steps[at] != steps[x]), len(steps))
            if steps[x] >= 0:
                shade, width = round(steps[x] * 255 / (SHADES - 1)), end - x
                paths[shade] = paths.get(shade, "") + f"M{x} {y}h{width}v1h-{width}z"
            x = end
    return tuple(sorted(paths.items()))
