"""Star: the leader finds what it has in common with each other party, and tells each which of its rows to use.

    leader                                    each other party
         ◀───────────────────────────── AlignTerms
         AlignOpening ───────────────────────────▶            once (opening.py)
         MaskedIds ⇄ MaskedIds                                once per key and bucket, in parts
         ◀───────────────────────── TwiceMaskedIds
         Places ─────────────────────────────────▶            with several keys only
         ChosenRows ─────────────────────────────▶            once, in parts
         ◀───────────────────────────────── Copies
         Copies ─────────────────────────────────▶            if several rows may have one id
         OrderPoint ⇄ OrderPoint
         ◀──────────────────────────── OrderDigest
         Agreed ─────────────────────────────────▶            once (order.py)
         Size ───────────────────────────────────▶            instead of the last six, if only sizes are revealed

Each party multiplies the points of its ids by a secret of this run; the other party multiplies them by its own secret.
Both orders of multiplying give the same value, so equal ids show as equal values, and nothing else shows. Lists are
shuffled, and each pair of parties has its own secrets. The engine rr22 does this part in side processes (rr22.py).

What each side learns:

- The leader (the label party) learns which of its ids each other party has. With three or more parties, this is more
  than what all have in common.
- The others learn which of their ids are common to all. With several keys they learn which of their ids the leader has,
  and by which key; with three or more parties, also which are common to all.
- Both learn how many ids the other has. With three or more parties, the others learn how many buckets the longest list
  is cut into, hence about how long it is.
- With `reveal="one"` the others learn sizes only. With `reveal="size"` so does the leader, but per bucket; if there are
  several buckets, every party has at least about 16,384 ids in each, so that a number tells little about single ids.
- With `join="left"` the others learn how many rows the leader keeps, and which of their ids the leader has.
- With a key for each feature party, a feature party learns in which of the aligned rows each of its ids stands, hence
  how often the leader has the id; and about the keys of others the number of buckets only.
- With `duplicates="all"` all parties learn how many rows each party has for each id that is used: each common id, or
  with `join="left"` each id that the leader keeps.

The protocol is secure if parties keep to it (semi-honest), under the decisional Diffie-Hellman assumption, with hashes
as random oracles. Nobody outside has audited this implementation.

Meadows 1986; Huberman, Franklin and Hogg 1999; De Cristofaro and Tsudik 2010.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
from blake3 import blake3

from colonnade.align.buckets import Bucket, DigestArray, PaddedBucket, RowNumbers
from colonnade.align.matching import (
    distinct,
    gathered,
    order_digest,
    positions,
    rows_among,
    sorted_values,
    whole_digest,
)
from colonnade.align.messages import (
    ChosenRows,
    Copies,
    Places,
    TwiceMaskedIds,
    receive_copies,
    receive_list,
    receive_order,
    receive_places,
    require_places,
    send_whole,
    unexpected,
)
from colonnade.align.order import Match, agree_as_follower, agree_as_leader, hear_size, tell_size
from colonnade.align.rr22 import SideProcess, common
from colonnade.align.state import CHUNK, UNDER, AlignState
from colonnade.errors import DataError
from colonnade.storage import Tree
from colonnade.wire.channel import Channel

Mask = npt.NDArray[np.bool_]

# Rows without an id are in nobody's list, but a left join keeps them.
MOST_KEPT = 1 << 33

# So many rows take a few gigabytes at every party.
MOST_ROWS = 1 << 27

IDS_AT_ONCE = 1 << 16
"""How many ids have their rows combined at a time."""


def lead(state: AlignState, process: SideProcess | None) -> Match:
    """The leader's side: match bucket by bucket, put the common rows into an order, and agree on it."""
    settings, n_rows = state.settings, len(state.party.own_table)
    matched = {line.peer: np.zeros(n_rows, bool) for line in state.others}
    n_common = dict.fromkeys(matched, 0)
    for key, number, step in state.rounds():
        for _ in step:
            step.result = _match_as_leader(state, process, key, number, matched)
        for line in state.compared(key):
            found = step.result[line.peer]
            matched[line.peer][found["rows"]] = True
            n_common[line.peer] += found["n_ids"]
    # By several keys or with rr22 the others have learned what is common bucket by bucket.
    known = settings.several_keys or process is not None
    for peer, n_ids in n_common.items():
        state.check_common(peer, n_ids, told=known)
    if settings.reveal == "size":
        (n_ids,) = n_common.values()
        return tell_size(state, Match(None, n_ids))
    ordered: list[RowNumbers] = []
    present: dict[str, list[Mask]] = {peer: [] for peer in matched}
    digests: dict[str, list[bytes]] = {peer: [] for peer in matched}
    # `map` holds on to no stretch, which may be all that the buckets left.
    for rows, told in map(partial(_tell_order, state), state.results.stretches(_without_copies)):
        ordered.append(rows)
        for peer, (there, digest) in told.items():
            present[peer].append(there)
            digests[peer].append(digest)
    rows = np.concatenate(ordered)
    if settings.reveal == "one":
        return tell_size(state, Match(rows, len(rows)))
    partners = {peer: np.concatenate(masks) for peer, masks in present.items()}
    wholes = [whole_digest(each) for each in digests.values()]
    if settings.duplicates == "all":
        rows, partners, wholes = _combine_as_leader(state, rows, partners, wholes)
    return agree_as_leader(state, rows, wholes, partners if settings.join == "left" else None)


