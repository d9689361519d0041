"""Telephone numbers in E.164 form, read by the library `phonenumbers` (extra `phone`).

    +41 79 123 45 67    0041 (0)79 123 45 67    (+41) 079/123.45.67    079 123 45 67    79-123-45-67    41791234567

A number that begins with + or 00 carries its country's code. Other digits are a national number of the country that the
rule names, or carry that country's code without a plus: the reading that is a valid number counts, then the reading of
a possible length. Where both readings are equally good, the code counts as written if it stands apart ("43 512 123456")
or if nothing is set apart ("43512123456").
"""

from __future__ import annotations

import re
from types import ModuleType

from colonnade.errors import MissingExtra, PlanError

# The lengths of country codes by their first digits (ITU-T E.164).
_CODE = re.compile("[17]|2[07]|3[0-469]|4[013-9]|5[1-8]|6[0-6]|8[1246]|9[0-58]|[2-9][0-9]{2}")


def is_code(country: str) -> bool:
    """Whether digits can be a country's code.

    >>> is_code("41"), is_code("4"), is_code("411")
    (True, False, False)
    """
    found = _CODE.match(country)
    return found is not None and found[0] == country


def metadata_version() -> str:
    """The version of the numbering plans that numbers are read by."""
    return f"phonenumbers {_library().__version__}"


def e164(text: str, country: str) -> str | None:
    """A telephone number with its country's code; None if the text is no number.

    Args:
        text: The number as it is written, with ASCII digits and dashes.
        country: The code of numbers without one.

    >>> e164("079 123 45 67", "41"), e164("+44 (0)20 7946 0958", "41"), e164("390612345678", "39")
    ('+41791234567', '+442079460958', '+390612345678')
    """
    text = re.sub(r"^tel[.:\s]*", "", text.strip(), flags=re.IGNORECASE)
    # A column of whole numbers with gaps may have been one of floats. A negative number is no telephone number.
    text = re.sub(r"^(\d+)\.0$", r"\1", text)
    found = None if text.startswith("-") else re.fullmatch(r"(\+|00)?(\d+)", re.sub(r"[\s()./-]", "", text))
    if found is None:
        return None
    digits = found[2]
    if found[1]:
        return _best([f"+{digits}"], country)
    if not digits.startswith(country):
        return _best([digits], country)
    group = re.search(r"\d+", text)
    readings = [f"+{digits}", digits]
    return _best(readings if group and group[0] in (country, digits) else readings[::-1], country)


def _best(readings: list[str], country: str) -> str | None:
    """The first reading that is a valid number; if none is, the first of a possible length."""
    phonenumbers = _library()
    region = phonenumbers.region_code_for_country_code(int(country))
    if region in ("ZZ", "001"):
        raise PlanError(
            f"The rule 'phone:{country}' should name the code of a country, but no country has the code {country}. "
            "Name another one, as in 'phone:41'."
        )
    possible = []
    for reading in readings:
        try:
            number = phonenumbers.parse(reading, region)
        except phonenumbers.NumberParseException:
            continue
        valid = phonenumbers.is_valid_number(number)
        if not valid:
            # Zeros that are dialled within the country only may be doubled behind a code: +41 (0)079.
            number.italian_leading_zero = None
            valid = phonenumbers.is_valid_number(number)
        form = str(phonenumbers.format_number(number, phonenumbers.PhoneNumberFormat.E164))
        if valid:
            return form
        if number.national_number and phonenumbers.is_possible_number(number):
            possible.append(form)
    return possible[0] if possible else None


def _library() -> ModuleType:
    try:
        import phonenumbers
    except ImportError as error:
        raise MissingExtra("phone", "The rule 'phone'") from error
    return phonenumbers
