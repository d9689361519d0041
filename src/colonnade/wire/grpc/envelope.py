"""Envelope: what a network transport puts around frames, so that cut connections lose and repeat nothing.

    b"CLE1" | u8 type | u8 flags | u16 zero | u64 epoch | u64 seq | u64 ack | u64 total | payload of at most 1 MiB

`epoch` counts the times a run was taken up; `seq` counts data and control envelopes of one direction; `ack` is the last
one received the other way; `total` is the length of the whole frame; the payload is one piece of the frame.

Frames that come in pieces are put together in memory that is used again once nobody holds the frame that was in it.
Fresh memory costs more time than copying a frame into it, because the system clears it page by page. In
`benchmarks/transport.py` transfers take at least 1.6 times as long without the pool (three runs each).
"""

from __future__ import annotations

import struct
import sys
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from colonnade.errors import BadFrame
from colonnade.wire.codec import Frame
from colonnade.wire.transport import MAX_NOTE_BYTES, read_note

CHUNK_BYTES = 1024 * 1024
MAX_FRAME_BYTES = 4 * 1024**3
POOLED_BYTES = 64 * CHUNK_BYTES
_HEAD = struct.Struct("<4sBBHQQQQ")
_MAGIC = b"CLE1"
HEAD_BYTES = _HEAD.size


class Type(IntEnum):
    """What an envelope is for."""

    HELLO = 1
    DATA = 2
    CONTROL = 3
    ACK = 4
    HEARTBEAT = 5
    REFUSAL = 6


LAST = 1
"""Flag of the last piece of a frame."""

_TYPES = {int(type_): type_ for type_ in Type}
_SEQUENCED = (Type.DATA, Type.CONTROL)


class Envelope(NamedTuple):
    """One piece of traffic between two parties.

    >>> Envelope.unpack(Envelope(Type.DATA, epoch=1, seq=7, total=5, flags=LAST, payload=b"hello").pack()).seq
    7
    """

    type: Type
    epoch: int = 0
    seq: int = 0
    ack: int = 0
    total: int = 0
    flags: int = 0
    payload: bytes | memoryview = b""

    def pack(self) -> bytes:
        """The envelope's bytes."""
        head = _HEAD.pack(_MAGIC, self.type, self.flags, 0, self.epoch, self.seq, self.ack, self.total)
        return b"".join((head, self.payload))

    @classmethod
    def unpack(cls, data: bytes) -> Envelope:
        """The envelope in some bytes, whose every length is checked."""
        if len(data) < _HEAD.size or not data.startswith(_MAGIC):
            raise BadFrame(
                f"Expected an envelope from a peer, got {len(data)} other bytes. The peer speaks something else."
            )
        _, number, flags, zero, epoch, seq, ack, total = _HEAD.unpack_from(data)
        payload = memoryview(data)[_HEAD.size :]
        type_ = _TYPES.get(number)
        if type_ is None:
            raise BadFrame(f"A peer sent an envelope of unknown type {number}. It runs another version.")
        limit = CHUNK_BYTES if type_ is Type.DATA else MAX_NOTE_BYTES
        if len(payload) > limit or flags > LAST or zero or (type_ in _SEQUENCED and not seq):
            raise BadFrame(
                f"A peer sent a {type_.name.lower()} envelope of {len(payload)} bytes that is not well formed; at most "
                f"{limit} are allowed. The peer is faulty."
            )
        if type_ is Type.DATA and not len(payload) <= total <= MAX_FRAME_BYTES:
            raise BadFrame(
                f"A peer announced a frame of {total} bytes in a piece of {len(payload)}; at most {MAX_FRAME_BYTES} "
                "are allowed. The peer is faulty, or the message should be sent in parts."
            )
        return cls(type_, epoch, seq, ack, total, flags, payload)

    @property
    def note(self) -> dict[str, Any]:
        """The note inside an envelope that is not data."""
        return read_note(self.payload, self.type.name.lower())


class BufferPool:
    """At most one buffer of `POOLED_BYTES`, handed out again when no frame refers to it; larger ones are not kept.

    >>> pool = BufferPool()
    >>> frame = pool.take(3).data
    >>> pool.take(3) is frame.obj
    False
    """

    def __init__(self) -> None:
        self._last: NDArray[np.uint8] | None = None

    def take(self, size: int) -> NDArray[np.uint8]:
        """A buffer of at least this size."""
        last, self._last = self._last, None
        # Every view of a frame holds a reference to its buffer.
        if last is None or len(last) < size or sys.getrefcount(last) > _UNUSED:
            last = np.empty(max(size, POOLED_BYTES), np.uint8)
        if len(last) == POOLED_BYTES:
            self._last = last
        return last


def _references_to_unused() -> int:
    """What the interpreter counts for a buffer that only one local variable holds; this differs between versions."""
    last = np.empty(0, np.uint8)
    return sys.getrefcount(last)


_UNUSED = _references_to_unused()


class PartialFrame:
    """A frame that lacks some of its pieces.

    The buffer grows with what has come, not with what was announced. A frame in one piece is not copied.
    """

    def __init__(self, epoch: int, total: int) -> None:
        self.epoch, self.total, self.size = epoch, total, 0
        self.frame: Frame = b""
        self._buffer: NDArray[np.uint8] | None = None

    def add(self, piece: bytes | memoryview, pool: BufferPool) -> None:
        """Take in one more piece, which must not be longer than what is missing."""
        before, self.size = self.size, self.size + len(piece)
        if before == 0:
            self.frame = piece
            return
        if self._buffer is None or self.size > len(self._buffer):
            buffer = pool.take(min(self.total, 2 * self.size))
            buffer[:before] = np.frombuffer(self.frame, np.uint8)
            self._buffer = buffer
        self._buffer[before : self.size] = np.frombuffer(piece, np.uint8)
        self.frame = self._buffer.data[: self.size].toreadonly()
