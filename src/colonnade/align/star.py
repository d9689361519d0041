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
         OrderPoint ⇄ OrderPoint
         ◀──────────────────────────── OrderDigest
         Agreed ─────────────────────────────────▶            once
         Size ───────────────────────────────────▶            instead of the last six, if only sizes are revealed

Each multiplies the points of its ids by a secret of this run; the other one multiplies them by its own. Both orders of
multiplying give the same value, so equal ids are seen to be equal, and nothing else is seen of them. Lists are
shuffled, and secrets are drawn for each pair of parties.

The leader (the label party) learns which of its ids each other party has: with three parties or more that is more than
what all have in common. The others learn which of their ids are common to all; with several keys, which of them the
leader has, and by which key; with three parties or more then also which are common to all. Both learn how many ids the
other one has, and of three parties or more the others learn into how many buckets the longest list is cut, hence about
how long it is. With `reveal="one"` the others learn sizes
only; with `reveal="size"` the leader, too, but of each bucket: so that this tells little of single ids, nobody has less
than about 16,384 of them in one of several buckets. Where rows are kept without a partner, each other party learns how
many rows are kept and which of its own ids the leader has. Where repeated rows are combined, everybody learns how many
rows each party has for each id that is used: those in common, or all that are kept.

It is secure if parties keep to the protocol (semi-honest), under the decisional Diffie-Hellman assumption, with hashes
as random oracles. Nobody outside has audited this implementation.

