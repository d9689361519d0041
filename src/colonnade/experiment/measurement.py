"""Measurement: train, predict rows that were held out, attack; all figures in one mapping that a journal can hold.

    quality.AUC, ...            how well the joint model predicts held-out rows
    attacks.NAME.score, ...     each attack beside its controls, or why it was not made
    leak.SECRET.excess, ...     the headline about each secret: all attacks joined, or the one that finds most
    learning.PARTY.loss, ...    what a party noted in each epoch
    refused                     why the parties did not train; then there is nothing else

Every attack that was asked for has a `verdict`, and so has the joint one where an audit tried to join several, so that
no cell of a table is empty without a word. The same plan and seed give the same figures: times stand in the journal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import mean
from typing import Any, get_args

from colonnade.attacks.base import AnyAttack
from colonnade.attacks.labels.strongest import Strongest
from colonnade.auditing import audit
from colonnade.auditing.attempt import name_of
from colonnade.auditing.contents import Finding, Verdict
from colonnade.auditing.report import PrivacyReport
from colonnade.errors import PlanError
from colonnade.experiment.quality import quality
from colonnade.experiment.sweep import Trial
from colonnade.models.base import Estimator
from colonnade.plans.grid import planned
from colonnade.plans.plan import Plan
from colonnade.runtime.simulate import Run
from colonnade.tables.table import Table

SECTIONS = ("quality", "attacks", "leak", "learning", "refused")
"""How the names of figures begin; no section of a plan is called so."""
INAPPLICABLE, NOT_MADE = "does not apply", "not made"


def measure_trial(trial: Trial) -> dict[str, Any]:
    """Measure a trial of a grid plan."""
    return measure_plan(planned(trial.configuration, trial.seed))


def measure_plan(plan: Plan) -> dict[str, Any]:
    """Train as a plan says, with all parties in this process, and measure; nothing is written to disk."""
    tables = plan.tables()
    attacks = plan.audit.build(plan.defences)
    try:
        run = plan.simulation(tables.train).run()
    except PlanError as refusal:
        return {"refused": str(refusal)}
    how = plan.audit
    return measured(run, tables.test, attacks, nulls=how.nulls, seed=how.seed, delta=how.delta, epochs=how.epochs)


def measured(
    run: Run[Estimator],
    test: Mapping[str, Table],
    attacks: Sequence[AnyAttack],
    *,
    nulls: int,
    seed: int,
    delta: float = 1e-5,
    epochs: int = 0,
) -> dict[str, Any]:
    """Measure a run.

    Args:
        run: A training.
        test: The parties' rows that were held out.
        attacks: What to attack with.
        nulls: How many times the run is repeated with a shuffled secret.
        seed: Grants, shuffles and the attacks' own randomness follow from it.
        delta: At which the privacy budget is told.
        epochs: At how many epochs the worst attack on labels is made again, on the messages of that epoch alone.
    """
    report = audit(run, attacks, nulls=nulls, seed=seed, delta=delta, epochs=epochs, progress=False)
    found = attack_figures(report, attacks)
    return {
        "quality": quality(run, test),
        "attacks": found,
        "leak": _leaks(found, {finding.attack for finding in report.strongest}),
        "learning": {
            party: {name: [step.get(name) for step in steps] for name in steps[0]}
            for party, steps in run.history_.items()
            if steps
        },
    }


def attack_figures(report: PrivacyReport, attacks: Sequence[AnyAttack] = ()) -> dict[str, dict[str, Any]]:
    """What each attack reached beside its controls, under the names of classes that suit it best.

    Where several parties make the same attack, the worst of them counts: by its verdict, and then by how far it exceeds
    that party alone. The worst one is picked by the truth.

    Args:
        report: An audit.
        attacks: The attacks that were asked for. Of one that was not made, the figures say why.
    """
    found: dict[str, dict[str, Any]] = {}
    for finding in sorted(report.attacks, key=_place):
        found.setdefault(finding.attack, _figures(finding))
    joined = Strongest()
    for attack in (*attacks, joined):
        name = name_of(attack)
        lines = [line for line in report.untested if line.startswith((f"{name} by ", f"{name}:"))]
        # An audit joins attacks by itself, where a party makes several.
        if name not in found and (lines or attack is not joined):
            verdict = INAPPLICABLE if set(lines) <= set(report.inapplicable) else NOT_MADE
            found[name] = {"verdict": verdict, "about": attack.about.value, "reason": "; ".join(lines)}
    return found


def _place(finding: Finding) -> tuple[int, float]:
    """Where a finding stands among those of one attack by several parties, the worst first."""
    evidence = finding.tests[-1]
    alone = evidence.chance if evidence.alone is None else evidence.alone.value
    return get_args(Verdict).index(finding.verdict), alone - evidence.score.value


def _figures(finding: Finding) -> dict[str, Any]:
    evidence = finding.tests[-1]
    score, alone = evidence.score, None if evidence.alone is None else evidence.alone.value
    figures: dict[str, Any] = {
        "verdict": finding.verdict,
        "about": finding.about.value,
        "attacker": finding.attacker,
        "owner": finding.owner,
        "measure": finding.measure,
        "score": score.value,
        "low": score.low,
        "high": score.high,
        "chance": evidence.chance,
        "null": mean(evidence.null),
        "null_high": evidence.null_high,
        "alone": alone,
    }
    if alone is not None:
        figures |= {
            "excess": score.value - alone,
            "excess_low": score.low - alone,
            "excess_high": score.high - alone,
        }
    if finding.leakage is not None:
        share = finding.leakage.normalised
        figures |= {"luck": finding.leakage.luck, "normalised": None if share is None else share.value}
    if finding.over_epochs:
        epochs, scores = zip(*finding.over_epochs, strict=True)
        figures |= {"epochs": list(epochs), "epoch_scores": list(scores)}
    return figures


def _leaks(found: Mapping[str, Mapping[str, Any]], joined: set[str]) -> dict[str, dict[str, Any]]:
    """About each secret, what all attacks reach joined or, where none were joined, the attack that finds most."""
    told = ("score", "alone", "excess", "excess_low", "excess_high", "null_high", "verdict")
    leaks: dict[str, dict[str, Any]] = {}
    for name in sorted(found, key=lambda each: (each not in joined, -found[each].get("excess", 0.0))):
        figures = found[name]
        if "excess" in figures and figures["about"] not in leaks:
            leaks[figures["about"]] = {"by": name, **{key: figures[key] for key in told}}
    return leaks
