"""Counts that outlive runs: what earlier runs in a folder have left of each, looked at before another run begins.

Equations and sides of boosted trees are counted too, and looked at with the model (`colonnade.deploy.preflight`).
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from colonnade.align.limits import Purpose
from colonnade.align.opening import Participants
from colonnade.crypto.profiles import ARBITER, SHARES, Budget
from colonnade.deploy.doctor.checklist import Checklist
from colonnade.deploy.preflight import counts_path
from colonnade.errors import BudgetSpent
from colonnade.plans.plan import Plan
from colonnade.privacy.history import History, Records, history_path
from colonnade.privacy.ledger import Ledger
from colonnade.storage import SharedLog
from colonnade.tables.table import Table

PURPOSES: tuple[Purpose, ...] = ("training", "prediction")


def look_at_counts(home: Checklist, plan: Plan, name: str, table: Table, folder: Path) -> None:
    """Say what is left of alignments, of the privacy budget and of encrypted answers; what is used up is wrong.

    Args:
        home: The party's list.
        plan: The plan.
        name: The party.
        table: Its table as it is read, before an alignment.
        folder: Where its runs are kept.
    """
    with home.trying("alignments"):
        _look_at_alignments(home, plan, name, folder)
    with home.trying("privacy budget"):
        _look_at_ledger(home, plan, name, table, folder)
    with home.trying("answers"):
        _look_at_answers(home, name, table, folder)


def _look_at_alignments(home: Checklist, plan: Plan, name: str, folder: Path) -> None:
    log = folder / f"alignments-of-{name}"
    # A finished alignment asks nothing.
    if plan.align is None or plan.align.finished is not None or not log.exists():
        return
    limits = replace(plan.align.build(name).limits, log=log)
    for peer in Participants.of(plan.roles, plan.align.settings, name).compared:
        left = [replace(limits, asked_for=purpose).require_room(name, peer) for purpose in PURPOSES]
        home.good("alignments", f"room for {left[0]:,} trainings and {left[1]:,} predictions with {peer}")


def _look_at_ledger(home: Checklist, plan: Plan, name: str, table: Table, folder: Path) -> None:
    path = history_path(folder, name)
    if not path.exists():
        return
    ledger = Ledger(history=History(path, Records.of(table)))
    for secret, (epsilon, delta) in plan.privacy.budgets.items():
        spent = ledger.spent_over_runs(secret, delta).epsilon
        words = f"epsilon {spent:.4g} of {epsilon:g} at delta {delta:g} on {secret} over all runs on these records"
        if spent >= epsilon:
            raise BudgetSpent(
                f"{name} should have something left to spend, but has spent {words}. Agree on a larger budget, or "
                "bring other records."
            )
        home.good("privacy budget", f"{name} has spent {words}")


def _look_at_answers(home: Checklist, name: str, table: Table, folder: Path) -> None:
    path, data = counts_path(folder, name), table.counted_as()
    peers = dict.fromkeys(str(entry.get("peer")) for entry in SharedLog(path, "one portion of answers").entries())
    for budget in (Budget(profile, peer=peer, data=data, log=path) for peer in peers for profile in (SHARES, ARBITER)):
        if not budget.spent:
            continue
        words = f"{budget.peer} was answered {budget.spent:,} of at most {budget.most:,} encrypted values"
        if budget.spent >= budget.most:
            raise BudgetSpent(f"{words} about {name}'s table, so another run is answered nothing. Bring other records.")
        home.good("answers", f"{words} about {name}'s table")
