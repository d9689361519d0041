"""What crosses between parties that align their rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from colonnade.crypto.curve import POINT_BYTES
from colonnade.errors import ProtocolError
from colonnade.secret import Secret
from colonnade.wire.channel import Channel
from colonnade.wire.message import Int64Array, Message, UInt8Array

VALUE_BYTES = 16
ROWS_PER_MESSAGE = 1 << 17


@dataclass(frozen=True)
class AlignTerms(Message, kind="align/terms", reveals={Secret.IDS}):
    """The run that a party takes part in, the rules it reads ids by, and how many ids it has under each key."""

    run: str
    rules: str
    keys: list[str]
    ids: list[int]


@dataclass(frozen=True)
class AlignOpening(Message, kind="align/opening", reveals={Secret.IDS}, fresh=True, secret=True):
    """What the leader decides: the keys of digests, the number of buckets, and how long each party's lists are.

    Two runs with one seed have the same `salt`, and so the same order; `veil` differs in every
    run and for every party that is told it.
    """

    salt: bytes
    veil: bytes
    keys: int
    buckets: int
    parties: list[str]
    ids: list[int]


@dataclass(frozen=True)
class MaskedIds(Message, kind="align/masked", reveals={Secret.IDS}, fresh=True):
    """Part of a bucket of ids, each a point multiplied by one or more secrets, in a random order."""

    bucket: int
    begin: int
    points: UInt8Array


@dataclass(frozen=True)
class TwiceMaskedIds(Message, kind="align/doubled", reveals={Secret.IDS}, fresh=True):
    """Part of a bucket of ids multiplied by everybody's secrets, cut to 128 bits."""

    bucket: int
    begin: int
    values: UInt8Array


@dataclass(frozen=True)
class Common(Message, kind="align/common", reveals={Secret.IDS}, fresh=True):
    """The values of a bucket that all lists have, sorted."""

    bucket: int
    values: UInt8Array


@dataclass(frozen=True)
class Places(Message, kind="align/places", reveals={Secret.IDS}, fresh=True):
    """Where in the receiver's list of a bucket the matched ids stand."""

    bucket: int
    places: Int64Array


@dataclass(frozen=True)
class ChosenRows(Message, kind="align/chosen", reveals={Secret.IDS}, fresh=True):
    """Part of the common order: where each row stands in the receiver's lists; -1 if absent."""

    total: int
    begin: int
    theirs: Int64Array


@dataclass(frozen=True)
class Copies(Message, kind="align/copies", reveals={Secret.IDS}):
    """Part of how many rows the parties have for each common id, in the common order, one column per party."""

    total: int
    begin: int
    counts: Int64Array


@dataclass(frozen=True)
class OrderPoint(Message, kind="align/order-point", reveals={Secret.IDS}, fresh=True):
    """The sender's own ids in the common order as one point, multiplied by a secret."""

    point: bytes


@dataclass(frozen=True)
class OrderDigest(Message, kind="align/order-digest", reveals={Secret.IDS}, fresh=True):
    """A digest of the receiver's point, multiplied by the sender's secret."""

    digest: bytes


@dataclass(frozen=True)
class Agreed(Message, kind="align/agreed", reveals={Secret.IDS}, fresh=True):
    """All digests were compared: how many rows there are, and the seed of the randomness that all parties share."""

    digests: list[bytes]
    schedule: bytes
    size: int


@dataclass(frozen=True)
class Size(Message, kind="align/size", reveals={Secret.IDS}):
    """How many ids are common, if the receiver may know; -1 if not."""

    size: int


@dataclass(frozen=True)
class Meeting(Message, kind="align/meeting", varies=True):
    """Where the sender's side process listens; with `started`, only that it runs."""

    address: str
    started: int


@dataclass(frozen=True)
class Finished(Message, kind="align/finished", varies=True):
    """How the sender's side process ended: 1 well, 0 not."""

    good: int


def unexpected(peer: str, expected: str, got: str) -> ProtocolError:
    """The error about a peer that should do one thing and did another."""
    return ProtocolError(
        f"Expected {peer} to {expected}, got {got}. Both must run the same version; if they do, {peer} does not keep "
        "to the protocol."
    )


