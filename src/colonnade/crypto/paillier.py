"""Paillier: the conventional additively homomorphic scheme, slow, well understood; backend and oracle.

    key        n = p q, g = 1 + n, h = (-x^2)^n mod n^2          p, q = 3 mod 4
    encrypt    (1 + m n) h^r mod n^2                             r of half as many bits as n
    decrypt    modulo p^2 and q^2, joined by the Chinese remainder

Every number is a ciphertext of its own; sums are packed into slots before they are masked for the holder of the key.
Paillier 1999; the short exponent is that of Damgard, Jurik, Nielsen 2010. 3,072 bits are worth about 128 bits of
security (NIST SP 800-57); below 2,048 is refused. Needs the extra `paillier` (gmpy2).
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from colonnade.crypto import additive
from colonnade.crypto.additive import SUM_BITS, Data
from colonnade.errors import CryptoError, KeyMismatch, MissingExtra, PlanError

if TYPE_CHECKING:
    from scipy.sparse import csr_array

KEY_BITS = 3072
LEAST_KEY_BITS = 2048
# What is added up are shares modulo 2^53, whose sums with columns have up to 31 bits more than 53; a mask of 64 more
# than all of these hides them but for 2^-64.
_WRAP_BITS = 32
_MASK_BITS = SUM_BITS + _WRAP_BITS + 64
SLOT_BITS = _MASK_BITS + 2
_WINDOW = 6


class PublicKey(additive.PublicKey):
    """The key that parties encrypt under; only its `SecretKey` can decrypt."""

    coefficients = 0

    def __init__(self, n: int, h: int) -> None:
        mpz = _gmpy2().mpz
        self.n, self.h, self.square = mpz(n), mpz(h), mpz(n) ** 2
        self.key_bits = int(n).bit_length()
        self.scheme = f"paillier-{self.key_bits}"
        self.fingerprint = blake3(self.to_bytes()).digest(16)

    def to_bytes(self) -> bytes:
        size = -(-self.key_bits // 8)
        return int(self.n).to_bytes(size, "little") + int(self.h).to_bytes(2 * size, "little")

    @classmethod
    def from_bytes(cls, data: bytes) -> PublicKey:
        """The key that crossed; raises `KeyMismatch` if it is too short, or no key at all."""
        size = len(data) // 3
        n, h = int.from_bytes(data[:size], "little"), int.from_bytes(data[size:], "little")
        if len(data) % 3 or n.bit_length() < LEAST_KEY_BITS or n % 2 == 0 or not 1 < h < n * n:
            raise KeyMismatch(
                f"Expected a Paillier key of at least {LEAST_KEY_BITS} bits, got {len(data)} bytes that are none. "
                "Check that all parties run the same plan."
            )
        return cls(n, h)

    def vector_size(self, n_rows: int, block: int) -> int:
        return n_rows

    def masked_size(self, n_values: int, block: int) -> int:
        return -(-n_values // self._slots)

    def encrypt(self, values: NDArray[np.int64], block: int) -> Data:
        return self.encrypt_numbers([int(value) for value in values])

    def encrypt_numbers(self, numbers: Sequence[int]) -> Data:
        """Encrypt numbers between -n/2 and n/2, fresh every time."""
        return self._words_of([self._encrypted(number) for number in numbers])

    def packed(self, data: Data) -> NDArray[np.uint64]:
        return data

    def unpacked(self, words: NDArray[np.uint64], n_ciphertexts: int, sender: str) -> Data:
        if words.shape != (n_ciphertexts, self._words):
            raise CryptoError(
                f"Expected {n_ciphertexts} ciphertexts of {self.scheme} from {sender}, got shape {words.shape}. "
                "Check that both parties run the same plan."
            )
        gcd = _gmpy2().gcd
        if any(not 0 < each < self.square or gcd(each, self.n) != 1 for each in self._numbers(words)):
            raise CryptoError(f"Ciphertexts from {sender} should be invertible modulo n^2. {sender} is faulty.")
        return words

    def add(self, a: Data, b: Data) -> Data:
        pairs = zip(self._numbers(a), self._numbers(b), strict=True)
        return self._words_of([x * y % self.square for x, y in pairs])

    def prepare(self, matrix: Any, block: int, *, cached: bool = True) -> csr_array:
        from scipy.sparse import csr_array

        return csr_array(matrix)

    def product(self, prepared: csr_array, data: Data) -> Data:
        gmpy2 = _gmpy2()
        totals = [gmpy2.mpz(1)] * prepared.shape[1]
        ends = zip(prepared.indptr, prepared.indptr[1:], self._numbers(data), strict=False)
        for start, stop, ciphertext in ends:
            columns, entries = prepared.indices[start:stop].tolist(), prepared.data[start:stop].tolist()
            inverse = gmpy2.invert(ciphertext, self.square) if min(entries, default=0) < 0 else ciphertext
            for column, entry in zip(columns, entries, strict=True):
                power = gmpy2.powmod(inverse if entry < 0 else ciphertext, abs(entry), self.square)
                totals[column] = totals[column] * power % self.square
        return self._words_of(totals)

    def refreshed(self, data: Data) -> Data:
        return self.add(data, self._words_of([self._encrypted(0) for _ in data]))

    def masked(
        self, data: Data, block: int, n_values: int, chosen: NDArray[np.uint64] | None = None
    ) -> tuple[Data, NDArray[np.uint64]]:
        """The sums plus masks, several to a ciphertext, and the masks modulo 2^53, which may be chosen."""
        powmod, sums, masks, packed = _gmpy2().powmod, self._numbers(data), [], []
        low = [secrets.randbits(SUM_BITS) for _ in range(n_values)] if chosen is None else chosen.tolist()
        for start in range(0, n_values, self._slots):
            some, places = sums[start : start + self._slots], low[start : start + self._slots]
            # 2^85 makes every slot positive, so that none borrows from the next.
            high = (secrets.randbits(_MASK_BITS - SUM_BITS) + 2**_WRAP_BITS for _ in places)
            drawn = [(each << SUM_BITS) + mask for each, mask in zip(high, places, strict=True)]
            total, hiding = _gmpy2().mpz(1), 0
            for ciphertext, mask in zip(reversed(some), reversed(drawn), strict=True):
                total = powmod(total, 2**SLOT_BITS, self.square) * ciphertext % self.square
                hiding = (hiding << SLOT_BITS) + mask
            packed.append(total * self._encrypted(hiding) % self.square)
            masks += [mask % 2**SUM_BITS for mask in drawn]
        return self._words_of(packed), np.array(masks, np.uint64)

    @property
    def _slots(self) -> int:
        return (self.key_bits - 1) // SLOT_BITS

    @property
    def _words(self) -> int:
        return -(-2 * self.key_bits // 64)

    @cached_property
    def _powers(self) -> list[list[Any]]:
        """h^(d 2^(6w)) for every digit d at every place w: an encryption is then a product of look-ups."""
        table, base = [], self.h
        for _ in range(0, self.key_bits // 2, _WINDOW):
            row = [_gmpy2().mpz(1)]
            for _ in range(2**_WINDOW):
                row.append(row[-1] * base % self.square)
            base = row.pop()
            table.append(row)
        return table

    def _encrypted(self, message: int) -> Any:
        blinding, exponent = _gmpy2().mpz(1), secrets.randbits(self.key_bits // 2)
        for row in self._powers:
            blinding = blinding * row[exponent % 2**_WINDOW] % self.square
            exponent >>= _WINDOW
        return (1 + message % self.n * self.n) * blinding % self.square

    def _words_of(self, numbers: list[Any]) -> Data:
        size = 8 * self._words
        data = b"".join(int(number).to_bytes(size, "little") for number in numbers)
        return np.frombuffer(data, "<u8").astype(np.uint64).reshape(-1, self._words)

    def _numbers(self, data: Data) -> list[Any]:
        mpz = _gmpy2().mpz
        return [mpz(int.from_bytes(row.astype("<u8").tobytes(), "little")) for row in data]


class SecretKey(additive.SecretKey):
    """The key of the party that may decrypt: two primes.

    >>> key = SecretKey(key_bits=2048)
    >>> data = key.public.encrypt(np.array([20, -22]), block=1)
    >>> [int(number) for number in key.numbers(key.public.add(data[:1], data[1:]))]
    [-2]
    """

    def __init__(self, *, key_bits: int = KEY_BITS, primes: tuple[int, int] | None = None) -> None:
        if key_bits < LEAST_KEY_BITS or key_bits % 2:
            raise PlanError(
                f"A Paillier key should have at least {LEAST_KEY_BITS} bits and an even number of them, but {key_bits} "
                f"were asked for. Use {KEY_BITS}."
            )
        gmpy2 = _gmpy2()
        p, q = primes if primes is not None else (_prime(key_bits // 2), _prime(key_bits // 2))
        self._p, self._q = gmpy2.mpz(p), gmpy2.mpz(q)
        n = self._p * self._q
        x = gmpy2.mpz(secrets.randbelow(int(n) - 2) + 2)
        self.public = PublicKey(int(n), int(gmpy2.powmod(-x * x % n, n, n * n)))
        self._halves = [(r, r * r, gmpy2.invert((gmpy2.powmod(1 + n, r - 1, r * r) - 1) // r, r)) for r in (p, q)]

    def to_bytes(self) -> bytes:
        """The secret and the public key, for their owner's own checkpoint."""
        size = -(-int(self._p).bit_length() // 8)
        return int(self._p).to_bytes(size, "little") + int(self._q).to_bytes(size, "little") + self.public.to_bytes()

    @classmethod
    def from_bytes(cls, data: bytes) -> SecretKey:
        """The key that `to_bytes` wrote down."""
        size = len(data) // 8
        p, q = (int.from_bytes(data[size * i : size * (i + 1)], "little") for i in range(2))
        key = cls(key_bits=(p * q).bit_length(), primes=(p, q))
        key.public = PublicKey.from_bytes(data[2 * size :])
        return key

    def numbers(self, data: Data) -> list[Any]:
        """The numbers in ciphertexts, between -n/2 and n/2."""
        gmpy2, n = _gmpy2(), self.public.n
        out = []
        for ciphertext in self.public._numbers(data):
            modulo_p, modulo_q = (
                (gmpy2.powmod(ciphertext, r - 1, square) - 1) // r * factor % r for r, square, factor in self._halves
            )
            joined = modulo_p + self._p * ((modulo_q - modulo_p) * gmpy2.invert(self._p, self._q) % self._q)
            out.append(joined - n if joined > n // 2 else joined)
        return out

    def decrypt(self, data: Data, block: int, n_values: int) -> NDArray[np.uint64]:
        slots, sums = self.public._slots, []
        for number in self.numbers(data):
            number = int(number % self.public.n)
            sums += [number >> SLOT_BITS * place & 2**SUM_BITS - 1 for place in range(slots)]
        return np.array(sums[:n_values], np.uint64)


def rows_per_block(n_rows: int, n_columns: int) -> int:
    """One number to a ciphertext."""
    return 1


def _prime(bits: int) -> int:
    """A random prime of exactly `bits` bits that is 3 modulo 4, the two highest bits set."""
    is_prime = _gmpy2().is_prime
    while True:
        candidate = secrets.randbits(bits) | 3 << bits - 2 | 3
        if is_prime(candidate, 40):
            return candidate


def _gmpy2() -> Any:
    try:
        import gmpy2
    except ModuleNotFoundError as error:
        raise MissingExtra("paillier", "Paillier encryption") from error
    return gmpy2
