import subprocess
import sys
from dataclasses import dataclass
from textwrap import dedent

import numpy as np
import pytest

from colonnade.errors import PrivacyError, StorageError
from colonnade.secret import Secret
from colonnade.wire.codec import encode
from colonnade.wire.message import Float32Array, Message
from colonnade.wire.recording.recording import Recording, Transcript


@dataclass(frozen=True)
class Row(Message, kind="test/row", reveals={Secret.LABELS, Secret.FEATURES}, per_row="values"):
    values: Float32Array


@dataclass(frozen=True)
class Coin(Message, kind="test/coin", fresh=True):
    values: Float32Array


@dataclass(frozen=True)
class Seed(Message, kind="test/seed", secret=True, per_row="values"):
    values: Float32Array


def row(value, n=2):
    return Row(np.full((n, 3), value, np.float32))


def recorded(keep, directory=None, epochs=4):
    recording = Recording("shop", keep, directory)
    record(recording, row(0), epoch=None)
    for epoch in range(epochs):
        for batch in ([0, 2], [1, 3]):
            record(recording, row(epoch), epoch=epoch, rows=np.array(batch))
    return recording


def record(recording, message, **about):
    recording.add(message, encode(message), sent=False, peer="bank", **about)


def epochs_kept(transcript):
    return [kept.epoch for kept in transcript.messages(Row)]


@pytest.mark.parametrize("on_disk", [False, True])
@pytest.mark.parametrize(
    ("keep", "expected"),
    [("all", [None, 0, 0, 1, 1, 2, 2, 3, 3]), ("audit", [None, 0, 0, 3, 3]), ("digests", [])],
)
def test_as_much_is_kept_as_was_asked_for(keep, expected, on_disk, tmp_path):
    transcript = recorded(keep, tmp_path / "t" if on_disk else None).transcript()
    assert epochs_kept(transcript) == expected
    assert len(transcript.entries) == 9
    assert all(entry.reveals == ("features", "labels") and len(entry.digest) == 64 for entry in transcript.entries)


def test_means_per_row_cover_every_epoch_though_messages_do_not():
    transcript = recorded("audit").transcript()
    np.testing.assert_allclose(transcript.row_means(Row), np.full((4, 3), 1.5))


def test_a_row_that_was_never_sent_has_no_mean():
    recording = Recording("shop", "audit")
    record(recording, row(1), epoch=0, rows=np.array([0, 2]))
    means = recording.transcript().row_means(Row)
    assert np.isnan(means[1]).all()
    assert not np.isnan(means[[0, 2]]).any()


def test_means_that_were_not_recorded_are_refused():
    with pytest.raises(PrivacyError, match=r"Row means of test/row should come from one line, but shop recorded 0\."):
        recorded("digests").transcript().row_means(Row)


def test_a_saved_transcript_says_the_same(tmp_path):
    transcript = recorded("audit").transcript()
    transcript.save(tmp_path / "saved")
    loaded = Transcript.load(tmp_path / "saved")
    assert loaded.digests() == transcript.digests()
    assert epochs_kept(loaded) == epochs_kept(transcript)
    for before, after in zip(transcript.messages(Row), loaded.messages(Row), strict=True):
        np.testing.assert_array_equal(before.message.values, after.message.values)
        assert (before.rows is None) == (after.rows is None)
        assert before.rows is None or np.array_equal(before.rows, after.rows)
    np.testing.assert_array_equal(loaded.row_means(Row), transcript.row_means(Row))


def test_a_recording_cut_back_to_a_checkpoint_goes_on_as_if_nothing_had_happened(tmp_path):
    straight = recorded("audit", tmp_path / "straight").transcript()
    recording = Recording("shop", "audit", tmp_path / "cut")
    record(recording, row(0), epoch=None)
    for epoch in range(2):
        for batch in ([0, 2], [1, 3]):
            record(recording, row(epoch), epoch=epoch, rows=np.array(batch))
    checkpoint = recording.state()
    for epoch in range(2, 4):
        record(recording, row(epoch), epoch=epoch, rows=np.array([0, 2]))
    resumed = Recording("shop", "audit", tmp_path / "cut")
    record(resumed, row(0), epoch=None)
    resumed.restore(checkpoint)
    for epoch in range(2, 4):
        for batch in ([0, 2], [1, 3]):
            record(resumed, row(epoch), epoch=epoch, rows=np.array(batch))
    transcript = resumed.transcript()
    assert transcript.digests() == straight.digests()
    assert epochs_kept(transcript) == epochs_kept(straight)
    np.testing.assert_array_equal(transcript.row_means(Row), straight.row_means(Row))


def test_a_message_that_was_changed_in_the_folder_is_refused(tmp_path):
    recorded("all", tmp_path).transcript()
    path = tmp_path / "loop-000-epoch-000001.frames"
    path.write_bytes(path.read_bytes().replace(np.float32(1).tobytes(), np.float32(2).tobytes()))
    with pytest.raises(StorageError, match="A recorded test/row of shop is not what was recorded"):
        list(Transcript.load(tmp_path).messages(Row))


def test_a_recording_shorter_than_its_checkpoint_is_refused(tmp_path):
    recording = recorded("all", tmp_path)
    checkpoint = recording.state()
    (tmp_path / "loop-000-epoch-000001.frames").write_bytes(b"")
    with pytest.raises(StorageError, match=r"loop-000-epoch-000001\.frames is shorter than its checkpoint says"):
        Recording("shop", "all", tmp_path).restore(checkpoint)


def test_fresh_kinds_are_left_out_of_what_must_repeat():
    recording = Recording("shop", "digests")
    coin = Coin(np.ones(1, np.float32))
    record(recording, coin)
    transcript = recording.transcript()
    assert transcript.digests() == ()
    assert len(transcript.digests(fresh=True)) == 1


@pytest.mark.parametrize("keep", ["all", "audit", "digests"])
@pytest.mark.parametrize("on_disk", [False, True], ids=["in memory", "on disk"])
def test_of_a_secret_message_only_its_kind_and_length_are_recorded(keep, on_disk, tmp_path):
    recording = Recording("shop", keep, tmp_path if on_disk else None)
    seed = Seed(np.random.default_rng(0).random((2, 3)).astype(np.float32))
    for sent in (True, False):
        recording.add(seed, encode(seed), sent=sent, peer="bank", rows=np.array([0, 1]), epoch=0)
    transcript = recording.transcript()
    assert [(e.kind, e.sent, e.size, e.digest) for e in transcript.entries] == [
        ("test/seed", sent, len(encode(seed)), "") for sent in (True, False)
    ]
    assert list(transcript.messages(Seed)) == []
    assert transcript.means == ()
    if on_disk:
        kept = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
        assert kept.count(b"test/seed") == 2
        assert seed.values[0].tobytes() not in kept
        assert Transcript.load(tmp_path).entries == transcript.entries


def test_a_full_disk_is_one_storage_error_and_no_traceback_when_the_recording_is_left(tmp_path):
    code = """
        import resource, sys
        from pathlib import Path
        resource.setrlimit(resource.RLIMIT_FSIZE, (2**12, 2**12))
        from colonnade.errors import StorageError
        from colonnade.wire.recording.frames import FramesOnDisk
        frames = FramesOnDisk(Path(sys.argv[1]))
        try:
            frames.add(None, b"x" * (2**12 - 100), None)
            frames.add(None, b"x" * 200, None)
            frames.flush()
        except StorageError as error:
            print(error)
        """
    done = subprocess.run([sys.executable, "-c", dedent(code), tmp_path], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("Could not write the recording: File too large.")
    assert done.stderr == ""
