"""The contract of hiding: what a model sends under masks, floods or encryption is drawn for one use by those it names.

Hidden numbers cross as ciphertexts or as words of 64 bits, and seeds in messages that are marked as secret. All lines,
and every key that is expanded into a stream, are watched while the model trains and predicts: with one seed twice for
what the system draws, with two seeds for what is derived from a seed. A contract sees what crosses and what is drawn;
whether a flood is as wide as its profile says is for the tests of a scheme.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any, NamedTuple, TypeAlias
from unittest import mock

import numpy as np
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from numpy.typing import NDArray

from colonnade.crypto.packing import unpacked
from colonnade.crypto.profiles import ARBITER, HISTOGRAM, SHARES
from colonnade.crypto.ring import Residues, Ring
from colonnade.models.base import Estimator
from colonnade.roles import Roles
from colonnade.runtime.party import Party
from colonnade.runtime.simulate import simulate
from colonnade.tables.table import Table
from colonnade.testing.assertions import must
from colonnade.testing.setup import Setup
from colonnade.wire.channel import Channel
from colonnade.wire.message import Ciphertexts, Message, shapes

_STREAMS = ("colonnade.crypto.sampling", "colonnade.privacy.randomness")
# A uniform word is as near to 0 as this once in 2^31 times; counts, bits and padding are.
_LEAST_WORD = 2**32
_MOST_WORDS = 2**13
_FEW_WORDS = 8
# Sums modulo 2^53 are the narrowest that are hidden.
_NEAR = 2**48
_LATTICE_SCHEMES = (ARBITER.name, SHARES.name)
# What messages say that they are under where nothing but secrets hides them; noise and clipping hide by a measure.
_HIDING = ("mask", "flood", "shares", "transfers", "oblivious transfer", "paillier", *_LATTICE_SCHEMES, HISTOGRAM.name)
_PUBLIC_WORDS = np.frombuffer(b"".join(each.fingerprint for each in (ARBITER, SHARES, HISTOGRAM)), np.uint64)


Words: TypeAlias = NDArray[np.uint64]


class Said(NamedTuple):
    """One message with its way."""

    sender: str
    receiver: str
    message: Message
    under: tuple[str, ...] = ()


@dataclass
class WatchedRun:
    """A training and a prediction: what was said, and which party expanded which key into a stream."""

    said: list[Said] = field(default_factory=list)
    expanded: list[tuple[str, bytes]] = field(default_factory=list)

    @classmethod
    def of(cls, setup: Setup, seed: int) -> WatchedRun:
        """Train and predict under watch."""
        watched, acting = cls(), ContextVar("acting", default="")

        def expand(key: bytes, nonce: bytes) -> ChaCha20:
            watched.expanded.append((acting.get(), bytes(key)))
            return ChaCha20(key, nonce)

        def act(protocol: Callable[[Party], Any], party: Party) -> Any:
            acting.set(party.name)
            lines = {peer: _NotedLine(line, party.name, watched.said) for peer, line in party.peers.items()}
            return protocol(replace(party, peers=lines))

        def run(protocols: Mapping[str, Callable[[Party], Any]]) -> Mapping[str, Any]:
            sides = {name: partial(act, protocol) for name, protocol in protocols.items()}
            return simulate(sides, setup.tables, roles=setup.roles, seed=seed, keep="digests").results

        with mock.patch(f"{_STREAMS[0]}.ChaCha20", expand), mock.patch(f"{_STREAMS[1]}.ChaCha20", expand):
            shares = run({name: setup.make().fit for name in setup.roles.parties})
            run({name: share.predict for name, share in shares.items()})
        return watched

    def hidden(self) -> Iterator[tuple[Said, Words]]:
        """The parts of messages that hide something; a part that is sent on, or to several parties, comes once."""
        known = set()
        for said in self.said:
            for part in _hidden_parts(said.message):
                if (data := part.tobytes()) not in known:
                    known.add(data)
                    yield said, part


@dataclass(frozen=True)
class Watched:
    """A run, and the hidden parts of that run and of others with the same tables, none of them drawn from one draw."""

    run: WatchedRun
    parts: list[tuple[Said, Words]]

    @classmethod
    def of(cls, setup: Setup) -> Watched:
        """Watch as many runs as it takes."""
        first = WatchedRun.of(setup, seed=0)
        parts = list(first.hidden())
        for fresh in sorted({said.message.fresh for said, _ in parts}):
            other = WatchedRun.of(setup, seed=0 if fresh else 1)
            parts += [part for part in other.hidden() if part[0].message.fresh is fresh]
        return cls(first, parts)


class _NotedLine(Channel):
    """A line that notes what is said on it."""

    def __init__(self, line: Channel, own: str, said: list[Said]) -> None:
        vars(self).update(vars(line))
        self._own, self._said = own, said

    def send(self, message: Message, **options: Any) -> None:
        self._said.append(Said(self._own, self.peer, message, tuple(options.get("under", ()))))
        super().send(message, **options)


def check_hiding(make: Callable[[], Estimator], tables: Mapping[str, Table], roles: Roles) -> None:
    """Check that what a model hides is hidden by draws that serve once, and that nobody but two parties know.

    Args:
        make: Makes the estimator. Training and prediction should send every kind of message that hides something.
        tables: Rows to train on; a hundred are enough.
        roles: Who does what.
    """
    watched = Watched.of(Setup(make, tables, roles))
    for check in HIDING_CHECKS:
        check(watched)


def something_hidden_crosses(watched: Watched) -> None:
    """A model that hides nothing has no use for this contract."""
    must(bool(watched.parts), "The model should send something hidden, but sends no words, ciphertexts or secrets.")


def what_claims_to_hide_is_looked_at(watched: Watched) -> None:
    """A message that claims a mask, a flood or encryption has parts that the other checks look at."""
    for said in watched.run.said:
        claims = [word for word in said.under if word.startswith(_HIDING)]
        must(
            not claims or hides(type(said.message)),
            f"Messages of {said.message.kind} should hide something, because they claim {', '.join(claims)}, "
            "but hold no words, ciphertexts or secrets.",
        )


def no_hidden_word_crosses_twice(watched: Watched) -> None:
    """Where a mask is missing or serves again, words come again in another message or another run."""
    parts = [(said, _telling(part)) for said, part in watched.parts]
    words = np.sort(np.concatenate([np.zeros(0, np.uint64), *(part for _, part in parts)]))
    repeated = words[1:][words[1:] == words[:-1]]
    kinds = {said.message.kind for said, part in parts if np.isin(part, repeated).any()}
    # Seeds are few and long, so that even one of zeros does not come again by chance.
    seeds = Counter(part.tobytes() for said, part in watched.parts if said.message.secret and 4 <= len(part) <= 8)
    kinds |= {said.message.kind for said, part in watched.parts if seeds[part.tobytes()] > 1}
    must(not kinds, f"What hides should serve once, but words of {', '.join(sorted(kinds))} come again.")


def hidden_words_are_far_apart(watched: Watched) -> None:
    """Where one mask hides many numbers, or the mask is short, the numbers stay as near to each other as they are."""
    for said, part in watched.parts:
        words = np.sort(part[:_MOST_WORDS])
        if len(words) >= _FEW_WORDS and (said.message.fresh or not said.message.reveals):
            # The largest gap on the circle of words: what is left of the circle holds all words.
            gaps = np.diff(words, append=words[:1])
            must(
                2**64 - int(gaps.max()) > _NEAR,
                f"Words of {said.message.kind} should be uniform, but all lie within 2^48 of each other.",
            )


def a_secret_reaches_one_party(watched: Watched) -> None:
    """What two parties are told, each of them can take off what the other sends."""
    ways: dict[bytes, set[tuple[str, str]]] = {}
    for said in watched.run.said:
        for part in _hidden_parts(said.message) if said.message.secret else ():
            if len(_telling(part)):
                ways.setdefault(part.tobytes(), set()).add((said.sender, said.receiver))
                must(
                    len(ways[part.tobytes()]) == 1,
                    f"A secret should reach one party, but {said.sender} tells {said.receiver} in "
                    f"{said.message.kind} what another party is told too.",
                )


def a_party_expands_no_key_twice(watched: Watched) -> None:
    """Two masks, or the noise of two releases, from one stream differ by nothing: their difference shows the rest."""
    expanded = Counter(watched.run.expanded)
    twice = [(party, key) for (party, key), count in expanded.items() if count > 1]
    for party, key in twice:
        # The seed of a public key crosses within the key.
        parts = (part for said in watched.run.said for part in _hidden_parts(said.message))
        public = any(part.nbytes > len(key) and key in part.tobytes() for part in parts)
        must(public, f"{party} should expand a key into one stream, but expands the same one {expanded[party, key]} x.")


def no_ciphertext_follows_from_another(watched: Watched) -> None:
    """The holder of a key cannot divide what comes back by what it sent, nor anybody subtract two ciphertexts.

    A product without a fresh encryption of zero is the sent ciphertext times the other party's small numbers; two
    encryptions with one secret differ by small errors.
    """
    sent: dict[tuple[str, str, bytes], Residues] = {}
    last: dict[bytes, Residues] = {}
    for said in watched.run.said:
        for found in _lattice_ciphertexts(said.message):
            second = unpacked(found.data[:1, 1, :2], SHARES.n)
            rest = [_ratio(second, sent[way])] if (way := (said.receiver, said.sender, found.key)) in sent else []
            # The same ciphertexts may go to several parties.
            if found.key in last and (last[found.key] != second).any():
                rest.append(_ring().subtract(second, last[found.key]))
            must(
                not any(map(_is_small, rest)),
                f"Ciphertexts of {said.message.kind} should tell {said.receiver} nothing, but differ by small numbers "
                "from others under the same key.",
            )
            sent[said.sender, said.receiver, found.key] = last[found.key] = second


@cache
def _ring() -> Ring:
    """The ring of lattice ciphertexts, modulo the first two primes only: that is enough to tell small numbers."""
    return Ring(SHARES.n, SHARES.primes[:2])


def hides(message: type[Message]) -> bool:
    """Whether messages of a class have parts that hide something."""
    return any(
        shape.base is Ciphertexts
        or (shape.base is bytes and message.secret)
        or shape.dtype == np.uint64
        or (shape.dtype == np.uint8 and message.fresh)
        for shape in shapes(message).values()
    )


def _hidden_parts(message: Message) -> Iterator[Words]:
    """The parts of a message that hide something, as words."""
    for value in vars(message).values():
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, Ciphertexts):
                yield each.data.ravel()
            elif isinstance(each, np.ndarray) and (
                each.dtype == np.uint64 or (each.dtype == np.uint8 and message.fresh)
            ):
                data = each.tobytes()
                yield np.frombuffer(data[: len(data) // 8 * 8], np.uint64)
            elif isinstance(each, bytes) and message.secret:
                yield np.frombuffer(each[: len(each) // 8 * 8], np.uint64)


def _telling(part: Words) -> Words:
    """The different words of a part's beginning, without those that may be alike by their nature."""
    words = np.sort(part[:_MOST_WORDS])
    words = words[np.diff(words, prepend=~words[:1]) != 0]
    small = np.minimum(words, np.uint64(0) - words) < _LEAST_WORD
    telling: Words = words[~small & ~np.isin(words, _PUBLIC_WORDS)]
    return telling


