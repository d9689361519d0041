"""The public batch schedule, which every party derives alike without a message."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Literal, TypeVar

import numpy as np

from colonnade.crypto.additive import MOST_ROWS
from colonnade.privacy.randomness import PublicRandomness, Randomness
from colonnade.wire.message import Int64Array

S = TypeVar("S")

EPOCHS, PATIENCE = (30, 1_000), (5, 100)
"""At least how many epochs, and how many steps, a network is trained for and waits for an improvement by default."""

IN_FLIGHT = 8
"""How many batches are sent ahead where no batch depends on the answer to another."""


class Batches:
    """Which rows are used in which step of a training, epoch after epoch.

    >>> batches = Batches(np.arange(6), 4, PublicRandomness.seeded(0))
    >>> batches.per_epoch, [len(batches.at(step)[1]) for step in range(3)]
    (2, [4, 2, 4])
    """

    def __init__(self, rows: Int64Array, size: int, shared: PublicRandomness | Randomness) -> None:
        self.rows, self._shared = rows, shared
        self._ends = np.cumsum([0, *batch_sizes(len(rows), size)])
        self._epoch, self._order = -1, rows

    @property
    def per_epoch(self) -> int:
        """How many batches one pass over the rows takes."""
        return len(self._ends) - 1

    def at(self, step: int) -> tuple[int, Int64Array]:
        """The epoch of a step and its rows."""
        epoch, batch = divmod(step, self.per_epoch)
        if epoch != self._epoch:
            self._epoch, self._order = epoch, self._shared.generator("epoch", epoch).permutation(self.rows)
        return epoch, self._order[self._ends[batch] : self._ends[batch + 1]]


def counted(chosen: int | Literal["auto"], least: tuple[int, int], per_epoch: int) -> int:
    """The chosen number of epochs; "auto" makes at least a number of epochs, and as many as give a number of steps.

    A small table has few steps in an epoch: a number of epochs that suits large tables would end its training early.

    >>> counted("auto", EPOCHS, per_epoch=3), counted("auto", EPOCHS, per_epoch=100), counted(4, EPOCHS, per_epoch=3)
    (334, 30, 4)
    """
    epochs, steps = least
    return max(epochs, -(-steps // per_epoch)) if chosen == "auto" else chosen


def batch_sizes(n_rows: int, size: int) -> list[int]:
    """How many rows each batch of an epoch has; a single row that is left over joins the batch before.

    >>> batch_sizes(8, 3), batch_sizes(7, 3)
    ([3, 3, 2], [3, 4])
    """
    sizes = [min(size, n_rows - start) for start in range(0, n_rows, size)]
    # Batch normalisation, which compares the rows of a batch, fails on a single row.
    if len(sizes) > 1 and sizes[-1] == 1 < size:
        sizes[-2:] = [size + 1]
    return sizes


def fixed_batches(n_rows: int, size: int | None, shared: PublicRandomness, most: int = MOST_ROWS) -> list[Int64Array]:
    """Batches that are the same in every epoch.

    Args:
        n_rows: How many rows there are.
        size: No batch has fewer rows, as far as `most` allows it; None makes as few batches as it can.
        shared: What all parties draw alike.
        most: No batch has more rows: by default as many as an encrypted product sums over.

    >>> [len(rows) for rows in fixed_batches(7, 3, PublicRandomness.seeded(0))]
    [4, 3]
    >>> [len(rows) for rows in fixed_batches(7, None, PublicRandomness.seeded(0), most=4)]
    [4, 3]
    """
    n_batches = max(1, n_rows // (size or n_rows), -(-n_rows // most)) if n_rows else 1
    order = shared.generator("fixed batches").permutation(n_rows).astype(np.int64)
    return [np.sort(rows) for rows in np.array_split(order, n_batches)]


def ordered_batches(rows: Int64Array, size: int) -> list[Int64Array]:
    """Rows in their own order, cut into batches: for validation and prediction."""
    return [rows[start : start + size] for start in range(0, len(rows), size)]


def sent_ahead(
    batches: Sequence[Int64Array], send: Callable[[int, Int64Array], S], in_flight: int = IN_FLIGHT
) -> Iterator[tuple[int, Int64Array, S]]:
    """Yield each batch with the result of sending it; several batches are sent ahead before the first is awaited.

    >>> sent, batches = [], ordered_batches(np.arange(5), 1)
    >>> for step, rows, _ in sent_ahead(batches, lambda step, rows: sent.append(step), in_flight=3):
    ...     print(step, sent)
    0 [0, 1, 2]
    1 [0, 1, 2, 3]
    2 [0, 1, 2, 3, 4]
    3 [0, 1, 2, 3, 4]
    4 [0, 1, 2, 3, 4]
    """
    under_way: deque[tuple[int, Int64Array, S]] = deque()
    for step, rows in enumerate(batches):
        under_way.append((step, rows, send(step, rows)))
        if len(under_way) == in_flight:
            yield under_way.popleft()
    yield from under_way


def hold_out(n_rows: int, share: float, shared: PublicRandomness | Randomness) -> tuple[Int64Array, Int64Array]:
    """Rows to train on and rows to validate on, the same at all parties."""
    order = shared.generator("hold out").permutation(n_rows).astype(np.int64)
    n_held_out = round(share * n_rows)
    return np.sort(order[n_held_out:]), np.sort(order[:n_held_out])
