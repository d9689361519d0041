import random
import threading
import time
import tracemalloc

import numpy as np
import pytest

from colonnade.errors import BadFrame, StorageError
from colonnade.wire.grpc.envelope import CHUNK_BYTES, LAST, Envelope, Type
from colonnade.wire.grpc.link import OUTBOX_MEMORY_BYTES, WINDOW_BYTES, Gap, Link, Outbox
from colonnade.wire.transport import pack_note

MEBIBYTE = 2**20
EPOCH = 1


class Pair:
    """Two ends of a line and the stream between them, moved by hand, one envelope at a time."""

    def __init__(self, *, heartbeat=0.001, spill=None):
        self.heard = {"bank": [], "shop": []}
        self.ends = {
            own: Link(peer, on_control=self.note(own), heartbeat_s=heartbeat, spill=spill)
            for own, peer in (("bank", "shop"), ("shop", "bank"))
        }
        self.connect()

    def note(self, own):
        return lambda peer, incarnation, note: self.heard[own].append(note)

    def connect(self):
        bank, shop = self.ends.values()
        received = {"bank": shop.received, "shop": bank.received}
        self.connections = {own: line.attach(received[own]) for own, line in self.ends.items()}
        self.streams = {own: line.outgoing(self.connections[own]) for own, line in self.ends.items()}

    def next(self, sender):
        """The sender's next envelope: a heartbeat if it has nothing else to say."""
        return Envelope.unpack(next(self.streams[sender]))

    def deliver(self, sender, envelope):
        receiver = "shop" if sender == "bank" else "bank"
        self.ends[receiver].incoming(self.connections[receiver], envelope)

    def exchange(self, sender):
        """Move envelopes until the sender falls silent; returns what crossed."""
        crossed = []
        while (envelope := self.next(sender)).type is not Type.HEARTBEAT:
            self.deliver(sender, envelope)
            crossed.append(envelope)
        self.deliver(sender, envelope)
        return crossed

    def taken(self, receiver, epoch=EPOCH):
        frames = []
        while (frame := self.ends[receiver].take(epoch)) is not None:
            frames.append(bytes(frame))
        return frames


@pytest.fixture
def pair():
    made = Pair()
    yield made
    for line in made.ends.values():
        line.close()


def frames_of(seed, sizes):
    return [random.Random(f"{seed} {i}").randbytes(size) for i, size in enumerate(sizes)]


def test_frames_of_every_size_arrive_in_order(pair):
    sent = frames_of(0, [0, 1, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 3 * CHUNK_BYTES, 0, 7])
    for frame in sent:
        pair.ends["bank"].put(frame, EPOCH)
    crossed = pair.exchange("bank")
    assert pair.taken("shop") == sent
    assert max(len(envelope.payload) for envelope in crossed) == CHUNK_BYTES


def received(pair, frame):
    pair.ends["bank"].put(frame, EPOCH)
    pair.exchange("bank")
    return pair.ends["shop"].take(EPOCH)


@pytest.mark.parametrize("size", [5, 2 * CHUNK_BYTES])
def test_a_frame_that_came_cannot_be_changed(pair, size):
    frame = received(pair, bytes(size))
    with pytest.raises(TypeError, match="read-only"):
        frame[0] = 1


def test_a_frame_of_which_a_part_is_held_stays_as_it_came(pair):
    first = np.frombuffer(received(pair, b"1" * 2 * CHUNK_BYTES)[5:], np.uint8)
    second = received(pair, b"2" * 3 * CHUNK_BYTES)
    assert (first == ord("1")).all()
    assert second == b"2" * 3 * CHUNK_BYTES


def test_memory_is_used_again_once_nobody_holds_the_frame_in_it(pair):
    first = received(pair, b"1" * 2 * CHUNK_BYTES)
    where = np.frombuffer(first, np.uint8).ctypes.data
    del first
    assert np.frombuffer(received(pair, b"2" * 2 * CHUNK_BYTES), np.uint8).ctypes.data == where


def test_control_and_data_keep_their_order(pair):
    pair.ends["bank"].put(b"first", EPOCH)
    pair.ends["bank"].put_control({"done": 1})
    pair.ends["bank"].put(b"second", EPOCH)
    kinds = [envelope.type for envelope in pair.exchange("bank")]
    assert kinds == [Type.DATA, Type.CONTROL, Type.DATA]
    assert pair.heard["shop"] == [{"done": 1}]


