"""The audit: what each party could learn about the others, measured.

    run ──▶ view ──▶ guess ──▶ score ─┐
        ──▶ permuted labels ──▶ null ─┤
        ──▶ the attacker alone ───────┼──▶ verdict ──▶ PrivacyReport
        ──▶ transcripts, ledgers ─────┘

Every attack is made by every party that could make it. Guess and truth meet here and nowhere else. An attack has found
a leak if its whole interval lies above chance, above the null's 95th percentile and above what the attacker could do
alone; if it lies only above the first two, the messages tell something, but no more than the attacker could know alone.

    audit              a simulated run: everything
    audit_own_side     a deployed run, by one party alone: what it sent itself (`mirror`)
    JointAudit         a deployed run, by consent: the attacker guesses, the owner of the labels scores (`joint`)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from colonnade.attacks.base import ActiveAttack, Attack, Guess
from colonnade.auditing.alone import Alone, Best, attacker_alone
from colonnade.auditing.attempt import Attempt, attack_seed, grant_for, name_of, too_few
from colonnade.auditing.disclosure import Disclosure, budget, disclosures
from colonnade.auditing.finding import finding_of, never_attacked, scored_part, unscorable
from colonnade.auditing.joint import JointAudit
from colonnade.auditing.membership import MembershipFinding, findings_of, measure_membership
from colonnade.auditing.mirror import audit_own_side
from colonnade.auditing.null import Executor, class_numbers, honesty_check, null_values
from colonnade.auditing.report import (
    Evidence,
    Finding,
    Granted,
    Joint,
    Mirror,
    PrivacyReport,
    RunIdentity,
    Simulated,
)
from colonnade.auditing.score import Score, Truth
from colonnade.auditing.stated import Stated, statements
from colonnade.errors import PlanError
from colonnade.privacy.randomness import Randomness
from colonnade.progress import Bars
from colonnade.runtime.simulate import Run, aligns_rows

__all__ = [
    "Best",
    "Disclosure",
    "Evidence",
    "Executor",
    "Finding",
    "Granted",
    "Joint",
    "JointAudit",
    "MembershipFinding",
    "Mirror",
    "PrivacyReport",
    "RunIdentity",
    "Score",
    "Simulated",
    "Stated",
    "audit",
    "audit_own_side",
    "honesty_check",
    "measure_membership",
]


def audit(
    run: Run[Any],
    attacks: Sequence[Attack | ActiveAttack],
    *,
    nulls: int = 20,
    seed: int = 0,
    delta: float = 1e-5,
    executor: Executor | None = None,
    progress: bool | None = None,
) -> PrivacyReport:
    """Make every attack as every party that could, and report what was found, spent and sent.

    Args:
        run: The run to audit.
        attacks: The attacks to make. What they need is granted; granted labels are drawn here and never scored.
        nulls: How many times the run is repeated with permuted labels; fewer than 19 are too few for a test at 5 %.
        seed: Grants, permutations and resampling follow from it.
        delta: At which the privacy budget is told.
        executor: What repeats the run; one repetition after the other in this process if None.
        progress: Whether to show a bar over the repetitions; None shows it on a terminal only.
    """
    if nulls < 1:
        raise PlanError(
            "An audit needs at least one null run to tell a leak from what the attacker's own columns say, "
            f"but nulls is {nulls}. Use 20."
        )
    if aligns_rows(run.simulation.protocol):
        raise PlanError(
            "An audit compares guesses with tables whose rows are in the common order, but this run began with tables "
            "that it had to align. Simulate the alignment first, then train on what each party's alignment takes of "
            "its table, or run a plan with a section [align]."
        )
    attempts, unfit = _plan(run, [attack for attack in attacks if not attack.needs.candidates], seed)
    guesses, without_guess = _guesses(run, attempts)
    findings, without_null = _findings(run, guesses, nulls, seed, executor, progress) if guesses else ([], [])
    for attack in attacks:
        if isinstance(attack, Attack) and attack.needs.candidates:
            found, unfound = findings_of(run, attack, nulls=nulls, seed=seed, delta=delta)
            findings, unfit = [*findings, *found], [*unfit, *unfound]
    sent = disclosures(run.transcripts)
    n_rows = len(run.simulation.tables[run.plan.roles.holders[0]])
    return PrivacyReport(
        run=RunIdentity.of(run.plan, Simulated(), n_rows=n_rows, randomness="seeded", seed=run.simulation.seed),
        disclosures=sent,
        budget=budget(sent, run.ledgers, delta),
        attacks=tuple(findings),
        untested=(*unfit, *without_guess, *without_null, *never_attacked(sent, findings)),
        stated=statements(run.transcripts),
    )


def _plan(run: Run[Any], attacks: Sequence[Attack | ActiveAttack], seed: int) -> tuple[list[Attempt], list[str]]:
    """The attempts that can be made, and why others cannot."""
    attempts: list[Attempt] = []
    untested: list[str] = []
    owner, random = run.plan.roles.label, Randomness.seeded(seed)
    for attack in attacks:
        name = name_of(attack)
        if reason := unscorable(attack, owner, None if owner is None else run.simulation.tables[owner].labels):
            untested.append(f"{name}: {reason}")
            continue
        labels, n_classes = class_numbers(run.simulation)
        for attacker in run.plan.roles.parties:
            if attacker == owner:
                continue
            grant = grant_for(attack, run.transcripts[attacker], labels, n_classes, random)
            if grant is None:
                untested.append(f"{name} by {attacker}: {too_few(attack)}")
                continue
            attempt = Attempt(attack, attacker, grant, attack_seed(random, attack, attacker))
            if reason := attempt.unfit(run):
                untested.append(f"{name} by {attacker}: {reason}")
            else:
                attempts.append(attempt)
    return attempts, untested


def _guesses(run: Run[Any], attempts: Sequence[Attempt]) -> tuple[list[tuple[Attempt, Guess]], list[str]]:
    """What each attempt says about rows that were not granted, and why others say nothing that could be scored."""
    guesses: list[tuple[Attempt, Guess]] = []
    untested: list[str] = []
    for attempt in attempts:
        truth = Truth.of(class_numbers(run.simulation)[0], attempt.grant)
        guess = scored_part(attempt, attempt.guess(run.simulation, lambda: run), truth)
        if isinstance(guess, str):
            untested.append(f"{attempt.name} by {attempt.attacker}: {guess}")
        else:
            guesses.append((attempt, guess))
    return guesses, untested


def _findings(
    run: Run[Any],
    guesses: Sequence[tuple[Attempt, Guess]],
    nulls: int,
    seed: int,
    executor: Executor | None,
    progress: bool | None,
) -> tuple[list[Finding], list[str]]:
    """Every guess beside its controls, and why others have none."""
    owner, (labels, _) = run.plan.roles.label, class_numbers(run.simulation)
    assert owner is not None
    attempts = [attempt for attempt, _ in guesses]
    with Bars(progress) as bars:
        advance = bars.counter("null runs", nulls)
        null = null_values(run.simulation, attempts, n=nulls, seed=seed, executor=executor, advance=advance)
    suites: dict[tuple[str, int, bytes], Alone] = {}
    findings: list[Finding] = []
    untested: list[str] = []
    for (attempt, guess), scored in zip(guesses, null, strict=True):
        if isinstance(scored, str):
            untested.append(f"{attempt.name} by {attempt.attacker}: in a null run {scored}")
            continue
        attacker, known_labels = attempt.attacker, attempt.attack.needs.known_labels
        key = (attacker, known_labels, np.sort(guess.rows).tobytes())
        if key not in suites:
            random = Randomness.seeded(seed, "alone", attacker, known_labels).generator()
            suites[key] = attacker_alone(run.simulation.tables.get(attacker), attempt.grant, guess.rows, random)
        random = Randomness.seeded(seed, "interval", attempt.name, attempt.attacker).generator()
        truth = Truth.of(labels, attempt.grant)
        findings.append(finding_of(attempt, guess, truth, owner=owner, null=scored, alone=suites[key], random=random))
    return findings, untested
