"""Sums under hinted RLWE: both halves of the exchange, the label party's and a feature party's.

    feature party                    label party
         SeedCommitment ───────────────────────────▶          once; all of them come back
         SeedNonce ────────────────────────────────▶          once; all of them come back
         Hint ─────────────────────────────────────▶          once, for each fold of rows
         ◀──────────────────────────────── QueryKeys          per tree, ahead of gradients
         ◀──────────────────────────────── SumsQuery          the same to all that have a column of the tree
         SumsAnswer ───────────────────────────────▶          or SharedSums, where sums stay shares

A query hides which rows are in a node: rows outside are encrypted zeros. The label party opens exact sums for each bin
of each node and learns nothing else; the feature party learns how many nodes there are, two by two.
`colonnade.crypto.hinted` has the scheme and its argument. What is prepared ahead lives in this process only; after a
crash hints, keys and secrets are drawn again, and only bare hints come from the feature party's own folder.
"""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Callable, Mapping, Sequence
from hmac import compare_digest
from typing import TypeAlias

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from colonnade.crypto import hinted
from colonnade.crypto.packing import packed, unpacked_wide
from colonnade.crypto.profiles import HISTOGRAM
from colonnade.crypto.sampling import SEED_BYTES
from colonnade.crypto.shares import Share
from colonnade.crypto.wide import PRIME_BITS
from colonnade.errors import ProtocolError
from colonnade.models.trees.bins import Column
from colonnade.models.trees.losses import Gradients
from colonnade.models.trees.messages import (
    Hint,
    QueryKeys,
    SeedCommitment,
    SeedNonce,
    SharedSums,
    SumsAnswer,
    SumsQuery,
)
from colonnade.models.trees.noise import BY, SumNoise
from colonnade.models.trees.rows import BinnedRows
from colonnade.runtime.party import Party
from colonnade.wire.channel import Channel
from colonnade.wire.message import Int64Array

# Multiplying hints by the secrets of this number of queries at once costs a quarter of what one tree at a time does.
_DRAWN_AT_ONCE = 72
_QUERY = (HISTOGRAM.name,)
_ANSWER: tuple[str, ...] = (HISTOGRAM.name, "flood")
_SHARED = (HISTOGRAM.name, "mask")
Told: TypeAlias = NDArray[np.bool_] | None
"""Of which of a party's columns sums are told in a tree; None for all."""


def agreed_seed(party: Party) -> bytes:
    """The seed of the public polynomials, which no party could choose alone; the same again after a crash.

    The label party passes on what feature parties say, since these need no line to each other. It cannot choose the
    seed either: a party tells its nonce only when all others are bound to theirs.
    """
    nonce, names = party.once("trees nonce", lambda: secrets.token_bytes(SEED_BYTES)), party.roles.holders
    own = hinted.commitment(nonce)
    if party.holds_labels:
        lines = party.feature_parties
        commitments = [own, *(_only(line.receive(SeedCommitment).commitments, line) for line in lines)]
        for line in lines:
            line.send(SeedCommitment(commitments))
        nonces = [nonce, *(_only(line.receive(SeedNonce).nonces, line) for line in lines)]
        for line in lines:
            line.send(SeedNonce(nonces))
    else:
        line, place = party.label_party, names.index(party.name)
        line.send(SeedCommitment([own]))
        commitments = _with_own(line.receive(SeedCommitment).commitments, own, place, line)
        line.send(SeedNonce([nonce]))
        nonces = _with_own(line.receive(SeedNonce).nonces, nonce, place, line)
    named = [dict(zip(names, each, strict=True)) for each in (nonces, commitments)]
    return hinted.joint_seed(named[0], named[1], HISTOGRAM)


def _only(values: list[bytes], line: Channel) -> bytes:
    if len(values) != 1:
        raise ProtocolError(
            f"Expected {line.peer}'s part of the public seed, got {len(values)} parts. Check that both parties run the "
            "same version."
        )
    return values[0]


def _with_own(values: list[bytes], own: bytes, place: int, line: Channel) -> list[bytes]:
    if len(values) <= place or not compare_digest(values[place], own):
        raise ProtocolError(
            f"Expected all parties' parts of the public seed from {line.peer}, this party's own among them, got "
            "others. Check that both parties run the same plan."
        )
    return values


def asked_lines(party: Party, told: Mapping[str, Told]) -> list[Channel]:
    """The lines to feature parties that tell sums of any column in a tree."""
    return [line for line in party.feature_parties if (chosen := told[line.peer]) is None or chosen.any()]


def slots_of(folds: Sequence[Int64Array], *, shared: bool = False) -> hinted.Slots:
    """How nodes share encrypted numbers, whichever fold is asked about."""
    return hinted.Slots.of(max(map(len, folds)), shared=shared)


def _fold_seed(seed: bytes, fold: int) -> bytes:
    return blake3(seed + fold.to_bytes(4, "little"), derive_key_context="colonnade.models.trees fold").digest()


