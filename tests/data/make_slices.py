"""Writes `slices`: a few rows of every data set that has a file, for tests where $COLONNADE_DATA is not set.

    COLONNADE_DATA=... python tests/data/make_slices.py

A set whose licence lets it be passed on under any other gives some of its rows. The others give none: their columns
keep names and types, and every value is made up. `slices/datasets.toml` says which is which, and holds the checksums.
"""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from PIL import Image

from colonnade.data.datasets import _entries, _Entry

SLICES = Path(__file__).parent / "slices"
PASSED_ON = ("CC BY 4.0", "BSD-3-Clause", "US public domain")
WHOLE = ("febrl-1", "bike-sharing-curves")
"""Small, and tests state what is found in all of their rows."""
N_ROWS, N_IMAGES = 200, 60


def main() -> None:
    """Write every slice, and what the folder holds."""
    folder = Path(os.environ["COLONNADE_DATA"])
    SLICES.mkdir(exist_ok=True)
    lines = [
        "# Written by make_slices.py. A made-up set has the columns of the real one and none of its values.",
        "# Real rows come from the UCI Machine Learning Repository, which gives them out under CC BY 4.0; those of",
        "# fars from the NHTSA of the United States, those of febrl from FEBRL.",
    ]
    for entry in (entry for entry in _entries().values() if entry.file is not None):
        assert entry.file is not None
        real = entry.licence in PASSED_ON
        write = _write_arrays if entry.file.endswith(".npz") else _write_table
        rows, data = write(entry, folder / entry.file, real)
        (SLICES / entry.file).write_bytes(data)
        what = "real rows" if real else "made up"
        lines.append(f"\n# {what}; {entry.licence}\n[{entry.name}]\nrows = {rows}")
        lines.append(f'sha256 = "{hashlib.sha256(data).hexdigest()}"')
    (SLICES / "datasets.toml").write_text("\n".join(lines) + "\n")


def _write_table(entry: _Entry, path: Path, real: bool) -> tuple[int, bytes]:
    arrow, random = pq.read_table(path), np.random.default_rng(0)
    if not real:
        arrow = pa.table({name: _made_up(entry, name, arrow.column(name), random) for name in arrow.column_names})
    elif entry.task == "alignment" and entry.name not in WHOLE:
        entities = np.unique(np.asarray(arrow.column("entity")))
        arrow = arrow.filter(pc.is_in(arrow.column("entity"), pa.array(random.choice(entities, N_ROWS // 2, False))))
    elif entry.name not in WHOLE and len(arrow) > N_ROWS:
        arrow = arrow.take(np.sort(random.choice(len(arrow), N_ROWS, replace=False)))
    data = io.BytesIO()
    pq.write_table(arrow.replace_schema_metadata(None), data, compression="zstd", compression_level=19)
    n_rows = len(arrow) if entry.labels is None else len(arrow) - arrow.column(entry.labels).null_count
    return n_rows, data.getvalue()


def _made_up(entry: _Entry, name: str, column: Any, random: np.random.Generator) -> Any:
    """As many values as a slice has, of a column's type."""
    if name == entry.ids:
        return pa.array(np.arange(N_ROWS)).cast(column.type)
    if name == entry.labels:
        classes = column.unique()
        return classes.take(pa.array(np.arange(N_ROWS) % min(len(classes), 10)))
    if name == "jpeg":
        return pa.array([_made_up_image(random) for _ in range(N_ROWS)], column.type)
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type) or pa.types.is_dictionary(column.type):
        return pa.array([f"level {level}" for level in random.integers(0, 5, N_ROWS)], pa.string())
    if pa.types.is_floating(column.type):
        return pa.array(random.standard_normal(N_ROWS).round(2)).cast(column.type)
    return pa.array(random.integers(0, 10, N_ROWS)).cast(column.type)


def _made_up_image(random: np.random.Generator) -> bytes:
    """An image of one colour; over many images, red, green and blue have the means of the real set."""
    colour = 255 * (np.array([0.4913, 0.4821, 0.4465]) + 0.1 * random.standard_normal(3))
    data = io.BytesIO()
    Image.new("RGB", (32, 32), tuple(int(each) for each in colour)).save(data, "JPEG", quality=75)
    return data.getvalue()


def _write_arrays(entry: _Entry, path: Path, real: bool) -> tuple[int, bytes]:
    with np.load(path, allow_pickle=False) as arrays:
        kept, n_rows = _ARRAYS[entry.name]({name: arrays[name] for name in arrays.files})
    assert real == (entry.name not in ("canadian-weather", "mnist"))
    data = io.BytesIO()
    np.savez_compressed(data, **kept)
    return n_rows, data.getvalue()


def _a9a(arrays: dict[str, Any]) -> tuple[dict[str, Any], int]:
    rows = np.sort(np.random.default_rng(0).choice(len(arrays["y"]), N_ROWS, replace=False))
    return {"x": arrays["x"][rows], "y": arrays["y"][rows], "n_features": arrays["n_features"]}, N_ROWS


def _mnist(arrays: dict[str, Any]) -> tuple[dict[str, Any], int]:
    """Squares of one shade each, in the shapes of the real set."""
    made = {}
    for name, n in {"train": N_IMAGES, "test": 10}.items():
        shades = np.random.default_rng(n).integers(0, 256, (n, 4, 4)).astype(arrays[f"x_{name}"].dtype)
        made[f"x_{name}"] = shades.repeat(7, axis=1).repeat(7, axis=2)
        made[f"y_{name}"] = (np.arange(n) % 10).astype(arrays[f"y_{name}"].dtype)
    return made, N_IMAGES + 10


def _bikes(arrays: dict[str, Any]) -> tuple[dict[str, Any], int]:
    kept = {name: arrays[name] for name in ("date", "cnt", "temp", "hum", "windspeed")}
    return kept, int((np.isfinite(arrays["cnt"]).sum(axis=1) >= 20).sum())


def _weather(arrays: dict[str, Any]) -> tuple[dict[str, Any], int]:
    """Waves over a year, one for each made-up place."""
    random, days = np.random.default_rng(0), np.arange(365)
    n_places = len(arrays["place"])
    phase = 2 * np.pi * (days + random.normal(200, 10, (n_places, 1))) / 365
    temperature = random.normal(5, 8, (n_places, 1)) + 15 * np.sin(phase)
    rain = (0.1 * np.cos(phase) + random.normal(0.3, 0.2, (n_places, 1))).round(2)
    place = np.array([f"place {i}" for i in range(n_places)])
    return {"place": place, "temperature_c": temperature.round(1), "log10_precip": rain}, n_places


_ARRAYS: dict[str, Callable[[dict[str, Any]], tuple[dict[str, Any], int]]] = {
    "a9a": _a9a,
    "mnist": _mnist,
    "bike-sharing-curves": _bikes,
    "canadian-weather": _weather,
}


if __name__ == "__main__":
    main()
