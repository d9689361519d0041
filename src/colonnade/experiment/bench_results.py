"""The benchmark's results as files.

bench.csv               one line per trial, and one per cell that cannot be, with the reason
bench_attacks.parquet   one line per trial and attack: score, controls, verdict, or why the attack was not made
bench.md                the page, made from these two
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from io import BytesIO
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as pq

from colonnade.devices import hardware
from colonnade.errors import StorageError
from colonnade.experiment.bench import NONE, SETS, SPLITS, Cell, why_no_set
from colonnade.experiment.bench_page import page
from colonnade.storage import explained, write_atomically

CELLS, ATTACKS, PAGE = "bench.csv", "bench_attacks.parquet", "bench.md"
STOPPED = "not run yet: the benchmark was stopped, and goes on with --resume"
_NAMES = ("set", "split", "model", "defence")

Rows: TypeAlias = list[dict[str, Any]]


def write_results(out: Path, grid: Sequence[Cell], table: pa.Table) -> Rows:
    """Write all files of results into a folder, and return the lines of bench.csv.

    Lines of other cells that the folder has already are kept.
    """
    rows, attacks = lines_of(grid, table)
    if (out / CELLS).exists():
        rows, attacks = _beside(read_results(out), (rows, attacks))
    for path, lines, write in ((out / CELLS, rows, csv.write_csv), (out / ATTACKS, attacks, pq.write_table)):
        names = dict.fromkeys(name for line in lines for name in line)
        buffer = BytesIO()
        write(pa.Table.from_pylist([{name: line.get(name) for name in names} for line in lines]), buffer)
        write_atomically(path, buffer.getvalue())
    return write_page(out)[0]


def write_page(out: Path) -> tuple[Rows, Rows]:
    """Write a folder's page from its two files of figures, and return their lines."""
    rows, attacks = read_results(out)
    write_atomically(out / PAGE, page(rows, attacks).encode())
    return rows, attacks


def _beside(earlier: tuple[Rows, Rows], new: tuple[Rows, Rows]) -> tuple[Rows, Rows]:
    """Both with the new lines in place of earlier ones of the same cells, unless only the earlier ones were run.

    A cell that cannot be run here, for want of a GPU or a file, may have been run elsewhere.
    """
    ran = {_cell(row) for row in earlier[0] if row.get("date")}
    not_run = {_cell(row) for row in new[0]} - {_cell(row) for row in new[0] if row.get("date")}
    replaced = {_cell(row) for row in new[0]} - (ran & not_run)
    lines = [*earlier[0], *new[0]]
    known: dict[str, Iterable[Any]] = {
        "set": SETS,
        "split": (lines[0]["split"], *SPLITS),
        "model": (None, *(line.get("model") for line in lines)),
        "defence": (None, NONE, *(line.get("defence") for line in lines)),
    }
    order = {kind: list(dict.fromkeys(names)) for kind, names in known.items()}

    def place(line: Mapping[str, Any]) -> tuple[int, ...]:
        at = ((names, line.get(kind)) for kind, names in order.items())
        return tuple(names.index(name) if name in names else len(names) for names, name in at)

    def joined(old: Rows, added: Rows) -> Rows:
        kept = [line for line in old if _cell(line) not in replaced]
        return sorted([*kept, *(line for line in added if _cell(line) in replaced)], key=place)

    return joined(earlier[0], new[0]), joined(earlier[1], new[1])


