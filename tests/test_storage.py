import errno
import os
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from colonnade.errors import StorageError
from colonnade.storage import erase, explained, is_erased, make_private, pack, read_tree, unpack, write_tree


def test_a_tree_comes_back_as_it_was_written(tmp_path):
    tree = {
        "weights": np.arange(6, dtype=np.float32).reshape(2, 3),
        "scalar": np.float32(0.5),
        "nothing": None,
        "key": b"\x00\xff",
        "nested": [{"step": 3, "name": "naïve"}, [True, 1.5]],
        3: "a whole number as a name",
    }
    write_tree(tmp_path / "tree", tree)
    back = read_tree(tmp_path / "tree")
    np.testing.assert_array_equal(back["weights"], tree["weights"])
    assert back["scalar"] == 0.5
    assert back["scalar"].shape == ()
    assert back["nested"] == tree["nested"]
    assert (back["key"], back["nothing"], back[3]) == (b"\x00\xff", None, "a whole number as a name")


def test_what_is_not_data_is_refused_with_its_place():
    with pytest.raises(StorageError, match=r"tree\.model\[1\] should be a number, text, bytes, an array"):
        pack({"model": [1, object()]})


@pytest.mark.parametrize("data", [b"", b"\x05", b"not a tree of arrays", pack({"a": np.ones(3)})[:-2]])
def test_a_damaged_file_is_refused(data):
    with pytest.raises(StorageError, match="share should be a tree of arrays but cannot be read"):
        unpack(data, "share")


def test_a_file_that_is_not_there_is_a_storage_error(tmp_path):
    with pytest.raises(StorageError, match=r"Could not read gone: No such file or directory\."):
        read_tree(tmp_path / "gone")


def test_a_place_that_cannot_be_written_is_a_storage_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match=r"Could not write tree: .*Free some space or choose a folder"):
        write_tree(tmp_path / "file" / "tree", {})


def test_a_full_disk_leaves_the_old_file_and_no_litter(tmp_path, monkeypatch):
    write_tree(tmp_path / "tree", {"step": 1})

    def full(handle):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StorageError, match=r"Could not write tree: No space left on device\. Free some space"):
        write_tree(tmp_path / "tree", {"step": 2})
    monkeypatch.undo()
    assert read_tree(tmp_path / "tree") == {"step": 1}
    assert os.listdir(tmp_path) == ["tree"]


def test_other_errors_pass_through():
    with pytest.raises(KeyError), explained("do this"):
        raise KeyError("x")


def test_an_erased_folder_is_gone_and_may_be_erased_again(tmp_path):
    write_tree(tmp_path / "checkpoints" / "buckets" / "key", {"key": b"secret"})
    assert not is_erased(tmp_path / "checkpoints")
    for _ in range(2):
        erase(tmp_path / "checkpoints")
        assert is_erased(tmp_path / "checkpoints")
        assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("last", ["replace", "rmtree"])
def test_a_folder_whose_erasing_is_cut_short_is_whole_or_without_its_name(last, tmp_path, monkeypatch):
    whole = tmp_path / "checkpoints"
    for name in ("one", "two"):
        write_tree(whole / name, {"key": name.encode()})

    def killed(*_, **options):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os if last == "replace" else shutil, last, killed)
        with pytest.raises(KeyboardInterrupt):
            erase(whole)
    assert whole.exists() == (last == "replace")
    assert not is_erased(whole)
    if whole.exists():
        assert read_tree(whole / "two") == {"key": b"two"}
    erase(whole)
    assert list(tmp_path.iterdir()) == []


def test_two_processes_may_make_the_same_folders_at_the_same_time(tmp_path):
    with ThreadPoolExecutor(4) as pool:
        for number in range(100):
            together = threading.Barrier(4)

            def make(name, number=number, together=together):
                together.wait()
                make_private(tmp_path / f"runs {number}" / "credit" / name)

            list(pool.map(make, ("bank", "shop", "telco", "judge")))
