"""How parties go on when they meet."""

import pytest

from colonnade.errors import AuthError
from colonnade.wire.meeting import RUN_BYTES, RUNS_KEPT, Held, Start, are_runs, next_start

FIRST, SECOND, NEW = (bytes([number]) * RUN_BYTES for number in (1, 2, 3))


def test_all_go_on_from_the_oldest_of_their_newest_checkpoints():
    held = {"bank": Held(5, (FIRST,)), "shop": Held(3, (FIRST,)), "telco": Held(4, (FIRST,))}
    assert next_start(2, held, NEW) == Start(2, 3, (FIRST,))


def test_all_begin_anew_when_one_holds_nothing():
    held = {"bank": Held(5, (FIRST,)), "shop": Held(0), "telco": Held(4, (FIRST,))}
    assert next_start(2, held, NEW) == Start(2, 0, (FIRST, NEW))
    assert next_start(1, {"bank": Held(0), "shop": Held(0)}, NEW) == Start(1, 0, (NEW,))


@pytest.mark.parametrize("behind", ["bank", "shop", "telco"])
def test_who_was_killed_before_it_heard_that_all_begin_anew_does_not_mix_two_runs(behind):
    held = dict.fromkeys(("bank", "shop", "telco"), Held(4, (FIRST, SECOND))) | {behind: Held(4, (FIRST,))}
    assert next_start(3, held, NEW) == Start(3, 0, (FIRST, SECOND, NEW))


@pytest.mark.parametrize("third", [Held(0), Held(2, (FIRST,)), Held(2, (SECOND,))])
def test_checkpoints_of_unrelated_runs_are_refused_whatever_a_third_party_holds(third):
    held = {"bank": Held(4, (FIRST,)), "shop": Held(4, (SECOND,)), "telco": third}
    with pytest.raises(AuthError, match="bank and shop go on with different runs of the same plan"):
        next_start(2, held, NEW)


def test_the_past_is_bounded():
    past = tuple(bytes([number]) * RUN_BYTES for number in range(RUNS_KEPT))
    runs = next_start(2, {"bank": Held(0), "shop": Held(1, past)}, b"n" * RUN_BYTES).runs
    assert len(runs) == RUNS_KEPT
    assert are_runs(runs)


@pytest.mark.parametrize("names", [[1], [b"short"], [[FIRST]], [FIRST] * (RUNS_KEPT + 1)])
def test_what_is_no_list_of_runs_is_known_as_such(names):
    assert not are_runs(names)
