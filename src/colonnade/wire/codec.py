"""Codec: message <-> frame.

A frame holds a message's kind and fields, nothing else:

    b"CLN1" | u32 length of metadata | metadata | buffer | buffer ...       each buffer starts on a multiple of 16
    metadata = msgpack [kind, {field: value}]                               an array's value is [dtype, shape]

Buffers are raw and little-endian, in the order of the fields, so a message has exactly one encoding and decoding copies
nothing. Every length is checked against the frame before an array is made.
"""

from __future__ import annotations

import struct
from dataclasses import MISSING, fields
from typing import Any, TypeAlias, TypeVar

import msgpack
import numpy as np
from numpy.typing import NDArray

from colonnade.errors import BadFrame, ProtocolError, WrongMessage
from colonnade.wire.message import Ciphertexts, Message, Shape, shapes

M = TypeVar("M", bound=Message)

Frame: TypeAlias = bytes | memoryview
"""An encoded message, which nobody changes any more."""

MAGIC = b"CLN1"
MAX_METADATA = 64 * 1024
MAX_DIMENSIONS = 8
_HEAD = struct.Struct("<4sI")
_ALIGNMENT = 16
_LARGEST = 2**62
_PADDING = bytes(_ALIGNMENT)


def encode(message: Message) -> bytes:
    """The frame of a message."""
    buffers: list[NDArray[Any]] = []
    values: dict[str, Any] = {}
    for name, shape in shapes(type(message)).items():
        value, where = getattr(message, name), f"{message.kind}.{name}"
        if shape.many:
            if not isinstance(value, list):
                raise _unfit(where, "a list", value)
            values[name] = [_pack(item, shape, where, buffers) for item in value]
        else:
            values[name] = _pack(value, shape, where, buffers)
    metadata: bytes = msgpack.packb([message.kind, values])
    if len(metadata) > MAX_METADATA:
        raise ProtocolError(
            f"{message.kind} has {len(metadata)} bytes of metadata but a frame allows {MAX_METADATA}. "
            "Put long lists into an array field."
        )
    parts: list[Any] = [_HEAD.pack(MAGIC, len(metadata)), metadata]
    length = _HEAD.size + len(metadata)
    for buffer in buffers:
        padding = -length % _ALIGNMENT
        parts += (bytes(padding), buffer.data if buffer.size else b"")
        length += padding + buffer.nbytes
    return b"".join(parts)


def decode(frame: Frame, expected: type[M], *, peer: str = "a peer") -> M:
    """The message of a frame, its arrays being read-only views of the frame.

    Raises:
        WrongMessage: The frame holds a message of another kind.
        BadFrame: The frame is truncated, oversized or lies about its contents.
    """
    kind, values, start = _open(frame, peer)
    if kind != expected.kind:
        known = "" if kind in Message.kinds else ", a kind this version does not know"
        raise WrongMessage(
            f"Expected {expected.kind} from {peer}, got {kind[:64]!r}{known}. "
            "Check that all parties run the same plan and version."
        )
    reader = _Reader(frame, start, f"{kind} from {peer}")
    found = {}
    for name, shape in shapes(expected).items():
        if name not in values:
            if not _has_default(expected, name):
                raise reader.bad(f"field {name} is missing")
        elif not shape.many:
            found[name] = reader.take(values[name], shape, name)
        elif isinstance(values[name], list):
            found[name] = [reader.take(item, shape, name) for item in values[name]]
        else:
            raise reader.bad(f"field {name} should be a list")
    if len(found) != len(values):
        raise reader.bad(f"it has unknown fields {sorted(map(str, values.keys() - found.keys()))[:3]}")
    if reader.position != len(frame):
        raise reader.bad(f"{len(frame) - reader.position} bytes follow its last field")
    return expected(**found)


def _open(frame: Frame, peer: str) -> tuple[str, dict[Any, Any], int]:
    size = len(frame)
    if size < _HEAD.size:
        raise BadFrame(f"A frame from {peer} should have a head of {_HEAD.size} bytes, got {size}. The peer broke off.")
    magic, length = _HEAD.unpack_from(frame)
    if magic != MAGIC:
        raise BadFrame(f"A frame from {peer} should start with {MAGIC!r}. The peer speaks something else.")
    if length > MAX_METADATA or _HEAD.size + length > size:
        raise BadFrame(
            f"A frame from {peer} claims {length} bytes of metadata in {size} bytes; {MAX_METADATA} are allowed. "
            "The frame is truncated or the peer is faulty."
        )
    start = _HEAD.size + length
    try:
        metadata = msgpack.unpackb(frame[_HEAD.size : start], strict_map_key=True)
    except (ValueError, msgpack.UnpackException) as error:
        raise BadFrame(f"A frame from {peer} has metadata that is not msgpack. The peer is faulty.") from error
    if isinstance(metadata, list) and len(metadata) == 2:
        kind, values = metadata
        if isinstance(kind, str) and isinstance(values, dict):
            return kind, values, start
    raise BadFrame(f"A frame from {peer} should hold a kind and fields and does not. The peer is faulty.")


