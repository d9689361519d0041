"""Parties in one process: the network that runs them one at a time, and its transport."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextvars import copy_context
from functools import partial
from typing import Protocol, TypeVar

from greenlet import getcurrent, greenlet

from colonnade.errors import ColonnadeError, Deadlock, PeerFailed, PlanError
from colonnade.wire.codec import Frame
from colonnade.wire.transport import Transport, peer_left

R = TypeVar("R")


class Turns(Protocol):
    """What is to be put in place when a party gets its turn, and put away when it yields."""

    def enter(self, name: str) -> None:
        """Called when a party goes on."""

    def leave(self, name: str) -> None:
        """Called when a party stops to wait or ends."""


class MemoryNetwork:
    """Parties of one process, of whom exactly one runs at a time, handing over where it waits.

    The order of turns follows from the messages alone, so a run is the same each time. All parties share one thread:
    handing over between threads moves the work from one processor to another, which took a tenth of a training.

    >>> network = MemoryNetwork(["bank", "shop"])
    >>> network.run({"bank": lambda line: line.receive("shop"), "shop": lambda line: line.send("bank", b"hello")})
    {'bank': b'hello', 'shop': None}
    """

    def __init__(self, names: Sequence[str], turns: Turns | None = None) -> None:
        self._names = tuple(names)
        self._turns = turns
        self._frames: dict[tuple[str, str], deque[Frame]] = {
            (sender, receiver): deque() for sender in names for receiver in names if sender != receiver
        }
        self._waits: dict[str, str] = {}
        self._left: set[str] = set()
        self._failures: dict[str, BaseException] = {}

    def run(self, sides: Mapping[str, Callable[[MemoryTransport], R]]) -> dict[str, R]:
        """Run every party's side to its end.

        Raises:
            Exception: What the first failing party raised, with a note saying which party that was.
        """
        results: dict[str, R] = {}
        self._runner = getcurrent()
        parties = {name: greenlet(partial(self._live, name, sides[name], results)) for name in self._names}
        for party in parties.values():
            party.gr_context = copy_context()
        turn = self._names[-1]
        while len(self._left) < len(self._names):
            # Where all wait for somebody who waits, the next in line raises when it looks again.
            turn = self._next_after(turn) or next(name for name in self._names if name not in self._left)
            if self._turns is not None:
                self._turns.enter(turn)
            parties[turn].switch()
            if self._turns is not None:
                self._turns.leave(turn)
        for name, error in self._failures.items():
            if isinstance(error, Exception):  # an interruption is nobody's doing
                error.add_note(f"This happened at {name}.")
            raise error
        return {name: results[name] for name in self._names}

    def _live(self, name: str, side: Callable[[MemoryTransport], R], results: dict[str, R]) -> None:
        try:
            results[name] = side(MemoryTransport(self, name))
        except BaseException as error:  # carried to the caller of run, first cause first
            self._failures.setdefault(name, error)
        self._left.add(name)

    def _send(self, sender: str, receiver: str, frame: Frame) -> None:
        self._stop_after_failure(sender)
        self._line(sender, receiver).append(frame)

    def _receive(self, receiver: str, sender: str) -> Frame:
        frames = self._line(sender, receiver)
        self._stop_after_failure(receiver)
        while not frames:
            if sender in self._left:
                raise peer_left(receiver, sender)
            self._waits[receiver] = sender
            if self._next_after(receiver) is None:
                raise Deadlock(
                    f"No party can go on: {', '.join(f'{a} waits for {b}' for a, b in sorted(self._waits.items()))}. "
                    "One of them must send before it receives."
                )
            self._runner.switch()
            del self._waits[receiver]
            self._stop_after_failure(receiver)
        return frames.popleft()

    def _stop_after_failure(self, name: str) -> None:
        if self._failures:
            failed, error = next(iter(self._failures.items()))
            words = str(error) if isinstance(error, ColonnadeError) else f"{type(error).__name__}: {error}"
            raise PeerFailed(f"{name} stops because {failed} failed: {words}")

    def _next_after(self, name: str) -> str | None:
        here = self._names.index(name)
        for other in self._names[here + 1 :] + self._names[: here + 1]:
            if other not in self._left and self._can_go_on(other):
                return other
        return None

    def _can_go_on(self, name: str) -> bool:
        awaited = self._waits.get(name)
        return awaited is None or bool(self._frames[awaited, name]) or awaited in self._left or bool(self._failures)

    def _line(self, sender: str, receiver: str) -> deque[Frame]:
        try:
            return self._frames[sender, receiver]
        except KeyError:
            raise PlanError(
                f"There is no line from {sender} to {receiver}; the parties of this run are {', '.join(self._names)}. "
                "Check the names in the roles."
            ) from None


class MemoryTransport(Transport):
    """One party's end of a `MemoryNetwork`."""

    def __init__(self, network: MemoryNetwork, name: str) -> None:
        self._network, self._name = network, name

    def send(self, peer: str, frame: Frame) -> None:
        self._network._send(self._name, peer, frame)

    def receive(self, peer: str) -> Frame:
        return self._network._receive(self._name, peer)
