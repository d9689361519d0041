"""Ring: every list goes around until all parties have multiplied it by their secrets; then the leader compares them.

    every party                               the next party; the leader
         AlignTerms ─────────────────────────────▶            to the leader, once (opening.py)
         ◀─────────────────────────── AlignOpening            from the leader
         MaskedIds ──────────────────────────────▶            to the next, once per other party and bucket
         TwiceMaskedIds ─────────────────────────▶            to the leader: the next party's list, sorted
         ◀───────────────────────────────── Common            from the leader
         Places ─────────────────────────────────▶            to the next
         ◀───────────────────────────── ChosenRows            from the leader, once, in parts
         OrderPoint ⇄ OrderPoint                              with the leader (order.py)
         OrderDigest ────────────────────────────▶            to the leader
         ◀───────────────────────────────── Agreed            from the leader
         ◀─────────────────────────────────── Size            from the leader, instead of the last six, if only the
                                                              size is revealed

The party that multiplies a list last holds the list in its owner's order, which tells this party nothing, and sends it
on sorted. So the leader (the label party) compares lists that it cannot link with its own ids.

What each side learns:

- All parties learn how many ids each party has, and which of their own ids are common to all; with several keys, also
  by which key.
- The leader also learns how many ids each group of parties has in common in each bucket, but not which ones.
- With `reveal="one"` only the leader learns which of its ids are common; the last party, which tells the leader, learns
  how many are common in each bucket.
- With `reveal="size"` all learn how many ids are common, and the leader learns how many in each bucket.
- If there are several buckets, every party has at least about 16,384 ids in each, so that a number tells little about
  single ids.
- Parties that put together what they know learn which of the ids they listed another party has.

Semi-honest, like the star, whose docstring names the assumptions. Vaidya and Clifton 2005, with commutative encryption.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from colonnade.align.buckets import DigestArray, RowNumbers
from colonnade.align.matching import distinct, gathered, order_digest, positions, sorted_values, whole_digest
from colonnade.align.messages import (
    ChosenRows,
    Common,
    MaskedIds,
    Places,
    TwiceMaskedIds,
    receive_common,
    receive_list,
    receive_order,
    receive_places,
    send_whole,
    unexpected,
)
from colonnade.align.order import Match, agree_as_follower, agree_as_leader, hear_size, tell_size
from colonnade.align.state import CHUNK, UNDER, AlignState
from colonnade.storage import Tree
from colonnade.wire.channel import Channel


def go_round(state: AlignState) -> Match:
    """One party's side: match bucket by bucket, then agree on the order of the common rows."""
    reveal, leads = state.settings.reveal, state.participants.leads
    matched = np.zeros(len(state.party.own_table), bool)
    for key, number, step in state.rounds():
        for _ in step:
            step.result = _match(state, key, number, matched)
        matched[step.result["rows"]] = True
    # The leader alone knows a size that it tells nobody; all else the others learn bucket by bucket.
    whom = state.others[0].peer if leads else state.leader.peer
    if reveal != "both" and not leads:
        return hear_size(state)
    if reveal == "size":
        size = sum(tree["size"] for tree in state.results)
        state.check_common(whom, size, told=False)
        return tell_size(state, Match(None, size))
    state.check_common(whom, int(matched.sum()), told=True)
    ordered, digests = [], []
    for trees in state.results.stretches():
        found = np.concatenate([tree["rows"] for tree in trees])
        order = _tell_order(state, trees) if leads else _hear_order(state, len(found))
        ordered.append(found[order])
        listed = gathered([tree["digests"] for tree in trees])
        digests.append(order_digest(listed[order], np.ones(len(order), bool)))
    rows, digest = np.concatenate(ordered), whole_digest(digests)
    if reveal == "one":
        return tell_size(state, Match(rows, len(rows)))
    if leads:
        return agree_as_leader(state, rows, [digest] * len(state.others))
    return agree_as_follower(state, rows, digest)


