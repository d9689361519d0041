from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import balanced_accuracy_score, recall_score, roc_auc_score

from colonnade.attacks.base import Guess
from colonnade.auditing.subjects.classes import ClassTruth, best_named, chance, value, with_interval
from colonnade.errors import PlanError

NOTHING = np.zeros(0, np.int64)


def truth(labels, n_classes=2, granted=NOTHING):
    return ClassTruth(np.asarray(labels, np.int64), n_classes, np.asarray(granted, np.int64))


def classes(*said, rows=None):
    return Guess(np.arange(len(said)) if rows is None else np.asarray(rows), classes=np.asarray(said, np.int64))


def scores(*said, rows=None):
    return Guess(np.arange(len(said)) if rows is None else np.asarray(rows), scores=np.asarray(said, np.float64))


def test_balanced_accuracy_is_the_mean_share_of_each_class_named_rightly() -> None:
    assert value(classes(0, 1, 1, 0), truth([0, 1, 0, 0])) == pytest.approx((2 / 3 + 1) / 2)
    assert value(classes(0, 1), truth([0, 1], 3)) == 1.0


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), min_size=1, max_size=30))
def test_balanced_accuracy_is_scikit_learns_mean_recall(pairs: list[tuple[int, int]]) -> None:
    said, labels = zip(*pairs, strict=True)
    expected = recall_score(labels, said, labels=sorted(set(labels)), average="macro", zero_division=0)
    assert value(classes(*said), truth(labels, 3)) == pytest.approx(expected)


def test_a_guess_that_finds_a_rare_class_is_worth_more_than_the_best_constant_one() -> None:
    labels = np.repeat([0, 1], [95, 5])
    finds = labels.copy()
    finds[:10] = 1
    assert value(classes(*finds), truth(labels)) == pytest.approx((85 / 95 + 1) / 2)
    assert value(classes(*np.zeros(100)), truth(labels)) == chance("balanced accuracy", truth(labels), np.arange(100))


@given(st.lists(st.tuples(st.integers(0, 4), st.booleans()), min_size=2, max_size=40))
def test_the_auc_is_scikit_learns_also_with_ties(pairs: list[tuple[int, bool]]) -> None:
    said, last = zip(*pairs, strict=True)
    found = value(scores(*said), truth(last))
    assert found == (pytest.approx(roc_auc_score(last, said)) if len(set(last)) == 2 else 0.5)


def test_with_three_classes_the_auc_is_that_of_the_last_against_the_others() -> None:
    assert value(scores(0.1, 0.2, 0.9), truth([0, 1, 2], 3)) == 1.0


def test_granted_rows_are_not_scored() -> None:
    kept = truth([0, 0, 0, 0], granted=[2, 3]).scorable(classes(0, 0, 1, 1), attack="Guessing")
    assert kept.rows.tolist() == [0, 1]
    assert value(kept, truth([0, 0, 0, 0], granted=[2, 3])) == 1.0


def test_chance_is_one_over_the_classes_that_occur() -> None:
    assert chance("balanced accuracy", truth([0, 1, 1, 1, 2], 4), np.arange(5)) == pytest.approx(1 / 3)
    assert chance("balanced accuracy", truth([0, 1, 1, 1, 2], 4), np.arange(4)) == 0.5
    assert chance("AUC", truth([0, 1, 1, 1, 1]), np.arange(5)) == 0.5


def test_a_guess_about_nothing_is_worth_chance() -> None:
    nothing = Guess(NOTHING, classes=NOTHING)
    assert value(nothing, truth([0, 1, 2], 3)) == pytest.approx(1 / 3)


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), min_size=1, max_size=30))
def test_the_best_naming_is_the_best_of_all_namings(pairs: list[tuple[int, int]]) -> None:
    said, labels = (np.array(side) for side in zip(*pairs, strict=True))
    best = max(value(classes(*np.array(names)[said]), truth(labels, 3)) for names in permutations(range(3)))
    assert value(best_named(classes(*said), truth(labels, 3)), truth(labels, 3)) == pytest.approx(best)