class HintedAsking:
    """The label party's half.

    Args:
        party: The label party.
        columns: The columns of each party.
        n_rows: How many rows there are.
        folds: The rows of each fold.
        most_numbers: How many encrypted numbers a tree asks for at most.
        shared: Whether sums stay shares.
        device: What computes pads.
    """

    def __init__(
        self,
        party: Party,
        columns: Mapping[str, Sequence[Column]],
        n_rows: int,
        folds: Sequence[Int64Array],
        most_numbers: int,
        *,
        shared: bool = False,
        device: str = "cpu",
    ) -> None:
        self._party, self._most, self._shared = party, most_numbers, shared
        seed = agreed_seed(party)
        self._folds = [
            _AskedFold(party, columns, n_rows, _fold_seed(seed, number), number, rows, shared, device)
            for number, rows in enumerate(folds)
        ]
        self._fold = self._folds[0]

    def prepare(self, tree: int, fold: int, told: Mapping[str, Told]) -> None:
        """Send the keys of the queries that a tree may ask."""
        self._fold, self._told = self._folds[fold], told
        keys = self._fold.keys(self._most, told)
        for line in self._party.feature_parties:
            line.send(QueryKeys(tree, keys.first, keys.data), under=_QUERY, epoch=tree)

    def begin(self, gradients: Gradients, reach: tuple[int, int] = (0, 0)) -> None:
        """Take the gradients of the tree, and how far noise on sums of gradients and of hessians may reach."""
        self._fold.begin(gradients, reach)

    def ask(self, tree: int, nodes: Sequence[Int64Array]) -> None:
        """Ask all feature parties for the sums of nodes, given by their rows."""
        query = self._fold.ask(nodes)
        for line in asked_lines(self._party, self._told):
            line.send(SumsQuery(tree, query.first, query.words, query.tails), under=_QUERY, epoch=tree)
        # Pads depend on secrets only: those of the next level are computed while others answer.
        self._fold.pad(2 * len(query.words))

    def read(self, tree: int, line: Channel) -> NDArray[np.int64]:
        """The sums (nodes, bins without the last one of each column, 2) in a feature party's answer, or shares."""
        kind: type[SharedSums | SumsAnswer] = SharedSums if self._shared else SumsAnswer
        answer = line.receive(kind, fields={"tree": tree}, epoch=tree)
        return self._fold.read(line.peer, answer.words)


class _AskedFold:
    """What the label party has of one fold of rows."""

    def __init__(
        self,
        party: Party,
        columns: Mapping[str, Sequence[Column]],
        n_rows: int,
        seed: bytes,
        number: int,
        rows: Int64Array,
        shared: bool,
        device: str,
    ) -> None:
        self._public = hinted.PublicMatrix(seed, len(rows))
        self._rows, self._shared = rows, shared
        self._places = np.full(n_rows, -1, np.int64)
        self._places[rows] = np.arange(len(rows))
        self._readers = {}
        self._widths = {name: np.array([each.width - 1 for each in held]) for name, held in columns.items()}
        for line in party.feature_parties:
            words, n_sums = line.receive(Hint, fields={"fold": number}).words, int(self._widths[line.peer].sum())
            if len(words) != n_sums:
                raise ProtocolError(
                    f"Expected hints for {n_sums} bins from {line.peer}, got {len(words)}. "
                    "Check that both parties run the same version."
                )
            self._readers[line.peer] = hinted.Reader(self._public, words)
        self._queries = hinted.Queries(self._public, device=device)
        self._keys: list[NDArray[np.uint64]] = []
        self._n_sent = 0

    def keys(self, most: int, told: Mapping[str, Told]) -> hinted.Keys:
        """The keys that are missing before `most` numbers can be asked for about some columns."""
        for name, reader in self._readers.items():
            chosen = told[name]
            reader.narrow(None if chosen is None else np.repeat(chosen, self._widths[name]))
            reader.drop(self._queries.next)
        missing = most - (self._n_sent - self._queries.next)
        if len(self._keys) < missing:
            drawn = self._queries.prepare(max(_DRAWN_AT_ONCE, missing), list(self._readers.values()))
            self._keys += list(drawn.data)
        some, self._keys = self._keys[:missing], self._keys[missing:]
        first, self._n_sent = self._n_sent, self._n_sent + missing
        return hinted.Keys(first, np.array(some, np.uint64))

    def begin(self, gradients: Gradients, reach: tuple[int, int]) -> None:
        """Take the gradients of a tree."""
        g, h = gradients.g[self._rows], gradients.h[self._rows]
        self._messages = hinted.Messages(self._public, g, h, shared=self._shared, reach=reach)

    def ask(self, nodes: Sequence[Int64Array]) -> hinted.Query:
        """The query for the sums of nodes."""
        places = np.full(len(self._rows), -1, np.int32)
        for node, rows in enumerate(nodes):
            places[self._places[rows]] = node
        self._query, self._n_nodes = self._queries.ask(self._messages, places, len(nodes)), len(nodes)
        return self._query

    def pad(self, count: int) -> None:
        """Compute the pads of `count` numbers ahead."""
        self._queries.pad(count)

    def read(self, peer: str, words: NDArray[np.uint64]) -> NDArray[np.int64]:
        """The sums in a peer's answer to the last query, or this side's shares of them."""
        if self._shared:
            return self._readers[peer].share(self._query, self._n_nodes, words).view(np.int64)
        return self._readers[peer].read(self._query, self._n_nodes, self._messages, words)


