import random
import struct
import tracemalloc

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from colonnade.errors import BadFrame
from colonnade.wire.grpc.envelope import CHUNK_BYTES, LAST, MAX_FRAME_BYTES, Envelope, Type
from colonnade.wire.transport import MAX_NOTE_BYTES, pack_note

HEAD = struct.Struct("<4sBBHQQQQ")

numbers = st.integers(0, 2**64 - 1)


def raw(type_=Type.DATA, *, magic=b"CLE1", flags=LAST, zero=0, epoch=1, seq=1, ack=0, total=5, payload=b"hello"):
    return HEAD.pack(magic, type_, flags, zero, epoch, seq, ack, total) + payload


@given(
    type_=st.sampled_from(Type),
    epoch=numbers,
    seq=st.integers(1, 2**64 - 1),
    ack=numbers,
    flags=st.integers(0, LAST),
    payload=st.binary(max_size=100),
    more=st.integers(0, MAX_FRAME_BYTES - 100),
)
def test_an_envelope_comes_back_from_its_bytes(type_, epoch, seq, ack, flags, payload, more):
    sent = Envelope(type_, epoch, seq, ack, len(payload) + more, flags, payload)
    assert Envelope.unpack(sent.pack()) == sent


def test_an_envelope_is_as_documented():
    assert Envelope(Type.DATA, 1, 1, 0, 5, LAST, b"hello").pack() == raw()


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "Expected an envelope from a peer, got 0 other bytes"),
        (b"GET / HTTP/1.1\r\nHost: bank\r\nAccept: text/html\r\n", "The peer speaks something else"),
        (raw()[: HEAD.size - 1], "got 39 other bytes"),
        (raw(magic=b"CLE2"), "The peer speaks something else"),
        (raw(0), "an envelope of unknown type 0. It runs another version"),
        (raw(7), "an envelope of unknown type 7"),
        (raw(flags=2), "a data envelope of 5 bytes that is not well formed"),
        (raw(zero=1), "a data envelope of 5 bytes that is not well formed"),
        (raw(seq=0), "a data envelope of 5 bytes that is not well formed"),
        (raw(Type.CONTROL, seq=0), "a control envelope of 5 bytes that is not well formed"),
        (raw(payload=bytes(CHUNK_BYTES + 1), total=CHUNK_BYTES + 1), f"at most {CHUNK_BYTES} are allowed"),
        (raw(Type.HELLO, payload=bytes(MAX_NOTE_BYTES + 1)), f"at most {MAX_NOTE_BYTES} are allowed"),
        (raw(total=4), "announced a frame of 4 bytes in a piece of 5"),
        (raw(total=MAX_FRAME_BYTES + 1), "or the message should be sent in parts"),
    ],
)
def test_bytes_that_are_no_envelope_are_refused(data, words):
    with pytest.raises(BadFrame, match=words):
        Envelope.unpack(data)


@pytest.mark.parametrize(
    ("payload", "words"),
    [
        (b"", "A peer's control cannot be read"),
        (b"\xc1", "A peer's control cannot be read"),
        (msgpack.packb({"done": 1}) + b"\x00", "A peer's control cannot be read"),
        (b"\x91" * 5000 + b"\x00", "A peer's control cannot be read"),
        (b"\xdd\xff\xff\xff\xff", "A peer's control cannot be read"),
        (msgpack.packb([1, 2]), "A peer's control should hold named values"),
        (msgpack.packb({b"done": 1}), "A peer's control should hold named values"),
        (msgpack.packb({1: 1}), "A peer's control cannot be read"),
    ],
)
def test_a_note_that_is_none_is_refused(payload, words):
    with pytest.raises(BadFrame, match=words):
        _ = Envelope(Type.CONTROL, payload=payload).note


def test_a_note_comes_back_from_its_bytes():
    note = {"name": "Zürich", "incarnation": b"\x00\xff", "received": 2**64 - 1}
    assert Envelope(Type.HELLO, payload=pack_note(note)).note == note


def test_ten_thousand_malformed_envelopes_are_refused_or_read_within_the_cap():
    draw = random.Random(0)
    whole = [raw(), Envelope(Type.CONTROL, seq=1, payload=pack_note({"ready": 1, "epoch": 0})).pack()]
    refused = 0
    tracemalloc.start()
    try:
        for _ in range(10_000):
            data = bytearray(draw.choice(whole))
            for _ in range(draw.randrange(1, 6)):
                data[draw.randrange(len(data))] = draw.randrange(256)
            cut = draw.randrange(len(data) + 1) if draw.random() < 0.3 else len(data)
            try:
                envelope = Envelope.unpack(bytes(data[:cut]))
                _ = envelope.note if envelope.type is not Type.DATA else None
            except BadFrame:
                refused += 1
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert refused > 5000
    assert peak < 16 * CHUNK_BYTES
