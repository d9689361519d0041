"""Hinted RLWE: a private fixed 0/1 matrix times private fresh vectors, by plain additions.

    once      both expand public a_1 ... a_m and a' from nonces of both
    holder    w_S = sum of a_j times row S;  sends the hint  w_S + u_S a' + e_S               for each row S, upper half
    asker     draws a fresh s; sends  b_j = a_j s + e_j + 2^67 m_j  and  b' = a' s + e'        for each vector m
    holder    adds up b over row S; sends the sum + (u_S b')_0 + flood                         one number per row
    asker     subtracts (hint s)_0 and rounds: the exact sum of m over row S

The asker learns the sums and nothing else; the holder learns nothing. For semi-honest parties: the argument rests on
RLWE and on the flood, is ours, and has not been reviewed. An asker that lies can read memberships out of honest
answers. The lower 52 bits of a hint are not sent: that halves it, tells less, and adds at most 2^63 to the noise. Never
reuse s: a repeated query is answered with the same bytes, a changed one needs a new number. The idea of
the hint is that of SimplePIR (Henzinger et al. 2023); masks and flood are added because here the matrix is private too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from hmac import compare_digest
from math import prod
from typing import Any, NoReturn, Protocol

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from colonnade.crypto.budget import Budget
from colonnade.crypto.packing import n_words, packed, unpacked
from colonnade.crypto.profiles import HISTOGRAM, Profile
from colonnade.crypto.ring import Residues, Ring, ring_of
from colonnade.crypto.sampling import SEED_BYTES, Stream
from colonnade.errors import CryptoError, KeyMismatch, Overflow

# The absolute values of a vector sum to at most this; twice as much would still decrypt.
MOST_TOTAL = 2**35
# No honest noise below the flood exceeds this, even with errors that are as large as they can be: their own part, and
# what the lower halves of hints are off by, 2^51 for each of the 4,096 coefficients.
_MOST_NOISE = 2**24 + 2**63
_DROPPED_BITS = 52
_ROWS_AT_ONCE = 256


def commitment(nonce: bytes) -> bytes:
    """What each party says of its nonce before it has seen the other's."""
    return blake3(nonce, derive_key_context="colonnade.crypto.hinted commitment").digest()


def joint_seed(nonces: Mapping[str, bytes], commitments: Mapping[str, bytes], profile: Profile = HISTOGRAM) -> bytes:
    """The seed of the public polynomials, which no party could choose alone.

    Raises:
        KeyMismatch: A party revealed another nonce than the one it had committed to.
    """
    for name, nonce in nonces.items():
        if len(nonce) != SEED_BYTES or not compare_digest(commitment(nonce), commitments[name]):
            raise KeyMismatch(
                f"{name} should reveal the {SEED_BYTES} bytes it committed to, but revealed others. "
                "Start the run anew; if it happens again, do not trust this party."
            )
    parts = [profile.fingerprint] + [commitment(nonces[name]) + nonces[name] for name in sorted(nonces)]
    return blake3(b"".join(parts), derive_key_context="colonnade.crypto.hinted seed").digest()