def follow(state: AlignState, process: SideProcess | None) -> Match:
    """The side of every other party: match bucket by bucket, take the leader's order, and agree on it."""
    settings, leader = state.settings, state.leader
    matched = np.zeros(len(state.party.own_table), bool)
    for key, number, step in state.rounds():
        for _ in step:
            if settings.matches(state.party.name, key):
                step.result = _match_as_follower(state, process, key, number, matched)
            else:
                step.result = {"rows": np.zeros(0, np.int64), "digests": gathered([]), "places": np.zeros(0, np.int64)}
        matched[step.result["rows"][step.result["places"]]] = True
    if settings.reveal != "both":
        return hear_size(state)
    ordered, digests = [], []
    for rows, digest in map(partial(_hear_order, state), state.results.stretches(_without_copies)):
        ordered.append(rows)
        digests.append(digest)
    rows, whole = np.concatenate(ordered), whole_digest(digests)
    present = rows[rows >= 0]
    state.check_common(leader.peer, len(np.unique(present)) if settings.by_party else len(present), told=True)
    if settings.duplicates == "all":
        rows, whole = _combine_as_follower(state, rows, whole)
    return agree_as_follower(state, rows, whole)


def _match_as_leader(
    state: AlignState, process: SideProcess | None, key: int, number: int, matched: dict[str, Mask]
) -> Tree:
    """Compare a bucket with each other party's; returns what was found with each, and the ids that may be used."""
    bucket, lines = state.bucket(key, number), state.compared(key)
    pairs: dict[str, Any] = {}
    left = {line.peer: bucket.without(matched[line.peer]) for line in lines}
    if process is not None:
        for line in lines:
            digests, rows = common(process, state, line, left[line.peer], key, number)
            n = len(rows)
            pairs[line.peer] = {"rows": rows, "theirs": np.arange(n), "digests": digests, "length": n, "n_ids": n}
    else:
        lists: dict[str, PaddedBucket] = {}
        for line in lines:
            lists[line.peer] = state.padded(left[line.peer], key, number, line.peer)
            state.send_masked(line, number, state.mask(lists[line.peer], state.masking_key(line.peer, key)))
        for line in lines:
            slots, masking = state.agreement.slots(line.peer, key), state.masking_key(line.peer, key)
            theirs = gathered(state.receive_masked(line, number, slots, masking))
            mine = gathered(receive_list(line, TwiceMaskedIds, number, len(lists[line.peer].rows)))
            pairs[line.peer] = _pair(state, line, lists[line.peer], mine, theirs)
            if state.settings.several_keys:
                line.send(Places(number, np.sort(pairs[line.peer]["theirs"])))
    if state.settings.by_party:
        return {peer: _with_copies(bucket, pair) for peer, pair in pairs.items()}
    used = np.full(len(bucket), state.settings.join == "left")
    for pair in pairs.values():
        used |= np.isin(bucket.rows, pair["rows"])
    own = {"rows": bucket.rows[used], "tags": state.tags(bucket.digests[used])}
    if state.settings.duplicates == "all":
        own |= _copies(bucket, used)
    return pairs | {"own": own}


