"""Notes: small messages between the runners of two parties, beside the frames of the protocol."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgpack

from colonnade.errors import BadFrame

MAX_NOTE_BYTES = 64 * 1024


def pack_note(note: Mapping[str, Any]) -> bytes:
    """The bytes of a note.

    >>> read_note(pack_note({"done": 1}), "note")
    {'done': 1}
    """
    packed: bytes = msgpack.packb(note)
    assert len(packed) <= MAX_NOTE_BYTES, "notes are small"
    return packed


def read_note(data: bytes | memoryview, what: str) -> dict[str, Any]:
    """The note in some bytes that a peer sent.

    Args:
        data: The bytes.
        what: What to call the note in an error.

    Raises:
        BadFrame: The bytes are not a note.
    """
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
