"""Phonetic: names by their sound, so that one name has one code however it is spelled.

    soundex        American Soundex as the National Archives describe it: the first letter and three digits
    cologne        Kölner Phonetik (Postel 1969), for German names: digits, as many as the name has sounds

Each word has a code of its own: "van der Meer" has three. Case, accents and apostrophes do not count. Letters other
than a to z have no sound here, so a name in another script has no code.
"""

from __future__ import annotations

import re
import unicodedata
from itertools import groupby

_SOUNDEX = {
    letter: digit
    for letters, digit in (("bfpv", "1"), ("cgjkqsxz", "2"), ("dt", "3"), ("l", "4"), ("mn", "5"), ("r", "6"))
    for letter in letters
}
_COLOGNE = {
    letter: digit
    for letters, digit in (
        ("aeijouy", "0"),
        ("b", "1"),
        ("dt", "2"),
        ("fvw", "3"),
        ("gkq", "4"),
        ("l", "5"),
        ("mn", "6"),
        ("r", "7"),
        ("sz", "8"),
    )
    for letter in letters
}


def soundex(text: str) -> str | None:
    """The Soundex codes of the words of a text; None if no word has letters.

    >>> soundex("Robert Ashcroft") == soundex("Rupert Ashcraft"), soundex("Tymczak")
    (True, 'T522')
    """
    return " ".join(map(_soundex_of, _words(text))) or None


def cologne(text: str) -> str | None:
    """The codes of the words of a text by Kölner Phonetik; None if no word has letters.

    >>> cologne("Müller-Lüdenscheidt"), cologne("Meyer") == cologne("Maier")
    ('657 52682', True)
    """
    return " ".join(filter(None, map(_cologne_of, _words(text)))) or None


def _words(text: str) -> list[str]:
    letters = unicodedata.normalize("NFKD", text.casefold().replace("'", ""))
    return re.findall("[a-z]+", "".join(letter for letter in letters if not unicodedata.combining(letter)))


def _soundex_of(word: str) -> str:
    # h and w do not part two letters of one sound; vowels do.
    sounding = word[0] + re.sub("[hw]", "", word[1:])
    digits = [digit for digit, _ in groupby(_SOUNDEX.get(letter, "") for letter in sounding)]
    return (word[0].upper() + "".join(digits[1:]) + "000")[:4]


def _cologne_of(word: str) -> str:
    sounds = "".join(
        _sound(letter, word[at - 1] if at else "", word[at + 1 : at + 2]) for at, letter in enumerate(word)
    )
    single = "".join(sound for sound, _ in groupby(sounds))
    return single[:1] + single[1:].replace("0", "")


def _sound(letter: str, before: str, after: str) -> str:
    """The digits of a letter between two others; an empty text stands for the end of the word."""
    match letter:
        case "p":
            return "3" if after == "h" else "1"
        case "d" | "t" if after and after in "csz":
            return "8"
        case "x":
            return "8" if before and before in "ckq" else "48"
        case "c":
            hard = "ahkloqrux" if not before else "ahkoqux" if before not in "sz" else ""
            return "4" if after and after in hard else "8"
    return _COLOGNE.get(letter, "")
