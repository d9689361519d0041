"""Public-key RLWE with numbers packed into coefficients: vectors in, sums over rows out.

    key        b = a s + e                              s ternary, e centred binomial
    encrypt    (b u + e0 + m q/t,  a u + e1)            u ternary, fresh; t = 2^53
    decrypt    round((c0 - c1 s) t/q)

A block of k rows is the polynomial d(X) = sum d_i X^i. A block of n/k columns is sum x_if X^(fk - i), so that the
coefficient fk of their product is the sum of x_if d_i, for each of the n/k columns at once. The other coefficients are
sums over wrong pairs; masks hide them too. Before a ciphertext goes to the holder of the key it gets a fresh encryption
of zero, a mask that is uniform modulo t at every coefficient, and a flood that hides the noise; the holder rounds, so
that no noise ever comes back. Lyubashevsky, Peikert, Regev 2010; the packing follows Huang et al. 2022 (Cheetah). The
profile is experimental and unaudited, and all of this is for semi-honest parties.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import sqrt
from typing import Any

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from colonnade.crypto import additive
from colonnade.crypto.packing import n_words, packed, unpacked
from colonnade.crypto.profiles import ARBITER, Profile
from colonnade.crypto.ring import Residues, ring_of
from colonnade.crypto.sampling import SEED_BYTES, Stream
from colonnade.errors import CryptoError, KeyMismatch

# Columns that take more when they are transformed are transformed again for each product.
MOST_CACHED_BYTES = 2**29
_CHUNK_BYTES = 2**26
_AT_ONCE = 16


@dataclass(frozen=True)
class Columns:
    """A matrix for products: its columns in groups, its rows in blocks, transformed where memory allows.

    It may be a sparse one of SciPy; no more of it is ever made dense at once than is transformed at once.
    """

    matrix: Any
    block: int
    cached: Residues | None

    @property
    def n_groups(self) -> int:
        """How many ciphertexts a product has."""
        return int(-(-self.matrix.shape[1] * self.block // ARBITER.n))

    def transformed(self, groups: slice) -> Residues:
        """The polynomials (groups, blocks, L, n) of some groups of columns."""
        if self.cached is not None:
            return self.cached[groups]
        return _polynomials(self.matrix, self.block, groups)


class PublicKey(additive.PublicKey):
    """The key that parties encrypt under; only its `SecretKey` can decrypt.

    >>> secret = SecretKey()
    >>> key = PublicKey.from_bytes(secret.public.to_bytes())
    >>> data = key.encrypt(np.array([1, 2, 3]), block=4096)
    >>> product = key.product(key.prepare(np.array([[1, 0], [1, 0], [1, -5]]), block=4096), data)
    >>> masked, masks = key.masked(product, block=4096, n_values=2)
    >>> from colonnade.crypto.additive import unmasked
    >>> unmasked(secret.decrypt(masked, block=4096, n_values=2), masks).tolist()
    [6, -15]
    """

    coefficients = ARBITER.n

    def __init__(self, b: Residues, seed: bytes, profile: Profile = ARBITER) -> None:
        self.profile, self.scheme, self._ring = profile, profile.name, ring_of(profile)
        self._seed = seed
        self._pair = np.stack([b, _expanded(seed)])
        self.fingerprint = blake3(self.to_bytes()).digest(16)

    def to_bytes(self) -> bytes:
        return b"".join((self.profile.fingerprint, self._seed, packed(self._pair[0]).astype("<u8").tobytes()))

    @classmethod
    def from_bytes(cls, data: bytes, profile: Profile = ARBITER) -> PublicKey:
        """The key that crossed; raises `KeyMismatch` if it belongs to other parameters, or is no key at all."""
        head = len(profile.fingerprint)
        shape = (len(profile.primes), n_words(profile.n))
        if data[:head] != profile.fingerprint or len(data) != head + SEED_BYTES + 8 * shape[0] * shape[1]:
            raise KeyMismatch(
                f"Expected a public key of {profile.name}, got {len(data)} bytes of another kind. "
                "Check that all parties run the same version."
            )
        words = np.frombuffer(data[head + SEED_BYTES :], "<u8").reshape(shape).astype(np.uint64)
        b = unpacked(words, profile.n)
        if (b >= np.array(profile.primes)[:, None]).any() or (b == b[:, :1]).all():
            raise KeyMismatch(
                "Expected a public key whose residues are canonical and random, got one whose are not. "
                "The holder of the key is faulty."
            )
        return cls(b, data[head : head + SEED_BYTES], profile)

    def vector_size(self, n_rows: int, block: int) -> int:
        return -(-n_rows // block)

    def masked_size(self, n_values: int, block: int) -> int:
        return -(-n_values * block // ARBITER.n)

    def packed(self, data: Residues) -> NDArray[np.uint64]:
        return packed(data)

    def unpacked(self, words: NDArray[np.uint64], n_ciphertexts: int, sender: str) -> Residues:
        shape = (n_ciphertexts, 2, len(ARBITER.primes), n_words(ARBITER.n))
        if words.shape != shape:
            raise CryptoError(
                f"Expected {n_ciphertexts} ciphertexts of {self.scheme}, an array of shape {shape}, from {sender}, got "
                f"shape {words.shape}. Check that both parties run the same plan."
            )
        residues = unpacked(words, ARBITER.n)
        if (residues >= self._ring.primes.astype(np.uint32)[:, None]).any():
            raise CryptoError(
                f"Ciphertexts from {sender} should hold residues below their primes and do not. {sender} is faulty."
            )
        if (residues == residues[..., :1]).all(axis=-1).any():
            raise CryptoError(
                f"Ciphertexts from {sender} should look random, but some are constant. {sender} is faulty."
            )
        return residues

    def encrypt(self, values: NDArray[np.int64], block: int, *, coins: bytes | None = None) -> Residues:
        """Encrypt a vector, fresh every time, or with coins that serve these values alone: then a retry is the same."""
        stream = None if coins is None else Stream(coins)
        padded = np.zeros((-(-len(values) // block), ARBITER.n), np.int64)
        padded[:, :block].flat[: len(values)] = values
        out = np.empty((len(padded), *self._pair.shape), np.uint32)
        for some in _portions(len(padded)):
            out[some] = self.encrypted(self._ring.scaled(padded[some], self.profile.message_bits), stream)
        return out

    def add(self, a: Residues, b: Residues) -> Residues:
        return self._ring.add(a, b)

    def prepare(self, matrix: Any, block: int, *, cached: bool = True) -> Columns:
        """A matrix (rows, columns) as `product` needs it, transformed once if it is used many times."""
        bare = Columns(matrix, block, None)
        if not cached:
            return bare
        return Columns(matrix, block, _polynomials(matrix, block, slice(0, bare.n_groups)))

    def product(self, prepared: Columns, data: Residues) -> Residues:
        vector = np.ascontiguousarray(np.moveaxis(data, 1, 0))
        out = np.empty((prepared.n_groups, *vector.shape[:1], *vector.shape[2:]), np.uint32)
        step = max(1, _CHUNK_BYTES // (4 * vector[0].size))
        for start in range(0, prepared.n_groups, step):
            groups = slice(start, min(start + step, prepared.n_groups))
            out[groups] = self._ring.dot(prepared.transformed(groups), vector)
        return out

    def refreshed(self, data: Residues) -> Residues:
        zeros = np.zeros((len(data), *self._pair.shape[1:]), np.uint32)
        return self._ring.add(data, self.encrypted(zeros))

    def masked(
        self, data: Residues, block: int, n_values: int, chosen: NDArray[np.uint64] | None = None
    ) -> tuple[Residues, NDArray[np.uint64]]:
        """The sums plus masks, in ciphertexts that tell the holder of the key nothing else; and the masks.

        Masks are uniform at every coefficient; those of the sums may be chosen, if they were drawn uniformly elsewhere.
        """
        stream, shape, bits = Stream(), (len(data), ARBITER.n), self.profile.message_bits
        masks = (stream.words(shape[0] * shape[1]) >> np.uint64(64 - bits)).reshape(shape)
        if chosen is not None:
            sums = masks[:, ::block].ravel()
            sums[:n_values] = chosen
            masks[:, ::block] = sums.reshape(masks[:, ::block].shape)
        out = np.empty_like(data)
        for some in _portions(len(data)):
            hiding = self._ring.scaled(masks[some].view(np.int64), bits)
            flood = self._ring.flood(stream, masks[some].shape, self.profile.flood_bits)
            out[some] = self._ring.add(data[some], self.encrypted(self._ring.add(hiding, flood)))
        return out, masks[:, ::block].ravel()[:n_values].copy()

    def encrypted(self, messages: Residues, stream: Stream | None = None) -> Residues:
        """Encryptions (K, 2, L, n) of polynomials (K, L, n), with randomness drawn for this call only."""
        stream, ring, count = stream or Stream(), self._ring, len(messages)
        u = ring.forward(ring.small(stream.ternary(count * ring.n).reshape(count, ring.n)))
        errors = ring.small(stream.errors(2 * count * ring.n).reshape(count, 2, ring.n))
        errors[:, 0] = ring.add(errors[:, 0], messages)
        ring.forward(errors)
        return ring.add(errors, ring.dot(u[:, None], self._pair[:, None]))


class SecretKey(additive.SecretKey):
    """The key of the party that may decrypt, expanded from a seed.

    >>> len(SecretKey().public.fingerprint)
    16
    """

    def __init__(self, seed: bytes | None = None, profile: Profile = ARBITER) -> None:
        self._seed = Stream().raw(SEED_BYTES) if seed is None else seed
        ring, stream = ring_of(profile), Stream(self._seed)
        public_seed = stream.raw(SEED_BYTES)
        self._ring = ring
        self._secret = ring.forward(ring.small(stream.ternary(ring.n)))
        error = ring.forward(ring.small(stream.errors(ring.n)))
        b = ring.add(ring.times(_expanded(public_seed), self._secret), error)
        self.public = PublicKey(b, public_seed, profile)

    def to_bytes(self) -> bytes:
        """All of the key, for its owner's own checkpoint: the seed."""
        return self._seed

    @classmethod
    def from_bytes(cls, data: bytes, profile: Profile = ARBITER) -> SecretKey:
        """The key that `to_bytes` wrote down."""
        return cls(data, profile)

    def decrypt(self, data: Residues, block: int, n_values: int) -> NDArray[np.uint64]:
        out = np.empty((len(data), ARBITER.n // block), np.uint64)
        for some in _portions(len(data)):
            out[some] = self.decrypted(data[some])[0][:, ::block]
        return out.ravel()[:n_values]

    def decrypted(self, data: Residues) -> tuple[NDArray[np.uint64], NDArray[np.float64]]:
        """All coefficients of ciphertexts, and how far each was from an integer, which nobody else may learn."""
        return self._ring.rounded(self.residues(data), self.public.profile.message_bits)

    def residues(self, data: Residues) -> Residues:
        """The coefficients of ciphertexts before they are rounded: messages with their noise."""
        message = self._ring.subtract(data[:, 0], self._ring.times(data[:, 1], self._secret))
        return self._ring.inverse(np.ascontiguousarray(message))


def _portions(n_ciphertexts: int) -> Iterator[slice]:
    """Ciphertexts in portions: what is drawn for one takes several times its memory."""
    for start in range(0, n_ciphertexts, _AT_ONCE):
        yield slice(start, min(start + _AT_ONCE, n_ciphertexts))


def rows_per_block(n_rows: int, n_columns: int) -> int:
    """How many rows to put into one ciphertext, for the fewest ciphertexts in all.

    >>> rows_per_block(4096, 20), rows_per_block(4096, 300)
    (2048, 512)
    """
    sizes: list[int] = [1 << power for power in range(ARBITER.n.bit_length())]
    return min(sizes, key=lambda block: (2 * -(-n_rows // block) + -(-n_columns * block // ARBITER.n), -block))


def fits_cache(n_entries: int) -> bool:
    """Whether matrices with this number of entries in all may be kept transformed."""
    return n_entries * len(ARBITER.primes) * 4 <= MOST_CACHED_BYTES


def noise(n_parties: int, squares: float, total: float) -> float:
    """The root mean square of the noise in a product, below the flood.

    Args:
        n_parties: How many encryptions were added up.
        squares: The sum of the squares of a column.
        total: The sum of the absolute values of a column; each encoding is off by at most 3.
    """
    fresh = 10.5 * (4 * ARBITER.n / 3 + 1)
    return sqrt(n_parties * fresh * squares + fresh) + 3 * n_parties * total


def _expanded(seed: bytes) -> Residues:
    """The public polynomial a of a key, transformed; uniform is uniform."""
    ring = ring_of(ARBITER)
    return Stream(seed).residues((ring.n,), ring.primes)


def _polynomials(matrix: Any, block: int, groups: slice) -> Residues:
    """The transformed polynomials (groups, blocks, L, n) of some groups of columns."""
    ring, width = ring_of(ARBITER), ARBITER.n // block
    columns = matrix[:, groups.start * width : groups.stop * width]
    n_blocks, n_groups = -(-columns.shape[0] // block), groups.stop - groups.start
    padded = np.zeros((n_blocks * block, n_groups * width), np.int64)
    dense = columns if isinstance(columns, np.ndarray) else columns.toarray()
    padded[: dense.shape[0], : dense.shape[1]] = dense
    # Exponents fk - i: each column backwards, all of it moved down by k - 1, and what falls below 0 comes in negated.
    backwards = padded.reshape(n_blocks, block, n_groups, width)[:, ::-1].transpose(2, 0, 3, 1)
    flat = backwards.reshape(n_groups, n_blocks, ARBITER.n)
    rolled = np.concatenate([flat[..., block - 1 :], -flat[..., : block - 1]], axis=-1)
    return ring.forward(ring.residues(rolled))
