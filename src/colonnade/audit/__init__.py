"""The audit: what each party could learn about the others, measured.

    run ──▶ view ──▶ guess ──▶ score ─┐
        ──▶ permuted labels ──▶ null ─┤
        ──▶ the attacker alone ───────┼──▶ verdict ──▶ PrivacyReport
        ──▶ transcripts, ledgers ─────┘

Every attack is made by every party that could make it. Guess and truth meet here and nowhere else. An attack has found
a leak if its whole interval lies above chance, above the null's 95th percentile and above what the attacker could do
alone.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from colonnade.attacks.base import ActiveAttack, Attack, Guess
from colonnade.audit.alone import Alone, Best, attacker_alone
from colonnade.audit.attempt import Attempt, draw_grant, name_of, training_rows
from colonnade.audit.disclosure import Disclosure, budget, disclosures
from colonnade.audit.null import Executor, class_numbers, honesty_check, null_values
from colonnade.audit.report import (
    Evidence,
    Finding,
    Granted,
    Joint,
    Mirror,
    Mode,
    PrivacyReport,
    RunIdentity,
    Simulated,
)
from colonnade.audit.score import Score, Truth, Values, best_named, chance, measure_of, scorable, with_interval
from colonnade.errors import PlanError
from colonnade.privacy.randomness import Randomness
from colonnade.run import Run
from colonnade.secret import Secret

__all__ = [
    "Best",
    "Disclosure",
    "Evidence",
    "Executor",
    "Finding",
    "Granted",
    "Joint",
    "Mirror",
    "PrivacyReport",
    "RunIdentity",
    "Score",
    "Simulated",
    "audit",
    "honesty_check",
]


def audit(
    run: Run[Any],
    attacks: Sequence[Attack | ActiveAttack],
    *,
    nulls: int = 20,
    seed: int = 0,
    delta: float = 1e-5,
    mode: Mode | None = None,
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
        mode: Who audits; `Simulated` by default, and the others need a deployed run.
        executor: What repeats the run; one repetition after the other in this process if None.
        progress: Whether to show a bar over the repetitions; None shows it on a terminal only.
    """
    mode = mode or Simulated()
    _require_possible(mode, nulls)
    attempts, unfit = _plan(run, attacks, seed)
    guesses, silent = _guesses(run, attempts)
    findings = _findings(run, guesses, nulls, seed, executor, progress) if guesses else ()
    sent = disclosures(run.transcripts)
    return PrivacyReport(
        run=RunIdentity.of(run, mode),
        disclosures=sent,
        budget=budget(sent, run.ledgers, delta),
        attacks=findings,
        untested=(*unfit, *silent, *_never_attacked(sent, findings)),
    )


def _require_possible(mode: Mode, nulls: int) -> None:
    if not isinstance(mode, Simulated):
        raise PlanError(
            f"A {mode.name} audit needs a deployed run, but this run was simulated. "
            "Use mode=Simulated(), which tests more."
        )
    if nulls < 1:
        raise PlanError(
            "An audit needs at least one null run to tell a leak from what the attacker's own columns say, "
            f"but nulls is {nulls}. Use 20."
        )


def _plan(run: Run[Any], attacks: Sequence[Attack | ActiveAttack], seed: int) -> tuple[list[Attempt], list[str]]:
    """The attempts that can be made, and why others cannot."""
    attempts: list[Attempt] = []
    untested: list[str] = []
    for attack in attacks:
        name = name_of(attack)
        reason = _unscorable(run, attack)
        if reason:
            untested.append(f"{name}: {reason}")
            continue
        labels, n_classes = class_numbers(run.simulation)
        order = Randomness.seeded(seed, "grant").generator().permutation(len(labels))
        for attacker in run.plan.roles.parties:
            if attacker == run.plan.roles.label:
                continue
            rows = training_rows(run.transcripts[attacker], len(labels))
            grant = draw_grant(labels, n_classes, attack.needs.known_labels, rows, order)
            if grant is None:
                known = attack.needs.known_labels
                untested.append(
                    f"{name} by {attacker}: it must be told {known} labels per class, and one class has fewer"
                )
                continue
            attempt = Attempt(attack, attacker, grant, Randomness.seeded(seed, "attack", name, attacker).seed())
            if reason := attempt.unfit(run):
                untested.append(f"{name} by {attacker}: {reason}")
            else:
                attempts.append(attempt)
    return attempts, untested


def _unscorable(run: Run[Any], attack: Attack | ActiveAttack) -> str | None:
    if attack.about is not Secret.LABELS:
        return f"guesses about {attack.about} cannot be scored yet, only those about labels"
    owner = run.plan.roles.label
    labels = None if owner is None else run.simulation.tables[owner].labels
    if labels is None:
        return "nobody in this run holds labels"
    values = np.asarray(labels)
    if values.dtype.kind == "f" and (values % 1 != 0).any():
        return f"{owner}'s labels are measurements, and it guesses classes"
    return None


