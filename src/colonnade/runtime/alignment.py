"""Alignment: which of a party's rows stand for the people that all parties know, in an order that all share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from colonnade.errors import DataError
from colonnade.storage import read_tree, write_tree
from colonnade.tables.table import Table


@dataclass(frozen=True, eq=False)
class Alignment:
    """What an alignment leaves at one party.

    A left join keeps rows of the label party without a partner. The label party then has all its rows except those that
    repeat an id, and every feature party has as many rows in the same order, some of them absent. `present` says which
    of the aligned rows this party has; `partners` says, at the label party, which rows each feature party has. The
    aligned table carries both through splits and samples (`Table.present`, `Table.partners`), and `Party.present` and
    `Party.partners` show them to a model.

    Attributes:
        rows: The numbers of this party's rows in the common order, -1 where it has none; None if it may not know them.
        size: How many rows there are in the common order; None if this party may not know that either.
        digest: A digest of the common order, which all parties that know it have compared.
        schedule: The seed of the randomness that all parties share; no secret.
        partners: At the label party, after a left join: which of the aligned rows each feature party has.
        keys: The columns that people were matched by, besides the id column; they are no features.
        learned: What each party learned, a sentence each.
        missing: How many of this party's rows have no id under any key.
        repeated: How many of its rows repeat the id of an earlier row, under the first key.

    >>> table = Table.of({"id": ["a", "b", "c"], "income": [1, 2, 3]}, owner="bank")
    >>> alignment = Alignment(np.array([2, -1, 0]), 3, "d", "s")
    >>> alignment.take(table).ids.to_pylist(), alignment.present
    (['c', None, 'a'], array([ True, False,  True]))
    """

    rows: npt.NDArray[np.int64] | None = field(repr=False)
    size: int | None
    digest: str
    schedule: str
    partners: Mapping[str, npt.NDArray[np.bool_]] = field(default_factory=dict, repr=False)
    keys: tuple[str, ...] = ()
    learned: tuple[str, ...] = ()
    missing: int = 0
    repeated: int = 0

    @property
    def present(self) -> npt.NDArray[np.bool_] | None:
        """Which of the aligned rows this party has; None if it has them all, or may not know them."""
        if self.rows is None or (self.rows >= 0).all():
            return None
        return np.asarray(self.rows >= 0)

    @property
    def n_common(self) -> int | None:
        """How many different rows of this party another party has too; None if it may not know them.

        The label party counts them with each feature party after a left join, and the fewest are told.

        >>> Alignment(np.array([2, 2, -1, 0]), 4, "d", "s").n_common
        2
        """
        if self.rows is None:
            return None
        shared = self.partners.values() or [self.rows >= 0]
        return min(len(np.unique(self.rows[mask])) for mask in shared)

    def take(self, table: Table) -> Table:
        """A table's rows in the common order, without the columns that people were matched by.

        Raises:
            DataError: This party was not told which rows are common, or there are none.
        """
        owner = table.owner or "The party"
        if self.rows is None:
            raise DataError(
                f"{owner} was to take the common rows, but this alignment did not tell it which they are. "
                'Align with reveal = "both".'
            )
        if not len(self.rows):
            raise DataError(
                f"{owner} has no row in common with all others, so there is nothing to go on with. Check at all "
                "parties that the right columns were matched, and by the right rules."
            )
        kept = table.select([name for name in table.columns if name not in self.keys])
        return kept.arranged(self.rows, self.partners)

    def save(self, path: Path) -> None:
        """Write the alignment to a file. The file says which rows are common: keep it as safe as the table."""
        write_tree(path, {**vars(self), "partners": dict(self.partners)})

    @classmethod
    def load(cls, path: Path) -> Alignment:
        """Read what `save` wrote."""
        tree = read_tree(path)
        partners = {name: np.asarray(mask, bool) for name, mask in tree["partners"].items()}
        lists = {name: tuple(tree[name]) for name in ("keys", "learned")}
        return cls(**{**tree, **lists, "partners": partners})

    def summary(self) -> str:
        """The outcome in a few sentences."""
        lines = []
        if self.size is not None:
            known = "" if self.rows is not None else "; which they are was not told"
            absent = 0 if self.rows is None else int((self.rows < 0).sum())
            lines.append(f"{self.size:,} aligned rows{known}{f', {absent:,} of them absent here' if absent else ''}.")
        if self.size == 0:
            lines.append("No id is held by all parties: check the columns and rules if that is unexpected.")
        if self.missing or self.repeated:
            lines.append(f"Here {self.missing:,} rows have no id, and {self.repeated:,} that of an earlier row.")
        return "\n".join((*lines, *self.learned))
