"""Membership: how well an attack tells people who were in a run from people who were not, beside the claimed epsilon.

A random half of the rows is in the run, the other half is not; the run is made with the former. The attacker is told
curves of both, shuffled, and scores each. Its AUC is compared with that among people none of whom was in the run. From
true and false positive rates follows a lower bound on epsilon that holds with 95 % confidence: under (epsilon, delta)
privacy the true positive rate is at most e^epsilon times the false one, plus delta (Kairouz, Oh & Viswanath 2015). The
threshold is chosen on one half of the candidates and judged on the other.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from colonnade.attacks.base import Attack, Grant, Guess
from colonnade.audit.attempt import Attempt, Side, name_of
from colonnade.audit.report import Evidence, Finding, Granted
from colonnade.audit.score import Score, Truth, value, with_interval
from colonnade.curves import CurvesType
from colonnade.errors import PlanError
from colonnade.privacy.ledger import compose
from colonnade.run import Run
from colonnade.secret import Secret
from colonnade.wire.message import Float64Array, Int64Array

CONFIDENCE = 0.95


@dataclass(frozen=True)
class MembershipFinding:
    """What a membership attack found, beside what was claimed.

    Attributes:
        score: The AUC with its interval.
        null: AUCs among people none of whom was in the run.
        claimed: The epsilon that the ledgers claim for features; infinite if nothing is claimed.
        measured: A lower bound on epsilon, from the attack, at 95 % confidence.
        delta: At which both are told.
        members: How many of the candidates were in the run.
    """

    attack: str
    attacker: str
    score: Score
    null: tuple[float, ...]
    claimed: float
    measured: float
    delta: float
    members: int

    @property
    def leaks(self) -> bool:
        """Whether the whole interval lies above chance and above all nulls."""
        return self.score.low > max(0.5, *self.null)

    def __str__(self) -> str:
        """The finding in a sentence."""
        claimed = f"{self.claimed:.4g}" if math.isfinite(self.claimed) else "nothing"
        return (
            f"{self.attack} by {self.attacker}: AUC {self.score.value:.3f} ({self.score.low:.3f} to "
            f"{self.score.high:.3f}); measured epsilon at least {self.measured:.3g}, claimed {claimed}"
        )


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
    attacker = attacker or run.plan.roles.label
    if attacker is None or not attack.needs.candidates:
        raise PlanError(
            "Membership is measured by an attack that is told candidates, made by a party of the run, but "
            f"{name_of(attack)} is {'not told any' if attacker else 'made by nobody'}. Choose another attack or party."
        )
    tables = run.simulation.tables
    n_rows = len(next(iter(tables.values())))
    random = np.random.default_rng([seed, 1])
    inside = np.sort(random.permutation(n_rows)[: n_rows // 2])
    half = run.again(tables={name: table.take(inside) for name, table in tables.items()})
    members = np.isin(np.arange(n_rows), inside).astype(np.int64)
    order = random.permutation(n_rows)
    grant = Grant(2, candidates={name: z[order] for name, z in _candidates(run, owner).items()})
    attempt = Attempt(attack, attacker, grant, seed)
    reason = attempt.unfit_for(Side.of(half, attacker))
    if reason is not None:
        raise PlanError(f"{attempt.name} should apply to this run, but {reason}. Choose another run or attacker.")
    guess = attempt.guess(half.simulation, lambda: half)
    assert guess.scores is not None
    truth = Truth(members[order], 2, np.zeros(0, np.int64))
    outsiders = np.flatnonzero(truth.labels == 0)
    spent = compose(half.ledgers.values(), delta).get(Secret.FEATURES)
    return MembershipFinding(
        attempt.name,
        attacker,
        with_interval(guess, truth, random),
        tuple(_null(guess.scores[outsiders], random) for _ in range(nulls)),
        math.inf if spent is None else spent.epsilon,
        epsilon_bound(guess.scores, truth.labels, delta, random),
        delta,
        len(inside),
    )


def epsilon_bound(scores: Float64Array, members: Int64Array, delta: float, random: np.random.Generator) -> float:
    """A lower bound on epsilon from scores of members and others, at 95 % confidence; 0 if nothing can be said."""
    from scipy.stats import beta

    half = random.permutation(len(scores)) % 2 == 0
    tail = (1 - CONFIDENCE) / 2

    def bound(threshold: float, part: Any) -> float:
        true = scores[part & (members == 1)] > threshold
        false = scores[part & (members == 0)] > threshold
        hits, n, wrong, m = int(true.sum()), len(true), int(false.sum()), len(false)
        if not hits or not n or not m:
            return 0.0
        low = float(beta.ppf(tail, hits, n - hits + 1))
        high = 1.0 if wrong == m else float(beta.ppf(1 - tail, wrong + 1, m - wrong))
        return math.log((low - delta) / high) if low > delta + high else 0.0

    thresholds = np.quantile(scores[half], np.linspace(0, 0.999, 100))
    best = max(thresholds, key=lambda each: bound(float(each), half))
    return bound(float(best), ~half)


def findings_of(
    run: Run[Any], attack: Attack, *, nulls: int, seed: int, delta: float
) -> tuple[list[Finding], list[str]]:
    """What the label party finds about each feature party's curves, for a report, and why there is nothing."""
    findings, untested = [], []
    for owner in run.plan.roles.features:
        try:
            found = measure_membership(run, attack, owner=owner, nulls=nulls, seed=seed, delta=delta)
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
                summary=f"{sentence} Measured epsilon: at least {found.measured:.2g}.",
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