def test_an_envelope_that_comes_twice_counts_once(pair):
    pair.ends["bank"].put(b"frame", EPOCH)
    pair.ends["bank"].put_control({"done": 1})
    envelopes = [pair.next("bank"), pair.next("bank")]
    for envelope in [*envelopes, *envelopes, envelopes[0]]:
        pair.deliver("bank", envelope)
    assert pair.taken("shop") == [b"frame"]
    assert pair.heard["shop"] == [{"done": 1}]


def test_a_missing_envelope_is_noticed_at_the_next_one(pair):
    for frame in (b"a", b"b"):
        pair.ends["bank"].put(frame, EPOCH)
    pair.next("bank")
    with pytest.raises(Gap):
        pair.deliver("bank", pair.next("bank"))
    assert pair.taken("shop") == []


def test_a_missing_last_envelope_is_noticed_at_the_heartbeat(pair):
    pair.ends["bank"].put(b"lost", EPOCH)
    pair.next("bank")
    beat = pair.next("bank")
    assert beat.type is Type.HEARTBEAT
    with pytest.raises(Gap):
        pair.deliver("bank", beat)


def test_what_was_lost_in_a_cut_is_sent_again_over_the_next_connection(pair):
    sent = frames_of(1, [10, 2 * CHUNK_BYTES + 3, 20])
    for frame in sent:
        pair.ends["bank"].put(frame, EPOCH)
    for _ in range(2):
        pair.deliver("bank", pair.next("bank"))
    pair.next("bank")
    pair.connect()
    pair.exchange("bank")
    assert pair.taken("shop") == sent


def test_an_old_connection_neither_takes_in_nor_gives_out(pair):
    pair.ends["bank"].put(b"frame", EPOCH)
    old_stream, old_connection, envelope = pair.streams["bank"], pair.connections["shop"], pair.next("bank")
    pair.connect()
    pair.ends["shop"].incoming(old_connection, envelope)
    assert pair.ends["shop"].received == 0
    assert next(old_stream, None) is None


def test_the_last_word_of_a_line_that_closes_is_an_acknowledgement_that_was_due(pair):
    # The other side waits for it before it leaves.
    pair.ends["bank"].put_control({"failed": "No rows."})
    pair.deliver("bank", pair.next("bank"))
    pair.ends["shop"].close()
    assert (last := pair.next("shop")).type is Type.ACK
    assert last.ack == 1
    assert next(pair.streams["shop"], None) is None


def test_an_acknowledgement_that_overtakes_the_repetition_is_no_harm(pair):
    # The listening side greets with what it has received, and may then still read what the old connection brought.
    sent = frames_of(2, [5, 6, 7])
    for frame in sent:
        pair.ends["bank"].put(frame, EPOCH)
    pair.ends["bank"].incoming(pair.connections["bank"], Envelope(Type.ACK, ack=2))
    assert pair.next("bank").seq == 3


def test_a_connection_from_behind_what_was_acknowledged_starts_at_what_is_left(pair):
    for frame in frames_of(3, [5, 6, 7]):
        pair.ends["bank"].put(frame, EPOCH)
    pair.ends["bank"].incoming(pair.connections["bank"], Envelope(Type.ACK, ack=2))
    pair.streams["bank"] = pair.ends["bank"].outgoing(pair.ends["bank"].attach(0))
    assert pair.next("bank").seq == 3


def test_acknowledging_what_was_never_sent_is_refused(pair):
    with pytest.raises(BadFrame, match="shop acknowledged what was never sent to it"):
        pair.ends["bank"].incoming(pair.connections["bank"], Envelope(Type.ACK, ack=1))


def piece(seq, payload, total, flags=0):
    return Envelope(Type.DATA, EPOCH, seq, 0, total, flags, payload)


