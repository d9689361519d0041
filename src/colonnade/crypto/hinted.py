"""Hinted RLWE: sums of private numbers over the bins of private columns, by plain additions.

    once       everybody expands public a_1 ... a_m and a' from nonces of all parties
    holder     w_S = sum of a_j over the rows in bin S;  sends the hint  w_S + u_S a' + e_S,  divided by p_0
    asker      draws fresh s, e;  sends the key  b' = a' s + e'                                 ahead of any message
    holder     (u_S b')_0 for every bin S                                                       ahead of any query
    asker      the pads  a_j s + e_j  and, for each holder,  (hint s)_0                         ahead of any message
    asker      sends  b_j = a_j s + e_j + p_0 2^17 m_j                                          one number per row
    holder     adds up b over bin S;  sends  the sum + (u_S b')_0 + flood,  divided by p_0      one number per bin
    asker      subtracts (hint s)_0 and rounds: the exact sums of m over bin S

A number m holds four slots of 33 bits, gradient and hessian of two nodes, or two slots of 60 bits for more than 2^20
rows (`Slots`). Where sums stay hidden, it holds two slots of 64 bits and is encrypted as the number nearest to
q m / 2^128, and a mask that is uniform in Z_q takes the place of the flood: both sides then have shares of the sums
modulo 2^64, off by a few units. One query serves several holders, each with its own hint. The last bin of a column is
left out: the asker knows the sum over all bins. The asker learns the sums and nothing else; the holder learns nothing.
For semi-honest parties: the argument rests on RLWE and on the flood, is ours, and has not been reviewed. An asker that
lies can read memberships out of honest answers. Dividing by the first prime p_0 is post-processing: it saves a quarter
of the bytes, tells less, and adds at most 2^12 to a noise that has room up to 2^14 besides the flood.

Never reuse s: a repeated query is answered with the same bytes, a changed one needs a new number. What is prepared
ahead depends on secrets only, serves once, stays in the memory of the process that drew it, and is never written down.
After a crash everything is drawn again; numbers may then begin at an earlier checkpoint's, since secrets are fresh. The
idea of the hint is that of SimplePIR (Henzinger et al. 2023); masks and flood are added because here the bins are
private too.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hmac import compare_digest
from math import prod, sqrt
from pathlib import Path
from typing import Any, NoReturn, TypeAlias

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from colonnade.crypto.engines import engine_of
from colonnade.crypto.histograms import BinnedColumns, kept_hints
from colonnade.crypto.packing import n_words, packed, unpacked_wide
from colonnade.crypto.placed_bins import adding_up
from colonnade.crypto.profiles import HISTOGRAM, Budget, Profile
from colonnade.crypto.sampling import SEED_BYTES, Stream
from colonnade.crypto.shares import Share
from colonnade.crypto.wide import PRIME_BITS, Float64Array, mirrored, wide_ring_of
from colonnade.errors import CryptoError, KeyMismatch, Overflow

# No honest noise below the flood exceeds this after the division by p_0: errors, which are far below p_0, what hints
# are off by, 1/2 for each of 8,192 coefficients, and the last rounding.
_MOST_NOISE = 2**12 + 2
_ROWS_AT_ONCE = 32
_ROWS_LOOKED_AT = 256
MOST_KEYS = 2**12
"""How many queries may be prepared ahead."""
# Shared numbers are two words of 64 bits.
_SHARED_BITS = 128
MOST_ROWS_IN_FOUR_SLOTS = 2**20
_Whole: TypeAlias = NDArray[np.int64]


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
                "Start the run again; if it happens again, do not trust this party."
            )
    parts = [profile.fingerprint] + [commitment(nonces[name]) + nonces[name] for name in sorted(nonces)]
    return blake3(b"".join(parts), derive_key_context="colonnade.crypto.hinted seed").digest()


def noise(n_rows: int, profile: Profile = HISTOGRAM) -> float:
    """The root mean square of the noise below the flood."""
    return sqrt(10.5 * n_rows + 14 * profile.n)


class PublicMatrix:
    """The public polynomials of one training, transformed; every party expands them itself."""

    def __init__(self, seed: bytes, n_rows: int, profile: Profile = HISTOGRAM) -> None:
        if n_rows > profile.most_rows:
            raise Overflow(
                f"{profile.name} takes vectors of at most {profile.most_rows} numbers, got {n_rows}. "
                "Train on fewer rows."
            )
        self.seed, self.profile, self.n_rows, self.ring = seed, profile, n_rows, wide_ring_of(profile)
        self.n_blocks = -(-n_rows // profile.n)
        drawn = Stream(seed).wide_residues((self.n_blocks + 1, profile.n), self.ring.limits)
        expanded = self.ring.centred(drawn)
        self.blocks, self.key = expanded[:-1], expanded[-1].copy()

    def drop_blocks(self) -> None:
        """Let go of the polynomials of rows, which a holder needs for its hints alone."""
        self.blocks = self.blocks[:0].copy()

    @property
    def most_values(self) -> int:
        """How many values may be answered about a data set of these rows."""
        return self.profile.values_within(noise(self.n_rows, self.profile))


@dataclass(frozen=True)
class Slots:
    """How the sums of some nodes share one encrypted number.

    Attributes:
        nodes: How many nodes one number serves; each has a slot for gradients and one for hessians.
        bits: How many bits a slot has.
        most_total: What the absolute values of all gradients, and all hessians, sum to at most.
    """

    nodes: int
    bits: int
    most_total: int

    @classmethod
    def of(cls, n_rows: int, *, shared: bool = False) -> Slots:
        """The layout that everybody derives from the number of rows.

        >>> Slots.of(100_000).nodes, Slots.of(10_000_000).nodes
        (2, 1)
        """
        if shared:
            return cls(1, 64, 2**44)
        # Below 2^20 rows four slots leave each number 12 bits at least, which finds the same splits.
        return cls(2, 33, 2**32 - 1) if n_rows <= MOST_ROWS_IN_FOUR_SLOTS else cls(1, 60, 2**44)

    def n_numbers(self, n_nodes: int) -> int:
        """How many encrypted numbers `n_nodes` nodes take."""
        return -(-n_nodes // self.nodes)


class Messages:
    """Gradients and hessians of all rows as they are encrypted, in each place that a node may have in a number.

    Args:
        public: The public polynomials.
        g: Whole-number gradients.
        h: Whole-number hessians.
        shared: Whether the sums will be shared instead of read.
        reach: How far noise that holders add may reach, for gradients and for hessians.

    Raises:
        Overflow: The absolute values sum to more than a slot holds.
    """

    def __init__(
        self, public: PublicMatrix, g: _Whole, h: _Whole, *, shared: bool = False, reach: tuple[int, int] = (0, 0)
    ) -> None:
        from colonnade.crypto import wide_kernels

        self.slots, ring = Slots.of(public.n_rows, shared=shared), public.ring
        self.totals = int(np.abs(g).sum()) + reach[0], int(np.abs(h).sum()) + reach[1]
        if max(self.totals) > self.slots.most_total:
            raise Overflow(
                f"The absolute values of an encrypted vector may sum to {self.slots.most_total}, but those of one sum "
                "to more. Quantise to fewer bits or train on fewer rows."
            )
        whole_g, whole_h = np.ascontiguousarray(g, np.float64), np.ascontiguousarray(h, np.float64)
        scales = [public.profile.scale << self.slots.bits * slot for slot in range(2 * self.slots.nodes)]
        rests = np.zeros(public.n_rows)
        if shared:
            # q g / 2^128 + q h / 2^64: what is left of q by the shifts comes after the point.
            places = (_SHARED_BITS, _SHARED_BITS // 2)
            scales = [ring.modulus >> place for place in places]
            after = [(ring.modulus % 2**place) / 2**place for place in places]
            rests = np.rint(whole_g * after[0] + whole_h * after[1])
        primes = [int(p) for p in ring.limits]
        centred = np.array([[scale % p - (p if scale % p > p // 2 else 0) for p in primes] for scale in scales], float)
        factors = np.ascontiguousarray(centred.reshape(self.slots.nodes, 2, len(primes)).transpose(0, 2, 1))
        self.residues = np.empty((self.slots.nodes, len(primes), public.n_rows))
        wide_kernels.encode(
            whole_g, whole_h, rests, factors, factors / ring.primes[:, None], ring.primes, self.residues
        )


@dataclass(frozen=True)
class Keys:
    """What a holder gets of some queries before there are any: the keys b', packed, and the first one's number."""

    first: int
    data: NDArray[np.uint64] = field(repr=False)


@dataclass(frozen=True)
class Query:
    """Encrypted numbers, ready to be sent; sending them again is sending these bytes again.

    Attributes:
        first: The number of the first; the others follow.
        words: The first 192 bits of each row's residues (numbers, 3, rows).
        tails: The last 8 bits (numbers, rows).
    """

    first: int
    words: NDArray[np.uint64] = field(repr=False)
    tails: NDArray[np.uint8] = field(repr=False)

    def repeated_by(self, other: Query) -> bool:
        """Whether another query is this one sent again."""
        same = self.first == other.first and np.array_equal(self.words, other.words)
        return same and np.array_equal(self.tails, other.tails)


class Holder:
    """The side of the private bins: gives hints once per training, then answers queries.

    Args:
        bins: The private columns.
        public: The public polynomials that all parties expanded.
        budget: What the peer may still be answered about this data; see `PublicMatrix.most_values`.
        folder: Where bare hints are kept over restarts of one training, readable by their owner only; None keeps them
            nowhere. They tell the bins, so the folder is as private as the table.
        device: What adds up: "cpu", "cuda", or "auto" for a GPU where there is one.
    """

    def __init__(
        self,
        bins: BinnedColumns,
        public: PublicMatrix,
        budget: Budget,
        *,
        folder: Path | None = None,
        device: str = "cpu",
    ) -> None:
        assert bins.n_rows == public.n_rows
        self._bins, self._public, self.budget = bins, public, budget
        self.narrow(None)
        self._bare = kept_hints(bins, public.ring, public.blocks, public.seed + public.profile.fingerprint, folder)
        self._masks = np.zeros((0, 0), np.uint8)
        self._keyed: dict[int, NDArray[np.int64]] = {}
        self._add_up = adding_up(bins, device)
        self._last = -1
        self._answered: tuple[Query, tuple[NDArray[np.uint64], Share]] | None = None

    def __reduce__(self) -> NoReturn:
        raise CryptoError("A holder has the masks of its hints and cannot be copied. Make a new one from the bins.")

    def hint(self) -> NDArray[np.uint64]:
        """A hint for every bin, re-randomised, divided by the first prime and packed. Keys so far become worthless."""
        stream, ring, n = Stream(), self._public.ring, self._public.profile.n
        count = len(self._bare)
        masks = stream.ternary(count * n).reshape(count, n)
        self._masks, self._keyed = _by_threes(masks), {}
        out = np.empty((count, len(ring.primes) - 1, n_words(n, PRIME_BITS)), np.uint64)
        for start in range(0, count, _ROWS_AT_ONCE):
            some = slice(start, start + _ROWS_AT_ONCE)
            hidden = ring.times(ring.forward(ring.small(masks[some])), self._public.key)
            # Two centred numbers are within what a transform may begin with.
            hidden += self._bare[some]
            hinted = ring.with_errors(ring.inverse(hidden), stream)
            out[some] = packed(ring.canonical(ring.rescaled(hinted)), PRIME_BITS)
        return out

    def narrow(self, columns: NDArray[np.bool_] | None) -> None:
        """Answer for some columns only from now on; None for all."""
        columns = np.ones(len(self._bins.widths), np.bool_) if columns is None else columns
        self.told = self._bins if columns.all() else self._bins.narrowed(columns)
        self._some = self._bins.sums_of(columns)

    def drop(self, before: int) -> None:
        """Forget the keys of queries with lower numbers, which will not come."""
        self._keyed = {number: products for number, products in self._keyed.items() if number >= before}

    def prepare(self, keys: Keys) -> None:
        """Multiply the masks by the keys of queries that will come."""
        ring, n = self._public.ring, self._public.profile.n
        limbs = len(ring.primes)
        if not len(self._masks):
            raise CryptoError("Keys came before a hint was given. Give the hint first.")
        if keys.data.dtype != np.uint64 or keys.data.shape[1:] != (limbs, n_words(n, PRIME_BITS)):
            raise CryptoError(
                f"Expected keys of shape (Q, {limbs}, {n_words(n, PRIME_BITS)}), got {keys.data.shape}. "
                "Check that both parties run the same version."
            )
        if len(self._keyed) + len(keys.data) > MOST_KEYS:
            raise CryptoError(
                f"Expected at most {MOST_KEYS} keys of queries that are still to come, but {len(self._keyed)} wait and "
                f"{len(keys.data)} more came. Prepare fewer queries ahead."
            )
        residues = unpacked_wide(keys.data, n, PRIME_BITS)
        if (residues >= ring.limits[:, None]).any():
            raise CryptoError("A key should hold residues below their primes and does not. The asker is faulty.")
        if (residues == residues[..., :1]).all(axis=-1).any():
            raise CryptoError("A key should look random, but part of it is constant. The asker is faulty.")
        if keys.first <= self._last:
            raise CryptoError(f"Expected keys of queries above number {self._last}, got {keys.first}. Draw new ones.")
        numbers = mirrored(ring.centred(residues)).reshape(-1, n).T
        products = _ternary_products(self._masks, numbers).reshape(-1, len(residues), limbs)
        products %= ring.limits.astype(np.int64)
        self._keyed |= {keys.first + i: np.ascontiguousarray(products[:, i]) for i in range(len(residues))}

    def answer(self, query: Query) -> NDArray[np.uint64]:
        """The flooded sums over every bin that is told, for each number of a query: (sums, L - 1, Q) residues, packed.

        A query that comes again gets the same bytes; another one needs higher numbers.
        """
        return self._replied(query, self._flooded, n_values=self.told.n_sums * len(query.words))[0]

    def share(self, query: Query) -> tuple[NDArray[np.uint64], Share]:
        """The sums hidden altogether: what the asker gets, and this side's shares (Q, sums, 2) of the sums.

        The mask is uniform in Z_q, so this costs no budget.
        """
        return self._replied(query, self._masked, n_values=0)

    def _replied(
        self,
        query: Query,
        hide: Callable[[NDArray[np.uint64], NDArray[np.int64]], tuple[Float64Array, Share]],
        *,
        n_values: int,
    ) -> tuple[NDArray[np.uint64], Share]:
        if self._answered is not None and self._answered[0].repeated_by(query):
            return self._answered[1]
        self._check(query)
        if n_values:
            self.budget.spend(n_values)
        sums = self._add_up(self.told, query.words, query.tails, self._public.ring.limits)
        # A key serves once.
        keyed = np.stack([self._keyed.pop(query.first + i)[self._some] for i in range(len(query.words))], axis=1)
        hidden, own = hide(sums, keyed)
        ring = self._public.ring
        reply = packed(ring.canonical(ring.rescaled(hidden)).reshape(-1), PRIME_BITS), own
        self._last, self._answered = query.first + len(query.words) - 1, (query, reply)
        return reply

    def state(self) -> dict[str, Any]:
        return {"last": self._last}

    def restore(self, tree: Mapping[str, Any]) -> None:
        self._last = tree["last"]

    def _check(self, query: Query) -> None:
        count, n_rows = len(query.words), self._public.n_rows
        if query.first <= self._last:
            raise CryptoError(
                f"Expected a query with a number above {self._last}, got {query.first}. A changed query needs a new "
                "number."
            )
        fits = query.words.shape == (count, 3, n_rows) and query.tails.shape == (count, n_rows)
        if not (count and fits and query.words.dtype == np.uint64 and query.tails.dtype == np.uint8):
            raise CryptoError(
                f"Expected a query of {n_rows} rows, got arrays of shape {query.words.shape} and {query.tails.shape}. "
                "Check the number of rows."
            )
        if not all(query.first + i in self._keyed for i in range(count)):
            raise CryptoError(
                f"Expected the keys of queries {query.first} to {query.first + count - 1} before the queries, but some "
                "did not come. Send keys first."
            )
        some = query.words[..., :_ROWS_LOOKED_AT]
        if n_rows > 1 and (some == some[..., :1]).all(axis=-1).any():
            raise CryptoError("A query should look random, but part of it is constant. The asker is faulty.")

    def _flooded(self, sums: NDArray[np.uint64], keyed: NDArray[np.int64]) -> tuple[Float64Array, Share]:
        """Sums (sums, Q, L) with the products of masks and keys, and the flood: (sums, L, Q)."""
        from colonnade.crypto import wide_kernels

        primes = self._public.ring.primes
        words = Stream().words(6 * sums.shape[0] * sums.shape[1]).reshape(*sums.shape[:2], 6)
        total = np.empty((sums.shape[0], sums.shape[2], sums.shape[1]))
        wide_kernels.flood(sums, keyed, words, self._public.profile.flood_bits, primes, total)
        return total, np.zeros(0, np.uint64)

    def _masked(self, sums: NDArray[np.uint64], keyed: NDArray[np.int64]) -> tuple[Float64Array, Share]:
        """The same under masks that are uniform in Z_q, and this side's shares."""
        ring = self._public.ring
        masks = Stream().wide_residues(sums.shape[:2], ring.limits)
        total = (np.moveaxis(sums + keyed.astype(np.uint64), -1, 1) + masks) % ring.limits[:, None]
        own = _words_of(ring.limits, (ring.limits[:, None] - masks) % ring.limits[:, None])
        return ring.centred(total), own


