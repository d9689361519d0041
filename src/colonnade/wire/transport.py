"""Transports move frames between parties, and take a party through a run: it meets its peers, ends or fails with them.

`RunByFrames` does so over any `Transport`:

    every party                    every other party
         hello ⇄ hello                                 what must be equal, and the checkpoints held
         frames, holds ⇄                               the protocol; the number of each new checkpoint
         done ⇄ done, or failed ─▶                     all have come to the end, and write that down
         left ⇄ left                                   nobody leaves before all have written it down

A party that crashes ends the run of all; they resume from the newest common checkpoint when all start again.
`GrpcTransport` can do more: there the others wait for a party that crashed.

Every party says which checkpoints it holds. A run is known by the folders its parties keep it in, whose names follow
from what the parties bring: with a party that has a new folder or another table, all parties begin another run and draw
their randomness again. So two runs of one plan, whose checkpoints have equal numbers, are told apart.
"""

from __future__ import annotations

import re
import socket
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgpack

from colonnade.errors import (
    AuthError,
    BadFrame,
    ColonnadeError,
    EngineError,
    PeerFailed,
    PeerLeft,
    PlanError,
    ProtocolError,
    VersionMismatch,
    WireError,
)
from colonnade.wire.codec import Frame

if TYPE_CHECKING:
    from colonnade.wire.certs.credentials import Identity

NAME_BYTES = 16
MAX_NOTE_BYTES = 64 * 1024
_FRAME, _NOTE = b"\x00", b"\x01"
_LONGEST_WORDS, _LONGEST_PLACE = 2000, 100
_FOLDERS = re.compile(r"(?<![\w.:/\\])(?:[A-Za-z]:)?[/\\](?:[^\s'\"/\\]+[/\\])+")


class Transport(ABC):
    """Moves frames between this party and its peers: in order, exactly once, or raises.

    Attributes:
        insecure: Whether others could read or change frames on their way; a transport that protects them says False.
    """

    insecure: bool = True

    @abstractmethod
    def send(self, peer: str, frame: Frame) -> None:
        """Put a frame into the outbox; never waits for the peer's code."""

    @abstractmethod
    def receive(self, peer: str) -> Frame:
        """Wait for the next frame from one named peer."""

    def check(self) -> None:
        """Raise what keeps the run from going on, if there is anything of the kind."""
        return

    def close(self) -> None:
        """Give back what the transport holds, once the peers have what was sent or are gone."""
        return


class HeldCheckpoint(NamedTuple):
    """What a party holds when it meets the others.

    Attributes:
        newest: The number of its newest checkpoint, 0 if it has none.
        folder: The name of its folder, which follows from a number drawn when the folder was made and from its table.
        run: The name of the run its checkpoints belong to; empty if it has none.
    """

    newest: int
    folder: bytes
    run: bytes = b""


class EpochStart(NamedTuple):
    """How all parties go on.

    Attributes:
        epoch: Counts the meetings; frames of earlier epochs are dropped.
        common: The checkpoint that all go on from, 0 to begin at the beginning.
        run: The name of the run that all go on with.
    """

    epoch: int
    common: int
    run: bytes


class RunTransport(Transport):
    """A transport that takes one party through one run.

    Attributes:
        agreement: What is equal at all parties, by name; a party without rows learns theirs from the others.
    """

    agreement: dict[str, str]

    @property
    @abstractmethod
    def epoch(self) -> int:
        """How often all parties have met."""

    @abstractmethod
    def bind(
        self, name: str, parties: Sequence[str], agreement: Mapping[str, str], *, spill: Path | None = None
    ) -> None:
        """Take one party's side of a run; nothing is sent yet.

        Args:
            name: This party.
            parties: All parties, in the order of the roles.
            agreement: What must be equal at all parties, by name: plan, rows, version.
            spill: A folder for messages that wait for a slow peer.
        """

    @abstractmethod
    def open(self, on_settled: Callable[[int], None] = lambda number: None) -> None:
        """Listen and dial; returns at once. `on_settled` is called with the number of a checkpoint that all hold."""

    @abstractmethod
    def meet(self, held: HeldCheckpoint) -> EpochStart:
        """Wait until all parties are here; returns how all go on.

        Raises:
            AuthError: Some party goes on with another run, or does not agree.
        """

    @abstractmethod
    def checkpointed(self, number: int) -> None:
        """Tell the others that this party holds a checkpoint, so that older ones can be deleted."""

    @abstractmethod
    def finish(self, on_end: Callable[[], None] = lambda: None) -> None:
        """Wait until all parties have come to the end.

        Args:
            on_end: Called once every party has finished, before any of them may leave.
        """

    @abstractmethod
    def fail(self, error: BaseException, *, at: str = "") -> None:
        """Tell all peers why this party stops, and where in the protocol."""

    @property
    @abstractmethod
    def peers(self) -> tuple[str, ...]:
        """The parties this one exchanges frames with."""

    def identity(self, peer: str) -> Identity | None:
        """Whom the certificate names that a peer showed on the run's own connection; None if there is none."""
        return None