class PublicMatrix:
    """The public polynomials of one training, transformed; every party expands them itself."""

    def __init__(self, seed: bytes, n_columns: int, profile: Profile = HISTOGRAM) -> None:
        if n_columns > profile.most_rows:
            raise Overflow(
                f"{profile.name} takes vectors of at most {profile.most_rows} numbers, got {n_columns}. "
                "Train on fewer rows."
            )
        self.profile, self.n_columns, self.ring = profile, n_columns, ring_of(profile)
        self.n_blocks = -(-n_columns // profile.n)
        expanded = Stream(seed).residues((self.n_blocks + 1, profile.n), self.ring.primes)
        self.blocks, self.key = expanded[:-1], expanded[-1]


class Rows(Protocol):
    """A private 0/1 matrix that knows how to add up over its rows."""

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""

    def hints(self, public: PublicMatrix) -> Residues:
        """For each row the sum of the public polynomials times the row, transformed: (R, L, n)."""

    def sums(self, values: NDArray[np.uint32]) -> NDArray[np.uint64]:
        """For each row the sums of numbers (columns, C): (R, C)."""


@dataclass(frozen=True)
class Indicators:
    """A 0/1 matrix as it is: small, or irregular.

    >>> Indicators(np.array([[True, False, True]])).sums(np.array([[1], [2], [4]], np.uint32)).tolist()
    [[5]]
    """

    matrix: NDArray[np.bool_]

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        rows, columns = self.matrix.shape
        return rows, columns

    def hints(self, public: PublicMatrix) -> Residues:
        """For each row the sum of the public polynomials times the row, transformed: (R, L, n)."""
        return np.concatenate([_row_hints(public, row[None]) for row in self.matrix])

    def sums(self, values: NDArray[np.uint32]) -> NDArray[np.uint64]:
        """For each row the sums of numbers (columns, C): (R, C)."""
        return self.matrix.astype(np.uint64) @ values.astype(np.uint64)


@dataclass(frozen=True)
class CumulativeBins:
    """Columns cut into bins: row (feature, bin) is 1 where the feature's value is in this bin or one before it.

    >>> bins = CumulativeBins(np.array([[0, 2, 1]], np.uint8), 3)
    >>> bins.sums(np.array([[1], [2], [4]], np.uint32)).tolist()
    [[1], [5], [7]]
    """

    codes: NDArray[Any]  # (features, columns), unsigned
    n_bins: int

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return len(self.codes) * self.n_bins, self.codes.shape[1]

    def hints(self, public: PublicMatrix) -> Residues:
        """For each row the sum of the public polynomials times the row, transformed: (R, L, n)."""
        parts = []
        for codes in self.codes:
            single = np.concatenate([_row_hints(public, codes[None] == bin) for bin in range(self.n_bins)])
            for bin in range(1, self.n_bins):
                single[bin] = public.ring.add(single[bin], single[bin - 1])
            parts.append(single)
        return np.concatenate(parts)

    def sums(self, values: NDArray[np.uint32]) -> NDArray[np.uint64]:
        """For each row the sums of numbers (columns, C): (R, C)."""
        from colonnade.crypto import kernels

        out = np.zeros((len(self.codes), self.n_bins, values.shape[1]), np.uint64)
        kernels.histogram(self.codes, values, out)
        return np.cumsum(out, axis=1, dtype=np.uint64).reshape(self.shape[0], -1)


def _row_hints(public: PublicMatrix, rows: NDArray[np.bool_]) -> Residues:
    """Sums of public polynomials over 0/1 rows (R, columns), each as the polynomial with X^-i at i."""
    ring, n = public.ring, public.profile.n
    padded = np.zeros((len(rows), public.n_blocks * n), np.int8)
    padded[:, : rows.shape[1]] = rows
    blocks = padded.reshape(len(rows), public.n_blocks, n)
    present = blocks.any(axis=(0, 2))
    if not present.any():
        return np.zeros((len(rows), len(ring.primes), n), np.uint32)
    polynomials = ring.forward(ring.small(_mirrored(blocks[:, present])))
    return ring.dot(polynomials, public.blocks[None, present])[:, 0]


class Holder:
    """The side of the private matrix: gives hints once per training, then answers queries.

    Args:
        rows: The matrix.
        public: The public polynomials that both parties expanded.
        budget: What the peer may still be answered about this data.
        shuffled: Whether rows are put into a secret order, so that answers do not say which is which.
    """

    def __init__(self, rows: Rows, public: PublicMatrix, budget: Budget, *, shuffled: bool = True) -> None:
        assert rows.shape[1] == public.n_columns
        self._rows, self._public, self.budget = rows, public, budget
        self._bare = rows.hints(public)
        self._shuffled, self._masks = shuffled, np.zeros((0, public.profile.n), np.int8)
        self.order = np.arange(rows.shape[0])
        self._last, self._digest, self._answer = -1, b"", np.zeros(0, np.uint64)

    def hint(self) -> NDArray[np.uint64]:
        """A hint for every row, re-randomised and in a new order, halved. Queries so far become worthless."""
        stream, ring, (count, n) = Stream(), self._public.ring, (len(self._bare), self._public.profile.n)
        if self._shuffled:
            self.order = stream.permutation(count)
        self._masks = stream.ternary(count * n).reshape(count, n)
        out = np.empty_like(self._bare)
        for start in range(0, count, _ROWS_AT_ONCE):
            some = slice(start, start + _ROWS_AT_ONCE)
            masked = ring.times(ring.forward(ring.small(self._masks[some])), self._public.key)
            hidden = ring.inverse(ring.add(masked, self._bare[self.order[some]]))
            errors = stream.errors(hidden.shape[0] * n).reshape(-1, n)
            out[some] = ring.add(hidden, ring.small(errors))
        return halved(ring, out)

    def answer(self, number: int, query: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """The flooded sums (R, Q, L) over every row, for each vector of a query, packed.

        A query that comes again gets the same bytes; another one needs a higher number.
        """
        digest = blake3(np.ascontiguousarray(query).tobytes()).digest()
        if number == self._last and compare_digest(digest, self._digest):
            return self._answer
        sums = self._sums(number, query)
        ring, profile = self._public.ring, self._public.profile
        self.budget.spend(sums.shape[0] * sums.shape[1])
        flood = ring.flood(Stream(), sums.shape[:2], profile.flood_bits)
        total = (sums + np.moveaxis(flood, -2, -1)) % ring.primes
        self._last, self._digest, self._answer = number, digest, packed(total.astype(np.uint32).ravel())
        return self._answer

    def shared(self, number: int, query: NDArray[np.uint64]) -> tuple[NDArray[np.uint64], Residues]:
        """The sums hidden altogether: what the asker gets, and this side's share (R, Q, L) of 2^67 times the sums.

        The mask is uniform in Z_q, so this costs no budget; the shares are off by the noise, which is below 2^64.
        """
        sums, ring = self._sums(number, query), self._public.ring
        masks = np.moveaxis(Stream().residues(sums.shape[:2], ring.primes), -2, -1)
        self._last, self._digest = number, b""
        own = (ring.primes - masks) % ring.primes
        return packed(((sums + masks) % ring.primes).astype(np.uint32).ravel()), own.astype(np.uint32)

    def state(self) -> dict[str, Any]:
        """What must survive a restart besides the budget: the numbers of queries; never a hint or a mask."""
        return {"last": self._last}

    def restore(self, tree: Mapping[str, Any]) -> None:
        """Go back to what `state` said; a new hint is needed before the next answer."""
        self._last = tree["last"]

    def _sums(self, number: int, query: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """The sums over rows plus (u_S b')_0, before any flood: (R, Q, L)."""
        public, ring = self._public, self._public.ring
        shape = (public.n_blocks + 1, len(ring.primes), n_words(ring.n))
        if not len(self._masks):
            raise CryptoError("A query came before a hint was given. Give the hint first.")
        if number <= self._last:
            raise CryptoError(
                f"Expected a query with a number above {self._last}, got {number}. A changed query needs a new number."
            )
        if query.ndim != 4 or query.shape[1:] != shape:
            raise CryptoError(f"Expected a query of shape (Q, {shape}), got {query.shape}. Check the number of rows.")
        residues = unpacked(query, ring.n)
        if (residues >= ring.primes.astype(np.uint32)[:, None]).any():
            raise CryptoError("A query should hold residues below their primes and does not. The asker is faulty.")
        if (residues == residues[..., :1]).all(axis=-1).any():
            raise CryptoError("A query should look random, but part of it is constant. The asker is faulty.")
        n_queries = len(residues)
        by_column = np.ascontiguousarray(residues[:, :-1].transpose(1, 3, 0, 2)).reshape(-1, n_queries * shape[1])
        sums = self._rows.sums(by_column[: public.n_columns])[self.order] % np.tile(ring.primes, n_queries)
        key = _mirrored(residues[:, -1].astype(np.float64)).reshape(n_queries * shape[1], ring.n).T
        total = np.empty(sums.shape, np.int64)
        for start in range(0, len(sums), _ROWS_AT_ONCE):
            # Exact: 26 bits times 4,096 terms is far below the 53 bits of a double.
            total[start : start + _ROWS_AT_ONCE] = self._masks[start : start + _ROWS_AT_ONCE].astype(np.float64) @ key
        total += sums.astype(np.int64)
        out: NDArray[np.int64] = total.reshape(len(sums), n_queries, shape[1]) % ring.primes.astype(np.int64)
        return out.astype(np.uint64)


@dataclass(frozen=True)
class Query:
    """A numbered question, ready to be sent; sending it again is sending these bytes again."""

    number: int
    data: NDArray[np.uint64] = field(repr=False)


class Asker:
    """The side of the private vectors: encrypts each under a secret of its own and reads the answer once."""

    def __init__(self, public: PublicMatrix, hint: NDArray[np.uint64], *, first: int = 0) -> None:
        self._public, self.hint, self.next = public, restored(public.ring, hint), first
        self._pending: dict[int, tuple[NDArray[np.int8], NDArray[np.int64]]] = {}

    def __reduce__(self) -> NoReturn:
        raise CryptoError("An asker holds secrets of open queries and cannot be copied. Make a new one from the hint.")

    def ask(self, vectors: NDArray[np.int64]) -> Query:
        """Encrypt vectors (Q, columns), each under a fresh secret.

        Raises:
            Overflow: The absolute values of a vector sum to more than 2^35.
        """
        public, ring, profile = self._public, self._public.ring, self._public.profile
        totals = np.abs(vectors).astype(object).sum(axis=1)
        if any(total > MOST_TOTAL for total in totals):
            raise Overflow(
                f"The absolute values of an encrypted vector may sum to {MOST_TOTAL}, but those of one sum to more. "
                "Quantise to fewer bits or train on fewer rows."
            )
        count, n, stream = len(vectors), profile.n, Stream()
        secrets = stream.ternary(count * n).reshape(count, n)
        transformed = ring.forward(ring.small(secrets))
        padded = np.zeros((count, public.n_blocks * n), np.int64)
        padded[:, : vectors.shape[1]] = vectors
        messages = padded.reshape(count, public.n_blocks, n)
        out = np.empty((count, public.n_blocks + 1, len(ring.primes), n), np.uint32)
        for query in range(count):
            out[query, :-1] = ring.times(public.blocks, transformed[query])
            out[query, -1] = ring.times(public.key, transformed[query])
        ring.inverse(out)
        for query in range(count):
            errors = stream.errors((public.n_blocks + 1) * n).reshape(-1, n)
            out[query] = ring.add(out[query], ring.small(errors))
            scaled = ring.combined([messages[query]], [2**profile.scale_bits])
            out[query, :-1] = ring.add(out[query, :-1], scaled)
        number, self.next = self.next, self.next + 1
        self._pending[number] = secrets, totals.astype(np.int64)
        return Query(number, packed(out))

    def read(self, number: int, answer: NDArray[np.uint64]) -> NDArray[np.int64]:
        """The sums (R, Q) in an answer; its query is then over.

        Raises:
            CryptoError: The answer is none that an honest holder gives.
        """
        secrets, totals = self._taken(number)
        numbers = self._public.ring.integers(np.moveaxis(self._opened(secrets, answer), -1, -2))
        scale = 2**self._public.profile.scale_bits
        sums = (numbers + scale // 2) // scale
        rests = np.abs(numbers - sums * scale)
        if (rests > scale * 3 // 8 + _MOST_NOISE).any() or (np.abs(sums) > totals).any():
            raise CryptoError(
                "An encrypted answer should be a possible sum with noise within its bound and is not. "
                "The holder is faulty; stop the run."
            )
        return np.asarray(sums, np.int64)

    def share(self, number: int, answer: NDArray[np.uint64]) -> Residues:
        """This side's share (R, Q, L) of 2^67 times the sums, where the holder answered with `shared`."""
        return self._opened(self._taken(number)[0], answer)

    def _taken(self, number: int) -> tuple[NDArray[np.int8], NDArray[np.int64]]:
        if number not in self._pending:
            raise CryptoError(
                f"Expected the answer to an open query, got one to number {number}, which is read or was never asked. "
                "Ask anew under a new number."
            )
        return self._pending.pop(number)

    def _opened(self, secrets: NDArray[np.int8], answer: NDArray[np.uint64]) -> Residues:
        ring = self._public.ring
        limbs = len(ring.primes)
        shape = (len(self.hint), len(secrets), limbs)
        if answer.shape != (n_words(prod(shape)),):
            raise CryptoError(f"Expected an answer for {len(self.hint)} rows, got an array of shape {answer.shape}.")
        residues = unpacked(answer, prod(shape)).reshape(shape).astype(np.int64)
        mirrored = _mirrored(secrets).astype(np.float64).T
        out = np.empty(residues.shape, np.uint32)
        for start in range(0, len(residues), _ROWS_AT_ONCE):
            some = slice(start, start + _ROWS_AT_ONCE)
            for limb in range(limbs):
                product = self.hint[some, limb].astype(np.float64) @ mirrored
                out[some, :, limb] = (residues[some, :, limb] - product.astype(np.int64)) % int(ring.primes[limb])
        return out


def _mirrored(polynomials: NDArray[Any]) -> NDArray[Any]:
    """P(1/X): coefficient 0 of a product with it is an inner product."""
    return np.concatenate([polynomials[..., :1], -polynomials[..., :0:-1]], axis=-1)


def halved(ring: Ring, hints: Residues) -> NDArray[np.uint64]:
    """The upper halves of hints (R, 4, n), packed: (R, 2, n_words(n))."""
    from colonnade.crypto import kernels

    upper = np.empty((len(hints), ring.n), np.uint64)
    primes = [int(p) for p in ring.primes]
    inverses = [[0 if p == other else pow(p, -1, other) for other in primes] for p in primes]
    kernels.high_halves(hints, ring.primes, np.array(inverses, np.uint64), upper)
    digits = np.stack([upper & np.uint64(2**26 - 1), upper >> np.uint64(26)], axis=1)
    return packed(digits.astype(np.uint32))


def restored(ring: Ring, words: NDArray[np.uint64]) -> Residues:
    """Hints (R, L, n) from their upper halves, each coefficient off by at most 2^51."""
    if words.ndim != 3 or words.shape[1:] != (2, n_words(ring.n)):
        raise CryptoError(
            f"Expected hints in halves of {n_words(ring.n)} words, got an array of shape {words.shape}. "
            "Check that both parties run the same version."
        )
    digits = unpacked(words, ring.n).astype(np.int64)
    upper = digits[:, 0] + (digits[:, 1] << 26)
    return ring.combined([upper, np.ones_like(upper)], [2**_DROPPED_BITS, 2 ** (_DROPPED_BITS - 1)])
