"""What a party keeps of its messages, encrypted under a key file."""

import json
import os
import signal
import subprocess
import sys
import textwrap
from dataclasses import dataclass

import numpy as np
import pytest

from colonnade.errors import AuthError, PlanError, StorageError
from colonnade.roles import PublicPlan, Roles
from colonnade.secret import Secret
from colonnade.storage import pack, unpack
from colonnade.tables.table import Table
from colonnade.testing.ports import free_port
from colonnade.wire.codec import encode
from colonnade.wire.message import Float32Array, Message
from colonnade.wire.recording.recording import Recording, Transcript
from colonnade.wire.recording.storage_key import StorageKey, make_key

WRONG_KEY = (
    "A recording should open under the key that it was written with, but does not open under this one. "
    "Name the key file of its run; if that is the one, the recording is damaged."
)


@dataclass(frozen=True)
class Sealed(Message, kind="test/sealed", reveals={Secret.LABELS}, per_row="values"):
    values: Float32Array


@pytest.fixture
def key(tmp_path):
    return StorageKey.read(make_key(tmp_path / "bank.key"))


def secret_values(epoch):
    return np.full((2, 3), 1000.5 + epoch, np.float32)


def record(recording, epoch, rows, *, sent=True):
    message = Sealed(secret_values(0 if epoch is None else epoch))
    recording.add(message, encode(message), sent=sent, peer="shop", epoch=epoch, rows=rows)


def recorded(directory, key, epochs=range(4), keep="audit"):
    recording = Recording("bank", keep, directory, key=key)
    record(recording, None, None)
    go_on(recording, epochs)
    return recording


def go_on(recording, epochs):
    for epoch in epochs:
        for batch in ([0, 2], [1, 3]):
            record(recording, epoch, np.array(batch))


def contents(transcript):
    return [
        (m.message.values.tolist(), None if m.rows is None else m.rows.tolist()) for m in transcript.messages(Sealed)
    ]


# The recording.


def test_a_recording_under_a_key_says_what_one_in_the_clear_says(tmp_path, key):
    recorded(tmp_path / "sealed", key).transcript()
    sealed, plain = Transcript.load(tmp_path / "sealed", key), recorded(None, None).transcript()
    assert sealed.digests() == plain.digests()
    assert contents(sealed) == contents(plain)
    np.testing.assert_array_equal(sealed.row_means(Sealed), plain.row_means(Sealed))


def test_nothing_in_the_folder_or_the_checkpoint_shows_a_message(tmp_path, key):
    recording = recorded(tmp_path / "sealed", key)
    checkpoint = pack(recording.state())
    transcript = recording.transcript()
    files = {path.name: path.read_bytes() for path in (tmp_path / "sealed").iterdir()}
    assert {"entries.jsonl", "index.sealed", "other.frames"} < files.keys()
    sums = transcript.means[0].sums.tobytes()
    shown = [secret_values(epoch)[0].tobytes() for epoch in range(4)] + [sums[:12], b"test/sealed", b"shop"]
    shown += [entry.digest.encode() for entry in transcript.entries]
    for name, data in {**files, "the checkpoint": checkpoint}.items():
        assert not [part for part in shown if part in data], name


def test_another_key_opens_nothing(tmp_path, key):
    recorded(tmp_path / "sealed", key).transcript()
    other = StorageKey.read(make_key(tmp_path / "other.key"))
    with pytest.raises(StorageError) as caught:
        Transcript.load(tmp_path / "sealed", other)
    assert str(caught.value) == WRONG_KEY


def test_a_recording_under_a_key_cannot_be_taken_up_under_another(tmp_path, key):
    checkpoint = recorded(tmp_path / "sealed", key).state()
    other = StorageKey.read(make_key(tmp_path / "other.key"))
    with pytest.raises(StorageError) as caught:
        Recording("bank", "audit", tmp_path / "sealed", key=other).restore(checkpoint)
    assert str(caught.value) == WRONG_KEY


def test_whether_a_key_is_needed_is_said(tmp_path, key):
    recorded(tmp_path / "sealed", key).transcript()
    with pytest.raises(StorageError) as caught:
        Transcript.load(tmp_path / "sealed")
    assert str(caught.value) == (
        f"A recording in the clear was expected in {tmp_path / 'sealed'}, but it is encrypted. Name its key file."
    )
    recorded(tmp_path / "plain", None).transcript()
    with pytest.raises(StorageError) as caught:
        Transcript.load(tmp_path / "plain", key)
    assert str(caught.value) == (
        f"A recording under a key was expected in {tmp_path / 'plain'}, but it is in the clear. Name no key file."
    )


def test_two_records_that_were_exchanged_are_refused(tmp_path, key):
    recorded(tmp_path / "sealed", key).transcript()
    path = tmp_path / "sealed" / "loop-000-epoch-000000.frames"
    data = path.read_bytes()
    half = len(data) // 2
    path.write_bytes(data[half:] + data[:half])
    with pytest.raises(StorageError) as caught:
        contents(Transcript.load(tmp_path / "sealed", key))
    assert str(caught.value) == WRONG_KEY


