"""Means: two parties hold shares of scores and look the link's inverse up, in turns; nothing is opened.

    one party                      the other
         PairedWords ─────────────────▶                 in turns
         ◀───────────────── PairedWords

    place      the score in steps of the table, rounded down: exact, so that a repeated step gives the same mean
    beyond     whether the place lies below or above the table, by two comparisons
    mean       the table's word at the place, 0 below the table, the last value above it

All of this is computed by oblivious transfers (`colonnade.crypto.paired`): either party sees uniform words. The mean
lies between 0 and the table's largest value for scores up to `MOST_SCORE`, and is at most twice that value for any
other, so that steps cannot grow without bound. For semi-honest parties: a party that does not lead and deviates in its
base transfers reads the other's choices, which are shares of places.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

import numpy as np

from colonnade.crypto.paired import Pair
from colonnade.crypto.shares import Share, fixed
from colonnade.crypto.transfers import Turns, Words, take_turns
from colonnade.models.glm.families import MeanTable
from colonnade.models.glm.messages import PairedWords
from colonnade.wire.channel import Channel

PAIRED = ("transfers",)
MOST_SCORE = 2.0**11
"""Larger scores could not be told from others in a table, nor be multiplied without wrapping around."""
# The sign of a place, counted from either end of a table of 2^8 steps of 1/16, has room for twice `MOST_SCORE`.
_PLACE_BITS = 17
_ROWS_AT_ONCE = 2**14

T = TypeVar("T")


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
        """This party's shares of the means at shared scores.

        Args:
            step: The step that the scores belong to.
            epoch: Likewise.
            table: What the means are read from.
            scores: Shares of scores of at most `MOST_SCORE` in absolute value.
            bits: How many bits scores have behind the point.
            value_bits: How many bits means have behind the point.
        """
        values = fixed(np.r_[table.values, table.above], value_bits, "the table of means")
        parts = []
        for start in range(0, len(scores), _ROWS_AT_ONCE):
            # Places of the table, the first one 0; the number of places and more are above it, negative ones below.
            some = scores[start : start + _ROWS_AT_ONCE]
            at = self.take(step, epoch, self.pair.floored(some, bits - table.step_bits))
            at = at - self.public(round(np.ldexp(table.first, table.step_bits)))
            beyond = np.concatenate([at, at - self.public(len(table.values))])
            below, not_above = np.split(self.take(step, epoch, self.pair.negative(beyond, _PLACE_BITS)), 2)
            found = self.take(step, epoch, self.pair.looked_up(at, values[:-1]))
            largest = np.full(len(at), values[-1] if self.leading else 0, np.uint64)
            within = np.concatenate([below ^ not_above, not_above ^ self.leading]).astype(np.uint8)
            kept = self.take(step, epoch, self.pair.kept(np.concatenate([found, largest]), within))
            parts.append(np.add(*np.split(kept, 2)))
        return np.concatenate(parts)
