"""Paired: what two parties compute on shares in turns, by oblivious transfers; nothing is opened.

    negative   which of many shared numbers are below zero
      numbers    |x| < 2^(bits - 1), x = first + second modulo 2^bits; the top bit of x says whether x is negative
      top bit    that of first, that of second and the carry, added;  carry: first's lower bits > all ones - second's
      digits     for each digit of four bits one of 16 (`transfers`): shares of "larger" and of "equal"
      tree       of two neighbouring digits larger = larger_high + equal_high larger_low, equal = equal_high equal_low
      products   of two shared bits, from a random product made ahead of two transfers, and two opened sums
    kept       shared words where a shared bit is 1, else 0              two transfers a word
    shift      numbers over a power of two, or one unit less             one transfer a number
    look up    words of a public table at shared places  x = first + second  modulo 2^k
      sender     draws a word r; its message i is  table[i + second] - r,  for each i
      chooser    chooses i = first; its share is the message, the sender's is r
      pads       k transfers of one of two give 2k keys, of which the chooser knows k; the keys that the bits of a half
                 of a number choose make the key of that half, which is stretched to a word for each other half;
                 a message is under the words of both its halves

Bits are shared by exclusive or, words modulo 2^64. One side is the chooser, the first, the other one the sender, the
second. Transfers are made ahead (`Stock`), or as they are needed (`Pair`). Nothing here is ever written down: a party
that starts again begins new sessions. Comparison as of Rathee et al. 2020 (CrypTFlow2), random products as of Beaver
1991, one of 2^k as of Naor and Pinkas 1999, the product of two private words as of Gilboa 1999. For semi-honest
parties.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from colonnade.crypto.packing import packed
from colonnade.crypto.sampling import Stream
from colonnade.crypto.shares import Share, low_half, raised, truncated
from colonnade.crypto.transfers import (
    NOTHING,
    Chooser,
    ChooserPads,
    ChooserWords,
    Sender,
    SenderPads,
    SenderWords,
    Turns,
    Words,
    choose,
    choose_words,
    hashed,
    offer,
    offer_words,
    open_sessions,
    split_columns,
    unpacked_bits,
)
from colonnade.errors import CryptoError

Bits: TypeAlias = NDArray[np.uint8]
"""Shares of bits, each 0 or 1."""

DIGIT_BITS = 4
_VALUES = 1 << DIGIT_BITS
MOST_PLACE_BITS = 10
# So that the pads of these rows stay in the processor's cache.
_ROWS_AT_ONCE = 256
_WORD_BITS = 64


@dataclass(frozen=True)
class RandomProducts:
    """Shares of random bits a and b and of their products."""

    a: Bits
    b: Bits
    product: Bits


@dataclass(frozen=True)
class Stock:
    """What one side needs for a batch of comparisons; it serves once."""

    digits: ChooserPads | SenderPads
    products: RandomProducts


def n_digits(bits: int) -> int:
    """How many digits are compared for numbers of `bits` bits, sign included."""
    return -(-(bits - 1) // DIGIT_BITS)


def n_products(bits: int) -> int:
    """How many products of bits one comparison takes."""
    digits, count = n_digits(bits), 0
    while digits > 1:
        pairs = digits // 2
        # The lowest group is never asked whether it is equal.
        count += 2 * pairs - 1
        digits -= pairs
    return count


def chooser_stock(chooser: Chooser, count: int, bits: int) -> tuple[Stock, Words]:
    """The chooser's stock for the signs of `count` numbers, and what the sender needs for its own."""
    digits, first = chooser.extend(count * n_digits(bits), DIGIT_BITS, 2)
    products, second = chooser_products(chooser, count * n_products(bits))
    return Stock(digits, products), np.concatenate([first.ravel(), second.ravel()])