class _Reader:
    """Takes fields off a frame, one buffer after the other."""

    def __init__(self, frame: Frame, position: int, where: str) -> None:
        self.frame, self.position, self.where = frame, position, where

    def bad(self, reason: str) -> BadFrame:
        return BadFrame(f"{self.where} is not well formed: {reason}. Check that both parties run the same version.")

    def take(self, value: Any, shape: Shape, name: str) -> Any:
        if shape.base is np.ndarray:
            assert shape.dtype is not None
            return self._array(value, shape.dtype, name)
        if shape.base is Ciphertexts:
            match value:
                case [str(scheme), bytes(key), array]:
                    return Ciphertexts(scheme, key, self._array(array, np.dtype(np.uint64), name))
            raise self.bad(f"field {name} should hold ciphertexts")
        if type(value) is not shape.base:
            raise self.bad(f"field {name} should be {shape.base.__name__}")
        return value

    def _array(self, value: Any, dtype: np.dtype[Any], name: str) -> NDArray[Any]:
        if type(value) is not list or len(value) != 2 or type(value[1]) is not list or len(value[1]) > MAX_DIMENSIONS:
            raise self.bad(f"field {name} should be an array")
        given, dimensions = value
        if given != dtype.str:
            raise self.bad(f"field {name} should have dtype {dtype.str}")
        count, bytes_if_full = 1, dtype.itemsize
        for n in dimensions:
            if type(n) is not int or n < 0:
                raise self.bad(f"field {name} has an impossible shape")
            count *= n
            bytes_if_full *= n or 1
        if bytes_if_full > _LARGEST:
            raise self.bad(f"field {name} has an impossible shape")
        begin = self.position + -self.position % _ALIGNMENT
        end = begin + count * dtype.itemsize
        if end > len(self.frame):
            raise self.bad(f"field {name} claims more bytes than the frame holds")
        if self.frame[self.position : begin] != _PADDING[: begin - self.position]:
            raise self.bad(f"field {name} follows padding that is not zero")
        self.position = end
        if not count:
            return np.empty(dimensions, dtype)
        return np.frombuffer(self.frame, dtype, count, begin).reshape(dimensions)


def _has_default(message: type[Message], name: str) -> bool:
    """Whether a later version added the field, so that old frames may lack it."""
    (declared,) = (f for f in fields(message) if f.name == name)  # type: ignore[arg-type]
    return declared.default is not MISSING or declared.default_factory is not MISSING


def _pack(value: Any, shape: Shape, where: str, buffers: list[NDArray[Any]]) -> Any:
    if isinstance(value, np.generic):
        value = value.item()
    if shape.base is np.ndarray:
        return _pack_array(value, shape.dtype, where, buffers)
    if shape.base is Ciphertexts:
        if not isinstance(value, Ciphertexts):
            raise _unfit(where, "ciphertexts", value)
        return [value.scheme, value.key, _pack_array(value.data, np.dtype(np.uint64), where, buffers)]
    if not isinstance(value, shape.base) or isinstance(value, bool):
        raise _unfit(where, shape.base.__name__, value)
    if isinstance(value, int) and not -(2**63) <= value < 2**64:
        raise _unfit(where, "an integer of 64 bits", value)
    return value


def _pack_array(value: Any, dtype: np.dtype[Any] | None, where: str, buffers: list[NDArray[Any]]) -> Any:
    assert dtype is not None
    if not isinstance(value, np.ndarray) or value.dtype != dtype or value.ndim > MAX_DIMENSIONS:
        raise _unfit(where, f"a {dtype.name} array", value)
    buffers.append(np.ascontiguousarray(value, dtype.newbyteorder("<")))
    return [dtype.newbyteorder("<").str, list(value.shape)]


def _unfit(where: str, wanted: str, value: Any) -> ProtocolError:
    given = f"a {value.dtype.name} array" if isinstance(value, np.ndarray) else f"a {type(value).__name__}"
    return ProtocolError(f"{where} should be {wanted} but is {given}. Convert it before it is sent.")
