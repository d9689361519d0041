"""A party whose table lies with workers: what a second worker is worth, what a row costs, what the driver keeps of it.

`points_share` and `sums_share` are the time with two workers over the time with one of the same kind, for the points of
an alignment and for encrypted sums of a regression; a half is the best there is. Both are the best of three turns, in
which one and two workers alternate. `..._processor_ratio` is the processor time of two workers over that of one: above
1, cores hinder each other, and no scheduling could give it back. Figures need an idle machine: `others_cores` is how
many cores other processes kept busy meanwhile. `points_growth` and `sums_growth` are the cost of a row at 5 million
rows over the cost at 100,000, with two workers. `driver_bytes` is what each row adds to the memory of the process that
asks, from 100,000 to a million rows, and `driver_wide_bytes` the same for a table of ten times as many columns.

`projected_...` is for 100 million rows on 16 workers of such a core. It assumes that a row costs as much there as at 5
million rows here (`..._growth` says how far that held from 100,000 on), that workers do not wait for each other or for
the driver, whose own share is `driver_us` a row on one core, that files are read as fast as here, and that lines to
peers are no narrower than what is computed. Nothing of it was run.

Whole protocols of 5 million rows are in `scale_large`.
"""

from __future__ import annotations

import ctypes
import gc
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter, process_time

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq

from colonnade.align import Identifiers
from colonnade.align.state import CHUNK, masked
from colonnade.crypto import rlwe
from colonnade.crypto.curve import Points, make_key
from colonnade.models import OneShotClassifier
from colonnade.models.glm.rows import BatchedRows, matrix_of, prepared_for, product_of, quantised
from colonnade.roles import PublicPlan, Roles
from colonnade.runtime.party import Party
from colonnade.runtime.placed import placed_table
from colonnade.runtime.workers import Crew, Workers
from colonnade.tables.encode import Design
from colonnade.tables.table import Table

TARGETS: Mapping[str, float] = {
    "points_share": 1 / 1.7,
    "sums_share": 1 / 1.7,
    "points_growth": 1.3,
    "sums_growth": 1.3,
    "driver_bytes": 128,
    "others_cores": 0.1,
}
LEAST: Mapping[str, float] = {"points_share": 0.48, "sums_share": 0.48, "driver_bytes": 8.0}
"""Two workers are worth two cores at most, but for the clock's own spread; a row is an id at least."""
COLUMNS, PART, BATCH = 10, 250_000, 2**18
MANY, WORKERS = 100_000_000, 16


@dataclass(frozen=True)
class Cost:
    """Seconds by the clock, of this process and its workers, and of all other processes of the machine."""

    wall: float
    own: float
    others: float

    @classmethod
    @contextmanager
    def measured(cls) -> Iterator[list[Cost]]:
        """What the block takes is in the list afterwards."""
        found: list[Cost] = []
        before = _clocks()
        yield found
        wall, own, busy = (now - then for now, then in zip(_clocks(), before, strict=True))
        found.append(cls(wall, own, max(busy - own, 0.0)))


def _clocks() -> tuple[float, float, float]:
    return perf_counter(), _own_seconds(), _all_seconds()


def _own_seconds() -> float:
    processes = [psutil.Process(), *psutil.Process().children(recursive=True)]
    return float(sum(times.user + times.system for times in (process.cpu_times() for process in processes)))


def _all_seconds() -> float:
    times = psutil.cpu_times()
    return float(sum(times) - times.idle - getattr(times, "iowait", 0.0) - getattr(times, "guest", 0.0))


