"""Paired: what two parties compute on shares in turns, with transfers that are made as they are needed.

    both      begin: a session of transfers in each direction (`transfers`)
    shifted   numbers over a power of two, or one unit less           one transfer a number
    floored   numbers over a power of two, rounded down               a comparison of few bits a number
    negative  shared bits that say which numbers are below zero       (`signs`)
    kept      shared words where a shared bit is 1, else 0            two transfers a word
    looked up words of a public table at shared places                (`lookups`)
    length    the sum of squares of shared words modulo 2^64          64 transfers a word: bits of one share, the other

Both parties call the same methods in the same order; each is a generator of turns. In the first session the leading
party chooses and the other one sends, in the second one they change places. Nothing here is ever written down: a party
that starts again begins new sessions. The product of two private words is that of Gilboa 1999. For semi-honest parties.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from colonnade.crypto import signs
from colonnade.crypto.curve import POINT_BYTES, Points
from colonnade.crypto.lookups import look_up, show_table
from colonnade.crypto.packing import packed
from colonnade.crypto.shares import Share
from colonnade.crypto.signs import Bits
from colonnade.crypto.transfers import (
    COLUMNS,
    NOTHING,
    Chooser,
    ChooserWords,
    Sender,
    SenderWords,
    Turns,
    unpacked_from,
)
from colonnade.crypto.triples import shift_as_chooser, shift_as_sender
from colonnade.errors import CryptoError

_WORD_BITS = 64
_FRACTION_BITS = 12


class Pair:
    """One of two parties that hold shares; exactly one of them leads."""

    def __init__(self, *, leading: bool) -> None:
        self.leading = leading
        self._chooser = Chooser()
        self._sender: Sender | None = None

    def begin(self) -> Turns[None]:
        """Begin both sessions of transfers."""
        came = yield self._chooser.point.view(np.uint64).ravel()
        self._sender = Sender(_points(came, (1, POINT_BYTES)))
        came = yield np.ascontiguousarray(self._sender.points).view(np.uint64).ravel()
        self._chooser.begin(_points(came, (COLUMNS, 2, POINT_BYTES)))

    def shifted(self, share: Share, bits: int) -> Turns[Share]:
        """This party's shares of numbers, |x| < 2^62, over 2^bits, or one unit less."""
        pads = yield from self._words(len(share), choosing=self.leading)
        if isinstance(pads, ChooserWords):
            return (yield from shift_as_chooser(share, bits, pads, leading=True))
        return (yield from shift_as_sender(share, bits, pads, leading=False))

    def floored(self, share: Share, bits: int) -> Turns[Share]:
        """This party's shares, modulo 2^52, of numbers, |x| < 2^62, over 2^bits, rounded down.

        A number that is less than 2^-12 of a unit below a whole one may come out as that one.
        """
        assert bits > _FRACTION_BITS
        finer = (yield from self.shifted(share, bits - _FRACTION_BITS)) + np.uint64(self.leading)
        # Both fractions together are a unit or less; nothing else is lost when each party shifts its own share.
        low = (finer & np.uint64(2**_FRACTION_BITS - 1)) - np.uint64(2**_FRACTION_BITS * self.leading)
        short = yield from self.negative(low, _FRACTION_BITS + 2)
        ones = np.full(len(share), self.leading, np.uint64)
        lost = yield from self.kept(ones, short)
        return (finer >> np.uint64(_FRACTION_BITS)) + ones - lost

    def negative(self, share: Share, bits: int) -> Turns[Bits]:
        """This party's shares of which numbers, |x| < 2^(bits - 1), are below zero."""
        if self.leading:
            stock, sent = signs.chooser_stock(self._chooser, len(share), bits)
            yield np.concatenate([words.ravel() for words in sent])
            return (yield from signs.chooser_negative(share, bits, stock))
        came = yield NOTHING
        sizes = [signs.n_digits(bits) * signs.DIGIT_BITS, 2 * signs.n_products(bits)]
        ends = np.cumsum([-(-len(share) * size // _WORD_BITS) * COLUMNS for size in sizes])
        if came.shape != (ends[-1],):
            raise CryptoError(
                f"Expected {ends[-1]} words of transfers, got an array of shape {came.shape}. "
                "Check that both parties run the same version on as many rows."
            )
        stock = signs.sender_stock(self._made_sender, len(share), bits, [came[: ends[0]], came[ends[0] :]])
        return (yield from signs.sender_negative(share, bits, stock))

    def kept(self, share: Share, bits: Bits) -> Turns[Share]:
        """This party's shares of shared words times shared bits."""
        others, sent = self._chooser.extend_words(len(share))
        came = yield sent.ravel()
        own = self._made_sender.extend_words(len(share), came)
        return (yield from signs.kept(share, bits, own, others))

    def looked_up(self, share: Share, table: NDArray[np.uint64]) -> Turns[Share]:
        """This party's shares of a public table's words at shared places modulo its length, a power of two."""
        if self.leading:
            return (yield from look_up(self._chooser, share, len(table).bit_length() - 1))
        return (yield from show_table(self._made_sender, share, table))

    def length(self, share: Share) -> Turns[Share]:
        """This party's share of the sum of squares of shared words modulo 2^64."""
        # (a + b)^2 = a^2 + b^2 + 2 a b; of a b, one transfer for each bit of a.
        places = np.arange(_WORD_BITS, dtype=np.uint64)
        own = (share * share).sum(dtype=np.uint64, keepdims=True)
        pads = yield from self._words(len(share) * _WORD_BITS, choosing=self.leading)
        if isinstance(pads, ChooserWords):
            chosen = ((share[:, None] >> places) & np.uint64(1)).astype(np.uint8).ravel()
            yield packed(pads.moved(chosen).astype(np.uint64), 1)
            cross = pads.opened((yield NOTHING), chosen)
        else:
            moved = unpacked_from((yield NOTHING), len(share) * _WORD_BITS, 1).astype(np.uint8)
            sent, cross = pads.sealed((share[:, None] << places).ravel(), moved)
            yield sent
        total: Share = own + np.uint64(2) * cross.sum(dtype=np.uint64, keepdims=True)
        return total

    def _words(self, count: int, *, choosing: bool) -> Turns[ChooserWords | SenderWords]:
        """Products with a bit, made ahead of their use in the same exchange."""
        if choosing:
            pads, sent = self._chooser.extend_words(count)
            yield sent.ravel()
            return pads
        came = yield NOTHING
        return self._made_sender.extend_words(count, came)

    @property
    def _made_sender(self) -> Sender:
        if self._sender is None:
            raise CryptoError("Computing on shares needs sessions of transfers first. Begin with these.")
        return self._sender


def _points(words: NDArray[np.uint64], shape: tuple[int, ...]) -> Points:
    """Points that came as words."""
    if words.dtype != np.uint64 or 8 * words.size != np.prod(shape):
        raise CryptoError(
            f"Expected {np.prod(shape) // POINT_BYTES} points, got an array of shape {words.shape}. "
            "Check that both parties run the same version."
        )
    return np.ascontiguousarray(words).view(np.uint8).reshape(shape)