def _match_as_follower(state: AlignState, process: SideProcess | None, key: int, number: int, matched: Mask) -> Tree:
    """Let the leader compare a bucket; returns the list that went out, and what was found so far."""
    leader, bucket = state.leader, state.bucket(key, number).without(matched)
    own: Tree = {}
    if state.settings.duplicates == "all":
        own["own"] = {"rows": bucket.rows} | _copies(bucket, np.ones(len(bucket), bool))
    if process is not None:
        digests, rows = common(process, state, leader, bucket, key, number)
        return own | {"rows": rows, "digests": digests, "places": np.arange(len(rows))}
    listed, masking = state.padded(bucket, key, number, leader.peer), state.masking_key(leader.peer, key)
    state.send_masked(leader, number, state.mask(listed, masking))
    slots, begin = state.agreement.slots(leader.peer, key), 0
    values: Iterable[DigestArray] = state.receive_masked(leader, number, slots, masking)
    if state.settings.reveal == "size":
        # In the order in which they came they would tell the leader which of its ids are common.
        hidden = sorted_values(gathered(values))
        values = (hidden[at : at + CHUNK] for at in range(0, slots, CHUNK))
    for part in values:
        leader.send(TwiceMaskedIds(number, begin, np.ascontiguousarray(part)), under=UNDER)
        begin += len(part)
    places = np.zeros(0, np.int64)
    if state.settings.several_keys:
        places = receive_places(leader, number, listed.rows)
    return own | {"rows": listed.rows, "digests": listed.digests, "places": places}


def _pair(state: AlignState, line: Channel, listed: PaddedBucket, mine: DigestArray, theirs: DigestArray) -> Tree:
    """What the leader has in common with a peer, from both lists of values."""
    found = positions(distinct(mine, line.peer), distinct(theirs, line.peer))
    if state.settings.reveal == "size":
        return {"rows": np.zeros(0, np.int64), "n_ids": int((found >= 0).sum())}
    at = np.flatnonzero((found >= 0) & (listed.rows >= 0))
    pair = {"rows": listed.rows[at], "theirs": found[at], "digests": listed.digests[at]}
    return pair | {"length": len(theirs), "n_ids": len(at)}


def _with_copies(bucket: Bucket, pair: Tree) -> Tree:
    """A pair that has every row with a matched id, instead of the one row that stands for the id."""
    at = rows_among(pair["rows"], bucket.rows)
    copies = bucket.copies[at]
    each = np.repeat(np.arange(len(at)), copies)
    number = np.arange(len(each)) - np.repeat(np.cumsum(copies) - copies, copies)
    rows = bucket.repeats[bucket.starts[at][each] + number]
    return {**pair, "rows": rows, "theirs": pair["theirs"][each], "digests": pair["digests"][each]}


def _tell_order(state: AlignState, trees: list[Tree]) -> tuple[RowNumbers, dict[str, tuple[Mask, bytes]]]:
    """Put the rows of a stretch into an order, and tell each peer where they stand in its lists.

    Returns the rows, and for each peer that is told, which of them it has and a digest of its order.
    """
    pairs = {line.peer: _joined([tree[line.peer] for tree in trees if line.peer in tree]) for line in state.others}
    rows, told = _ordered(state, trees, pairs), {}
    for line in state.others if state.settings.reveal == "both" else ():
        pair = pairs[line.peer]
        at = rows_among(rows, pair["rows"])
        present = at >= 0
        theirs = np.full(len(rows), -1)
        theirs[present] = pair["theirs"][at[present]]
        send_whole(line, ChosenRows, theirs)
        told[line.peer] = present, order_digest(pair["digests"][at[present]], present)
    return rows, told


