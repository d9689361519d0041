"""Transports that take a party through a whole run between machines: it meets its peers, and ends or fails with them.

`RunByFrames` does so over any `Transport`:

    every party                    every other party
         hello ⇄ hello                                 what must be equal, and the checkpoints held
         frames, holds ⇄                               the protocol; the number of each new checkpoint
         done ⇄ done, or failed ─▶                     all have come to the end, and write that down
         left ⇄ left                                   nobody leaves before all have written it down

A party that crashes ends the run of all; they resume from the newest common checkpoint when all start again.
`GrpcTransport` can do more: there the others wait for a party that crashed.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from colonnade.errors import BadFrame, ColonnadeError, PeerFailed, PlanError, ProtocolError, WireError
from colonnade.wire.codec import Frame
from colonnade.wire.epoch import NAME_BYTES, EpochStart, HeldCheckpoint, agree, next_start
from colonnade.wire.notes import pack_note, read_note
from colonnade.wire.transport import Transport, peer_left

if TYPE_CHECKING:
    from colonnade.wire.certs.credentials import Identity

_FRAME, _NOTE = b"\x00", b"\x01"
_LONGEST_WORDS, _LONGEST_PLACE = 2000, 100


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
        """Listen and dial; returns at once.

        Args:
            on_settled: Called with the number of a checkpoint that all parties hold.
        """

    @abstractmethod
    def meet(self, held: HeldCheckpoint) -> EpochStart:
        """Wait until all parties are here; returns how all go on.

        Args:
            held: Which checkpoints this party holds.

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


def failure_note(error: BaseException, at: str) -> dict[str, str]:
    """What a party tells the others when it fails: of an unforeseen error only the name, which holds no data."""
    words = str(error) if isinstance(error, ColonnadeError) else type(error).__name__
    if isinstance(error, KeyboardInterrupt):
        words = "its operator ended it."
    return {"failed": words[:_LONGEST_WORDS], "at": at}


def peer_failed(peer: str, words: str, at: str) -> PeerFailed:
    """What a party raises when a peer has failed."""
    where = f" at {at[:_LONGEST_PLACE]}" if at else ""
    return PeerFailed(f"{peer} stopped{where}: {words[:_LONGEST_WORDS]}")
