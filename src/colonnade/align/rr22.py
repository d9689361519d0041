"""The engine rr22: two-party intersection by SecretFlow's `spu`, much faster than the curve, in a process beside us.

    leader                                    each other party
         Meeting ⇄ Meeting                                    once per key and bucket: where the side processes listen
         Meeting ⇄ Meeting                                    that they were started
         Finished ⇄ Finished                                  and how they ended

The two side processes talk to each other over a connection of their own, with TLS if the run has it. **What they say
is not in our recording**: the audit knows only that they talked. `spu` checks that the other side's certificate comes
from the same authority, not whose certificate it is. So each pair has a secret of its own for this run, the veil, which
the leader sends over the run's own line: both encrypt their digests under it, and a third party that takes the place of
a side process can compare nothing with them. Each side process first says a word that follows from the veil, and gives
up where the other does not say its own: a third party gets no answer at all. Nor can a party be held to the list that
it gave to its process, so it counts as another alignment if side processes meet again over an interrupted bucket
(`limits.py`).

Each party learns which of its ids the other party has, and how many ids the other party has. So with three or more
parties every feature party learns what it has in common with the leader, which the built-in engine does not show. With
`reveal="one"` only the leader learns which. Semi-honest, like the built-in engine; the implementation is spu's.

Raghuraman and Rindal 2022 (RR22), https://eprint.iacr.org/2022/320.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import select
import shutil
import socket
import subprocess
import sys
from binascii import hexlify, unhexlify
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt
from blake3 import blake3

from colonnade.align import rr22_process
from colonnade.align.buckets import Bucket, DigestArray, RowNumbers
from colonnade.align.identifiers import DIGEST_BYTES
from colonnade.align.matching import encrypted, positions, sorted_values
from colonnade.align.messages import Finished, Meeting
from colonnade.align.state import AlignState
from colonnade.errors import MissingExtra, PlanError, ProtocolError
from colonnade.storage import explained, make_private, open_private
from colonnade.wire.channel import Channel
from colonnade.wire.transport import is_address

INTERPRETER_VARIABLE = "COLONNADE_PSI_FAST"
PROGRAM = Path(rr22_process.__file__)

# Where spu says that it left a file which nobody asked for, and whose place cannot be chosen.
_TRACE = re.compile(rb"Trace has been written to (/tmp/psi_[\w-]+\.trace)\.")

_HEX_BYTES = 2 * DIGEST_BYTES


@dataclass(frozen=True)
class SideProcess:
    """Where the side process finds what it needs.

    Attributes:
        interpreter: A Python that has spu; the one that the environment variable COLONNADE_PSI_FAST names if None, or
            this one.
        address: Where it listens for the other party's, `host:port`; a free port of this machine alone if None.
        certificates: The files of this party's certificate, its key and the authority; None sends in the clear.
        timeout_s: How long it waits for the other party's.

    >>> SideProcess(address="bank.example:7432").timeout_s
    600.0
    """

    interpreter: Path | None = None
    address: str | None = None
    certificates: tuple[Path, Path, Path] | None = None
    timeout_s: float = 600.0

    def find(self, folder: Path) -> Path:
        """The interpreter, which has passed its test in a folder.

        Raises `MissingExtra` if there is none, and `PlanError` if it does not do what it should.
        """
        named = self.interpreter or os.environ.get(INTERPRETER_VARIABLE)
        if named is None and importlib.util.find_spec("spu") is None:
            raise MissingExtra(
                "psi-fast",
                f"The engine rr22 runs spu {rr22_process.VERSION} in an environment of its own and",
                how=f"python3.11 -m venv psi-fast && psi-fast/bin/pip install --no-deps spu=={rr22_process.VERSION} "
                f"&& export {INTERPRETER_VARIABLE}=$PWD/psi-fast/bin/python",
            )
        interpreter = Path(named or sys.executable)
        if interpreter not in _tested:
            _self_test(interpreter, folder)
            _tested.add(interpreter)
        return interpreter

    def start(
        self, folder: Path, rank: int, parties: list[tuple[str, str]], words: tuple[str, str], *, broadcast: bool
    ) -> Running:
        """Start it on the digests that lie in its folder.

        Args:
            folder: Where the digests lie.
            rank: Which of the two parties this one is.
            parties: The names of both and where their side processes listen.
            words: What the processes of both say first.
            broadcast: Whether both learn what is common.
        """
        files = None if self.certificates is None else map(str, self.certificates)
        task = {
            "sides": [_side(folder, rank)],
            "parties": parties,
            "words": words,
            "broadcast": broadcast,
            "tls": None if files is None else dict(zip(("cert", "key", "ca"), files, strict=True)),
            "timeout_ms": int(self.timeout_s * 1000),
        }
        return Running(self.find(folder), folder, task)


class Running:
    """A side process at work in a folder on what it is told; it ends with this one."""

    def __init__(self, interpreter: Path, folder: Path, task: Mapping[str, Any]) -> None:
        with ExitStack() as undo, explained(f"write {folder / 'log'}"), open_private(folder / "log", "wb") as log:
            self._done, done = os.pipe()
            undo.callback(os.close, self._done)
            with open(done, "wb") as theirs:
                self._process = _started(interpreter, folder, log, theirs.fileno())
            undo.pop_all()
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # `wait` finds out that the process ended
            self._process.stdin.write(json.dumps({**task, "done": done}).encode() + b"\n")
            self._process.stdin.flush()

    def wait(self, check: Callable[[], None] = lambda: None) -> bool:
        """Wait until it is done; returns whether it did well.

        `check` is called now and then; what it raises ends the waiting.
        """
        waiting = select.poll()
        waiting.register(self._done, select.POLLIN)
        while not waiting.poll(500):
            check()
        return os.read(self._done, 1) == rr22_process.GOOD

    def close(self) -> None:
        """End it."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.kill()
        self._process.wait()
        os.close(self._done)


