import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# How fast a machine is, and how busy, is nothing a test should fail by.
settings.register_profile("colonnade", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("colonnade")

# Files are synced as ever, but where they lie in memory nobody waits for a disk: a process that is killed loses nothing
# that it has written to either.
MEMORY = Path("/dev/shm")
if "TMPDIR" not in os.environ and os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > 4 * 2**30:
    os.environ["TMPDIR"] = tempfile.tempdir = str(MEMORY)


@pytest.fixture(scope="session", autouse=True)
def one_torch_thread() -> None:
    """Two workers on two cores would otherwise fight for them, and thread counts change the last bits of a sum."""
    if find_spec("torch"):
        import torch

        torch.set_num_threads(1)


@pytest.fixture
def data_folder(monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of data sets that $COLONNADE_DATA names, or else slices of them."""
    folder = os.environ.get("COLONNADE_DATA") or str(Path(__file__).parent / "data" / "slices")
    monkeypatch.setenv("COLONNADE_DATA", folder)
    return Path(folder)


@pytest.fixture
def no_trace_stays() -> Iterator[None]:
    """Fail a test after which a file that `spu` writes to /tmp stays there."""
    before = _traces()
    yield
    left = _traces() - before
    # Those of other tests that run meanwhile go when these are done.
    end = time.monotonic() + 60
    while any(path.exists() for path in left):
        assert time.monotonic() < end, f"these stay: {left}"
        time.sleep(0.05)


def _traces() -> set[Path]:
    """The traces of side processes of this source tree, whose program they name."""
    from colonnade.align.rr22 import PROGRAM

    found = set()
    for path in Path("/tmp").glob("psi_*.trace"):
        with suppress(OSError):
            if str(PROGRAM).encode() in path.read_bytes():
                found.add(path)
    return found