def sender_stock(sender: Sender, count: int, bits: int, sent: Words) -> Stock:
    """The sender's stock for the signs of `count` numbers, from what the chooser sent."""
    first, second = split_columns(sent, [count * n_digits(bits) * DIGIT_BITS, 2 * count * n_products(bits)])
    digits = sender.extend(count * n_digits(bits), DIGIT_BITS, 2, first)
    return Stock(digits, sender_products(sender, count * n_products(bits), second))


def chooser_products(chooser: Chooser, count: int) -> tuple[RandomProducts, Words]:
    """The chooser's shares of `count` random products, and what the sender needs for its own."""
    pads, sent = chooser.extend(2 * count, 1, 1)
    b, a = (pads.places[some].astype(np.uint8) for some in (slice(None, count), slice(count, None)))
    cross = (pads.pads[:count] ^ pads.pads[count:]).astype(np.uint8)
    return RandomProducts(a, b, (a & b) ^ cross), sent


def sender_products(sender: Sender, count: int, sent: Words) -> RandomProducts:
    """The sender's shares of `count` random products, from what the chooser sent."""
    pads = sender.extend(2 * count, 1, 1, sent)
    zero, one = (pads.words & np.uint64(1)).astype(np.uint8), (pads.words >> np.uint64(1)).astype(np.uint8)
    a, b = (zero[some] ^ one[some] for some in (slice(None, count), slice(count, None)))
    return RandomProducts(a, b, (a & b) ^ zero[:count] ^ zero[count:])


def negative(share: Share, bits: int, stock: Stock) -> Turns[Bits]:
    """Either side's turns: its shares of bits that say which numbers are negative, from its shares of the numbers."""
    low, top = _split(share, bits)
    leading = isinstance(stock.digits, ChooserPads)
    if isinstance(stock.digits, ChooserPads):
        found = yield from choose(stock.digits, _digits(low, bits))
    else:
        digits = _digits(np.uint64((1 << bits - 1) - 1) - low, bits)
        found = Stream().words(len(digits)) & np.uint64(3)
        # Each of the 16 messages is under the same two bits, which are this side's shares.
        yield from offer(stock.digits, _tables()[digits] ^ (found * np.uint64(int("01" * _VALUES, 2))))
    larger = yield from _tree(_columns(found, len(share)), stock.products, leading=leading)
    return top ^ larger


def kept(share: Share, bits: Bits, own: SenderWords, others: ChooserWords) -> Turns[Share]:
    """Either side's turns: its shares of shared words times shared bits.

    Args:
        share: This side's shares of the words.
        bits: This side's shares of the bits.
        own: Words made ahead in the session in which this side is the sender.
        others: Words made ahead in the session in which the other side is.
    """
    came = yield packed(others.moved(bits).astype(np.uint64), 1)
    moved = unpacked_bits(came, len(bits))
    # b w = b_own w + b_other (1 - 2 b_own) w, for each side's w.
    turned = np.where(bits, np.uint64(0) - share, share)
    sent, first = own.sealed(turned, moved)
    second = others.opened((yield sent), bits)
    return np.where(bits, share, np.uint64(0)) + first + second


def all_of(bits: Bits, stock: RandomProducts, *, leading: bool) -> Turns[Bits]:
    """Either side's turns: its shares of whether all bits (k, ...) of a column are 1; takes k - 1 products for each."""
    used = 0
    while len(bits) > 1:
        pairs = len(bits) // 2
        x, y = bits[: 2 * pairs : 2].ravel(), bits[1 : 2 * pairs : 2].ravel()
        found = yield from _products(x, y, _some(stock, used, len(x)), leading=leading)
        used += len(x)
        bits = np.concatenate([found.reshape(pairs, *bits.shape[1:]), bits[2 * pairs :]])
    result: Bits = bits[0]
    return result


