"""Nulls: what an attack scores where the messages can tell it nothing.

**Null.** The run again with permuted labels; the same attack with the same grant; its guess scored against the original
labels. What it still finds comes from the attacker's own features and the grant, not from the messages. All attacks
share the null runs, except that an active attacker takes part in a run of its own.

**Permuted truth.** Where a run cannot be repeated: the same guess, scored against permuted labels. That rules out luck,
and nothing else.

**Honesty.** Granted and scored from a permutation of the labels that nothing else depends on, any attack must be at
chance; otherwise the grant or the scoring tells it labels that it should not know. An attack that reads the *real*
labels somewhere is at chance here, too: a passive one is caught where it is repeated in a fresh interpreter
(`colonnade.testing.check_attack`), an active one is not caught by anything.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Protocol, TypeVar

import numpy as np

from colonnade.attacks.base import ActiveAttack, Attack, Guess
from colonnade.auditing.attempt import Attempt, draw_grant, training_rows
from colonnade.auditing.score import Truth, Values, scorable, unusable, values
from colonnade.errors import ColonnadeError, PlanError
from colonnade.privacy.randomness import Randomness
from colonnade.runtime.simulate import Run, Simulation
from colonnade.wire.message import Float64Array, Int64Array

T = TypeVar("T")


class Outcome(Protocol):
    """What became of a task: its value, or the traceback of its failure."""

    @property
    def value(self) -> Any:
        """What the function returned."""

    @property
    def traceback(self) -> str | None:
        """Why it did not return; None if it did."""


class Executor(Protocol):
    """Whatever runs a function on many tasks, in any order and any number at a time."""

    def map_unordered(self, function: Callable[[T], Any], tasks: Iterable[T]) -> Iterator[tuple[int, Outcome]]:
        """Yield every task's position and outcome as it ends."""


@dataclass(frozen=True)
class _Null:
    """One null run, and the attempts to be made on it."""

    simulation: Simulation[Any]
    attempts: tuple[Attempt, ...]
    randomness: Randomness


def class_numbers(simulation: Simulation[Any]) -> tuple[Int64Array, int]:
    """A simulation's labels as class numbers, and how many classes there are."""
    return numbered(_labels(simulation))


def numbered(labels: np.ndarray[Any, Any]) -> tuple[Int64Array, int]:
    """Labels as class numbers in the sorted order of the classes, and how many classes there are."""
    classes, numbers = np.unique(labels, return_inverse=True)
    return numbers.astype(np.int64), len(classes)


def null_values(
    simulation: Simulation[Any],
    attempts: Sequence[Attempt],
    *,
    n: int,
    seed: int,
    executor: Executor | None = None,
    advance: Callable[[], None] = lambda: None,
) -> list[list[Values] | str]:
    """What each attempt scores in each of n null runs, or why it cannot be scored in one of them.

    Args:
        simulation: The run to repeat with permuted labels.
        attempts: The attacks, with their grants of original labels.
        n: How many null runs.
        seed: The permutations follow from it, whatever runs them.
        executor: What runs them; one after the other in this process if None.
        advance: Called after each.
    """
    tasks = [_Null(simulation, tuple(attempts), Randomness.seeded(seed, "null", number)) for number in range(n)]
    by_null: dict[int, list[Values | str]] = {}
    for number, scored in _each(_score_null, tasks, executor):
        by_null[number] = scored
        advance()
    by_attempt = ([by_null[number][place] for number in range(n)] for place in range(len(attempts)))
    return [_all_or_reason(scored) for scored in by_attempt]


def require_permutations(n: int) -> None:
    """Refuse an audit without a null."""
    if n < 1:
        raise PlanError(
            "An audit needs at least one permutation of the labels to tell a leak from luck, "
            f"but nulls is {n}. Use 200."
        )


def permuted_truth_values(guess: Guess, truth: Truth, n: int, random: np.random.Generator) -> list[Values]:
    """What a guess scores against n permutations of the labels that could have been guessed."""
    rows, scored = truth.scored_rows, []
    for _ in range(n):
        labels = truth.labels.copy()
        labels[rows] = random.permutation(labels[rows])
        scored.append(values(guess, replace(truth, labels=labels)))
    return scored