class Reader:
    """What the asker knows of one holder: the hint, multiplied by secrets ahead and used once for each."""

    def __init__(self, public: PublicMatrix, hint: NDArray[np.uint64]) -> None:
        ring, n = public.ring, public.profile.n
        limbs = len(ring.primes) - 1
        if hint.dtype != np.uint64 or hint.shape[1:] != (limbs, n_words(n, PRIME_BITS)):
            raise CryptoError(
                f"Expected hints of {limbs} times {n_words(n, PRIME_BITS)} words, got an array of shape {hint.shape}. "
                "Check that both parties run the same version."
            )
        self._public, self._some = public, np.ones(len(hint), np.bool_)
        self._numbers = np.empty((n, len(hint) * limbs), np.int64)
        for start in range(0, len(hint), _ROWS_AT_ONCE):
            residues = unpacked_wide(hint[start : start + _ROWS_AT_ONCE], n, PRIME_BITS)
            if (residues >= ring.limits[1:, None]).any():
                raise CryptoError("A hint should hold residues below their primes and does not. The holder is faulty.")
            some = slice(start * limbs, (start + len(residues)) * limbs)
            self._numbers[:, some] = ring.centred(residues).reshape(-1, n).T
        self._products: dict[int, NDArray[np.int64]] = {}

    def __reduce__(self) -> NoReturn:
        raise CryptoError("A reader holds secrets of open queries and cannot be copied. Make a new one from the hint.")

    @property
    def n_sums(self) -> int:
        """How many sums an answer has for each number."""
        return int(self._some.sum())

    def narrow(self, sums: NDArray[np.bool_] | None) -> None:
        """Expect answers for some sums only from now on, as the holder does; None for all."""
        self._some = np.ones(len(self._some), np.bool_) if sums is None else sums

    def drop(self, before: int) -> None:
        """Forget what was prepared for queries with lower numbers, which are over."""
        self._products = {number: products for number, products in self._products.items() if number >= before}

    def prepare(self, first: int, secrets: NDArray[np.uint8]) -> None:
        """Multiply the hint by the secrets of queries, given by threes; `Queries.prepare` calls this."""
        products = _ternary_products(secrets, self._numbers).reshape(len(secrets), len(self._some), -1)
        products %= self._public.ring.limits[1:].astype(np.int64)
        self._products |= {first + i: products[i] for i in range(len(secrets))}

    def read(self, query: Query, n_nodes: int, messages: Messages, answer: NDArray[np.uint64]) -> NDArray[np.int64]:
        """The sums (nodes, bins, 2) in an answer; its query is then over.

        Raises:
            CryptoError: The answer is none that an honest holder gives.
        """
        from colonnade.crypto import wide_kernels

        opened, slots, scale_bits = self._opened(query, answer), messages.slots, self._public.profile.scale_bits
        primes = [int(p) for p in self._public.ring.limits[1:]]
        inverses = [pow(primes[0], -1, primes[1]), pow(primes[0] * primes[1], -1, primes[2]), primes[0] % primes[2]]
        found = np.empty((opened.shape[1], 2 * slots.nodes), np.int64)
        rests = np.empty(opened.shape[1], np.int64)
        wide_kernels.decode(opened, np.array(primes), np.array(inverses), scale_bits, slots.bits, found, rests)
        sums = found.reshape(-1, self.n_sums, slots.nodes, 2).transpose(0, 2, 1, 3).reshape(-1, self.n_sums, 2)
        most_rest = 2**scale_bits * 3 // 8 + _MOST_NOISE
        if (np.abs(rests) > most_rest).any() or (np.abs(sums) > np.array(messages.totals)).any():
            raise CryptoError(
                "An encrypted answer should be a possible sum with noise within its bound and is not. "
                "The holder is faulty; stop the run."
            )
        return sums[:n_nodes]

    def share(self, query: Query, n_nodes: int, answer: NDArray[np.uint64]) -> Share:
        """This side's shares (nodes, sums, 2) of the sums, where the holder replied with `share`."""
        limits, opened = self._public.ring.limits[1:], self._opened(query, answer)
        residues = opened.reshape(len(limits), len(query.words), self.n_sums).transpose(2, 0, 1)
        return _words_of(limits, residues.astype(np.uint64))[:n_nodes]

    def _opened(self, query: Query, answer: NDArray[np.uint64]) -> NDArray[np.int64]:
        """An answer less what the hint gives, for each prime but the first: (L - 1, Q times sums), canonical."""
        limits, count = self._public.ring.limits[1:], len(query.words)
        n_residues = self.n_sums * len(limits) * count
        if answer.dtype != np.uint64 or answer.shape != (n_words(n_residues, PRIME_BITS),):
            raise CryptoError(f"Expected an answer for {self.n_sums} bins, got an array of shape {answer.shape}.")
        residues = unpacked_wide(answer, n_residues, PRIME_BITS).reshape(self.n_sums, len(limits), count)
        if (residues >= limits[:, None]).any():
            raise CryptoError("An answer should hold residues below their primes and does not. The holder is faulty.")
        try:
            products = np.stack([self._products.pop(query.first + i)[self._some] for i in range(count)])
        except KeyError:
            raise CryptoError(
                f"Expected the answer to an open query, got one to number {query.first}, which is read or was never "
                "asked. Ask again under a new number."
            ) from None
        rest = (residues.astype(np.int64).transpose(1, 2, 0) - products.transpose(2, 0, 1)) % limits.astype(np.int64)[
            :, None, None
        ]
        return np.ascontiguousarray(rest.reshape(len(limits), -1))


