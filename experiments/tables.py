"""Figures of several trials as a reader is shown them, and as a file of comma-separated values keeps them."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any


def over_seeds(rows: Sequence[Mapping[str, Any]], key: str, digits: int = 3) -> str:
    """The mean of a figure over trials and, where there are several, their standard deviation.

    >>> over_seeds([{"AUC": 0.75}, {"AUC": 0.77}], "AUC")
    '0.760 ± 0.014'
    """
    values = [row[key] for row in rows if row.get(key) is not None]
    if not values:
        return ""
    return f"{mean(values):.{digits}f}" + (f" ± {stdev(values):.{digits}f}" if len(values) > 1 else "")


def told_seeds(rows: Sequence[Mapping[str, Any]]) -> str:
    """What the figures of a page are, for a sentence."""
    n_seeds = len({row["trial.seed"] for row in rows})
    return "Figures of one seed" if n_seeds == 1 else f"Means and standard deviations over {n_seeds} seeds"


def told_versions(rows: Sequence[Mapping[str, Any]]) -> str:
    """A sentence where figures come from several states of the source."""
    n_versions = len({row.get("trial.code_version") for row in rows})
    if n_versions == 1:
        return ""
    return f" The figures come from {n_versions} states of the source; `trial.code_version` in the file says which."


# By how much joined attacks may fall short of the best single one.
SHORT = 0.02


def told_joined(short: Mapping[str, float]) -> list[str]:
    """A paragraph on configurations in which all attacks joined fall short of the best single one; none without any.

    >>> told_joined({"digits, none": -0.01, "adult, noise": 0.031})[0].split("; ")[1]
    'they are up to 3.1 points below in: adult, noise (3.1).'
    """
    if not short:
        return []
    far = {cell: 100 * points for cell, points in short.items() if points > SHORT}
    told = "; ".join(f"{cell} ({points:.1f})" for cell, points in far.items())
    return [
        f"Joined, attacks are at most {100 * SHORT:.0f} points below the best single one, as means over seeds, "
        f"in {len(short) - len(far)} of {len(short)} configurations"
        + (f"; they are up to {max(far.values()):.1f} points below in: {told}." if far else ".")
    ]


def held_out(rows: Sequence[Mapping[str, Any]], name: str) -> list[str]:
    """A paragraph on the rows that the figures of a set are about; none where no trial says."""
    sized = [row for row in rows if row.get("rows") is not None]
    if not sized:
        return []
    n_rows, share = max(row["rows"] for row in sized), mean(row["commonest"] for row in sized)
    return [f"{name}: {n_rows:,.0f} held-out rows; a constant guess is right in {share:.3f} of them.", ""]


def read(path: Path) -> list[dict[str, Any]]:
    """The trials of a file that `python -m experiments` wrote."""
    with path.open(newline="", encoding="utf-8") as file:
        return [{key: _value(text) for key, text in row.items()} for row in csv.DictReader(file)]


def _value(text: str) -> Any:
    if text in ("", "True", "False"):
        return {"": None, "True": True, "False": False}[text]
    try:
        return float(text)
    except ValueError:
        return text