def _started(interpreter: Path, folder: Path, log: IO[bytes], done: int) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
            [interpreter, "-I", PROGRAM],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            cwd=folder,
            env={**os.environ, "TMPDIR": str(folder)},
            pass_fds=[done],
        )
    except OSError as error:
        raise PlanError(
            f"The engine rr22 should run in {interpreter}, but that cannot be started: "
            f"{error.strerror or type(error).__name__}. Let {INTERPRETER_VARIABLE} name a Python that has spu "
            f"{rr22_process.VERSION}, or use engine = 'ecdh'."
        ) from error


def common(
    process: SideProcess, state: AlignState, line: Channel, bucket: Bucket, key: int, number: int
) -> tuple[DigestArray, RowNumbers]:
    """The digests that a bucket has in common with a peer's, in an order that both share, and this party's rows.

    Both are empty if this party may not know them. The order is that of the encrypted digests, which differs in every
    run.
    """
    me, peer, agreement = state.party.name, line.peer, state.agreement
    leads, broadcast = state.participants.leads, state.settings.reveal == "both"
    if not agreement.slots(me, key) or not agreement.slots(peer, key):
        return np.zeros((0, DIGEST_BYTES), np.uint8), np.zeros(0, np.int64)  # spu takes no empty list
    listed = state.padded(bucket, key, number, peer)
    with _side_folder(state.folder) as folder:
        _write(folder / "input.csv", encrypted(listed.digests, agreement.veils[peer]))
        words = pair_words(agreement.veils[peer], key, number)
        met = partial(state.meet, peer, key, number)
        _run_pair(process, folder, line, me, words, met, leads=leads, broadcast=broadcast)
        state.progress(len(listed.rows))
        told = leads or broadcast
        found = sorted_values(_read(folder / "output.csv")) if told else np.zeros((0, DIGEST_BYTES), np.uint8)
    digests = encrypted(found, agreement.veils[peer], back=True)
    return digests, _rows(digests, bucket, peer)


def pair_words(veil: bytes, key: int, number: int) -> tuple[str, str]:
    """What the side processes of a pair say to each other first, over one bucket: the leader's word, then the other's.

    Nobody without the veil knows a word, and neither word is an echo of the other.
    """
    leader, follower = (blake3(f"rr22 {rank} {key} {number}".encode(), key=veil).hexdigest() for rank in range(2))
    return leader, follower


def _run_pair(
    process: SideProcess,
    folder: Path,
    line: Channel,
    me: str,
    words: tuple[str, str],
    met: Callable[[], None],
    *,
    leads: bool,
    broadcast: bool,
) -> None:
    """Run a side process beside the peer's, until both are done."""
    peer = line.peer
    with _meeting(line, process.address) as (mine, theirs):
        met()
        parties = [(me, mine), (peer, theirs)] if leads else [(peer, theirs), (me, mine)]
        with closing(process.start(folder, 0 if leads else 1, parties, words, broadcast=broadcast)) as running:
            # In a simulation parties take turns: a party that waited here first would keep the other from starting.
            line.send(Meeting("", 1))
            line.receive(Meeting)
            good = running.wait(line.check)
            line.send(Finished(int(good)))
            # A party that fails says so at once, because the other party's process may be waiting for its process.
            if not good or not line.receive(Finished).good:
                failed = (
                    f"{peer}'s failed, which knows why" if good else f"{me}'s failed: {_last_words(folder / 'log')}"
                )
                raise ProtocolError(
                    f"The side processes of {me} and {peer} should have found their common ids, but {failed}. Check "
                    "that both can reach each other at the addresses under [align.addresses], or use engine = 'ecdh'."
                )


