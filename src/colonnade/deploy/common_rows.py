"""Common rows: which rows of its table a party's run goes on with.

All of them, if the plan has no section [align]. With one, the parties find the common rows first, or take those of a
finished alignment, which asks nobody anything: each party checks that its list is still the one that was aligned, and
all compare what the alignment drew.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from blake3 import blake3

from colonnade.errors import DataError, PlanError, StorageError
from colonnade.plans.plan import Plan
from colonnade.runtime.alignment import Alignment
from colonnade.runtime.status import has_begun, read_status
from colonnade.tables.table import Table

if TYPE_CHECKING:
    from colonnade.align.limits import Purpose
    from colonnade.align.protocol import Align
    from colonnade.runtime.party import Party

R = TypeVar("R")


def described_alignment(plan: Plan, name: str, table: Table | None) -> dict[str, str]:
    """What tells later whether an alignment is still of the same lists: who aligned how, and a digest of the list."""
    align = plan.aligned
    described: list[Any] = [asdict(plan.roles), align.settings.describe()]
    # An alignment says which columns of keys are no features.
    described += [sorted(align.features[name])] if align.features.get(name) else []
    settings = json.dumps(described, sort_keys=True)
    found = {"aligned_by": blake3(settings.encode()).hexdigest(), "list": ""}
    if table is not None:
        keys = align.key_columns(name, table.id_name)
        found["list"] = table.select([key for key in keys if key in table.columns]).without_labels().digest()
    return found


def finished_alignment(plan: Plan, name: str, table: Table | None) -> Alignment | None:
    """The alignment that a plan names by the key `finished`; None if it names none.

    Raises:
        StorageError: There is no finished alignment of this party in the folder.
        PlanError: Other parties aligned, or in another way.
        DataError: The party's list is not the one that was aligned.
    """
    folder = None if plan.align is None else plan.align.finished
    if folder is None:
        return None
    side = folder / name if (folder / name).is_dir() else folder
    found = read_status(side) if has_begun(side) else {}
    if found.get("party") != name or not (side / "alignment.safetensors").is_file() or "list" not in found:
        raise StorageError(
            f"finished under [align] should name the folder of {name}'s finished alignment, as `colonnade align` makes "
            f"it, but {side} holds none. Correct the path, or leave the key out to align."
        )
    wanted = described_alignment(plan, name, table)
    if found["aligned_by"] != wanted["aligned_by"]:
        raise PlanError(
            f"{side} should hold an alignment by the roles and the settings of this plan, but was made by others. Use "
            "the same [roles] and [align], or leave the key finished out to align again."
        )
    if found["list"] != wanted["list"]:
        raise DataError(
            f"{name}'s rows should be those that were aligned in {side}, in the same order, but ids were added, "
            "removed, changed or moved since. Restore the file, or leave the key finished under [align] out to align "
            "again, which counts as another alignment. Columns that nobody is matched by may change."
        )
    return Alignment.load(side / "alignment.safetensors")


def agreed_alignment(alignment: Alignment | None) -> dict[str, str]:
    """What parties with a finished alignment compare when they meet: a digest of what the alignment drew."""
    return {} if alignment is None else {"alignment": blake3(alignment.schedule.encode()).hexdigest()}


def keep_alignment(plan: Plan, party: Party, path: Path, alignment: Alignment) -> None:
    """Write an alignment to a file, and into the status how many rows are common and of which list."""
    assert party.session is not None
    alignment.save(path)
    counted = {}
    if party.table is not None and alignment.n_common is not None:
        counted = {"common_rows": alignment.n_common, "own_rows": len(party.table)}
    party.session.note(**described_alignment(plan, party.name, party.table), **counted)


def on_common_rows(
    protocol: Callable[[Party], R],
    plan: Plan,
    party: Party,
    align: Align | None,
    purpose: Purpose,
    path: Path,
    shown: Callable[[int, int], None],
) -> Callable[[Party], R]:
    """A protocol on the common rows; which they are is written to a file.

    How many rows are common, and of how many, is shown and written into the status. A party that has too few of them to
    train on refuses before the parties agree on them, so that nobody trains.

    Args:
        protocol: What runs on the rows.
        plan: The plan.
        party: The party, with its table as it is read.
        align: How rows are aligned; None if the plan does not say.
        purpose: What the alignment is counted as.
        path: Where the alignment is kept.
        shown: Called with how many rows are common, and of how many.
    """
    if align is None:

        def on_all_rows(party: Party) -> R:
            if party.table is not None and party.session is not None:
                party.session.note(common_rows=len(party.table), own_rows=len(party.table))
                shown(len(party.table), len(party.table))
            return protocol(party)

        return on_all_rows
    from colonnade.align.protocol import Aligned

    limits, n_own = replace(align.limits, asked_for=purpose), 0 if party.table is None else len(party.table)
    finished = None if purpose == "lookup" else finished_alignment(plan, party.name, party.table)
    told = list[int]()

    def check(n_common: int) -> None:
        if purpose == "training":
            n_trained = n_common if plan.evaluate is None else plan.evaluate.trained(n_common)
            limits.check_training(party.name, n_trained, n_own)

    def accept(n_common: int) -> None:
        assert party.session is not None
        if told != [n_common]:
            told[:] = [n_common]
            party.session.note(common_rows=n_common, own_rows=n_own)
            shown(n_common, n_own)
        check(n_common)

    def keep(alignment: Alignment) -> None:
        # A run that goes on after its alignment has not counted the rows yet.
        if party.table is not None and alignment.n_common is not None:
            accept(alignment.n_common)
        keep_alignment(plan, party, path, alignment)

    if finished is not None and finished.n_common is not None:
        check(finished.n_common)  # before the others are met
    if finished is None:
        return Aligned(replace(align, limits=limits, accept=accept), protocol, keep)

    def on_known_rows(party: Party) -> R:
        keep(finished)
        return protocol(party.aligned(finished))

    return on_known_rows