class Queries:
    """The side of the private numbers: prepares secrets and pads ahead, and encrypts one query for all holders.

    Args:
        public: The public polynomials.
        first: The number of the first query.
        device: What computes pads: "cpu", "cuda", or "auto" for a GPU where there is one.
    """

    def __init__(self, public: PublicMatrix, *, first: int = 0, device: str = "cpu") -> None:
        self._engine = engine_of(device)
        self._public, self.next, self._drawn = public, first, first
        self._secrets: dict[int, Float64Array] = {}
        self._pads: dict[int, Float64Array] = {}
        # The memory of pads that have served, which the next ones overwrite.
        self._rooms: list[Float64Array] = []
        self._process = os.getpid()

    def __reduce__(self) -> NoReturn:
        raise CryptoError("Secrets of open queries cannot be copied. Make new ones from the public polynomials.")

    def prepare(self, count: int, readers: Sequence[Reader]) -> Keys:
        """Draw the secrets of `count` queries; returns the keys that holders need before these queries."""
        self._require_own_process()
        public, ring, n, stream = self._public, self._public.ring, self._public.profile.n, Stream()
        secrets = stream.ternary(count * n).reshape(count, n)
        by_threes = _by_threes(mirrored(secrets))
        for reader in readers:
            reader.prepare(self._drawn, by_threes)
        transformed = ring.forward(ring.small(secrets))
        keys = ring.with_errors(ring.inverse(ring.times(transformed, public.key)), stream)
        first, self._drawn = self._drawn, self._drawn + count
        self._secrets |= {first + i: transformed[i] for i in range(count)}
        return Keys(first, packed(ring.canonical(keys), PRIME_BITS))

    def pad(self, count: int) -> None:
        """Compute the pads of the next `count` queries, as far as their secrets are drawn."""
        self._require_own_process()
        ring, stream = self._public.ring, Stream()
        for number in range(self.next, min(self.next + count, self._drawn)):
            if number not in self._pads:
                room = self._rooms.pop() if self._rooms else np.empty(self._public.blocks.shape)
                self._engine.pad(ring, self._public.blocks, self._secrets.pop(number), stream, room)
                self._pads[number] = room

    def ask(self, messages: Messages, places: NDArray[np.int32], n_nodes: int) -> Query:
        """Encrypt the messages of some nodes, each number under a fresh secret.

        Args:
            messages: Gradients and hessians of all rows.
            places: The node of each row, from 0 on; negative for rows of no node asked for.
            n_nodes: How many nodes are asked for.
        """
        from colonnade.crypto import wide_kernels

        self._require_own_process()
        public, slots = self._public, messages.slots
        count = slots.n_numbers(n_nodes)
        if self.next + count > self._drawn:
            raise CryptoError(
                f"Expected the secrets of {count} queries to be drawn, but {self._drawn - self.next} are. Prepare more."
            )
        self.pad(count)
        words = np.empty((count, 3, public.n_rows), np.uint64)
        tails = np.empty((count, public.n_rows), np.uint8)
        for i in range(count):
            # A pad serves once.
            pad = self._pads.pop(self.next + i)
            wide_kernels.seal(pad, messages.residues, places, i * slots.nodes, public.ring.primes, words[i], tails[i])
            self._rooms.append(pad)
        first, self.next = self.next, self.next + count
        return Query(first, words, tails)

    def _require_own_process(self) -> None:
        if os.getpid() != self._process:
            raise CryptoError(
                "Secrets of queries serve the process that drew them, but a forked process uses them. Draw new ones."
            )