@contextmanager
def _side_folder(beside: Path) -> Iterator[Path]:
    """A folder for the files of a side process, gone when the block ends; so is what a killed run left there."""
    # The side process works in there, where a path that starts from this one's folder would lead nowhere.
    folder = (beside / "side").resolve()
    with explained("make a folder for the side process"):
        _delete(folder)
        make_private(folder)
    try:
        yield folder
    finally:
        _delete(folder)


def _delete(folder: Path) -> None:
    """Delete a side process's folder, and what it left elsewhere."""
    with suppress(OSError):
        for path in _TRACE.findall((folder / "log").read_bytes()):
            Path(os.fsdecode(path)).unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _meeting(line: Channel, address: str | None) -> Iterator[tuple[str, str]]:
    """Tell each other where the side processes listen; this party's port is reserved until the block ends."""
    with socket.socket() as held:
        # The side process may listen at a port that is bound like this; the system gives it to nobody else.
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if address is None:
            held.bind(("127.0.0.1", 0))
        mine = address or f"127.0.0.1:{held.getsockname()[1]}"
        line.send(Meeting(mine, 0))
        theirs = line.receive(Meeting).address
        if not is_address(theirs):
            raise ProtocolError(
                f"Expected {line.peer} to say at which host and port its side process listens, got {theirs[:100]!r}. "
                f"Correct its address under [align.addresses] at {line.peer}."
            )
        yield mine, theirs


def _rows(digests: DigestArray, bucket: Bucket, peer: str) -> RowNumbers:
    """This party's rows of common digests."""
    found = positions(digests, bucket.digests)
    if (found < 0).any() or len(np.unique(found)) != len(found):
        raise ProtocolError(
            f"The side process should name ids that this party and {peer} have, each once, but named others. Use "
            "engine = 'ecdh'."
        )
    return bucket.rows[found]


def _write(path: Path, digests: DigestArray) -> None:
    written = np.full((len(digests), _HEX_BYTES + 1), ord("\n"), np.uint8)
    hexed = hexlify(np.ascontiguousarray(digests).tobytes())
    written[:, :_HEX_BYTES] = np.frombuffer(hexed, np.uint8).reshape(-1, _HEX_BYTES)
    with explained(f"write {path}"), open_private(path, "wb") as file:
        file.write(b"id\n" + written.tobytes())


def _read(path: Path) -> DigestArray:
    with explained(f"read {path}"):
        lines = path.read_bytes().split(b"\n")[1:]
    return np.frombuffer(unhexlify(b"".join(lines)), np.uint8).reshape(-1, DIGEST_BYTES)


def _last_words(log: Path) -> str:
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    telling = [line for line in lines if "rror" in line or "imeout" in line] or lines
    return telling[-1][:200] if telling else "it said nothing about why"


def _side(folder: Path, rank: int) -> dict[str, Any]:
    """What a side process is told of one side."""
    return {"rank": rank, "input": str(folder / "input.csv"), "output": str(folder / "output.csv")}


_tested: set[Path] = set()


def _self_test(interpreter: Path, beside: Path) -> None:
    """Let a side process intersect two small lists by itself, before it is trusted with large ones."""
    lists = (np.arange(60), np.arange(20, 90))
    with _side_folder(beside) as whole:
        folders = [whole / str(rank) for rank in range(2)]
        for folder, numbers in zip(folders, lists, strict=True):
            make_private(folder)
            _write(folder / "input.csv", _numbered(numbers))
        sides = [_side(folder, rank) for rank, folder in enumerate(folders)]
        parties = [(str(rank), "here") for rank in range(2)]
        task = {"sides": sides, "parties": parties, "broadcast": True, "tls": None, "timeout_ms": 30_000}
        with closing(Running(interpreter, whole, task)) as running:
            good = running.wait()
        found = [sorted_values(_read(folder / "output.csv")) for folder in folders] if good else []
        words = "" if good else _last_words(whole / "log")
    wanted = sorted_values(_numbered(np.arange(20, 60)))
    if not good or not all(np.array_equal(each, wanted) for each in found):
        raise PlanError(
            f"The engine rr22 should find the common ids of two small lists with {interpreter}, but does not"
            f"{f': {words}' if words else ''}. Install spu {rr22_process.VERSION} there, or use engine = 'ecdh'."
        )


def _numbered(numbers: npt.NDArray[np.int64]) -> DigestArray:
    digests = np.zeros((len(numbers), DIGEST_BYTES), np.uint8)
    digests[:, 0] = numbers
    return digests
