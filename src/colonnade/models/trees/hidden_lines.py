"""Hidden sums over lines: the computation of `hidden` between all parties, both roles.

    other feature parties            first feature party              label party
         HiddenTurn ◀──────────────────────────────────────────────────────▶ HiddenTurn      sessions, once
         HiddenTurn ◀──────────────────────────────────────────────────────▶ HiddenTurn      a reserve, per tree
         HiddenTurn ◀──────────────────────────────────────────────────────▶ HiddenTurn      per level: rank candidates
         BestShares ──────────────────▶                                                      per level
                                          HiddenTurn ◀─────────────────────▶ HiddenTurn      per level: open the winners

Both sides of a line send in each turn, and wait for each other's. `hidden` says what each party learns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from colonnade.crypto import transfers
from colonnade.crypto.reserves import Amount, Reserve, Sessions, begin_first, begin_second, fill_first, fill_second
from colonnade.crypto.rlwe import SecretKey
from colonnade.crypto.shares import Share
from colonnade.crypto.transfers import Turns, Words
from colonnade.errors import ProtocolError
from colonnade.models.trees.bins import Column
from colonnade.models.trees.grow import Chooser
from colonnade.models.trees.hidden import HiddenChooser, HiddenShares, n_candidates, needed_for_tree
from colonnade.models.trees.losses import Gradients
from colonnade.models.trees.messages import BestShares, HiddenTurn
from colonnade.models.trees.splits import TreeParameters
from colonnade.runtime.party import Party
from colonnade.wire.channel import Channel

UNDER = ("shares",)
_BEFORE = -1


def take_turns(lines: Sequence[Channel], turns: Sequence[Turns[Any]], tree: int) -> list[Any]:
    """Take turns with several peers at once; returns what this side ends with for each."""
    epoch = None if tree == _BEFORE else tree

    def exchange(outgoing: dict[int, Words]) -> Iterator[tuple[int, Words]]:
        for place, words in outgoing.items():
            lines[place].send(HiddenTurn(tree, words), under=UNDER, epoch=epoch)
        for place in outgoing:
            yield place, lines[place].receive(HiddenTurn, fields={"tree": tree}, epoch=epoch).words

    return transfers.take_turns(turns, exchange)


def amount(
    columns: Sequence[Column], allowed: NDArray[np.bool_] | None, parameters: TreeParameters, n_parties: int
) -> Amount:
    """What a tree takes of the reserve between the label party and one feature party, at most."""
    return needed_for_tree(parameters.most_nodes, n_candidates(columns, allowed), n_parties)


class HiddenAsking:
    """The label party's role.

    Args:
        party: The label party.
        parts: The columns of all parties, the label party's first.
        parameters: How trees grow.
    """

    def __init__(self, party: Party, parts: Sequence[tuple[Column, ...]], parameters: TreeParameters) -> None:
        self._lines, self._parts, self._parameters = party.feature_parties, parts, parameters
        self._sessions: list[Sessions[SecretKey]] = take_turns(
            self._lines, [begin_first() for _ in self._lines], _BEFORE
        )
        self._reserves = [Reserve(leading=True) for _ in self._lines]

    def prepare(self, tree: int, allowed: NDArray[np.bool_] | None) -> None:
        """Fill the reserves for a tree."""
        turns, first = [], len(self._parts[0])
        for place, columns in enumerate(self._parts[1:]):
            some = None if allowed is None else allowed[first : first + len(columns)]
            wanted = amount(columns, some, self._parameters, len(self._lines))
            turns.append(fill_first(self._sessions[place], self._reserves[place], wanted))
            first += len(columns)
        take_turns(self._lines, turns, tree)

    def chooser(self, tree: int, gradients: Gradients, allowed: NDArray[np.bool_] | None) -> Chooser:
        """What chooses the splits of a tree."""
        own, *others = self._parts
        return HiddenChooser(
            own,
            others,
            gradients,
            self._parameters,
            self._reserves,
            lambda turns: take_turns(self._lines[: len(turns)], turns, tree),
            allowed,
        )


class HiddenAnswering:
    """A feature party's role.

    Args:
        party: The feature party.
        columns: Its columns.
        parameters: How trees grow.
    """

    def __init__(self, party: Party, columns: tuple[Column, ...], parameters: TreeParameters) -> None:
        self._party, self._columns, self._parameters = party, columns, parameters
        self._line, self._names = party.label_party, party.roles.features
        (self._sessions,) = take_turns([self._line], [begin_second()], _BEFORE)
        self._reserve = Reserve(leading=False)

    def prepare(self, tree: int, allowed: NDArray[np.bool_] | None) -> None:
        """Fill the reserve for a tree."""
        wanted = amount(self._columns, allowed, self._parameters, len(self._names))
        take_turns([self._line], [fill_second(self._sessions, self._reserve, wanted)], tree)
        first = self._party.name == self._names[0]
        self._shares = HiddenShares(self._columns, self._reserve, first=first, allowed=allowed)

    def rank(self, tree: int, found: Share) -> None:
        """Help to choose the splits of nodes, from this party's shares of the sums that were asked for."""
        (best,) = take_turns([self._line], [self._shares.rank(found)], tree)
        leader, *others = self._names
        if self._party.name != leader:
            self._party.peers[leader].send(BestShares(tree, best), under=UNDER, epoch=tree)
            return
        bests = [best]
        for name in others:
            line = self._party.peers[name]
            words = line.receive(BestShares, fields={"tree": tree}, epoch=tree).words
            if words.shape != best.shape:
                raise ProtocolError(
                    f"Expected shares of the best candidates of {best.shape[-1]} nodes from {name}, got an array of "
                    f"shape {words.shape}. Check that all parties run the same version."
                )
            bests.append(words)
        take_turns([self._line], [self._shares.decide(bests)], tree)