class RunByFrames(RunTransport):
    """A run over a transport that only moves frames."""

    def __init__(self, frames: Transport) -> None:
        self.insecure = frames.insecure
        self._frames = frames

    def bind(
        self, name: str, parties: Sequence[str], agreement: Mapping[str, str], *, spill: Path | None = None
    ) -> None:
        self.name, self._epoch, self.agreement = name, 0, dict(agreement)
        self._peers = tuple(peer for peer in parties if peer != name)
        self._checkpoints = dict.fromkeys(parties, 0)
        self._done: set[str] = set()
        self._left: set[str] = set()
        self._failure: PeerFailed | None = None

    def open(self, on_settled: Callable[[int], None] = lambda number: None) -> None:
        self._on_settled = on_settled

    @property
    def epoch(self) -> int:
        return self._epoch

    @property
    def peers(self) -> tuple[str, ...]:
        return self._peers

    def send(self, peer: str, frame: Frame) -> None:
        self._require_peer(peer)
        self.check()
        self._frames.send(peer, b"".join((_FRAME, frame)))

    def receive(self, peer: str) -> Frame:
        self._require_peer(peer)
        self.check()
        while peer not in self._done:
            came = self._next(peer)
            if not isinstance(came, dict):
                return came
            self._heed(peer, came)
        raise peer_left(self.name, peer)

    def check(self) -> None:
        if self._failure is not None:
            raise self._failure
        self._frames.check()

    def meet(self, held: HeldCheckpoint) -> EpochStart:
        for peer in self._peers:
            self._say(peer, {"hello": self.agreement, "held": list(held)})
        all_held = {self.name: held}
        for peer in self._peers:
            match self._next(peer):
                case {"hello": dict(theirs), "held": [int(newest), bytes(folder), bytes(run)]} if (
                    newest >= 0 and len(folder) == NAME_BYTES
                ):
                    agree(self.name, self.agreement, peer, theirs)
                    all_held[peer] = HeldCheckpoint(newest, folder, run)
                case {"failed": str(words), "at": str(at)}:
                    raise peer_failed(peer, words, at)
                case _:
                    raise ProtocolError(f"{peer} should greet {self.name} first and did not. It runs something else.")
        self._epoch += 1
        return next_start(self._epoch, all_held)

    def checkpointed(self, number: int) -> None:
        for peer in self._peers:
            self._say(peer, {"holds": number})
        self._hold(self.name, number)

    def finish(self, on_end: Callable[[], None] = lambda: None) -> None:
        self.check()
        self._exchange("done", self._done)
        on_end()
        # A party that leaves erases what a run resumes from.
        self._exchange("left", self._left)

    def fail(self, error: BaseException, *, at: str = "") -> None:
        for peer in self._peers:
            with suppress(WireError):  # a peer that is gone need not be told
                self._say(peer, failure_note(error, at))

    def close(self) -> None:
        self._frames.close()

    def _exchange(self, note: str, heard: set[str]) -> None:
        """Tell all peers something, and wait until all have told it."""
        for peer in self._peers:
            self._say(peer, {note: self._epoch})
        for peer in self._peers:
            while peer not in heard:
                # A frame that the protocol never asked for is dropped.
                if isinstance(came := self._next(peer), dict):
                    self._heed(peer, came)

    def _say(self, peer: str, note: dict[str, Any]) -> None:
        self._frames.send(peer, _NOTE + pack_note(note))

    def _next(self, peer: str) -> Frame | dict[str, Any]:
        """The next frame of the protocol, or the next note."""
        data = memoryview(self._frames.receive(peer))
        if data[:1] == _NOTE:
            return read_note(data[1:], "note")
        if data[:1] != _FRAME:
            raise BadFrame(
                f"{peer} sent what is neither a frame nor a note. The transport changed it, or {peer} is faulty."
            )
        return data[1:]

    def _heed(self, peer: str, note: dict[str, Any]) -> None:
        match note:
            case {"holds": int(number)}:
                self._hold(peer, number)
            case {"done": int()}:
                self._done.add(peer)
            case {"left": int()}:
                self._left.add(peer)
            case {"failed": str(words), "at": str(at)}:
                self._failure = peer_failed(peer, words, at)
                raise self._failure
            case _:
                raise ProtocolError(f"{peer} sent a note that this version does not know.")

    def _require_peer(self, peer: str) -> None:
        if peer not in self._peers:
            raise PlanError(
                f"There is no line from {self.name} to {peer}; its peers are {', '.join(self._peers)}. "
                "Check the names in the roles."
            )

    def _hold(self, party: str, number: int) -> None:
        self._checkpoints[party] = number
        self._on_settled(min(self._checkpoints.values()))