def _hear_order(state: AlignState, trees: list[Tree]) -> tuple[RowNumbers, bytes]:
    """The rows of a stretch in the order that the leader sends, and a digest of the order."""
    listed = np.concatenate([tree["rows"] for tree in trees])
    digests = gathered([tree["digests"] for tree in trees])
    settings = state.settings
    most = len(listed) + (MOST_KEPT if settings.join == "left" or settings.by_party else 0)
    theirs = receive_order(state.leader, most)
    present = theirs >= 0
    places = theirs[present]
    # Several rows of a leader that looks its rows up may have one id.
    require_places(np.unique(places) if settings.by_party else places, listed, state.leader.peer)
    rows = np.full(len(theirs), -1)
    rows[present] = listed[theirs[present]]
    return rows, order_digest(digests[theirs[present]], present)


def _joined(found: list[Tree]) -> dict[str, Any]:
    """What the buckets of a stretch left about one peer; places count from the beginning of the stretch."""
    begins = np.cumsum([0, *(each["length"] for each in found)])
    return {
        "rows": np.concatenate([each["rows"] for each in found]),
        "theirs": np.concatenate([each["theirs"] + begin for each, begin in zip(found, begins, strict=False)]),
        "digests": np.concatenate([each["digests"] for each in found]),
    }


def _ordered(state: AlignState, trees: list[Tree], pairs: dict[str, dict[str, Any]]) -> RowNumbers:
    """The leader's rows of a stretch that are used, in their order."""
    party, left = state.party, state.settings.join == "left"
    draw = partial(party.random.uniform_bits, len(party.own_table), "align", "rows without an id")
    if state.settings.by_party:
        # A row has another id towards each party, so the order goes by rows.
        rows, tags = np.arange(len(party.own_table)), draw()
    else:
        listed = np.concatenate([tree["own"]["rows"] for tree in trees])
        # The first key that a row has an id under counts.
        rows, first = np.unique(listed, return_index=True)
        tags = np.concatenate([tree["own"]["tags"] for tree in trees])[first]
        if left:
            others = np.flatnonzero(~state.known)
            rows, tags = np.concatenate([rows, others]), np.concatenate([tags, draw()[others]])
    if not left:
        shared = np.logical_and.reduce([np.isin(rows, pair["rows"]) for pair in pairs.values()])
        rows, tags = rows[shared], tags[shared]
    return rows[np.argsort(tags, kind="stable")]


# Duplicates: an inner join of rows that have one id, every row of one party with every row of the others.


def _combine_as_leader(
    state: AlignState, rows: RowNumbers, partners: dict[str, Mask], digests: list[bytes]
) -> tuple[RowNumbers, dict[str, Mask], list[bytes]]:
    starts, copies, repeats = _all_copies(state)
    counts = np.ones((len(rows), 1 + len(state.others)), np.int64)
    counts[:, 0] = copies[rows]
    for column, line in enumerate(state.others, start=1):
        counts[:, column] = receive_copies(line, len(rows), 1)[:, 0]
    for line in state.others:
        send_whole(line, Copies, counts)
    combined, n_rows = _combined(rows, counts, 0, starts, copies, repeats), counts.prod(axis=1)
    partners = {peer: np.repeat(mask, n_rows) for peer, mask in partners.items()}
    return combined, partners, [_digest_of(digest, counts) for digest in digests]


def _combine_as_follower(state: AlignState, rows: RowNumbers, digest: bytes) -> tuple[RowNumbers, bytes]:
    leader, names, present = state.leader, state.participants, rows >= 0
    starts, copies, repeats = _all_copies(state)
    own_counts = np.ones((len(rows), 1), np.int64)
    own_counts[present, 0] = copies[rows[present]]
    send_whole(leader, Copies, own_counts)
    counts, column = receive_copies(leader, len(rows), len(names.order)), names.order.index(names.me)
    if not np.array_equal(counts[:, column], own_counts[:, 0]):
        raise unexpected(leader.peer, "say how often each id occurs here as this party told it", "other numbers")
    return _combined(rows, counts, column, starts, copies, repeats), _digest_of(digest, counts)


