import numpy as np
import pytest

from colonnade.attacks.base import Guess
from colonnade.auditing.attempt import name_of
from colonnade.catalogue import ATTACKS, THOROUGH, attacks_of_audit

ROWS = np.array([3, 5])


def test_ratings_of_two_classes_are_scores_and_of_more_are_classes():
    two = Guess.rated(ROWS, np.array([[0.5, 0.2], [0.1, 0.9]]))
    assert two.classes is None
    np.testing.assert_allclose(two.scores, [-0.3, 0.8])
    three = Guess.rated(ROWS, np.array([[0.1, 0.2, 0.7], [0.5, 0.3, 0.2]]))
    assert three.scores is None
    assert three.classes.tolist() == [2, 0]


def test_every_guess_about_classes_rates_them():
    ratings = np.array([[0.1, 0.2, 0.7], [0.5, 0.3, 0.2]])
    assert Guess.classified(ROWS, ratings).by_class(3) is ratings
    assert Guess(ROWS, classes=np.array([2, 0])).by_class(3).tolist() == [[0, 0, 1], [1, 0, 0]]
    assert Guess(ROWS, scores=np.array([1.0, -2.0])).by_class(2).tolist() == [[-1, 1], [2, -2]]


def test_ratings_that_say_something_else_than_the_classes_would_be_a_second_guess():
    with pytest.raises(AssertionError, match="the class is the one rated highest"):
        Guess(ROWS, classes=np.array([0, 1]), ratings=np.array([[0.0, 1.0], [0.0, 1.0]]))


def test_a_part_of_a_guess_has_a_part_of_its_ratings():
    guess = Guess.classified(ROWS, np.array([[0.1, 0.9], [0.8, 0.2]])).only(np.array([False, True]))
    assert (guess.rows.tolist(), guess.classes.tolist(), guess.ratings.tolist()) == ([5], [0], [[0.8, 0.2]])


def test_a_thorough_audit_makes_every_attack_once_in_each_form_and_an_ordinary_one_leaves_the_slow_ones_out():
    ordinary, thorough = attacks_of_audit(), [name_of(attack) for attack in attacks_of_audit(thorough=True)]
    assert len(set(thorough)) == len(thorough)
    assert {name.partition("(")[0] for name in thorough} == {make.__name__ for make in ATTACKS.values()}
    assert {type(attack) for attack in ordinary} == {ATTACKS[name] for name in ATTACKS if name not in THOROUGH}
    assert set(ATTACKS) > THOROUGH
