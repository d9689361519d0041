"""What a party's releases cost over all its runs, table by table, as its history says."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from colonnade.privacy.history import Records, open_history
from colonnade.privacy.ledger import Ledger, Spent, compose, event_of
from colonnade.secret import Secret


@dataclass(frozen=True)
class SpentOnTable:
    """What all runs spent on the records of one table.

    Attributes:
        table: The digest of the table.
        n_runs: How many runs released something about these records.
        since: When the first release was.
        until: When the last release was.
        spent: What the releases cost together, by secret.
    """

    table: str
    n_runs: int
    since: str
    until: str
    spent: dict[Secret, Spent]


def spent_over_runs(path: Path, delta: float) -> Iterator[SpentOnTable]:
    """Yield what was spent on each table that a history names, with the tables that share records with it.

    Args:
        path: The file `privacy-of-<party>`.
        delta: The failure probability at which epsilon is told.

    Raises:
        StorageError: The file is damaged.
    """
    log = open_history(path)
    entries = log.entries()
    try:
        tables = [Records(entry["table"], frozenset(entry["ids"])) for entry in entries if "ids" in entry]
        for records in tables:
            related = {other.table for other in tables if other.overlap(records)}
            about = [entry for entry in entries if "ids" not in entry and entry["table"] in related]
            ledger = Ledger()
            for entry in about:
                identity = entry["identity"]
                known = None if identity is None else bytes.fromhex(identity)
                ledger.spend(event_of(entry), entry["count"], identity=known)
            times, runs = [entry["at"] for entry in about], {entry["run"] for entry in about}
            if about:
                yield SpentOnTable(records.table, len(runs), min(times), max(times), compose([ledger], delta))
    except (KeyError, TypeError, ValueError) as error:
        raise log.damaged() from error
