"""Preflight: what a plan's run needs on one party's side, looked at before anybody is met.

`colonnade doctor` tells all of it; `colonnade join`, `align` and `predict` refuse with the first thing that is missing,
before an id crosses and before an alignment is counted.
"""

from __future__ import annotations

from pathlib import Path

from colonnade.errors import PlanError
from colonnade.plans.admission import check_model
from colonnade.plans.plan import Plan
from colonnade.plans.sections import PlannedNetwork
from colonnade.roles import Lines, star
from colonnade.tables.table import Table
from colonnade.text import nearest


def lines_needed(plan: Plan) -> Lines:
    """The pairs of parties between which a plan's run sends something; the first party meets everybody."""
    needed = star(plan.roles.parties[0], plan.roles.parties)
    if plan.align is not None:
        needed |= plan.align.lines(plan.roles)
    return needed if plan.model is None else needed | plan.model.build().lines(plan.roles)


def require_lines(plan: Plan) -> int:
    """Raise `PlanError` for two parties that must talk and cannot reach each other; returns how many pairs must."""
    assert plan.network is not None
    found, needed = plan.network.addresses(plan.roles.parties), lines_needed(plan)
    for one, other in sorted(sorted(pair, key=plan.roles.parties.index) for pair in needed):
        if found[one] is None and found[other] is None:
            what = "The alignment" if plan.model is None else f"{plan.model.name} in training or prediction"
            raise PlanError(
                f"{what} needs a line between {one} and {other}, but [network] gives neither an address. Write "
                f'address = "host:port" under [network.{one}] or [network.{other}], the same at all parties.'
            )
    return len(needed)


def require_list(plan: Plan, name: str, table: Table | None) -> None:
    """Refuse a list that has too few rows to be aligned, whatever its ids are."""
    if table is not None and plan.align is not None and plan.align.finished is None:
        plan.align.build(name).limits.check_size(name, name, len(table))


def require_ready(plan: Plan, name: str, table: Table | None, counts: Path | None = None) -> None:
    """Refuse a training that would fail on this party's side, or for want of a line."""
    require_lines(plan)
    check_model(plan, name, table, counts)
    require_list(plan, name, table)


def counts_path(folder: Path, name: str) -> Path:
    """Where a party counts its answers over all runs in a folder; other counts lie beside.

    >>> counts_path(Path("runs"), "bank").name
    'answers-of-bank'
    """
    return folder / f"answers-of-{name}"


def require_network(plan: Plan, name: str) -> PlannedNetwork:
    """What the plan says about the network, if it does and has this party."""
    parties = plan.roles.parties
    if name not in parties:
        raise PlanError(
            f"The parties of this plan are {', '.join(parties)}, but --as names {name!r}.{nearest(name, parties)} "
            "Use one of them."
        )
    if plan.network is None:
        raise PlanError(
            "A run between machines needs a section [network] in the plan, but it has none. Write "
            f'[network.{parties[0]}] and under it address = "host:port", where the others reach {parties[0]}.'
        )
    return plan.network
