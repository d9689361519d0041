"""Admission: whether a plan's model, roles, defences and tables go together, found before anything runs."""

from __future__ import annotations

from pathlib import Path

from colonnade.errors import DataError, PlanError
from colonnade.plans.plan import Plan
from colonnade.runtime.party import Party
from colonnade.tables.table import Table


def check_model(plan: Plan, name: str, table: Table | None, counts: Path | None = None) -> tuple[str, ...]:
    """What a party should know before training; raises what training would refuse on this party's side.

    Args:
        plan: A plan with a model.
        name: The party.
        table: Its table as it is read, before an alignment.
        counts: The file in which it counts its answers over all runs, with other counts beside; None looks at no run
            before this one.
    """
    model, aligns = plan.trained.build(), plan.align is not None
    checked = None if table is None else table.checked(name, ids=not aligns)
    defences = tuple(planned.build() for planned in plan.defences if planned.party == name)
    party = Party.alone(plan.public(), name, checked, defences=defences, answer_log=counts)
    model.check_setup(party)
    for idle in sorted(set(plan.roles.parties).difference(*model.lines(plan.roles))):
        raise PlanError(
            f"{plan.trained.name} should have something to do for every party, but has nothing for {idle}. Leave "
            f"{idle} out of [roles], or take another model."
        )
    model.admit_defences(party)
    if checked is None:
        return ()
    most, notes = model.most_rows(plan.roles), []
    if most is not None and len(checked) > most:
        words = f"{name} has {len(checked):,} rows, but {plan.trained.name} takes at most {most:,}"
        if not aligns:
            raise DataError(f"{words}. Bring fewer rows, or take another model.")
        notes.append(f"{words}; no more may be common")
    return (*notes, *model.check_table(party))