def honesty_check(
    run: Run[Any], attack: Attack | ActiveAttack, attacker: str, *, seeds: int = 20, seed: int = 0
) -> float:
    """How likely scores as far from chance as these are, if neither grant nor scoring tells an attack too much.

    The attack is made on the run as it is, but granted and scored from independent permutations of the labels, as many
    as there are seeds. Mean and variance of hits, or of rank sums, under permutation are known, so the standardised
    deviations add up to a normal one. Only rows that could have been granted are scored: a grant changes which classes
    are left among these, and not among others.

    Args:
        run: A run to attack.
        attack: The attack in question.
        attacker: The party that makes it.
        seeds: How many permutations.
        seed: The permutations follow from it.

    Returns:
        A two-sided p-value; an honest attack's is below .001 once in a thousand times.
    """
    labels, n_classes = class_numbers(run.simulation)
    rows = training_rows(run.transcripts[attacker], len(labels))
    total = 0.0
    for number in range(seeds):
        randomness = Randomness.seeded(seed, "honesty", number)
        permuted = randomness.generator("labels").permutation(labels)
        order = randomness.generator("grant").permutation(len(labels))
        grant = draw_grant(permuted, n_classes, attack.needs.known_labels, rows, order)
        if grant is None:
            raise _cannot_be_checked(attack, attacker, "a class has fewer rows than it must be told")
        attempt = Attempt(attack, attacker, grant, randomness.seed("attack"))
        if reason := attempt.unfit(run):
            raise _cannot_be_checked(attack, attacker, reason)
        not_scored = np.union1d(grant.rows, np.setdiff1d(np.arange(len(labels)), rows))
        truth = Truth(permuted, n_classes, not_scored)
        total += deviation(scorable(attempt.guess(run.simulation, lambda: run), truth, attack=attempt.name), truth)
    return math.erfc(abs(total) / math.sqrt(2 * seeds))


def _all_or_reason(scored: list[Values | str]) -> list[Values] | str:
    usable = [each for each in scored if isinstance(each, Values)]
    return usable if len(usable) == len(scored) else next(each for each in scored if isinstance(each, str))


def _score_null(null: _Null) -> list[Values | str]:
    labels, _ = class_numbers(null.simulation)
    permuted = null.randomness.generator("labels").permutation(_labels(null.simulation))
    simulation = null.simulation.changed(labels=permuted)
    run = cache(simulation.run)
    scored: list[Values | str] = []
    for attempt in null.attempts:
        truth, guess = Truth.of(labels, attempt.grant), attempt.guess(simulation, run)
        reason = unusable(guess, truth)
        scored.append(reason or values(scorable(guess, truth, attack=attempt.name), truth))
    return scored


def _each(function: Callable[[T], Any], tasks: Sequence[T], executor: Executor | None) -> Iterator[tuple[int, Any]]:
    if executor is None:
        for number, task in enumerate(tasks):
            yield number, function(task)
        return
    for number, outcome in executor.map_unordered(function, tasks):
        if outcome.traceback is not None:
            # The last line that is not indented names the error; the note of where it happened follows it.
            lines = [line for line in outcome.traceback.strip().splitlines() if not line.startswith(" ")]
            words = next((line for line in reversed(lines) if not line.startswith("This happened at")), "")
            raise ColonnadeError(
                f"All {len(tasks)} null runs should end, but number {number} failed: {words} "
                "Run the audit without an executor to see where."
            )
        yield number, outcome.value


def _labels(simulation: Simulation[Any]) -> np.ndarray[Any, Any]:
    owner = simulation.roles.label
    labels = None if owner is None else simulation.tables[owner].labels
    if labels is None:
        raise PlanError("Attacks about labels need a label party with labels, but this run has none. Name one.")
    return np.asarray(labels)


def deviation(guess: Guess, truth: Truth) -> float:
    """By how many standard deviations a guess exceeds its mean over all orders of the labels.

    Hits and rank sums are both a sum of products x_i y_j(i); its mean and variance over random j are the classical ones
    of linear permutation statistics (Hoeffding 1951).
    """
    labels = truth.labels[guess.rows]
    x: Float64Array
    if guess.scores is None:
        assert guess.classes is not None
        x = np.eye(truth.n_classes)[guess.classes]
        y = np.eye(truth.n_classes)[labels]
    else:
        from scipy.stats import rankdata

        x = rankdata(guess.scores)[:, None]
        y = (labels == truth.n_classes - 1).astype(np.float64)[:, None]
    x, y = x - x.mean(axis=0), y - y.mean(axis=0)
    variance = ((x.T @ x) * (y.T @ y)).sum() / max(len(x) - 1, 1)
    return float((x * y).sum() / math.sqrt(variance)) if variance > 0 else 0.0


def _cannot_be_checked(attack: Attack | ActiveAttack, attacker: str, reason: str) -> PlanError:
    return PlanError(
        f"{type(attack).__name__} should be able to attack this run as {attacker}, but {reason}. "
        "Choose another run or attacker."
    )
