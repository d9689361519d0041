import contextlib
import struct
from dataclasses import dataclass

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from colonnade.errors import BadFrame, ProtocolError, WrongMessage
from colonnade.secret import Secret
from colonnade.wire.codec import MAX_METADATA, decode, encode
from colonnade.wire.message import Ciphertexts, Float32Array, Int64Array, Message, UInt8Array


@dataclass(frozen=True)
class Everything(Message, kind="test/everything", reveals={Secret.FEATURES}):
    number: int
    ratio: float
    text: str
    blob: bytes
    values: Float32Array
    rows: Int64Array
    flags: UInt8Array
    sealed: Ciphertexts
    names: list[str]
    parts: list[Float32Array]
    later: int = 7


@dataclass(frozen=True)
class Plain(Message, kind="test/plain"):
    values: Float32Array


def everything(values=None, **changed):
    fields = {
        "number": -3,
        "ratio": 0.25,
        "text": "naïve 银行",
        "blob": b"\x00\xff",
        "values": np.arange(6, dtype=np.float32).reshape(2, 3) if values is None else values,
        "rows": np.array([5, 1]),
        "flags": np.zeros(3, np.uint8),
        "sealed": Ciphertexts("scheme", b"key", np.arange(4, dtype=np.uint64)),
        "names": ["a", ""],
        "parts": [np.zeros(0, np.float32), np.ones((1, 2), np.float32)],
    }
    return Everything(**{**fields, **changed})


def equal(a, b):
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and a.shape == b.shape and np.array_equal(a, b, equal_nan=a.dtype.kind == "f")
    if isinstance(a, list):
        return len(a) == len(b) and all(map(equal, a, b))
    if isinstance(a, Ciphertexts):
        return (a.scheme, a.key) == (b.scheme, b.key) and equal(a.data, b.data)
    return a == b


def frame_of(kind, values, tail=b""):
    metadata = msgpack.packb([kind, values])
    head = b"CLN1" + struct.pack("<I", len(metadata)) + metadata
    return head + bytes(-len(head) % 16) * ("values" in values) + tail


def test_a_message_comes_back_as_it_was_sent():
    sent = everything()
    got = decode(encode(sent), Everything)
    assert all(equal(getattr(sent, name), getattr(got, name)) for name in vars(sent))


@given(
    hnp.arrays(np.float32, hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5)),
    st.integers(-(2**63), 2**64 - 1),
    st.text(),
    st.binary(),
)
def test_any_values_come_back_as_they_were_sent(values, number, text, blob):
    sent = everything(values, number=number, text=text, blob=blob)
    got = decode(encode(sent), Everything)
    assert equal(sent.values, got.values)
    assert (sent.number, sent.text, sent.blob) == (got.number, got.text, got.blob)


def test_an_array_that_is_not_contiguous_is_sent_in_its_logical_order():
    values = np.arange(12, dtype=np.float32).reshape(3, 4)[:, ::2]
    assert equal(decode(encode(Plain(values)), Plain).values, np.ascontiguousarray(values))


def test_decoding_copies_nothing_and_nothing_can_be_written():
    frame = encode(Plain(np.ones(4, np.float32)))
    values = decode(frame, Plain).values
    assert np.shares_memory(values, np.frombuffer(frame, np.uint8))
    with pytest.raises(ValueError, match="read-only"):
        values[0] = 2


def test_a_message_has_one_encoding():
    assert encode(everything()) == encode(everything())


def test_a_field_added_later_takes_its_default_in_an_old_frame():
    values = np.zeros(0, np.float32)
    metadata = {"values": ["<f4", [0]]}

    @dataclass(frozen=True)
    class Grown(Message, kind="test/grown"):
        values: Float32Array
        later: int = 9

    got = decode(frame_of("test/grown", metadata), Grown)
    assert (got.later, equal(got.values, values)) == (9, True)


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("values", np.zeros(2), "test/everything.values should be a float32 array but is a float64 array"),
        ("values", [1.0], "test/everything.values should be a float32 array but is a list"),
        ("number", 1.5, "test/everything.number should be int but is a float"),
        ("number", True, "test/everything.number should be int but is a bool"),
        ("number", 2**64, "test/everything.number should be an integer of 64 bits"),
        ("sealed", np.zeros(2, np.uint64), "test/everything.sealed should be ciphertexts but is a uint64 array"),
        ("names", "abc", "test/everything.names should be a list but is a str"),
        ("parts", [np.zeros(2)], "test/everything.parts should be a float32 array but is a float64 array"),
        ("text", "x" * MAX_METADATA, "bytes of metadata but a frame allows"),
    ],
)
def test_what_a_field_does_not_allow_is_refused_with_the_fields_name(field, value, words):
    with pytest.raises(ProtocolError, match=words.replace(".", r"\.")):
        encode(everything(**{field: value}))


