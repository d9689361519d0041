"""Stream: secret randomness drawn for one use, and the distributions that lattices need.

A stream is expanded from a seed that the operating system has just drawn. It is made for one encryption or one answer
and dropped; no object keeps one, so that neither a fork nor a restored snapshot can draw the same numbers twice.
"""

from __future__ import annotations

import secrets
from functools import cache
from typing import Any, NoReturn

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from numpy.typing import NDArray

from colonnade.errors import CryptoError

SEED_BYTES = 32
ERROR_BITS = 21


class Stream:
    """A cryptographic stream (ChaCha20) from a seed of 32 bytes; without one, from the operating system.

    >>> Stream(bytes(32)).ternary(8).tolist()
    [0, -1, 0, 0, 0, 0, 0, 1]
    """

    def __init__(self, seed: bytes | None = None) -> None:
        seed = secrets.token_bytes(SEED_BYTES) if seed is None else seed
        if len(seed) != SEED_BYTES:
            raise CryptoError(f"A stream needs a seed of {SEED_BYTES} bytes, got {len(seed)}. Draw one of that length.")
        # The seed serves this stream only, so the nonce may be constant.
        self._cipher = Cipher(ChaCha20(seed, bytes(16)), mode=None).encryptor()

    def __reduce__(self) -> NoReturn:
        raise CryptoError("A stream of secrets cannot be copied or pickled. Draw a new one where it is needed.")

    def __deepcopy__(self, memo: Any) -> NoReturn:
        self.__reduce__()

    __copy__ = __reduce__

    def raw(self, n: int) -> bytes:
        """The next n bytes."""
        return self._cipher.update(bytes(n))

    def words(self, n: int) -> NDArray[np.uint64]:
        """The next n words of 64 bits."""
        return np.frombuffer(self.raw(8 * n), "<u8").astype(np.uint64, copy=False)

    def ternary(self, n: int) -> NDArray[np.int8]:
        """Numbers drawn uniformly from -1, 0 and 1: secrets."""
        parts, missing = [], n
        while missing > 0:
            drawn = np.frombuffer(self.raw(missing // 4 + 64), np.uint8)
            # 243 = 3^5, so a byte below it is five digits without bias, and a byte above it is dropped.
            digits = _digits()[drawn[drawn < 243]].ravel()[:missing]
            parts.append(digits)
            missing -= len(digits)
        return np.concatenate(parts)

    def errors(self, n: int) -> NDArray[np.int8]:
        """Numbers from the centred binomial distribution of 2 x 21 coins, standard deviation 3.24: errors."""
        drawn, mask = self.words(n), np.uint64(2**ERROR_BITS - 1)
        heads: NDArray[np.int8] = np.bitwise_count(drawn & mask).astype(np.int8)
        tails: NDArray[np.int8] = np.bitwise_count((drawn >> np.uint64(ERROR_BITS)) & mask).astype(np.int8)
        return heads - tails

    def residues(self, shape: tuple[int, ...], primes: NDArray[np.uint64]) -> NDArray[np.uint32]:
        """Uniform residues of shape (*shape, L, n) where `shape` ends in n: public matrices and masks in Z_q."""
        out = np.empty((len(primes), int(np.prod(shape))), np.uint32)
        return self._filled(out, shape, primes)

    def wide_residues(self, shape: tuple[int, ...], primes: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """The same for primes of more than 32 bits."""
        out = np.empty((len(primes), int(np.prod(shape))), np.uint64)
        return self._filled(out, shape, primes)

    def _filled(self, out: NDArray[Any], shape: tuple[int, ...], primes: NDArray[np.uint64]) -> NDArray[Any]:
        *outer, n = shape
        word, count = out.dtype.newbyteorder("<"), out.shape[1]
        for limb, p in enumerate(primes):
            bits, filled = int(p).bit_length(), 0
            while filled < count:
                drawn = np.frombuffer(self.raw(word.itemsize * (count - filled + 64)), word) & out.dtype.type(
                    2**bits - 1
                )
                kept = drawn[drawn < p][: count - filled]
                out[limb, filled : filled + len(kept)] = kept
                filled += len(kept)
        return np.ascontiguousarray(np.moveaxis(out.reshape(len(primes), *outer, n), 0, -2))


@cache
def _digits() -> NDArray[np.int8]:
    return np.array([[byte // 3**place % 3 - 1 for place in range(5)] for byte in range(243)], np.int8)
