"""A worker keeps what it holds for one crew, and nothing once that crew has ended."""

import pytest

from colonnade.errors import EngineError
from colonnade.runtime import answers
from colonnade.runtime.answers import Missing, Raised, answer, drop


class Numbers:
    """The recipe of a portion with one partition; something may happen while it is made."""

    def __init__(self, name, value, meanwhile=lambda: None):
        self.name, self._value, self._meanwhile = name, value, meanwhile

    def made(self, held):
        self._meanwhile()
        return {0: self._value}


def asked(crew, recipe, *, told=False):
    """What a worker answers that is asked for the magnitude of the partition."""
    return answer(crew, abs, (), recipe.name, 0, None if told else recipe, ())


def portions():
    return {crew: set(held) for crew, held in answers._HELD.items() if held}


@pytest.fixture(autouse=True)
def nothing_held(monkeypatch):
    monkeypatch.setattr(answers, "_HELD", {})
    monkeypatch.setattr(answers, "_ENDED", {})


def test_a_portion_that_is_made_while_its_crew_ends_does_not_stay():
    assert asked("one", Numbers("salaries", -4, lambda: drop("one"))) == 4
    assert portions() == {}


def test_a_call_that_comes_after_its_crew_has_ended_is_refused_and_leaves_nothing():
    drop("one")
    made = []
    refused = asked("one", Numbers("salaries", -4, lambda: made.append(1)))
    assert isinstance(refused, Raised)
    assert isinstance(refused.error, EngineError)
    assert "should be called while the run goes on, but was called after its end" in str(refused.error)
    assert made == []
    assert answers._HELD == {}


def test_the_end_of_one_crew_takes_nothing_from_another():
    for crew, value in (("one", -1), ("two", -2)):
        assert asked(crew, Numbers("ages", value)) == -value
    drop("one")
    assert portions() == {"two": {"ages"}}
    assert asked("two", Numbers("ages", 0), told=True) == 2
    assert asked("three", Numbers("ages", 0), told=True) == Missing("ages")


def test_a_worker_remembers_the_latest_crews_that_have_ended(monkeypatch):
    monkeypatch.setattr(answers, "MOST_ENDED", 3)
    for crew in "abcde":
        drop(crew)
    assert list(answers._ENDED) == ["c", "d", "e"]
