"""Sides: which rows of a node go to the left, told for the rows of this node only, and without telling which these are.

    feature party                    label party
         ◀──────────────────────────── TransferPoint          once
         TransferPoints ───────────────────────────▶          once
         ◀────────────────────────────── SideChoices          the transfers, and the choices under them
         RowSides ─────────────────────────────────▶

    label party      for each row: k if the row is in the k-th node that splits by this feature party, or 0
    feature party    for each row: a 0, then the row's side under each of these splits
    both             one oblivious transfer a row: the label party gets the message of its choice

The label party learns one bit of each row of each node, and nothing of a row outside. The feature party learns how many
of its splits were chosen and which ones, which the label party tells it anyway, and nothing of any row. A level with K
splits takes log2(K + 1) transfers of one of two for each row, rounded up, all of them made ahead; online these are as
many bits to the feature party and 2^that back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from colonnade.crypto.transfers import (
    MOST_BITS,
    NOTHING,
    Chooser,
    ChooserPads,
    Sender,
    SenderPads,
    Turns,
    Words,
    choose,
    offer,
)
from colonnade.models.trees.messages import RowSides, SideChoices, TransferPoint, TransferPoints
from colonnade.wire.channel import Channel
from colonnade.wire.message import Int64Array

R = TypeVar("R")

_UNDER = ("oblivious transfer",)
MOST_SPLITS = 2**MOST_BITS - 1
"""How many splits one batch of transfers serves; a level with more takes several."""


def choice_bits(n_splits: int) -> int:
    """How many transfers of one of two each row takes.

    >>> [choice_bits(n) for n in (1, 2, 3, 4, 8, 16)]
    [1, 2, 2, 3, 4, 5]
    """
    return n_splits.bit_length()


def fetch_sides(pads: ChooserPads, nodes: Sequence[Int64Array], n_rows: int) -> Turns[list[NDArray[np.bool_]]]:
    """The label party's turns: which of each node's rows go to the left.

    Args:
        pads: One transfer of one of 2^choice_bits for each row, with messages of one bit.
        nodes: The rows of each node, no row in two of them.
        n_rows: How many rows there are.
    """
    assert pads.bits == choice_bits(len(nodes))
    choices = np.zeros(n_rows, np.uint64)
    for number, rows in enumerate(nodes, start=1):
        choices[rows] = number
    found = yield from choose(pads, choices)
    return [found[rows].astype(np.bool_) for rows in nodes]


def serve_sides(pads: SenderPads, sides: Sequence[NDArray[np.bool_]]) -> Turns[None]:
    """The feature party's turns, with the side of every row under each split that was chosen."""
    assert pads.bits == choice_bits(len(sides))
    messages = np.zeros(len(sides[0]), np.uint64)
    for number, side in enumerate(sides, start=1):
        messages |= side.astype(np.uint64) << np.uint64(number)
    yield from offer(pads, messages)


class SideFetching:
    """The label party's half of oblivious transfers with one feature party."""

    def __init__(self, line: Channel) -> None:
        self._line, self._chooser = line, Chooser()
        self._waiting: list[Turns[list[NDArray[np.bool_]]]] = []
        line.send(TransferPoint(self._chooser.point))

    def begin(self) -> None:
        """Take the feature party's points."""
        self._chooser.begin(self._line.receive(TransferPoints).points)

    def ask(self, step: int, nodes: Sequence[Int64Array], n_rows: int) -> None:
        """Ask for the sides of the rows of some nodes, no row in two of them."""
        pads, columns = self._chooser.extend(n_rows, choice_bits(len(nodes)), 1)
        turns = fetch_sides(pads, nodes, n_rows)
        self._line.send(SideChoices(step, columns, next(turns)), under=_UNDER, epoch=step)
        turns.send(NOTHING)
        self._waiting.append(turns)

    def read(self, step: int) -> list[NDArray[np.bool_]]:
        """The sides that were asked for first and not read yet."""
        words = self._line.receive(RowSides, fields={"step": step}, epoch=step).words
        return _ended(self._waiting.pop(0), words)


class SideServing:
    """A feature party's half of oblivious transfers."""

    def __init__(self, line: Channel) -> None:
        self._line = line
        self._sender = Sender(line.receive(TransferPoint).point)
        line.send(TransferPoints(self._sender.points))

    def serve(self, step: int, sides: Sequence[NDArray[np.bool_]]) -> None:
        """Give the sides of rows under some splits; the label party gets one side for each row."""
        message = self._line.receive(SideChoices, fields={"step": step}, epoch=step)
        pads = self._sender.extend(len(sides[0]), choice_bits(len(sides)), 1, message.columns)
        turns = serve_sides(pads, sides)
        next(turns)
        self._line.send(RowSides(step, turns.send(message.moved)), under=_UNDER, epoch=step)


def _ended(turns: Turns[R], words: Words) -> R:
    """What a computation ends with when it is given the last words."""
    try:
        turns.send(words)
    except StopIteration as end:
        found: R = end.value
        return found
    raise AssertionError("the last turn ends a computation")
