"""Ciphertexts as they cross between parties, under an additively homomorphic key of any scheme."""

from __future__ import annotations

from typing import TYPE_CHECKING

from colonnade.errors import KeyMismatch
from colonnade.wire.message import Ciphertexts

if TYPE_CHECKING:
    from colonnade.crypto.additive import Data, PublicKey


def sealed(data: Data, key: PublicKey) -> Ciphertexts:
    """Ciphertexts as they cross, with the name of the key that they belong to."""
    return Ciphertexts(key.scheme, key.fingerprint, key.packed(data))


def unsealed(found: Ciphertexts, key: PublicKey, size: int, sender: str) -> Data:
    """Ciphertexts that crossed, if they belong to this key and are as many as expected."""
    if found.scheme != key.scheme or found.key != key.fingerprint:
        raise KeyMismatch(
            f"Expected ciphertexts of {key.scheme} under the key in use from {sender}, got some of "
            f"{found.scheme[:64]!r} under another. Check that all parties run the same plan and got the same key."
        )
    return key.unpacked(found.data, size, sender)
