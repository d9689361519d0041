"""Scaling: shared words times whole numbers that one side alone knows, by few transfers with long messages.

    chooser    knows the factors; one transfer for each bit of a factor, whatever the number of words it multiplies
    sender     its shares x of the words;  for bit j two pads of all words; the chooser knows one of the two
    online     chooser   says where its bit stands                                      one bit for each bit
               sender    sends  pad_0 - pad_1 + x                                       64 - j bits for each word
               both      shares of  bit x,  times 2^j

Bit j counts modulo 2^(64 - j) only, so no more of it is sent. The top bit of a factor counts negative. Gilboa 1999,
with pads from seeds as of Ishai, Kilian, Nissim and Petrank 2003. For semi-honest parties.
"""

from __future__ import annotations

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR
from numpy.typing import NDArray

from colonnade.crypto.packing import n_words, packed
from colonnade.crypto.shares import Share
from colonnade.crypto.transfers import NOTHING, ChooserSeeds, SenderSeeds, Turns, unpacked_bits, unpacked_from
from colonnade.errors import CryptoError


def scale_as_chooser(factors: NDArray[np.int64], bits: int, share: Share, seeds: ChooserSeeds) -> Turns[Share]:
    """The chooser's turns: its shares of words (m, k) times one factor for each row.

    Args:
        factors: The factors (m,), between -2^(bits - 1) and 2^(bits - 1), without these two.
        bits: How many bits a factor has, sign included.
        share: This side's shares of the words.
        seeds: One for each row and bit.
    """
    assert (np.abs(factors) < 2 ** (bits - 1)).all()
    places = np.arange(bits, dtype=np.int64)
    chosen = ((factors[:, None] >> places) & 1).astype(np.uint8)
    yield packed(seeds.moved(chosen.ravel()).astype(np.uint64), 1)
    came = yield NOTHING
    if came.shape != (_length(share.size, bits),) or came.dtype != np.uint64:
        raise CryptoError(
            f"Expected {share.size} words times {bits} bits, got an array of shape {came.shape}. "
            "Check that both parties run the same version."
        )
    pads = _expanded(seeds.words, share.shape[1]).reshape(len(share), bits, -1)
    out, start = factors.view(np.uint64)[:, None] * share, 0
    for place in range(bits):
        end = start + n_words(share.size, 64 - place)
        sent = unpacked_from(came[start:end], share.size, 64 - place).reshape(share.shape)
        start = end
        known = pads[:, place] + np.where(chosen[:, place, None], sent, np.uint64(0))
        out = out + known * _weight(place, bits)
    return out


def scale_as_sender(bits: int, share: Share, seeds: SenderSeeds) -> Turns[Share]:
    """The sender's turns: its shares of words (m, k) times the chooser's factors."""
    moved = unpacked_bits((yield NOTHING), len(share) * bits)
    zero, one = (_expanded(each, share.shape[1]).reshape(len(share), bits, -1) for each in seeds.swapped(moved))
    parts, own = [], np.zeros(share.shape, np.uint64)
    for place in range(bits):
        mask = np.uint64(2 ** (64 - place) - 1)
        parts.append(packed(((zero[:, place] - one[:, place] + share) & mask).ravel(), 64 - place))
        own = own - zero[:, place] * _weight(place, bits)
    yield np.concatenate(parts)
    return own


def _length(n_values: int, bits: int) -> int:
    return sum(n_words(n_values, 64 - place) for place in range(bits))


def _weight(place: int, bits: int) -> np.uint64:
    return np.uint64((-(1 << place) if place == bits - 1 else 1 << place) % 2**64)


def _expanded(seeds: NDArray[np.uint64], length: int) -> NDArray[np.uint64]:
    """The pads (seeds, length) of seeds."""
    zeros, start = bytes(8 * length), bytes(16)
    whole = [Cipher(AES(seed.tobytes()), CTR(start)).encryptor().update(zeros) for seed in seeds]
    return np.frombuffer(b"".join(whole), np.uint64).reshape(len(seeds), length)
