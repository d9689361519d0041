"""Lookups: a public table read at shared places, one transfer of one of 2^k for each; nothing opened.

    place      x = first + second  modulo 2^k
    sender     draws a word r; its message i is  table[i + second] - r,  for each i
    chooser    chooses i = first; its share is the message, the sender's is r
    pads       k transfers of one of two give 2k keys, and the chooser knows k of them; each message is under the k keys
               that the bits of its number choose, each stretched to as many words as it covers

Bits of words 2^k times as long as the answer cross for each lookup, so tables are small. One of 2^k is that of Naor and
Pinkas 1999, on `transfers`. For semi-honest parties.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from colonnade.crypto.sampling import Stream
from colonnade.crypto.shares import Share
from colonnade.crypto.transfers import NOTHING, Chooser, Sender, Turns, hashed
from colonnade.errors import CryptoError

MOST_PLACE_BITS = 10
_ROWS_AT_ONCE = 4096


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
    for bit, own in enumerate(np.moveaxis(keys.reshape(len(share), bits, 2), 1, 0)):
        # Among the messages with this bit, the place without it.
        low = np.uint64((1 << bit) - 1)
        number = (places & low) | ((places >> np.uint64(1)) & ~low)
        block = hashed(chooser.pad_key, own[:, None] ^ _counters(number >> np.uint64(1))[:, None])[:, 0]
        out = out ^ np.where(number & np.uint64(1), block[:, 1], block[:, 0])
    return out


def show_table(sender: Sender, share: Share, table: NDArray[np.uint64]) -> Turns[Share]:
    """The sender's turns: its shares of the table's words, from its shares of the places modulo the table's length."""
    bits = len(table).bit_length() - 1
    assert len(table) == 1 << bits
    assert 1 <= bits <= MOST_PLACE_BITS
    came = yield NOTHING
    keys = sender.both_keys(len(share) * bits, came).reshape(len(share), bits, 2, 2)
    own = Stream().words(len(share))
    turned = (share[:, None] + np.arange(len(table), dtype=np.uint64)).astype(np.intp) % len(table)
    messages = table[turned] - own[:, None]
    counters = _counters(np.arange(max(len(table) // 4, 1), dtype=np.uint64))
    for start in range(0, len(share), _ROWS_AT_ONCE):
        rows = slice(start, start + _ROWS_AT_ONCE)
        for bit in range(bits):
            halves = messages[rows].reshape(-1, len(table) >> bit + 1, 2, 1 << bit)
            for value in range(2):
                blocks = hashed(sender.pad_key, keys[rows, bit, value, None] ^ counters)
                words = blocks.reshape(len(blocks), -1)[:, : len(table) // 2]
                halves[:, :, value] ^= words.reshape(-1, *halves.shape[1:2], halves.shape[3])
    yield messages.ravel()
    return own


def _counters(numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Numbers of blocks, as blocks of two words."""
    return np.stack([numbers, np.zeros_like(numbers)], axis=-1)
