"""Reserve: all that two sides make ahead for computations on shares, each thing drawn once.

    once       both     a session of transfers in each direction; the first side's key of products       `begin_...`
    ahead      first    extensions of what it chooses, encrypted random words       ---->
               second                                                               <----  its own, and products
    online     both     draw the same things in the same order                                        `Reserve`

What lies in a reserve depends on no input. A thing that was drawn is gone, nothing is ever written down, and a process
that was forked has no reserve. Both sides count what is left, so that a refill says no more than how much is asked for.
The first side chooses in comparisons and has the key, which is where its work and that of the second side differ.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any, Generic, NoReturn, TypeVar

import numpy as np

from colonnade.crypto import products
from colonnade.crypto.packing import n_words
from colonnade.crypto.paired import (
    DIGIT_BITS,
    RandomProducts,
    Stock,
    chooser_products,
    n_digits,
    n_products,
    sender_products,
)
from colonnade.crypto.profiles import SHARES
from colonnade.crypto.rlwe import PublicKey, SecretKey
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
    open_sessions,
    split_columns,
)
from colonnade.crypto.triples import (
    AT_ONCE,
    Squares,
    Triples,
    ask_for_squares,
    ask_for_triples,
    help_with_squares,
    help_with_triples,
    receive_squares,
    receive_triples,
)
from colonnade.errors import CryptoError

T = TypeVar("T")
Key = TypeVar("Key", PublicKey, SecretKey)


@dataclass(frozen=True)
class Amount:
    """How much a computation on shares takes.

    Attributes:
        digits: Digits of numbers whose signs are looked at.
        bits: Products of shared bits.
        forth: Words times a bit of the first side.
        back: Words times a bit of the second side.
        triples: Products of shared words.
        squares: Squares of shared words.
        seeds: Bits of factors that the first side alone knows.

    >>> Amount(triples=3) * 2 + Amount(digits=1, triples=1)
    Amount(digits=1, bits=0, forth=0, back=0, triples=7, squares=0, seeds=0)
    """

    digits: int = 0
    bits: int = 0
    forth: int = 0
    back: int = 0
    triples: int = 0
    squares: int = 0
    seeds: int = 0

    def __add__(self, other: Amount) -> Amount:
        return Amount(*(getattr(self, each.name) + getattr(other, each.name) for each in fields(self)))

    def __mul__(self, times: int) -> Amount:
        return Amount(*(getattr(self, each.name) * times for each in fields(self)))

    @classmethod
    def of_signs(cls, count: int, bits: int) -> Amount:
        """What the signs of `count` numbers of `bits` bits take."""
        return cls(digits=count * n_digits(bits), bits=count * n_products(bits))


@dataclass(frozen=True)
class Sessions(Generic[Key]):
    """What a side has of the sessions in both directions; the first side has the secret key, the second the public."""

    chooser: Chooser
    sender: Sender
    key: Key


class Reserve:
    """One side's reserve, and whether this side is the first."""

    def __init__(self, *, leading: bool) -> None:
        self.leading, self._pools, self._process = leading, dict[str, Any](), os.getpid()

    def __reduce__(self) -> NoReturn:
        raise CryptoError("A reserve serves once and cannot be copied. Prepare a new one.")

    @property
    def left(self) -> Amount:
        """How much is left."""
        return Amount(**{name: _size(pool) for name, pool in self._pools.items()})

    def add(self, name: str, pool: Any) -> None:
        """Put something in, behind what is left of its kind."""
        self._pools[name] = _joined(self._pools[name], pool) if name in self._pools else pool

    def signs(self, count: int, bits: int) -> Stock:
        """What the signs of `count` numbers take."""
        digits: ChooserPads | SenderPads = self._drawn("digits", count * n_digits(bits))
        return Stock(digits, self.bits(count * n_products(bits)))

    def bits(self, count: int) -> RandomProducts:
        """Random products of bits."""
        found: RandomProducts = self._drawn("bits", count)
        return found

    def shifts(self, count: int) -> ChooserWords | SenderWords:
        """What shifts of `count` words take."""
        found: ChooserWords | SenderWords = self._drawn("forth", count)
        return found

    def choices(self, count: int) -> tuple[SenderWords, ChooserWords]:
        """What `count` products of a shared bit and a shared word take: this side's words, and the other side's."""
        forth, back = self._drawn("forth", count), self._drawn("back", count)
        return (back, forth) if self.leading else (forth, back)

    def triples(self, count: int) -> Triples:
        """Random products of words."""
        found: Triples = self._drawn("triples", count)
        return found

    def squares(self, count: int) -> Squares:
        """Random squares of words."""
        found: Squares = self._drawn("squares", count)
        return found

    def seeds(self, count: int) -> Any:
        """Seeds of transfers with long messages: a `ChooserSeeds` of the first side, a `SenderSeeds` of the second."""
        return self._drawn("seeds", count)

    def _drawn(self, name: str, count: int) -> Any:
        if os.getpid() != self._process:
            raise CryptoError(
                "A reserve serves the process that prepared it, but a forked process draws on it. Prepare a new one."
            )
        pool = self._pools.get(name)
        if pool is None or _size(pool) < count:
            raise CryptoError(
                f"Expected a reserve of {count} {name}, but {0 if pool is None else _size(pool)} are left. "
                "Prepare more ahead."
            )
        drawn, self._pools[name] = _cut(pool, slice(count)), _cut(pool, slice(count, None))
        return drawn