class HintedAnswering:
    """A feature party's half.

    Args:
        party: The feature party.
        rows: Its rows.
        folds: The rows of each fold.
        most_numbers: How many encrypted numbers a tree asks for at most.
        shared: Whether sums stay shares.
        noise: What is added to sums.
        device: What adds up.
    """

    def __init__(
        self,
        party: Party,
        rows: BinnedRows,
        folds: Sequence[Int64Array],
        most_numbers: int,
        *,
        shared: bool = False,
        noise: SumNoise | None = None,
        device: str = "cpu",
    ) -> None:
        self._shared, self._noise = shared, noise
        self._line, self._most = party.label_party, most_numbers
        checkpoints = party.checkpoints.directory
        self._folder = None if checkpoints is None else checkpoints / "hints"
        seed, self._holders, self._publics = agreed_seed(party), [], []
        for number, fold in enumerate(folds):
            public = hinted.PublicMatrix(_fold_seed(seed, number), len(fold))
            private = rows.histogram(fold)
            budget = party.budget(HISTOGRAM, self._line.peer, most=public.most_values)
            holder = hinted.Holder(private, public, budget, folder=self._folder, device=device)
            self._line.send(Hint(number, holder.hint()), under=_QUERY)
            public.drop_blocks()
            self._holders.append(holder)
            self._publics.append(public)
        self._holder, self._public = self._holders[0], self._publics[0]
        self._nodes_per_number = slots_of(folds, shared=shared).nodes

    def prepare(self, tree: int, fold: int, told: Told) -> None:
        """Take the keys of the queries that a tree may ask."""
        self._holder, self._public = self._holders[fold], self._publics[fold]
        if told is None or told.any():
            self._holder.narrow(told)
        message = self._line.receive(QueryKeys, fields={"tree": tree}, epoch=tree)
        if len(message.keys) > self._most:
            raise ProtocolError(
                f"Expected at most {self._most} keys for tree {tree} from {self._line.peer}, got {len(message.keys)}. "
                "Check that both parties run the same plan."
            )
        self._holder.drop(message.first + len(message.keys) - self._most)
        if len(message.keys):
            self._holder.prepare(hinted.Keys(message.first, message.keys))

    def forget(self) -> None:
        """Delete the bare hints, which tell the bins and which only a run in progress needs."""
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def answer(self, tree: int, spend: Callable[[int, int], None]) -> Share:
        """Answer a query; `spend` is told of how many nodes and numbers, before anything is computed.

        Returns:
            This party's shares (nodes, sums, 2) where sums stay shares.
        """
        message = self._line.receive(SumsQuery, fields={"tree": tree}, epoch=tree)
        spend(len(message.words) * self._nodes_per_number, len(message.words))
        query = hinted.Query(message.first, message.words, message.tails)
        if self._shared:
            words, own = self._holder.share(query)
            self._line.send(SharedSums(tree, words), under=_SHARED, epoch=tree)
            return own
        words, under = self._holder.answer(query), _ANSWER
        if self._noise is not None:
            shape = self._holder.told.n_sums, len(query.words), self._nodes_per_number
            drawn = self._noise.draw(shape, query.words.tobytes() + query.tails.tobytes())
            words, under = noised(self._public, words, drawn), (*_ANSWER, BY)
        self._line.send(SumsAnswer(tree, words), under=under, epoch=tree)
        return np.zeros(0, np.uint64)


def noised(public: hinted.PublicMatrix, answer: NDArray[np.uint64], noise: NDArray[np.int64]) -> NDArray[np.uint64]:
    """An answer to whose sums noise was added, in the unit of the sums.

    Args:
        public: The public polynomials.
        answer: As `Holder.answer` gave it.
        noise: For each sum, number of the query, node of a number, and gradients and hessians (sums, Q, nodes, 2).
    """
    n_sums, n_numbers = noise.shape[:2]
    limits, slots = public.ring.limits[1:], hinted.Slots.of(public.n_rows)
    flat = noise.reshape(n_sums, n_numbers, -1).astype(object)
    total = np.zeros((n_sums, n_numbers), object)
    for slot in range(flat.shape[-1]):
        total = total + (flat[..., slot] << slots.bits * slot + public.profile.scale_bits)
    added = np.stack([(total % int(p)).astype(np.uint64) for p in limits], axis=1)
    residues = unpacked_wide(answer, added.size, PRIME_BITS).reshape(added.shape)
    return packed(((residues + added) % limits[:, None]).reshape(-1), PRIME_BITS)
