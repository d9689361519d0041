"""Words: a fingerprint as people read it out over the telephone.

The first 128 bits are read as eight words of sixteen bits, consonant-vowel-consonant-vowel-consonant, and a ninth word
checks the eight.
"""

from __future__ import annotations

import binascii

from colonnade.errors import AuthError

# No h, which many speakers leave out, and no e, which is heard as i.
CONSONANTS = "bdfgjklmnprstvxz"
VOWELS = "aiou"
WORD = (CONSONANTS, VOWELS, CONSONANTS, VOWELS, CONSONANTS)
N_WORDS = 8


def to_words(fingerprint: bytes) -> str:
    """The first 128 bits of a fingerprint as eight words, and a word that checks them.

    >>> to_words(bytes(16))
    'babab babab babab babab babab babab babab babab babab'
    """
    start = fingerprint[: 2 * N_WORDS]
    # A cyclic code of 16 bits notices every error within one word.
    data = start + binascii.crc_hqx(start, 0).to_bytes(2)
    return " ".join(_word(int.from_bytes(data[i : i + 2])) for i in range(0, len(data), 2))


def from_words(words: str) -> bytes:
    """The 128 bits that were read out as words; capitals and hyphens between the words do not matter."""
    heard = words.lower().replace("-", " ").split()
    if len(heard) != N_WORDS + 1:
        raise AuthError(
            f"Expected a fingerprint of {N_WORDS + 1} words, got {len(heard)}. Ask for all of them to be read again."
        )
    data = b""
    for place, word in enumerate(heard, 1):
        try:
            data += _number(word).to_bytes(2)
        except ValueError as error:
            raise AuthError(
                f"Expected word {place} of a fingerprint to be spelt like 'dabik', got {word!r}. "
                "Ask for it to be read again."
            ) from error
    if binascii.crc_hqx(data, 0):
        raise AuthError(
            "Expected the last word of a fingerprint to check the others, but it does not: at least one word was "
            "misheard or mistyped. Ask for all of them to be read again."
        )
    return data[:-2]


def _word(number: int) -> str:
    letters = ""
    for alphabet in reversed(WORD):
        number, digit = divmod(number, len(alphabet))
        letters = alphabet[digit] + letters
    return letters


def _number(word: str) -> int:
    number = 0
    for letter, alphabet in zip(word, WORD, strict=True):
        number = number * len(alphabet) + alphabet.index(letter)
    return number
