"""Oblivious transfers: the chooser gets one of 2^k messages of the sender, who does not learn which one.

    base       chooser   A = aG                                                       once, 32 bytes
               sender    draws 128 bits s; sends two points for each, and knows the key of the one that s chooses
               both      chooser: two seeds for each, by a;  sender: the seed that its bit of s chooses
    ahead      chooser   expands both seeds of each to columns t and t';  sends  t + t' + its choices   16 bytes each
               sender    its seed's column, plus what came where its bit of s is 1: row by row  t + choice * s
               both      hash rows: the sender has two keys of 128 bits, the chooser the one of its choice
    ahead      both      k transfers of one of two make one of 2^k: 2^k pads, the chooser knows one, at a random place
    online     chooser   sends  choice + place                                        k bits
               sender    moves its pads by this and sends all messages under them     2^k short messages
               chooser   opens the one of its choice

All sums are exclusive ors. Each side of a computation online is a generator: it yields what it sends in a turn and is
given what the other side sent in the same turn. What is ahead depends on no input; it serves once and is never written
down. The base is that of Bellare and Micali 1989 on Curve25519, with a hashed point in place of the one without a known
key, the extension that of Ishai, Kilian, Nissim and Petrank 2003, one of 2^k that of Naor and Pinkas 1999, and moving
random transfers that of Beaver 1995. The hash is AES under a public key of the session, x + AES(x). For semi-honest
parties: a sender that knows the keys of both its points learns choices.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, TypeAlias, TypeVar

import numpy as np
from blake3 import blake3
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR, ECB
from numpy.typing import NDArray

from colonnade.crypto.curve import POINT_BYTES, Points, hash_to_curve, make_key, multiply
from colonnade.crypto.packing import n_words, packed, unpacked_wide
from colonnade.errors import CryptoError

R = TypeVar("R")

Words: TypeAlias = NDArray[np.uint64]
Turns: TypeAlias = Generator[Words, Words, R]
"""One side's turns: words out, words in, and in the end what this side holds."""
Exchange: TypeAlias = Callable[[dict[int, Words]], Iterable[tuple[int, Words]]]
"""Given the words that computations send in a turn, by the computation's number, gives the words that come back."""

NOTHING = np.zeros(0, np.uint64)
COLUMNS = 128
MOST_BITS = 5
"""One of at most 2^5 messages, so that all pads of a transfer fit a word."""
_BASE = np.zeros((1, POINT_BYTES), np.uint8)
_BASE[0, 0] = 9
_KEY_BYTES = 16
_BLOCK = 64


@dataclass(frozen=True)
class SenderSeeds:
    """What a sender has of transfers of long messages that were made ahead: two seeds of 128 bits each."""

    zero: Words
    one: Words

    def swapped(self, moved: NDArray[np.uint8]) -> tuple[Words, Words]:
        """What belongs to bits 0 and to bits 1, after the chooser said how they stand."""
        _require_moves(moved.astype(np.uint64), len(self.zero), 1)
        swap = moved.astype(bool).reshape(-1, *(1,) * (self.zero.ndim - 1))
        return np.where(swap, self.one, self.zero), np.where(swap, self.zero, self.one)


@dataclass(frozen=True)
class SenderWords(SenderSeeds):
    """What a sender has of products with a bit that were made ahead: two words each."""

    def sealed(self, words: Words, moved: NDArray[np.uint8]) -> tuple[Words, Words]:
        """What is sent, and this side's shares of words times the chooser's bits, modulo 2^64."""
        zero, one = self.swapped(moved)
        return zero - one + words, np.uint64(0) - zero


