"""What an alignment holds in memory hardly grows with the number of ids."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import colonnade

PROGRAM = """
import json, sys, tempfile
from pathlib import Path
import pyarrow as pa
from colonnade import Roles, Table, simulate
from colonnade.align import Align, Settings, buckets

# Ids are gathered before they are written, at most this many: so few that both alignments gather several times.
buckets._GATHERED = 1 << 14

# The library's multiplication takes no memory that lasts, and nearly all of the time: here a sum of bits, which can be
# applied in either order too, stands for it.
from cryptography.hazmat.primitives.asymmetric import x25519

class Factor:
    def __init__(self, key):
        # A point has no top bit.
        self.number = int.from_bytes(key, "little") & (2**255 - 1)

    @classmethod
    def from_private_bytes(cls, key):
        return cls(key)

    def exchange(self, point):
        return (int.from_bytes(point, "little") ^ self.number).to_bytes(32, "little")

class Point:
    from_public_bytes = bytes

x25519.X25519PrivateKey, x25519.X25519PublicKey = Factor, Point

def table(start, n):
    numbers = range(start, start + n)
    chunks = [pa.array(numbers[i : i + 65536], pa.int64()) for i in range(0, n, 65536)]
    return Table.of({"id": pa.chunked_array(chunks)})

def status(name):
    return 1024 * int(Path("/proc/self/status").read_text().split(name)[1].split()[0])

def align(tables):
    with tempfile.TemporaryDirectory() as folder:
        return simulate(
            Align(Settings(ids_per_bucket=1 << 14, **how), workers=1), tables,
            roles=Roles(label="bank", features=("shop",)), directory=Path(folder), keep="digests",
        )

n, how = int(sys.argv[1]), json.loads(sys.argv[2])
tables = {"bank": table(0, n), "shop": table(n // 2, n)}
# What is imported, and what one bucket takes, is there before.
align({"bank": table(0, 1 << 15), "shop": table(0, 1 << 15)})
Path("/proc/self/clear_refs").write_text("5")
idle = status("VmRSS:")
run = align(tables)
assert run.results["shop"].size == (n if "join" in how else n - n // 2)
print(json.dumps(status("VmHWM:") - idle))
"""


def taken(n_ids: int, how: dict[str, str]) -> int:
    """Bytes that both parties of an alignment take in one process, above those of their tables."""
    source = str(Path(colonnade.__path__[0]).parent)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(n_ids), json.dumps(how)],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": source},
    )
    assert done.returncode == 0, done.stderr
    return int(json.loads(done.stdout.splitlines()[-1]))


def growth(few: int, many: int, how: dict[str, str]) -> float:
    """Bytes that each party takes for each further id."""
    return (taken(many, how) - taken(few, how)) / (many - few) / 2


linux = pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="only Linux tells the highest memory")


@pytest.mark.slow
@linux
@pytest.mark.parametrize("topology", ["star", "ring"])
def test_a_party_takes_less_than_32_bytes_for_each_further_id(topology: str) -> None:
    assert growth(100_000, 400_000, {"topology": topology}) < 32


@pytest.mark.slow
@linux
@pytest.mark.parametrize(
    ("how", "most"),
    [({"duplicates": "all"}, 80), ({"duplicates": "all", "join": "left"}, 130)],
    ids=["all", "all, left"],
)
def test_combining_repeated_rows_takes_no_more_for_each_further_id_than_the_docs_say(
    how: dict[str, str], most: int
) -> None:
    assert growth(100_000, 400_000, how) < most
