"""Sums under Paillier, the conventional scheme, both halves: for comparison, thousands of times slower.

    feature party                    label party
         ◀───────────────────────────────── SumsKey           once
         ◀────────────────────────── EncryptedRows            hidden: per level; revealed: per tree
         ◀─────────────────────────────── NodeRows            revealed: per level
         EncryptedSums ────────────────────────────▶          per level

With hidden membership a query has a ciphertext for each row, which holds gradient and hessian in the place of the row's
node, or zero. With revealed membership, as in the original protocol, gradients of all rows are encrypted once for a
tree, and the feature party is told which rows each node has. Groups of rows tell much of the labels: rows of one leaf
have like labels. Sums leave the feature party as fresh ciphertexts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from colonnade.crypto.paillier import KEY_BITS, PublicKey, SecretKey
from colonnade.crypto.shares import Share
from colonnade.errors import ProtocolError
from colonnade.models.trees.bins import BinMatrix, Column
from colonnade.models.trees.hinted_sums import Told, asked_lines
from colonnade.models.trees.losses import Gradients
from colonnade.models.trees.messages import EncryptedRows, EncryptedSums, NodeRows, SumsKey
from colonnade.runtime.party import Party
from colonnade.wire.channel import Channel
from colonnade.wire.message import Int64Array, sealed, unsealed

_SLOT_BITS = 48
MOST_NODES = (KEY_BITS - 2) // (2 * _SLOT_BITS)
"""How many nodes' gradients and hessians a ciphertext holds."""


class PaillierAsking:
    """The label party's half.

    Args:
        party: The label party.
        columns: The columns of each party.
        folds: The rows of each fold.
        revealed: Whether feature parties are told which rows a node has.
    """

    def __init__(
        self, party: Party, columns: Mapping[str, Sequence[Column]], folds: Sequence[Int64Array], *, revealed: bool
    ) -> None:
        self._party, self._columns, self._folds, self._revealed = party, columns, folds, revealed
        # A new key after a crash: nothing is lost, since no ciphertext outlives a tree.
        self._key = SecretKey()
        for line in party.feature_parties:
            line.send(SumsKey(np.frombuffer(self._key.public.to_bytes(), np.uint8)))

    def prepare(self, tree: int, fold: int, told: Mapping[str, Told]) -> None:
        """Take the fold of the tree, and of which columns sums are told."""
        self._fold, self._lines = self._folds[fold], asked_lines(self._party, told)
        self._n_sums = {
            line.peer: int(_of_columns(self._columns[line.peer], told[line.peer]).sum()) for line in self._lines
        }

    def begin(self, gradients: Gradients, reach: tuple[int, int] = (0, 0)) -> None:
        """Take the gradients of the tree."""
        self._gradients, self._is_sent = gradients, False

    def ask(self, tree: int, nodes: Sequence[Int64Array]) -> None:
        """Ask all feature parties for the sums of nodes, given by their rows."""
        g, h = self._gradients.g, self._gradients.h
        self._n_nodes = len(nodes)
        if self._revealed:
            if not self._is_sent:
                self._send_rows(tree, 0, [_packed_number(0, int(g[row]), int(h[row])) for row in self._fold])
                self._is_sent = True
            places = np.full(len(g), -1, np.int64)
            places[self._fold] = np.arange(len(self._fold))
            counts = np.array([len(rows) for rows in nodes], np.int64)
            members = np.concatenate([np.zeros(0, np.int64), *(np.sort(places[rows]) for rows in nodes)])
            for line in self._lines:
                line.send(NodeRows(tree, counts, members), rows=self._fold, epoch=tree)
            return
        numbers = dict.fromkeys(self._fold.tolist(), 0)
        for place, rows in enumerate(nodes):
            numbers |= {row: _packed_number(place, int(g[row]), int(h[row])) for row in rows.tolist()}
        self._send_rows(tree, len(nodes), list(numbers.values()))

    def read(self, tree: int, line: Channel) -> NDArray[np.int64]:
        """The sums (nodes, bins without the last one of each column, 2) in a feature party's answer."""
        n_sums, at_once = self._n_sums[line.peer], 1 if self._revealed else self._n_nodes
        out = np.zeros((self._n_nodes, n_sums, 2), np.int64)
        for start in range(0, self._n_nodes, at_once):
            message = line.receive(EncryptedSums, fields={"tree": tree}, epoch=tree)
            data = unsealed(message.ciphertexts, self._key.public, n_sums, line.peer)
            for place, number in enumerate(self._key.numbers(data)):
                out[start : start + at_once, place] = _slots(int(number), at_once)
        return out

    def _send_rows(self, tree: int, n_nodes: int, numbers: list[int]) -> None:
        public = self._key.public
        message = EncryptedRows(tree, n_nodes, sealed(public.encrypt_numbers(numbers), public))
        for line in self._lines:
            line.send(message, under=(public.scheme,), epoch=tree)


