"""What a privacy report recommends: the defences and models that were measured, in one small file of the package.

`python -m experiments.remedies` writes `src/colonnade/auditing/remedies.json` again from the figures in docs/results.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from colonnade.experiment.compare import best_of
from experiments.defences import SETS, averaged_standings
from experiments.private_models import TREES, WAYS
from experiments.tables import read

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "docs" / "results"
COSTS = ROOT / "docs" / "protocols" / "trees.md"
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
            yield {
                "name": defence,
                "is_model": False,
                "set": name,
                "seeds": len(mine),
                "before": without,
                "after": _figures(mine),
                **_attacked(mine),
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
            "worst_seed": None,
            "single": None,
            "score": None,
            "null": None,
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
        grown = model.startswith("secureboost")
        yield {
            "name": model,
            "is_model": True,
            "set": name,
            "seeds": len(mine),
            "before": _figures(split),
            "after": _figures(mine),
            **_attacked(mine),
            "rebuilt": None,
            "setting": setting,
            "size": f"{TREES['n_estimators']} trees of depth {TREES['max_depth']}" if grown else "",
            "cost": _cost(setting) if grown else "",
        }


def _attacked(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The attack that exceeds the attacker alone by most, the worst seed, and the single attack that scores highest."""
    found = averaged_standings(rows)
    attack, single = max(found, key=lambda each: found[each].excess), best_of(found)
    return {
        "attack": attack,
        "excess": round(found[attack].excess, DIGITS),
        "worst_seed": round(max(each.excess for row in rows for each in averaged_standings([row]).values()), DIGITS),
        "single": single,
        "score": round(found[single].score, DIGITS),
        "null": round(found[single].null, DIGITS),
    }


def _cost(setting: str) -> str:
    """What a tree takes, as `python -m benchmarks secureboost` measured it."""
    sums, page = setting.partition(" ")[0], COSTS.read_text(encoding="utf-8")
    table = re.search(r"\(([\d,]+) rows, \d+ columns and the label\), \d+ bins, trees of depth (\d+)", page)
    row = re.search(rf"\| `{sums}` \| ([\d.]+) s \| (\d+) \|", page)
    assert table is not None, f"{COSTS} should say on which table trees were measured"
    assert row is not None, f"{COSTS} should say what a tree with {setting} takes"
    return (
        f"A tree of depth {table[2]} on {table[1]} rows of another set took {row[1]} processor seconds and {row[2]} MB"
    )


def _figures(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    return {measure: round(mean(row[measure] for row in rows), DIGITS) for measure in MEASURES}


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__, allow_abbrev=False).parse_args()
    REMEDIES.write_text(text(), encoding="utf-8")