def next_start(epoch: int, held: Mapping[str, HeldCheckpoint]) -> EpochStart:
    """How all parties go on, from what each of them holds.

    Raises:
        AuthError: Some hold checkpoints of different runs, and neither run is the run of all their folders.

    >>> next_start(1, {"bank": HeldCheckpoint(7, b"a", b"another run"), "shop": HeldCheckpoint(0, b"b")}).common
    0
    """
    run = sha256(b"".join(held[name].folder for name in sorted(held))).digest()[:NAME_BYTES]
    holders: dict[bytes, str] = {}
    for name, each in held.items():
        if each.newest:
            holders.setdefault(each.run, name)
    # If a party was killed before it heard of the new run, others hold checkpoints of the new run already.
    if len(holders) > 1 and run not in holders:
        first, second, *_ = holders.values()
        raise AuthError(
            f"{first} and {second} go on with different runs of the same plan. Give both their side of one run, or "
            "delete one side to start again."
        )
    common = min(each.newest for each in held.values()) if set(holders) == {run} else 0
    return EpochStart(epoch, common, run)


def agree(own: str, mine: dict[str, str], peer: str, theirs: Mapping[str, Any]) -> None:
    """Require that a peer agrees with this party, and take the peer's rows over if this party has none."""
    for key, value in mine.items():
        if theirs.get(key) != value and not (key == "rows" and theirs.get(key) is None):
            raise _disagreement(key, own, value, peer, theirs.get(key))
    if isinstance(rows := theirs.get("rows"), str):
        mine.setdefault("rows", rows)


def _disagreement(key: str, own: str, mine: str, peer: str, theirs: Any) -> WireError:
    if key == "version":
        return VersionMismatch(
            f"{own} runs Colonnade {mine} and {peer} runs {theirs}. Install the same version at both."
        )
    if key == "protocol":
        return AuthError(f"{own} runs {mine} and {peer} runs {theirs}. Run the same command at both.")
    what = {"plan": "plans", "rows": "rows, or the same rows in another order", "alignment": "alignments"}.get(key, key)
    advice = {
        "plan": "Give both the same plan file.",
        "rows": "Align the tables first.",
        "alignment": "Name the folder of the same finished alignment under [align] at both, or of none.",
    }.get(key, "Make them equal.")
    return AuthError(f"{own} and {peer} have different {what}. {advice}")


def pack_note(note: Mapping[str, Any]) -> bytes:
    """The bytes of a note.

    >>> read_note(pack_note({"done": 1}), "note")
    {'done': 1}
    """
    packed: bytes = msgpack.packb(note)
    assert len(packed) <= MAX_NOTE_BYTES, "notes are small"
    return packed