Meadows 1986; Huberman, Franklin and Hogg 1999; De Cristofaro and Tsudik 2010.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

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
    receive_places,
    send_copies,
    send_order,
)
from colonnade.align.settings import Settings
from colonnade.align.shelf import Shelf
from colonnade.align.state import (
    Own,
    agree_as_follower,
    agree_as_leader,
    distinct,
    gathered,
    in_order,
    order_digest,
    positions,
    rows_among,
    whole_digest,
)
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

    def match(self) -> Shelf:
        """Match bucket by bucket; returns what each left."""
        own, n_rows = self.own, len(self.own.party.own_table)
        matched = {line.peer: np.zeros(n_rows, bool) for line in self.lines}
        kept = own.shelf
        for key, bucket in own.settled.rounds:
            tree = own.matched(key, bucket, partial(self._match, key, bucket, matched))
            for peer in matched:
                matched[peer][tree[peer]["rows"]] = True
            kept.put(tree)
        return kept

    def _match(self, key: int, number: int, matched: dict[str, npt.NDArray[np.bool_]]) -> Tree:
        own, bucket = self.own, self.own.bucket(key, number)
        secrets = {line.peer: own.secret(line.peer) for line in self.lines}
        lists: dict[str, Listed] = {}
        for line in self.lines:
            left, secret = bucket.without(matched[line.peer]), secrets[line.peer]
            lists[line.peer] = own.listed(left, key, number, secret)
            own.send_masked(line, lists[line.peer], number, secret.child("key", key).key)
        pairs: Tree = {}
        for line in self.lines:
            masking = secrets[line.peer].child("key", key).key
            pairs[line.peer] = self._compare(line, lists[line.peer], key, number, masking)
            if own.settled.n_keys > 1:
                line.send(Places(number, np.sort(pairs[line.peer]["theirs"])))
        return self.left(bucket, pairs)

    def left(self, bucket: Bucket, pairs: Tree) -> Tree:
        """What a bucket leaves: what was found with each peer, and the own ids that may be used."""
        used = np.full(len(bucket), self.settings.join == "left")
        for pair in pairs.values():
            used |= np.isin(bucket.rows, pair["rows"])
        own = {"rows": bucket.rows[used], "tags": self.own.tags(bucket.digests[used])}
        if self.settings.duplicates == "all":
            own |= _copies(bucket, used)
        return pairs | {"own": own}

    def _compare(self, line: Channel, listed: Listed, key: int, number: int, secret: bytes) -> Tree:
        settled, name = self.own.settled, self.own.party.name
        theirs = gathered(self.own.multiplied(line, number, settled.slots(line.peer, key), secret))
        returned = gathered(parts(line, Doubled, number, settled.slots(name, key), VALUE_BYTES))
        found = positions(distinct(returned, line.peer), distinct(theirs, line.peer))
        if self.settings.reveal == "size":
            return {"rows": np.zeros(0, np.int64), "size": int((found >= 0).sum())}
        mine = np.flatnonzero((found >= 0) & (listed.rows >= 0))
        return {
            "rows": listed.rows[mine],
            "theirs": found[mine],
            "digests": listed.digests[mine],
            "length": len(theirs),
        }

    def settle(self, kept: Shelf) -> Found:
        """Put the common rows into an order, tell the others, and compare it with them."""
        if self.settings.reveal == "size":
            return Found(None, sum(tree[self.lines[0].peer]["size"] for tree in kept))
        ordered: list[Rows] = []
        present: dict[str, list[npt.NDArray[np.bool_]]] = {line.peer: [] for line in self.lines}
        digests: dict[str, list[bytes]] = {line.peer: [] for line in self.lines}
        # Nothing here holds on to a stretch, which may be all that the buckets left.
        for stretch, told in map(self._told, kept.stretches(self.settings)):
            ordered.append(stretch)
            for peer, (there, digest) in told.items():
                present[peer].append(there)
                digests[peer].append(digest)
        rows = np.concatenate(ordered)
        if self.settings.reveal == "one":
            return Found(rows, len(rows))
        partners = {peer: np.concatenate(masks) for peer, masks in present.items()}
        wholes = [whole_digest(each) for each in digests.values()]
        if self.settings.duplicates == "all":
            rows, partners, wholes = self._with_copies(kept, rows, partners, wholes)
        schedule = self.own.party.random.child("align", "schedule").key
        whole = agree_as_leader(self.own, self.lines, wholes, self.bystanders, schedule, len(rows))
        return Found(rows, len(rows), whole, schedule.hex(), partners if self.settings.join == "left" else {})

    def _told(self, trees: list[Tree]) -> tuple[Rows, dict[str, tuple[npt.NDArray[np.bool_], bytes]]]:
        """The rows of a stretch in their order; and for each peer that was told, which it has and a digest of them."""
        pairs = {line.peer: _joined([tree[line.peer] for tree in trees]) for line in self.lines}
        rows = self._ordered(trees, pairs)
        lines = () if self.settings.reveal == "one" else self.lines
        return rows, {line.peer: _tell_order(line, rows, pairs[line.peer]) for line in lines}

    def _ordered(self, trees: list[Tree], pairs: dict[str, dict[str, Any]]) -> Rows:
        """The rows of a stretch that are used, in their order."""
        party = self.own.party
        listed = np.concatenate([tree["own"]["rows"] for tree in trees])
        # The first key that a row has an id under counts.
        rows, first = np.unique(listed, return_index=True)
        tags = np.concatenate([tree["own"]["tags"] for tree in trees])[first]
        if self.settings.join == "left":
            others = np.flatnonzero(~self.own.known)
            drawn = party.random.uniform_bits(len(party.own_table), "align", "rows without an id")
            rows, tags = np.concatenate([rows, others]), np.concatenate([tags, drawn[others]])
        else:
            common = np.logical_and.reduce([np.isin(rows, pair["rows"]) for pair in pairs.values()])
            rows, tags = rows[common], tags[common]
        return rows[np.argsort(tags, kind="stable")]

    def _with_copies(
        self, kept: Shelf, rows: Rows, partners: dict[str, npt.NDArray[np.bool_]], digests: list[bytes]
    ) -> tuple[Rows, dict[str, npt.NDArray[np.bool_]], list[bytes]]:
        starts, copies, repeats = _all_copies(kept, len(self.own.party.own_table))
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

    def match(self) -> Shelf:
        """Take part in the matching, bucket by bucket; returns what each left."""
        own = self.own
        matched = np.zeros(len(own.party.own_table), bool)
        kept = own.shelf
        for key, bucket in own.settled.rounds:
            tree = own.matched(key, bucket, partial(self._match, key, bucket, matched))
            matched[tree["rows"][tree["places"]]] = True
            kept.put(tree)
        return kept

    def _match(self, key: int, number: int, matched: npt.NDArray[np.bool_]) -> Tree:
        own, settled, leader = self.own, self.own.settled, self.leader
        bucket = own.bucket(key, number).without(matched)
        secret = own.secret(leader.peer)
        listed, masking = own.listed(bucket, key, number, secret), secret.child("key", key).key
        own.send_masked(leader, listed, number, masking)
        self._return_doubled(key, number, masking)
        places = np.zeros(0, np.int64)
        if settled.n_keys > 1:
            places = receive_places(leader, number)
            require_places(places, listed.rows, leader.peer)
        return self.left(bucket, {"rows": listed.rows, "digests": listed.digests, "places": places})

    def left(self, bucket: Bucket, found: Tree) -> Tree:
        """What a bucket leaves: what was found, and which rows have its ids."""
        if self.settings.duplicates != "all":
            return found
        return found | {"own": {"rows": bucket.rows} | _copies(bucket, np.ones(len(bucket), bool))}

    def _return_doubled(self, key: int, number: int, masking: bytes) -> None:
        leader, total = self.leader, self.own.settled.slots(self.leader.peer, key)
        values: Iterable[Digests] = self.own.multiplied(leader, number, total, masking)
        if self.settings.reveal == "size":
            # In the order in which they came they would tell the leader which ones are common.
            forgotten = in_order(gathered(values))
            values = (forgotten[begin : begin + CHUNK] for begin in range(0, total, CHUNK))
        done = 0
        for part in values:
            leader.send(Doubled(number, done, np.ascontiguousarray(part)))
            done += len(part)

    def settle(self, kept: Shelf) -> Found:
        """Take the order that the leader sends, and compare it."""
        if self.settings.reveal != "both":
            return Found(None, None)
        ordered, digests = [], []
        for stretch, digest in map(self._hear_order, kept.stretches(self.settings)):
            ordered.append(stretch)
            digests.append(digest)
        rows, whole = np.concatenate(ordered), whole_digest(digests)
        if self.settings.duplicates == "all":
            rows, whole = self._with_copies(kept, rows, whole)
        agreed_digest, agreed = agree_as_follower(self.own, self.leader, whole, len(rows))
        return Found(rows, len(rows), agreed_digest, agreed.schedule.hex())

    def _hear_order(self, trees: list[Tree]) -> tuple[Rows, bytes]:
        """The rows of a stretch in the order that the leader sends, and a digest of it."""
        leader = self.leader
        listed = np.concatenate([tree["rows"] for tree in trees])
        digests = gathered([tree["digests"] for tree in trees])
        most = len(listed) + (MOST_KEPT if self.settings.join == "left" else 0)
        theirs = receive_order(leader, most)
        present = theirs >= 0
        require_places(theirs[present], listed, leader.peer)
        rows = np.full(len(theirs), -1)
        rows[present] = listed[theirs[present]]
        return rows, order_digest(digests[theirs[present]], present)

    def _with_copies(self, kept: Shelf, rows: Rows, digest: bytes) -> tuple[Rows, bytes]:
        present = rows >= 0
        starts, copies, repeats = _all_copies(kept, len(self.own.party.own_table))
        own_counts = np.ones((len(rows), 1), np.int64)
        own_counts[present, 0] = copies[rows[present]]
        send_copies(self.leader, own_counts)
        counts = receive_copies(self.leader, len(rows), len(self.own.party.roles.holders))
        if not np.array_equal(counts[:, self.column], own_counts[:, 0]):
            raise ProtocolError(
                f"Expected {self.leader.peer} to say how often each id occurs here as this party told it, got other "
                "numbers. Both must run the same version; if they do, it does not keep to the protocol."
            )
        ids, which = expanded(counts, self.column)
        return _copy_of(rows[ids], which, starts, copies, repeats), _digest_of(digest, counts)