def _guesses(run: Run[Any], attempts: Sequence[Attempt]) -> tuple[list[tuple[Attempt, Guess]], list[str]]:
    """What each attempt says about rows that were not granted, and which say nothing about any."""
    guesses: list[tuple[Attempt, Guess]] = []
    silent: list[str] = []
    for attempt in attempts:
        truth = Truth.of(class_numbers(run.simulation)[0], attempt.grant)
        guess = scorable(attempt.guess(run.simulation, lambda: run), truth, attack=attempt.name)
        if len(guess.rows):
            guesses.append((attempt, guess))
        else:
            silent.append(f"{attempt.name} by {attempt.attacker}: it guessed no row that had not been granted")
    return guesses, silent


def _findings(
    run: Run[Any],
    guesses: Sequence[tuple[Attempt, Guess]],
    nulls: int,
    seed: int,
    executor: Executor | None,
    progress: bool | None,
) -> tuple[Finding, ...]:
    """Every guess beside its controls."""
    labels, _ = class_numbers(run.simulation)
    attempts = [attempt for attempt, _ in guesses]
    with _bar(nulls, progress) as advance:
        null = null_values(run.simulation, attempts, n=nulls, seed=seed, executor=executor, advance=advance)
    suites: dict[tuple[str, int], Alone] = {}
    findings = []
    for (attempt, guess), scored in zip(guesses, null, strict=True):
        key = (attempt.attacker, attempt.attack.needs.known_labels)
        if key not in suites:
            random = Randomness.seeded(seed, "alone", *key).generator()
            suites[key] = attacker_alone(run.simulation.tables.get(attempt.attacker), attempt.grant, random)
        random = Randomness.seeded(seed, "interval", attempt.name, attempt.attacker).generator()
        plain, up_to_naming = _evidence(guess, Truth.of(labels, attempt.grant), scored, suites[key], random)
        findings.append(_finding(run, attempt, guess, plain, up_to_naming))
    return tuple(findings)


def _evidence(
    guess: Guess, truth: Truth, null: Sequence[Values], alone: Alone, random: np.random.Generator
) -> tuple[Evidence, Evidence]:
    """A guess as it was made, and up to naming."""
    measure = measure_of(guess)
    by_chance = chance(measure, truth)
    plain = Evidence(
        with_interval(guess, truth, random),
        by_chance,
        tuple(values.plain for values in null),
        alone.best(guess.rows, measure, truth),
    )
    up_to_naming = Evidence(
        with_interval(best_named(guess, truth), truth, random),
        by_chance,
        tuple(values.up_to_naming for values in null),
        alone.best_up_to_naming(guess.rows, measure, truth),
    )
    return plain, up_to_naming


def _finding(run: Run[Any], attempt: Attempt, guess: Guess, plain: Evidence, up_to_naming: Evidence) -> Finding:
    attack, needs, owner = attempt.attack, attempt.attack.needs, run.plan.roles.label
    assert owner is not None
    n_guessable = len(run.simulation.tables[owner]) - len(attempt.grant.rows)
    return Finding(
        attack=attempt.name,
        summary=(type(attack).__doc__ or "").strip().split("\n")[0],
        attacker=attempt.attacker,
        owner=owner,
        about=attack.about,
        is_active=isinstance(attack, ActiveAttack),
        granted=Granted(
            tuple(message.kind for message in needs.messages), needs.own_features, needs.own_model, needs.known_labels
        ),
        measure=measure_of(guess),
        rows=len(guess.rows),
        coverage=len(guess.rows) / n_guessable,
        plain=plain,
        up_to_naming=up_to_naming,
    )


def _never_attacked(sent: Sequence[Disclosure], findings: Sequence[Finding]) -> Iterator[str]:
    """What was revealed to somebody and nobody tried to make use of."""
    attacked = {(finding.attacker, finding.owner, finding.about) for finding in findings}
    kinds: dict[tuple[str, str, Secret], list[str]] = {}
    for disclosure in sent:
        for secret in disclosure.reveals:
            kinds.setdefault((disclosure.receiver, disclosure.sender, secret), []).append(disclosure.kind)
    for (receiver, sender, secret), revealing in kinds.items():
        if (receiver, sender, secret) not in attacked:
            messages = " and ".join(dict.fromkeys(revealing))
            yield f"{receiver} about {sender}'s {secret}, given {messages}: no attack was made"


@contextmanager
def _bar(total: int, shown: bool | None) -> Iterator[Callable[[], None]]:
    if not (sys.stderr.isatty() if shown is None else shown):
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True)) as bar:
        task = bar.add_task("null runs", total=total)
        yield lambda: bar.advance(task)
