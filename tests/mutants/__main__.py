"""Mutants: each is one fault put into the source on purpose, which the tests beside it must notice.

    python tests/mutants                     all of them, in two processes
    python tests/mutants rlwe -n 1           those whose file or words hold "rlwe", in one
    python tests/mutants --seconds 500       begin nothing more after 500 s; the same command goes on later

Tests that fail without a fault can judge none, so each command of the list runs once on the source as it is. A copy of
the source then gets one fault at a time and runs only the tests that the list names. A mutant that no test notices is a
survivor; a mutant whose text is gone, or whose tests do not run, is stale. Either fails the run.

What is judged stands in a journal, so that a stopped run goes on. Another source or other tests begin a new one.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from queue import SimpleQueue

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "colonnade"
SECONDS = 300
PASSES, DIES, SURVIVES, STALE, UNJUDGED = "passes", "dies", "SURVIVES", "STALE", "UNJUDGED"
End = tuple[str, str]


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

    def __str__(self) -> str:
        return f"{self.file:32} {self.lost}"

    def fits(self, text: str) -> bool:
        """Whether the source has the place exactly once."""
        return text.count(self.old) == 1 and self.new != self.old


def mutants() -> list[Mutant]:
    """The whole list."""
    return [Mutant(**each) for each in tomllib.loads(Path(__file__).with_name("list.toml").read_text())["mutant"]]


def outcome(mutant: Mutant, copy: Path) -> End:
    """How a mutant ends in a copy of the source, and the first test that noticed it or the last words of pytest."""
    path = copy / "colonnade" / mutant.file
    text, times = path.read_text(), path.stat()
    if not mutant.fits(text):
        return STALE, "its text should stand in the file once"
    path.write_text(text.replace(mutant.old, mutant.new))
    # Compiled files beside the source tell a change by its time.
    try:
        end, words = tested(mutant.tests, copy, PYTHONDONTWRITEBYTECODE="1")
    finally:
        path.write_text(text)
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    return SURVIVES if end == PASSES else end, words


def tested(tests: str, source: Path, **variables: str) -> End:
    """Whether tests pass over a source, with the first that fails or the last words of pytest."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-n", "0", "-m", "not slow", "-p", "no:cacheprovider"]
    try:
        done = subprocess.run(
            [*command, *shlex.split(tests)],
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"} | variables,
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )
    except subprocess.TimeoutExpired:
        return DIES, f"its tests take more than {SECONDS} s"
    lines = done.stdout.splitlines()
    failed = next((line for line in lines if line.startswith("FAILED")), "")
    if done.returncode == 1 and failed:
        return DIES, failed.split("::")[-1].split(" - ")[0]
    return PASSES if done.returncode == 0 else STALE, lines[-1] if lines else done.stderr[-200:]


class Journal:
    """What runs over one state of the source and the tests have judged.

    Args:
        path: A file of one line for each end.
        state: A digest of source and tests; lines of another state do not count.
    """

    def __init__(self, path: Path, state: str) -> None:
        self.path, self.state = path, state
        lines = path.read_text().splitlines() if path.exists() else []
        read = [json.loads(line) for line in lines if line.endswith("}")]
        self.ends: dict[str, End] = {
            each["of"]: (each["end"], each["words"]) for each in read if each["state"] == state
        }

    def add(self, of: str, end: End) -> None:
        """Write down how something ended. A test that did not run is tried again the next time."""
        self.ends[of] = end
        if end[0] in (PASSES, DIES, SURVIVES):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            line = json.dumps({"state": self.state, "of": of, "end": end[0], "words": end[1]})
            with self.path.open("a") as file:
                file.write(f"{line}\n")


def state() -> str:
    """A digest of the source, the tests and what tests read of the repository."""
    paths = [
        path for folder in ("src", "tests") for path in (ROOT / folder).rglob("*") if path.suffix in (".py", ".toml")
    ]
    paths = [path for path in paths if path.name != "list.toml"]
    return sha256(b"".join(sha256(path.read_bytes()).digest() for path in sorted(paths))).hexdigest()


def judge(
    chosen: Iterable[Mutant], source: Path, journal: Journal, *, workers: int, seconds: float
) -> Iterator[tuple[Mutant, End | None]]:
    """Each mutant of a source with its end, or None where time was over first."""
    until = time.monotonic() + seconds

    def end(of: str, words: str, act: Callable[[], End]) -> End | None:
        if of not in journal.ends and time.monotonic() < until:
            begin = time.monotonic()
            journal.add(of, act())
            print(
                f"{journal.ends[of][0]:8} {time.monotonic() - begin:5.1f} s  {words}", *journal.ends[of][1:], flush=True
            )
        return journal.ends.get(of)

    def without_fault(tests: str) -> End | None:
        return end(tests, f"{'without a fault':32} {tests}", lambda: tested(tests, source))

    def with_fault(mutant: Mutant) -> End | None:
        first = sound.get(mutant.tests)
        if first is None or first[0] != PASSES:
            return first and (UNJUDGED, f"its tests fail without the fault: {first[1]}")
        copy = copies.get()
        try:
            return end(repr(mutant), str(mutant), lambda: outcome(mutant, copy))
        finally:
            copies.put(copy)

    chosen = list(chosen)
    # What takes longest comes first, so that no process is left with it at the end.
    commands = [tests for tests, _ in Counter(each.tests for each in chosen).most_common()]
    copies: SimpleQueue[Path] = SimpleQueue()
    with ThreadPoolExecutor(workers) as pool, tempfile.TemporaryDirectory(prefix="colonnade-mutants-") as folder:
        sound = dict(zip(commands, pool.map(without_fault, commands), strict=True))
        # Copies are made now, with what the tests above have compiled.
        for number in range(workers):
            copies.put(Path(shutil.copytree(source, Path(folder, str(number)))))
        yield from zip(chosen, pool.map(with_fault, chosen), strict=True)


def main() -> int:
    """Run the list and print a table; 1 if a mutant survives, is stale or cannot be judged, 2 if time is over first."""
    parser = argparse.ArgumentParser(description="Put one fault at a time into the source and see that tests notice.")
    parser.add_argument("words", nargs="*", help="only mutants whose file, text or loss holds one of these")
    parser.add_argument("-n", type=int, default=2, help="how many at once")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin nothing more after so many seconds")
    parser.add_argument("--journal", type=Path, default=ROOT / "runs" / "mutants.jsonl", help="where ends are kept")
    arguments = parser.parse_args()
    chosen = [
        each
        for each in mutants()
        if not arguments.words or any(word in f"{each.file} {each.old} {each.lost}" for word in arguments.words)
    ]
    journal = Journal(arguments.journal, state())
    judged = list(judge(chosen, SOURCE.parent, journal, workers=arguments.n, seconds=arguments.seconds))
    table = Counter(end[0] for _, end in judged if end)
    for mutant, end in judged:
        if end and end[0] != DIES:
            print(f"{end[0]:8} {mutant}  [{end[1]}]")
    print(f"{len(chosen)} mutants: " + ", ".join(f"{count} {end}" for end, count in table.items()))
    left = len(chosen) - table.total()
    if left:
        print(f"{left} are left: the same command goes on.")
    if table.total() != table[DIES] or not chosen:
        return 1
    return 2 if left else 0


if __name__ == "__main__":
    sys.exit(main())
