"""The contract of hiding: what is sent under masks, floods or encryption is drawn for one use by those it names.

Hidden numbers cross as ciphertexts or as words of 64 bits; points, digests and seeds as bytes in messages that are
marked as fresh or secret. All lines, every key that is expanded into a stream, and all that the system draws are
watched in several runs, which differ in what the system draws or in what parties draw too. What all parties know is the
same in all runs, so that a mask which follows from it comes again. A contract sees what crosses and what is drawn;
whether a flood is as wide as its profile says, and what a ciphertext holds, is for the tests of a scheme. No check
notices a mask that is expanded from a hash of what crossed openly: only a key that crossed as it is is recognised.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, NamedTuple, TypeAlias
from unittest import mock

import numpy as np
from blake3 import blake3
from cryptography.hazmat.primitives.ciphers import Cipher
from numpy.typing import NDArray

from colonnade.align.messages import Agreed, AlignOpening, Common, TwiceMaskedIds
from colonnade.crypto.packing import unpacked
from colonnade.crypto.profiles import ARBITER, HISTOGRAM, SHARES
from colonnade.crypto.ring import Residues, Ring
from colonnade.models.base import Estimator
from colonnade.models.glm.messages import ColumnToken
from colonnade.privacy.randomness import PublicRandomness
from colonnade.roles import Roles
from colonnade.runtime.party import Party
from colonnade.runtime.protocol import Protocol
from colonnade.runtime.simulate import simulate
from colonnade.tables.table import Table
from colonnade.testing.assertions import must
from colonnade.wire.channel import Channel
from colonnade.wire.codec import encode
from colonnade.wire.message import Ciphertexts, Message, shapes

# A uniform word is as near to 0 as this once in 2^31 times; counts, bits and padding are.
_LEAST_WORD = 2**32
_MOST_WORDS = 2**13
_FEW_WORDS = 8
# Sums modulo 2^53 are the narrowest that are hidden.
_NEAR = 2**48
_LATTICE_SCHEMES = (ARBITER.name, SHARES.name)
# What messages say that they are under where nothing but secrets hides them; noise and clipping hide by a measure.
_HIDING = ("mask", "flood", "shares", "transfers", "oblivious transfer", "paillier", *_LATTICE_SCHEMES, HISTOGRAM.name)
_FINGERPRINTS = tuple(each.fingerprint for each in (ARBITER, SHARES, HISTOGRAM))
_PUBLIC_WORDS = np.frombuffer(b"".join(_FINGERPRINTS), np.uint64)
# Keys of what all parties derive alike: they hide nothing from any of them.
_TOLD_TO_ALL: Mapping[type[Message], set[str]] = {AlignOpening: {"salt"}, Agreed: {"schedule"}}
# The name of columns in a run follows from party.random, so that the run has the same name when it is taken up.
_SEEDED: Mapping[type[Message], set[str]] = {ColumnToken: {"run_token"}}
# Equal ids show as equal values: that is what a ring compares.
_COMPARED = (TwiceMaskedIds, Common)

Words: TypeAlias = NDArray[np.uint64]
Made: TypeAlias = Estimator | Protocol[Any]


class Said(NamedTuple):
    """One message with its way."""

    sender: str
    receiver: str
    message: Message
    under: tuple[str, ...] = ()


class HiddenPart(NamedTuple):
    """A part of a message that hides something; if seeded, by what follows from party.random."""

    said: Said
    words: Words
    seeded: bool


@dataclass
class WatchedRun:
    """A run, of a model a training and a prediction: what was said, and who expanded which key into a stream."""

    said: list[Said] = field(default_factory=list)
    expanded: list[tuple[str, bytes, bytes]] = field(default_factory=list)

    @classmethod
    def of(
        cls, make: Callable[[], Made], tables: Mapping[str, Table], roles: Roles, *, seed: int, system: int
    ) -> WatchedRun:
        """Run under watch.

        Args:
            make: Makes the estimator or the protocol.
            tables: The parties' rows.
            roles: Who does what.
            seed: What parties draw follows from it.
            system: What the system draws follows from it.
        """
        watched, acting = cls(), ContextVar("acting", default="")
        drawing, encryptor = _System(system, acting), Cipher.encryptor

        def expand(cipher: Cipher[Any]) -> Any:
            algorithm: Any = cipher.algorithm
            # Single blocks have no nonce, and are not a stream.
            if nonce := getattr(algorithm, "nonce", None) or getattr(cipher.mode, "nonce", None):
                watched.expanded.append((acting.get(), algorithm.key, nonce))
            return encryptor(cipher)

        def act(party: Party, protocol: Protocol[Any]) -> Any:
            acting.set(party.name)
            lines = {peer: _NotedLine(line, party.name, watched.said) for peer, line in party.peers.items()}
            # What all parties know is the same whatever the seed, so that what follows from it is the same too.
            return protocol(
                replace(party, peers=lines, plan=replace(party.plan, seed=0), shared=PublicRandomness.seeded(0))
            )

        def run(protocol: Protocol[Any] | Mapping[str, Protocol[Any]]) -> Mapping[str, Any]:
            instead = dict.fromkeys(roles.parties, act)
            return simulate(protocol, tables, roles=roles, seed=seed, instead=instead, keep="digests").results

        draws = {name: getattr(drawing, name) for name in ("token_bytes", "randbits", "randbelow")}
        with mock.patch.object(Cipher, "encryptor", expand), mock.patch.multiple("secrets", **draws):
            made = make()
            if isinstance(made, Estimator):
                run({name: share.predict for name, share in run(made.fit).items()})
            else:
                run(made)
        return watched

    def hidden(self) -> Iterator[HiddenPart]:
        """The parts of messages that hide something; a part that is sent on, or to several parties, comes once."""
        known, compared = set(), np.zeros(0, np.uint64)
        for said in self.said:
            for words, seeded in _hidden_parts(said.message):
                if isinstance(said.message, _COMPARED):
                    words, compared = words[~np.isin(words, compared)], np.append(compared, words)
                if (data := words.tobytes()) not in known:
                    known.add(data)
                    yield HiddenPart(said, words, seeded)

    def frames(self) -> set[tuple[str, str, str, bytes]]:
        """What crossed, to the byte."""
        return {(said.message.kind, said.sender, said.receiver, encode(said.message)) for said in self.said}


@dataclass(frozen=True)
class Watched:
    """A run, the same run once more, and the hidden parts of runs with the same tables and other draws."""

    run: WatchedRun
    again: WatchedRun
    parts: list[HiddenPart]

    @classmethod
    def of(cls, make: Callable[[], Made], tables: Mapping[str, Table], roles: Roles) -> Watched:
        """Watch as many runs as it takes."""

        def watch(seed: int, system: int) -> WatchedRun:
            return WatchedRun.of(make, tables, roles, seed=seed, system=system)

        first = watch(seed=0, system=0)
        parts = list(first.hidden())
        for seeded in sorted({part.seeded for part in parts}):
            other = watch(seed=int(seeded), system=1)
            parts += [part for part in other.hidden() if part.seeded is seeded]
        return cls(first, watch(seed=0, system=0), parts)


class _System:
    """What the operating system draws for each party of a watched run, the same for the same number."""

    def __init__(self, number: int, acting: ContextVar[str]) -> None:
        self._number, self._acting, self._drawn = number, acting, Counter[str]()

    def token_bytes(self, nbytes: int | None = None) -> bytes:
        name = self._acting.get()
        self._drawn[name] += 1
        return blake3(f"{self._number} {self._drawn[name]} {name}".encode()).digest(32 if nbytes is None else nbytes)

    def randbits(self, k: int) -> int:
        return int.from_bytes(self.token_bytes(-(-k // 8))) >> -k % 8

    def randbelow(self, exclusive_upper_bound: int) -> int:
        return self.randbits(exclusive_upper_bound.bit_length() + 128) % exclusive_upper_bound


class _NotedLine(Channel):
    """A line that notes what is said on it."""

    def __init__(self, line: Channel, own: str, said: list[Said]) -> None:
        vars(self).update(vars(line))
        self._own, self._said = own, said

    def send(self, message: Message, **options: Any) -> None:
        self._said.append(Said(self._own, self.peer, message, tuple(options.get("under", ()))))
        super().send(message, **options)


def check_hiding(make: Callable[[], Made], tables: Mapping[str, Table], roles: Roles) -> None:
    """Check that what a protocol hides is hidden by draws that serve once, and that nobody but two parties know.

    Args:
        make: Makes the estimator, which trains and predicts, or any other protocol, such as an alignment. The run
            should send every kind of message that hides something.
        tables: The parties' rows; a hundred are enough.
        roles: Who does what.
    """
    watched = Watched.of(make, tables, roles)
    for check in HIDING_CHECKS:
        check(watched)


def something_hidden_crosses(watched: Watched) -> None:
    """A protocol that hides nothing has no use for this contract."""
    must(bool(watched.parts), "The protocol should send something hidden, but sends no words, ciphertexts or secrets.")


def what_claims_to_hide_is_looked_at(watched: Watched) -> None:
    """A message that claims a mask, a flood or encryption has parts that the other checks look at."""
    for said in watched.run.said:
        claims = [word for word in said.under if word.startswith(_HIDING)]
        must(
            not claims or hides(type(said.message)),
            f"Messages of {said.message.kind} should hide something, because they claim {', '.join(claims)}, "
            "but hold no words, ciphertexts or secrets.",
        )


def what_crosses_follows_from_watched_draws(watched: Watched) -> None:
    """What is drawn from elsewhere, such as a generator without a seed, may be known, and no check here sees it."""
    kinds = {kind for kind, *_ in watched.run.frames() ^ watched.again.frames()}
    must(
        not kinds,
        f"What crosses should follow from party.random and `secrets`, but {', '.join(sorted(kinds))} differs between "
        "two runs in which these draw the same.",
    )


def no_hidden_word_crosses_twice(watched: Watched) -> None:
    """Where a mask is missing or serves again, words come again in another message or another run."""
    parts = [(said, _telling(words)) for said, words, _ in watched.parts]
    words = np.sort(np.concatenate([np.zeros(0, np.uint64), *(part for _, part in parts)]))
    repeated = words[1:][words[1:] == words[:-1]]
    kinds = {said.message.kind for said, part in parts if np.isin(part, repeated).any()}
    # Seeds are few and long, so that even one of zeros does not come again by chance.
    seeds = Counter(words.tobytes() for said, words, _ in watched.parts if said.message.secret and 4 <= len(words) <= 8)
    kinds |= {said.message.kind for said, words, _ in watched.parts if seeds[words.tobytes()] > 1}
    must(not kinds, f"What hides should serve once, but words of {', '.join(sorted(kinds))} come again.")


def hidden_words_are_far_apart(watched: Watched) -> None:
    """Where one mask hides many numbers, or the mask is short, the numbers stay as near to each other as they are."""
    for said, part, _ in watched.parts:
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
        for part, _ in _hidden_parts(said.message) if said.message.secret else ():
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
    twice = [(party, key, count) for (party, key, _), count in expanded.items() if count > 1]
    for party, key, count in twice:
        public = any(_is_in_public_key(key, data) for said in watched.run.said for data in _bytes_of(said.message))
        must(public, f"{party} should expand a key into one stream, but expands the same one {count} x.")


def no_expanded_key_crosses_openly(watched: Watched) -> None:
    """Whoever reads a message can take off a mask whose key stands in it; a secret message is for one party."""
    keys = {key: party for party, key, _ in watched.run.expanded}
    openly = [said for said in watched.run.said if not said.message.secret]
    for said in openly:
        for data in _bytes_of(said.message):
            for key, party in keys.items():
                must(
                    key not in data or _is_in_public_key(key, data),
                    f"A key that {party} expands should stay secret, but {said.sender} sends it to {said.receiver} as "
                    f"it is in {said.message.kind}, which is no secret message.",
                )


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
        or (shape.base is bytes and (message.secret or message.fresh))
        or shape.dtype == np.uint64
        or (shape.dtype == np.uint8 and message.fresh)
        for shape in shapes(message).values()
    )


def _hidden_parts(message: Message) -> Iterator[tuple[Words, bool]]:
    """The parts of a message that hide something, as words, and whether they may follow from party.random."""
    told, derived = (table.get(type(message), set()) for table in (_TOLD_TO_ALL, _SEEDED))
    for name, value in vars(message).items():
        seeded = not message.fresh or name in derived
        for each in [] if name in told else value if isinstance(value, list) else [value]:
            if isinstance(each, Ciphertexts):
                yield each.data.ravel(), seeded
            elif isinstance(each, np.ndarray) and (
                each.dtype == np.uint64 or (each.dtype == np.uint8 and message.fresh)
            ):
                yield _whole_words(each.tobytes()), seeded
            elif isinstance(each, bytes) and (message.secret or message.fresh):
                yield _whole_words(each), seeded


def _bytes_of(message: Message) -> Iterator[bytes]:
    """The parts of a message that could hold a key."""
    for value in vars(message).values():
        for each in value if isinstance(value, list) else [value]:
            found = each.data if isinstance(each, Ciphertexts) else each
            if isinstance(found, np.ndarray | bytes):
                yield bytes(found) if isinstance(found, bytes) else found.tobytes()


def _is_in_public_key(key: bytes, data: bytes) -> bool:
    """Whether a key is the seed of a public key, which begins with the profile's fingerprint."""
    return any(fingerprint + key in data for fingerprint in _FINGERPRINTS)


def _whole_words(data: bytes) -> Words:
    return np.frombuffer(data[: len(data) // 8 * 8], np.uint64)


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
    what_crosses_follows_from_watched_draws,
    no_hidden_word_crosses_twice,
    hidden_words_are_far_apart,
    a_secret_reaches_one_party,
    a_party_expands_no_key_twice,
    no_expanded_key_crosses_openly,
    no_ciphertext_follows_from_another,
)
