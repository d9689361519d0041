import inspect
import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import permutations
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from colonnade.attacks.base import Attack, Guess, Needs
from colonnade.attacks.labels.strongest import Strongest
from colonnade.auditing.attempt import Attempt, training_rows
from colonnade.auditing.null import honesty_check, null_values, permuted_truth_values
from colonnade.auditing.subjects.base import Made
from colonnade.auditing.subjects.classes import ClassTruth
from colonnade.auditing.subjects.labels import class_numbers, draw_grant
from colonnade.errors import ColonnadeError, PlanError, PrivacyError
from colonnade.privacy.randomness import Randomness
from colonnade.wire.recording.recording import RowMeans, Transcript

ORDER = np.random.default_rng(0).permutation(200)


def made(run: Any, attack: Any, attacker: str = "shop") -> Made:
    labels, n_classes = class_numbers(run.simulation.tables["bank"])
    grant = draw_grant(labels, n_classes, attack.needs.known_labels, np.arange(len(labels)), ORDER, "bank")
    attempt, truth = Attempt(attack, attacker, grant, seed=0), ClassTruth.of(labels, grant)
    guess = attempt.guess(run.simulation, lambda: run)
    return Made(attempt, truth, truth.scorable(guess, attack=attempt.name), {})


def plain(run: Any, attack: Any, n: int = 20, **how: Any) -> list[float]:
    (scored,) = null_values(run.simulation, [made(run, attack)], n=n, random=Randomness.seeded(0), **how)
    return [each.plain for each in scored]


def value(run: Any, attack: Any) -> float:
    each = made(run, attack)
    return each.truth.scores(each.guess).plain


class Backwards:
    """An executor that finishes the last task first."""

    def map_unordered(self, function: Callable[[Any], Any], tasks: Iterable[Any]) -> Iterator[tuple[int, Any]]:
        for index, task in reversed(list(enumerate(tasks))):
            yield index, SimpleNamespace(value=function(task), traceback=None)


class Failing:
    """An executor whose tasks all fail."""

    def map_unordered(self, function: Callable[[Any], Any], tasks: Iterable[Any]) -> Iterator[tuple[int, Any]]:
        yield 0, SimpleNamespace(value=None, traceback="Traceback (most recent call last):\nDataError: No rows.\n")


class Peeking(Attack):
    """Looks for the truth that it is scored by among the variables of whoever called it."""

    needs = Needs()

    def guess(self, view: Any) -> Guess:
        variables = [value for frame in inspect.stack() for value in frame.frame.f_locals.values()]
        labels = next(value.labels for value in variables if isinstance(value, ClassTruth))
        flipped = np.arange(len(labels)) % 3 == 0
        return Guess(np.arange(len(labels)), classes=np.where(flipped, 1 - labels, labels))


def test_an_attack_that_reads_the_messages_is_at_chance_in_the_null(toy: SimpleNamespace) -> None:
    run = toy.run()
    assert value(run, toy.ReadHint()) > 0.99
    assert np.mean(plain(run, toy.ReadHint())) == pytest.approx(0.5, abs=0.03)


def test_a_guess_that_is_right_is_at_chance_against_a_shuffled_truth(toy: SimpleNamespace) -> None:
    right = made(toy.run(), toy.ReadHint())
    assert right.truth.scores(right.guess).plain > 0.99
    found = [each.plain for each in permuted_truth_values(right, 20, Randomness.seeded(0))]
    assert np.mean(found) == pytest.approx(0.5, abs=0.03)


def test_an_attack_on_own_columns_scores_the_same_in_the_null(toy: SimpleNamespace) -> None:
    run = toy.run(strength=0, signal=4)
    assert plain(run, toy.NearestKnown(), n=3) == [value(run, toy.NearestKnown())] * 3
    assert value(run, toy.NearestKnown()) > 0.9


def test_an_active_attack_takes_part_in_a_null_run_of_its_own(toy: SimpleNamespace) -> None:
    run = toy.run()
    assert value(run, toy.TakePart()) > 0.99
    assert np.mean(plain(run, toy.TakePart())) == pytest.approx(0.5, abs=0.03)


