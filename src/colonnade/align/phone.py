"""Phone numbers as E.164 has them: the country's code and the national number, however they are written.

    +41 79 123 45 67    0041 (0)79 123 45 67    (+41) 079/123.45.67    079 123 45 67    79-123-45-67    41791234567

A number begins with + or 00 and its code, or is one of the country that the rule names. What is dialled in front of
numbers within a country is left out: zeros in most, which stay where they are part of the number; 8 in Russia, 06 in
Hungary, 1 in North America; behind a code as well. A number that is too long for the country and begins with its code,
or begins as none within the country does, has that code already.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

FEWEST_DIGITS, MOST_DIGITS = 7, 15

_CODE = re.compile("[17]|2[07]|3[0-469]|4[013-9]|5[1-8]|6[0-6]|8[1246]|9[0-58]|[0-9]{3}")

# Italy with the Vatican, Ivory Coast, Congo and San Marino: there a number may begin with a zero, abroad as well.
_ZERO_STAYS = frozenset({"39", "225", "242", "378"})

# How many digits national numbers have at most. Where that varies too much to tell a code from an area, nothing stands.
_LONGEST: Mapping[str, int] = {
    **dict.fromkeys(("45", "47", "65", "852"), 8),
    **dict.fromkeys(("27", "31", "32", "33", "34", "36", "40", "41", "46", "48", "61"), 9),
    **dict.fromkeys(("351", "353", "380", "420", "421", "972"), 9),
    **dict.fromkeys(("1", "7", "30", "44", "52", "81", "90", "91"), 10),
    **dict.fromkeys(("39", "49", "55", "86", "352"), 11),
}

# How a number of any length shows that it has its code: of Austria's areas only 4350 and 4352 to 4359 begin like that.
_ONLY_WITH_CODE = {"43": re.compile("43(?!5[02-9])")}

_TRUNKS = {"7": "8", "36": "06"}


def is_code(country: str) -> bool:
    """Whether digits can be a country's code.

    >>> is_code("41"), is_code("4"), is_code("411")
    (True, False, False)
    """
    return country[:1] not in ("", "0") and country.isdecimal() and _code(country) == country


def e164(text: str, country: str) -> str | None:
    """A phone number with its country's code; None if it is none.

    Args:
        text: The number as it is written, with ASCII digits and dashes.
        country: The code of numbers without one.

    >>> e164("079 123 45 67", "41"), e164("+44 (0)20 7946 0958", "41"), e164("06 1234 5678", "39")
    ('+41791234567', '+442079460958', '+390612345678')
    """
    text = re.sub(r"^tel[.:\s]*", "", text.strip(), flags=re.IGNORECASE)
    # A number that once was a float; and one below zero, which is none.
    text = re.sub(r"^(\d+)\.0$", r"\1", text)
    found = None if text.startswith("-") else re.fullmatch(r"(\+|00)?(\d+)", re.sub(r"[\s()./-]", "", text))
    if found is None:
        return None
    digits = found[2] if found[1] else _with_code(found[2], country)
    code = _code(digits)
    national = _national(digits.removeprefix(code), code)
    fits = FEWEST_DIGITS <= len(code + national) <= MOST_DIGITS
    return f"+{code}{national}" if fits and not code.startswith("0") and national.strip("0") else None


def _code(digits: str) -> str:
    """The country's code that digits begin with."""
    found = _CODE.match(digits)
    return "" if found is None else found[0]


def _with_code(digits: str, country: str) -> str:
    if country in _ONLY_WITH_CODE:
        has_code = _ONLY_WITH_CODE[country].match(digits) is not None
    else:
        has_code = digits.startswith(country) and _is_too_long(digits, country)
    return digits if has_code else country + digits


def _national(digits: str, code: str) -> str:
    """A number behind its code, without what is dialled in front of it only within the country."""
    if _is_too_long(digits, code):
        digits = digits.removeprefix(_TRUNKS.get(code, ""))
    return digits if code in _ZERO_STAYS else digits.lstrip("0")


def _is_too_long(digits: str, country: str) -> bool:
    return len(digits) > _LONGEST.get(country, MOST_DIGITS)
