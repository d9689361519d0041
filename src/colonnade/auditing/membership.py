"""Membership: how well an attack tells people who were in a run from people who were not, beside the claimed epsilon.

A random half of the rows is in the run, the other half is not; the run is made with the former. The attacker is told
curves of both, shuffled, and scores each. Its AUC is compared with that among people none of whom was in the run. From
true and false positive rates follow its advantage, their difference, and a lower bound on epsilon that holds with 95 %
confidence. Under (epsilon, delta) privacy the true positive rate is at most e^epsilon times the false one, plus delta,
and the advantage at most (e^epsilon - 1 + 2 delta) / (e^epsilon + 1) (Kairouz, Oh & Viswanath 2015). Thresholds are
chosen on one half of the candidates and judged on the other.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from colonnade.attacks.base import ActiveAttack, Attack, Grant, Guess
from colonnade.auditing.attempt import Attempt, Side, name_of
from colonnade.auditing.null import deviation
from colonnade.auditing.report import Evidence, Finding, Granted
from colonnade.auditing.score import Score, Truth, scorable, value, with_interval
from colonnade.curves import CurvesType
from colonnade.errors import PlanError
from colonnade.privacy.ledger import compose
from colonnade.runtime.simulate import Run
from colonnade.secret import Secret
from colonnade.wire.message import Float64Array, Int64Array

CONFIDENCE = 0.95
EVERYBODY = "everybody"


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
        """The finding in a sentence."""
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


def most_advantage(epsilon: float, delta: float) -> float:
    """The largest difference of true and false positive rate that (epsilon, delta) privacy allows.

    >>> round(most_advantage(1.0, 0.0), 3)
    0.462
    """
    return min(1.0, math.tanh(epsilon / 2) + 2 * delta / (1 + math.exp(min(epsilon, 700.0))))


def measure_membership(
    run: Run[Any],
    attack: Attack,
    *,
    attacker: str | None = None,
    owner: str | None = None,
    nulls: int = 20,
    seed: int = 0,
    delta: float = 1e-5,
) -> MembershipFinding:
    """Run the protocol on a random half of the rows, and let an attack tell them from the other half.

    Args:
        run: A run whose protocol, tables and roles are used.
        attack: An attack that is told candidates.
        attacker: Who makes it; the label party if None.
        owner: Whose curves are told of the candidates; everybody's if None.
        nulls: How many AUCs among people who were not in the run to compare with.
        seed: Who is in the run follows from it.
        delta: At which epsilon is told.
    """
    attempt = attempt_with_candidates(run, attack, attacker, owner=owner, seed=seed)
    random = np.random.default_rng([seed, 1])
    half, inside = half_run(run, random)
    n_rows = len(next(iter(run.simulation.tables.values())))
    order = random.permutation(n_rows)
    guess = _told(attempt, order).guess(half.simulation, lambda: half)
    assert guess.scores is not None
    truth = Truth(np.isin(order, inside).astype(np.int64), 2, np.zeros(0, np.int64))
    outsiders = np.flatnonzero(truth.labels == 0)
    spent = compose(half.ledgers.values(), delta).get(Secret.FEATURES)
    return MembershipFinding(
        attempt.name,
        attempt.attacker,
        with_interval(guess, truth, random),
        tuple(_null(guess.scores[outsiders], random) for _ in range(nulls)),
        math.inf if spent is None else spent.epsilon,
        epsilon_bound(guess.scores, truth.labels, delta, random),
        advantage(guess.scores, truth.labels, random),
        delta,
        len(inside),
    )


def attempt_with_candidates(
    run: Run[Any],
    attack: Attack | ActiveAttack,
    attacker: str | None = None,
    *,
    owner: str | None = None,
    seed: int = 0,
) -> Attempt:
    """An attempt that is told everybody of a run as a candidate.

    Args:
        run: A run that the attack applies to.
        attack: An attack that is told candidates.
        attacker: Who makes it; the label party if None.
        owner: Whose curves are told; everybody's if None.
        seed: The attack's own randomness follows from it.

    Raises:
        PlanError: It does not apply to the run.
    """
    attacker = attacker or run.plan.roles.label
    if attacker is None or not attack.needs.candidates:
        raise PlanError(
            "Membership is measured by an attack that is told candidates, made by a party of the run, but "
            f"{name_of(attack)} is {'not told any' if attacker else 'made by nobody'}. Choose another attack or party."
        )
    attempt = Attempt(attack, attacker, Grant(2, candidates=_candidates(run, owner)), seed)
    reason = attempt.unfit_for(Side.of(run, attacker))
    if reason is not None:
        raise PlanError(f"{attempt.name} should apply to this run, but {reason}. Choose another run or attacker.")
    return attempt


def half_run(run: Run[Any], random: np.random.Generator) -> tuple[Run[Any], Int64Array]:
    """The protocol on a random half of the rows, and which these are."""
    tables = run.simulation.tables
    n_rows = len(next(iter(tables.values())))
    inside = np.sort(random.permutation(n_rows)[: n_rows // 2])
    return run.again(tables={name: table.take(inside) for name, table in tables.items()}), inside


def membership_honesty(run: Run[Any], attempt: Attempt, *, seeds: int = 20, seed: int = 0) -> float:
    """How likely scores as far from chance as these are, if an attack is told nothing that it should not know.

    The candidates are people none of whom was in the run; which of them are called members is drawn by lot.

    Args:
        run: A run to attack.
        attempt: The attack on it, which is told everybody.
        seeds: How many lots are drawn.
        seed: The lots follow from it.

    Returns:
        A two-sided p-value; an honest attack's is below .001 once in a thousand times.
    """
    random = np.random.default_rng([seed, 2])
    half, inside = half_run(run, random)
    outside = np.setdiff1d(np.arange(2 * len(inside)), inside)
    total = 0.0
    for _ in range(seeds):
        order = random.permutation(outside)
        truth = Truth((np.arange(len(order)) % 2).astype(np.int64), 2, np.zeros(0, np.int64))
        guess = _told(attempt, order).guess(half.simulation, lambda: half)
        total += deviation(scorable(guess, truth, attack=attempt.name), truth)
    return math.erfc(abs(total) / math.sqrt(2 * seeds))


def epsilon_bound(scores: Float64Array, members: Int64Array, delta: float, random: np.random.Generator) -> float:
    """A lower bound on epsilon from scores of members and others, at 95 % confidence; 0 if nothing can be said."""
    from scipy.stats import beta

    tail = (1 - CONFIDENCE) / 2

    def bound(true: NDArray[np.bool_], false: NDArray[np.bool_]) -> float:
        hits, n, wrong, m = int(true.sum()), len(true), int(false.sum()), len(false)
        if not hits or not n or not m:
            return 0.0
        low = float(beta.ppf(tail, hits, n - hits + 1))
        high = 1.0 if wrong == m else float(beta.ppf(1 - tail, wrong + 1, m - wrong))
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


def findings_of(
    run: Run[Any], attack: Attack, *, nulls: int, seed: int, delta: float
) -> tuple[list[Finding], list[str]]:
    """What the label party finds about each feature party's curves or about whole records, and why there is nothing."""
    findings, untested = [], []
    owners = run.plan.roles.features if attack.needs.candidates == "curves" else (EVERYBODY,)
    for owner in owners:
        told = None if owner == EVERYBODY else owner
        try:
            found = measure_membership(run, attack, owner=told, nulls=nulls, seed=seed, delta=delta)
        except PlanError as error:
            untested.append(f"{name_of(attack)} about {owner}: {error}")
            continue
        evidence = Evidence(found.score, 0.5, found.null, None)
        needs = attack.needs
        granted = Granted(
            tuple(message.kind for message in needs.messages), needs.own_features, needs.own_model, needs.known_labels
        )
        sentence = (type(attack).__doc__ or "").strip().splitlines()[0]
        findings.append(
            Finding(
                attack=found.attack,
                summary=f"{sentence} It was told {attack.needs.candidates}; {found.beside_the_claim}.",
                attacker=found.attacker,
                owner=owner,
                about=Secret.FEATURES,
                is_active=False,
                granted=granted,
                measure="AUC",
                rows=2 * found.members,
                coverage=1.0,
                plain=evidence,
                up_to_naming=evidence,
            )
        )
    return findings, untested


def _told(attempt: Attempt, order: Int64Array) -> Attempt:
    """The same attempt, told some of the candidates in some order."""
    candidates = {name: z[order] for name, z in attempt.grant.candidates.items()}
    return replace(attempt, grant=replace(attempt.grant, candidates=candidates))


def _candidates(run: Run[Any], owner: str | None) -> dict[str, Float64Array]:
    """Curves in coordinates, by column; the output's under an empty name."""
    found: dict[str, Float64Array] = {}
    tables = run.simulation.tables
    for table in tables.values() if owner is None else [tables[owner]]:
        found |= {name: table.curves(name).coordinates for name, kind in table.kinds.items() if kind == "curves"}
        if table.labels is not None and isinstance(table.labels.type, CurvesType) and table.label_name is not None:
            found[""] = table.curves(table.label_name).coordinates
    return found


def _null(scores: Float64Array, random: np.random.Generator) -> float:
    labels = (random.permutation(len(scores)) % 2).astype(np.int64)
    return value(Guess(np.arange(len(scores)), scores=scores), Truth(labels, 2, np.zeros(0, np.int64)))
