"""Budget: how many values a peer has been answered about a data set, over all runs.

Every flooded answer tells a little, and what it tells adds up: a new run does not make anybody forget. So the count
outlives runs. It is taken from a log in portions, each written down before the first of its values is answered; a crash
loses the rest of a portion, never an answer. The party that answers keeps the log and asks nobody. Runs that go on at
the same time take their portions one after the other, under the lock of the log.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from colonnade.crypto.profiles import Profile
from colonnade.errors import BudgetSpent
from colonnade.shared_log import Entry, HeldLog, SharedLog


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
        self._shared = None if log is None else SharedLog(log, "one portion of answers")
        self._taken = self._left = 0

    @property
    def spent(self) -> int:
        """How many values were answered, or written down for this run or others."""
        return (self._taken if self._shared is None else self._written(self._shared.entries())) - self._left

    def spend(self, values: int) -> None:
        """Count values about to be answered.

        Raises:
            BudgetSpent: They would exceed the cap; nothing was counted.
        """
        if values > self._left:
            with self._held() as held:
                written = self._taken if held is None else self._written(held.entries())
                spent, cap = written - self._left, self.most
                if spent + values > cap:
                    raise BudgetSpent(
                        f"{self.peer} may be answered {cap} encrypted values about one data set, but {spent} were "
                        f"answered and {values} more are asked for. Train with fewer steps or rows of data."
                    )
                # A thousandth of the cap at a time costs few writes, and a crash little.
                portion = min(max(values - self._left, cap >> 10), cap - spent - self._left)
                if held is not None:
                    held.append({**self._whose, "values": portion})
            self._taken += portion
            self._left += portion
        self._left -= values

    @contextmanager
    def _held(self) -> Iterator[HeldLog | None]:
        if self._shared is None:
            yield None
            return
        with self._shared.locked() as held:
            yield held

    @property
    def _whose(self) -> dict[str, str]:
        return {"profile": self.profile.name, "peer": self.peer, "data": self.data}

    def _written(self, entries: Iterable[Entry]) -> int:
        try:
            return sum(int(entry["values"]) for entry in entries if entry.items() >= self._whose.items())
        except (ValueError, KeyError, TypeError) as error:
            assert self._shared is not None
            raise self._shared.damaged() from error