def test_an_entry_that_was_left_out_is_noticed(tmp_path, key):
    recorded(tmp_path / "sealed", key).transcript()
    path = tmp_path / "sealed" / "entries.jsonl"
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[1:]))
    with pytest.raises(StorageError, match="A recording should open under the key that it was written with"):
        Transcript.load(tmp_path / "sealed", key)


def test_a_recording_under_a_key_cut_back_to_a_checkpoint_goes_on_as_if_nothing_had_happened(tmp_path, key):
    checkpoint = unpack(pack(recorded(tmp_path / "cut", key, range(2)).state()))
    go_on(lost := Recording("bank", "audit", tmp_path / "cut", key=key), range(2, 3))
    del lost
    resumed = Recording("bank", "audit", tmp_path / "cut", key=key)
    resumed.restore(checkpoint)
    go_on(resumed, range(2, 4))
    resumed.transcript()
    straight = recorded(None, None).transcript()
    found = Transcript.load(tmp_path / "cut", key)
    assert found.digests() == straight.digests()
    assert contents(found) == contents(straight)
    np.testing.assert_array_equal(found.row_means(Sealed), straight.row_means(Sealed))


def test_a_record_that_is_written_again_after_a_cut_gets_another_nonce(tmp_path, key):
    recording = recorded(tmp_path / "cut", key, range(1))
    checkpoint = recording.state()
    path = tmp_path / "cut" / "loop-000-epoch-000001.frames"
    written = []
    for _ in range(2):
        go_on(recording, [1])
        recording.state()
        written.append(path.read_bytes())
        recording = Recording("bank", "audit", tmp_path / "cut", key=key)
        recording.restore(checkpoint)
    head, nonce = slice(0, 16), slice(16, 16 + StorageKey.overhead - 16)
    assert written[0][head] == written[1][head]
    assert written[0][nonce] != written[1][nonce]


def test_what_is_received_is_thinned_out_where_only_that_is_kept():
    recording = Recording("bank", "digests", keep_received="audit")
    for epoch in range(4):
        record(recording, epoch, np.array([0, 1]), sent=False)
        record(recording, epoch, np.array([0, 1]), sent=True)
    transcript = recording.transcript()
    assert [(m.epoch, m.sent) for m in transcript.messages(Sealed)] == [(0, False), (3, False)]
    assert [m.sent for m in transcript.means] == [False]


def test_a_recording_seen_from_the_other_end_has_sender_and_receiver_exchanged():
    recording = Recording("bank", "all")
    record(recording, 0, np.array([0, 2]), sent=True)
    record(recording, 0, np.array([1, 3]), sent=False)
    recording.add(Sealed(secret_values(0)), encode(Sealed(secret_values(0))), sent=True, peer="telco")
    mirror = recording.transcript().mirrored("shop")
    assert mirror.party == "shop"
    seen = [(m.peer, m.sent, m.rows.tolist()) for m in mirror.messages(Sealed)]
    assert seen == [("bank", False, [0, 2]), ("bank", True, [1, 3])]
    assert [(m.peer, m.sent) for m in mirror.means] == [("bank", False), ("bank", True)]


# The key file.


def test_a_key_is_readable_by_its_owner_alone_and_differs_each_time(tmp_path):
    one, other = make_key(tmp_path / "keys" / "one"), make_key(tmp_path / "keys" / "other")
    assert one.stat().st_mode & 0o777 == 0o600
    assert StorageKey.read(one) == StorageKey.read(one) != StorageKey.read(other)
    assert one.read_text().strip() not in repr(StorageKey.read(one))


def test_a_key_is_never_overwritten(tmp_path):
    path = make_key(tmp_path / "bank.key")
    before = path.read_bytes()
    with pytest.raises(StorageError) as caught:
        make_key(path)
    assert str(caught.value) == (
        f"Expected no file at {path}, but there is one, and a key is never overwritten, because all that was written "
        "under it would be lost. Choose another path, or use this key."
    )
    assert path.read_bytes() == before


def test_a_key_that_others_may_read_is_refused(tmp_path):
    path = make_key(tmp_path / "bank.key")
    path.chmod(0o640)
    with pytest.raises(AuthError) as caught:
        StorageKey.read(path)
    assert str(caught.value) == (
        f"Expected the key file {path} to be readable by its owner alone, but its mode is 640. "
        f"Run: chmod 600 '{path}'; if somebody else may have read it, use a new key for the next run."
    )


@pytest.mark.parametrize("data", [b"", b"00" * 31, b"00" * 33, b"zz" * 32, b"\xff" * 64])
def test_a_file_that_holds_no_key_is_refused_without_quoting_it(tmp_path, data):
    path = tmp_path / "bank.key"
    path.touch(mode=0o600)
    path.write_bytes(data)
    with pytest.raises(AuthError) as caught:
        StorageKey.read(path)
    assert str(caught.value) == (
        f"Expected the key file {path} to hold 64 hexadecimal digits, but it holds something else. "
        "Restore it, or name the file that make_key made."
    )


