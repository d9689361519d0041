"""How parties go on when they meet."""

import pytest

from colonnade.errors import AuthError
from colonnade.wire.epoch import HeldCheckpoint, next_start

NAMES = ("bank", "shop", "telco")


def fresh(*names, folder=b"first"):
    return {name: HeldCheckpoint(0, folder + name.encode()) for name in names}


def holding(newest, held):
    """The same parties a few checkpoints later."""
    run = next_start(1, held).run
    return {name: HeldCheckpoint(number, held[name].folder, run) for name, number in zip(held, newest, strict=True)}


def test_all_go_on_from_the_oldest_of_their_newest_checkpoints():
    held = holding((5, 3, 4), fresh(*NAMES))
    assert next_start(2, held) == (2, 3, held["bank"].run)


def test_one_who_has_no_checkpoint_yet_makes_all_begin_the_same_run_anew():
    held = holding((5, 0, 4), fresh(*NAMES))
    held["shop"] = held["shop"]._replace(run=b"")
    assert next_start(2, held) == (2, 0, held["bank"].run)


def test_a_new_folder_makes_a_new_run():
    held = holding((5, 3, 4), fresh(*NAMES))
    start = next_start(2, held | fresh("shop", folder=b"new"))
    assert start.common == 0
    assert start.run != held["bank"].run


@pytest.mark.parametrize("behind", ["bank", "telco"])
def test_who_was_killed_before_it_heard_of_a_new_run_does_not_mix_two(behind):
    old = holding((4, 4, 4), fresh(*NAMES))
    new = holding((4, 4, 4), old | fresh("shop", folder=b"new"))
    start = next_start(3, new | {behind: old[behind]})
    assert start == (3, 0, new["shop"].run)


@pytest.mark.parametrize("third", ["none", "first", "second"])
def test_checkpoints_of_different_runs_are_refused_whatever_a_third_party_holds(third):
    first, second = (holding((4, 4, 4), fresh(*NAMES, folder=folder)) for folder in (b"first", b"second"))
    telco = {"none": fresh("telco"), "first": first, "second": second}[third]["telco"]
    with pytest.raises(AuthError, match="bank and shop go on with different runs of the same plan"):
        next_start(2, {"bank": first["bank"], "shop": second["shop"], "telco": telco})