def _words_of(limits: NDArray[np.uint64], residues: NDArray[np.uint64]) -> Share:
    """Numbers x modulo q, given by residues (sums, L, Q), as x 2^128 / q in two words, the lower first: (Q, sums, 2).

    Off by at most one unit for each prime.
    """
    from colonnade.crypto import wide_kernels

    primes = [int(p) for p in limits]
    modulus = prod(primes)
    weights = np.array([pow(modulus // p, -1, p) for p in primes], np.int64)
    out = np.empty((residues.shape[2], residues.shape[0], 2), np.uint64)
    wide_kernels.fractions(np.ascontiguousarray(residues), limits.astype(np.int64), weights, out)
    return out


def _by_threes(ternary: NDArray[np.int8]) -> NDArray[np.uint8]:
    """Ternary numbers (K, n) as places in tables of 27 sums, an even number of them."""
    from colonnade.crypto import wide_kernels

    threes = -(-ternary.shape[1] // wide_kernels.TRITS)
    out = np.empty((len(ternary), threes + threes % 2), np.uint8)
    wide_kernels.trits(ternary, out)
    return out


def _ternary_products(by_threes: NDArray[np.uint8], numbers: NDArray[Any]) -> NDArray[np.int64]:
    """Inner products of ternary numbers (K, n) with centred residues (n, lanes): exact, for 8,192 of 2^49 are 2^62."""
    from colonnade.crypto import wide_kernels

    out = np.empty((len(by_threes), numbers.shape[1]), np.int64)
    wide_kernels.ternary_products(by_threes, np.ascontiguousarray(numbers, np.int64), out)
    return out
