"""Mutants: each is one fault put into the source on purpose, which the tests beside it must notice.

    python tests/mutants                 all of them, in two processes
    python tests/mutants rlwe -n 1       those whose file or words hold "rlwe", in one

A copy of the source gets one fault at a time and runs only the tests that the list names. A mutant that no test notices
is a survivor; a mutant whose text is gone, or whose tests do not run, is stale. Either fails the run.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "colonnade"
SECONDS = 300


@dataclass(frozen=True)
class Mutant:
    """One fault.

    Attributes:
        file: Where it is put, within the package.
        old: The text that it replaces, which stands there once.
        new: What stands there instead.
        lost: What would be lost.
        tests: The arguments of pytest that notice it.
    """

    file: str
    old: str
    new: str
    lost: str
    tests: str

    def fits(self, text: str) -> bool:
        """Whether the source has the place exactly once."""
        return text.count(self.old) == 1 and self.new != self.old


def mutants() -> list[Mutant]:
    """The whole list."""
    return [Mutant(**each) for each in tomllib.loads(Path(__file__).with_name("list.toml").read_text())["mutant"]]


def outcome(mutant: Mutant, copy: Path) -> tuple[str, str]:
    """How a mutant ends in a copy of the source, and the first test that noticed it or the last words of pytest."""
    path = copy / "colonnade" / mutant.file
    text, times = path.read_text(), path.stat()
    if not mutant.fits(text):
        return "stale", "its text should stand in the file once"
    path.write_text(text.replace(mutant.old, mutant.new))
    # Compiled files beside the source tell a change by its time.
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-n", "0", "-m", "not slow", "-p", "no:cacheprovider"]
    variables = os.environ | {"PYTHONPATH": str(copy), "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(
            [*command, *shlex.split(mutant.tests)],
            cwd=ROOT,
            env=variables,
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )
    except subprocess.TimeoutExpired:
        return "dies", f"its tests take more than {SECONDS} s"
    finally:
        path.write_text(text)
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    lines = done.stdout.splitlines()
    failed = next((line for line in lines if line.startswith("FAILED")), "")
    if done.returncode == 1 and failed:
        return "dies", failed.split("::")[-1].split(" - ")[0]
    return "SURVIVES" if done.returncode == 0 else "stale", lines[-1] if lines else done.stderr[-200:]


def main() -> int:
    """Run the list, print a line for each mutant, and return 1 if one survives or is stale."""
    parser = argparse.ArgumentParser(description="Put one fault at a time into the source and see that tests notice.")
    parser.add_argument("words", nargs="*", help="only mutants whose file, text or loss holds one of these")
    parser.add_argument("-n", type=int, default=2, help="how many at once")
    arguments = parser.parse_args()
    chosen = [
        each
        for each in mutants()
        if not arguments.words or any(word in f"{each.file} {each.old} {each.lost}" for word in arguments.words)
    ]
    copies: SimpleQueue[Path] = SimpleQueue()
    ends: list[str] = []

    def run(mutant: Mutant) -> None:
        copy, begin = copies.get(), time.monotonic()
        end, words = outcome(mutant, copy)
        copies.put(copy)
        ends.append(end)
        print(f"{end:8} {time.monotonic() - begin:5.1f} s  {mutant.file:32} {mutant.lost}  [{words}]", flush=True)

    with tempfile.TemporaryDirectory(prefix="colonnade-mutants-") as folder:
        for number in range(arguments.n):
            copies.put(Path(shutil.copytree(SOURCE.parent, Path(folder, str(number)))))
        with ThreadPoolExecutor(arguments.n) as pool:
            list(pool.map(run, chosen))
    print(f"{ends.count('dies')} of {len(ends)} mutants die.")
    return 0 if ends.count("dies") == len(ends) > 0 else 1


if __name__ == "__main__":
    sys.exit(main())
