"""Members: a party tells people who were in a run from people who were not, beside the claimed epsilon.

A random half of the rows is in the run, the other half is not; the run is made again with the former. The attacker is
told curves of both, shuffled, and scores each. The null is the AUC among people none of whom was in the run. Without
the run, candidates cannot be told apart: alone is chance.

From true and false positive rates follow the attack's advantage, their difference, and a lower bound on epsilon that
holds with 95 % confidence. Under (epsilon, delta) privacy the true positive rate is at most e^epsilon times the false
one, plus delta, and the advantage at most (e^epsilon - 1 + 2 delta) / (e^epsilon + 1) (Kairouz, Oh & Viswanath 2015).
Thresholds are chosen on one half of the candidates and judged on the other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from colonnade.attacks.base import AnyAttack, Grant, Guess
from colonnade.auditing.attempt import Attempt
from colonnade.auditing.contents import EVERYBODY, BestBaseline, Evidence, Score
from colonnade.auditing.subjects.base import Judgement, Made, Subject, Tables, Truth, Values
from colonnade.auditing.subjects.classes import ClassTruth, value, with_interval
from colonnade.curves import CurvesType
from colonnade.privacy.ledger import compose
from colonnade.privacy.randomness import Randomness
from colonnade.roles import Roles
from colonnade.runtime.simulate import Run
from colonnade.secret import Secret
from colonnade.tables.table import Table
from colonnade.wire.message import Float64Array, Int64Array

NOBODY: Int64Array = np.zeros(0, np.int64)


@dataclass(frozen=True)
class MembershipFinding:
    """What a membership attack found, beside what was claimed.

    Attributes:
        score: The AUC with its interval.
        null: AUCs among people none of whom was in the run.
        claimed: The epsilon that the ledgers claim for features; infinite if nothing is claimed.
        measured: A lower bound on epsilon, from the attack, at 95 % confidence.
        advantage: By how much the true positive rate exceeds the false one, at a threshold chosen on other candidates.
        delta: At which both epsilons are told.
        members: How many of the candidates were in the run.
    """

    attack: str
    attacker: str
    score: Score
    null: tuple[float, ...]
    claimed: float
    measured: float
    advantage: float
    delta: float
    members: int

    @property
    def leaks(self) -> bool:
        """Whether the whole interval lies above chance and above all nulls."""
        return self.score.low > max(0.5, *self.null)

    @property
    def most_advantage(self) -> float:
        """The largest advantage that what is claimed allows; 1 if nothing is claimed."""
        return most_advantage(self.claimed, self.delta)

    def __str__(self) -> str:
        return (
            f"{self.attack} by {self.attacker}: AUC {self.score.value:.3f} ({self.score.low:.3f} to "
            f"{self.score.high:.3f}); {self.beside_the_claim}"
        )

    @property
    def beside_the_claim(self) -> str:
        """What was measured beside what was claimed."""
        claimed = f"{self.claimed:.4g}" if math.isfinite(self.claimed) else "nothing"
        return (
            f"measured epsilon at least {self.measured:.3g}, claimed {claimed}; measured advantage "
            f"{self.advantage:.3f}, at most {self.most_advantage:.3f} by what is claimed"
        )


class MemberTruth(ClassTruth):
    """Who was in the run, to be guessed by scores."""

    def wrong_values(self, guess: Guess) -> tuple[np.ndarray[Any, Any], str]:
        if guess.scores is None:
            return np.ones(len(guess.rows), bool), "scores"
        return super().wrong_values(guess)


class MembersSubject(Subject):
    """Who was in the run."""

    secret = Secret.MEMBERSHIP
    grants = frozenset({"candidates"})
    in_simulation_only = "it needs a second training run on half of the rows, which is possible only in a simulation"

    def owners(self, attack: AnyAttack, roles: Roles) -> Sequence[str | None]:
        return roles.features if attack.needs.candidates == "curves" else (EVERYBODY,)

    def why_not_scorable(self, owner: str | None, tables: Tables) -> str | None:
        return None

    def grant(self, attack: AnyAttack, owner: str, tables: Tables, rows: Int64Array, random: Randomness) -> Grant:
        order = _order(tables, random)
        return Grant(2, candidates={name: z[order] for name, z in _curves(tables, owner).items()}, owner=owner)

    def truth(self, attempt: Attempt, tables: Tables, rows: Int64Array, random: Randomness) -> MemberTruth:
        was_in = np.isin(_order(tables, random), _inside(tables, random))
        return MemberTruth(was_in.astype(np.int64), 2, NOBODY)

    def shuffled(self, tables: Tables, roles: Roles, attacker: str, random: Randomness) -> dict[str, Table]:
        raise AssertionError("a null of membership needs no other tables")

    def stage(self, run: Run[Any], random: Randomness) -> Run[Any]:
        tables = run.simulation.tables
        inside = _inside(tables, random)
        return run.again(tables={name: table.take(inside) for name, table in tables.items()})

    def null(self, made: Made, n: int, random: np.random.Generator) -> list[Values]:
        assert isinstance(made.truth, ClassTruth)
        outsiders = made.guess.only(made.truth.labels[made.guess.rows] == 0)
        halves = np.arange(made.truth.n_rows) % 2
        found = [value(outsiders, ClassTruth(random.permutation(halves), 2, NOBODY)) for _ in range(n)]
        return [Values(auc, auc) for auc in found]

    def judge(
        self, made: Made, null: Sequence[Values], baseline: Any, random: np.random.Generator, delta: float
    ) -> Judgement:
        truth, scores = made.truth, made.guess.scores
        assert isinstance(truth, ClassTruth)
        assert scores is not None
        members = truth.labels[made.guess.rows]
        spent = compose(made.ledgers.values(), delta).get(Secret.FEATURES)
        found = MembershipFinding(
            attack=made.attempt.name,
            attacker=made.attempt.attacker,
            score=with_interval(made.guess, truth, random),
            null=tuple(values.plain for values in null),
            claimed=math.inf if spent is None else spent.epsilon,
            measured=epsilon_bound(scores, members, delta, random),
            advantage=advantage(scores, members, random),
            delta=delta,
            members=int(members.sum()),
        )
        told = made.attempt.attack.needs.candidates
        return Judgement(
            Evidence(found.score, 0.5, found.null, BestBaseline(0.5, "chance")),
            remark=f"It was told {told}; {found.beside_the_claim}.",
            measured=found,
        )

    def honest_trial(
        self, run: Run[Any], attack: AnyAttack, attacker: str, owner: str, random: Randomness, number: int
    ) -> tuple[Attempt, Truth] | str:
        """The candidates are people none of whom was in the run; which of them are called members is drawn by lot."""
        tables = run.simulation.tables
        inside = _inside(tables, random)
        outside = np.setdiff1d(np.arange(2 * len(inside)), inside)
        order = random.generator(number, "outsiders").permutation(outside)
        candidates = {name: z[order] for name, z in _curves(tables, owner).items()}
        attempt = Attempt(attack, attacker, Grant(2, candidates=candidates, owner=owner), random.seed(number, "attack"))
        return attempt, ClassTruth(np.arange(len(order)) % 2, 2, NOBODY)


def most_advantage(epsilon: float, delta: float) -> float:
    """The largest difference of true and false positive rate that (epsilon, delta) privacy allows.

    >>> round(most_advantage(1.0, 0.0), 3)
    0.462
    """
    return min(1.0, math.tanh(epsilon / 2) + 2 * delta / (1 + math.exp(min(epsilon, 700.0))))


def epsilon_bound(scores: Float64Array, members: Int64Array, delta: float, random: np.random.Generator) -> float:
    """A lower bound on epsilon from scores of members and others, at 95 % confidence; 0 if nothing can be said."""
    from scipy.stats import binomtest

    def bound(true: NDArray[np.bool_], false: NDArray[np.bool_]) -> float:
        if not len(true) or not len(false):
            return 0.0
        low = binomtest(int(true.sum()), len(true)).proportion_ci().low
        high = binomtest(int(false.sum()), len(false)).proportion_ci().high
        return math.log((low - delta) / high) if low > delta + high else 0.0

    return _at_best_threshold(bound, scores, members, random)


def advantage(scores: Float64Array, members: Int64Array, random: np.random.Generator) -> float:
    """By how much members are named more often than others, at a threshold chosen on other candidates."""

    def difference(true: NDArray[np.bool_], false: NDArray[np.bool_]) -> float:
        return float(true.mean() - false.mean()) if len(true) and len(false) else 0.0

    return _at_best_threshold(difference, scores, members, random)


def _at_best_threshold(
    worth: Callable[[NDArray[np.bool_], NDArray[np.bool_]], float],
    scores: Float64Array,
    members: Int64Array,
    random: np.random.Generator,
) -> float:
    """What true and false positives are worth on one half of the candidates, at the other half's best threshold."""
    half = random.permutation(len(scores)) % 2 == 0

    def at(threshold: float, part: NDArray[np.bool_]) -> float:
        named = scores > threshold
        return worth(named[part & (members == 1)], named[part & (members == 0)])

    thresholds = np.quantile(scores[half], np.linspace(0, 0.999, 100))
    best = max(thresholds, key=lambda each: at(float(each), half))
    return at(float(best), ~half)


def _inside(tables: Tables, random: Randomness) -> Int64Array:
    """The half of the rows that is in the run."""
    n_rows = len(next(iter(tables.values())))
    return np.sort(random.generator("members").permutation(n_rows)[: n_rows // 2])


def _order(tables: Tables, random: Randomness) -> Int64Array:
    """The order in which candidates are told."""
    return random.generator("candidates").permutation(len(next(iter(tables.values()))))


def _curves(tables: Tables, owner: str) -> dict[str, Float64Array]:
    """Curves in coordinates, by column; the output's under an empty name."""
    found: dict[str, Float64Array] = {}
    for table in tables.values() if owner == EVERYBODY else [tables[owner]]:
        found |= {name: table.curves(name).coordinates for name, kind in table.kinds.items() if kind == "curves"}
        if table.labels is not None and isinstance(table.labels.type, CurvesType) and table.label_name is not None:
            found[""] = table.curves(table.label_name).coordinates
    return found
