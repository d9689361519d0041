"""Nulls: what an attack scores where the messages can tell it nothing.

**Null.** The run again with a shuffled secret; the same attack with the same grant; its guess scored against the
original truth. What it still finds comes from the attacker's own columns and the grant, not from the messages. All
attacks of a group share the null runs, except that an active attacker takes part in a run of its own.

**Permuted truth.** Where a run cannot be repeated: the same guess, scored against a shuffled truth. That rules out luck
and nothing else.

**Honesty.** Granted and scored from a shuffled truth that nothing else depends on, any attack must be at chance;
otherwise the grant or the scoring tells it what it should not know. An attack that reads the *real* truth somewhere is
at chance here, too: a passive one is caught where it is repeated in a fresh interpreter
(`colonnade.testing.check_attack`), an active one is not caught by anything.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple, dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeVar

from colonnade.attacks.base import AnyAttack
from colonnade.auditing.attempt import PartyRecord, tried
from colonnade.auditing.subjects.base import Made, Values, read_by
from colonnade.auditing.subjects.by_secret import SUBJECTS
from colonnade.errors import ColonnadeError, PlanError
from colonnade.models.estimate import unlogged
from colonnade.privacy.randomness import Randomness
from colonnade.progress import Bars
from colonnade.runtime.executor import Executor
from colonnade.runtime.simulate import Run, Simulation
from colonnade.secret import Secret
from colonnade.storage import append_durably

T = TypeVar("T")


@dataclass(frozen=True)
class _NullRun:
    """One null run, and the guesses to be made again on it."""

    simulation: Simulation[Any]
    made: tuple[Made, ...]
    number: int
    random: Randomness


def null_values(
    simulation: Simulation[Any],
    made: Sequence[Made],
    *,
    n: int,
    random: Randomness,
    executor: Executor | None = None,
    progress: bool | None = False,
    journal: NullJournal | None = None,
) -> list[list[Values] | str]:
    """What each attempt scores in each of n null runs, or why it cannot be scored in one of them.

    Attempts keep their grants of the original truth. The shuffles are the same whatever runs them. What a journal
    remembers of an interrupted audit is not run again.
    """
    groups: dict[tuple[Secret, str], list[int]] = {}
    known: dict[int, list[Values]] = {}
    for place, each in enumerate(made):
        attempt, secret = each.attempt, each.attempt.attack.about
        generator = random.generator("null", attempt.name, attempt.attacker, attempt.grant.owner)
        null = SUBJECTS[secret].null(each, n, generator)
        if null is None:
            groups.setdefault((secret, SUBJECTS[secret].null_group(attempt)), []).append(place)
        else:
            known[place] = null
    places = [places for places in groups.values() for _ in range(n)]
    tasks = [
        _NullRun(simulation, tuple(made[place] for place in places), number, random.child("null", number))
        for places in groups.values()
        for number in range(n)
    ]
    scored: list[dict[int, Values | str]] = [{} for _ in made]
    with Bars(progress if tasks else False) as bars:
        advance = bars.counter("null runs", len(tasks))

        def note(number: int, values: Sequence[Values | str]) -> None:
            for place, value in zip(places[number], values, strict=True):
                scored[place][number] = value
            advance()

        remembered = [None if journal is None else journal.recalled(task) for task in tasks]
        for number, values in enumerate(remembered):
            if values is not None:
                note(number, values)
        left = [number for number, values in enumerate(remembered) if values is None]
        for place, values in _each(_score_null, [tasks[number] for number in left], executor):
            if journal is not None:
                journal.keep(tasks[left[place]], values)
            note(left[place], values)
    return [
        known.get(place) or _all_or_reason([found[number] for number in sorted(found)])
        for place, found in enumerate(scored)
    ]


class NullJournal:
    """A file that remembers what attempts scored in null runs, so that an interrupted audit can go on.

    Args:
        path: The file, which need not exist.
        audited: What is audited and how; what was kept for another audit is not recalled.
    """

    def __init__(self, path: Path, audited: str) -> None:
        self.path, self._audited = path, audited
        self._kept: dict[str, list[Values | str]] = {}
        for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
            try:
                found = json.loads(line)
                values = [value if isinstance(value, str) else Values(*value) for value in found["values"]]
            except (ValueError, KeyError, TypeError):
                continue  # The process may have been killed while it wrote the line.
            self._kept[found["run"]] = values

    def recalled(self, task: _NullRun) -> list[Values | str] | None:
        """What was kept of a null run; None if nothing was."""
        return self._kept.get(self._name(task))

    def keep(self, task: _NullRun, values: Sequence[Values | str]) -> None:
        """Write down what the attempts scored in a null run."""
        told = [value if isinstance(value, str) else astuple(value) for value in values]
        append_durably(self.path, json.dumps({"run": self._name(task), "values": told}) + "\n")

    def erase(self) -> None:
        """Remove the file, once the report is written."""
        self.path.unlink(missing_ok=True)

    def _name(self, task: _NullRun) -> str:
        made = [[each.attempt.name, each.attempt.attacker, each.attempt.grant.owner] for each in task.made]
        return hashlib.sha256(json.dumps([self._audited, task.number, made]).encode()).hexdigest()


def permuted_truth_values(made: Made, n: int, random: Randomness) -> list[Values]:
    """What a guess scores against n shuffles of the truth that could have been guessed."""
    generator = random.generator("null", made.attempt.name, made.attempt.attacker)
    return [made.truth.permuted(generator).scores(made.guess) for _ in range(n)]


def honesty_check(
    run: Run[Any],
    attack: AnyAttack,
    attacker: str,
    *,
    owner: str | None = None,
    seeds: int = 20,
    seed: int = 0,
) -> float:
    """How likely scores as far from chance as these are, if neither grant nor scoring tells an attack too much.

    The attack is made on the run as it is, but granted and scored from independent shuffles of the truth, as many as
    there are seeds. Mean and variance of the score over all shuffles are known, so the standardised deviations add up
    to a normal one.

    Args:
        run: A run to attack.
        attack: The attack in question.
        attacker: The party that makes it.
        owner: Whose secret it is about; the first that the attack may be about if None.
        seeds: How many shuffles.
        seed: The shuffles follow from it.

    Returns:
        A two-sided p-value; an honest attack's is below .001 once in a thousand times.
    """
    subject, random = SUBJECTS[attack.about], Randomness.seeded(seed, "honesty")
    owner = owner or next(name for name in subject.owners(attack, run.plan.roles) if name not in (None, attacker))
    assert owner is not None
    staged = subject.stage(run, random)
    total = 0.0
    for number in range(seeds):
        trial = subject.honest_trial(run, attack, attacker, owner, random, number)
        reason = trial if isinstance(trial, str) else trial[0].why_not(PartyRecord.of(run, attacker))
        if isinstance(trial, str) or reason:
            raise PlanError(
                f"{type(attack).__name__} should be able to attack this run as {attacker}, but {reason}. "
                "Choose another run or attacker."
            )
        attempt, truth = trial
        guess = attempt.guess(staged.simulation, lambda: staged)
        total += truth.deviation(truth.scorable(guess, attack=attempt.name))
    return math.erfc(abs(total) / math.sqrt(2 * seeds))


def _all_or_reason(scored: list[Values | str]) -> list[Values] | str:
    usable = [each for each in scored if isinstance(each, Values)]
    return usable if len(usable) == len(scored) else next(each for each in scored if isinstance(each, str))


def _score_null(task: _NullRun) -> list[Values | str]:
    simulation, first = task.simulation, task.made[0].attempt
    subject = SUBJECTS[first.attack.about]
    shuffled = subject.shuffled(simulation.tables, simulation.roles, first.attacker, task.random)
    changed = simulation.changed(tables=shuffled)
    run = cache(changed.run)
    scored: list[Values | str] = []
    again: list[Made] = []
    for made in task.made:
        said = tuple(part.guess for part in read_by(made.attempt, again))
        if len(said) < len(read_by(made.attempt, task.made)):
            # Joined from fewer guesses, the null would be weaker than what it is compared with.
            scored.append("an attack that it reads could not be made")
            continue
        with unlogged():
            guess = tried(partial(made.attempt.guess, changed, run, said))
        if isinstance(guess, str) or (reason := made.truth.why_not(guess)):
            scored.append(guess if isinstance(guess, str) else str(reason))
            continue
        again.append(replace(made, guess=made.truth.scorable(guess, attack=made.attempt.name)))
        scored.append(made.truth.scores(again[-1].guess))
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
