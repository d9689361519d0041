"""Star: the leader finds what it has in common with each of the others, and tells each which of its rows to use.

    leader                                    each other party
         ◀────────────────────────────────── Terms
         Opening ────────────────────────────────▶            once
         Masked ⇄ Masked                                      once per key and bucket, in parts
         ◀──────────────────────────────── Doubled
         Places ─────────────────────────────────▶            with several keys only
         Chosen ─────────────────────────────────▶            once, in parts
         ◀───────────────────────────────── Copies
         Copies ─────────────────────────────────▶            where several rows may have one id
         ◀──────────────────────────── OrderDigest
         Agreed ─────────────────────────────────▶            once
         Size ───────────────────────────────────▶            instead of the last five, if only sizes are revealed

Each multiplies the points of its ids by a secret of this run; the other one multiplies them by its own. Both orders of
multiplying give the same value, so equal ids are seen to be equal, and nothing else is seen of them. Lists are
shuffled, and secrets are drawn for each pair of parties.

The leader (the label party) learns which of its ids each other party has: with three parties or more that is more than
what all have in common. The others learn which of their ids are common to all; with several keys, which of them the
leader has. Both learn how many ids the other one has. With `reveal="one"` the others learn sizes only; with
`reveal="size"` the leader, too. Rows that are kept without a partner show each other party how many there are.

It is secure if parties keep to the protocol (semi-honest), under the decisional Diffie-Hellman assumption, with hashes
as random oracles. Nobody outside has audited this implementation.

Meadows 1986; Huberman, Franklin and Hogg 1999; De Cristofaro and Tsudik 2010.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

import numpy as np
import numpy.typing as npt
from blake3 import blake3

from colonnade.align.buckets import Bucket, Digests, Listed, Rows
from colonnade.align.copies import expanded
from colonnade.align.messages import (
    VALUE_BYTES,
    Doubled,
    Places,
    parts,
    receive_copies,
    receive_order,
    send_copies,
    send_order,
)
from colonnade.align.own import (
    Own,
    agree_as_follower,
    agree_as_leader,
    bucket_step,
    durable,
    gathered,
    in_order,
    order_digest,
    positions,
)
from colonnade.align.settings import Settings
from colonnade.align.workers import CHUNK
from colonnade.errors import ProtocolError
from colonnade.storage import Tree
from colonnade.wire.channel import Channel

__all__ = ["Found", "StarFollower", "StarLeader"]


@dataclass(frozen=True)
class Found:
    """What a topology finds: the own rows in the common order, and what was agreed on."""

    rows: Rows | None
    size: int | None
    digest: str = ""
    schedule: str = ""
    partners: dict[str, npt.NDArray[np.bool_]] = field(default_factory=dict)


@dataclass
class StarLeader:
    """The party in the middle."""

    own: Own
    settings: Settings
    lines: tuple[Channel, ...]
    bystanders: tuple[Channel, ...]

    def match(self) -> list[Tree]:
        """Match bucket by bucket; returns what each left."""
        own, n_rows = self.own, len(self.own.party.own_table)
        matched = {line.peer: np.zeros(n_rows, bool) for line in self.lines}
        kept = []
        for key, bucket in own.settled.rounds:
            kept.append(durable(own.party, bucket_step(key, bucket), partial(self._match, key, bucket, matched)))
            for peer in matched:
                matched[peer][kept[-1][peer]["rows"]] = True
        return kept

    def _match(self, key: int, number: int, matched: dict[str, npt.NDArray[np.bool_]]) -> Tree:
        own, bucket = self.own, self.own.bucket(key, number)
        secrets = {line.peer: own.secret(line.peer) for line in self.lines}
        lists: dict[str, Listed] = {}
        for line in self.lines:
            left, secret = bucket.without(matched[line.peer]), secrets[line.peer]
            lists[line.peer] = own.listed(left, key, number, secret)
            own.send_masked(line, lists[line.peer], number, secret.child("key", key).key)
        tree: Tree = {}
        used = np.zeros(len(bucket), bool) if self.settings.join == "inner" else np.ones(len(bucket), bool)
        for line in self.lines:
            found = self._compare(line, lists[line.peer], key, number, secrets[line.peer].child("key", key).key)
            tree[line.peer] = found
            if self.settings.reveal != "size":
                used |= np.isin(bucket.rows, found["rows"])
            if own.settled.n_keys > 1:
                line.send(Places(number, np.sort(found["theirs"])))
        tree["own"] = {"rows": bucket.rows[used], "tags": own.tags(bucket.digests[used])}
        if self.settings.duplicates == "all":
            tree["own"] |= self.copies(bucket, used)
        return tree

    def copies(self, bucket: Bucket, used: npt.NDArray[np.bool_]) -> Tree:
        """Which rows have the ids of a bucket that are used."""
        return _copies(bucket, used)

    def _compare(self, line: Channel, listed: Listed, key: int, number: int, secret: bytes) -> Tree:
        settled, name = self.own.settled, self.own.party.name
        theirs = gathered(self.own.multiplied(line, number, settled.slots(line.peer, key), secret))
        returned = gathered(parts(line, Doubled, number, settled.slots(name, key), VALUE_BYTES))
        found = positions(returned, theirs)
        if self.settings.reveal == "size":
            return {"rows": np.zeros(0, np.int64), "size": int((found >= 0).sum())}
        mine = np.flatnonzero((found >= 0) & (listed.rows >= 0))
        return {
            "rows": listed.rows[mine],
            "mine": mine + settled.offset(name, key, number),
            "theirs": found[mine],
            "begin": settled.offset(line.peer, key, number),
            "values": returned[mine],
        }

    def settle(self, kept: list[Tree]) -> Found:
        """Put the common rows into an order, tell the others, and compare it with them."""
        if self.settings.reveal == "size":
            return Found(None, sum(tree[self.lines[0].peer]["size"] for tree in kept))
        own, n_rows = self.own, len(self.own.party.own_table)
        pairs = {line.peer: _joined(kept, line.peer) for line in self.lines}
        listed = np.zeros(n_rows, bool)
        tags = own.party.random.uniform_bits(n_rows, "align", "rows without an id")
        for tree in reversed(kept):  # the first key that a row has an id under counts
            tags[tree["own"]["rows"]], listed[tree["own"]["rows"]] = tree["own"]["tags"], True
        if self.settings.join == "left":
            rows = np.flatnonzero(listed | self._without_id())
        else:
            common = np.ones(n_rows, bool)
            for pair in pairs.values():
                held = np.zeros(n_rows, bool)
                held[pair["rows"]] = True
                common &= held
            rows = np.flatnonzero(common)
        rows = rows[np.argsort(tags[rows], kind="stable")]
        if self.settings.reveal == "one":
            return Found(rows, len(rows))
        digests, partners = [], {}
        for line in self.lines:
            pair, at = pairs[line.peer], np.full(n_rows, -1)
            at[pair["rows"]] = np.arange(len(pair["rows"]))
            at = at[rows]
            partners[line.peer] = present = at >= 0
            theirs, mine = np.full((2, len(rows)), -1)
            theirs[present], mine[present] = pair["theirs"][at[present]], pair["mine"][at[present]]
            send_order(line, theirs, mine)
            digests.append(order_digest(pair["values"][at[present]], present))
        if self.settings.duplicates == "all":
            rows, partners, digests = self._with_copies(kept, rows, partners, digests)
        schedule = own.party.random.child("align", "schedule").key
        whole = agree_as_leader(self.lines, digests, self.bystanders, schedule, len(rows))
        return Found(rows, len(rows), whole, schedule.hex(), partners if self.settings.join == "left" else {})

    def _without_id(self) -> npt.NDArray[np.bool_]:
        """The own rows that have no id under any key."""
        without = np.ones(len(self.own.party.own_table), bool)
        for key, number in self.own.settled.rounds:
            bucket = self.own.bucket(key, number)
            without[bucket.repeats] = False
        return without

    def _with_copies(
        self, kept: list[Tree], rows: Rows, partners: dict[str, npt.NDArray[np.bool_]], digests: list[bytes]
    ) -> tuple[Rows, dict[str, npt.NDArray[np.bool_]], list[bytes]]:
        n_rows = len(self.own.party.own_table)
        starts, copies, repeats = _all_copies(kept, [tree["own"]["rows"] for tree in kept], n_rows)
        counts = np.ones((len(rows), 1 + len(self.lines)), np.int64)
        counts[:, 0] = copies[rows]
        for column, line in enumerate(self.lines, start=1):
            counts[:, column] = receive_copies(line, len(rows), 1)[:, 0]
        for line in self.lines:
            send_copies(line, counts)
        ids, which = expanded(counts, 0)
        rows = _copy_of(rows[ids], which, starts, copies, repeats)
        return rows, {peer: mask[ids] for peer, mask in partners.items()}, [_digest_of(d, counts) for d in digests]


@dataclass
class StarFollower:
    """A party at the end of a ray."""

    own: Own
    settings: Settings
    leader: Channel
    column: int

    def match(self) -> list[Tree]:
        """Take part in the matching, bucket by bucket; returns what each left."""
        own = self.own
        matched = np.zeros(len(own.party.own_table), bool)
        kept = []
        for key, bucket in own.settled.rounds:
            kept.append(durable(own.party, bucket_step(key, bucket), partial(self._match, key, bucket, matched)))
            matched[kept[-1]["rows"][kept[-1]["places"]]] = True
        return kept

    def _match(self, key: int, number: int, matched: npt.NDArray[np.bool_]) -> Tree:
        own, settled, leader = self.own, self.own.settled, self.leader
        bucket = own.bucket(key, number).without(matched)
        secret = own.secret(leader.peer)
        listed, masking = own.listed(bucket, key, number, secret), secret.child("key", key).key
        own.send_masked(leader, listed, number, masking)
        doubled = self._return_doubled(key, number, masking)
        places = np.zeros(0, np.int64)
        if settled.n_keys > 1:
            places = leader.receive(Places).places
            require_places(places, listed.rows, leader.peer)
        tree = {"rows": listed.rows, "values": doubled, "places": places}
        if self.settings.duplicates == "all":
            tree |= self.copies(bucket)
        return tree

    def copies(self, bucket: Bucket) -> Tree:
        """Which rows have the ids of a bucket."""
        return _copies(bucket, np.ones(len(bucket), bool)) | {"copied": bucket.rows}

    def _return_doubled(self, key: int, number: int, masking: bytes) -> Digests:
        settled, leader = self.own.settled, self.leader
        total, done, kept = settled.slots(leader.peer, key), 0, []
        for values in self.own.multiplied(leader, number, total, masking):
            if self.settings.reveal != "size":
                leader.send(Doubled(number, done, np.ascontiguousarray(values)))
            kept.append(np.ascontiguousarray(values))
            done += len(values)
        whole = gathered(kept)
        if self.settings.reveal == "size":
            # In the order in which they came they would tell the leader which ones are common.
            forgotten = in_order(whole)
            for begin in range(0, total, CHUNK):
                leader.send(Doubled(number, begin, forgotten[begin : begin + CHUNK]))
        return whole

    def settle(self, kept: list[Tree]) -> Found:
        """Take the order that the leader sends, and compare it."""
        if self.settings.reveal != "both":
            return Found(None, None)
        settled, leader = self.own.settled, self.leader
        listed = np.concatenate([np.zeros(0, np.int64), *(tree["rows"] for tree in kept)])
        most = settled.total(leader.peer) + (MOST_KEPT if self.settings.join == "left" else 0)
        theirs, mine = receive_order(leader, most)
        present = theirs >= 0
        require_places(theirs[present], listed, leader.peer)
        values = gathered([tree["values"] for tree in kept])
        if len(mine) != len(theirs) or ((mine >= 0) != present).any() or (mine >= len(values)).any():
            raise ProtocolError(
                f"Expected {leader.peer} to name its own place for each of {present.sum():,} common rows, got others. "
                "Both must run the same version."
            )
        digest = order_digest(values[mine[present]], present)
        rows = np.full(len(theirs), -1)
        rows[present] = listed[theirs[present]]
        if self.settings.duplicates == "all":
            rows, digest = self._with_copies(kept, rows, digest)
        whole, agreed = agree_as_follower(leader, digest, len(rows))
        return Found(rows, len(rows), whole, agreed.schedule.hex())

    def _with_copies(self, kept: list[Tree], rows: Rows, digest: bytes) -> tuple[Rows, bytes]:
        n_rows, present = len(self.own.party.own_table), rows >= 0
        starts, copies, repeats = _all_copies(kept, [tree["copied"] for tree in kept], n_rows)
        own_counts = np.ones((len(rows), 1), np.int64)
        own_counts[present, 0] = copies[rows[present]]
        send_copies(self.leader, own_counts)
        counts = receive_copies(self.leader, len(rows), len(self.own.party.roles.holders))
        ids, which = expanded(counts, self.column)
        return _copy_of(rows[ids], which, starts, copies, repeats), _digest_of(digest, counts)


# Rows without an id are in nobody's list, but may be kept.
MOST_KEPT = 1 << 33


def _joined(kept: list[Tree], peer: str) -> dict[str, npt.NDArray[np.int64]]:
    """What all buckets left about one peer."""
    empty = {"rows": (0,), "mine": (0,), "theirs": (0,), "values": (0, VALUE_BYTES)}
    whole = {}
    for name, shape in empty.items():
        start = np.zeros(shape, np.uint8 if name == "values" else np.int64)
        whole[name] = np.concatenate([start, *(_placed(tree[peer], name) for tree in kept)])
    return whole


def _placed(found: Tree, name: str) -> npt.NDArray[np.int64]:
    placed: npt.NDArray[np.int64] = found[name] + found["begin"] if name == "theirs" else found[name]
    return placed


def require_places(places: Rows, listed: Rows, peer: str) -> None:
    """Refuse places outside the own list, of what only fills it up, or named twice."""
    inside = places.ndim == 1 and (not len(places) or (places.min() >= 0 and places.max() < len(listed)))
    if not inside or (listed[places] < 0).any() or len(np.unique(places)) != len(places):
        raise ProtocolError(
            f"Expected {peer} to name places in this party's own list of {len(listed):,}, each once, got others. "
            "Both must run the same version; if they do, it does not keep to the protocol."
        )


def _copies(bucket: Bucket, used: npt.NDArray[np.bool_]) -> Tree:
    return {"copies": bucket.copies[used], "starts": bucket.starts[used], "repeats": bucket.repeats}


def _all_copies(kept: list[Tree], rows: list[Rows], n_rows: int) -> tuple[Rows, Rows, Rows]:
    """For each row that stands for an id: where its copies begin, how many there are; and all copies."""
    starts, copies, repeats, begin = np.zeros(n_rows, np.int64), np.ones(n_rows, np.int64), [], 0
    for tree, standing in zip(kept, rows, strict=True):
        of = tree.get("own", tree)
        starts[standing], copies[standing] = of["starts"] + begin, of["copies"]
        repeats.append(of["repeats"])
        begin += len(of["repeats"])
    return starts, copies, np.concatenate([np.zeros(0, np.int64), *repeats])


def _copy_of(rows: Rows, which: Rows, starts: Rows, copies: Rows, repeats: Rows) -> Rows:
    """The row that is the n-th with the id that another row stands for; an absent one stays absent."""
    found = rows.copy()
    several = (rows >= 0) & (copies[rows] > 1) if len(copies) else np.zeros(len(rows), bool)
    found[several] = repeats[starts[rows[several]] + which[several]]
    return found


def _digest_of(digest: bytes, counts: Rows) -> bytes:
    return blake3(digest + np.ascontiguousarray(counts).tobytes()).digest()
