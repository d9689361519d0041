"""Message: one typed thing that crosses between parties, and what it reveals."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from types import GenericAlias
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias, get_args, get_origin, get_type_hints

import numpy as np
from numpy.typing import NDArray

from colonnade.errors import KeyMismatch
from colonnade.secret import Secret

if TYPE_CHECKING:
    from colonnade.crypto.additive import Data, PublicKey

Float32Array: TypeAlias = NDArray[np.float32]
Float64Array: TypeAlias = NDArray[np.float64]
Int64Array: TypeAlias = NDArray[np.int64]
UInt64Array: TypeAlias = NDArray[np.uint64]
UInt8Array: TypeAlias = NDArray[np.uint8]


@dataclass(frozen=True)
class Ciphertexts:
    """Encrypted numbers: a type of its own, so that a plaintext array cannot stand in its place.

    >>> Ciphertexts("paillier-3072", key=b"fingerprint", data=np.zeros((2, 48), np.uint64)).data.shape
    (2, 48)
    """

    scheme: str
    key: bytes
    data: UInt64Array


def sealed(data: Data, key: PublicKey) -> Ciphertexts:
    """Ciphertexts as they cross, with the name of the key that they belong to."""
    return Ciphertexts(key.scheme, key.fingerprint, key.packed(data))


def unsealed(found: Ciphertexts, key: PublicKey, size: int, sender: str) -> Data:
    """Ciphertexts that crossed, if they belong to this key and are as many as expected."""
    if found.scheme != key.scheme or found.key != key.fingerprint:
        raise KeyMismatch(
            f"Expected ciphertexts of {key.scheme} under the key in use from {sender}, got some of "
            f"{found.scheme[:64]!r} under another. Check that all parties run the same plan and got the same key."
        )
    return key.unpacked(found.data, size, sender)


class Message:
    """One typed thing that crosses between parties. Subclasses are frozen dataclasses.

    Fields are `int float str bytes`, arrays, `Ciphertexts` and flat lists of these. `kind` and the meaning of fields
    are never changed, only added to, so that old recordings stay readable.

    >>> @dataclass(frozen=True)
    ... class Greeting(Message, kind="example/greeting", reveals={Secret.IDS}):
    ...     text: str
    >>> Greeting.kind, sorted(Greeting.reveals)
    ('example/greeting', [<Secret.IDS: 'ids'>])
    """

    kind: ClassVar[str]
    reveals: ClassVar[frozenset[Secret]]
    revealed: ClassVar[tuple[Secret, ...]]
    fresh: ClassVar[bool]
    secret: ClassVar[bool]
    varies: ClassVar[bool]
    per_row: ClassVar[str | None]
    kinds: ClassVar[dict[str, type[Message]]] = {}

    def __init_subclass__(
        cls,
        *,
        kind: str,
        reveals: Iterable[Secret] = (),
        fresh: bool = False,
        secret: bool = False,
        varies: bool = False,
        per_row: str | None = None,
    ) -> None:
        """Name a message.

        Args:
            kind: Stable on the wire, `protocol/noun`.
            reveals: Whose secrets the contents depend on.
            fresh: Drawn from system randomness (ciphertexts, shares), hence different in every run.
            secret: Holds a seed, a key or a share, which would open what other parties keep. A recording keeps neither
                its contents nor a digest of them, only that it crossed and how long it was.
            varies: Different even when a resumed run repeats it: hidden by randomness of that one sending, or computed
                in floating point with rounding that depends on the machine. All other messages of a resumed run must
                be the same bytes as before.
            per_row: The array field that holds one row per sample, if there is one; recordings average it.
        """
        known = Message.kinds.get(kind)
        assert known is None or known.__qualname__ == cls.__qualname__, f"two messages share the kind {kind}"
        cls.kind, cls.reveals, cls.per_row = kind, frozenset(reveals), per_row
        cls.fresh, cls.secret, cls.varies = fresh, secret, varies
        cls.revealed = tuple(sorted(cls.reveals))
        Message.kinds[kind] = cls


@dataclass(frozen=True)
class Shape:
    """What a field of a message may hold."""

    base: type
    dtype: np.dtype[Any] | None = None
    many: bool = False


def shapes(message: type[Message]) -> dict[str, Shape]:
    """The fields of a message class, read from its annotations once."""
    known = _SHAPES.get(message)
    if known is None:
        hints = get_type_hints(message)
        names = message.__dataclass_fields__  # type: ignore[attr-defined]
        known = _SHAPES[message] = {name: _shape(hints[name], f"{message.kind}.{name}") for name in names}
    return known


_SHAPES: dict[type[Message], dict[str, Shape]] = {}


def _shape(hint: Any, where: str) -> Shape:
    if get_origin(hint) is list:
        (inner,) = get_args(hint)
        single = _shape(inner, where)
        assert not single.many, f"{where}: lists must be flat"
        return Shape(single.base, single.dtype, many=True)
    # From NumPy 2.5 on, NDArray is an alias with a name of its own.
    if get_origin(hint) is NDArray:
        return Shape(np.ndarray, np.dtype(get_args(hint)[0]))
    if get_origin(hint) is np.ndarray:
        dtype: GenericAlias = get_args(hint)[1]
        return Shape(np.ndarray, np.dtype(get_args(dtype)[0]))
    assert hint in (int, float, str, bytes, Ciphertexts), f"{where}: {hint} cannot cross between parties"
    return Shape(hint)
