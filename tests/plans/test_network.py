"""The section [network] of a plan."""

import re
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from colonnade.errors import PlanError
from colonnade.plans.align import PlannedAlign
from colonnade.plans.plan import Plan
from colonnade.plans.sections import (
    PlannedAddress,
    PlannedData,
    PlannedDefence,
    PlannedModel,
    PlannedNetwork,
    PlannedRun,
    PlannedTable,
)
from colonnade.roles import Roles

PAGE = (Path(__file__).parents[2] / "docs" / "plans.md").read_text(encoding="utf-8")
MINIMAL = """
[data.bank]
path = "bank.csv"
ids = "id"
labels = "late"

[roles]
label = "bank"
features = ["shop"]

[model]
name = "split-classifier"

[network.bank]
address = "bank.example:7431"
"""
NETWORK = """
[network]
certificates = "keys"
key_file = "storage.key"
keep_received = "audit"
randomness = "seeded"
start = 60
rejoin = 61.5
silence = 5
message = 62

[network.shop]
listen = "[::]:7432"
"""
AGREED = """
[run]
received = "audit"
"""


def read(tmp_path: Path, text: str) -> Plan:
    path = tmp_path / "credit.toml"
    path.write_text(text, encoding="utf-8")
    return Plan.read(path)


def refusal(tmp_path: Path, text: str) -> str:
    with pytest.raises(PlanError) as caught:
        read(tmp_path, text)
    return str(caught.value)


def built(**changes: Any) -> Plan:
    plan = Plan(PlannedData("breast-cancer"), Roles(label="bank", features=("shop",)), PlannedModel("split-classifier"))
    return replace(plan, **changes)


def test_the_section_is_read_with_its_defaults(tmp_path: Path) -> None:
    network = read(tmp_path, MINIMAL).network
    address = PlannedAddress("bank.example:7431")
    assert network == PlannedNetwork({"bank": address}, tmp_path / "certs", revoked=tmp_path / "revoked.txt")


def test_the_section_read_from_a_file_is_the_one_built_in_python(tmp_path: Path) -> None:
    network = read(tmp_path, MINIMAL + NETWORK + AGREED).network
    parties = {"bank": PlannedAddress("bank.example:7431"), "shop": PlannedAddress(listen="[::]:7432")}
    assert network == PlannedNetwork(
        parties,
        tmp_path / "keys",
        tmp_path / "storage.key",
        "audit",
        "seeded",
        60.0,
        61.5,
        5.0,
        62.0,
        tmp_path / "revoked.txt",
    )
    assert network is not None
    assert network.addresses(("bank", "shop")) == {"bank": "bank.example:7431", "shop": None}
    assert (network.listen("bank"), network.listen("shop")) == (None, "[::]:7432")


def test_the_section_survives_being_written_and_read(tmp_path: Path) -> None:
    plan = read(tmp_path, MINIMAL + NETWORK + AGREED)
    again = read(tmp_path / "..", plan.to_toml())
    assert (again, again.hash) == (plan, plan.hash)


def test_a_plan_without_the_section_has_the_hash_it_always_had() -> None:
    assert "network" not in built().to_toml()
    assert built(network=PlannedNetwork({"bank": PlannedAddress("bank:1")})).hash != built().hash


def test_what_parties_must_agree_on_holds_neither_paths_nor_addresses_nor_defences() -> None:
    network = PlannedNetwork({"bank": PlannedAddress("bank:1")})
    table = PlannedTable(Path("bank.csv"), "id", labels="late")
    private = [
        built(network=network),
        built(network=replace(network, start=1.0, certificates=Path("elsewhere"))),
        built(network=network, data=PlannedData(tables={"bank": table})),
        built(defences=(PlannedDefence("bank", "gradient-noise"),)),
        built(run=PlannedRun(keep="digests")),
        built(name="other"),
    ]
    assert {plan.public().hash for plan in private} == {built().public().hash}
    public = [
        built(seed=1),
        built(roles=Roles(label="shop", features=("bank",))),
        built(model=PlannedModel("split-classifier", {"epochs": 3})),
        built(run=PlannedRun(received="audit")),
        built(run=PlannedRun(received="audit"), model=None, align=PlannedAlign()),
        built(model=None, align=PlannedAlign()),
    ]
    assert len({plan.public().hash for plan in [built(), *public]}) == 7


