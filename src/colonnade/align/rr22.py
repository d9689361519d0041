"""The engine rr22: two-party intersection by SecretFlow's `spu`, much faster than the curve, in a process beside us.

    leader                                    each other party
         Meeting ⇄ Meeting                                    once per key: where the side processes listen
         Finished ⇄ Finished                                  once per key

The two side processes talk to each other over a line of their own, with TLS where the run has it. **What they say is
not in our recording**, so the audit knows nothing of it but that it took place. `spu` checks that the other side's
certificate is of the same authority, not whose it is.

Each party learns which of its ids the other one has (so, of three parties or more, every feature party learns what it
has in common with the leader, which the built-in engine does not show it), and how many ids it has. With
`reveal="one"` only the leader learns which. Semi-honest, like the built-in engine; the implementation is spu's.

Raghuraman and Rindal 2022 (RR22), https://eprint.iacr.org/2022/320.
"""

from __future__ import annotations

import importlib.util
import json
import os
import socket
import subprocess
import sys
import tempfile
from binascii import hexlify, unhexlify
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from colonnade.align import rr22_process
from colonnade.align.buckets import Bucket, Digests
from colonnade.align.identifiers import DIGEST_BYTES
from colonnade.align.messages import Finished, Meeting
from colonnade.align.own import Own, bucket_step, durable, positions
from colonnade.align.settings import Settings
from colonnade.align.star import StarFollower, StarLeader
from colonnade.errors import MissingExtra, PlanError, ProtocolError
from colonnade.storage import Tree, explained
from colonnade.wire.channel import Channel

INTERPRETER_VARIABLE = "COLONNADE_PSI_FAST"
PROGRAM = Path(rr22_process.__file__)

_HEX_BYTES = 2 * DIGEST_BYTES


@dataclass(frozen=True)
class SideProcess:
    """Where the side process finds what it needs.

    Attributes:
        interpreter: A Python that has spu; the one that the environment variable COLONNADE_PSI_FAST names if None, or
            this one.
        address: Where it listens for the other party's, `host:port`; a free port of this machine alone if None.
        certificates: The files of the own certificate, its key and the authority; None sends in the clear.
        timeout_s: How long it waits for the other party's.

    >>> SideProcess(address="bank.example:7432").timeout_s
    600.0
    """

    interpreter: Path | None = None
    address: str | None = None
    certificates: tuple[Path, Path, Path] | None = None
    timeout_s: float = 600.0

    def find(self) -> Path:
        """The interpreter, which has passed its test.

        Raises:
            MissingExtra: There is none.
            PlanError: It does not do what it should.
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
        _self_test(interpreter)
        return interpreter

    def start(self, folder: Path, rank: int, parties: list[tuple[str, str]], *, broadcast: bool) -> Running:
        """Start it on the digests that lie in its folder."""
        tls = None if self.certificates is None else dict(zip(("cert", "key", "ca"), self.certificates, strict=True))
        return Running(self.find(), folder, rank, parties, broadcast, tls, self.timeout_s)


class Running:
    """A side process at work; it ends with this one."""

    def __init__(
        self,
        interpreter: Path,
        folder: Path,
        rank: int,
        parties: list[tuple[str, str]],
        broadcast: bool,
        tls: dict[str, Path] | None = None,
        timeout_s: float = 600.0,
    ) -> None:
        task = {
            "rank": rank,
            "parties": parties,
            "input": str(folder / "input.csv"),
            "output": str(folder / "output.csv"),
            "broadcast": broadcast,
            "tls": None if tls is None else {name: str(path) for name, path in tls.items()},
            "timeout_ms": int(timeout_s * 1000),
        }
        self._done, done = os.pipe()
        with explained(f"start {interpreter}"), (folder / "log").open("wb") as log, open(done, "wb") as theirs:
            self._process = subprocess.Popen(
                [interpreter, "-I", PROGRAM],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                cwd=folder,
                env={**os.environ, "TMPDIR": str(folder)},
                pass_fds=[theirs.fileno()],
            )
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(task | {"done": done}).encode() + b"\n")
        self._process.stdin.flush()

    def wait(self) -> bool:
        """Wait until it is done; returns whether it has come to a good end."""
        return os.read(self._done, 1) == b"1"

    def close(self) -> None:
        """End it."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.kill()
        self._process.wait()
        os.close(self._done)


