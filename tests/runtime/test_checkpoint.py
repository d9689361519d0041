import threading
from pathlib import Path

import numpy as np
import pytest

from colonnade.errors import PlanError, StorageError
from colonnade.runtime.checkpoint import Checkpoints, GlobalGenerators, Steps


class Counter:
    """A state that counts its steps and remembers them."""

    def __init__(self):
        self.seen = []

    def state(self):
        return {"seen": self.seen}

    def restore(self, tree):
        self.seen = tree["seen"]


def go(directory, n, *, resume=0, crash_at=None, stop_at=None, name="train", every=2, shared=True):
    checkpoints = Checkpoints(directory, every=every)
    checkpoints.resume(resume)
    state = Counter()
    steps = Steps(name, n, {"own": state}, checkpoints, shared=shared)
    for step in steps:
        if step == crash_at:
            raise KeyboardInterrupt
        state.seen.append(step)
        if step == stop_at:
            steps.stop()
    return state.seen


def test_a_loop_runs_all_its_steps(tmp_path):
    assert go(tmp_path, 5) == [0, 1, 2, 3, 4]
    assert go(None, 5) == [0, 1, 2, 3, 4]


def test_a_loop_goes_on_from_the_checkpoint_it_is_told(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        go(tmp_path, 7, crash_at=5)
    assert Checkpoints(tmp_path).newest == 2
    assert go(tmp_path, 7, resume=1) == [0, 1, 2, 3, 4, 5, 6]
    assert Checkpoints(tmp_path).newest == 4


def test_checkpoints_after_the_common_one_are_forgotten(tmp_path):
    go(tmp_path, 6)
    checkpoints = Checkpoints(tmp_path)
    checkpoints.resume(1)
    assert checkpoints.newest == 1


def test_a_loop_that_had_ended_is_not_run_again(tmp_path):
    assert go(tmp_path, 9, stop_at=4) == [0, 1, 2, 3, 4]
    checkpoints = Checkpoints(tmp_path)
    assert checkpoints.newest == 3
    state = Counter()
    assert list(Steps("train", 9, {"own": state}, _resumed(tmp_path, 3))) == []
    assert state.seen == [0, 1, 2, 3, 4]


def test_of_a_loop_that_ended_before_the_newest_checkpoint_all_but_the_recording_is_restored(tmp_path):
    own, recording = Counter(), Counter()
    checkpoints = _resumed(tmp_path, 0)
    for name in ("first", "second"):
        for step in Steps(name, 2, {"own": own, "recording": recording}, checkpoints):
            own.seen.append(step)
            recording.seen.append(f"{name} {step}")
    own, recording = Counter(), Counter()
    resumed = _resumed(tmp_path, 2)
    assert list(Steps("first", 2, {"own": own, "recording": recording}, resumed)) == []
    assert (own.seen, recording.seen) == ([0, 1], [])
    assert list(Steps("second", 2, {"own": own, "recording": recording}, resumed)) == []
    assert recording.seen == ["first 0", "first 1", "second 0", "second 1"]


def test_old_checkpoints_go_but_the_ends_of_loops_stay(tmp_path):
    go(tmp_path, 4, name="first")
    checkpoints = _resumed(tmp_path, 2)
    for _ in Steps("second", 4, {"own": Counter()}, checkpoints):
        pass
    checkpoints.forget_before(4)
    assert sorted(path.name[9:] for path in tmp_path.iterdir()) == [
        "first.end.safetensors",
        "second.end.safetensors",
    ]


def test_a_loop_run_alone_keeps_its_own_checkpoint_and_no_shared_one(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        go(tmp_path, 7, crash_at=5, shared=False)
    assert Checkpoints(tmp_path).newest == 0
    assert go(tmp_path, 7, shared=False) == [0, 1, 2, 3, 4, 5, 6]


def test_once_makes_a_value_once(tmp_path):
    made = iter([b"first", b"second"])
    assert Checkpoints(tmp_path).once("the key", lambda: next(made)) == b"first"
    assert Checkpoints(tmp_path).once("the key", lambda: next(made)) == b"first"
    without_a_folder = Checkpoints(None)
    assert without_a_folder.once("the key", lambda: next(made)) == b"second"
    assert without_a_folder.once("the key", lambda: next(made)) == b"second"


def test_a_value_that_is_not_made_again_leaves_the_generators_as_if_it_had_been(tmp_path):
    generators = GlobalGenerators()
    outside = generators.capture()
    drawn = []
    for _ in range(2):
        generators.seed(1)
        Checkpoints(tmp_path).once("noise", lambda: np.random.rand(3))
        drawn.append(np.random.rand())
    generators.put(outside)
    assert drawn[0] == drawn[1]


def test_what_a_party_made_alone_is_kept_in_its_run_and_forgotten_in_another(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.belong_to(b"the first run")
    go(tmp_path, 4, shared=False)
    checkpoints.belong_to(b"the first run")
    assert checkpoints.local("train").exists()
    checkpoints.belong_to(b"another run")
    assert not checkpoints.local("train").exists()


def test_what_was_made_once_is_forgotten_in_another_run_unless_it_is_the_folders(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    assert not checkpoints.belong_to(b"the first run")
    assert [checkpoints.once(name, lambda: 1) for name in ("key", "folder key")] == [1, 1]
    assert not checkpoints.belong_to(b"the first run")
    assert checkpoints.once("key", lambda: 2) == 1
    assert checkpoints.belong_to(b"another run")
    assert [checkpoints.once(name, lambda: 2) for name in ("key", "folder key")] == [2, 1]


def test_a_folder_keeps_its_name_and_has_no_run_without_checkpoints(tmp_path):
    first = Checkpoints(tmp_path)
    assert first.folder == Checkpoints(tmp_path).folder != Checkpoints(tmp_path / "other").folder
    first.belong_to(b"the run")
    assert first.run == b""
    go(tmp_path, 4)
    assert first.run == b"the run"


def test_a_checkpoint_that_is_gone_is_not_gone_on_from(tmp_path):
    go(tmp_path, 10, every=1)
    checkpoints = Checkpoints(tmp_path)
    checkpoints.forget_before(4)
    with pytest.raises(StorageError, match=r"All should go on from checkpoint 2, but .* no longer holds it"):
        checkpoints.resume(2)
    assert checkpoints.newest == 10, "nothing was deleted"


def test_the_newest_checkpoint_is_never_forgotten(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        go(tmp_path, 9, crash_at=7)
    Checkpoints(tmp_path).forget_before(10**9)
    assert Checkpoints(tmp_path).newest


def test_whoever_is_killed_while_it_goes_back_lacks_none_before_its_newest(tmp_path, monkeypatch):
    go(tmp_path, 10, every=1)
    unlink, left = Path.unlink, iter([True, True, False])

    def killed(path, **options):
        if not next(left):
            raise KeyboardInterrupt
        unlink(path, **options)

    monkeypatch.setattr(Path, "unlink", killed)
    with pytest.raises(KeyboardInterrupt):
        Checkpoints(tmp_path).resume(3)
    assert list(Checkpoints(tmp_path)._files()) == list(range(1, 9))


def test_erased_checkpoints_hold_nothing_and_values_are_made_again(tmp_path):
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    made = iter([b"first", b"second"])
    assert checkpoints.once("the key", lambda: next(made)) == b"first"
    go(tmp_path / "checkpoints", 4)
    checkpoints.belong_to(b"the run")
    checkpoints.erase()
    assert list(tmp_path.iterdir()) == []
    assert checkpoints.newest == 0
    assert checkpoints.once("the key", lambda: next(made)) == b"second"
    without_a_folder = Checkpoints(None)
    without_a_folder.once("the key", lambda: b"first")
    without_a_folder.erase()
    assert without_a_folder.once("the key", lambda: b"second") == b"second"


def test_two_loops_of_one_name_are_refused():
    checkpoints = Checkpoints(None)
    list(Steps("train", 1, {}, checkpoints))
    with pytest.raises(PlanError, match="The loop 'train' was begun twice in one run"):
        list(Steps("train", 1, {}, checkpoints))


def test_the_generators_that_libraries_share_can_be_put_back():
    import torch

    generators = GlobalGenerators()
    outside = generators.capture()
    generators.seed(3)
    tree = generators.state()
    first = np.random.rand(), torch.rand(1).item()
    generators.restore(tree)
    assert (np.random.rand(), torch.rand(1).item()) == first
    generators.put(outside)


def test_threads_may_exchange_the_generators_and_read_their_state_at_the_same_time():
    generators = GlobalGenerators()

    def exchange():
        for _ in range(20_000):
            generators.lose_half_draw()

    thread = threading.Thread(target=exchange)
    thread.start()
    while thread.is_alive():
        assert generators.state()["numpy"][0] == "MT19937"
    thread.join()


def _resumed(directory, number):
    checkpoints = Checkpoints(directory, every=2)
    checkpoints.resume(number)
    return checkpoints
