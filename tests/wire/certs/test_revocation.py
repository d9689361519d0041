"""A certificate that a party has listed as revoked is refused by that party, whoever dials."""

from pathlib import Path

import pytest

from colonnade.errors import AuthError, StorageError
from colonnade.wire.certs import authority as certs
from colonnade.wire.certs.credentials import LIST, Credentials, Identity, revoke, show


@pytest.fixture
def bank(tmp_path: Path) -> Credentials:
    certs.init(tmp_path / "authority")
    for name in ("bank", "shop"):
        certs.issue(tmp_path / "authority", name, out=tmp_path / name)
    return Credentials.read(tmp_path / "bank", "bank")


def shop_of(bank: Credentials) -> Identity:
    return show(bank.directory.parent / "shop" / "shop.pem")


@pytest.mark.parametrize(
    "line",
    [
        lambda shop: shop.fingerprint.hex(),
        lambda shop: f"  {shop.key.hex().upper()}  # its laptop was stolen",
        lambda shop: f"# a remark\n\n{shop.words}",
        lambda shop: shop.words.upper().replace(" ", "-"),
    ],
)
def test_a_listed_certificate_is_refused_and_others_are_not(bank: Credentials, line) -> None:
    shop = shop_of(bank)
    bank.recognise("shop", shop)
    (bank.directory / LIST).write_text(line(shop) + "\n")
    with pytest.raises(AuthError, match=r"^Expected a certificate of shop that is not revoked, but .*revoked\.txt"):
        bank.recognise("shop", shop)
    bank.recognise("bank", bank.identity)


def test_revoking_a_certificate_revokes_the_next_one_of_the_same_key(bank: Credentials) -> None:
    stolen = shop_of(bank)
    revoke(bank.directory, stolen.fingerprint, stolen.key, "shop of colonnade")
    certs.issue(bank.directory.parent / "authority", "shop", out=bank.directory.parent / "shop")
    renewed = shop_of(bank)
    assert renewed.fingerprint != stolen.fingerprint
    with pytest.raises(AuthError, match="not revoked"):
        bank.recognise("shop", renewed)


def test_a_list_beside_the_plan_is_read_beside_the_one_of_the_certificates(bank: Credentials, tmp_path: Path) -> None:
    shop, plan = shop_of(bank), tmp_path / "plan" / LIST
    plan.parent.mkdir()
    both = Credentials.read(bank.directory, "bank", revoked=plan)
    both.recognise("shop", shop)
    revoke(plan.parent, shop.fingerprint, shop.key, "shop")
    with pytest.raises(AuthError, match=r"certificate of shop that is not revoked, but .*plan/revoked\.txt"):
        both.recognise("shop", shop)
    bank.recognise("shop", shop)
    # The list goes on to hold when the party's own certificate is renewed.
    certs.issue(tmp_path / "authority", "bank", out=bank.directory)
    assert both.changed()
    with pytest.raises(AuthError, match="not revoked"):
        both.current().recognise("shop", shop)
    plan.unlink()
    revoke(bank.directory, shop.fingerprint, shop.key, "shop")
    with pytest.raises(AuthError, match="not revoked"):
        both.recognise("shop", shop)


def test_a_party_does_not_start_with_a_certificate_that_is_revoked(bank: Credentials) -> None:
    revoke(bank.directory, bank.identity.fingerprint, bank.identity.key, "bank")
    with pytest.raises(AuthError, match="Expected a certificate of bank that is not revoked"):
        Credentials.read(bank.directory, "bank")


@pytest.mark.parametrize("line", ["shop", "ab" * 31, "\x00\xff"])
def test_a_list_that_cannot_be_understood_refuses_everybody(bank: Credentials, line: str) -> None:
    (bank.directory / LIST).write_text(f"# fine\n{line}\n")
    with pytest.raises(StorageError, match=r"^Expected line 2 of .*revoked\.txt to be a SHA-256"):
        bank.recognise("shop", shop_of(bank))
