"""Two parties intersect their ids: by the built-in engine, by openmined.psi, and by RR22 of spu.

Each party is a process of its own, on loopback, and half of the ids are common; the result is checked. The other two
live in environments of their own (`.venv-openmined`, `.venv-psi-fast`), made here if they are not there. Processor
seconds are those of both parties together, from the moment when tables and libraries are loaded.
"""

from __future__ import annotations

import ctypes
import json
import multiprocessing
import resource
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.queues import SimpleQueue
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import numpy as np
import psutil
import pyarrow as pa

from benchmarks.loopback import BANK, SHOP, free_port
from colonnade import Roles, Table, join
from colonnade.align import Settings
from colonnade.align.buckets import Buckets
from colonnade.align.identifiers import Identifiers
from colonnade.align.protocol import Align
from colonnade.align.rr22 import SideProcess
from colonnade.cli.console import Progress
from colonnade.roles import PublicPlan
from colonnade.runtime.session import connect
from colonnade.wire.grpc.transport import GrpcTransport

# 1.9 times less than openmined.psi, and 8 times faster than the curve.
TARGETS: Mapping[str, float] = {
    "cpu_ratio": 1 / 1.9,
    "above_idle_mb": 600.0,
    "rr22_ratio": 1 / 8,
    "partition_cpu_s": 10.0,
}
SPAWNING = multiprocessing.get_context("spawn")
ROOT = Path(__file__).parents[1]
OPENMINED = "openmined.psi==2.0.6"
SPU = "spu==0.9.5"

OPENMINED_PROGRAM = """
import json, sys, time
import private_set_intersection.python as psi
n = int(sys.argv[1])
bank, shop = ([f"user{i:012d}" for i in range(start, start + n)] for start in (0, n // 2))
begun, wall = time.process_time(), time.perf_counter()
server, client = psi.server.CreateWithNewKey(True), psi.client.CreateWithNewKey(True)
setup = server.CreateSetupMessage(1e-9, n, shop, psi.DataStructure.GCS)
response = server.ProcessRequest(client.CreateRequest(bank))
found = client.GetIntersection(setup, response)
assert len(found) == n - n // 2, len(found)
print(json.dumps({"cpu": time.process_time() - begun, "wall": time.perf_counter() - wall}))
"""


@dataclass(frozen=True)
class Pair:
    """Two parties that intersect."""

    folder: Path
    port: int
    n_ids: int
    settings: Settings
    interpreter: Path | None = None
    watched: bool = False

    def ids(self, name: str) -> Table:
        """A party's ids, half of which the other one has."""
        start = 0 if name == BANK else self.n_ids // 2
        return Table.of({"id": made_ids(start, self.n_ids)}, owner=name)

    def take_part(self, name: str, said: SimpleQueue[dict[str, float]]) -> None:
        """The life of one party's process."""
        protocol = Align(self.settings, workers=1, process=SideProcess(self.interpreter))
        progress = Progress()
        plan = PublicPlan(Roles(label=BANK, features=(SHOP,)), *protocol.described())
        party = connect(
            plan,
            name,
            self.ids(name),
            transport=GrpcTransport({BANK: f"127.0.0.1:{self.port}", SHOP: None}, credentials=None),
            directory=self.folder / name,
            aligns=True,
            keep="digests",
            watcher=progress.step if self.watched and name == BANK else None,
        )
        times: dict[str, float] = {}

        def timed(ready: Any) -> None:
            from colonnade.crypto.curve import hash_to_curve

            hash_to_curve(np.zeros((1, 16), np.uint8))  # compiles, or loads what was compiled
            forget_peak()
            idle, cpu, begun = psutil.Process().memory_info().rss, process_time(), perf_counter()
            children = resource.getrusage(resource.RUSAGE_CHILDREN)
            alignment = protocol(ready)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            assert alignment.size == self.n_ids - self.n_ids // 2, "the result is wrong"
            times.update(
                wall=perf_counter() - begun,
                cpu=process_time() - cpu + after.ru_utime + after.ru_stime - children.ru_utime - children.ru_stime,
                mb=(peak() - idle) / 1e6,
                peak_mb=peak() / 1e6,
                bytes=sum(entry.size for entry in ready.recording.transcript().entries if entry.sent),
            )

        with progress:
            join(timed, party)
        said.put(times)

    def run(self) -> dict[str, float]:
        """Both processes from start to end: the longer time, the higher memory, and the sums of the rest."""
        said: SimpleQueue[dict[str, float]] = SPAWNING.SimpleQueue()
        processes = [SPAWNING.Process(target=self.take_part, args=(name, said)) for name in (BANK, SHOP)]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        if any(process.exitcode for process in processes):
            raise RuntimeError("A party of the benchmark failed.")
        one, other = said.get(), said.get()
        longest = {key: max(one[key], other[key]) for key in ("wall", "mb", "peak_mb")}
        return longest | {key: one[key] + other[key] for key in ("cpu", "bytes")}