class PaillierAnswering:
    """A feature party's half.

    Args:
        party: The feature party.
        bins: Its columns.
        folds: The rows of each fold.
        revealed: Whether it is told which rows a node has.
    """

    def __init__(self, party: Party, bins: BinMatrix, folds: Sequence[Int64Array], *, revealed: bool) -> None:
        self._line, self._columns, self._revealed, self._tree = party.label_party, bins.columns, revealed, -1
        self._key = PublicKey.from_bytes(self._line.receive(SumsKey).key.tobytes())
        self._folds = [(rows, _membership(bins, rows)) for rows in folds]

    def prepare(self, tree: int, fold: int, told: Told) -> None:
        """Take the fold of the tree, and of which columns sums are told."""
        self._fold, members = self._folds[fold]
        self._inside = members[:, _of_columns(self._columns, told)]

    def answer(self, tree: int, spend: Callable[[int, int], None]) -> Share:
        """Answer a query; `spend` is told of how many nodes, before anything is computed."""
        if self._revealed:
            if self._tree != tree:
                self._tree, (self._rows, _) = tree, self._received_rows(tree, (0, 0))
            message = self._line.receive(NodeRows, fields={"tree": tree}, rows=self._fold, epoch=tree)
            nodes = self._nodes(message)
            spend(len(nodes), len(nodes))
            for rows in nodes:
                self._send_sums(tree, self._rows[rows], self._inside[rows])
        else:
            data, n_nodes = self._received_rows(tree, (1, MOST_NODES))
            spend(n_nodes, n_nodes)
            self._send_sums(tree, data, self._inside)
        return np.zeros(0, np.uint64)

    def forget(self) -> None:
        """Nothing is kept."""

    def _received_rows(self, tree: int, n_nodes: tuple[int, int]) -> tuple[NDArray[np.uint64], int]:
        bounds = {"n_nodes": n_nodes}
        message = self._line.receive(EncryptedRows, fields={"tree": tree}, within=bounds, epoch=tree)
        return unsealed(message.ciphertexts, self._key, len(self._inside), self._line.peer), message.n_nodes

    def _nodes(self, message: NodeRows) -> list[Int64Array]:
        counts, rows = message.counts, message.rows
        sound = counts.ndim == 1 and len(counts) and (counts >= 0).all() and rows.shape == (int(counts.sum()),)
        if not sound or not _are_below(rows, len(self._inside)):
            raise ProtocolError(
                f"Expected the rows of nodes from {self._line.peer}, got numbers that are none of {len(self._inside)} "
                "rows. Check that both parties run the same version."
            )
        return np.split(rows, np.cumsum(counts)[:-1])

    def _send_sums(self, tree: int, data: NDArray[np.uint64], inside: NDArray[np.int64]) -> None:
        key = self._key
        sums = key.refreshed(key.product(key.prepare(inside, 1), data))
        self._line.send(EncryptedSums(tree, sealed(sums, key)), under=(key.scheme,), epoch=tree)


def _membership(bins: BinMatrix, rows: Int64Array) -> NDArray[np.int64]:
    """Which bins each row is in (rows, sums), without the last bin of each column."""
    codes = bins.codes[rows]
    parts = [codes[:, [place]] == np.arange(column.width - 1) for place, column in enumerate(bins.columns)]
    return np.concatenate(parts, axis=1).astype(np.int64)


def _of_columns(columns: Sequence[Column], told: Told) -> NDArray[np.bool_]:
    """Which of all sums over bins are those of columns that are told."""
    return np.repeat(np.ones(len(columns), np.bool_) if told is None else told, [each.width - 1 for each in columns])


def _are_below(rows: Int64Array, n_rows: int) -> bool:
    return bool(((rows >= 0) & (rows < n_rows)).all())


def _packed_number(place: int, g: int, h: int) -> int:
    return (g << 2 * place * _SLOT_BITS) + (h << (2 * place + 1) * _SLOT_BITS)


def _slots(number: int, n_nodes: int) -> list[tuple[int, int]]:
    """Sums of gradients and hessians of nodes, which may be negative.

    >>> _slots(_packed_number(0, -3, 5) + _packed_number(1, 7, 2), 2)
    [(-3, 5), (7, 2)]
    """
    values = []
    for _ in range(2 * n_nodes):
        low = number % 2**_SLOT_BITS
        value = low - 2**_SLOT_BITS if low >= 2 ** (_SLOT_BITS - 1) else low
        values.append(value)
        number = (number - value) >> _SLOT_BITS
    return list(zip(values[::2], values[1::2], strict=True))
