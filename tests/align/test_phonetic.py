"""Names by their sound, against published codes."""

from __future__ import annotations

import pyarrow as pa
import pytest

from colonnade.align.identifiers import Identifiers, normalised
from colonnade.align.phonetic import cologne, soundex
from colonnade.errors import DataError


@pytest.mark.parametrize(
    ("name", "code"),
    {
        "Robert": "R163",
        "Rupert": "R163",
        "Rubin": "R150",
        "Ashcraft": "A261",
        "Ashcroft": "A261",
        "Tymczak": "T522",
        "Pfister": "P236",
        "Honeyman": "H555",
        "Lee": "L000",
        "Gutierrez": "G362",
        "Jackson": "J250",
        "VanDeusen": "V532",
        "O'Hara": "O600",
        "Müller": "M460",
    }.items(),
)
def test_soundex_gives_the_codes_of_the_national_archives(name, code):
    assert soundex(name) == code


@pytest.mark.parametrize(
    ("name", "code"),
    {
        "Müller": "657",
        "Wikipedia": "3412",
        "Breschnew": "17863",
        "Lüdenscheidt": "52682",
        "Heinz Classen": "068 4586",
        "Maier": "67",
        "Meyer": "67",
        "Schmidt": "862",
        "Schmitt": "862",
        "Philipp": "351",
        "Xaver": "4837",
        "Max": "648",
        "Fuchs": "348",
        "Weiß": "38",
    }.items(),
)
def test_cologne_gives_the_published_codes(name, code):
    assert cologne(name) == code


def test_a_name_without_a_letter_has_no_sound():
    values = pa.array(["12", "", None, "Иван", "  jürgen  Müller ", "Jurgen MUELLER"])
    assert normalised(values, "soundex").to_pylist() == [None, None, None, None, "J625 M460", "J625 M460"]
    assert normalised(values, "cologne").to_pylist() == [None, None, None, None, "0746 657", "0746 657"]


def test_a_phonetic_key_refuses_numbers_and_counts_as_one_that_can_be_listed():
    with pytest.raises(DataError, match="should bring text for the rule 'soundex', but its column 'name' holds whole"):
        normalised(pa.array([1, 2]), "soundex", column="name")
    assert Identifiers(("soundex+integer", "soundex+text"), ("a+b", "c+d")).enumerable == ("soundex+integer",)