def test_another_kind_names_both_sides():
    with pytest.raises(WrongMessage, match=r"Expected test/everything from shop, got 'test/plain'\. Check"):
        decode(encode(Plain(np.ones(1, np.float32))), Everything, peer="shop")


def test_an_unknown_kind_is_said_to_be_unknown():
    with pytest.raises(WrongMessage, match="got 'new/kind', a kind this version does not know"):
        decode(frame_of("new/kind", {}), Plain, peer="shop")


@pytest.mark.parametrize(
    ("frame", "words"),
    [
        (b"", "should have a head of 8 bytes, got 0"),
        (b"HTTP/1.1 400 Bad Request", "should start with b'CLN1'"),
        (b"CLN1\xff\xff\xff\xff", "claims 4294967295 bytes of metadata in 8 bytes"),
        (b"CLN1" + struct.pack("<I", MAX_METADATA + 1) + bytes(MAX_METADATA + 1), "claims 65537 bytes of metadata"),
        (b"CLN1\x01\x00\x00\x00\xc1", "metadata that is not msgpack"),
        (b"CLN1\x01\x00\x00\x00\x01", "should hold a kind and fields"),
        (frame_of("test/plain", {}), "field values is missing"),
        (frame_of("test/plain", {"values": 3}), "field values should be an array"),
        (frame_of("test/plain", {"values": ["<f4", [1] * 9]}), "field values should be an array"),
        (frame_of("test/plain", {"values": ["<f8", [0]]}), "field values should have dtype <f4"),
        (frame_of("test/plain", {"values": ["|O", [0]]}), "field values should have dtype <f4"),
        (frame_of("test/plain", {"values": ["<f4", [-1]]}), "field values has an impossible shape"),
        (frame_of("test/plain", {"values": ["<f4", [2**40, 2**40]]}), "field values has an impossible shape"),
        (frame_of("test/plain", {"values": ["<f4", [0, 2**62]]}), "field values has an impossible shape"),
        (frame_of("test/plain", {"values": ["<f4", [2**30]]}), "field values claims more bytes than"),
        (frame_of("test/plain", {"values": ["<f4", [3]]}, bytes(8)), "field values claims more bytes than"),
        (frame_of("test/plain", {"values": ["<f4", [0]]}, bytes(99)), "bytes follow its last field"),
        (frame_of("test/plain", {"values": ["<f4", [0]], "more": 1}), r"unknown fields \['more'\]"),
    ],
)
def test_a_frame_that_lies_is_refused_with_the_reason(frame, words):
    with pytest.raises(BadFrame, match=words):
        decode(frame, Plain, peer="shop")


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("number", "1", "field number should be int"),
        ("number", True, "field number should be int"),
        ("sealed", ["<u8", [0]], "field sealed should hold ciphertexts"),
        ("names", 3, "field names should be a list"),
        ("names", [1], "field names should be str"),
    ],
)
def test_a_field_of_another_type_is_refused(field, value, words):
    kind, values = msgpack.unpackb(encode(everything())[8 : 8 + struct.unpack_from("<I", encode(everything()), 4)[0]])
    with pytest.raises(BadFrame, match=words):
        decode(frame_of(kind, {**values, field: value}, bytes(4096)), Everything)


@given(st.binary(max_size=200), st.integers(0, 400), st.integers(0, 255))
def test_damaged_frames_never_end_in_anything_but_a_protocol_error(noise, place, byte):
    frame = bytearray(encode(everything()))
    frame[place % len(frame)] = byte
    for damaged in (bytes(frame), bytes(frame[: place % len(frame)]), noise, b"CLN1" + noise):
        with contextlib.suppress(ProtocolError):
            decode(damaged, Everything)
