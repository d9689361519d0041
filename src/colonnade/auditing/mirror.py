"""The mirror audit: a deployed party, alone, attacks what it itself sent.

    own recording ──▶ seen from the peer's end ──▶ guess ──▶ score, beside permutations of the own labels

What bank sent to shop is what shop received, so an attack that needs nothing else can be made without shop: nobody is
asked, nothing is run again. What needs shop's own columns, model or messages is listed as untested, and so is what shop
could do alone. The null is weaker than in a simulation: it rules out luck, but not that the messages tell only what
shop's own columns say already.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from colonnade.attacks.base import ActiveAttack, Attack
from colonnade.auditing.attempt import Attempt, Side, attack_seed, grant_for, is_kept, name_of, too_few
from colonnade.auditing.disclosure import budget, disclosures
from colonnade.auditing.finding import finding_of, never_attacked, scored_part, unscorable
from colonnade.auditing.null import numbered, permuted_truth_values, require_permutations
from colonnade.auditing.report import Finding, Mirror, PrivacyReport, RunIdentity
from colonnade.auditing.score import Truth
from colonnade.auditing.stated import statements
from colonnade.errors import DataError
from colonnade.privacy.ledger import Ledger
from colonnade.privacy.randomness import Randomness, Source
from colonnade.roles import PublicPlan
from colonnade.tables.table import Table
from colonnade.wire.recording.transcript import Transcript


def audit_own_side(
    transcript: Transcript,
    attacks: Sequence[Attack | ActiveAttack],
    *,
    plan: PublicPlan,
    table: Table,
    ledger: Ledger,
    nulls: int = 200,
    seed: int = 0,
    delta: float = 1e-5,
    randomness: Source = "system",
    insecure: bool = False,
) -> PrivacyReport:
    """Make every attack that what this party sent allows, as each of its peers, and report what was found and sent.

    Args:
        transcript: The party's own recording of the run.
        attacks: The attacks to make.
        plan: The run's plan.
        table: The party's own rows in that run.
        ledger: What the party spent in that run.
        nulls: Against how many permutations of its labels each guess is scored.
        seed: Grants, permutations and resampling follow from it.
        delta: At which the privacy budget is told.
        randomness: How the party's noise was drawn.
        insecure: Whether the run was without TLS.
    """
    require_permutations(nulls)
    require_rows(transcript, table)
    owner, random = transcript.party, Randomness.seeded(seed)
    findings: list[Finding] = []
    untested: list[str] = []
    for attack in attacks:
        name = name_of(attack)
        if reason := unscorable(attack, owner, table.labels):
            untested.append(f"{name}: {reason}")
            continue
        labels, n_classes = numbered(np.asarray(table.labels))
        for attacker in plan.roles.parties:
            if attacker == owner:
                continue
            seen = transcript.mirrored(attacker)
            grant = grant_for(attack, seen, labels, n_classes, random)
            if grant is None:
                untested.append(f"{name} by {attacker}: {too_few(attack)}")
                continue
            attempt = Attempt(attack, attacker, grant, attack_seed(random, attack, attacker))
            if reason := _unfit(attempt, seen, owner) or attempt.unfit_for(Side(plan, seen)):
                untested.append(f"{name} by {attacker}: {reason}")
                continue
            assert isinstance(attack, Attack)
            truth = Truth.of(labels, grant)
            guess = scored_part(attempt, attack.guess(attempt.view_of(Side(plan, seen))), truth)
            if isinstance(guess, str):
                untested.append(f"{name} by {attacker}: {guess}")
                continue
            null = permuted_truth_values(guess, truth, nulls, random.generator("null", name, attacker))
            interval = random.generator("interval", name, attacker)
            findings.append(finding_of(attempt, guess, truth, owner=owner, null=null, alone=None, random=interval))
    alone = [
        f"what {name} could do alone: it needs {name}'s own columns"
        for name in dict.fromkeys(f.attacker for f in findings)
    ]
    sent = disclosures({owner: transcript})
    return PrivacyReport(
        run=RunIdentity.of(plan, Mirror(owner), n_rows=len(table), randomness=randomness, insecure=insecure),
        disclosures=sent,
        budget=budget(sent, {owner: ledger}, delta),
        attacks=tuple(findings),
        untested=(*untested, *alone, *never_attacked(sent, findings)),
        stated=statements({owner: transcript}),
    )


def require_rows(transcript: Transcript, table: Table) -> None:
    """Refuse a table that has fewer rows than a recording is about."""
    n = max((len(means.counts) for means in transcript.means), default=0)
    if n > len(table):
        raise DataError(
            f"{transcript.party}'s table should be the one of the run, whose recording is about at least {n} rows, but "
            f"it has {len(table)}. Give the rows that the run was made on, in the same order."
        )


def _unfit(attempt: Attempt, seen: Transcript, owner: str) -> str | None:
    """Why an attempt cannot be made without the peer; None if it can."""
    attack, attacker = attempt.attack, attempt.attacker
    if isinstance(attack, ActiveAttack):
        return f"it needs {attacker}'s own part in a run, and a mirror audit runs nothing"
    own = ["columns"] * attack.needs.own_features + ["model"] * attack.needs.own_model
    if own:
        return f"it needs {attacker}'s own {' and '.join(own)}"
    for kind in sorted(message.kind for message in attack.needs.messages):
        entries = [entry for entry in seen.entries if entry.kind == kind]
        if not entries:
            return f"it needs {kind}, of which {owner} sent {attacker} none"
        if not is_kept(seen, kind):
            if all(entry.sent for entry in entries):
                return f"it needs {attacker}'s own {kind}, of which {owner} kept only digests"
            return f"it needs {kind}, of which {owner} kept only digests; run with keep='audit'"
    return None