def measure(*, quick: bool) -> dict[str, float]:
    """Speed-up, growth and memory."""
    few, many, points, wide = (2_000, 4_000, 2_000, 4_000) if quick else (100_000, 5_000_000, BATCH, 1_000_000)
    figures, costs = dict[str, float](), list[Cost]()
    with TemporaryDirectory() as name, crew_of(1) as one, crew_of(2) as two:
        small, middle, large = (written(Path(name) / str(n), n) for n in (few, BATCH // 64 if quick else BATCH, many))
        for what, run in (("points", partial(_points, n=points)), ("sums", partial(_sums, epochs=2 if quick else 10))):
            turns = [(run(middle, crew=one), run(middle, crew=two)) for _ in range(3)]
            costs += [cost for turn in turns for cost in turn]
            best = [min(each, key=lambda cost: cost.wall) for each in zip(*turns, strict=True)]
            figures[f"{what}_share"] = best[1].wall / best[0].wall
            figures[f"{what}_processor_ratio"] = best[1].own / best[0].own
            figures |= {f"{what}_{n}_s": cost.wall for n, cost in zip(("one", "two"), best, strict=True)}
        driver = process_time()
        found = {"points": (_points(large, many, two), _points(small, few, two))}
        figures["driver_us"] = 1e6 * (process_time() - driver) / (many + few)
        found["sums"] = _sums(large, 1, two), _sums(small, 5, two)
        costs += [cost for pair in found.values() for cost in pair]
    per_row = {what: (most.wall / many, least.wall / few) for what, (most, least) in found.items()}
    per_row["sums"] = per_row["sums"][0], per_row["sums"][1] / 5
    for what, (most, least) in per_row.items():
        figures[f"{what}_growth"], figures[f"{what}_us"] = most / least, 2e6 * most
    for what, columns in (("driver_bytes", COLUMNS), ("driver_wide_bytes", 10 * COLUMNS)):
        figures[what] = (_driver_bytes(wide, columns) - _driver_bytes(few, columns)) / (wide - few)
    figures["others_cores"] = sum(cost.others for cost in costs) / sum(cost.wall for cost in costs)
    figures["projected_points_hours"] = MANY * figures["points_us"] / 1e6 / WORKERS / 3600
    figures["projected_sums_minutes_an_epoch"] = MANY * figures["sums_us"] / 1e6 / WORKERS / 60
    figures["projected_driver_gb"] = MANY * figures["driver_bytes"] / 1e9
    print(_projection(figures), flush=True)
    return figures


def _projection(figures: Mapping[str, float]) -> str:
    """The projection in words, with what it assumes."""
    return (
        f"{MANY:,} rows on {WORKERS} workers, not run: {figures['projected_points_hours']:.2f} hours for the points of "
        f"an alignment, {figures['projected_sums_minutes_an_epoch']:.1f} minutes for the encrypted sums of an epoch, "
        f"{figures['projected_driver_gb']:.1f} GB at the driver. Assumed: {figures['points_us']:.1f} and "
        f"{figures['sums_us']:.2f} us of a worker for each row, as at 5 million rows here; workers that wait neither "
        f"for each other nor for the driver, which needs {figures['driver_us']:.2f} us for each row itself; files read "
        "as fast as here; lines to peers that are no narrower."
    )


@contextmanager
def crew_of(n: int) -> Iterator[Crew]:
    """Processes that are started already."""
    crew = Crew(n=n)
    try:
        list(crew.map(abs, range(2 * n)))
        yield crew
    finally:
        crew.end()


def written(folder: Path, n_rows: int, columns: int = COLUMNS, *, shuffled: bool = False) -> Path:
    """A table in Parquet parts; part by part, so that writing takes little memory."""
    folder.mkdir(parents=True, exist_ok=True)
    # A step that has no factor in common with the number of rows visits each row once, in a scattered order.
    step = next(each for each in range(n_rows * 2 // 3, 2 * n_rows) if np.gcd(each, n_rows) == 1) if shuffled else 1
    for number, begin in enumerate(range(0, n_rows, PART)):
        rows = np.arange(begin, min(begin + PART, n_rows))
        x = np.random.default_rng(number).standard_normal((len(rows), columns))
        labels = (x[:, 0] + x[:, 1] > 0).astype(np.int64)
        named = {f"x{i}": x[:, i] for i in range(columns)}
        pq.write_table(pa.table({"id": rows * step % n_rows, **named, "y": labels}), folder / f"{number:05d}.parquet")
    return folder


def _placed(path: Path, crew: Crew) -> Table:
    return placed_table(path, crew, ids="id", exclude=["y"], owner="shop")


def _points(path: Path, n: int, crew: Crew) -> Cost:
    """What it takes to read ids where they lie, hash them to the curve and multiply them."""
    table, key, salt = _placed(path, crew).take(np.arange(n)), make_key(), make_key()
    with Cost.measured() as found:
        assert sum(map(len, points_of(table, crew, key, salt))) == n
    return found[0]


def points_of(table: Table, crew: Workers, key: bytes, salt: bytes, *, every: int = 1) -> Iterator[Points]:
    """The points of a table's ids under a key, in chunks; of every few chunks one."""
    digests = (each for each, _ in Identifiers(("integer",), ("id",)).digests(table, 0, salt))
    chunks = (part[at : at + CHUNK] for part in digests for at in range(0, len(part), CHUNK))
    return crew.map(masked, islice(chunks, 0, None, every), key)


def _sums(path: Path, epochs: int, crew: Crew) -> Cost:
    """What some epochs of encrypted sums over all rows take; columns are read and quantised before."""
    table, secret, block = _placed(path, crew), rlwe.SecretKey(), 2048
    key, n = secret.public.to_bytes(), len(table)
    batches = [np.arange(begin, min(begin + BATCH, n)) for begin in range(0, n, BATCH)]
    rows = BatchedRows.of(table, batches)
    x = rows.then(matrix_of, Design.learned(table, standardised=True, intercept=False))
    integers = quantised(x, np.zeros(0), np.full(COLUMNS, 9), None, intercept=False)
    prepared = integers.then(prepared_for, "rlwe", key, block, False)
    list(prepared.parts.map(type))
    encrypted = secret.public.encrypt(np.arange(len(batches[0])) % 1000, block)
    with Cost.measured() as found:
        for _ in range(epochs):
            for batch in range(len(batches)):
                cut = (encrypted[first // block : -(-last // block)] for first, last in prepared.batch_bounds(batch))
                for _ in prepared.of_batch(batch, product_of, "rlwe", key, per_part=cut):
                    pass
    return found[0]


def _driver_bytes(n_rows: int, columns: int) -> float:
    """The highest memory of a process that aligns and embeds with workers, above that before its table is there."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.scale", str(n_rows), str(columns)],
        capture_output=True,
        text=True,
        check=True,
    )
    return float(done.stdout.splitlines()[-1])


def driver(n_rows: int, columns: int) -> float:
    """Count ids, and learn and stream embeddings, with two workers; returns the bytes that this took here."""
    with TemporaryDirectory() as name, crew_of(2) as crew:
        path, few = written(Path(name) / "all", n_rows, columns), written(Path(name) / "few", 1000, columns)
        _embedded(_placed(few, crew))
        # What was freed so far would be used again without a trace.
        gc.collect()
        pa.default_memory_pool().release_unused()
        ctypes.CDLL(None).malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")
        idle = memory("VmRSS:")
        _embedded(_placed(path, crew))
        return memory("VmHWM:") - idle


def _embedded(table: Table) -> None:
    Identifiers(("integer",), ("id",)).count(table, 0, np.zeros(len(table), bool))
    model = OneShotClassifier(leak_budget={"shop": 1.0}, components=4)
    party = Party.alone(PublicPlan(Roles(label="bank", features=("shop",)), "scale"), "shop", table)
    for _ in model._embedded(party)[0]:
        pass


def memory(name: str) -> float:
    return 1024.0 * int(Path("/proc/self/status").read_text().split(name)[1].split()[0])


def main() -> None:
    """The highest memory of this process, which alone tells it truly."""
    print(driver(int(sys.argv[1]), int(sys.argv[2])))


if __name__ == "__main__":
    main()
