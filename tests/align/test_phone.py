"""A telephone number has one form however it is written, in every country."""

import sys

import phonenumbers
import pytest
from phonenumbers import PhoneNumberFormat, PhoneNumberType

from colonnade import Roles, Table, simulate
from colonnade.align import Align, Limits, Settings
from colonnade.align.identifiers import Identifiers
from colonnade.align.phone import e164
from colonnade.errors import MissingExtra, PlanError

EXAMPLES = [
    number
    for region in sorted(phonenumbers.SUPPORTED_REGIONS)
    for kind in (PhoneNumberType.FIXED_LINE, PhoneNumberType.MOBILE)
    if (number := phonenumbers.example_number_for_type(region, kind)) is not None
]


def written(number, how):
    international = phonenumbers.format_number(number, PhoneNumberFormat.E164)
    return {
        "national": phonenumbers.format_number(number, PhoneNumberFormat.NATIONAL),
        "with +": phonenumbers.format_number(number, PhoneNumberFormat.INTERNATIONAL),
        "with 00": international.replace("+", "00"),
        "bare code": international.removeprefix("+"),
    }[how]


@pytest.mark.parametrize("how", ["national", "with +", "with 00", "bare code"])
def test_of_the_examples_of_all_regions_at_most_one_in_a_hundred_is_read_wrongly(how):
    assert len(EXAMPLES) >= 480
    wrong = [
        number
        for number in EXAMPLES
        if e164(written(number, how), str(number.country_code))
        != phonenumbers.format_number(number, PhoneNumberFormat.E164)
    ]
    assert len(wrong) <= 0.01 * len(EXAMPLES), wrong


def test_where_both_readings_are_valid_numbers_the_way_they_are_grouped_decides():
    assert e164("4352 123456", "43") == "+434352123456"
    assert e164("43 52123456", "43") == e164("4352123456", "43") == "+4352123456"


def test_a_number_of_a_possible_length_that_no_numbering_plan_has_is_an_id():
    assert e164("123 4567", "1") == "+11234567"
    assert e164("+41 55 555", "41") is None


def test_a_code_that_no_country_has_is_refused():
    with pytest.raises(PlanError, match=r"'phone:999' should name the code of a country, but no country has .* 999"):
        e164("1234567", "999")


def test_a_missing_library_says_what_to_install_and_a_plan_can_be_read_without_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "phonenumbers", None)
    identifiers = Identifiers(Settings(keys=("phone:41",)).keys, ("tel",))
    with pytest.raises(MissingExtra, match=r"The rule 'phone' needs the extra 'phone'.*colonnade\[phone\]"):
        e164("079 123 45 67", "41")
    with pytest.raises(MissingExtra):
        _ = identifiers.hash


def test_parties_whose_numbering_plans_are_of_different_versions_refuse_each_other(monkeypatch):
    held = {name: Table.of({"id": [f"079 123 45 {i}" for i in range(10, 15)]}) for name in ("bank", "shop")}
    protocol = Align(Settings(keys=("phone:41",)), limits=Limits(fewest=1))

    def older(party, honest):
        with monkeypatch.context() as patch:
            patch.setattr("colonnade.align.identifiers.metadata_version", lambda: "phonenumbers 8.0.0")
            return honest(party)

    with pytest.raises(
        PlanError,
        match=r"bank reads phone:41 \(phonenumbers [0-9.]+\) and shop reads phone:41 \(phonenumbers 8\.0\.0\)\. Name "
        r"the same keys under \[align\] at both, and install the same versions\.",
    ):
        simulate(protocol, held, roles=Roles(label="bank", features=("shop",)), instead={"shop": older})