def _tree(columns: Bits, stock: RandomProducts, *, leading: bool) -> Turns[Bits]:
    """Shares of "larger" from those of digits (2, digits, m), the lowest digit first."""
    larger, equal = columns
    used = 0
    while len(larger) > 1:
        pairs = len(larger) // 2
        # The highest digit waits where their number is odd; the lowest group is never asked whether it is equal.
        low, high = slice(0, 2 * pairs, 2), slice(1, 2 * pairs, 2)
        x = np.concatenate([equal[high], equal[high][1:]]).ravel()
        y = np.concatenate([larger[low], equal[low][1:]]).ravel()
        found = yield from _products(x, y, _some(stock, used, len(x)), leading=leading)
        used += len(x)
        found = found.reshape(-1, larger.shape[1])
        unasked = np.zeros((1, larger.shape[1]), np.uint8)
        larger = np.concatenate([larger[high] ^ found[:pairs], larger[2 * pairs :]])
        equal = np.concatenate([unasked, found[pairs:], equal[2 * pairs :]])
    result: Bits = larger[0]
    return result


def _products(x: Bits, y: Bits, stock: RandomProducts, *, leading: bool) -> Turns[Bits]:
    """Shares of the products of shared bits."""
    masked = np.concatenate([x ^ stock.a, y ^ stock.b])
    came = unpacked_bits((yield packed(masked.astype(np.uint64), 1)), len(masked))
    d, e = np.split(masked ^ came, 2)
    out: Bits = stock.product ^ (d & stock.b) ^ (e & stock.a)
    return out ^ (d & e) if leading else out


def _some(stock: RandomProducts, start: int, count: int) -> RandomProducts:
    some = slice(start, start + count)
    taken = RandomProducts(stock.a[some], stock.b[some], stock.product[some])
    if len(taken.a) < count:
        raise CryptoError(
            f"Expected a stock of {count} products of bits, but {len(taken.a)} are left. Make more ahead."
        )
    return taken


def _split(share: Share, bits: int) -> tuple[Words, Bits]:
    """The bits below the top bit of a share modulo 2^bits, and the top bit."""
    assert 2 <= bits <= 64
    top = (share >> np.uint64(bits - 1)) & np.uint64(1)
    return share & np.uint64((1 << bits - 1) - 1), top.astype(np.uint8)


def _digits(low: Words, bits: int) -> Words:
    """Digits (digits * m,), those of the lowest place first."""
    shifts = np.arange(n_digits(bits), dtype=np.uint64) * np.uint64(DIGIT_BITS)
    return ((low >> shifts[:, None]) & np.uint64(_VALUES - 1)).ravel()


def _columns(found: Words, count: int) -> Bits:
    """Shares of "larger" and of "equal" (2, digits, m) from words of two bits."""
    shaped = found.astype(np.uint8).reshape(-1, count)
    return np.stack([shaped & 1, shaped >> 1])


def _tables() -> Words:
    """For each digit c the word of 16 messages of two bits: whether i > c, and whether i = c."""
    words = [sum(((i > c) | (i == c) << 1) << 2 * i for i in range(_VALUES)) for c in range(_VALUES)]
    return np.array(words, np.uint64)


def shift(share: Share, bits: int, pads: ChooserWords | SenderWords, *, leading: bool) -> Turns[Share]:
    """Either side's turns: its shares of numbers, |x| < 2^62, over 2^bits, or one unit less."""
    positive = raised(share, leading=leading)
    low = low_half(positive)
    if isinstance(pads, ChooserWords):
        unwrapped = yield from choose_words(pads, low.astype(np.uint8))
    else:
        unwrapped = yield from offer_words(pads, low)
    return truncated(positive, unwrapped, bits, leading=leading)