def test_a_key_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(StorageError) as caught:
        StorageKey.read(tmp_path / "none.key")
    assert str(caught.value) == (
        f"Expected to read the key file {tmp_path / 'none.key'}, but got: No such file or directory. "
        "Name the key file of the run, or make one with make_key."
    )


# A deployed run.

PARTY = textwrap.dedent(
    """
    import json, os, signal, sys
    from dataclasses import dataclass
    import numpy as np
    from colonnade.errors import ColonnadeError
    from colonnade.privacy.randomness import Randomness
    from colonnade.runtime.join import join
    from colonnade.runtime.session import connect
    from colonnade.tables.table import Table
    from colonnade.wire.grpc.link import Patience
    from colonnade.wire.grpc.transport import GrpcTransport
    from colonnade.wire.message import Float32Array, Message
    from colonnade.roles import PublicPlan, Roles

    @dataclass(frozen=True)
    class Sealed(Message, kind="test/sealed", per_row="values"):
        values: Float32Array

    class Nothing:
        def state(self):
            return {}

        def restore(self, tree):
            pass

    name, peer, dies, folder, key, port = json.loads(sys.argv[1])

    def walk(party):
        for step in party.steps(8, Nothing(), name="walk"):
            if step == dies:
                os.kill(os.getpid(), signal.SIGKILL)
            rows, epoch = np.arange(2), step // 2
            party.peers[peer].send(Sealed(np.full((2, 1), step, np.float32)), rows=rows, epoch=epoch)
            party.peers[peer].receive(Sealed, rows=rows, epoch=epoch)

    party = connect(
        PublicPlan(Roles(label="bank", features=("shop",)), "walk"),
        name,
        Table.of({"id": [1, 2], "y": [0, 1]}, labels="y" if name == "bank" else None),
        transport=GrpcTransport(
            {"bank": f"127.0.0.1:{port}", "shop": None},
            credentials=None,
            patience=Patience(start=90, rejoin=90, message=90, heartbeat=0.1),
        ),
        directory=folder,
        random=Randomness.seeded(0, name),
        key_file=key,
        checkpoint_every=3,
    )
    try:
        join(walk, party)
    except ColonnadeError as error:
        sys.exit(f"{type(error).__name__}: {error}")
    """
)


@pytest.fixture
def started(tmp_path):
    """Starts parties in processes that end with the test."""
    processes, port = [], free_port()

    def start(name, key, *, dies=None):
        peer = "shop" if name == "bank" else "bank"
        said = json.dumps([name, peer, dies, str(tmp_path / name), key and str(key), port])
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
        process = subprocess.Popen(
            [sys.executable, "-c", PARTY, said], env=environment, stderr=subprocess.PIPE, text=True
        )
        processes.append(process)
        return process

    yield start
    for process in processes:
        if process.poll() is None:
            process.kill()
        process.communicate()


@pytest.mark.slow
@pytest.mark.network
def test_a_party_killed_while_it_keeps_its_messages_under_a_key_goes_on_under_that_key_only(tmp_path, started):
    path, other = make_key(tmp_path / "bank.key"), make_key(tmp_path / "other.key")
    first, shop = started("bank", path, dies=5), started("shop", None)
    assert first.wait(120) == -signal.SIGKILL
    mistaken = started("bank", other)
    assert WRONG_KEY in mistaken.communicate(timeout=120)[1]
    assert f"PeerFailed: bank stopped: {WRONG_KEY}" in shop.communicate(timeout=120)[1]
    last = [started("bank", path), started("shop", None)]
    assert [process.wait(120) for process in last] == [0, 0], [process.communicate()[1] for process in last]
    transcript = Transcript.load(tmp_path / "bank" / "transcript", StorageKey.read(path))
    kept = [(m.epoch, m.message.values.tolist()) for m in transcript.messages(Sealed, sent=True)]
    assert kept == [(step // 2, [[step], [step]]) for step in (0, 1, 6, 7)]
    np.testing.assert_array_equal(transcript.row_means(Sealed), np.full((2, 1), 3.5))
    assert [entry.sent for entry in transcript.entries] == [True, False] * 8


@pytest.mark.network
def test_keeping_all_that_is_sent_and_some_of_what_is_received_is_refused(tmp_path):
    from colonnade.runtime.session import connect
    from colonnade.wire.grpc.transport import GrpcTransport

    with pytest.raises(PlanError) as caught:
        connect(
            PublicPlan(Roles(label="bank", features=("shop",)), "walk"),
            "bank",
            Table.of({"id": [1, 2], "y": [0, 1]}, labels="y"),
            transport=GrpcTransport({"bank": "127.0.0.1:1", "shop": None}, credentials=None),
            directory=tmp_path,
            keep="all",
            keep_received="audit",
        )
    assert str(caught.value) == (
        "keep_received='audit' keeps some epochs of what is received, but keep='all' drops none. Use keep='audit'."
    )
