"""Means: two parties hold shares of scores and look the link's inverse up, in turns; nothing is opened.

    one party                      the other
         PairedWords ─────────────────▶                 in turns
         ◀───────────────── PairedWords

    others     of more than two classes, the score less the logarithm of the sum of exp of all other classes' scores,
               two at a time: b + softplus(a - b), where softplus is looked up as the mean is
    place      the score in steps of the table, rounded down: exact, so that a repeated step gives the same mean
    beyond     whether the place lies below or above the table, by two comparisons
    mean       the table's word at the place, 0 below the table, the last value above it

All of this is computed by oblivious transfers (`colonnade.crypto.paired`): either party sees uniform words. The mean
lies between 0 and the table's largest value for scores up to `MOST_SCORE`, and is at most twice that value for any
other, so that steps cannot grow without bound. For semi-honest parties: a party that does not lead and deviates in its
base transfers reads the other's choices, which are shares of places.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from colonnade.crypto.paired import Pair
from colonnade.crypto.shares import Share, fixed
from colonnade.crypto.transfers import Turns, Words, take_turns
from colonnade.models.glm.families import CLASS_MEANS, SOFTPLUS, MeanTable, of_all_classes
from colonnade.models.glm.messages import PairedWords
from colonnade.wire.channel import Channel

PAIRED = ("transfers",)
MOST_SCORE = 2.0**11
"""Larger scores could not be told from others in a table, nor be multiplied without wrapping around."""
# The sign of a place, counted from either end of a table of 2^8 steps of 1/16, has room for twice `MOST_SCORE`.
_PLACE_BITS = 17
# A difference of two classes' scores is up to twice as large, and its steps are half as long.
_CLASS_PLACE_BITS = 20
_ROWS_AT_ONCE = 2**14

T = TypeVar("T")
D = TypeVar("D", bound=np.generic)


class PairedLine:
    """A party's line to the other one of two that compute on shares; exactly one of them leads."""

    def __init__(self, line: Channel, *, leading: bool) -> None:
        self.line, self.leading, self.pair = line, leading, Pair(leading=leading)

    def take(self, step: int, epoch: int, turns: Turns[T]) -> T:
        """Compute something on shares with the other party; returns what this party gets."""

        def exchange(outgoing: dict[int, Words]) -> Iterator[tuple[int, Words]]:
            self.line.send(PairedWords(step, outgoing[0]), under=PAIRED, epoch=epoch)
            yield 0, self.line.receive(PairedWords, fields={"step": step}, epoch=epoch).words

        found: list[T] = take_turns([turns], exchange)
        return found[0]

    def public(self, number: int) -> np.uint64:
        """This party's share of a number that both know."""
        return np.uint64(number % 2**64 if self.leading else 0)

    def means(self, step: int, epoch: int, table: MeanTable, scores: Share, bits: int, value_bits: int) -> Share:
        """This party's shares of the means (models, rows) at shared scores.

        Args:
            step: The step that the scores belong to.
            epoch: Likewise.
            table: What the means of one model are read from; those of more are a softmax.
            scores: Shares of scores (models, rows) of at most `MOST_SCORE` in absolute value, the last class included.
            bits: How many bits scores have behind the point.
            value_bits: How many bits means have behind the point.
        """
        if len(scores) == 1:
            return self._looked_up(step, epoch, table, scores, bits, value_bits, _PLACE_BITS)
        every = of_all_classes(scores)

        def joined(a: Share, b: Share) -> Share:
            return b + self._looked_up(step, epoch, SOFTPLUS, a - b, bits, bits, _CLASS_PLACE_BITS)

        others: Share = log_sums_of_others(every, joined)
        return self._looked_up(step, epoch, CLASS_MEANS, (every - others)[:-1], bits, value_bits, _CLASS_PLACE_BITS)

    def _looked_up(
        self, step: int, epoch: int, table: MeanTable, scores: Share, bits: int, value_bits: int, place_bits: int
    ) -> Share:
        """This party's shares of a table's function at shared scores, whose places have a sign of `place_bits` bits."""
        values = fixed(np.r_[table.values, table.above], value_bits, "the table of means")
        first, parts = round(np.ldexp(table.first, table.step_bits)), []
        for start in range(0, scores.size, _ROWS_AT_ONCE):
            # Places of the table, the first one 0; the number of places and more are above it, negative ones below.
            some = scores.ravel()[start : start + _ROWS_AT_ONCE]
            at = self.take(step, epoch, self.pair.floored(some, bits - table.step_bits)) - self.public(first)
            marks = [0, len(table.values), *([-first] if table.ramp else [])]
            signs = self.take(
                step, epoch, self.pair.negative(np.concatenate([at - self.public(mark) for mark in marks]), place_bits)
            )
            below, not_above, *not_positive = np.split(signs, len(marks))
            found = self.take(step, epoch, self.pair.looked_up(at, values[:-1]))
            # What is added from a place on: the score itself from 0 on, or the last value above the table.
            added = some if table.ramp else np.full(len(at), values[-1] if self.leading else 0, np.uint64)
            before = not_positive[0] if table.ramp else not_above
            within = np.concatenate([below ^ not_above, before ^ self.leading]).astype(np.uint8)
            kept = self.take(step, epoch, self.pair.kept(np.concatenate([found, added]), within))
            parts.append(np.add(*np.split(kept, 2)))
        return np.concatenate(parts).reshape(scores.shape)


def log_sums_of_others(scores: NDArray[D], joined: Callable[[NDArray[D], NDArray[D]], NDArray[D]]) -> NDArray[D]:
    """For each class (classes, rows) the logarithm of the sum of exp of all other classes' scores.

    Takes 3 (classes - 2) joined rows, in about twice as many stages as a binary tree of the classes is deep.

    >>> np.exp(log_sums_of_others(np.log([[1.0], [2.0], [3.0]]), np.logaddexp)).ravel().round(9).tolist()
    [5.0, 4.0, 3.0]

    Args:
        scores: One row for each of two or more classes.
        joined: The logarithm of exp(a) + exp(b), from a and b.
    """
    if len(scores) == 2:
        return scores[::-1]
    # Halves of pairs: what is outside a pair and the pair's other half are all others.
    pairs = len(scores) // 2
    left, right, rest = np.split(scores, [pairs, 2 * pairs])
    outside = log_sums_of_others(np.concatenate([joined(left, right), rest]), joined)
    both = joined(np.concatenate([outside[:pairs], outside[:pairs]]), np.concatenate([right, left]))
    return np.concatenate([both, outside[pairs:]])
