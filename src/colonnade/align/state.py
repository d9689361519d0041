"""One party's own part of an alignment, whatever the topology: its ids in buckets, its secrets, its durable steps."""

from __future__ import annotations

import hmac
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
from blake3 import blake3

from colonnade.align.bound import Said
from colonnade.align.buckets import Bucket, Buckets, Digests, Listed, Rows, digest_order, slots
from colonnade.align.identifiers import DIGEST_BYTES, Identifiers
from colonnade.align.messages import VALUE_BYTES, Agreed, Masked, OrderDigest, OrderPoint, parts
from colonnade.align.shelf import Shelf
from colonnade.align.workers import CHUNK, Workers
from colonnade.crypto.curve import POINT_BYTES, hash_to_curve, make_key, multiply
from colonnade.errors import ProtocolError
from colonnade.privacy.randomness import Randomness
from colonnade.runtime.party import Party
from colonnade.storage import Tree, explained
from colonnade.wire.channel import Channel

# What secrets and steps of buckets are called by.
PREFIX = "align"

UNDER = ("masked with a secret of this run",)

Tags = npt.NDArray[np.uint64]


@dataclass(frozen=True)
class Settled:
    """What those who compare know: what digests are keyed with, how many buckets and keys, how long whose lists are.

    `veil` is what digests are encrypted with where they leave Colonnade; unlike the salt it is new in every run.
    """

    salt: bytes
    veil: bytes
    n_keys: int
    n_buckets: int
    ids: dict[str, tuple[int, ...]]

    def slots(self, party: str, key: int) -> int:
        """How many ids of a party go out in each bucket."""
        return slots(self.ids[party][key], self.n_buckets)

    def total(self, party: str) -> int:
        """How long all lists of a party are together."""
        return sum(self.n_buckets * self.slots(party, key) for key in range(self.n_keys))

    @property
    def in_each_bucket(self) -> str:
        """What is to be added where a number is told of each bucket, not of all ids together."""
        return f" in each of {self.n_buckets:,} buckets" if self.n_buckets > 1 else ""

    @property
    def rounds(self) -> Iterator[tuple[int, int]]:
        """Every key with every bucket."""
        return ((key, bucket) for key in range(self.n_keys) for bucket in range(self.n_buckets))