def _combined(
    rows: RowNumbers, counts: RowNumbers, own: int, starts: RowNumbers, copies: RowNumbers, repeats: RowNumbers
) -> RowNumbers:
    """One party's row of each combination, made of some ids at a time: all at once would take several times as much."""
    _require_few(counts)
    combined, end = np.empty(counts.prod(axis=1).sum(), np.int64), 0
    for begin in range(0, len(rows), IDS_AT_ONCE):
        some = slice(begin, begin + IDS_AT_ONCE)
        ids, which = expanded(counts[some], own)
        end += len(ids)
        combined[end - len(ids) : end] = _copy_of(rows[some][ids], which, starts, copies, repeats)
    return combined


def _require_few(counts: RowNumbers) -> None:
    """Refuse counts of rows that combine to too many."""
    with np.errstate(over="ignore"):
        n_rows = np.multiply.reduce(counts, axis=1, dtype=float)  # whole numbers would wrap around
        total = n_rows.sum()
    if total > MOST_ROWS:
        most = int(n_rows.argmax())
        raise DataError(
            f"Rows that have one id should combine to at most {MOST_ROWS:,} rows with duplicates = 'all', but would to "
            f"{total:.3g}: of one id the parties have {' and '.join(f'{n:,}' for n in counts[most].tolist())} "
            "rows. That is most often an id which stands for none: leave it empty, or use duplicates = 'first'."
        )


def expanded(counts: RowNumbers, own: int) -> tuple[RowNumbers, RowNumbers]:
    """For each combination of rows, the number of its id, and which of one party's rows with that id is in it.

    `counts` has one column per party, with how many rows it has for each id; `own` is the column of the one party.

    >>> expanded(np.array([[2, 1], [1, 2]]), own=0)
    (array([0, 0, 1, 1]), array([0, 1, 0, 0]))
    """
    _require_few(counts)
    each = counts.prod(axis=1)
    ids = np.repeat(np.arange(len(counts)), each)
    number = np.arange(each.sum()) - np.repeat(np.cumsum(each) - each, each)
    after = counts[:, own + 1 :].prod(axis=1)
    return ids, (number // after[ids]) % counts[ids, own]


def _copies(bucket: Bucket, used: Mask) -> Tree:
    return {"copies": bucket.copies[used], "starts": bucket.starts[used], "repeats": bucket.repeats}


def _without_copies(tree: Any) -> Tree:
    """What a bucket left without what is read again when rows are combined: a third of it, or half."""
    rest = {name: part for name, part in tree.items() if name != "own"}
    if "tags" in tree.get("own", ()):
        rest["own"] = {name: tree["own"][name] for name in ("rows", "tags")}
    return rest


def _all_copies(state: AlignState) -> tuple[RowNumbers, RowNumbers, RowNumbers]:
    """For each row that stands for an id: where its copies begin, and how many there are; and all copies."""
    n_rows = len(state.party.own_table)
    starts, copies, repeats, begin = np.zeros(n_rows, np.int64), np.ones(n_rows, np.int64), [], 0
    for tree in state.results:
        own = tree["own"]
        starts[own["rows"]], copies[own["rows"]] = own["starts"] + begin, own["copies"]
        repeats.append(own["repeats"])
        begin += len(own["repeats"])
    return starts, copies, np.concatenate([np.zeros(0, np.int64), *repeats])


def _copy_of(
    rows: RowNumbers, which: RowNumbers, starts: RowNumbers, copies: RowNumbers, repeats: RowNumbers
) -> RowNumbers:
    """The n-th row with the id that another row stands for; an absent row stays absent."""
    found = rows.copy()
    several = (rows >= 0) & (copies[rows] > 1) if len(copies) else np.zeros(len(rows), bool)
    found[several] = repeats[starts[rows[several]] + which[several]]
    return found


def _digest_of(digest: bytes, counts: RowNumbers) -> bytes:
    return blake3(digest).update(np.ascontiguousarray(counts).reshape(-1).view(np.uint8).data).digest()
