"""Equations: how many sums over a party's columns the label party may learn about the same rows, over all runs.

The label party knows gradients and who is in which node. So each sum that it opens is an equation in the unknown bins
of a column. Equations add up over trees and runs: with a fifth to a third as many as there are rows, the bins of every
person follow, also in columns that no split ever used. A node gives two equations for each column, one for gradients
and one for hessians. The owner of the columns keeps the count, in a history that recognises rows by their ids, and
spends before anything is computed.
"""

from __future__ import annotations

from colonnade.errors import LeakBudgetSpent
from colonnade.privacy.history import History, Records
from colonnade.runtime.party import Party

EQUATIONS_PER_NODE = 2


class EquationBudget:
    """What the label party may still learn of this party's columns.

    Args:
        party: The feature party.
        peer: The label party.
        n_rows: How many rows the sums are about.
        per_row: How many equations there may be for each row; None counts and refuses nothing.
    """

    def __init__(self, party: Party, peer: str, n_rows: int, per_row: float | None) -> None:
        self._owner, self._peer, self._per_row = party.name, peer, per_row
        self._n_rows, self._spent = n_rows, 0
        log, self._history = party.answer_log, None
        if log is not None:
            path = log.with_name(f"equations-of-{party.name}")
            self._history = History(path, Records.of(party.own_table), party.plan.hash)

    @property
    def most(self) -> float:
        """How many equations there may be about these rows."""
        return float("inf") if self._per_row is None else self._per_row * self._n_rows

    def require_room(self, n_nodes: int) -> None:
        """Raise `LeakBudgetSpent` if the sums of nodes would exceed the budget, of earlier runs aside."""
        self._require(EQUATIONS_PER_NODE * n_nodes)

    def spend(self, n_nodes: int) -> None:
        """Count the sums of nodes about to be computed.

        Raises:
            LeakBudgetSpent: They would exceed the budget; nothing was counted.
        """
        equations = EQUATIONS_PER_NODE * n_nodes
        if self._history is None:
            self._require(equations)
            self._spent += equations
            return
        with self._history.locked() as held:
            others = self._history.unread(held)
            self._spent += sum(int(entry["equations"]) for entry in others if entry["peer"] == self._peer)
            self._require(equations)
            self._history.append(held, {"peer": self._peer, "equations": equations})
            self._spent += equations

    def _require(self, equations: int) -> None:
        if self._spent + equations > self.most:
            raise LeakBudgetSpent(
                f"{self._peer} may learn {self.most:g} sums about each column of {self._owner} "
                f"({self._per_row:g} for each of {self._n_rows:,} rows, leak_budget), over all runs on these rows, but "
                f"learned {self._spent} and asks for {equations} more. Grow fewer or shallower trees, bring more rows, "
                'use sums="hidden" or sums="noisy", or let the owner of the columns allow a larger leak_budget.'
            )