def begin_first() -> Turns[Sessions[SecretKey]]:
    """The first side's turns: sessions in both directions, and its key of products."""
    key = SecretKey(profile=SHARES)
    chooser, sender = yield from open_sessions()
    yield np.frombuffer(key.public.to_bytes(), np.uint64)
    return Sessions(chooser, sender, key)


def begin_second() -> Turns[Sessions[PublicKey]]:
    """The second side's turns: sessions in both directions."""
    chooser, sender = yield from open_sessions()
    key = PublicKey.from_bytes((yield NOTHING).tobytes(), SHARES)
    return Sessions(chooser, sender, key)


def fill_first(sessions: Sessions[SecretKey], reserve: Reserve, amount: Amount) -> Turns[None]:
    """The first side's turns: a reserve that holds so much at least."""
    lacks, chooser, key = _lacking(reserve, amount), sessions.chooser, sessions.key
    digits, one = chooser.extend(lacks.digits, DIGIT_BITS, 2)
    bits, two = chooser_products(chooser, lacks.bits)
    forth, three = chooser.extend_words(lacks.forth)
    seeds, four = chooser.extend_seeds(lacks.seeds)
    came = yield np.concatenate([each.ravel() for each in (one, two, three, four)])
    for name, pool in (("digits", digits), ("bits", bits), ("forth", forth), ("seeds", seeds)):
        reserve.add(name, pool)
    reserve.add("back", sessions.sender.extend_words(lacks.back, came))
    for count in _batches(lacks.triples):
        a, b, data = ask_for_triples(key.public, count)
        yield key.public.packed(data).ravel()
        reserve.add("triples", receive_triples(key, a, b, _ciphertexts(key.public, (yield NOTHING), count)))
    for count in _batches(lacks.squares):
        a, data = ask_for_squares(key.public, count)
        yield key.public.packed(data).ravel()
        reserve.add("squares", receive_squares(key, a, _ciphertexts(key.public, (yield NOTHING), count)))


def fill_second(sessions: Sessions[PublicKey], reserve: Reserve, amount: Amount) -> Turns[None]:
    """The second side's turns: a reserve that holds so much at least."""
    lacks, sender, key = _lacking(reserve, amount), sessions.sender, sessions.key
    back, sent = sessions.chooser.extend_words(lacks.back)
    came = yield sent.ravel()
    transfers = [lacks.digits * DIGIT_BITS, 2 * lacks.bits, lacks.forth, lacks.seeds]
    one, two, three, four = split_columns(came, transfers)
    reserve.add("digits", sender.extend(lacks.digits, DIGIT_BITS, 2, one))
    reserve.add("bits", sender_products(sender, lacks.bits, two))
    reserve.add("forth", sender.extend_words(lacks.forth, three))
    reserve.add("seeds", sender.extend_seeds(lacks.seeds, four))
    reserve.add("back", back)
    for count in _batches(lacks.triples):
        reply, triples = help_with_triples(key, _ciphertexts(key, (yield NOTHING), 2 * count), count)
        yield key.packed(reply).ravel()
        reserve.add("triples", triples)
    for count in _batches(lacks.squares):
        reply, squares = help_with_squares(key, _ciphertexts(key, (yield NOTHING), count), count)
        yield key.packed(reply).ravel()
        reserve.add("squares", squares)


def _lacking(reserve: Reserve, amount: Amount) -> Amount:
    left = reserve.left
    lacks = {each.name: max(0, getattr(amount, each.name) - getattr(left, each.name)) for each in fields(Amount)}
    # A batch of encrypted products costs as much with fewer.
    full = {name: -(-lacks[name] // AT_ONCE) * AT_ONCE for name in ("triples", "squares")}
    return Amount(**(lacks | full))


def _batches(count: int) -> Iterator[int]:
    return iter([AT_ONCE] * (count // AT_ONCE))


def _ciphertexts(key: PublicKey, came: Words, n_values: int) -> Any:
    """The ciphertexts of `n_values` words."""
    count, limbs = products.n_ciphertexts(n_values), len(SHARES.primes)
    length = n_words(SHARES.n)
    if came.size != count * 2 * limbs * length:
        raise CryptoError(
            f"Expected {count} ciphertexts, got {came.size} words. Check that both parties prepare as much."
        )
    return key.unpacked(came.reshape(count, 2, limbs, length), count, "the other side")


def _size(pool: Any) -> int:
    return next(len(part) for part in vars(pool).values() if isinstance(part, np.ndarray))


def _cut(pool: T, some: slice) -> T:
    return replace(pool, **{name: part[some] for name, part in vars(pool).items() if isinstance(part, np.ndarray)})  # type: ignore[type-var]


def _joined(pool: T, more: Any) -> T:
    parts = {name: part for name, part in vars(pool).items() if isinstance(part, np.ndarray)}
    return replace(pool, **{name: np.concatenate([part, getattr(more, name)]) for name, part in parts.items()})  # type: ignore[type-var]