def test_a_party_keeps_what_it_receives_only_if_all_parties_agreed(tmp_path: Path) -> None:
    assert refusal(tmp_path, MINIMAL + NETWORK) == (
        "A party may keep what it receives only if all parties agreed to that, but [network] has keep_received = "
        "'audit' and [run] has received = 'digests'. Write received = 'audit' into the plans of all parties, or leave "
        "keep_received out."
    )
    network = read(tmp_path, MINIMAL + AGREED).network
    assert network is not None
    assert network.keep_received == "digests"


def test_between_machines_a_party_needs_only_its_own_table(tmp_path: Path) -> None:
    plan = read(tmp_path, MINIMAL)
    assert list(plan.data.tables) == ["bank"]
    with pytest.raises(PlanError) as caught:
        plan.tables()
    assert str(caught.value) == (
        "[roles] names shop, but [data] has files of bank only. Add a section [data.shop] or correct the role."
    )
    assert "[roles] names shop" in refusal(tmp_path, MINIMAL[: MINIMAL.index("[network")])


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            "[network.bank]",
            "[network.banc]",
            "[network.banc] names a party that has no role; those who have are bank, shop. The nearest name is 'bank'. "
            "Correct the name or leave the section out.",
        ),
        (
            'address = "bank.example:7431"',
            "",
            "[network] gives neither bank nor shop an address, so neither can reach the other. "
            'Write address = "host:port" under [network.bank].',
        ),
        (
            "bank.example:7431",
            "bank.example",
            "address should be a host and a port such as bank.example:7431 or [2001:db8::1]:7431, but is "
            "'bank.example'. Correct it.",
        ),
        ("bank.example:7431", "bank.example:99999", "address should be a host and a port"),
        ("bank.example:7431", "bank.example:0", "address should be a host and a port"),
        ("bank.example:7431", "::1:7431", "address should be a host and a port"),
        (
            "[network.bank]",
            "[network]\nstart = 0\n[network.bank]",
            "[network] start should be above 0 seconds, but is 0. Choose a longer time.",
        ),
        (
            "[network.bank]",
            "[network]\nstrat = 1\n[network.bank]",
            "[network] takes certificates, key_file, keep_received, randomness, start, rejoin, silence, message, "
            "revoked, log, but has the key 'strat'. The nearest name is 'start'.",
        ),
        ("address =", "adress =", "[network.bank] takes address, listen, but has the key 'adress'."),
        (
            "[network.bank]",
            "[network]\nrandomness = 'dice'\n[network.bank]",
            '[network] randomness should be "system" or "seeded", but is "dice".',
        ),
    ],
)
def test_what_makes_no_sense_is_refused(tmp_path: Path, old: str, new: str, said: str) -> None:
    assert refusal(tmp_path, MINIMAL.replace(old, new)).startswith(said)


@pytest.mark.parametrize("address", ["bank:1", "10.0.0.1:7431", "[2001:db8::1]:7431", "bank.example:65535"])
def test_an_address_is_a_host_and_a_port(address: str) -> None:
    assert PlannedAddress(address).address == address


def keys_on_page(section: str) -> list[str]:
    table = PAGE[PAGE.index(section) :].split("|---|---|---|---|\n")[1].split("\n\n")[0]
    return re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)


@pytest.mark.parametrize(
    ("section", "of"), [("`[network]` says", PlannedNetwork), ("`[network.bank]`", PlannedAddress)]
)
def test_the_page_names_every_key(section: str, of: type) -> None:
    assert keys_on_page(section) == [field.name for field in fields(of) if field.name != "parties"]