@dataclass
class _Pairs:
    """What leader and followers do alike."""

    own: Own
    settings: Settings
    process: SideProcess

    def common(self, line: Channel, bucket: Bucket, *, leads: bool) -> Digests:
        """The digests that a bucket has in common with a peer's, in an order that both share; empty if not told."""
        with tempfile.TemporaryDirectory(prefix="colonnade-") as name:
            folder, me = Path(name), self.own.party.name
            _write(folder / "input.csv", bucket.digests)
            broadcast = self.settings.reveal == "both"
            with _meeting(line, self.process.address) as addresses:
                mine, theirs = (me, addresses[0]), (line.peer, addresses[1])
                running = self.process.start(
                    folder, 0 if leads else 1, [mine, theirs] if leads else [theirs, mine], broadcast=broadcast
                )
            try:
                # Whoever waited here before the other one has started would keep a simulation from starting it.
                line.send(Meeting("", 1))
                line.receive(Meeting)
                good = running.wait()
                line.send(Finished(int(good)))
                both = bool(line.receive(Finished).good) and good
            finally:
                running.close()
            if not both:
                raise ProtocolError(
                    f"The side processes of {me} and {line.peer} should have found their common ids, but "
                    f"{line.peer if good else me}'s failed: {_last_words(folder / 'log')}. Check that both can reach "
                    "each other at the addresses under [align.addresses], or use engine = 'ecdh'."
                )
            self.own.progress(len(bucket))
            return _read(folder / "output.csv") if leads or broadcast else np.zeros((0, DIGEST_BYTES), np.uint8)


@dataclass
class FastLeader(StarLeader):
    """The party in the middle, with side processes."""

    process: SideProcess = field(default_factory=SideProcess)

    def match(self) -> list[Tree]:
        """Match key by key; returns what each left."""
        own = self.own
        matched = {line.peer: np.zeros(len(own.party.own_table), bool) for line in self.lines}
        kept = []
        for key, bucket in own.settled.rounds:
            kept.append(durable(own.party, bucket_step(key, bucket), partial(self._pair, key, matched)))
            for peer in matched:
                matched[peer][kept[-1][peer]["rows"]] = True
        return kept

    def _pair(self, key: int, matched: dict[str, npt.NDArray[np.bool_]]) -> Tree:
        own, bucket = self.own, self.own.bucket(key, 0)
        used = np.full(len(bucket), self.settings.join == "left")
        tree: Tree = {}
        for line in self.lines:
            left = bucket.without(matched[line.peer])
            digests = _Pairs(own, self.settings, self.process).common(line, left, leads=True)
            rows, places = _rows(digests, left, line.peer), np.arange(len(digests))
            used |= np.isin(bucket.rows, rows)
            tree[line.peer] = {
                "rows": rows,
                "mine": places + own.settled.offset(own.party.name, key, 0),
                "theirs": places,
                "begin": own.settled.offset(line.peer, key, 0),
                "values": digests,
            }
        tree["own"] = {"rows": bucket.rows[used], "tags": own.tags(bucket.digests[used])}
        return tree | ({"own": tree["own"] | self.copies(bucket, used)} if self.settings.duplicates == "all" else {})


@dataclass
class FastFollower(StarFollower):
    """A party at the end of a ray, with a side process."""

    process: SideProcess = field(default_factory=SideProcess)

    def match(self) -> list[Tree]:
        """Take part in the matching, key by key; returns what each left."""
        own = self.own
        matched = np.zeros(len(own.party.own_table), bool)
        kept = []
        for key, bucket in own.settled.rounds:
            kept.append(durable(own.party, bucket_step(key, bucket), partial(self._pair, key, matched)))
            matched[kept[-1]["rows"][kept[-1]["places"]]] = True
        return kept

    def _pair(self, key: int, matched: npt.NDArray[np.bool_]) -> Tree:
        own, settled, leader = self.own, self.own.settled, self.leader
        bucket = own.bucket(key, 0).without(matched)
        digests = _Pairs(own, self.settings, self.process).common(leader, bucket, leads=False)
        found = _rows(digests, bucket, leader.peer)
        # As long as the lists of the built-in engine are, so that places mean the same.
        rows = np.full(settled.slots(own.party.name, key), -1)
        values = np.zeros((settled.slots(leader.peer, key), DIGEST_BYTES), np.uint8)
        rows[: len(found)], values[: len(found)] = found, digests
        tree = {"rows": rows, "values": values, "places": np.arange(len(found))}
        return tree | (self.copies(bucket) if self.settings.duplicates == "all" else {})


