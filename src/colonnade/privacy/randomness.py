"""Random streams: seeded for research, from the system for deployment; the report says which.

A `Randomness` is a node in a tree of keys. Each step of a path derives the next key with keyed BLAKE3, so a
stream is a function of the root key and the path alone: nothing has to be saved to resume a run, and no
stream depends on how much was drawn from another.

Whoever draws twice from one path gets the same numbers twice. Give each use a path of its own.

What hides something is drawn as a key, a seed or a stream, and `Randomness` alone has these. All parties have a
`PublicRandomness`, which gives generators for what is no secret; to type checkers it has nothing else.
"""

from __future__ import annotations

import operator
import secrets
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal, Never, Self, TypeAlias

import numpy as np
import numpy.typing as npt
from blake3 import blake3
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20

from colonnade.errors import CryptoError, PlanError, PrivacyError

Step: TypeAlias = str | int
Source: TypeAlias = Literal["seeded", "system"]

KEY_BYTES = 32


@dataclass(frozen=True)
class _Node:
    """A node in a tree of keys, and what may be drawn from any of them."""

    _key: bytes = field(repr=False)

    def child(self, *path: Step) -> Self:
        """Return the source at the end of a path; ``child("a", "b")`` is ``child("a").child("b")``."""
        key = self._key
        for step in path:
            key = _derive(key, _encode(step))
        return replace(self, _key=key)

    def generator(self, *path: Step) -> np.random.Generator:
        """Return a fast generator that is not cryptographic: schedules, initialisation, sampling.

        Its raw bits are the same everywhere. What numpy makes of them (normals, permutations) may change
        with numpy's version.
        """
        key = self._leaf(b"=generator", path)
        return np.random.Generator(np.random.Philox(key=int.from_bytes(key[:16], "little")))

    def _leaf(self, purpose: bytes, path: tuple[Step, ...]) -> bytes:
        return _derive(self.child(*path)._key, purpose)


@dataclass(frozen=True)
class PublicRandomness(_Node):
    """Randomness that all parties have, for what is no secret: it gives generators, and nothing to hide under.

    Example:
        >>> shared = PublicRandomness.seeded(7, "shared")
        >>> shared.generator("schedule", 0).integers(100, size=4)
        array([35, 88, 18, 74])
    """

    @classmethod
    def seeded(cls, seed: int, *path: Step) -> Self:
        """Return the source that follows from a seed which all parties know."""
        return cls(_root(seed)).child(*path)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Never:
            # Type checkers do not see this method, so that they refuse a secret from here before anything runs.
            if name in ("key", "seed", "source", "uniform_bits"):
                raise PrivacyError(
                    f"Expected the randomness of one party, which gives a {name}, got the randomness that all parties "
                    "share: what follows from it hides nothing. Draw from party.random in place of party.shared."
                )
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")


@dataclass(frozen=True)
class Randomness(_Node):
    """One party's source of independent random streams, one for every path.

    Example:
        >>> random = Randomness.seeded(7, "bank")
        >>> random
        Randomness(source='seeded')
        >>> random.generator("schedule", 0).integers(100, size=4)
        array([81, 54, 83, 88])
        >>> random.child("schedule") == random.child("noise")
        False
    """

    source: Source

    def __post_init__(self) -> None:
        if len(self.key) != KEY_BYTES:
            raise CryptoError(
                f"Expected a randomness key of {KEY_BYTES} bytes, got {len(self.key)} bytes. "
                f"Restore the key from the checkpoint that wrote it, or start from Randomness.system()."
            )
        if self.source not in ("seeded", "system"):
            raise PlanError(
                f"Expected the source of randomness to be 'seeded' or 'system', got {self.source!r}. "
                f"Name one of the two."
            )

    @classmethod
    def seeded(cls, seed: int, *path: Step) -> Self:
        """Return a reproducible source for research: a reader of the seed knows every number drawn."""
        return cls(_root(seed), "seeded").child(*path)

    @classmethod
    def system(cls) -> Self:
        """Return a source whose key the operating system has just drawn."""
        return cls(secrets.token_bytes(KEY_BYTES), "system")

    @classmethod
    def from_key(cls, key: bytes, *, source: Source) -> Self:
        """Return the source that had this key; `source` says how the key was once drawn."""
        return cls(key, source)

    @property
    def key(self) -> bytes:
        """The key that everything drawn from here follows from."""
        return self._key

    def seed(self, *path: Step) -> int:
        """Return a 63-bit integer, for libraries that want a seed of their own."""
        return int.from_bytes(self._leaf(b"=seed", path)[:8], "little") >> 1

    def uniform_bits(self, n: int, *path: Step) -> npt.NDArray[np.uint64]:
        """Return `n` uniform 64-bit words from a cryptographic stream (ChaCha20), the same on every platform.

        A longer draw from the same path begins with the shorter one.
        """
        key = self._leaf(b"=bits", path)
        # The key serves this one stream only, so the nonce may be constant.
        stream = Cipher(ChaCha20(key, nonce=bytes(16)), mode=None).encryptor().update(bytes(8 * n))
        return np.frombuffer(stream, dtype="<u8").astype(np.uint64)


def _root(seed: int) -> bytes:
    return blake3(_encode(seed), derive_key_context="colonnade.privacy.randomness seed").digest()


def _derive(key: bytes, message: bytes) -> bytes:
    return blake3(message, key=key).digest()


def _encode(step: Step) -> bytes:
    """Encode one step so that no two steps, and no step and purpose (they begin with '='), are alike."""
    if isinstance(step, str):
        return b"s" + step.encode("utf-8", "surrogatepass")
    return b"i" + str(operator.index(step)).encode()
