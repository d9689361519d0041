"""Products: two private vectors, multiplied number by number modulo 2^64, into shares.

    asker     encrypts its vectors a_1 ... a_m modulo each of some primes, 8,192 numbers to a ciphertext
    helper    multiplies by its own vectors, adds up, adds a large mask r, and floods
    asker     decrypts  a_1 b_1 + ... + a_m b_m + r  modulo all primes together; its share is that modulo 2^64
    helper    its share is -r

A number stands in a slot: a polynomial modulo a prime t = 1 mod 2n is its values at n points, and polynomials multiply
value by value. A sum of products of words has 130 bits at most, so a mask of 200 hides it but for 2^-70, and all of it
stays below the product of eight primes; for products of single bits, three primes and a mask of 70 bits do. The lattice
is that of the profile for shares. Smart and Vercauteren 2014 for slots; masks and flood as in `rlwe`. For semi-honest
parties, unreviewed.
"""

from __future__ import annotations

from functools import cache
from math import prod

import numpy as np
from numpy.typing import NDArray

from colonnade.crypto.profiles import SHARES
from colonnade.crypto.ring import Residues, Ring, ring_of
from colonnade.crypto.rlwe import PublicKey, SecretKey
from colonnade.crypto.sampling import Stream
from colonnade.crypto.shares import Share

SLOT_PRIMES = (66404353, 66011137, 65978369, 65929217, 65781761, 65290241, 65241089, 65077249)
WORDS, BITS = 8, 3
"""How many primes products of words and of single bits take."""
PIECE_BITS = 50
# A ciphertext's scale is q over a prime of 26 bits, so there is room for more than the profile asks.
FLOOD_BITS = 120


@cache
def _slots(n_primes: int) -> Ring:
    return Ring(SHARES.n, SLOT_PRIMES[:n_primes])


def mask_bits(n_primes: int) -> int:
    """How long masks are: the product of the primes is a hundred times as large."""
    return 26 * n_primes - 8


def n_ciphertexts(n_values: int, n_primes: int = WORDS) -> int:
    """How many ciphertexts a vector of `n_values` numbers has."""
    return -(-n_values // SHARES.n) * n_primes


def encrypt(key: PublicKey, vectors: list[Share], n_primes: int = WORDS) -> Residues:
    """The asker's vectors, one after the other, under its own key."""
    return np.concatenate([key.encrypted(_messages(_polynomials(vector, n_primes))) for vector in vectors])


def multiply(key: PublicKey, data: Residues, vectors: list[Share], n_primes: int = WORDS) -> tuple[Residues, Share]:
    """What the asker decrypts, and the helper's share of the sum of products with its own vectors."""
    ring, n_values, count = ring_of(SHARES), len(vectors[0]), n_ciphertexts(len(vectors[0]), n_primes)
    factors = [ring.forward(ring.residues(_polynomials(vector, n_primes))) for vector in vectors]
    pairs = data.reshape(len(vectors), count, 2, len(ring.primes), ring.n)
    total = np.empty((count, 2, len(ring.primes), ring.n), np.uint32)
    for place in range(count):
        own = np.stack([factor.reshape(count, *factor.shape[2:])[place] for factor in factors])[None]
        total[place] = ring.dot(own, np.ascontiguousarray(np.moveaxis(pairs[:, place], 0, 1)))[0]
    stream, shape, slots = Stream(), (count // n_primes, ring.n), _slots(n_primes)
    places = range(0, mask_bits(n_primes), PIECE_BITS)
    words = []
    for place in places:
        width = min(PIECE_BITS, mask_bits(n_primes) - place)
        words.append((stream.words(shape[0] * shape[1]) >> np.uint64(64 - width)).astype(np.int64).reshape(shape))
    mask = slots.combined(words, [2**place for place in places])
    hiding = _messages(_centred(slots.inverse(mask)))
    hiding = ring.add(hiding, ring.flood(stream, (count, ring.n), FLOOD_BITS))
    low = words[0].view(np.uint64) + (words[1].view(np.uint64) << np.uint64(PIECE_BITS))
    return ring.add(total, key.encrypted(hiding)), (np.uint64(0) - low).ravel()[:n_values]


def decrypt(key: SecretKey, data: Residues, n_values: int, n_primes: int = WORDS) -> Share:
    """The asker's share."""
    ring, slots = ring_of(SHARES), _slots(n_primes)
    residues = key.residues(data).reshape(-1, n_primes, len(ring.primes), ring.n)
    weights = np.array([pow(ring.modulus // int(p), -1, int(p)) for p in ring.primes], np.uint64)[:, None]
    terms = residues * weights % ring.primes[:, None]
    primes = slots.primes
    # t y / p with t y below 2^53: exact before the division, and off by 2^-26 after it.
    scaled = (terms * primes[:, None, None]).astype(np.float64) / ring.primes.astype(np.float64)[:, None]
    rounded = (np.rint(scaled.sum(axis=-2)).astype(np.uint64) % primes[:, None]).astype(np.uint32)
    return _low_words(slots.forward(np.ascontiguousarray(rounded))).ravel()[:n_values]


def _polynomials(vector: Share, n_primes: int) -> NDArray[np.int64]:
    """The polynomials (blocks, primes, n) whose values in slots are a vector's numbers, with small coefficients."""
    ring = _slots(n_primes)
    padded = np.zeros((-(-len(vector) // ring.n), ring.n), np.uint64)
    padded.flat[: len(vector)] = vector
    halves = [(padded & np.uint64(0xFFFFFFFF)).astype(np.int64), (padded >> np.uint64(32)).astype(np.int64)]
    return _centred(ring.inverse(ring.combined(halves, [1, 2**32])))


def _centred(residues: Residues) -> NDArray[np.int64]:
    primes = np.array(SLOT_PRIMES[: residues.shape[-2]], np.int64)[:, None]
    wide = residues.astype(np.int64)
    return np.where(wide > primes // 2, wide - primes, wide)


def _messages(polynomials: NDArray[np.int64]) -> Residues:
    """Polynomials (blocks, primes, n) as messages (blocks * primes, L, n): each times q / t, rounded."""
    ring, n_primes = ring_of(SHARES), polynomials.shape[1]
    out = np.empty((len(polynomials), n_primes, len(ring.primes), ring.n), np.uint32)
    for place, t in enumerate(SLOT_PRIMES[:n_primes]):
        whole, rest = divmod(ring.modulus, t)
        some = np.ascontiguousarray(polynomials[:, place])
        out[:, place] = ring.combined([some, (some * rest + t // 2) // t], [whole, 1])
    return out.reshape(-1, *out.shape[2:])


def _low_words(residues: Residues) -> Share:
    """Numbers below a hundredth of the product of all primes, modulo 2^64, from their residues (..., primes, n)."""
    used = SLOT_PRIMES[: residues.shape[-2]]
    product = prod(used)
    primes = np.array(used, np.uint64)[:, None]
    weights = np.array([pow(product // t, -1, t) for t in used], np.uint64)[:, None]
    terms = residues * weights % primes
    wraps = np.rint((terms / primes.astype(np.float64)).sum(axis=-2)).astype(np.uint64)
    cofactors = np.array([product // t % 2**64 for t in used], np.uint64)[:, None]
    total: Share = (terms * cofactors).sum(axis=-2, dtype=np.uint64) - wraps * np.uint64(product % 2**64)
    return total