def _cell(line: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(line.get(name) for name in _NAMES)


def read_results(out: Path) -> tuple[Rows, Rows]:
    """The lines of a folder's two files of figures."""
    options = csv.ConvertOptions(strings_can_be_null=True, column_types={"date": pa.string()})
    try:
        with explained(f"read the results of a benchmark in {out}"):
            cells = csv.read_csv(out / CELLS, convert_options=options)
            return cells.to_pylist(), pq.read_table(out / ATTACKS).to_pylist()
    except pa.ArrowException as error:
        raise StorageError(
            f"{out} should hold the results of a benchmark, but they cannot be read ({error}). Run the benchmark again."
        ) from error


def lines_of(grid: Sequence[Cell], table: pa.Table) -> tuple[Rows, Rows]:
    """A line per trial or impossible cell, and a line per trial and attack, in the order of the grid."""
    rows: Rows = []
    attacks: Rows = []
    order = {cell: place for place, cell in enumerate(grid)}
    cuts = {(cell.set, cell.split): place - 1 for cell, place in reversed(order.items())}
    absent = {cut: why for cut in cuts if (why := why_no_set(*cut))}
    rows += [{"set": name, "split": split, "why": why} for (name, split), why in absent.items()]
    for cell in grid:
        if (cell.set, cell.split) not in absent and (why := cell.why_not()):
            rows.append({**vars(cell), "why": why})
    machine = hardware()  # Of a trial that failed, and so did not say where.
    for trial in table.to_pylist():
        said = {name: value for name, value in trial.items() if value is not None}
        about = {name: said[name] for name in _NAMES if name in said} | {"seed": said["trial.seed"]}
        found, why = _attacks(said), _why(said)
        figures = _bare_leaks(found) | _figures(said)
        rows.append(about | ({"why": why} if why else {}) | figures | _circumstances(said, machine))
        attacks += [{**about, "attack": name, **figures} for name, figures in found.items()]

    def place(line: Mapping[str, Any]) -> tuple[int, int]:
        is_cell = line.get("model") is not None
        cell = order[Cell(*(line[name] for name in _NAMES))] if is_cell else cuts[line["set"], line["split"]]
        return cell, line.get("seed", 0)

    return sorted(rows, key=place), sorted(attacks, key=place)


def _figures(trial: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: value
        for name, value in trial.items()
        if not name.startswith(("trial.", "attacks.")) and name not in (*_NAMES, "refused", "hardware")
    }


def _circumstances(trial: Mapping[str, Any], machine: str) -> dict[str, Any]:
    if trial["trial.state"] not in ("done", "quarantined"):
        return {}
    return {
        "seconds": round(trial["trial.seconds"], 2),
        "code_version": trial["trial.code_version"],
        "date": datetime.fromtimestamp(trial["trial.started"], UTC).date().isoformat(),
        "hardware": trial.get("hardware") or machine,
    }


def _why(trial: Mapping[str, Any]) -> str:
    """Why a trial has no figures; empty where it has."""
    if trial["trial.state"] in ("queued", "running"):
        return STOPPED
    if "refused" in trial:
        return f"refused: {_one_line(trial['refused'])}"
    if "trial.traceback" not in trial:
        return ""
    lines = trial["trial.traceback"].strip().splitlines()
    last_call = max((place for place, line in enumerate(lines) if line.startswith("  ")), default=-1)
    return f"failed: {_one_line(' '.join(lines[last_call + 1 :]))}"


def _attacks(trial: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for name, value in trial.items():
        if name.startswith("attacks.") and not isinstance(value, list):
            attack, _, figure = name.removeprefix("attacks.").rpartition(".")
            found.setdefault(attack, {})[figure] = value
    for figures in found.values():
        if "score" in figures:
            # An attacker without a table, such as a server, reaches chance alone.
            figures.setdefault("alone", figures["chance"])
    return found


def _bare_leaks(attacks: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """About each secret, the attack with the highest score, for secrets that only attackers without a table attack."""
    best: dict[str, Any] = {}
    for name, figures in attacks.items():
        if "score" in figures and figures["score"] > best.get(f"leak.{figures['about']}.score", -math.inf):
            score, alone = figures["score"], figures["alone"]
            told = {"by": name, "score": score, "alone": alone, "excess": score - alone}
            best |= {f"leak.{figures['about']}.{key}": value for key, value in told.items()}
    return best


def _one_line(text: str) -> str:
    return " ".join(text.split())
