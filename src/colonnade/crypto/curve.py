"""The group that private set intersection stands on: points of Curve25519, hashed to and multiplied, nothing else.

A point is its u-coordinate, 32 bytes; many of them are one array of shape (n, 32). Multiplication is X25519 of OpenSSL
(by `cryptography`). Its scalars are multiples of 8, so a product lies in the subgroup of prime order, whatever its
point was.

`hash_to_curve` is Elligator 2 of RFC 9380 (the map of `curve25519_XMD:SHA-512_ELL2_NU_`, on a hash by BLAKE2b). Its
points lie on the curve, never on the twist. A hash taken as a u-coordinate as it comes would lie on either, stay there
under every multiplication, and so tell one bit of each id to a party that sees the id masked.

Hashing takes a time that depends on what is hashed. Only who measures inside one's own machine could see that.
"""

from __future__ import annotations

import secrets
from functools import cache
from hashlib import blake2b
from typing import Any

import numpy as np
import numpy.typing as npt

from colonnade.errors import CryptoError

POINT_BYTES = 32
KEY_BYTES = 32

_PRIME = 2**255 - 19
_A = 486662
_BELOW_TOP_BIT = 2**255 - 1
_PERSON = b"colonnade points"

Points = npt.NDArray[np.uint8]


def make_key() -> bytes:
    """A fresh secret to multiply points by, from the operating system."""
    return secrets.token_bytes(KEY_BYTES)


def hash_to_curve(digests: npt.NDArray[np.uint8]) -> Points:
    """The point of each digest, one digest per row.

    >>> hash_to_curve(np.zeros((2, 16), np.uint8)).shape
    (2, 32)
    """
    whole, size = np.ascontiguousarray(digests).tobytes(), digests.shape[1]
    hashed = (
        blake2b(whole[i : i + size], digest_size=32, person=_PERSON).digest() for i in range(0, len(whole), size or 1)
    )
    return _elligator([int.from_bytes(each, "little") & _BELOW_TOP_BIT for each in hashed])


def multiply(key: bytes, points: Points) -> Points:
    """Each point multiplied by a secret.

    Two secrets can be applied in either order:

    >>> points, (one, other) = hash_to_curve(np.zeros((1, 16), np.uint8)), (make_key(), make_key())
    >>> bool((multiply(one, multiply(other, points)) == multiply(other, multiply(one, points))).all())
    True

    Raises:
        CryptoError: A point is of small order, or is not written as a number below the prime, as no honest party sends.
    """
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

    whole = np.ascontiguousarray(points).tobytes()
    _require_canonical(whole)
    product, point = X25519PrivateKey.from_private_bytes(key).exchange, X25519PublicKey.from_public_bytes
    try:
        products = b"".join([product(point(whole[i : i + POINT_BYTES])) for i in range(0, len(whole), POINT_BYTES)])
    except ValueError as error:
        raise CryptoError(
            "Points to be multiplied should be of large order, but one is not, so the product would not depend on the "
            "key. Whoever sent it does not keep to the protocol; do not go on with it."
        ) from error
    return np.frombuffer(products, np.uint8).reshape(-1, POINT_BYTES)


def _require_canonical(whole: bytes) -> None:
    """Refuse a point that has a second encoding: X25519 drops the top bit and takes the rest modulo the prime."""
    # Among honest points one in 2^63 has so high a word.
    highest = np.frombuffer(whole, "<u8")[3::4]
    for i in np.flatnonzero(highest >= _PRIME >> 192).tolist():
        if int.from_bytes(whole[i * POINT_BYTES : (i + 1) * POINT_BYTES], "little") >= _PRIME:
            raise CryptoError(
                "Points to be multiplied should be numbers below 2^255 - 19, but one is not, so another number stands "
                "for the same point. Whoever sent it does not keep to the protocol; do not go on with it."
            )


def _elligator(numbers: list[int]) -> Points:
    """The u-coordinate that Elligator 2 gives each number of the field: u or -A - u, whichever is on the curve."""
    first = [-_A * inverse % _PRIME for inverse in _inverses([1 + 2 * r * r % _PRIME for r in numbers])]
    right_sides = b"".join([(u * (u * (u + _A) + 1) % _PRIME).to_bytes(32, "little") for u in first])
    squares = _are_squares()(np.frombuffer(right_sides, "<u8").reshape(-1, 4))
    chosen = [u if square else -_A - u for u, square in zip(first, squares.tolist(), strict=True)]
    coordinates = b"".join([(u % _PRIME).to_bytes(POINT_BYTES, "little") for u in chosen])
    return np.frombuffer(coordinates, np.uint8).reshape(-1, POINT_BYTES)


def _inverses(numbers: list[int]) -> list[int]:
    """The inverses of many numbers of the field at the price of one and three products each (Montgomery's trick)."""
    product, products = 1, []
    for number in numbers:
        products.append(product)
        product = product * number % _PRIME
    inverse = pow(product, -1, _PRIME)
    found = [0] * len(numbers)
    for i in range(len(numbers) - 1, -1, -1):
        found[i] = products[i] * inverse % _PRIME
        inverse = inverse * numbers[i] % _PRIME
    return found


@cache
def _are_squares() -> Any:
    """The compiled test whether numbers of the field, four words each, are squares; 0 is one."""
    from numba import njit

    return njit(cache=True, nogil=True)(_square_test)


def _square_test(numbers: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_]:
    """Jacobi symbols with the prime, by subtracting and halving: an exponentiation takes thirty times as long."""
    # Every constant is typed: the compiler would turn a mixture of signs into floats.
    one, zero, word = np.uint64(1), np.uint64(0), np.uint64(64)
    full = ~zero
    found = np.zeros(len(numbers), np.bool_)
    for i in range(len(numbers)):
        a0, a1, a2, a3 = numbers[i, 0], numbers[i, 1], numbers[i, 2], numbers[i, 3]
        n0, n1, n2, n3 = full - np.uint64(18), full, full, full >> one
        flips = zero
        while a0 | a1 | a2 | a3:
            while a0 == zero:
                a0, a1, a2, a3 = a1, a2, a3, zero
            halvings, low = zero, a0
            while low & one == zero:
                low >>= one
                halvings += one
            if halvings:
                rest = word - halvings
                a0 = (a0 >> halvings) | (a1 << rest)
                a1 = (a1 >> halvings) | (a2 << rest)
                a2 = (a2 >> halvings) | (a3 << rest)
                a3 >>= halvings
                # 2 is no square modulo n where n is 3 or 5 modulo 8, where its second and third bits differ.
                flips ^= halvings & ((n0 >> one) ^ (n0 >> np.uint64(2)))
            smaller = a3 < n3 or (a3 == n3 and (a2 < n2 or (a2 == n2 and (a1 < n1 or (a1 == n1 and a0 < n0)))))
            if smaller:
                a0, a1, a2, a3, n0, n1, n2, n3 = n0, n1, n2, n3, a0, a1, a2, a3
                # Reciprocity: exchanging two numbers that are both 3 modulo 4 changes the sign.
                flips ^= (a0 >> one) & (n0 >> one)
            borrow = zero
            d0 = a0 - n0
            borrow = one if a0 < n0 else zero
            d1 = a1 - n1 - borrow
            borrow = one if a1 < n1 or (a1 == n1 and borrow) else zero
            d2 = a2 - n2 - borrow
            borrow = one if a2 < n2 or (a2 == n2 and borrow) else zero
            a0, a1, a2, a3 = d0, d1, d2, a3 - n3 - borrow
        found[i] = flips & one == zero
    return found