def test_a_guess_that_is_always_wrong_is_right_up_to_naming() -> None:
    assert truth([0, 0, 1, 1]).scores(classes(1, 1, 0, 0)).plain == 0
    assert truth([0, 0, 1, 1]).scores(classes(1, 1, 0, 0)).up_to_naming == 1
    assert truth([0, 0, 1, 1]).scores(scores(4, 3, 2, 1)).up_to_naming == 1


@pytest.mark.parametrize("kind", ["classes", "scores"])
def test_the_interval_is_that_of_resampling_each_classes_rows_one_by_one(kind: str) -> None:
    random = np.random.default_rng(0)
    labels = random.integers(2, size=120)
    noisy = labels + random.normal(size=120)
    guess = classes(*(noisy > 0.5)) if kind == "classes" else scores(*noisy)
    slow = []
    for _ in range(1000):
        drawn = np.concatenate([random.choice(np.flatnonzero(labels == n), (labels == n).sum()) for n in (0, 1)])
        said = noisy[drawn] > 0.5
        score = balanced_accuracy_score if kind == "classes" else roc_auc_score
        slow.append(score(labels[drawn], said if kind == "classes" else noisy[drawn]))
    found = with_interval(guess, truth(labels), np.random.default_rng(1))
    assert [found.low, found.high] == pytest.approx(np.quantile(slow, [0.025, 0.975]), abs=0.015)
    assert found.low < found.value < found.high


@pytest.mark.parametrize("kind", ["classes", "scores"])
def test_a_perfect_guess_of_a_rare_class_has_no_resample_in_which_it_is_not(kind: str) -> None:
    labels = np.repeat([0, 1], [300, 2])
    found = with_interval((classes if kind == "classes" else scores)(*labels), truth(labels), np.random.default_rng(0))
    assert (found.low, found.value, found.high) == (1, 1, 1)


@pytest.mark.parametrize(
    ("guess", "labels", "reason"),
    [
        (Guess(NOTHING, classes=NOTHING), [0, 1], "it guessed no row that had not been granted"),
        (scores(1, 2, 3), [0, 0, 0, 1], "all rows it could be scored on are of one class"),
        (classes(1, 1), [1, 1, 0, 0], "all rows it could be scored on are of one class"),
        (scores(1, 2, 3), [0, 0, 1], "it could be scored on a single row of one class"),
        (scores(1, 2, 3, 4), [0, 0, 1, 1], None),
    ],
)
def test_what_tells_nothing_has_a_reason(guess: Guess, labels: list[int], reason: str | None) -> None:
    kept = truth(labels).scored_part(guess)
    assert (None if isinstance(kept, Guess) else kept) == reason


def test_an_interval_over_very_many_rows_contains_its_value_and_is_narrow() -> None:
    random = np.random.default_rng(0)
    labels = random.integers(2, size=50_000)
    found = with_interval(scores(*(labels + random.normal(size=50_000))), truth(labels), random)
    # The standard error of this AUC is about 0.002.
    assert found.value - 0.006 < found.low < found.value < found.high < found.value + 0.006


def test_a_guess_about_rows_that_do_not_exist_or_twice_about_one_is_refused() -> None:
    with pytest.raises(PlanError) as caught:
        truth([0, 1]).scorable(classes(0, 0, 0, rows=[0, 0, 7]), attack="Guessing")
    assert str(caught.value) == (
        "Guessing cannot be scored: it should guess each of 2 rows at most once, but 1 of its rows do not exist and 1 "
        "are repeated. Correct the attack, or let it leave out the rows it cannot guess."
    )


@pytest.mark.parametrize(
    ("guess", "wanted"), [(classes(0, 2), "classes below 2"), (scores(0, float("nan")), "finite scores")]
)
def test_a_guess_that_cannot_be_compared_is_refused(guess: Guess, wanted: str) -> None:
    with pytest.raises(PlanError) as caught:
        truth([0, 1]).scorable(guess, attack="Guessing")
    assert str(caught.value) == (
        f"Guessing cannot be scored: it should guess {wanted}, but 1 of 2 values are something else. "
        "Correct the attack, or let it leave out the rows it cannot guess."
    )
