"""Signs: which of many shared numbers are negative, and words that are kept or dropped by such a bit; nothing opened.

    numbers    |x| < 2^(bits - 1), x = first + second modulo 2^bits; the top bit of x says whether x is negative
    top bit    that of first, that of second and the carry, added;  carry: first's lower bits > all ones - second's
    digits     for each digit of four bits one of 16 (`transfers`): shares of "larger" and of "equal"
    tree       of two neighbouring digits  larger = larger_high + equal_high larger_low,  equal = equal_high equal_low
    products   of two shared bits, from a random product that was made ahead of two transfers, and two opened sums

Bits are shared by exclusive or, words modulo 2^64. All transfers are made ahead (`Stock`), so that a batch costs a few
bits for each comparison and log2(digits) + 2 turns online. One side is the chooser, the first, the other one the
sender, the second. Comparison as of Rathee et al. 2020 (CrypTFlow2), random products as of
Beaver 1991. For semi-honest parties.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from colonnade.crypto.packing import packed
from colonnade.crypto.sampling import Stream
from colonnade.crypto.shares import Share
from colonnade.crypto.transfers import (
    Chooser,
    ChooserPads,
    ChooserWords,
    Sender,
    SenderPads,
    SenderWords,
    Turns,
    Words,
    choose,
    offer,
    split_columns,
    unpacked_bits,
)
from colonnade.errors import CryptoError

Bits: TypeAlias = NDArray[np.uint8]
"""Shares of bits, each 0 or 1."""

DIGIT_BITS = 4
_VALUES = 1 << DIGIT_BITS


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