# Rows without an id are in nobody's list, but may be kept.
MOST_KEPT = 1 << 33


def _joined(found: list[Tree]) -> dict[str, Any]:
    """What the buckets of a stretch left about one peer; places count from the stretch's begin."""
    begins = np.cumsum([0, *(each["length"] for each in found)])
    return {
        "rows": np.concatenate([each["rows"] for each in found]),
        "theirs": np.concatenate([each["theirs"] + begin for each, begin in zip(found, begins, strict=False)]),
        "digests": np.concatenate([each["digests"] for each in found]),
    }


def _tell_order(line: Channel, rows: Rows, pair: dict[str, Any]) -> tuple[npt.NDArray[np.bool_], bytes]:
    """Tell a peer where the rows of a stretch stand in its lists; returns which of them it has, and a digest."""
    at = rows_among(rows, pair["rows"])
    present = at >= 0
    theirs = np.full(len(rows), -1)
    theirs[present] = pair["theirs"][at[present]]
    send_order(line, theirs)
    return present, order_digest(pair["digests"][at[present]], present)


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


def _all_copies(kept: Iterable[Tree], n_rows: int) -> tuple[Rows, Rows, Rows]:
    """For each row that stands for an id: where its copies begin, how many there are; and all copies."""
    starts, copies, repeats, begin = np.zeros(n_rows, np.int64), np.ones(n_rows, np.int64), [], 0
    for tree in kept:
        own = tree["own"]
        starts[own["rows"]], copies[own["rows"]] = own["starts"] + begin, own["copies"]
        repeats.append(own["repeats"])
        begin += len(own["repeats"])
    return starts, copies, np.concatenate([np.zeros(0, np.int64), *repeats])


def _copy_of(rows: Rows, which: Rows, starts: Rows, copies: Rows, repeats: Rows) -> Rows:
    """The row that is the n-th with the id that another row stands for; an absent one stays absent."""
    found = rows.copy()
    several = (rows >= 0) & (copies[rows] > 1) if len(copies) else np.zeros(len(rows), bool)
    found[several] = repeats[starts[rows[several]] + which[several]]
    return found


def _digest_of(digest: bytes, counts: Rows) -> bytes:
    return blake3(digest + np.ascontiguousarray(counts).tobytes()).digest()