@dataclass(frozen=True)
class ChooserSeeds:
    """What a chooser has of transfers of long messages that were made ahead: a random bit and one seed each."""

    places: NDArray[np.uint8]
    words: Words

    def moved(self, bits: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """What is sent so that what this side knows stands at the bit."""
        return bits ^ self.places


@dataclass(frozen=True)
class ChooserWords(ChooserSeeds):
    """What a chooser has of products with a bit that were made ahead: a random bit and one word each."""

    def opened(self, sent: Words, bits: NDArray[np.uint8]) -> Words:
        """This side's shares of the sender's words times the bits, modulo 2^64."""
        _require_words(sent, self.words)
        return self.words + np.where(bits, sent, np.uint64(0))


@dataclass(frozen=True)
class SenderPads:
    """What a sender has of transfers that were made ahead: 2^bits pads of `width` bits each, in one word."""

    words: Words
    bits: int
    width: int

    def sealed(self, messages: Words, moved: Words) -> Words:
        """Messages (m,), 2^bits of them in each word, under pads moved as the chooser said."""
        _require_moves(moved, len(self.words), self.bits)
        pads = self.words.copy()
        for bit in range(self.bits):
            distance, low = np.uint64(self.width << bit), _groups(bit, self.bits, self.width)
            swapped = ((pads & low) << distance) | ((pads >> distance) & low)
            pads = np.where((moved >> np.uint64(bit)) & np.uint64(1), swapped, pads)
        return messages ^ pads


@dataclass(frozen=True)
class ChooserPads:
    """What a chooser has of transfers that were made ahead: one pad for each, and its place."""

    places: Words
    pads: Words
    bits: int
    width: int

    def moved(self, choices: Words) -> Words:
        """What is sent so that the known pad stands at the choice."""
        return choices ^ self.places

    def opened(self, words: Words, choices: Words) -> Words:
        """The messages of the choices."""
        _require_words(words, self.pads)
        mask = np.uint64((1 << self.width) - 1)
        return ((words >> (choices * np.uint64(self.width))) & mask) ^ self.pads


class Sender:
    """The side of the messages. Made from the chooser's point; `points` goes back to the chooser."""

    def __init__(self, point: Points) -> None:
        if point.shape != (1, POINT_BYTES) or point.dtype != np.uint8:
            raise CryptoError(
                f"Expected one point of {POINT_BYTES} bytes, got an array of shape {point.shape}. "
                "Check that both parties run the same version."
            )
        self._secret = np.frombuffer(secrets.token_bytes(_KEY_BYTES), np.uint8)
        bits = np.unpackbits(self._secret, bitorder="little").astype(bool)
        keys = [make_key() for _ in range(COLUMNS)]
        known = np.concatenate([multiply(key, _BASE) for key in keys])
        hashed = hash_to_curve(np.frombuffer(secrets.token_bytes(_KEY_BYTES * COLUMNS), np.uint8).reshape(COLUMNS, -1))
        # Products of fresh keys, so that nothing tells points with a known key from others.
        unknown = np.concatenate([multiply(make_key(), hashed[i : i + 1]) for i in range(COLUMNS)])
        self.points = np.where(bits[:, None, None], np.stack([unknown, known], 1), np.stack([known, unknown], 1))
        shared = np.concatenate([multiply(key, point) for key in keys])
        seeds = [_seed(i, point, self.points[i, int(bits[i])], shared[i]) for i in range(COLUMNS)]
        self._bits, self._columns = bits, _Columns(seeds)
        self._hash, self.pad_key = _public_keys(point, self.points)

    def __reduce__(self) -> NoReturn:
        raise CryptoError("A sender of transfers holds secrets and cannot be copied. Begin a new session.")

    def extend(self, count: int, bits: int, width: int, sent: Words) -> SenderPads:
        """Pads of `count` transfers of one of 2^bits, from what the chooser sent."""
        _require_sizes(bits, width)
        keys = self.both_keys(count * bits, sent)[..., 0].reshape(count, bits, 2)
        words = np.zeros(count, np.uint64)
        for bit in range(bits):
            low = _groups(bit, bits, width)
            high = low << np.uint64(width << bit)
            words ^= (keys[:, bit, 0] & low) | (keys[:, bit, 1] & high)
        return SenderPads(words, bits, width)

    def extend_words(self, count: int, sent: Words) -> SenderWords:
        """The words of `count` products with a bit, from what the chooser sent."""
        keys = self.both_keys(count, sent)[..., 0]
        return SenderWords(keys[:, 0].copy(), keys[:, 1].copy())

    def extend_seeds(self, count: int, sent: Words) -> SenderSeeds:
        """The seeds of `count` transfers of long messages, from what the chooser sent."""
        keys = self.both_keys(count, sent)
        return SenderSeeds(keys[:, 0].copy(), keys[:, 1].copy())

    def both_keys(self, count: int, sent: Words) -> Words:
        """Both keys of `count` transfers of one of two (count, 2, 2 words), from what the chooser sent."""
        length = -(-count // _BLOCK)
        if sent.size != COLUMNS * length or sent.dtype != np.uint64:
            raise CryptoError(
                f"Expected {COLUMNS} columns of {length} words, got an array of shape {sent.shape}. "
                "Check that both parties run the same version."
            )
        columns = self._columns.next(length)
        columns ^= np.where(self._bits[:, None], sent.reshape(COLUMNS, length), np.uint64(0))
        rows = _rows(columns)[:count]
        one = rows ^ self._secret.view(np.uint64)
        return np.stack([hashed(self._hash, rows), hashed(self._hash, one)], axis=1)


class Chooser:
    """The side of the choices. `point` goes to the sender, whose points come back."""

    def __init__(self) -> None:
        self._key = make_key()
        self.point = multiply(self._key, _BASE)
        self._columns: tuple[_Columns, _Columns] | None = None
        self._hash, self.pad_key = b"", b""

    def __reduce__(self) -> NoReturn:
        raise CryptoError("A chooser of transfers holds secrets and cannot be copied. Begin a new session.")

    def begin(self, points: Points) -> None:
        """Take the sender's points."""
        if points.shape != (COLUMNS, 2, POINT_BYTES) or points.dtype != np.uint8:
            raise CryptoError(
                f"Expected {COLUMNS} pairs of points, got an array of shape {points.shape}. "
                "Check that both parties run the same version."
            )
        shared = multiply(self._key, points.reshape(-1, POINT_BYTES)).reshape(points.shape)
        one, two = (
            _Columns([_seed(i, self.point, points[i, side], shared[i, side]) for i in range(COLUMNS)])
            for side in range(2)
        )
        self._columns = one, two
        self._hash, self.pad_key = _public_keys(self.point, points)

    def extend(self, count: int, bits: int, width: int) -> tuple[ChooserPads, Words]:
        """Pads of `count` transfers of one of 2^bits at random places, and what the sender needs for them."""
        _require_sizes(bits, width)
        chosen = _random_bits(count * bits)
        keys, sent = self.choose_keys(chosen)
        places = np.zeros(count, np.uint64)
        for bit in range(bits):
            places |= chosen.reshape(count, bits)[:, bit].astype(np.uint64) << np.uint64(bit)
        combined = np.bitwise_xor.reduce(keys[:, 0].reshape(count, bits), axis=1)
        pads = (combined >> (places * np.uint64(width))) & np.uint64((1 << width) - 1)
        return ChooserPads(places, pads, bits, width), sent

    def extend_words(self, count: int) -> tuple[ChooserWords, Words]:
        """The words of `count` products with a random bit, and what the sender needs for them."""
        chosen = _random_bits(count)
        keys, sent = self.choose_keys(chosen)
        return ChooserWords(chosen, keys[:, 0].copy()), sent

    def extend_seeds(self, count: int) -> tuple[ChooserSeeds, Words]:
        """The seeds of `count` transfers of long messages by random bits, and what the sender needs for them."""
        chosen = _random_bits(count)
        keys, sent = self.choose_keys(chosen)
        return ChooserSeeds(chosen, keys), sent

    def choose_keys(self, choices: NDArray[np.uint8]) -> tuple[Words, Words]:
        """The chosen keys of transfers of one of two (count, 2 words), and what the sender needs for both."""
        if self._columns is None:
            raise CryptoError("Transfers need the sender's points first. Begin with these.")
        length = -(-len(choices) // _BLOCK)
        # Places that are left over get random choices, so that they are like all others.
        padded = np.concatenate([choices, _random_bits(_BLOCK)])[: length * _BLOCK]
        zero, one = (columns.next(length) for columns in self._columns)
        words = np.packbits(padded, bitorder="little").view(np.uint64)
        return hashed(self._hash, _rows(zero)[: len(choices)]), zero ^ one ^ words


def choose(pads: ChooserPads, choices: Words) -> Turns[Words]:
    """The chooser's turns: the messages of its choices."""
    yield packed(pads.moved(choices), pads.bits)
    came = yield NOTHING
    return pads.opened(unpacked_from(came, len(choices), pads.width << pads.bits), choices)


def offer(pads: SenderPads, messages: Words) -> Turns[None]:
    """The sender's turns, with 2^bits messages of `width` bits in each word."""
    came = yield NOTHING
    moved = unpacked_from(came, len(messages), pads.bits)
    yield packed(pads.sealed(messages, moved), pads.width << pads.bits)


def choose_words(pads: ChooserWords, bits: NDArray[np.uint8]) -> Turns[Words]:
    """The chooser's turns: its shares of the sender's words times its bits."""
    yield packed(pads.moved(bits).astype(np.uint64), 1)
    return pads.opened((yield NOTHING), bits)


def offer_words(pads: SenderWords, words: Words) -> Turns[Words]:
    """The sender's turns: its shares of its words times the chooser's bits."""
    sent, own = pads.sealed(words, unpacked_bits((yield NOTHING), len(words)))
    yield sent
    return own


def open_sessions() -> Turns[tuple[Chooser, Sender]]:
    """Either side's turns: a session in which this side chooses, and one in which this side sends."""
    chooser = Chooser()
    sender = Sender(_points((yield _as_words(chooser.point)), (1, POINT_BYTES)))
    chooser.begin(_points((yield _as_words(sender.points)), (COLUMNS, 2, POINT_BYTES)))
    return chooser, sender


def take_turns(turns: Sequence[Turns[Any]], exchange: Exchange) -> list[Any]:
    """Run one side of several computations at once; returns what this side holds in the end of each."""
    results: list[Any] = [None] * len(turns)
    outgoing = {number: next(each) for number, each in enumerate(turns)}
    while outgoing:
        incoming, outgoing = exchange(outgoing), {}
        for number, words in incoming:
            try:
                outgoing[number] = turns[number].send(words)
            except StopIteration as end:
                results[number] = end.value
    return results


def in_turns(one: Turns[Any], other: Turns[Any]) -> tuple[Any, Any]:
    """Run both sides of a computation in one process; returns what each of them holds in the end."""

    def swapped(outgoing: dict[int, Words]) -> list[tuple[int, Words]]:
        assert len(outgoing) == 2, "both sides have as many turns"
        return [(0, outgoing[1]), (1, outgoing[0])]

    first, second = take_turns([one, other], swapped)
    return first, second


def unpacked_from(words: Words, count: int, bits: int) -> Words:
    """`count` numbers that came from the other side.

    Raises:
        CryptoError: It sent something else.
    """
    if words.shape != (n_words(count, bits),) or words.dtype != np.uint64:
        raise CryptoError(
            f"Expected {count} numbers of {bits} bits, got an array of shape {words.shape}. "
            "Check that both parties run the same version on as many rows."
        )
    return unpacked_wide(words, count, bits)


def unpacked_bits(words: Words, count: int) -> NDArray[np.uint8]:
    """`unpacked_from` for bits."""
    return unpacked_from(words, count, 1).astype(np.uint8)


def split_columns(came: Words, transfers: Sequence[int]) -> list[Words]:
    """What a chooser sent for several batches of transfers, batch by batch."""
    lengths = [-(-count // _BLOCK) for count in transfers]
    if came.shape != (COLUMNS * sum(lengths),) or came.dtype != np.uint64:
        raise CryptoError(
            f"Expected {COLUMNS} columns of {sum(lengths)} words, got an array of shape {came.shape}. "
            "Check that both parties prepare as much."
        )
    return np.split(came, COLUMNS * np.cumsum(lengths)[:-1])


class _Columns:
    """The pseudorandom columns of seeds, drawn on and on in the process that made them."""

    def __init__(self, seeds: list[bytes]) -> None:
        self._streams = [Cipher(AES(seed), CTR(bytes(16))).encryptor() for seed in seeds]
        self._process = os.getpid()

    def next(self, length: int) -> Words:
        """The next words of every column (columns, length)."""
        if os.getpid() != self._process:
            raise CryptoError(
                "Transfers serve the process that began them, but a forked process uses them. Begin a new session."
            )
        zeros = bytes(8 * length)
        whole = b"".join([stream.update(zeros) for stream in self._streams])
        return np.frombuffer(bytearray(whole), np.uint64).reshape(len(self._streams), length)


def _require_sizes(bits: int, width: int) -> None:
    assert 1 <= bits <= MOST_BITS, "one of two to one of 32"
    assert width << bits <= _BLOCK, "all pads of a transfer fit a word"


def _require_words(words: Words, expected: Words) -> None:
    if words.shape != expected.shape or words.dtype != np.uint64:
        raise CryptoError(
            f"Expected {len(expected)} words from the sender, got an array of shape {words.shape}. "
            "Check that both parties run the same version."
        )


def _groups(bit: int, bits: int, width: int) -> np.uint64:
    """The bits of all groups of `width` bits whose number has a 0 at this bit."""
    ones = (1 << width) - 1
    return np.uint64(sum(ones << group * width for group in range(1 << bits) if not group >> bit & 1))


def _rows(columns: Words) -> Words:
    """Columns of bits (128, words) as rows (64 words, 2)."""
    from colonnade.crypto import kernels

    out = np.empty((columns.shape[1] * _BLOCK, COLUMNS // _BLOCK), np.uint64)
    kernels.transpose_bits(np.ascontiguousarray(columns), out)
    return out


def hashed(key: bytes, rows: Words) -> Words:
    """Blocks of two words (..., 2) hashed: x + AES(x)."""
    permuted = Cipher(AES(key), ECB()).encryptor().update(np.ascontiguousarray(rows).tobytes())
    return np.frombuffer(permuted, np.uint64).reshape(rows.shape) ^ rows


def _seed(number: int, start: Points, point: Points, shared: Points) -> bytes:
    parts = [number.to_bytes(2, "little"), start.tobytes(), point.tobytes(), shared.tobytes()]
    return blake3(b"".join(parts), derive_key_context="colonnade.crypto.transfers seed").digest(_KEY_BYTES)


def _public_keys(start: Points, points: Points) -> tuple[bytes, bytes]:
    """The session's keys of the hash: of keys, and of pads that are stretched from these."""
    found = blake3(start.tobytes() + points.tobytes(), derive_key_context="colonnade.crypto.transfers hash")
    whole = found.digest(2 * _KEY_BYTES)
    return whole[:_KEY_BYTES], whole[_KEY_BYTES:]


def _as_words(data: NDArray[np.uint8]) -> Words:
    return np.ascontiguousarray(data).view(np.uint64).ravel()


def _points(came: Words, shape: tuple[int, ...]) -> Points:
    if came.dtype != np.uint64 or came.shape != (np.prod(shape) // 8,):
        raise CryptoError(
            f"Expected {np.prod(shape) // POINT_BYTES} points, got an array of shape {came.shape}. "
            "Check that both parties run the same version."
        )
    return np.ascontiguousarray(came).view(np.uint8).reshape(shape)


def _random_bits(count: int) -> NDArray[np.uint8]:
    drawn = np.frombuffer(secrets.token_bytes(-(-count // _BLOCK) * 8), np.uint8)
    return np.unpackbits(drawn, bitorder="little")[:count]


def _require_moves(moved: Words, count: int, bits: int) -> None:
    if moved.shape != (count,) or (moved >> np.uint64(bits)).any():
        raise CryptoError(
            f"Expected {count} numbers of {bits} bits from the chooser, got something else. "
            "Check that both parties run the same version."
        )