@pytest.mark.parametrize(
    ("pieces", "words"),
    [
        ([piece(1, b"abc", 6), piece(2, b"def", 7, LAST)], "bank sent pieces that do not make up one frame of 6 bytes"),
        ([piece(1, b"abc", 4), piece(2, b"def", 4, LAST)], "bank sent pieces that do not make up one frame of 4 bytes"),
        ([piece(1, b"abc", 6, LAST)], "bank sent a frame of 3 bytes but announced 6"),
        ([piece(1, b"abc", 7), piece(2, b"def", 7, LAST)], "bank sent a frame of 6 bytes but announced 7"),
    ],
)
def test_pieces_that_make_up_no_frame_are_refused(pair, pieces, words):
    *before, last = pieces
    for envelope in before:
        pair.deliver("bank", envelope)
    with pytest.raises(BadFrame, match=words):
        pair.deliver("bank", last)


def test_frames_of_an_earlier_epoch_are_dropped_and_those_of_a_later_one_wait(pair):
    for epoch in (1, 2, 3):
        pair.ends["bank"].put(b"of %d" % epoch, epoch)
    pair.exchange("bank")
    assert pair.taken("shop", epoch=2) == [b"of 2"]
    assert pair.taken("shop", epoch=3) == [b"of 3"]


def test_control_reaches_a_party_that_left_an_epoch_with_much_untaken(pair):
    # A third party has crashed: nobody takes the frames of this epoch any more, and the way must not stay blocked.
    for _ in range(3 * WINDOW_BYTES // MEBIBYTE):
        pair.ends["shop"].put(bytes(MEBIBYTE), EPOCH)
    pair.ends["shop"].put_control({"ready": 0, "epoch": EPOCH})
    pair.exchange("shop")
    pair.exchange("bank")
    assert pair.heard["bank"] == []
    pair.ends["bank"].leave(EPOCH)
    for _ in range(20):
        pair.exchange("bank")
        pair.exchange("shop")
    assert pair.heard["bank"] == [{"ready": 0, "epoch": EPOCH}]


def test_a_new_process_at_the_other_end_starts_both_directions_anew(pair):
    old = pair.connections["bank"]
    pair.ends["bank"].put(b"to the old one", EPOCH)
    pair.exchange("bank")
    pair.ends["shop"].put(b"from the old one", EPOCH)
    pair.exchange("shop")
    pair.ends["bank"].reset()
    assert not pair.ends["bank"].connected
    # What the old process still had under way does not count, and above all is not taken for a fault.
    pair.ends["bank"].incoming(old, Envelope(Type.ACK, ack=1))
    pair.ends["shop"].reset()
    pair.connect()
    pair.ends["bank"].put(b"to the new one", EPOCH)
    pair.exchange("bank")
    assert pair.taken("shop") == [b"to the new one"]
    assert pair.taken("bank") == []


@pytest.mark.parametrize("seed", range(40))
def test_lost_repeated_reordered_and_late_envelopes_change_nothing(seed):
    draw = random.Random(seed)
    sizes = [draw.choice([0, 1, 100, CHUNK_BYTES + 5]) for _ in range(12)]
    sent = {own: frames_of(f"{own} {seed}", sizes) for own in ("bank", "shop")}
    pair, came, cuts = Pair(), {"bank": [], "shop": []}, 0
    for own, frames in sent.items():
        for number, frame in enumerate(frames):
            pair.ends[own].put(frame, EPOCH)
            pair.ends[own].put_control({"done": number})
    late = {"bank": [], "shop": []}
    for _ in range(2000):
        sender = draw.choice(["bank", "shop"])
        try:
            match draw.choice(["pass"] * 12 + ["drop", "twice", "late", "now", "cut"]):
                case "pass":
                    pair.deliver(sender, pair.next(sender))
                case "drop":
                    pair.next(sender)
                case "twice":
                    envelope = pair.next(sender)
                    pair.deliver(sender, envelope)
                    pair.deliver(sender, envelope)
                case "late":
                    late[sender].append(pair.next(sender))
                case "now":
                    while late[sender]:
                        pair.deliver(sender, late[sender].pop(draw.randrange(len(late[sender]))))
                case "cut":
                    raise Gap
        except Gap:
            cuts += 1
            late = {"bank": [], "shop": []}
            pair.connect()
        came["bank"] += pair.taken("bank")
        came["shop"] += pair.taken("shop")
        if came == {"bank": sent["shop"], "shop": sent["bank"]} and all(len(n) == 12 for n in pair.heard.values()):
            break
    assert came == {"bank": sent["shop"], "shop": sent["bank"]}
    assert pair.heard == {own: [{"done": number} for number in range(12)] for own in ("bank", "shop")}
    assert cuts


def test_a_slow_reader_bounds_what_is_under_way(pair):
    total = 5 * WINDOW_BYTES
    for _ in range(total // MEBIBYTE):
        pair.ends["bank"].put(bytes(MEBIBYTE), EPOCH)
    while pair.exchange("bank"):
        pair.exchange("shop")
        assert pair.connections["bank"].in_flight_bytes <= WINDOW_BYTES + CHUNK_BYTES
    waiting = pair.ends["shop"].received * MEBIBYTE
    assert waiting <= 2 * WINDOW_BYTES + CHUNK_BYTES, "nobody takes, so the sender stops"
    came = 0
    for _ in range(total // MEBIBYTE):
        came += len(pair.taken("shop"))
        pair.exchange("shop")
        pair.exchange("bank")
    assert came * MEBIBYTE == total


def test_a_frame_four_times_as_long_as_the_window_passes(pair):
    sent = random.Random(0).randbytes(4 * WINDOW_BYTES)
    pair.ends["bank"].put(sent, EPOCH)
    tracemalloc.start()
    try:
        while pair.exchange("bank"):
            pair.exchange("shop")
        came = pair.ends["shop"].take(EPOCH)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert came == sent
    assert peak < 1.5 * len(sent)


def test_whoever_only_listens_gives_a_sign_of_life_all_the_same():
    # Each envelope that comes in wakes the sender of signs; it must not begin its pause anew each time.
    pair = Pair(heartbeat=0.2)
    first = []
    beat = threading.Thread(target=lambda: first.append(pair.next("shop")), daemon=True)
    beat.start()
    until = time.monotonic() + 20
    while beat.is_alive() and time.monotonic() < until:
        pair.ends["bank"].put(b"small", EPOCH)
        pair.deliver("bank", pair.next("bank"))
        time.sleep(0.01)
    assert [envelope.type for envelope in first] == [Type.HEARTBEAT]


def test_ten_thousand_malformed_envelopes_end_in_a_gap_or_a_clear_error():
    draw = random.Random(0)
    outcomes = {"taken": 0, "gap": 0, "refused": 0}
    tracemalloc.start()
    try:
        pair = Pair()
        for _ in range(10_000):
            envelope = Envelope(
                draw.choice(list(Type)),
                epoch=draw.choice([0, 1, 2, 2**64 - 1]),
                seq=draw.choice([1, 2, pair.ends["shop"].received + 1, 2**64 - 1]),
                ack=draw.choice([0, 0, 0, 1, 2**64 - 1]),
                total=draw.choice([0, 1, 10, 100, 2**32]),
                flags=draw.choice([0, LAST]),
                payload=draw.choice([b"", b"\xc1", bytes(10), pack_note({"done": 1})]),
            )
            try:
                pair.deliver("bank", Envelope.unpack(envelope.pack()))
                outcomes["taken"] += 1
            except Gap:
                outcomes["gap"] += 1
            except BadFrame:
                outcomes["refused"] += 1
                pair = Pair()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert min(outcomes.values()) > 1000
    assert peak < WINDOW_BYTES


def test_what_waits_past_the_cap_lies_on_disk_and_comes_back(tmp_path):
    outbox = Outbox(tmp_path, memory_bytes=100)
    payloads = frames_of(4, [60, 60, 40, 1000, 0, 30])
    for payload in payloads:
        outbox.add(Type.DATA, EPOCH, payload, len(payload), LAST)
    in_memory = [outbox.after(seq).payload is not None for seq in range(6)]
    assert in_memory == [True, False, True, False, True, False]
    assert [bytes(outbox.load(outbox.after(seq))) for seq in (0, 3, 1, 5, 2, 4)] == [
        payloads[i] for i in (0, 3, 1, 5, 2, 4)
    ]
    outbox.forget(3)
    assert [bytes(outbox.load(outbox.after(seq))) for seq in (3, 4, 5)] == payloads[3:]
    outbox.forget(6)
    assert outbox.empty
    outbox.add(Type.DATA, EPOCH, bytes(90))
    assert outbox.after(6).payload is not None, "there is room in memory again"
    outbox.close()


def test_a_line_that_is_not_read_keeps_only_its_cap_in_memory(tmp_path):
    line = Link("shop", on_control=lambda peer, incarnation, note: None, spill=tmp_path)
    tracemalloc.start()
    try:
        for number in range(2 * OUTBOX_MEMORY_BYTES // MEBIBYTE):
            line.put(bytes([number]) * MEBIBYTE, EPOCH)
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 1.1 * OUTBOX_MEMORY_BYTES
    other = Link("bank", on_control=lambda peer, incarnation, note: None)
    far, near = other.attach(0), line.attach(0)
    stream = line.outgoing(near)
    for number in range(2 * OUTBOX_MEMORY_BYTES // MEBIBYTE):
        other.incoming(far, Envelope.unpack(next(stream)))
        assert other.take(EPOCH) == bytes([number]) * MEBIBYTE
        line.incoming(near, Envelope(Type.ACK, ack=other._acknowledge()))
    line.close()
    other.close()


def test_a_peer_that_sends_more_than_it_has_credit_for_is_found_out():
    line = Link("shop", on_control=lambda peer, incarnation, note: None)
    connection, piece = line.attach(0), bytes(CHUNK_BYTES)

    def flood():
        for seq in range(1, 2 * WINDOW_BYTES // CHUNK_BYTES):
            line.incoming(connection, Envelope(Type.DATA, EPOCH, seq, 0, len(piece), LAST, piece))

    with pytest.raises(BadFrame, match="shop sends on although 16777216 bytes were not acknowledged"):
        flood()
    assert line.received * CHUNK_BYTES <= WINDOW_BYTES + CHUNK_BYTES
    line.close()


def test_the_rest_of_a_frame_does_not_go_to_a_peer_that_started_anew_in_between(monkeypatch):
    line = Link("shop", on_control=lambda peer, incarnation, note: None)
    monkeypatch.setattr(line, "_send_on", line.reset)
    line.put(bytes(3 * CHUNK_BYTES), EPOCH)
    assert line.drained


def test_what_was_not_sent_yet_is_dropped_and_control_does_not_wait_for_credit(pair):
    bank = pair.ends["bank"]
    for _ in range(3 * WINDOW_BYTES // CHUNK_BYTES):
        bank.put(bytes(CHUNK_BYTES), EPOCH)
    n_sent = WINDOW_BYTES // CHUNK_BYTES
    for _ in range(n_sent):
        pair.deliver("bank", pair.next("bank"))
    bank.put_control({"holds": 1})
    bank.drop_unsent()
    bank.put_control({"failed": "The vault is empty."})
    for _ in range(2):
        pair.deliver("bank", pair.next("bank"))
    assert pair.heard["shop"] == [{"holds": 1}, {"failed": "The vault is empty."}]
    assert [pair.ends["shop"].take(EPOCH) for _ in range(n_sent + 1)] == [bytes(CHUNK_BYTES)] * n_sent + [None]
    pair.deliver("shop", pair.next("shop"))
    bank.put(b"of the next epoch", EPOCH + 1)
    pair.deliver("bank", pair.next("bank"))
    assert pair.ends["shop"].take(EPOCH + 1) == b"of the next epoch"


def test_an_acknowledgement_is_left_to_the_connection_that_took_over(pair):
    pair.ends["bank"].put_control({"done": 1})
    pair.deliver("bank", pair.next("bank"))
    old = pair.streams["shop"]
    pair.connect()
    assert list(old) == []
    assert pair.next("shop").type is Type.ACK


def test_a_control_message_needs_no_disk(tmp_path):
    line = Link("shop", on_control=lambda peer, incarnation, note: None, spill=tmp_path / "missing")
    with pytest.raises(StorageError):
        line.put(bytes(OUTBOX_MEMORY_BYTES + CHUNK_BYTES), EPOCH)
    line.put_control({"failed": "The disk is full.", "at": ""})
    assert line.sent == OUTBOX_MEMORY_BYTES // CHUNK_BYTES + 1
    line.close()


def test_a_full_disk_is_told_and_leaves_no_hole_in_the_sequence(tmp_path):
    outbox = Outbox(tmp_path / "missing", memory_bytes=10)
    outbox.add(Type.DATA, EPOCH, bytes(5))
    with pytest.raises(StorageError, match="Could not spill unsent messages to disk: No such file or directory"):
        outbox.add(Type.DATA, EPOCH, bytes(100))
    outbox.add(Type.CONTROL, 0, b"short")
    assert outbox.after(1).seq == 2
