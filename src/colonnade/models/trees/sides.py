"""Sides: which rows of a node go to the left, told for the rows of this node only, and without telling which these are.

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

import numpy as np
from numpy.typing import NDArray

from colonnade.crypto.transfers import MOST_BITS, ChooserPads, SenderPads, Turns, choose, offer
from colonnade.wire.message import Int64Array

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
