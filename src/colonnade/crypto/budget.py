"""Budget: how many values a peer has been answered about a data set, over all runs.

Every flooded answer tells a little, and what it tells adds up: a new run does not make anybody forget. So the count
outlives runs. It is taken from a log in portions, each written down before the first of its values is answered; a crash
loses the rest of a portion, never an answer. Whoever answers keeps the log and asks nobody.
"""

from __future__ import annotations

import json
from pathlib import Path

from colonnade.crypto.profiles import Profile
from colonnade.errors import BudgetSpent, StorageError
from colonnade.storage import append_durably, drop_unfinished, explained


class Budget:
    """How many values one peer may still be answered about one data set; past the cap it refuses.

    Args:
        profile: Under which the peer is answered.
        peer: Who is answered.
        data: What tells the data set from others.
        log: A file with a line for each portion; None counts this run only, as in a simulation.
        most: The cap; the profile's where None.

    >>> from colonnade.crypto.profiles import HISTOGRAM
    >>> budget = Budget(HISTOGRAM, peer="bank")
    >>> budget.spend(640)
    >>> budget.spent
    640
    """

    def __init__(
        self, profile: Profile, *, peer: str, data: str = "", log: Path | None = None, most: int | None = None
    ) -> None:
        self.profile, self.peer, self.data, self.log = profile, peer, data, log
        self.most = profile.most_values if most is None else most
        self._taken = self._left = 0
        if log is not None and log.exists():
            drop_unfinished(log)

    @property
    def spent(self) -> int:
        """How many values were answered, or written down for this run or others."""
        return (self._taken if self.log is None else self._written(self.log)) - self._left

    def spend(self, values: int) -> None:
        """Count values about to be answered.

        Raises:
            BudgetSpent: They would exceed the cap; nothing was counted.
        """
        if values > self._left:
            spent, cap = self.spent, self.most
            if spent + values > cap:
                raise BudgetSpent(
                    f"{self.peer} may be answered {cap} encrypted values about one data set, but {spent} were answered "
                    f"and {values} more are asked for. Train with fewer steps or rows of data."
                )
            # A thousandth of the cap at a time costs few writes, and a crash little.
            portion = min(max(values - self._left, cap >> 10), cap - spent - self._left)
            self._take(portion)
            self._left += portion
        self._left -= values

    def _take(self, portion: int) -> None:
        self._taken += portion
        if self.log is not None:
            append_durably(self.log, json.dumps({**self._whose, "values": portion}) + "\n")

    @property
    def _whose(self) -> dict[str, str]:
        return {"profile": self.profile.name, "peer": self.peer, "data": self.data}

    def _written(self, log: Path) -> int:
        if not log.exists():
            return 0
        with explained(f"read {log}"):
            lines = log.read_text(encoding="utf-8").splitlines()
        try:
            entries = [json.loads(line) for line in lines]
            return sum(int(entry.pop("values")) for entry in entries if entry.items() >= self._whose.items())
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise StorageError(
                f"{log} should hold one portion of answers per line, but is damaged. Restore it; do not delete it, for "
                "it says how much was told to whom."
            ) from error