def made_ids(start: int, n: int) -> pa.ChunkedArray:
    """Ids with numbers from a start on, made a few at a time."""
    stop = start + n
    chunks = (range(begin, min(begin + 65_536, stop)) for begin in range(start, stop, 65_536))
    return pa.chunked_array([pa.array([f"user{i:012d}" for i in chunk], pa.large_string()) for chunk in chunks])


def forget_peak() -> None:
    """Let the highest memory of this process count from now on, after giving back what lies unused."""
    pa.default_memory_pool().release_unused()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")


def peak() -> int:
    """The highest memory of this process, in bytes."""
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.split("VmHWM:")[1].split()[0])


def environment(name: str, package: str, *options: str) -> Path:
    """The interpreter of an environment that has one package."""
    folder = ROOT / f".venv-{name}"
    interpreter = folder / "bin" / "python"
    if not interpreter.exists():
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        subprocess.run([interpreter, "-m", "pip", "install", "--quiet", *options, package], check=True)
    return interpreter


def openmined(n_ids: int) -> dict[str, float]:
    """What openmined.psi takes, both sides in one process, one after the other."""
    command = [str(environment("openmined", OPENMINED)), "-c", OPENMINED_PROGRAM, str(n_ids)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def partition(n_ids: int) -> float:
    """Processor seconds to cut ids into buckets on disk."""
    table = Table.of({"id": made_ids(0, n_ids)})
    with tempfile.TemporaryDirectory() as folder:
        begun = process_time()
        Buckets(
            Identifiers.of(table, None, None),
            table,
            0,
            bytes(32),
            n=max(2, Settings().n_buckets([n_ids])),
            folder=Path(folder),
        )
        return process_time() - begun


def measure(*, quick: bool) -> dict[str, float]:
    """Both engines and the other library, at the sizes of the targets."""
    middle, large, huge = (2_000, 5_000, 50_000) if quick else (100_000, 1_000_000, 5_000_000)
    spu = environment("psi-fast", SPU, "--no-deps")
    with tempfile.TemporaryDirectory() as folder:

        def pair(name: str, n_ids: int, interpreter: Path | None = None, **how: Any) -> dict[str, float]:
            return Pair(Path(folder) / name, free_port(), n_ids, Settings(**how), interpreter).run()

        ecdh, peer = pair("middle", middle), openmined(middle)
        fast = pair("fast", large, spu, engine="rr22")
        slow = pair("large", large)
    return {
        "cpu_ratio": ecdh["cpu"] / peer["cpu"],
        "above_idle_mb": slow["mb"],
        "rr22_ratio": fast["wall"] / slow["wall"],
        "partition_cpu_s": partition(huge),
        "ecdh_cpu_s": ecdh["cpu"],
        "openmined_cpu_s": peer["cpu"],
        "large_ids": float(large),
        "large_s": slow["wall"],
        "large_cpu_s": slow["cpu"],
        "large_wire_mb": slow["bytes"] / 1e6,
        "rr22_s": fast["wall"],
        "rr22_cpu_s": fast["cpu"],
        "rr22_above_idle_mb": fast["mb"],
    }