def _match(state: AlignState, key: int, number: int, matched: npt.NDArray[np.bool_]) -> Tree:
    """Match one bucket; returns this party's common rows, as far as this party may know them."""
    reveal, order = state.settings.reveal, state.participants.order
    leads, place = state.participants.leads, order.index(state.party.name)
    before, after = _line(state, place - 1), _line(state, place + 1)
    masking = state.masking_key("ring", key)
    bucket = state.bucket(key, number).without(matched)
    listed = state.padded(bucket, key, number, "ring")

    # Every list goes around. The last one that comes is the next party's, which all have then multiplied.
    state.send_masked(after, number, state.mask(listed, masking))
    for hop in range(1, len(order) - 1):
        came = receive_list(before, MaskedIds, number, state.agreement.slots(order[place - hop], key))
        state.send_masked(after, number, state.multiply(came, masking))
    held = gathered(state.receive_masked(before, number, state.agreement.slots(after.peer, key), masking))
    whose = after.peer if after.peer == before.peer else f"{after.peer} by way of {before.peer}"
    distinct(held, whose)

    common: DigestArray | None = None
    if leads:
        common = _compare(state, held, key, number)
        if reveal == "size":
            return {"rows": np.zeros(0, np.int64), "size": len(common)}
    else:
        values = sorted_values(held)
        for begin in range(0, len(values), CHUNK):
            state.leader.send(TwiceMaskedIds(number, begin, values[begin : begin + CHUNK]), under=UNDER)
        if reveal == "both" or (reveal == "one" and place == len(order) - 1):
            common = distinct(receive_common(state.leader, number), state.leader.peer)

    # Each party tells the next where its common ids stand. Only the leader is told if the result is for it alone.
    if common is not None and (reveal == "both" or not leads):
        found = positions(common, held)
        if (found < 0).any():
            raise unexpected(order[0], "send values that all lists have", "others")
        after.send(Places(number, found))
    if common is None or (reveal != "both" and not leads):
        return {"rows": np.zeros(0, np.int64)}
    places = receive_places(before, number, listed.rows)
    if len(places) != len(common):
        raise unexpected(before.peer, f"name a place for each of {len(common):,} common ids", f"{len(places):,}")
    tree: Tree = {"rows": listed.rows[places], "digests": listed.digests[places]}
    return tree | {"tags": state.tags(tree["digests"])} if leads else tree


def _compare(state: AlignState, held: DigestArray, key: int, number: int) -> DigestArray:
    """The values that all lists have, which the leader tells the parties that may know them."""
    order, reveal = state.participants.order, state.settings.reveal
    common = sorted_values(held)
    for place, line in enumerate(state.others, start=1):
        slots = state.agreement.slots(order[(place + 1) % len(order)], key)
        values = gathered(receive_list(line, TwiceMaskedIds, number, slots))
        common = common[positions(common, values) >= 0]
    knowing = {"both": state.others, "one": state.others[-1:], "size": ()}[reveal]
    for line in knowing:
        line.send(Common(number, common))
    return common


def _tell_order(state: AlignState, trees: list[Tree]) -> RowNumbers:
    """The order of the rows of a stretch, which the leader decides on and tells the others."""
    order = np.argsort(np.concatenate([tree["tags"] for tree in trees]), kind="stable")
    for line in state.others if state.settings.reveal == "both" else ():
        send_whole(line, ChosenRows, order)
    return order


def _hear_order(state: AlignState, n: int) -> RowNumbers:
    """The order of the n rows of a stretch, as the leader tells it."""
    order = receive_order(state.leader, n)
    if not np.array_equal(np.sort(order), np.arange(n)):
        raise unexpected(state.leader.peer, f"send an order of {n:,} rows", "numbers that are none")
    return order


def _line(state: AlignState, place: int) -> Channel:
    order = state.participants.order
    return state.party.peers[order[place % len(order)]]