def _lattice_ciphertexts(message: Message) -> list[Ciphertexts]:
    return [
        value for value in vars(message).values() if isinstance(value, Ciphertexts) and value.scheme in _LATTICE_SCHEMES
    ]


def _ratio(a: Residues, b: Residues) -> Residues:
    """Quotients of transformed polynomials, point by point, by Fermat's little theorem."""
    primes = _ring().primes[:, None]
    power, base = np.ones_like(b, np.uint64), b.astype(np.uint64)
    for bit in range(int(primes.max()).bit_length()):
        taken = (primes - np.uint64(2) >> np.uint64(bit)) & np.uint64(1) == 1
        power = np.where(taken, power * base % primes, power)
        base = base * base % primes
    return (a * power % primes).astype(np.uint32)


def _is_small(transformed: Residues) -> bool:
    """Whether most coefficients are the same number modulo both primes: uniform ones hardly ever are."""
    primes = _ring().primes.astype(np.int64)[:, None]
    residues = _ring().inverse(transformed)[0].astype(np.int64)
    first, second = residues - (residues > primes // 2) * primes
    return bool((first == second).mean() > 0.5)


HIDING_CHECKS: tuple[Callable[[Watched], None], ...] = (
    something_hidden_crosses,
    what_claims_to_hide_is_looked_at,
    no_hidden_word_crosses_twice,
    hidden_words_are_far_apart,
    a_secret_reaches_one_party,
    a_party_expands_no_key_twice,
    no_ciphertext_follows_from_another,
)
