"""Link: one party's end of the traffic with one peer, whichever connection carries the traffic at the moment.

Frames and notes go out in one sequence and stay in the outbox until the peer has acknowledged them. After a cut they
are sent again, and the peer drops what arrives twice. A party holds back its acknowledgements while its protocol has
not taken what came before: that is the peer's credit.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, BinaryIO, NamedTuple

from colonnade.errors import BadFrame
from colonnade.storage import explained
from colonnade.wire.codec import Frame
from colonnade.wire.grpc.envelope import CHUNK_BYTES, HEAD_BYTES, LAST, BufferPool, Envelope, PartialFrame, Type
from colonnade.wire.transport import pack_note

WINDOW_BYTES = 16 * CHUNK_BYTES
OUTBOX_MEMORY_BYTES = 64 * CHUNK_BYTES
HEARTBEAT_S = 5.0


@dataclass(frozen=True)
class Patience:
    """How long a party waits, in seconds, before it gives up with a reason.

    Attributes:
        start: For all parties to come together at the beginning.
        rejoin: For a peer whose connection broke, or who crashed, to come back.
        silence: Without any sign of life before a connection counts as broken.
        message: For a message of a peer that is alive.
        heartbeat: Between two signs of life of this party while it has nothing else to send.
    """

    start: float = 600.0
    rejoin: float = 1800.0
    silence: float = 30.0
    message: float = 3600.0
    heartbeat: float = HEARTBEAT_S


class Gap(Exception):
    """Something is missing from the sequence: the connection must be cut and made again."""


class _Waiting(NamedTuple):
    """An envelope in the outbox; a payload that spilled to disk is None and lies at `offset`."""

    type: Type
    seq: int
    epoch: int
    total: int
    flags: int
    size: int
    payload: bytes | memoryview | None
    offset: int = 0


class Outbox:
    """Envelopes that the peer has not acknowledged; past a cap their payloads lie in a file."""

    def __init__(self, directory: Path | None, memory_bytes: int = OUTBOX_MEMORY_BYTES) -> None:
        self._directory, self._memory_bytes = directory, memory_bytes
        self._waiting: deque[_Waiting] = deque()
        self._spill: BinaryIO | None = None
        self._in_memory = 0
        self.seq = 0

    @property
    def empty(self) -> bool:
        """Whether everything was acknowledged."""
        return not self._waiting

    def add(self, type_: Type, epoch: int, payload: bytes | memoryview, total: int = 0, flags: int = 0) -> None:
        """Put one more envelope at the end."""
        size, offset = len(payload), 0
        kept: bytes | memoryview | None = payload
        # Where the disk is full, a control message still says so.
        if type_ is Type.DATA and self._in_memory + size > self._memory_bytes:
            with explained("spill unsent messages to disk"):
                if self._spill is None:
                    self._spill = tempfile.TemporaryFile(dir=self._directory)  # noqa: SIM115
                offset = self._spill.seek(0, 2)
                self._spill.write(payload)
            kept = None
        else:
            self._in_memory += size
        self.seq += 1
        self._waiting.append(_Waiting(type_, self.seq, epoch, total, flags, size, kept, offset))

    def drop_data_after(self, seq: int) -> None:
        """Drop the data behind a number; the notes behind it move up."""
        behind = []
        while self._waiting and self._waiting[-1].seq > seq:
            behind.append(self._waiting.pop())
        self.seq = min(self.seq, seq)
        for waiting in reversed(behind):
            if waiting.type is not Type.DATA:
                self.seq += 1
                self._waiting.append(waiting._replace(seq=self.seq))
            elif waiting.payload is not None:
                self._in_memory -= waiting.size

    def forget(self, upto: int) -> None:
        """Drop what the peer has acknowledged."""
        while self._waiting and self._waiting[0].seq <= upto:
            gone = self._waiting.popleft()
            if gone.payload is not None:
                self._in_memory -= gone.size
        if not self._waiting:
            self.close()

    def after(self, seq: int) -> _Waiting | None:
        """The first envelope behind a number that is not acknowledged yet, or None."""
        if not self._waiting:
            return None
        index = max(0, seq + 1 - self._waiting[0].seq)
        return self._waiting[index] if index < len(self._waiting) else None

    def load(self, waiting: _Waiting) -> bytes | memoryview:
        """The payload of an envelope, from memory or disk."""
        if waiting.payload is not None:
            return waiting.payload
        assert self._spill is not None
        with explained("read back unsent messages"):
            self._spill.seek(waiting.offset)
            return self._spill.read(waiting.size)

    def close(self) -> None:
        """Give the file back."""
        if self._spill is not None:
            self._spill.close()
            self._spill = None


class Wakeup:
    """Tells one thread to look again. A condition would cost every message two lock changes more.

    >>> wakeup = Wakeup()
    >>> wakeup.give()
    >>> wakeup.wait(0.0), wakeup.wait(0.0)
    (True, False)
    """

    def __init__(self) -> None:
        self._given: SimpleQueue[None] = SimpleQueue()

    def give(self) -> None:
        """Wake the thread that waits, or spare it its next wait."""
        if self._given.empty():
            self._given.put(None)

    def wait(self, seconds: float) -> bool:
        """Wait for the wakeup; returns whether it came."""
        try:
            self._given.get(timeout=seconds)
        except Empty:
            return False
        return True


@dataclass
class Connection:
    """One stream to a peer; a link has at most one at a time."""

    peer_received: int
    cancel: Callable[[], Any] = lambda: None
    closed: bool = False
    in_flight: deque[tuple[int, int]] = field(default_factory=deque)
    in_flight_bytes: int = 0
    unanswered_bytes: int = 0
    to_send: Wakeup = field(default_factory=Wakeup)


class Link:
    """One party's end of the traffic with one peer."""

    def __init__(
        self,
        peer: str,
        *,
        spill: Path | None = None,
        on_control: Callable[[str, bytes | None, dict[str, Any]], None],
        on_line: Callable[[str, bool], None] = lambda peer, is_there: None,
        heartbeat_s: float = HEARTBEAT_S,
    ) -> None:
        self.peer, self._on_control, self._heartbeat_s, self._spill = peer, on_control, heartbeat_s, spill
        self._on_line = on_line
        self.lock = threading.RLock()
        self.news = Wakeup()
        self.peer_incarnation: bytes | None = None
        self.heard_at = time.monotonic()
        self._connection: Connection | None = None
        self._outbox = Outbox(spill)
        self._first_epoch = 0
        self._pool = BufferPool()
        self.reset()

    def reset(self) -> None:
        """Begin both directions again: the peer is another process than before."""
        with self.lock:
            self._detach(self._connection)
        self._outbox.close()
        self._outbox = Outbox(self._spill)
        self._sent_upto = 0
        self.received = 0
        self._acknowledged = 0
        self._inbox: deque[tuple[int, Frame]] = deque()
        self._inbox_bytes = 0
        self._unacknowledged_bytes = 0
        self._answer_now = False
        self._partial: PartialFrame | None = None

    @property
    def connected(self) -> bool:
        """Whether a connection carries the link now."""
        return self._connection is not None

    def attach(self, peer_received: int, cancel: Callable[[], Any] = lambda: None) -> Connection:
        """Carry the link over a new connection, going on behind what the peer has received."""
        with self.lock:
            self._detach(self._connection)
            self._outbox.forget(peer_received)
            self._connection = Connection(peer_received, cancel)
            self.heard_at = time.monotonic()
            self.news.give()
            attached = self._connection
        self._on_line(self.peer, True)
        return attached

    def detach(self, connection: Connection) -> None:
        """Note that a connection has ended."""
        with self.lock:
            was_in_use = self._connection is connection
            self._detach(connection)
            self.news.give()
        if was_in_use:
            self._on_line(self.peer, False)

    def cut_if_silent(self, seconds: float) -> None:
        """End the connection if nothing came over it for a while."""
        with self.lock:
            connection = self._connection
            if connection is None or time.monotonic() - self.heard_at <= seconds:
                return
            self._detach(connection)
            self.news.give()
        # Not under the lock: gRPC's thread may hold the stream's own lock and wait for this one.
        connection.cancel()
        self._on_line(self.peer, False)

    def close(self) -> Connection | None:
        """End the connection once its stream has run out, and give back the file of what was never sent."""
        with self.lock:
            connection = self._connection
            self._detach(connection)
            self._outbox.close()
            self.news.give()
            return connection

    def _detach(self, connection: Connection | None) -> None:
        if connection is not None:
            connection.closed = True
            connection.to_send.give()
            if self._connection is connection:
                self._connection = None

    def put(self, frame: Frame, epoch: int) -> None:
        """Put a frame into the outbox, in pieces."""
        view, outbox = memoryview(frame), self._outbox
        for start in range(0, max(len(view), 1), CHUNK_BYTES):
            piece = view[start : start + CHUNK_BYTES]
            flags = LAST if start + CHUNK_BYTES >= len(view) else 0
            # Locked for each piece by itself: spilling to disk takes time, and gRPC's thread may want the lock.
            with self.lock:
                if self._outbox is not outbox:
                    return  # the peer is another process by now, which must not get the rest
                outbox.add(Type.DATA, epoch, piece, len(view), flags)
                self._send_on()

    def put_control(self, note: dict[str, Any]) -> None:
        """Put a note to the peer's runner into the outbox."""
        with self.lock:
            self._outbox.add(Type.CONTROL, 0, pack_note(note))
            self._send_on()

    def drop_unsent(self) -> None:
        """Drop the frames that no connection has carried yet, so that what is put next does not wait behind them."""
        with self.lock:
            self._outbox.drop_data_after(self._sent_upto)

    def take(self, epoch: int) -> Frame | None:
        """The next frame of an epoch, or None if there is none yet; frames of earlier epochs are dropped."""
        with self.lock:
            self.leave(epoch - 1)
            if not self._inbox or self._inbox[0][0] > epoch:
                return None
            return self._pop()

    def leave(self, epoch: int) -> None:
        """Drop the frames of an epoch and of those before it, whether they are here or still to come."""
        with self.lock:
            self._first_epoch = epoch + 1
            while self._inbox and self._inbox[0][0] <= epoch:
                self._pop()

    def _pop(self) -> Frame:
        frame = self._inbox.popleft()[1]
        self._inbox_bytes -= len(frame) + HEAD_BYTES
        if self._acknowledgement_due():
            self._send_on()
        return frame

    def _send_on(self) -> None:
        if self._connection is not None:
            self._connection.to_send.give()

    @property
    def sent(self) -> int:
        """How many envelopes were put into the outbox since the peer's process began."""
        return self._outbox.seq

    @property
    def drained(self) -> bool:
        """Whether the peer has acknowledged everything."""
        return self._outbox.empty

    def outgoing(self, connection: Connection) -> Iterator[bytes]:
        """The envelopes for a connection, until it is closed: data within the credit, acknowledgements, heartbeats."""
        next_after = connection.peer_received
        silent_since = time.monotonic()
        while True:
            with self.lock:
                if connection.closed:
                    break
                waiting = self._outbox.after(next_after)
                pause = silent_since + self._heartbeat_s - time.monotonic()
                has_credit = connection.in_flight_bytes < WINDOW_BYTES
                if waiting is not None and (has_credit or waiting.type is Type.CONTROL):
                    next_after = waiting.seq
                    self._sent_upto = max(self._sent_upto, next_after)
                    size = waiting.size + HEAD_BYTES
                    connection.in_flight.append((waiting.seq, size))
                    connection.in_flight_bytes += size
                    envelope = Envelope(
                        waiting.type,
                        waiting.epoch,
                        waiting.seq,
                        self._acknowledge(),
                        waiting.total,
                        waiting.flags,
                        self._outbox.load(waiting),
                    )
                elif self._acknowledgement_due():
                    envelope = Envelope(Type.ACK, ack=self._acknowledge())
                elif pause <= 0:
                    envelope = Envelope(Type.HEARTBEAT, ack=self._acknowledge(), total=next_after)
                else:
                    envelope = None
            if envelope is None:
                connection.to_send.wait(pause)
            else:
                yield envelope.pack()
                silent_since = time.monotonic()
        with self.lock:
            # The peer may wait for this acknowledgement before it leaves; a new connection would carry it by itself.
            due = self._answer_now and self._connection is None
            last = Envelope(Type.ACK, ack=self._acknowledge()) if due else None
        if last is not None:
            yield last.pack()

    def incoming(self, connection: Connection, envelope: Envelope) -> None:
        """Take in an envelope; raises `Gap` if something before it is missing."""
        note = None
        with self.lock:
            if connection.closed:
                return
            incarnation = self.peer_incarnation
            self.heard_at = time.monotonic()
            self._release_credit(connection, envelope.ack)
            if envelope.type is Type.HEARTBEAT and envelope.total > self.received:
                raise Gap
            if envelope.type in (Type.DATA, Type.CONTROL):
                if envelope.seq <= self.received:
                    return
                if envelope.seq != self.received + 1:
                    raise Gap
                self.received = envelope.seq
                size = len(envelope.payload) + HEAD_BYTES
                self._unacknowledged_bytes += size
                connection.unanswered_bytes += size
                # The last piece may have begun within the window; control messages may come behind it.
                beyond = CHUNK_BYTES + HEAD_BYTES if envelope.type is Type.DATA else 2 * CHUNK_BYTES
                if connection.unanswered_bytes > WINDOW_BYTES + beyond:
                    raise BadFrame(
                        f"{self.peer} sends on although {WINDOW_BYTES} bytes were not acknowledged. The peer is faulty."
                    )
                if envelope.type is Type.CONTROL:
                    note = envelope.note
                    self._answer_now = True
                else:
                    self._assemble(envelope)
            if envelope.type is not Type.DATA or envelope.flags & LAST:
                self.news.give()
            if self._acknowledgement_due():
                connection.to_send.give()
        if note is not None:
            self._on_control(self.peer, incarnation, note)

    def _assemble(self, envelope: Envelope) -> None:
        if self._partial is None or self._partial.epoch != envelope.epoch:
            self._partial = PartialFrame(envelope.epoch, envelope.total)
        partial = self._partial
        if envelope.total != partial.total or partial.size + len(envelope.payload) > partial.total:
            raise BadFrame(
                f"{self.peer} sent pieces that do not make up one frame of {partial.total} bytes. The peer is faulty."
            )
        partial.add(envelope.payload, self._pool)
        if envelope.flags & LAST:
            if partial.size != partial.total:
                raise BadFrame(
                    f"{self.peer} sent a frame of {partial.size} bytes but announced {partial.total}. "
                    "The peer is faulty."
                )
            self._partial = None
            if partial.epoch >= self._first_epoch:
                self._inbox.append((partial.epoch, partial.frame))
                self._inbox_bytes += partial.total + HEAD_BYTES

    def _acknowledgement_due(self) -> bool:
        much = self._unacknowledged_bytes >= WINDOW_BYTES // 2 and self._inbox_bytes < WINDOW_BYTES
        return self._answer_now or much

    def _acknowledge(self) -> int:
        """The number up to which the peer may count as received: all, unless too much lies here untaken."""
        self._answer_now = False
        if self._inbox_bytes < WINDOW_BYTES:
            self._acknowledged = self.received
            self._unacknowledged_bytes = 0
            if self._connection is not None:
                self._connection.unanswered_bytes = 0
        return self._acknowledged

    def _release_credit(self, connection: Connection, ack: int) -> None:
        if ack > self._outbox.seq:
            raise BadFrame(f"{self.peer} acknowledged what was never sent to it. The peer is faulty.")
        if connection.in_flight_bytes >= WINDOW_BYTES:
            connection.to_send.give()
        while connection.in_flight and connection.in_flight[0][0] <= ack:
            connection.in_flight_bytes -= connection.in_flight.popleft()[1]
        self._outbox.forget(ack)
