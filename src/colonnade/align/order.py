"""Order: all parties check that they have the same common rows in the same order, or are told the size only.

    leader                                    each other party
         OrderPoint ⇄ OrderPoint
         ◀──────────────────────────── OrderDigest
         Agreed ─────────────────────────────────▶            once
         Size ───────────────────────────────────▶            instead, unless all learn which ids are common

A digest of ids does not cross: a party could try out which ids are in it. Each party sends its digest as a point
multiplied by a secret, so a comparison tells only whether two digests are equal.

A party that does not accept so few common rows sends no OrderPoint, and nobody goes on with the rows.
"""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from blake3 import blake3

from colonnade.align.buckets import RowNumbers
from colonnade.align.messages import Agreed, OrderDigest, OrderPoint, Size, unexpected
from colonnade.align.state import UNDER, AlignState
from colonnade.crypto.curve import POINT_BYTES, hash_to_curve, multiply
from colonnade.errors import ProtocolError
from colonnade.runtime.alignment import Alignment
from colonnade.storage import Tree
from colonnade.wire.channel import Channel


@dataclass(frozen=True)
class Match:
    """What a topology finds: this party's rows in the common order, and what the parties agreed on."""

    rows: RowNumbers | None
    size: int | None
    digest: str = ""
    schedule: str = ""
    partners: dict[str, npt.NDArray[np.bool_]] = field(default_factory=dict)

    def tree(self) -> Tree:
        """The match as it is stored."""
        return {**vars(self), "partners": dict(self.partners)}

    @classmethod
    def of(cls, tree: Any) -> Self:
        """The match of a stored tree."""
        partners = {name: np.asarray(mask, bool) for name, mask in tree["partners"].items()}
        return cls(**{**tree, "partners": partners})


def agree_as_leader(
    state: AlignState,
    rows: RowNumbers,
    digests: Sequence[bytes],
    partners: dict[str, npt.NDArray[np.bool_]] | None = None,
) -> Match:
    """Compare the order with each other party; raises `ProtocolError` if a party has another one.

    `digests` are those of the order that each other party should have; `partners` says which of the rows each other
    party has, after a left join.
    """
    state.accept(_n_common(rows, partners))
    for line, digest in zip(state.others, digests, strict=True):
        _send_point(state, line, digest)
    products = []
    for line in state.others:
        products.append(_receive_product(state, line))
        if not hmac.compare_digest(line.receive(OrderDigest).digest, products[-1]):
            raise _another_order(len(rows), f"the digest that {line.peer} sent is another one")
    schedule = state.party.random.child("align", "schedule").key
    agreed = Agreed(products, schedule, len(rows))
    for line in (*state.others, *state.bystanders):
        line.send(agreed)
    return Match(rows, len(rows), _whole(agreed), schedule.hex(), partners or {})


def agree_as_follower(state: AlignState, rows: RowNumbers, digest: bytes) -> Match:
    """Compare the order, whose digest is given, with the leader; raises `ProtocolError` if they differ."""
    state.accept(_n_common(rows))
    leader = state.leader
    _send_point(state, leader, digest)
    product = _receive_product(state, leader)
    leader.send(OrderDigest(product))
    agreed = leader.receive(Agreed)
    if product not in agreed.digests or agreed.size != len(rows):
        raise _another_order(len(rows), f"{leader.peer} says that this party's digest is another one")
    return Match(rows, len(rows), _whole(agreed), agreed.schedule.hex())


def tell_size(state: AlignState, match: Match) -> Match:
    """Tell all others the size if they may know it, and that the comparison is over if not."""
    told = match.size if state.settings.reveal == "size" and match.size is not None else -1
    for line in (*state.others, *state.bystanders):
        line.send(Size(told))
    return match


def hear_size(state: AlignState) -> Match:
    """What a party hears that may not know which rows are common; refuses too few or too many common ids."""
    match = hear_outcome(state.leader, state.settings.reveal)
    if match.size is not None:
        state.check_common(state.leader.peer, match.size, told=True)
    return match


def hear_outcome(leader: Channel, reveal: str) -> Match:
    """What a party learns that may not know which rows are common, or has no rows."""
    if reveal == "both":
        agreed = leader.receive(Agreed)
        return Match(None, agreed.size, _whole(agreed), agreed.schedule.hex())
    size = leader.receive(Size).size
    return Match(None, size if size >= 0 else None)


def _send_point(state: AlignState, line: Channel, digest: bytes) -> None:
    point = hash_to_curve(np.frombuffer(digest, np.uint8).reshape(1, -1))
    line.send(OrderPoint(multiply(_order_key(state, line), point).tobytes()), under=UNDER)


def _receive_product(state: AlignState, line: Channel) -> bytes:
    """A digest of the other party's point, multiplied by this party's secret too."""
    point = line.receive(OrderPoint).point
    if len(point) != POINT_BYTES:
        raise unexpected(line.peer, f"send a point of {POINT_BYTES} bytes for its order", f"{len(point)} bytes")
    product = multiply(_order_key(state, line), np.frombuffer(point, np.uint8).reshape(1, -1))
    return blake3(product.tobytes()).digest()


def _order_key(state: AlignState, line: Channel) -> bytes:
    return state.secret(line.peer).child("order").key


def _n_common(rows: RowNumbers, partners: dict[str, npt.NDArray[np.bool_]] | None = None) -> int:
    n_common = Alignment(rows, len(rows), "", "", partners or {}).n_common
    assert n_common is not None, "the rows are known"
    return n_common


def _whole(agreed: Agreed) -> str:
    return blake3(b"".join(agreed.digests) + agreed.size.to_bytes(8, "little")).hexdigest()


def _another_order(size: int, found: str) -> ProtocolError:
    return ProtocolError(
        f"All parties should have the same order of {size:,} common rows, but {found}. Nothing was done with these "
        "rows. Install the same version at all parties and align again; if it happens again, one of them does not keep "
        "to the protocol."
    )
