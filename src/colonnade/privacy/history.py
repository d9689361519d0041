"""History: what all runs of a party released about the same records, in one file that outlives every run.

The file `privacy-of-<party>` lies beside the files that count encrypted answers and alignments. It names each table
once, by its digest and a sample of its ids, and then has a line for each release. Releases from two tables count
together if the tables are equal or share an id of their samples: a table with a column more, some rows more or some
rows fewer is still about the same people. The sample holds the least ids, so tables that share few people may go
unnoticed.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pyarrow.compute as pc
from blake3 import blake3

from colonnade.storage import Entry, HeldLog, SharedLog
from colonnade.tables.table import Table

_SAMPLED = 256


@dataclass(frozen=True)
class Records:
    """What a table is known by over several runs.

    Attributes:
        table: A digest of everything in it.
        ids: Digests of some of its ids: the least ones, so that equal people give equal digests in any table.

    >>> few, more = (Table.of({"id": ids, "x": ids}) for ids in ([1, 2], [2, 3]))
    >>> Records.of(few).overlap(Records.of(more)), Records.of(few).overlap(Records.of(Table.of({"id": [4], "x": [4]})))
    (True, False)
    """

    table: str
    ids: frozenset[str]

    @classmethod
    def of(cls, table: Table) -> Records:
        """The records of a table."""
        known = table.ids.drop_null()
        least = known.take(pc.select_k_unstable(known, _SAMPLED, [("", "ascending")])) if len(known) else known
        return cls(
            table.digest(), frozenset(blake3(repr(each).encode()).hexdigest()[:16] for each in least.to_pylist())
        )

    def overlap(self, other: Records) -> bool:
        """Whether a record of one is seen to be a record of the other."""
        return self.table == other.table or not self.ids.isdisjoint(other.ids)


class History:
    """The releases about some records, over all runs; `run` tells this run from others, for those who read the file."""

    def __init__(self, path: Path, records: Records, run: str = "") -> None:
        self.records, self.run = records, run
        self._log = open_history(path)
        self._read = 0
        self._related = {records.table}
        self._is_named = False

    def locked(self) -> AbstractContextManager[HeldLog]:
        """Keep all other runs from releasing anything while this one checks what it may release."""
        return self._log.locked()

    def unread(self, held: HeldLog) -> list[Entry]:
        """The releases about these records that were added to the locked log since the last look."""
        if held.size < self._read:
            raise self._log.damaged()
        entries, self._read = held.entries(self._read), held.size
        found = []
        try:
            for entry in entries:
                if "ids" in entry:
                    known = Records(entry["table"], frozenset(entry["ids"]))
                    self._is_named |= known.table == self.records.table
                    if known.overlap(self.records):
                        self._related.add(known.table)
                elif entry["table"] in self._related:
                    found.append(entry)
        except (KeyError, TypeError) as error:
            raise self._log.damaged() from error
        return found

    def append(self, held: HeldLog, entry: Entry) -> None:
        """Add a release to the locked log, after `unread` has shown all others."""
        table, at = self.records.table, datetime.now(UTC).isoformat(timespec="seconds")
        if not self._is_named:
            held.append({"table": table, "ids": sorted(self.records.ids)})
            self._is_named = True
        held.append({"at": at, "run": self.run, "table": table, **entry})
        self._read = held.size


def open_history(path: Path) -> SharedLog:
    """The log of a history."""
    return SharedLog(path, "one table or one privacy event")


def history_path(folder: Path, party: str) -> Path:
    """Where the history of a party lies.

    >>> history_path(Path("runs"), "bank").name
    'privacy-of-bank'
    """
    return folder / f"privacy-of-{party}"