def test_null_values_do_not_depend_on_who_runs_them_in_which_order(
    toy: SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    run = toy.run(strength=1)
    alone = plain(run, toy.ReadHint(), n=4)
    assert capsys.readouterr().err == ""
    assert alone == plain(run, toy.ReadHint(), n=4, executor=Backwards(), progress=True)
    assert "4 of 4" in capsys.readouterr().err


def test_what_a_model_warns_of_is_not_repeated_by_every_null_run(
    toy: SimpleNamespace, caplog: pytest.LogCaptureFixture
) -> None:
    class NotConverged(toy.ReadHint):  # type: ignore[name-defined, misc]
        """Stands for a model that has not converged."""

        def guess(self, view: Any) -> Guess:
            logging.getLogger("colonnade.models.glm.estimator").warning("not converged")
            return super().guess(view)

    plain(toy.run(), NotConverged(), n=3)
    assert caplog.messages == ["not converged"]


def test_a_joined_guess_is_not_compared_with_one_that_is_joined_from_fewer(toy: SimpleNamespace) -> None:
    class Once(toy.ReadHint):  # type: ignore[name-defined, misc]
        """Works on the run that is audited only."""

        def guess(self, view: Any) -> Guess:
            if vars(self).setdefault("done", 0):
                raise PrivacyError("it works once")
            self.done = 1
            return super().guess(view)

    run = toy.run()
    parts = [made(run, attack) for attack in (Once(), toy.ReadHint(shift=1), toy.NearestKnown())]
    grant = replace(parts[-1].attempt.grant, owner="bank")
    joined = Attempt(Strongest(), "shop", grant, seed=0)
    whole = Made(joined, parts[0].truth, parts[0].guess, {})
    *_, scored = null_values(run.simulation, [*parts, whole], n=2, random=Randomness.seeded(0))
    assert scored == "an attack that it reads could not be made"


def test_a_null_run_that_fails_fails_the_audit(toy: SimpleNamespace) -> None:
    with pytest.raises(ColonnadeError) as caught:
        plain(toy.run(), toy.ReadHint(), n=3, executor=Failing())
    assert str(caught.value) == (
        "All 3 null runs should end, but number 0 failed: DataError: No rows. "
        "Run the audit without an executor to see where."
    )


@pytest.mark.parametrize("attack", ["ReadHint", "RankByHint", "NearestKnown", "TakePart"])
def test_an_honest_attack_is_at_chance_on_an_independent_permutation(toy: SimpleNamespace, attack: str) -> None:
    run = toy.run(signal=3)
    assert value(run, getattr(toy, attack)()) > 0.8
    assert honesty_check(run, getattr(toy, attack)(), "shop") >= 0.001


def test_an_attack_that_peeks_at_what_it_is_scored_by_is_found_out(toy: SimpleNamespace) -> None:
    assert honesty_check(toy.run(), Peeking(), "shop") < 1e-6


class Counting(Attack):
    """Takes rows that could have been told for the class of which fewer are left there, and the others for the rest."""

    needs = Needs(known_labels=25)

    def guess(self, view: Any) -> Guess:
        return Guess(np.arange(200), classes=(np.arange(200) >= 100).astype(np.int64))


def test_only_rows_that_could_have_been_granted_are_scored_for_honesty(toy: SimpleNamespace) -> None:
    run = toy.run(labels=np.repeat([0, 1], [140, 60]))
    shop = run.transcripts["shop"]
    trained = tuple(replace(means, counts=np.where(np.arange(200) < 100, means.counts, 0)) for means in shop.means)
    half = replace(run, transcripts={**run.transcripts, "shop": replace(shop, means=trained)})
    assert training_rows(half.transcripts["shop"], 200).tolist() == list(range(100))
    # Of class 1, of which some 30 could be told, 25 are told: a row that was not told and could have been is hardly
    # ever of it. Who says so has seen nothing that it should not have.
    assert honesty_check(half, Counting(), "shop") >= 0.001


def test_honest_attacks_have_uniform_p_values(toy: SimpleNamespace) -> None:
    run = toy.run(signal=1, n=60)
    found = [honesty_check(run, toy.NearestKnown(), "shop", seeds=5, seed=seed) for seed in range(60)]
    # The mean of 60 uniform numbers has a standard error of 0.037.
    assert 0.35 < np.mean(found) < 0.65


def test_an_attack_that_does_not_apply_cannot_be_checked(toy: SimpleNamespace) -> None:
    with pytest.raises(PlanError) as caught:
        honesty_check(toy.run(keep="digests"), toy.ReadHint(), "shop")
    assert str(caught.value) == (
        "ReadHint should be able to attack this run as shop, but the run kept only digests of audit-tests/hint; "
        "run with keep='audit'. Choose another run or attacker."
    )


@pytest.mark.parametrize("kind", ["classes", "scores"])
def test_deviations_have_mean_zero_and_variance_one_over_all_orders(kind: str) -> None:
    labels = np.array([0, 0, 1, 1, 2, 2])
    said = np.array([0, 1, 1, 2, 0, 0])
    guess = Guess(np.arange(6), **{kind: said if kind == "classes" else said + 0.5})
    nothing = np.zeros(0, np.int64)
    found = [ClassTruth(np.array(order), 3, nothing).deviation(guess) for order in permutations(labels)]
    assert np.mean(found) == pytest.approx(0)
    assert np.var(found) == pytest.approx(1)


def test_a_guess_that_is_the_same_for_all_rows_deviates_from_nothing() -> None:
    guess = Guess(np.arange(4), classes=np.zeros(4, np.int64))
    assert ClassTruth(np.array([0, 0, 1, 1]), 2, np.zeros(0, np.int64)).deviation(guess) == 0


def test_a_grant_tells_as_many_labels_of_each_class_and_a_larger_one_contains_it() -> None:
    labels = np.arange(200) % 4
    small, large = (draw_grant(labels, 4, n, np.arange(200), ORDER) for n in (2, 5))
    assert np.bincount(small.labels).tolist() == [2, 2, 2, 2]
    assert set(small.rows) < set(large.rows)
    assert (labels[large.rows] == large.labels).all()


def test_a_grant_is_drawn_from_the_given_rows_only() -> None:
    labels = np.arange(200) % 2
    assert set(draw_grant(labels, 2, 3, np.arange(10), ORDER).rows) <= set(range(10))
    assert draw_grant(labels, 2, 6, np.arange(10), ORDER) is None


def test_training_rows_are_those_that_messages_were_about() -> None:
    means = RowMeans("split/gradient", "bank", False, 0, np.zeros((4, 2), np.float32), np.array([0, 3, 0, 3]))
    assert training_rows(Transcript("shop", means=(means,)), 6).tolist() == [1, 3]
    assert training_rows(Transcript("shop"), 3).tolist() == [0, 1, 2]