def look_up(chooser: Chooser, share: Share, bits: int) -> Turns[Share]:
    """The chooser's turns: its shares of the table's words, from its shares of the places modulo 2^bits."""
    places = share & np.uint64((1 << bits) - 1)
    chosen = ((places[:, None] >> np.arange(bits, dtype=np.uint64)) & np.uint64(1)).astype(np.uint8)
    keys, sent = chooser.choose_keys(chosen.ravel())
    yield sent.ravel()
    came = yield NOTHING
    if came.shape != (len(share) << bits,) or came.dtype != np.uint64:
        raise CryptoError(
            f"Expected {len(share) << bits} words of tables, got an array of shape {came.shape}. "
            "Check that both parties run the same version on as many rows."
        )
    out = came.reshape(-1, 1 << bits)[np.arange(len(share)), places.astype(np.intp)]
    keys = keys.reshape(len(share), bits, 2)
    low_bits = bits // 2
    low, high = places & np.uint64((1 << low_bits) - 1), places >> np.uint64(low_bits)
    for own, half, other in ((keys[:, :low_bits], low, high), (keys[:, low_bits:], high, low)):
        tweaked = own ^ _counters(half)[:, None]
        key = np.bitwise_xor.reduce(hashed(chooser.pad_key, tweaked), axis=1)
        block = hashed(chooser.pad_key, key ^ _counters(other >> np.uint64(1)))
        out = out ^ np.where(other & np.uint64(1), block[:, 1], block[:, 0])
    return out


def show_table(sender: Sender, share: Share, table: NDArray[np.uint64]) -> Turns[Share]:
    """The sender's turns: its shares of the table's words, from its shares of the places modulo the table's length."""
    from colonnade.crypto import kernels

    bits = len(table).bit_length() - 1
    assert len(table) == 1 << bits
    assert 1 <= bits <= MOST_PLACE_BITS
    came = yield NOTHING
    keys = sender.both_keys(len(share) * bits, came).reshape(len(share), bits, 2, 2)
    own = Stream().words(len(share))
    messages = np.empty((len(share), len(table)), np.uint64)
    low_bits = bits // 2
    for start in range(0, len(share), _ROWS_AT_ONCE):
        rows = slice(start, start + _ROWS_AT_ONCE)
        low = _stretched(sender.pad_key, keys[rows, :low_bits], bits - low_bits)
        high = _stretched(sender.pad_key, keys[rows, low_bits:], low_bits)
        kernels.mask_table(table, share[rows], own[rows], low, high, messages[rows])
    yield messages.ravel()
    return own


def _stretched(pad_key: bytes, keys: NDArray[np.uint64], other_bits: int) -> NDArray[np.uint64]:
    """For each value of one half of a number the words of its key, one for each value of the other half."""
    from colonnade.crypto import kernels

    count, bits = keys.shape[:2]
    chosen = np.empty((count, bits, 1 << bits, 2), np.uint64)
    kernels.choose_keys(keys, chosen)
    key = np.bitwise_xor.reduce(hashed(pad_key, chosen), axis=1)
    blocks = np.empty((count, 1 << bits, max((1 << other_bits) // 2, 1), 2), np.uint64)
    kernels.count_blocks(key, blocks)
    return hashed(pad_key, blocks).reshape(count, 1 << bits, -1)


def _counters(numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Numbers of blocks, as blocks of two words."""
    return np.stack([numbers, np.zeros_like(numbers)], axis=-1)


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
        """This party's shares, modulo 2^(64 - bits), of numbers over 2^bits, rounded down."""
        # Nothing but the carry out of the low bits is lost when each party shifts its own share.
        low = (share & np.uint64(2**bits - 1)) - np.uint64(2**bits * self.leading)
        short = yield from self.negative(low, bits + 1)
        ones = np.full(len(share), self.leading, np.uint64)
        lost = yield from self.kept(ones, short)
        return (share >> np.uint64(bits)) + ones - lost

    def negative(self, share: Share, bits: int) -> Turns[Bits]:
        """This party's shares of bits that say which numbers, |x| < 2^(bits - 1), are below zero."""
        if self.leading:
            stock, sent = chooser_stock(self._chooser, len(share), bits)
            yield sent
        else:
            stock = sender_stock(self._sender, len(share), bits, (yield NOTHING))
        return (yield from negative(share, bits, stock))

    def kept(self, share: Share, bits: Bits) -> Turns[Share]:
        """This party's shares of shared words times shared bits."""
        others, sent = self._chooser.extend_words(len(share))
        came = yield sent.ravel()
        own = self._sender.extend_words(len(share), came)
        return (yield from kept(share, bits, own, others))

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
