"""Triples: shared words multiplied in turns, from random products that were made ahead.

    ahead      asker    draws a, b; sends both encrypted (`products`)           helper: draws its own a, b
               both     shares of  a_asker b_helper + b_asker a_helper,  and so of the product of the sums
    product    both     send  x - a  and  y - b;  x y = ab + (x - a) b + (y - b) a + (x - a)(y - b)
    square     both     send  x - a;  x^2 = a^2 + 2 (x - a) a + (x - a)^2;  a^2 takes one encrypted product, not two

All words are modulo 2^64. A batch of 8,192 triples costs what one would, so they are made ahead in batches; a triple
serves once and is never written down. Beaver 1991. For semi-honest parties.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from colonnade.crypto import products
from colonnade.crypto.ring import Residues
from colonnade.crypto.rlwe import PublicKey, SecretKey
from colonnade.crypto.sampling import Stream
from colonnade.crypto.shares import Share
from colonnade.crypto.transfers import Turns
from colonnade.errors import CryptoError

AT_ONCE = 8192
"""How many triples a batch has; fewer cost as much."""


@dataclass(frozen=True)
class Triples:
    """One side's shares of random words a and b and of their products."""

    a: Share
    b: Share
    product: Share


@dataclass(frozen=True)
class Squares:
    """One side's shares of random words a and of their squares."""

    a: Share
    square: Share


def ask_for_triples(key: PublicKey, count: int) -> tuple[Share, Share, Residues]:
    """The asker's random words a and b, and what the helper gets."""
    words = Stream().words(2 * count)
    a, b = words[:count].copy(), words[count:].copy()
    return a, b, products.encrypt(key, [a, b])


def help_with_triples(key: PublicKey, data: Residues, count: int) -> tuple[Residues, Triples]:
    """What the asker decrypts, and the helper's triples."""
    words = Stream().words(2 * count)
    a, b = words[:count].copy(), words[count:].copy()
    reply, cross = products.multiply(key, data, [b, a])
    return reply, Triples(a, b, a * b + cross)


def receive_triples(secret: SecretKey, a: Share, b: Share, reply: Residues) -> Triples:
    """The asker's triples."""
    return Triples(a, b, a * b + products.decrypt(secret, reply, len(a)))


def ask_for_squares(key: PublicKey, count: int) -> tuple[Share, Residues]:
    """The asker's random words a, and what the helper gets."""
    a = Stream().words(count).copy()
    return a, products.encrypt(key, [a])


def help_with_squares(key: PublicKey, data: Residues, count: int) -> tuple[Residues, Squares]:
    """What the asker decrypts, and the helper's squares."""
    a = Stream().words(count).copy()
    reply, cross = products.multiply(key, data, [a])
    return reply, Squares(a, a * a + np.uint64(2) * cross)


def receive_squares(secret: SecretKey, a: Share, reply: Residues) -> Squares:
    """The asker's squares."""
    return Squares(a, a * a + np.uint64(2) * products.decrypt(secret, reply, len(a)))


def multiply(x: Share, y: Share, triples: Triples, *, leading: bool) -> Turns[Share]:
    """Either side's turns: its shares of the products of shared words."""
    assert len(triples.a) == len(x) == len(y)
    masked = np.concatenate([x - triples.a, y - triples.b])
    came = yield masked
    d, e = np.split(masked + _words(came, len(masked)), 2)
    out: Share = triples.product + d * triples.b + e * triples.a
    return out + d * e if leading else out


def square(x: Share, squares: Squares, *, leading: bool) -> Turns[Share]:
    """Either side's turns: its shares of the squares of shared words."""
    assert len(squares.a) == len(x)
    masked = x - squares.a
    came = yield masked
    d = masked + _words(came, len(masked))
    out: Share = squares.square + np.uint64(2) * d * squares.a
    return out + d * d if leading else out


def _words(came: NDArray[np.uint64], count: int) -> Share:
    if came.shape != (count,) or came.dtype != np.uint64:
        raise CryptoError(
            f"Expected {count} words, got an array of shape {came.shape}. "
            "Check that both parties multiply as many numbers."
        )
    return came
