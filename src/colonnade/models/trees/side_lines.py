"""Sides over a line: the oblivious transfers of `sides` between a label party and a feature party, both halves.

feature party                    label party
     ◀──────────────────────────── TransferPoint          once
     TransferPoints ───────────────────────────▶          once
     ◀────────────────────────────── SideChoices          the transfers, and the choices under them
     RowSides ─────────────────────────────────▶
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from colonnade.crypto.transfers import NOTHING, Chooser, Sender, Turns
from colonnade.models.trees.messages import RowSides, SideChoices, TransferPoint, TransferPoints
from colonnade.models.trees.sides import choice_bits, fetch_sides, serve_sides
from colonnade.wire.channel import Channel
from colonnade.wire.message import Int64Array

R = TypeVar("R")

_UNDER = ("oblivious transfer",)


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
        """Give the sides of rows under some splits, of which the label party gets one for each row."""
        message = self._line.receive(SideChoices, fields={"step": step}, epoch=step)
        pads = self._sender.extend(len(sides[0]), choice_bits(len(sides)), 1, message.columns)
        turns = serve_sides(pads, sides)
        next(turns)
        self._line.send(RowSides(step, turns.send(message.moved)), under=_UNDER, epoch=step)


def _ended(turns: Turns[R], words: NDArray[np.uint64]) -> R:
    """What a computation ends with when it is given the last words."""
    try:
        turns.send(words)
    except StopIteration as end:
        found: R = end.value
        return found
    raise AssertionError("the last turn ends a computation")
