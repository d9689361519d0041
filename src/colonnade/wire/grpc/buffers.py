"""Buffers: memory for frames that come in pieces, used again once nobody holds the frame that was in it.

Fresh memory costs more time than copying a frame into it, because the system clears it page by page. In
`benchmarks/transport.py` transfers take at least 1.6 times as long without the pool (three runs each).
"""

from __future__ import annotations

import sys

import numpy as np
from numpy.typing import NDArray

from colonnade.wire.codec import Frame
from colonnade.wire.grpc.envelope import CHUNK_BYTES

POOLED_BYTES = 64 * CHUNK_BYTES


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
    """A frame, some pieces of which are still to come.

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
