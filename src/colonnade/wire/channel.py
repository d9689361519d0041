"""Channel: a typed, recorded line to one peer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import isfinite
from typing import TypeVar

import numpy as np

from colonnade.errors import BadFrame, ProtocolError
from colonnade.wire.codec import Frame, decode, encode
from colonnade.wire.message import Int64Array, Message
from colonnade.wire.recording.recording import Recording
from colonnade.wire.transport import Transport

M = TypeVar("M", bound=Message)


class Channel:
    """A typed, recorded line to one peer: above every transport, below every protocol.

    Args:
        peer: The peer.
        transport: What moves the frames.
        recording: Where every message is written down.
        on_arrival: Called after every frame that arrives, before the frame is read.
        hear: Called with the peer, each message that comes and its frame before the protocol sees the message; it may
            refuse the message.
    """

    def __init__(
        self,
        peer: str,
        transport: Transport,
        recording: Recording,
        *,
        on_arrival: Callable[[], None] = lambda: None,
        hear: Callable[[str, Message, Frame], None] = lambda peer, message, frame: None,
    ) -> None:
        self.peer = peer
        self._transport = transport
        self._recording = recording
        self._on_arrival = on_arrival
        self._hear = hear

    def send(
        self,
        message: Message,
        *,
        under: tuple[str, ...] = (),
        rows: Int64Array | None = None,
        epoch: int | None = None,
    ) -> None:
        """Send a message; returns once it is in the outbox.

        Args:
            message: What to send.
            under: The protections applied to it in this run, for the message ledger.
            rows: Which of this party's rows it is about; recorded, never sent.
            epoch: In which pass over the data; recorded, never sent.
        """
        frame = encode(message)
        self._require_rows(message, rows)
        self._recording.add(message, frame, sent=True, peer=self.peer, under=under, rows=rows, epoch=epoch)
        self._transport.send(self.peer, frame)

    def receive(
        self,
        expected: type[M],
        *,
        fields: Mapping[str, object] | None = None,
        shape: tuple[int, ...] | None = None,
        within: Mapping[str, tuple[float, float]] | None = None,
        finite: bool = False,
        rows: Int64Array | None = None,
        epoch: int | None = None,
    ) -> M:
        """Wait for the peer's next message, which must be what the protocol expects.

        Args:
            expected: The kind of message awaited.
            fields: Values that fields of the message must have, such as the step it belongs to.
            shape: The shape its array of one row per sample must have.
            within: The least and the largest value that a number may have, by field; NaN has none. Sizes that a peer
                chooses are bounded here, before anything of that size is made.
            finite: Refuse a message whose floating-point numbers or arrays hold NaN or infinity.
            rows: Which of this party's rows it is about.
            epoch: In which pass over the data.
        """
        frame = self._transport.receive(self.peer)
        self._on_arrival()
        message = decode(frame, expected, peer=self.peer)
        self._require_fields(message, fields or {})
        self._require_bounds(message, within or {})
        self._require_rows(message, rows, shape)
        if finite:
            self._require_finite(message, fields or {})
        self._recording.add(message, frame, sent=False, peer=self.peer, rows=rows, epoch=epoch)
        self._hear(self.peer, message, frame)
        return message

    def recorded_by(self, recording: Recording) -> Channel:
        """The same line with another recording."""
        return Channel(self.peer, self._transport, recording, on_arrival=self._on_arrival, hear=self._hear)

    def check(self) -> None:
        """Raise what keeps the run from going on; for a party that waits for something else than a message."""
        self._transport.check()

    def _require_fields(self, message: Message, fields: Mapping[str, object]) -> None:
        for name, wanted in fields.items():
            found = getattr(message, name)
            if found != wanted:
                raise ProtocolError(
                    f"Expected {message.kind} for {name} {wanted!r} from {self.peer}, got one for {name} {found!r}. "
                    "Check that both parties run the same plan."
                )

    def _require_bounds(self, message: Message, within: Mapping[str, tuple[float, float]]) -> None:
        for name, (least, largest) in within.items():
            found = getattr(message, name)
            if not least <= found <= largest:
                raise ProtocolError(
                    f"Expected {message.kind} with {name} from {least:g} to {largest:g} from {self.peer}, got one with "
                    f"{name} {found:g}. Check that both parties run the same version and plan."
                )

    def _require_finite(self, message: Message, fields: Mapping[str, object]) -> None:
        for value in vars(message).values():
            if not isinstance(value, float) and (not isinstance(value, np.ndarray) or value.dtype.kind != "f"):
                continue
            # A sum of squares is finite only if every term is, and takes a tenth of the time of a look at each. Squares
            # of finite numbers can still overflow.
            if not isfinite(np.vdot(value, value)) and not np.isfinite(value).all():
                at = "".join(f" for {name} {wanted!r}" for name, wanted in fields.items())
                raise ProtocolError(
                    f"{message.kind} from {self.peer}{at} holds numbers that are not finite. "
                    "Lower the learning rate, and check the peer's columns for extreme values."
                )

    def _require_rows(self, message: Message, rows: Int64Array | None, shape: tuple[int, ...] | None = None) -> None:
        """Refuse an array of one row per sample whose shape is not the expected one."""
        if message.per_row is None or (rows is None and shape is None):
            return
        found = getattr(message, message.per_row).shape
        wanted = (len(rows), *found[1:]) if shape is None and rows is not None else shape
        if found != wanted:
            raise BadFrame(
                f"Expected {message.kind} with {message.per_row} of shape {wanted} between here and {self.peer}, got "
                f"{found}. Check that both parties run the same plan on equally many rows."
            )

    def __repr__(self) -> str:
        """Name the peer, never the contents."""
        return f"Channel(to {self.peer})"