@contextmanager
def _meeting(line: Channel, address: str | None) -> Iterator[tuple[str, str]]:
    """Tell each other where the side processes listen; the own port is held until the block ends."""
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if address is None:
            held.bind(("127.0.0.1", 0))
        mine = address or f"127.0.0.1:{held.getsockname()[1]}"
        line.send(Meeting(mine, 0))
        theirs = line.receive(Meeting).address
    yield mine, theirs


def _rows(digests: Digests, bucket: Bucket, peer: str) -> npt.NDArray[np.int64]:
    """The own rows of common digests."""
    found = positions(digests, bucket.digests)
    if (found < 0).any() or len(np.unique(found)) != len(found):
        raise ProtocolError(
            f"The side process should name ids that this party and {peer} have, each once, but named others. Use "
            "engine = 'ecdh'."
        )
    return bucket.rows[found]


def _write(path: Path, digests: Digests) -> None:
    written = np.full((len(digests), _HEX_BYTES + 1), ord("\n"), np.uint8)
    hexed = hexlify(np.ascontiguousarray(digests).tobytes())
    written[:, :_HEX_BYTES] = np.frombuffer(hexed, np.uint8).reshape(-1, _HEX_BYTES)
    with explained(f"write {path}"):
        path.write_bytes(b"id\n" + written.tobytes())


def _read(path: Path) -> Digests:
    with explained(f"read {path}"):
        lines = path.read_bytes().split(b"\n")[1:]
    return np.frombuffer(unhexlify(b"".join(lines)), np.uint8).reshape(-1, DIGEST_BYTES)


def _last_words(log: Path) -> str:
    lines = [line for line in log.read_text(errors="replace").splitlines() if "rror" in line or "imeout" in line]
    return lines[-1][:200] if lines else "it said nothing about why"


@cache
def _self_test(interpreter: Path) -> None:
    """Let two side processes intersect two small lists, before they are trusted with large ones."""
    lists = (np.arange(60), np.arange(20, 90))
    with tempfile.TemporaryDirectory(prefix="colonnade-") as name, socket.socket() as one, socket.socket() as other:
        for held in (one, other):
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            held.bind(("127.0.0.1", 0))
        parties = [(str(rank), f"127.0.0.1:{held.getsockname()[1]}") for rank, held in enumerate((one, other))]
        one.close()
        other.close()
        started: list[Running] = []
        found: list[Any] = []
        try:
            for rank, numbers in enumerate(lists):
                folder = Path(name) / str(rank)
                folder.mkdir()
                _write(folder / "input.csv", _numbered(numbers))
                started.append(Running(interpreter, folder, rank, parties, broadcast=True, timeout_s=30))
            for rank, good in enumerate([running.wait() for running in started]):
                found.append(_read(Path(name) / str(rank) / "output.csv") if good else None)
            words = "" if all(each is not None for each in found) else _last_words(Path(name) / "0" / "log")
        finally:
            for running in started:
                running.close()
    wanted = {each.tobytes() for each in _numbered(np.arange(20, 60))}
    right = all(each is not None and {value.tobytes() for value in each} == wanted for each in found)
    if not right or not np.array_equal(found[0], found[1]):
        raise PlanError(
            f"The engine rr22 should find the common ids of two small lists with {interpreter}, but does not"
            f"{f': {words}' if words else ''}. Install spu {rr22_process.VERSION} there, or use engine = 'ecdh'."
        )


def _numbered(numbers: npt.NDArray[np.int64]) -> Digests:
    digests = np.zeros((len(numbers), DIGEST_BYTES), np.uint8)
    digests[:, 0] = numbers
    return digests
