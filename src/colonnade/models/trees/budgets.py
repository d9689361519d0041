"""Budgets: how much of its columns a feature party tells the label party about the same rows, over all runs.

Sums: the label party knows gradients and who is in which node, so each sum that it opens is an equation in the unknown
bins of a column. Equations add up over trees and runs: with a fifth to a third as many as there are rows, the bins of
every person follow, also in columns that no split ever used. A node gives two equations for each column, one for
gradients and one for hessians.

Sides: the side of a row at a split rules out some of the row's bins in the column of the split, so each side is worth a
bit at most, about a column that wins. A batch of transfers tells one side of each row, whatever its number of splits.

The owner of the columns keeps both counts, in histories that recognise rows by their ids, and spends before anything is
computed or told.
"""

from __future__ import annotations

from math import inf

from colonnade.errors import LeakBudgetSpent
from colonnade.privacy.history import History, Records
from colonnade.runtime.party import Party
from colonnade.storage import HeldLog

EQUATIONS_PER_NODE = 2


class LeakBudget:
    """What the label party may still learn of this party's columns, in one unit.

    Args:
        party: The feature party.
        peer: The label party.
        unit: What is counted; the history's name begins with it.
        most: How many there may be; infinity counts and refuses nothing.
        allowed: What the label party may learn, in words, with the parameter that says so.
        advice: What to do where it asks for more.
    """

    def __init__(self, party: Party, peer: str, unit: str, most: float, allowed: str, advice: str) -> None:
        self._peer, self._unit, self._most, self._allowed, self._advice = peer, unit, most, allowed, advice
        self._spent = 0
        log, self._history = party.answer_log, None
        if log is not None:
            self._path = log.with_name(f"{unit}-of-{party.name}")
            self._history = History(self._path, Records.of(party.own_table), party.plan.hash)

    @classmethod
    def of_sums(cls, party: Party, peer: str, n_rows: int, per_row: float | None) -> LeakBudget:
        """Equations about each column, as many for each row of the sums as `per_row` says."""
        each = inf if per_row is None else per_row
        most = each * n_rows
        share = f"{each:g} for each of {n_rows:,} rows, leak_budget"
        return cls(
            party,
            peer,
            "equations",
            most,
            f"{most:g} sums about each column of {party.name} ({share})",
            'Grow fewer or shallower trees, bring more rows, use sums="hidden" or sums="noisy", or let the owner of '
            "the columns allow a larger leak_budget.",
        )

    @classmethod
    def of_sides(cls, party: Party, peer: str, most: int | None) -> LeakBudget:
        """Sides of each row."""
        return cls(
            party,
            peer,
            "sides",
            inf if most is None else most,
            f"{most} sides of each row at splits by {party.name}'s columns (side_budget)",
            "Grow fewer or shallower trees, leave columns out, or let the owner of the columns allow a larger "
            "side_budget.",
        )

    def require_room(self, count: int) -> tuple[str, ...]:
        """What is left for this run, if earlier runs have spent some; nothing is counted.

        Raises:
            LeakBudgetSpent: This count and what earlier runs told would exceed the budget together.
        """
        if self._history is not None and self._path.exists():
            with self._history.locked() as held:
                self._look_back(self._history, held)
        self._require(count)
        if not self._spent or self._most == inf:
            return ()
        return (f"{self._peer} may learn {self._allowed}, over all runs on these rows, and learned {self._spent:,}",)

    def spend(self, count: int) -> None:
        """Count what is about to be told.

        Raises:
            LeakBudgetSpent: It would exceed the budget; nothing was counted.
        """
        if self._history is None:
            self._require(count)
        else:
            with self._history.locked() as held:
                self._look_back(self._history, held)
                self._require(count)
                self._history.append(held, {"peer": self._peer, self._unit: count})
        self._spent += count

    def _look_back(self, history: History, held: HeldLog) -> None:
        others = history.unread(held)
        self._spent += sum(int(entry[self._unit]) for entry in others if entry["peer"] == self._peer)

    def _require(self, count: int) -> None:
        if self._spent + count > self._most:
            raise LeakBudgetSpent(
                f"{self._peer} may learn {self._allowed}, over all runs on these rows, but learned {self._spent} and "
                f"asks for {count} more. {self._advice}"
            )
