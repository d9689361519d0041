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
from colonnade.crypto.lookups import look_up, show_table
from colonnade.crypto.shares import Share
from colonnade.crypto.signs import Bits
from colonnade.crypto.transfers import (
    NOTHING,
    Chooser,
    ChooserWords,
    Sender,
    SenderWords,
    Turns,
    choose_words,
    offer_words,
    open_sessions,
)
from colonnade.crypto.triples import shift
from colonnade.errors import CryptoError

_WORD_BITS = 64
_FRACTION_BITS = 12


class Pair:
    """One of two parties that hold shares; exactly one of them leads."""

    def __init__(self, *, leading: bool) -> None:
        self.leading = leading
        self._sessions: tuple[Chooser, Sender] | None = None

    def begin(self) -> Turns[None]:
        """Begin both sessions of transfers."""
        self._sessions = yield from open_sessions()

    def shifted(self, share: Share, bits: int) -> Turns[Share]:
        """This party's shares of numbers, |x| < 2^62, over 2^bits, or one unit less."""
        pads = yield from self._words(len(share))
        return (yield from shift(share, bits, pads, leading=self.leading))

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
        """This party's shares of bits that say which numbers, |x| < 2^(bits - 1), are below zero."""
        if self.leading:
            stock, sent = signs.chooser_stock(self._chooser, len(share), bits)
            yield sent
        else:
            stock = signs.sender_stock(self._sender, len(share), bits, (yield NOTHING))
        return (yield from signs.negative(share, bits, stock))

    def kept(self, share: Share, bits: Bits) -> Turns[Share]:
        """This party's shares of shared words times shared bits."""
        others, sent = self._chooser.extend_words(len(share))
        came = yield sent.ravel()
        own = self._sender.extend_words(len(share), came)
        return (yield from signs.kept(share, bits, own, others))

    def looked_up(self, share: Share, table: NDArray[np.uint64]) -> Turns[Share]:
        """This party's shares of a public table's words at shared places modulo its length, a power of two."""
        if self.leading:
            return (yield from look_up(self._chooser, share, len(table).bit_length() - 1))
        return (yield from show_table(self._sender, share, table))

    def length(self, share: Share) -> Turns[Share]:
        """This party's share of the sum of squares of shared words modulo 2^64."""
        # (a + b)^2 = a^2 + b^2 + 2 a b; of a b, one transfer for each bit of a.
        places = np.arange(_WORD_BITS, dtype=np.uint64)
        own = (share * share).sum(dtype=np.uint64, keepdims=True)
        pads = yield from self._words(len(share) * _WORD_BITS)
        if isinstance(pads, ChooserWords):
            chosen = ((share[:, None] >> places) & np.uint64(1)).astype(np.uint8).ravel()
            cross = yield from choose_words(pads, chosen)
        else:
            cross = yield from offer_words(pads, (share[:, None] << places).ravel())
        total: Share = own + np.uint64(2) * cross.sum(dtype=np.uint64, keepdims=True)
        return total

    def _words(self, count: int) -> Turns[ChooserWords | SenderWords]:
        """Products with a bit, made ahead of their use in the same exchange."""
        if self.leading:
            pads, sent = self._chooser.extend_words(count)
            yield sent.ravel()
            return pads
        came = yield NOTHING
        return self._sender.extend_words(count, came)

    @property
    def _chooser(self) -> Chooser:
        return self._begun[0]

    @property
    def _sender(self) -> Sender:
        return self._begun[1]

    @property
    def _begun(self) -> tuple[Chooser, Sender]:
        if self._sessions is None:
            raise CryptoError("Computing on shares needs sessions of transfers first. Begin with these.")
        return self._sessions