def read_note(data: bytes | memoryview, what: str) -> dict[str, Any]:
    """The note in some bytes that a peer sent."""
    if len(data) > MAX_NOTE_BYTES:
        raise BadFrame(
            f"A peer's {what} has {len(data)} bytes; at most {MAX_NOTE_BYTES} are allowed. The peer is faulty."
        )
    try:
        note = msgpack.unpackb(data, strict_map_key=True)
    except (ValueError, msgpack.UnpackException) as error:
        raise BadFrame(f"A peer's {what} cannot be read. The peer is faulty.") from error
    if not isinstance(note, dict) or not all(isinstance(key, str) for key in note):
        raise BadFrame(f"A peer's {what} should hold named values. The peer is faulty.")
    return note


def peer_left(own: str, peer: str) -> PeerLeft:
    """What a party raises that waits for a peer that has finished."""
    return PeerLeft(
        f"{own} waits for a message from {peer}, but {peer} has finished. "
        "Check that both run the same protocol with the same settings."
    )


def failure_note(error: BaseException, at: str) -> dict[str, str]:
    """What a party tells the others when it fails: of an unforeseen error only the name, which holds no data.

    Of files it tells the names and not the folders.

    >>> failure_note(ColonnadeError("Expected numbers in /srv/clinic/shop.parquet."), "align")["failed"]
    'Expected numbers in shop.parquet.'
    """
    words = _FOLDERS.sub("", str(error)) if isinstance(error, ColonnadeError) else type(error).__name__
    if isinstance(error, KeyboardInterrupt):
        words = "its operator ended it."
    elif isinstance(error, EngineError):
        words = "its workers could not be reached, or were lost."  # where they are is nobody's business
    return {"failed": words[:_LONGEST_WORDS], "at": at}


def peer_failed(peer: str, words: str, at: str) -> PeerFailed:
    """What a party raises when a peer has failed."""
    where = f" at {at[:_LONGEST_PLACE]}" if at else ""
    return PeerFailed(f"{peer} stopped{where}: {words[:_LONGEST_WORDS]}")


def is_address(value: str) -> bool:
    """Whether this is a host and a port.

    >>> is_address("bank.example:7431"), is_address("[2001:db8::1]:7431"), is_address("bank.example")
    (True, True, False)
    """
    found = re.fullmatch(r"(?:\[[0-9A-Fa-f:.]+\]|[^\s:\[\]]+):(\d{1,5})", value)
    return found is not None and 0 < int(found[1]) < 2**16


def check_address(value: str, key: str) -> None:
    """Refuse what is not `host:port`."""
    if not is_address(value):
        raise PlanError(
            f"{key} should be a host and a port such as bank.example:7431 or [2001:db8::1]:7431, but is {value!r}. "
            "Correct it."
        )


def is_loopback(value: str) -> bool:
    """Whether an address is on this machine, whatever a name server says.

    >>> [is_loopback(f"{host}:7431") for host in ("127.0.0.1", "localhost", "[::1]", "bank")]
    [True, True, True, False]
    """
    host = value.rpartition(":")[0].strip("[]")
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def places_of(address: str) -> list[str]:
    """Where to listen for an address: `localhost` stands for this machine by IPv4 and, where there is one, by IPv6.

    A library that binds a name is content with one of its places. Another program on the other one would then be taken
    for this party by peers that dial there.

    >>> places_of("127.0.0.1:7431"), places_of("localhost:7431")[0]
    (['127.0.0.1:7431'], '127.0.0.1:7431')
    """
    host, _, port = address.rpartition(":")
    if host != "localhost":
        return [address]
    with suppress(OSError), socket.socket(socket.AF_INET6) as trial:
        trial.bind(("::1", 0))
        return [f"127.0.0.1:{port}", f"[::1]:{port}"]
    return [f"127.0.0.1:{port}"]


def require_loopback(addresses: Iterable[str | None]) -> None:
    """Refuse to send in the clear over anything but this machine."""
    for address in addresses:
        if address is not None and not is_loopback(address):
            raise PlanError(
                "A run without TLS needs addresses on this machine, such as 127.0.0.1:7431, but one of them is "
                f"{address!r}, where others could read and change everything. Leave out --insecure and give every "
                "party a certificate."
            )
