"""Matching: plain arithmetic on digests and masked values, which are rows of 16 bytes. It knows no party."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from blake3 import blake3

from colonnade.align.buckets import DigestArray, RowNumbers, digest_order
from colonnade.align.identifiers import DIGEST_BYTES
from colonnade.align.messages import VALUE_BYTES, unexpected


def encrypted(digests: DigestArray, key: bytes, *, back: bool = False) -> DigestArray:
    """Digests encrypted under a key, or decrypted with `back`.

    >>> digests, key = np.eye(16, dtype=np.uint8), bytes(32)
    >>> (encrypted(encrypted(digests, key), key, back=True) == digests).all()
    np.True_
    """
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    # ECB hides everything here: a digest is one block, and no two digests are equal.
    cipher = Cipher(algorithms.AES(key), modes.ECB())
    work = cipher.decryptor() if back else cipher.encryptor()
    return np.frombuffer(work.update(np.ascontiguousarray(digests).tobytes()), np.uint8).reshape(-1, DIGEST_BYTES)


def gathered(chunks: Iterable[DigestArray]) -> DigestArray:
    """All chunks of values as one array."""
    return np.concatenate([np.zeros((0, VALUE_BYTES), np.uint8), *chunks])


def distinct(values: DigestArray, peer: str) -> DigestArray:
    """The values of a peer's list, which must all be different.

    >>> distinct(np.eye(16, dtype=np.uint8), "shop").shape
    (16, 16)
    """
    ordered = sorted_values(values)
    if (ordered[1:] == ordered[:-1]).all(axis=1).any():
        raise unexpected(peer, f"send a list of {len(values):,} different values", "one of them twice")
    return values


def sorted_values(values: DigestArray) -> DigestArray:
    """The values sorted, which hides the order they came in."""
    return values[digest_order(values)]


def positions(values: DigestArray, among: DigestArray) -> RowNumbers:
    """Where each value stands in `among`, whose values are all different; -1 where it is absent.

    >>> positions(np.eye(16, dtype=np.uint8)[[2, 0]], np.eye(16, dtype=np.uint8)[:2])
    array([-1,  0])
    """
    wanted, there = _words(values), _words(among)
    if not len(there):
        return np.full(len(wanted), -1)
    order = np.argsort(there[:, 0], kind="stable")
    heads = there[order, 0]
    if (heads[1:] == heads[:-1]).any():
        # Values that are half alike do not occur by chance; somebody searched for them.
        index = {value.tobytes(): place for place, value in enumerate(among)}
        return np.array([index.get(value.tobytes(), -1) for value in values], np.int64)
    nearest = order[np.minimum(np.searchsorted(heads, wanted[:, 0]), len(heads) - 1)]
    return np.where((there[nearest] == wanted).all(axis=1), nearest, -1)


def _words(values: DigestArray) -> npt.NDArray[np.uint64]:
    return np.ascontiguousarray(values).view(np.uint64).reshape(-1, 2)


def rows_among(rows: RowNumbers, others: RowNumbers) -> RowNumbers:
    """Where each row stands in `others`, which are all different; -1 where it is absent.

    >>> rows_among(np.array([7, 3]), np.array([3, 5]))
    array([-1,  0])
    """
    return np.asarray(pc.index_in(pa.array(rows), pa.array(others)).fill_null(-1), np.int64)


def order_digest(digests: DigestArray, present: npt.NDArray[np.bool_]) -> bytes:
    """A digest of an order as one party has it: the digests of its own ids, and which of the rows it has."""
    return blake3(np.ascontiguousarray(digests).reshape(-1).data).update(np.packbits(present).data).digest()


def whole_digest(digests: Sequence[bytes]) -> bytes:
    """A digest of an order that was put together stretch by stretch."""
    return blake3(b"".join(digests)).digest()
