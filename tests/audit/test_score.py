from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from colonnade.attacks.base import Guess
from colonnade.audit.score import Truth, best_named, chance, scorable, value, values, with_interval
from colonnade.errors import PlanError

NOTHING = np.zeros(0, np.int64)


def truth(labels, n_classes=2, granted=NOTHING):
    return Truth(np.asarray(labels, np.int64), n_classes, np.asarray(granted, np.int64))


def classes(*said, rows=None):
    return Guess(np.arange(len(said)) if rows is None else np.asarray(rows), classes=np.asarray(said, np.int64))


def scores(*said, rows=None):
    return Guess(np.arange(len(said)) if rows is None else np.asarray(rows), scores=np.asarray(said, np.float64))


def test_accuracy_is_the_share_of_rows_named_rightly() -> None:
    assert value(classes(0, 1, 1, 0), truth([0, 1, 0, 0])) == 0.75


@given(st.lists(st.tuples(st.integers(0, 4), st.booleans()), min_size=2, max_size=40))
def test_the_auc_is_scikit_learns_also_with_ties(pairs: list[tuple[int, bool]]) -> None:
    said, last = zip(*pairs, strict=True)
    found = value(scores(*said), truth(last))
    assert found == (pytest.approx(roc_auc_score(last, said)) if len(set(last)) == 2 else 0.5)


def test_with_three_classes_the_auc_is_that_of_the_last_against_the_others() -> None:
    assert value(scores(0.1, 0.2, 0.9), truth([0, 1, 2], 3)) == 1.0


def test_granted_rows_are_not_scored() -> None:
    kept = scorable(classes(0, 0, 1, 1), truth([0, 0, 0, 0], granted=[2, 3]), attack="Guessing")
    assert kept.rows.tolist() == [0, 1]
    assert value(kept, truth([0, 0, 0, 0], granted=[2, 3])) == 1.0


def test_chance_is_the_best_constant_guess_on_rows_that_were_not_granted() -> None:
    assert chance("accuracy", truth([0, 1, 1, 1, 1], granted=[3, 4])) == pytest.approx(2 / 3)
    assert chance("AUC", truth([0, 1, 1, 1, 1])) == 0.5


def test_a_guess_about_nothing_is_worth_chance() -> None:
    nothing = Guess(NOTHING, classes=NOTHING)
    assert value(nothing, truth([0, 1, 1])) == pytest.approx(2 / 3)


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), min_size=1, max_size=30))
def test_the_best_naming_is_the_best_of_all_namings(pairs: list[tuple[int, int]]) -> None:
    said, labels = (np.array(side) for side in zip(*pairs, strict=True))
    best = max(float((np.array(names)[said] == labels).mean()) for names in permutations(range(3)))
    assert value(best_named(classes(*said), truth(labels, 3)), truth(labels, 3)) == pytest.approx(best)


def test_a_guess_that_is_always_wrong_is_right_up_to_naming() -> None:
    assert values(classes(1, 1, 0, 0), truth([0, 0, 1, 1])).plain == 0
    assert values(classes(1, 1, 0, 0), truth([0, 0, 1, 1])).up_to_naming == 1
    assert values(scores(4, 3, 2, 1), truth([0, 0, 1, 1])).up_to_naming == 1


@pytest.mark.parametrize("kind", ["classes", "scores"])
def test_the_interval_is_that_of_resampling_rows_one_by_one(kind: str) -> None:
    random = np.random.default_rng(0)
    labels = random.integers(2, size=120)
    noisy = labels + random.normal(size=120)
    guess = classes(*(noisy > 0.5)) if kind == "classes" else scores(*noisy)
    slow = []
    for _ in range(1000):
        drawn = random.integers(120, size=120)
        said = (noisy[drawn] > 0.5) == labels[drawn]
        slow.append(said.mean() if kind == "classes" else roc_auc_score(labels[drawn], noisy[drawn]))
    found = with_interval(guess, truth(labels), np.random.default_rng(1))
    assert [found.low, found.high] == pytest.approx(np.quantile(slow, [0.025, 0.975]), abs=0.015)
    assert found.low < found.value < found.high


def test_an_interval_over_very_many_rows_contains_its_value_and_is_narrow() -> None:
    random = np.random.default_rng(0)
    labels = random.integers(2, size=50_000)
    found = with_interval(scores(*(labels + random.normal(size=50_000))), truth(labels), random)
    # The standard error of this AUC is about 0.002.
    assert found.value - 0.006 < found.low < found.value < found.high < found.value + 0.006


def test_a_guess_about_rows_that_do_not_exist_or_twice_about_one_is_refused() -> None:
    with pytest.raises(PlanError) as caught:
        scorable(classes(0, 0, 0, rows=[0, 0, 7]), truth([0, 1]), attack="Guessing")
    assert str(caught.value) == (
        "Guessing should guess each of 2 rows at most once, but 1 of its rows do not exist and 1 are repeated. "
        "Correct the attack."
    )


@pytest.mark.parametrize(
    ("guess", "wanted"), [(classes(0, 2), "classes below 2"), (scores(0, float("nan")), "finite scores")]
)
def test_a_guess_that_cannot_be_compared_is_refused(guess: Guess, wanted: str) -> None:
    with pytest.raises(PlanError) as caught:
        scorable(guess, truth([0, 1]), attack="Guessing")
    assert str(caught.value) == (
        f"Guessing should guess {wanted}, but 1 of 2 values are something else. "
        "Let it leave out the rows it cannot guess."
    )