@dataclass
class Own:
    """What a party brings to an alignment.

    Attributes:
        party: The party.
        identifiers: How it reads its ids.
        settled: What all know.
        known: Which of its rows have an id under any key.
        said: What peers said before, where the run was taken up.
        folder: Where its buckets are kept if they do not fit into memory; nothing else is in it.
        n_workers: How many processes compute.
        n_points: How many points this party multiplies in all.
    """

    party: Party
    identifiers: Identifiers
    settled: Settled
    known: npt.NDArray[np.bool_]
    said: Said
    folder: Path
    n_workers: int | None
    n_points: int
    _held: tuple[int, Buckets] | None = None
    _done: int = 0

    def __post_init__(self) -> None:
        self.workers = Workers(self.n_workers, points=self.n_points)
        self.shelf = Shelf(self.folder / "left", self.settled.n_keys, self.settled.n_buckets)

    def bucket(self, key: int, number: int) -> Bucket:
        """The own ids of a bucket."""
        if self._held is None or self._held[0] != key:
            if self._held is not None:
                # An earlier key is done with, and its files only take space.
                self._held[1].delete()
            settled, table = self.settled, self.party.own_table
            buckets = Buckets(self.identifiers, table, key, settled.salt, n=settled.n_buckets, folder=self.folder)
            self._held = key, buckets
        return self._held[1][number]

    def matched(self, key: int, bucket: int, work: Callable[[], Tree]) -> Tree:
        """What the work on a bucket leaves; where an earlier life of this run did it, its points count as well."""
        before = self._done
        self.said.step = bucket_step(key, bucket)
        tree = durable(self.party, self.said.step, work)
        self.said.step = ""
        if self._done == before:
            self.progress(self.n_points // (self.settled.n_keys * self.settled.n_buckets))
        return tree

    def close(self) -> None:
        """Delete what was kept in files, and what a killed run may have left among them."""
        if self._done < self.n_points:
            self.progress(self.n_points - self._done)
        with explained("delete the buckets of an alignment"):
            if self.folder.exists():
                shutil.rmtree(self.folder)

    def secret(self, whom: str) -> Randomness:
        """The source of this run's secrets towards somebody, from the system, drawn once and written down first."""
        return Randomness.from_key(self.party.once(f"{PREFIX} {whom}", make_key), source="system")

    def listed(self, bucket: Bucket, key: int, number: int, secret: Randomness) -> Listed:
        """A bucket as it goes out."""
        return Listed.of(bucket, self.settled.slots(self.party.name, key), secret.child("list", key, number))

    def send_masked(self, line: Channel, listed: Listed, bucket: int, key: bytes) -> None:
        """Mask a list and send it."""
        self._send(line, bucket, self.workers.mask(key, listed.chunks(CHUNK)))

    def pass_on(self, line: Channel, bucket: int, key: bytes, lists: Iterator[Digests]) -> None:
        """Multiply a list that came, and send it on."""
        self._send(line, bucket, self.workers.multiply(key, lists))

    def multiplied(self, line: Channel, bucket: int, total: int, key: bytes) -> Iterator[Digests]:
        """The values of a masked list that comes, multiplied by a key and cut, chunk by chunk."""
        came = parts(line, Masked, bucket, total, POINT_BYTES)
        for points in self.workers.multiply(key, came):
            self.progress(len(points))
            yield points[:, :VALUE_BYTES]

    def _send(self, line: Channel, bucket: int, masked: Iterator[Digests]) -> None:
        begin = 0
        for points in masked:
            line.send(Masked(bucket, begin, points), under=UNDER)
            begin += len(points)
            self.progress(len(points))

    def progress(self, n: int) -> None:
        """Say how many more points were multiplied."""
        self._done += n
        if self.party.watcher is not None:
            self.party.watcher(self.party.name, "align", self._done, self.n_points, {})

    def tags(self, digests: Digests) -> Tags:
        """What the common order is sorted by: digests encrypted under a secret, whatever order the file has."""
        encrypted = veiled(digests, self.party.random.child("align", "order").key)
        return encrypted.view("<u8")[:, 0].astype(np.uint64)


class _Kept:
    """What one step leaves behind."""

    def __init__(self) -> None:
        self.tree: Tree = None

    def state(self) -> Tree:
        return self.tree

    def restore(self, tree: Tree) -> None:
        self.tree = tree


def durable(party: Party, name: str, work: Callable[[], Tree]) -> Tree:
    """What a piece of work leaves, written down when it is done; a run that is taken up does not do it again.

    Every party of the run goes through the same pieces, each with its own work.
    """
    kept = _Kept()
    # The steps of buckets say nothing to whoever watches: the points that are multiplied do.
    for _ in replace(party, watcher=None).steps(1, kept, name=name):
        kept.tree = work()
    return kept.tree


def bucket_step(key: int, bucket: int) -> str:
    """What the step of a bucket is called."""
    return f"{PREFIX} key {key} bucket {bucket}"


def veiled(digests: Digests, key: bytes, *, back: bool = False) -> Digests:
    """Digests encrypted under a key, or decrypted again.

    >>> digests, key = np.eye(16, dtype=np.uint8), make_key()
    >>> (veiled(veiled(digests, key), key, back=True) == digests).all()
    np.True_
    """
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    # A digest is one block, and no two are alike, so that of each block alone nothing can be told.
    cipher = Cipher(algorithms.AES(key), modes.ECB())
    work = cipher.decryptor() if back else cipher.encryptor()
    return np.frombuffer(work.update(np.ascontiguousarray(digests).tobytes()), np.uint8).reshape(-1, DIGEST_BYTES)


def gathered(chunks: Iterable[Digests]) -> Digests:
    """All chunks of values as one array."""
    return np.concatenate([np.zeros((0, VALUE_BYTES), np.uint8), *chunks])


def distinct(values: Digests, peer: str) -> Digests:
    """The values of a peer's list, which must all be different.

    >>> distinct(np.eye(16, dtype=np.uint8), "shop").shape
    (16, 16)
    """
    ordered = in_order(values)
    if (ordered[1:] == ordered[:-1]).all(axis=1).any():
        raise ProtocolError(
            f"Expected {peer} to send a list of {len(values):,} different values, got one of them twice. Both must run "
            "the same version; if they do, it does not keep to the protocol."
        )
    return values


def positions(values: Digests, among: Digests) -> Rows:
    """Where each value stands among others, which are all different; -1 where it does not.

    >>> positions(np.eye(16, dtype=np.uint8)[[2, 0]], np.eye(16, dtype=np.uint8)[:2])
    array([-1,  0])
    """
    wanted, there = _words(values), _words(among)
    if not len(there):
        return np.full(len(wanted), -1)
    order = np.argsort(there[:, 0], kind="stable")
    heads = there[order, 0]
    if (heads[1:] == heads[:-1]).any():
        # Only somebody who searches for such values finds any.
        index = {value.tobytes(): place for place, value in enumerate(among)}
        return np.array([index.get(value.tobytes(), -1) for value in values], np.int64)
    nearest = order[np.minimum(np.searchsorted(heads, wanted[:, 0]), len(heads) - 1)]
    return np.where((there[nearest] == wanted).all(axis=1), nearest, -1)


def _words(values: Digests) -> npt.NDArray[np.uint64]:
    return np.ascontiguousarray(values).view(np.uint64).reshape(-1, 2)


def rows_among(rows: Rows, others: Rows) -> Rows:
    """Where each row stands among others, which are all different; -1 where it does not.

    >>> rows_among(np.array([7, 3]), np.array([3, 5]))
    array([-1,  0])
    """
    if not len(others):
        return np.full(len(rows), -1)
    order = np.argsort(others)
    nearest = order[np.minimum(np.searchsorted(others, rows, sorter=order), len(others) - 1)]
    return np.where(others[nearest] == rows, nearest, -1)


def in_order(values: Digests) -> Digests:
    """The values sorted, which forgets whose order they had."""
    return values[digest_order(values)]


def order_digest(digests: Digests, present: npt.NDArray[np.bool_]) -> bytes:
    """A digest of an order as one party has it: those of the ids of its own rows, and which of the rows it has."""
    return blake3(np.ascontiguousarray(digests).tobytes() + np.packbits(present).tobytes()).digest()


def whole_digest(digests: Sequence[bytes]) -> bytes:
    """A digest of an order that was put together stretch by stretch."""
    return blake3(b"".join(digests)).digest()


def agree_as_leader(
    own: Own,
    lines: Sequence[Channel],
    digests: Sequence[bytes],
    bystanders: Sequence[Channel],
    schedule: bytes,
    size: int,
) -> str:
    """Compare the digest of the order with each of the others; returns a digest of all of it.

    A digest of ids does not cross: who expected others there could try out which they are. As a point multiplied by a
    secret it tells nothing but whether it is that of the other one.

    Args:
        own: What this party brings.
        lines: The lines to the others.
        digests: For each of them, that of the ids which it should have, in their order.
        bystanders: The lines to those who only hear of it.
        schedule: What the shared randomness follows from.
        size: How many rows there are.

    Raises:
        ProtocolError: Somebody has another one.
    """
    for line, digest in zip(lines, digests, strict=True):
        line.send(OrderPoint(_order_point(own, line, digest)), under=UNDER)
    products = []
    for line in lines:
        products.append(_product(own, line))
        if not hmac.compare_digest(line.receive(OrderDigest).digest, products[-1]):
            raise ProtocolError(
                f"All parties should have the same order of {size:,} common rows, but the digest that {line.peer} sent "
                "is another one. Nothing was done with these rows. Install the same version at all parties and align "
                "anew; if it happens again, one of them does not keep to the protocol."
            )
    agreed = Agreed(products, schedule, size)
    for line in (*lines, *bystanders):
        line.send(agreed)
    return _whole(agreed)


def agree_as_follower(own: Own, leader: Channel, digest: bytes, size: int) -> tuple[str, Agreed]:
    """Compare the digest of the order with the leader; returns a digest of all of it.

    Args:
        own: What this party brings.
        leader: The line to it.
        digest: That of the own ids in their order.
        size: How many rows there are.

    Raises:
        ProtocolError: The leader has another one.
    """
    leader.send(OrderPoint(_order_point(own, leader, digest)), under=UNDER)
    product = _product(own, leader)
    leader.send(OrderDigest(product))
    whole, agreed = hear_agreed(leader)
    if product not in agreed.digests or agreed.size != size:
        raise ProtocolError(
            f"All parties should have the same order of {size:,} common rows, but {leader.peer} says that this party's "
            "digest is another one. Nothing was done with these rows. Install the same version at all parties and "
            "align anew; if it happens again, one of them does not keep to the protocol."
        )
    return whole, agreed


def hear_agreed(leader: Channel) -> tuple[str, Agreed]:
    """Hear that all digests were compared; returns a digest of all of it."""
    agreed = leader.receive(Agreed)
    return _whole(agreed), agreed


def _order_point(own: Own, line: Channel, digest: bytes) -> bytes:
    return multiply(_order_key(own, line), hash_to_curve(np.frombuffer(digest, np.uint8).reshape(1, -1))).tobytes()


def _product(own: Own, line: Channel) -> bytes:
    """A digest of the other one's point, multiplied by the own secret as well."""
    point = line.receive(OrderPoint).point
    if len(point) != POINT_BYTES:
        raise ProtocolError(
            f"Expected {line.peer} to send a point of {POINT_BYTES} bytes for its order, got {len(point)} bytes. Both "
            "must run the same version."
        )
    product = multiply(_order_key(own, line), np.frombuffer(point, np.uint8).reshape(1, -1))
    return blake3(product.tobytes()).digest()


def _order_key(own: Own, line: Channel) -> bytes:
    return own.secret(line.peer).child("order").key


def _whole(agreed: Agreed) -> str:
    return blake3(b"".join(agreed.digests) + agreed.size.to_bytes(8, "little")).hexdigest()