def receive_list(
    line: Channel, kind: type[MaskedIds] | type[TwiceMaskedIds], bucket: int, total: int
) -> Iterator[UInt8Array]:
    """Yield the parts of a bucket's list of `total` ids, each part checked before it is used."""
    width, done = POINT_BYTES if kind is MaskedIds else VALUE_BYTES, 0
    while done < total:
        message = line.receive(kind, fields={"bucket": bucket, "begin": done})
        values = message.points if isinstance(message, MaskedIds) else message.values
        if values.ndim != 2 or values.shape[1] != width or not 0 < len(values) <= total - done:
            expected = f"send {kind.kind} of {width} bytes each from {done:,} of {total:,} on for bucket {bucket}"
            raise unexpected(line.peer, expected, f"an array of shape {values.shape}")
        done += len(values)
        yield values


def receive_common(line: Channel, bucket: int) -> UInt8Array:
    """The values of a bucket that all lists have."""
    values = line.receive(Common, fields={"bucket": bucket}).values
    if values.ndim != 2 or values.shape[1] != VALUE_BYTES:
        expected = f"send the common values of bucket {bucket}"
        raise unexpected(line.peer, expected, f"an array of shape {values.shape}")
    return values


def receive_places(line: Channel, bucket: int, listed: Int64Array) -> Int64Array:
    """Where the matched ids of a bucket stand in this party's list, whose rows are `listed`."""
    places = line.receive(Places, fields={"bucket": bucket}).places
    if places.ndim != 1:
        expected = f"name places in the list of bucket {bucket}"
        raise unexpected(line.peer, expected, f"an array of shape {places.shape}")
    require_places(places, listed, line.peer)
    return places


def require_places(places: Int64Array, listed: Int64Array, peer: str) -> None:
    """Refuse places outside this party's list, places of what only fills it up (row -1), and places named twice."""
    inside = not len(places) or (places.min() >= 0 and places.max() < len(listed))
    if not inside or (listed[places] < 0).any() or len(np.unique(places)) != len(places):
        raise unexpected(peer, f"name places in this party's own list of {len(listed):,}, each once", "others")


def send_whole(line: Channel, kind: type[ChosenRows] | type[Copies], values: Int64Array) -> None:
    """Send one array in parts; an empty one in an empty part."""
    for begin in range(0, max(1, len(values)), ROWS_PER_MESSAGE):
        line.send(kind(len(values), begin, values[begin : begin + ROWS_PER_MESSAGE]))


def receive_order(line: Channel, most: int) -> Int64Array:
    """The common order of at most `most` rows, as the leader sends it."""
    return _receive_whole(line, ChosenRows, f"send the order of at most {most:,} rows", most, ())


def receive_copies(line: Channel, total: int, n_parties: int) -> Int64Array:
    """How many rows the parties have for each of `total` ids, one column per party."""
    expected = f"say how often each of {total:,} ids occurs at {n_parties} parties"
    counts = _receive_whole(line, Copies, expected, total, (n_parties,))
    if len(counts) != total or (counts < 1).any():
        raise unexpected(line.peer, expected, f"{len(counts):,} lines, or numbers below 1")
    return counts


def _receive_whole(
    line: Channel, kind: type[ChosenRows] | type[Copies], expected: str, most: int, width: tuple[int, ...]
) -> Int64Array:
    found: list[Int64Array] = []
    total, done = -1, 0
    while done != total:
        message = line.receive(kind, fields={"begin": done} if total < 0 else {"begin": done, "total": total})
        values = message.theirs if isinstance(message, ChosenRows) else message.counts
        total = message.total
        fits = values.ndim == 1 + len(width) and values.shape[1:] == width
        if not fits or not done + len(values) <= total <= most or (total and not len(values)):
            raise unexpected(line.peer, expected, f"a part of shape {values.shape} of {total:,}")
        found.append(values)
        done += len(values)
    return np.concatenate(found)
