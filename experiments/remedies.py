"""What a privacy report recommends: the defences and models that were measured, in one small file of the package.

`python -m experiments.remedies` writes `src/colonnade/auditing/remedies.json` again from the figures in docs/results.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from experiments.defences import SETS, averaged_standings
from experiments.private_models import WAYS
from experiments.tables import read

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "docs" / "results"
REMEDIES = ROOT / "src" / "colonnade" / "auditing" / "remedies.json"
MEASURES = ("AUC", "accuracy")
DIGITS = 6


def remedies(results: Path = RESULTS) -> list[dict[str, Any]]:
    """Each remedy on each data set, from the figures of all trials."""
    defences = read(results / "defences.csv")
    return [
        *_defences(defences),
        *_one_shot(read(results / "utility.csv")),
        *_private_models(read(results / "private_models.csv"), defences),
    ]


def text() -> str:
    """The file that the package ships."""
    return json.dumps(remedies(), indent=1) + "\n"


def _defences(rows: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    rows = [row for row in rows if row["part"] == "catalogue" and not row["refused"]]
    for name in SETS:
        here = [row for row in rows if row["set"] == name]
        without = _figures([row for row in here if row["defence"] == "none"])
        for defence in dict.fromkeys(row["defence"] for row in here):
            mine = [row for row in here if row["defence"] == defence]
            found = averaged_standings(mine)
            attack = max(found, key=lambda each: found[each].excess)
            yield {
                "name": defence,
                "is_model": False,
                "set": name,
                "seeds": len(mine),
                "before": without,
                "after": _figures(mine),
                "attack": attack,
                "excess": round(found[attack].excess, DIGITS),
                "rebuilt": None,
            }


def _one_shot(rows: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    for name in dict.fromkeys(row["set"] for row in rows):
        split, mine = (
            [row for row in rows if (row["set"], row["way"]) == (name, way)] for way in ("split", "one-shot")
        )
        yield {
            "name": "one-shot",
            "is_model": True,
            "set": name,
            "seeds": len(mine),
            "before": _figures(split),
            "after": _figures(mine),
            "attack": None,
            "excess": None,
            "rebuilt": round(1 - mean(row["relative_mse"] for row in mine), DIGITS),
        }


def _private_models(
    rows: Sequence[Mapping[str, Any]], defences: Sequence[Mapping[str, Any]]
) -> Iterator[dict[str, Any]]:
    """Regressions and trees, beside the split network without a defence on the same rows."""
    for model, setting in WAYS:
        mine = [row for row in rows if (row["model"], row["setting"]) == (model, setting)]
        name = mine[0]["set"]
        split = [row for row in defences if (row["part"], row["set"], row["defence"]) == ("catalogue", name, "none")]
        found = averaged_standings(mine)
        attack = max(found, key=lambda each: found[each].excess)
        yield {
            "name": model,
            "is_model": True,
            "set": name,
            "seeds": len(mine),
            "before": _figures(split),
            "after": _figures(mine),
            "attack": attack,
            "excess": round(found[attack].excess, DIGITS),
            "rebuilt": None,
            "setting": setting,
        }


def _figures(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    return {measure: round(mean(row[measure] for row in rows), DIGITS) for measure in MEASURES}


if __name__ == "__main__":
    REMEDIES.write_text(text(), encoding="utf-8")
