"""What crosses between parties that align their rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from colonnade.errors import ProtocolError
from colonnade.secret import Secret
from colonnade.wire.channel import Channel
from colonnade.wire.message import Int64Array, Message, UInt8Array

VALUE_BYTES = 16
PLACES_PER_MESSAGE = 1 << 17


@dataclass(frozen=True)
class Terms(Message, kind="align/terms", reveals={Secret.IDS}):
    """Which run a party takes part in, how it reads ids, and how many it has under each key."""

    run: str
    rules: str
    keys: list[str]
    ids: list[int]


@dataclass(frozen=True)
class Opening(Message, kind="align/opening", reveals={Secret.IDS}, fresh=True):
    """What the leader settles: what digests are keyed with, how many buckets there are, whose lists are how long.

    `salt` is equal in two runs with one seed, as is the order that comes of it; `veil` never is.
    """

    salt: bytes
    veil: bytes
    keys: int
    buckets: int
    parties: list[str]
    ids: list[int]


@dataclass(frozen=True)
class Masked(Message, kind="align/masked", reveals={Secret.IDS}, fresh=True):
    """Part of a bucket of ids, each a point multiplied by one or more secrets, in a random order."""

    bucket: int
    begin: int
    points: UInt8Array


@dataclass(frozen=True)
class Doubled(Message, kind="align/doubled", reveals={Secret.IDS}, fresh=True):
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
class Chosen(Message, kind="align/chosen", reveals={Secret.IDS}, fresh=True):
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
    """All digests were compared; with how many rows there are, and what the shared randomness follows from."""

    digests: list[bytes]
    schedule: bytes
    size: int


@dataclass(frozen=True)
class Size(Message, kind="align/size", reveals={Secret.IDS}):
    """How many ids are common, if the receiver may know; -1 if not."""

    size: int


@dataclass(frozen=True)
class Meeting(Message, kind="align/meeting"):
    """Where the sender's side process listens; or, with `started`, that it was started."""

    address: str
    started: int


@dataclass(frozen=True)
class Finished(Message, kind="align/finished"):
    """How the sender's side process ended: 1 well, 0 not."""

    good: int


Part = TypeVar("Part", Masked, Doubled)


def parts(line: Channel, kind: type[Part], bucket: int, total: int, width: int) -> Iterator[Any]:
    """The arrays of a list that comes in parts, each checked before it is used.

    Args:
        line: Where it comes from.
        kind: What it comes as.
        bucket: Of which bucket.
        total: How long it is.
        width: How many bytes each of its items has.
    """
    done = 0
    while done < total:
        message = line.receive(kind)
        values = message.points if isinstance(message, Masked) else message.values
        expected = message.bucket == bucket and message.begin == done and values.ndim == 2
        if not expected or values.shape[1] != width or not 0 < len(values) <= total - done:
            raise ProtocolError(
                f"Expected {line.peer} to send {kind.kind} from {done:,} of {total:,} on for bucket {bucket}, got "
                f"an array of shape {values.shape} from {message.begin:,} on for bucket {message.bucket}. Both must "
                "run the same version."
            )
        done += len(values)
        yield values


def receive_common(line: Channel, bucket: int) -> UInt8Array:
    """The values that all lists have in a bucket."""
    message = line.receive(Common)
    if message.bucket != bucket or message.values.ndim != 2 or message.values.shape[1] != VALUE_BYTES:
        raise ProtocolError(
            f"Expected {line.peer} to send the common values of bucket {bucket}, got an array of shape "
            f"{message.values.shape} of bucket {message.bucket}. Both must run the same version."
        )
    return message.values


def receive_places(line: Channel, bucket: int) -> Int64Array:
    """Where the matched ids of a bucket stand in the own list."""
    message = line.receive(Places)
    if message.bucket != bucket or message.places.ndim != 1:
        raise ProtocolError(
            f"Expected {line.peer} to name places in the list of bucket {bucket}, got an array of shape "
            f"{message.places.shape} for bucket {message.bucket}. Both must run the same version."
        )
    return message.places


def send_order(line: Channel, theirs: Int64Array) -> None:
    """Send the common order in parts."""
    for begin in range(0, max(1, len(theirs)), PLACES_PER_MESSAGE):
        line.send(Chosen(len(theirs), begin, theirs[begin : begin + PLACES_PER_MESSAGE]))


def receive_order(line: Channel, most: int) -> Int64Array:
    """The common order as the leader sends it.

    Args:
        line: The leader's.
        most: How many rows there can be.
    """
    theirs: list[Int64Array] = []
    total, done = -1, 0
    while done != total:
        message = line.receive(Chosen)
        total = message.total if total < 0 else total
        fits = message.total == total <= most and message.begin == done and message.theirs.ndim == 1
        if not fits or done + len(message.theirs) > total or (total and not len(message.theirs)):
            raise ProtocolError(
                f"Expected {line.peer} to send the order of at most {most:,} rows, got another part than the one from "
                f"{done:,} on. Both must run the same version."
            )
        theirs.append(message.theirs)
        done += len(message.theirs)
    return np.concatenate(theirs)


def send_copies(line: Channel, counts: Int64Array) -> None:
    """Send how many rows there are for each id, in parts."""
    for begin in range(0, max(1, len(counts)), PLACES_PER_MESSAGE):
        line.send(Copies(len(counts), begin, counts[begin : begin + PLACES_PER_MESSAGE]))


def receive_copies(line: Channel, total: int, n_parties: int) -> Int64Array:
    """How many rows the parties have for each id."""
    found: list[Int64Array] = []
    done = 0
    while done < total or not found:
        message = line.receive(Copies)
        counts = message.counts
        fits = message.total == total and message.begin == done and counts.shape[1:] == (n_parties,)
        if not fits or done + len(counts) > total or (total and not len(counts)) or (counts < 1).any():
            raise ProtocolError(
                f"Expected {line.peer} to say how often each of {total:,} ids occurs at {n_parties} parties, got "
                f"something else at {done:,}. Both must run the same version."
            )
        found.append(counts)
        done += len(counts)
    return np.concatenate(found)
