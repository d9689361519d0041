"""Ring: every list goes around until all have multiplied it by their secrets; then one party compares them all.

    every party                               the next one around; the leader
         Terms ──────────────────────────────────▶            to the leader, once
         ◀──────────────────────────────── Opening            from the leader
         Masked ─────────────────────────────────▶            to the next, as often as there are others, per bucket
         Doubled ────────────────────────────────▶            to the leader: the next one's list, sorted
         ◀───────────────────────────────── Common            from the leader
         Places ─────────────────────────────────▶            to the next
         ◀───────────────────────────────── Chosen            from the leader, once, in parts
         OrderPoint ⇄ OrderPoint                              with the leader
         OrderDigest ────────────────────────────▶            to the leader
         ◀───────────────────────────────── Agreed            from the leader
         ◀─────────────────────────────────── Size            from the leader, instead of the last six, if only the
                                                              size is revealed

Whoever multiplies a list last holds it in its owner's order, which says nothing to it, and sends it on sorted. So the
leader (the label party) compares lists that it cannot link with its own ids.

Everybody learns how many ids everybody has, and which of its own ids are common to all. The leader learns besides how
many ids each group of parties has in common in each bucket, but not which. With several keys everybody learns by which
key an id is common. With `reveal="one"` only the leader learns which of its ids are common, and the last party, which
tells it, how many are in each bucket; with `reveal="size"` everybody learns how many are, and the leader how many in
each bucket. So that this tells little of single ids, nobody has less than about 16,384 of them in one of several
buckets. Parties that put together what they know learn which of the ids they listed another one has.

Semi-honest, like the star, whose docstring says what it rests on. Vaidya and Clifton 2005, with commutative encryption.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from colonnade.align.buckets import Digests, Rows
from colonnade.align.messages import (
    VALUE_BYTES,
    Common,
    Doubled,
    Masked,
    Places,
    parts,
    receive_common,
    receive_order,
    receive_places,
    send_order,
)
from colonnade.align.settings import Settings
from colonnade.align.shelf import Shelf
from colonnade.align.star import Found, require_places
from colonnade.align.state import (
    UNDER,
    Own,
    agree_as_follower,
    agree_as_leader,
    distinct,
    gathered,
    in_order,
    order_digest,
    positions,
    whole_digest,
)
from colonnade.align.workers import CHUNK
from colonnade.crypto.curve import POINT_BYTES
from colonnade.errors import ProtocolError
from colonnade.storage import Tree
from colonnade.wire.channel import Channel


@dataclass
class Ring:
    """One party in the ring; the first of `order` leads."""

    own: Own
    settings: Settings
    order: tuple[str, ...]
    bystanders: tuple[Channel, ...]

    @property
    def _place(self) -> int:
        return self.order.index(self.own.party.name)

    @property
    def _leads(self) -> bool:
        return self._place == 0

    def _line(self, place: int) -> Channel:
        return self.own.party.peers[self.order[place % len(self.order)]]

    @property
    def _others(self) -> tuple[Channel, ...]:
        return tuple(self.own.party.peers[name] for name in self.order if name != self.own.party.name)

    def match(self) -> Shelf:
        """Match bucket by bucket; returns what each left."""
        own = self.own
        matched = np.zeros(len(own.party.own_table), bool)
        kept = own.shelf
        for key, bucket in own.settled.rounds:
            tree = own.matched(key, bucket, partial(self._match, key, bucket, matched))
            matched[tree["rows"]] = True
            kept.put(tree)
        return kept

    def _match(self, key: int, number: int, matched: npt.NDArray[np.bool_]) -> Tree:
        own, secret = self.own, self.own.secret("ring")
        bucket = own.bucket(key, number).without(matched)
        listed, masking = own.listed(bucket, key, number, secret), secret.child("key", key).key
        own.send_masked(self._line(self._place + 1), listed, number, masking)
        held = self._turn(key, number, masking)
        common = self._compare(held, key, number)
        if self.settings.reveal == "size":
            return {"rows": np.zeros(0, np.int64), "size": -1 if common is None else len(common)}
        places = self._exchange_places(held, common, number)
        if places is None:
            return {"rows": np.zeros(0, np.int64)}
        require_places(places, listed.rows, self.order[self._place - 1])
        tree: Tree = {"rows": listed.rows[places], "digests": listed.digests[places]}
        if self._leads:
            tree["tags"] = own.tags(tree["digests"])
        return tree

    def _turn(self, key: int, number: int, masking: bytes) -> Digests:
        """Multiply every other party's list; returns that of the next one, which everybody has then multiplied."""
        own, n = self.own, len(self.order)
        before, after = self._line(self._place - 1), self._line(self._place + 1)
        for hop in range(1, n - 1):
            total = own.settled.slots(self.order[(self._place - hop) % n], key)
            own.pass_on(after, number, masking, parts(before, Masked, number, total, POINT_BYTES))
        owner = self.order[(self._place + 1) % n]
        total = own.settled.slots(owner, key)
        whose = owner if owner == before.peer else f"{owner} by way of {before.peer}"
        return distinct(gathered(own.multiplied(before, number, total, masking)), whose)

    def _compare(self, held: Digests, key: int, number: int) -> Digests | None:
        """The values that all lists have; None where they are not told."""
        settled, n = self.own.settled, len(self.order)
        if not self._leads:
            sorted_ = in_order(held)
            for begin in range(0, len(sorted_), CHUNK):
                self._line(0).send(Doubled(number, begin, sorted_[begin : begin + CHUNK]), under=UNDER)
            if self.settings.reveal == "both" or (self.settings.reveal == "one" and self._place == n - 1):
                return distinct(receive_common(self._line(0), number), self.order[0])
            return None
        common = in_order(held)
        for place in range(1, n):
            total = settled.slots(self.order[(place + 1) % n], key)
            values = gathered(_received(self._line(place), number, total))
            common = common[positions(common, values) >= 0]
        if self.settings.reveal != "size":
            knowing = self._others if self.settings.reveal == "both" else self._others[-1:]
            for line in knowing:
                line.send(Common(number, common))
        return common

    def _exchange_places(self, held: Digests, common: Digests | None, number: int) -> npt.NDArray[np.int64] | None:
        """Tell the next one where its common ids stand, and be told; None where that is not revealed."""
        both = self.settings.reveal == "both"
        if common is not None and (both or not self._leads):
            found = positions(common, held)
            if (found < 0).any():
                raise ProtocolError(
                    f"Expected {self.order[0]} to send values that all lists have, got others. Both must run the same "
                    "version."
                )
            self._line(self._place + 1).send(Places(number, found))
        if not both and not self._leads:
            return None
        places = receive_places(self._line(self._place - 1), number)
        if common is None or len(places) != len(common):
            raise ProtocolError(
                f"Expected {self.order[self._place - 1]} to name a place for each common id, got {len(places):,}. Both "
                "must run the same version."
            )
        return places

    def settle(self, kept: Shelf) -> Found:
        """Agree on the order of the common rows."""
        if self.settings.reveal == "size":
            return Found(None, sum(tree["size"] for tree in kept) if self._leads else None)
        if self.settings.reveal == "one" and not self._leads:
            return Found(None, None)
        ordered, digests = [], []
        for trees in kept.stretches(self.settings):
            found = np.concatenate([tree["rows"] for tree in trees])
            order = self._order(trees, len(found))
            ordered.append(found[order])
            listed = gathered([tree["digests"] for tree in trees])
            digests.append(order_digest(listed[order], np.ones(len(order), bool)))
        rows, digest = np.concatenate(ordered), whole_digest(digests)
        if self.settings.reveal == "one":
            return Found(rows, len(rows))
        if not self._leads:
            whole, agreed = agree_as_follower(self.own, self._line(0), digest, len(rows))
            return Found(rows, len(rows), whole, agreed.schedule.hex())
        schedule = self.own.party.random.child("align", "schedule").key
        whole = agree_as_leader(
            self.own, self._others, [digest] * len(self._others), self.bystanders, schedule, len(rows)
        )
        return Found(rows, len(rows), whole, schedule.hex())

    def _order(self, trees: list[Tree], n: int) -> Rows:
        """The order of the n rows of a stretch: the leader decides on it and tells the others."""
        if self._leads:
            order = np.argsort(np.concatenate([tree["tags"] for tree in trees]), kind="stable")
            for line in self._others if self.settings.reveal == "both" else ():
                send_order(line, order)
            return order
        order = receive_order(self._line(0), n)
        if not np.array_equal(np.sort(order), np.arange(n)):
            raise ProtocolError(
                f"Expected {self.order[0]} to send an order of {n:,} rows, got something else. Both must run the same "
                "version."
            )
        return order


def _received(line: Channel, number: int, total: int) -> Iterator[Digests]:
    return parts(line, Doubled, number, total, VALUE_BYTES)
