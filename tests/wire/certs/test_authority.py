import base64
import ssl
import stat
from collections.abc import Callable, Iterator
from concurrent import futures
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from hypothesis import example, given
from hypothesis import strategies as st
from typer.testing import CliRunner

from colonnade.cli.main import app
from colonnade.errors import AuthError, PlanError, StorageError
from colonnade.wire.certs import authority as certs
from colonnade.wire.certs.credentials import (
    DOMAIN,
    ENCODED_DOMAIN,
    Credentials,
    Identity,
    host_of,
    identity_of,
    show,
    words_of,
)
from colonnade.wire.certs.words import from_words

DAY = timedelta(days=1)
NAMES = ["bank", "shop-2", "Grand Bank", "bank.example", "Zürich/Ost", "..", "-", "百貨店", "encoded", "x" * 64]

party_names = st.text(min_size=1, max_size=64).filter(lambda name: name.isprintable() and len(name.encode()) <= 64)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the authority of a federation, bank and shop; tests do not write to it."""
    folder = tmp_path_factory.mktemp("certs")
    certs.init(folder, federation="credit")
    certs.issue(folder, "bank")
    certs.issue(folder, "shop")
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    """A copy of it that a test may spoil."""
    for path in made.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
        (tmp_path / path.name).chmod(0o600)
    return tmp_path


def rewrite(
    folder: Path, name: str, *, start: datetime | None = None, end: datetime | None = None, names: list | None = None
) -> None:
    """Replace a certificate by one of the same key, signed by the authority, that says something else."""
    old = x509.load_pem_x509_certificate((folder / f"{name}.pem").read_bytes())
    start, end = start or old.not_valid_before_utc, end or old.not_valid_after_utc
    builder = x509.CertificateBuilder(old.issuer, old.subject, old.public_key(), old.serial_number, start, end)
    for extension in old.extensions:
        value = extension.value
        if names is not None and isinstance(value, x509.SubjectAlternativeName):
            value = x509.SubjectAlternativeName(names)
        builder = builder.add_extension(value, extension.critical)
    signer = load_pem_private_key((folder / "ca.key").read_bytes(), None)
    (folder / f"{name}.pem").write_bytes(builder.sign(signer, SHA256()).public_bytes(Encoding.PEM))


def expire(folder: Path, name: str) -> None:
    rewrite(folder, name, start=datetime.now(UTC) - 2 * DAY, end=datetime.now(UTC) - DAY)


def postpone(folder: Path, name: str) -> None:
    rewrite(folder, name, start=datetime.now(UTC) + DAY, end=datetime.now(UTC) + 2 * DAY)


def loaded(path: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(path.read_bytes())


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_an_identity_matches_the_words_of_its_own_fingerprint_only(made: Path) -> None:
    bank, shop = show(made / "bank.pem"), show(made / "shop.pem")
    assert from_words(bank.words.upper().replace(" ", "-")) == bank.fingerprint[:16]
    assert from_words(shop.words) != bank.fingerprint[:16]


def name_in(host: str) -> str:
    """The name of which this is the host."""
    if not host.endswith(ENCODED_DOMAIN):
        return host.removesuffix(DOMAIN)
    letters = host.removesuffix(ENCODED_DOMAIN).replace(".", "").upper()
    return base64.b32decode(letters + "=" * (-len(letters) % 8)).decode()


@given(party_names)
@example("bank")
@example("encoded")
@example("ijqw42y.encoded")
@example("x" * 64)
def test_every_name_has_a_host_of_its_own_that_dns_allows(name: str) -> None:
    host = host_of(name)
    assert name_in(host) == name
    assert len(host) <= 253
    for label in host.split("."):
        assert len(label) <= 63
        assert set(label) <= set("abcdefghijklmnopqrstuvwxyz0123456789-")
        assert not label.startswith("-")
        assert not label.endswith("-")


def test_plain_names_stay_readable() -> None:
    assert host_of("grand-bank2") == "grand-bank2.party.colonnade"


@pytest.mark.parametrize("name", ["", "bank\n", "x" * 65, "ü" * 33, "\ud800"])
def test_a_name_that_no_certificate_can_hold_is_refused(name: str, made: Path, tmp_path: Path) -> None:
    acts: list[Callable[[], object]] = [
        lambda: host_of(name),
        lambda: certs.init(tmp_path, federation=name),
        lambda: certs.issue(made, name, out=tmp_path),
        lambda: certs.request(tmp_path, name),
        lambda: Credentials.read(made, name),
    ]
    for act in acts:
        with pytest.raises(PlanError, match=r"^Expected a name of 1 to 64 bytes without control characters, got "):
            act()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["ca", "CA"])
def test_a_party_whose_files_would_be_the_authoritys_is_refused(name: str, made: Path) -> None:
    with pytest.raises(PlanError, match=rf"got '{name}', for which ca\.pem and ca\.key are taken\. Give the party"):
        certs.issue(made, name)


def test_an_authority_may_sign_parties_and_nothing_else(made: Path) -> None:
    extensions = loaded(made / "ca.pem").extensions
    constraints = extensions.get_extension_for_class(x509.BasicConstraints)
    usage = extensions.get_extension_for_class(x509.KeyUsage)
    assert (constraints.critical, constraints.value.ca, constraints.value.path_length) == (True, True, 0)
    assert (usage.critical, usage.value.key_cert_sign, usage.value.digital_signature) == (True, True, False)


def test_a_party_may_be_server_and_client_and_nothing_else(made: Path) -> None:
    extensions = loaded(made / "bank.pem").extensions
    constraints = extensions.get_extension_for_class(x509.BasicConstraints)
    usage = extensions.get_extension_for_class(x509.KeyUsage)
    assert (constraints.critical, constraints.value.ca) == (True, False)
    assert (usage.critical, usage.value.key_cert_sign, usage.value.digital_signature) == (True, False, True)
    purposes = extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert {purpose.dotted_string for purpose in purposes} == {"1.3.6.1.5.5.7.3.1", "1.3.6.1.5.5.7.3.2"}


def test_keys_are_for_their_owner_alone(made: Path) -> None:
    assert {mode(made / f"{name}.key") for name in ("ca", "bank", "shop")} == {0o600}


@pytest.mark.parametrize("present", ["ca.pem", "ca.key"])
def test_an_authority_is_never_overwritten(present: str, tmp_path: Path) -> None:
    (tmp_path / present).write_text("mine")
    with pytest.raises(StorageError, match=rf"^Expected a folder without an authority, but .*{present} exists and is "):
        certs.init(tmp_path)
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [(present, "mine")]


def test_a_certificate_that_would_not_hold_is_refused_before_anything_is_written(made: Path, tmp_path: Path) -> None:
    for act in (lambda: certs.init(tmp_path, days=0), lambda: certs.issue(made, "bank", days=-1, out=tmp_path)):
        with pytest.raises(PlanError, match=r"^Expected a certificate that holds for at least 1 day, got -?\d\. Ask"):
            act()
    assert not list(tmp_path.iterdir())


def test_a_certificate_is_not_issued_without_an_authority(tmp_path: Path) -> None:
    with pytest.raises(
        StorageError, match=r"^Expected to read .*ca\.pem, but got: No such file .* 'colonnade certs init'"
    ):
        certs.issue(tmp_path, "bank")
    assert not list(tmp_path.iterdir())


def test_a_certificate_is_not_issued_with_the_key_of_another_authority(folder: Path, tmp_path_factory) -> None:
    other = tmp_path_factory.mktemp("other")
    certs.init(other)
    (folder / "ca.key").write_bytes((other / "ca.key").read_bytes())
    with pytest.raises(AuthError, match=r"ca\.key to be the key of the certificate in ca\.pem, but it is another one"):
        certs.issue(folder, "telco")


def test_a_certificate_does_not_outlive_its_authority(tmp_path: Path) -> None:
    authority = show(certs.init(tmp_path, days=10))
    assert show(certs.issue(tmp_path, "bank", days=397)).not_after == authority.not_after
    assert show(certs.issue(tmp_path, "bank", days=5)).not_after < authority.not_after


def test_an_authority_under_a_passphrase_signs_only_with_the_passphrase(tmp_path: Path) -> None:
    certs.init(tmp_path / "authority", passphrase=b"correct horse battery")
    key = (tmp_path / "authority" / "ca.key").read_bytes()
    assert b"BEGIN ENCRYPTED PRIVATE KEY" in key
    with pytest.raises(AuthError, match=r"^Expected the passphrase of .*ca\.key, but none was given"):
        certs.issue(tmp_path / "authority", "bank", out=tmp_path / "bank")
    with pytest.raises(AuthError, match=r"^Expected .*ca\.key to be an ECDSA key under this passphrase") as refused:
        certs.issue(tmp_path / "authority", "bank", out=tmp_path / "bank", passphrase=b"incorrect horse")
    assert "incorrect horse" not in str(refused.value)
    assert not (tmp_path / "bank").exists()
    certs.issue(tmp_path / "authority", "bank", out=tmp_path / "bank", passphrase=b"correct horse battery")
    certs.request(tmp_path / "shop", "shop")
    certs.sign(tmp_path / "authority", "shop", tmp_path / "shop" / "shop.csr", passphrase=b"correct horse battery")
    for name in ("bank", "shop"):
        assert Credentials.read(tmp_path / name, name).name == name
        assert not (tmp_path / name / "ca.key").exists()


@pytest.mark.parametrize("passphrase", [b"", b"short", b"x" * 1024])
def test_a_passphrase_of_a_length_that_protects_nothing_is_refused(tmp_path: Path, passphrase: bytes) -> None:
    with pytest.raises(PlanError, match=rf"^Expected a passphrase of 12 to 1023 bytes for .*, got {len(passphrase)} "):
        certs.init(tmp_path, passphrase=passphrase)
    assert not list(tmp_path.iterdir())


def test_issuing_again_renews_the_certificate_and_keeps_the_key(folder: Path) -> None:
    key, before = (folder / "bank.key").read_bytes(), show(folder / "bank.pem")
    after = show(certs.issue(folder, "bank", days=400))
    assert (folder / "bank.key").read_bytes() == key
    assert after.not_after > before.not_after
    assert Credentials.read(folder, "bank").identity == after


@pytest.mark.parametrize("name", NAMES)
def test_a_folder_that_is_handed_over_holds_all_a_party_needs(name: str, made: Path, tmp_path: Path) -> None:
    path = certs.issue(made, name, out=tmp_path / "theirs")
    assert path.parent == tmp_path / "theirs"
    assert {each.suffix for each in path.parent.iterdir()} == {".pem", ".key"}
    assert not (path.parent / "ca.key").exists()
    credentials = Credentials.read(path.parent, name)
    assert (credentials.name, credentials.identity.name) == (name, name)


@pytest.mark.parametrize("name", NAMES)
def test_a_signed_request_serves_the_key_that_never_left_its_owner(name: str, made: Path, tmp_path: Path) -> None:
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    request = certs.request(theirs, name)
    key = next(theirs.glob("*.key"), None) or next(theirs.glob(".*.key"))
    assert mode(key) == 0o600
    ours.mkdir()
    (ours / "received.csr").write_bytes(request.read_bytes())
    assert words_of((ours / "received.csr").read_bytes()) == words_of(request.read_bytes())

    certificate = certs.sign(made, name, ours / "received.csr")
    assert not [path for path in ours.iterdir() if path.suffix == ".key"]
    for path in (certificate, ours / "ca.pem"):
        (theirs / path.name).write_bytes(path.read_bytes())
    assert Credentials.read(theirs, name).identity == show(certificate)


def test_a_request_made_again_uses_the_same_key(tmp_path: Path) -> None:
    first = x509.load_pem_x509_csr(certs.request(tmp_path, "bank").read_bytes())
    second = x509.load_pem_x509_csr(certs.request(tmp_path, "bank").read_bytes())
    assert first.public_key() == second.public_key()


def test_a_request_in_another_name_is_not_signed(made: Path, tmp_path: Path) -> None:
    with pytest.raises(
        AuthError, match=r"^Expected a request by bank, but .*shop\.csr is for 'O=shop'\. Sign it under"
    ):
        certs.sign(made, "bank", certs.request(tmp_path, "shop"))
    assert not (tmp_path / "bank.pem").exists()


def test_a_request_whose_sender_does_not_hold_the_key_is_not_signed(made: Path, tmp_path: Path) -> None:
    request = certs.request(tmp_path, "bank")
    der = bytearray(x509.load_pem_x509_csr(request.read_bytes()).public_bytes(Encoding.DER))
    der[-1] ^= 1
    request.write_bytes(x509.load_der_x509_csr(bytes(der)).public_bytes(Encoding.PEM))
    with pytest.raises(AuthError, match=r"^Expected a request by bank that is signed with its own key, but the signat"):
        certs.sign(made, "bank", request)


@pytest.mark.parametrize(
    ("key", "digest"),
    [(ed25519.Ed25519PrivateKey.generate(), None), (ec.generate_private_key(ec.SECP384R1()), SHA256())],
)
def test_a_request_for_a_key_of_another_kind_is_not_signed(key, digest, made: Path, tmp_path: Path) -> None:
    subject = x509.Name([x509.NameAttribute(x509.NameOID.ORGANIZATION_NAME, "bank")])
    asked = x509.CertificateSigningRequestBuilder(subject).sign(key, digest)
    (tmp_path / "bank.csr").write_bytes(asked.public_bytes(Encoding.PEM))
    with pytest.raises(
        AuthError, match=r"bank\.csr to be a request for a certificate of an ECDSA P-256 key, but it can"
    ):
        certs.sign(made, "bank", tmp_path / "bank.csr")


def test_an_identity_says_what_the_certificate_says(made: Path) -> None:
    pem = (made / "bank.pem").read_bytes()
    bank, authority = identity_of(pem), identity_of((made / "ca.pem").read_bytes())
    assert (bank.name, bank.federation, bank.owner) == ("bank", "credit", "bank")
    assert bank.fingerprint == sha256(ssl.PEM_cert_to_DER_cert(pem.decode())).digest()
    assert bank.not_before < datetime.now(UTC) < bank.not_after < datetime.now(UTC) + 398 * DAY
    assert bank.issuer == authority.issuer
    assert (authority.name, authority.owner) == (None, "the authority of credit")
    assert words_of(pem) == bank.words


@pytest.mark.parametrize(
    "names",
    [
        [],
        [x509.DNSName("bank.party.colonnade")],
        [x509.DNSName("shop.party.colonnade"), x509.UniformResourceIdentifier("colonnade://credit/bank")],
        [x509.UniformResourceIdentifier("colonnade://credit/bank")],
        [x509.UniformResourceIdentifier("colonnade://credit")],
        [x509.DNSName("bank.party.colonnade"), x509.UniformResourceIdentifier("colonnade://credit/b%61nk")],
        [x509.DNSName("bank.party.colonnade"), x509.UniformResourceIdentifier("https://credit/bank")],
        [
            x509.DNSName("bank.party.colonnade"),
            x509.DNSName("shop.party.colonnade"),
            x509.UniformResourceIdentifier("colonnade://credit/bank"),
        ],
        [
            x509.DNSName("bank.party.colonnade"),
            x509.UniformResourceIdentifier("colonnade://credit/bank"),
            x509.UniformResourceIdentifier("colonnade://credit/shop"),
        ],
    ],
)
def test_a_certificate_that_does_not_name_exactly_one_party_is_refused(names: list, folder: Path) -> None:
    rewrite(folder, "bank", names=names)
    with pytest.raises(
        AuthError, match=r"^Expected .*bank\.pem to be one that a Colonnade authority made, but it cannot"
    ):
        show(folder / "bank.pem")


def test_showing_an_expired_certificate_says_expired(folder: Path) -> None:
    good = CliRunner().invoke(app, ["certs", "show", str(folder / "bank.pem")])
    assert (good.exit_code, good.stderr) == (0, "")
    expire(folder, "bank")
    ended = CliRunner().invoke(app, ["certs", "show", str(folder / "bank.pem")])
    assert ended.exit_code == 0
    assert "This certificate has expired. Have it issued or signed again." in ended.stderr


@given(st.data())
def test_a_damaged_certificate_is_read_or_refused_and_nothing_else(made: Path, data: st.DataObject) -> None:
    der = bytearray(loaded(made / "bank.pem").public_bytes(Encoding.DER))
    for at in data.draw(st.lists(st.integers(0, len(der) - 1), min_size=1, max_size=4)):
        der[at] = data.draw(st.integers(0, 255))
    try:
        identity = identity_of(ssl.DER_cert_to_PEM_cert(bytes(der)).encode())
    except AuthError:
        return
    assert isinstance(identity, Identity)


@given(st.binary(max_size=200))
def test_bytes_that_are_no_certificate_are_refused(pem: bytes) -> None:
    for read in (identity_of, words_of):
        with pytest.raises(AuthError, match="It is damaged or of another origin; restore a copy or have it made again"):
            read(pem)


def test_credentials_hold_what_the_files_hold_and_do_not_show_the_key(made: Path) -> None:
    credentials = Credentials.read(str(made), "bank")
    assert credentials.ca_pem == (made / "ca.pem").read_bytes()
    assert credentials.certificate_pem == (made / "bank.pem").read_bytes()
    assert credentials.key_pem == (made / "bank.key").read_bytes()
    assert "PRIVATE" not in repr(credentials)


@pytest.mark.parametrize("missing", ["ca.pem", "bank.pem", "bank.key"])
def test_a_missing_file_is_named(missing: str, folder: Path) -> None:
    (folder / missing).unlink()
    with pytest.raises(
        StorageError, match=rf"^Expected to read .*{missing}, but got: No such file or directory\. Name"
    ):
        Credentials.read(folder, "bank")


@pytest.mark.parametrize(
    ("damaged", "expected"),
    [
        ("ca.pem", "to hold the certificate of an authority"),
        ("bank.pem", "to be one that a Colonnade authority made"),
        ("bank.key", "to be an ECDSA key without a passphrase"),
    ],
)
def test_a_damaged_file_is_refused_without_its_contents(damaged: str, expected: str, folder: Path) -> None:
    (folder / damaged).write_text("-----BEGIN hunter2-----")
    with pytest.raises(
        AuthError, match=rf"{expected}, but it cannot be read as one \(ValueError\)\. It is damag"
    ) as caught:
        Credentials.read(folder, "bank")
    assert "hunter2" not in str(caught.value)


def test_a_key_with_a_passphrase_is_refused(folder: Path) -> None:
    key = load_pem_private_key((folder / "bank.key").read_bytes(), None)
    locked = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret"))
    (folder / "bank.key").write_bytes(locked)
    with pytest.raises(AuthError, match=r"bank\.key to be an ECDSA key without a passphrase, but it cannot be read"):
        Credentials.read(folder, "bank")


def test_a_key_of_another_kind_is_refused(folder: Path) -> None:
    key = ed25519.Ed25519PrivateKey.generate()
    (folder / "bank.key").write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    with pytest.raises(AuthError, match=r"bank\.key to be an ECDSA key without a passphrase, but it cannot be read"):
        Credentials.read(folder, "bank")


@pytest.mark.parametrize("permissions", [0o640, 0o604, 0o620])
def test_a_key_that_others_can_reach_is_refused_with_the_remedy(permissions: int, folder: Path) -> None:
    (folder / "bank.key").chmod(permissions)
    with pytest.raises(
        AuthError, match=rf"by its owner alone, but its mode is {permissions:o}\. Run: chmod 600 '.*bank\.k"
    ):
        Credentials.read(folder, "bank")
    (folder / "bank.key").chmod(0o400)
    Credentials.read(folder, "bank")


def test_an_expired_certificate_is_refused_with_its_dates(folder: Path) -> None:
    expire(folder, "bank")
    with pytest.raises(
        AuthError, match=r"^Expected a certificate of bank that holds at .* but it expired at .* UTC\. Have"
    ):
        Credentials.read(folder, "bank")


def test_a_certificate_that_does_not_hold_yet_is_refused_with_its_dates(folder: Path) -> None:
    postpone(folder, "bank")
    with pytest.raises(AuthError, match=r"^Expected a certificate of bank .* but it holds from .* UTC only\. Set this"):
        Credentials.read(folder, "bank")


def test_an_expired_authority_is_refused(folder: Path) -> None:
    expire(folder, "ca")
    for act in (lambda: Credentials.read(folder, "bank"), lambda: certs.issue(folder, "bank")):
        with pytest.raises(AuthError, match=r"^Expected a certificate of the authority of credit .* but it expired at"):
            act()


def test_the_certificate_of_another_party_is_refused(folder: Path) -> None:
    (folder / "bank.pem").write_bytes((folder / "shop.pem").read_bytes())
    with pytest.raises(
        AuthError, match=r"bank\.pem to be the certificate of bank, but it is that of shop\. Put the cert"
    ):
        Credentials.read(folder, "bank")


def test_a_certificate_of_another_authority_is_refused_though_it_has_the_same_name(
    folder: Path, tmp_path_factory
) -> None:
    other = tmp_path_factory.mktemp("other")
    (folder / "ca.pem").write_bytes(certs.init(other, federation="credit").read_bytes())
    with pytest.raises(
        AuthError, match=r"^Expected the certificate of bank to be signed by .* another one has signed it"
    ):
        Credentials.read(folder, "bank")


def test_two_authorities_may_stand_side_by_side_while_one_replaces_the_other(folder: Path, tmp_path_factory) -> None:
    other = tmp_path_factory.mktemp("other")
    both = certs.init(other, federation="credit").read_bytes() + (folder / "ca.pem").read_bytes()
    (folder / "ca.pem").write_bytes(both)
    assert Credentials.read(folder, "bank").ca_pem == both


def test_a_key_that_does_not_fit_the_certificate_is_refused(folder: Path) -> None:
    (folder / "bank.key").write_bytes((folder / "shop.key").read_bytes())
    with pytest.raises(
        AuthError, match=r"bank\.key to be the key of the certificate in bank\.pem, but it is another one\."
    ):
        Credentials.read(folder, "bank")


def test_credentials_notice_that_their_files_hold_something_else(folder: Path) -> None:
    credentials = Credentials.read(folder, "bank")
    assert not credentials.changed()
    assert credentials.current() is credentials
    (folder / "bank.pem").write_bytes((folder / "bank.pem").read_bytes())
    assert not credentials.changed()

    certs.issue(folder, "bank")
    assert credentials.changed()
    renewed = credentials.current()
    assert renewed.identity.fingerprint != credentials.identity.fingerprint
    assert not renewed.changed()

    (folder / "bank.key").unlink()
    assert renewed.changed()
    with pytest.raises(StorageError, match=r"bank\.key, but got: No such file"):
        renewed.current()


@contextmanager
def listening(server_credentials: object) -> Iterator[tuple[int, list[dict[str, list[bytes]]]]]:
    """A server that echoes, its port, and what it was told of each caller."""
    import grpc

    callers: list[dict[str, list[bytes]]] = []

    def echo(data: bytes, context: grpc.ServicerContext) -> bytes:
        callers.append(context.auth_context())
        return data

    handler = grpc.method_handlers_generic_handler("test", {"echo": grpc.unary_unary_rpc_method_handler(echo)})
    server = grpc.server(futures.ThreadPoolExecutor(1))
    server.add_generic_rpc_handlers((handler,))
    port = server.add_secure_port("127.0.0.1:0", server_credentials)
    server.start()
    try:
        yield port, callers
    finally:
        server.stop(None).wait()


def files(folder: Path, name: str) -> tuple[bytes, bytes, bytes]:
    """What `Credentials` would hold, whether or not it is any good."""
    ca_pem, key_pem, certificate_pem = (folder / each for each in ("ca.pem", f"{name}.key", f"{name}.pem"))
    return ca_pem.read_bytes(), key_pem.read_bytes(), certificate_pem.read_bytes()


def serving(ca_pem: bytes, key_pem: bytes, certificate_pem: bytes) -> object:
    import grpc

    return grpc.ssl_server_credentials([(key_pem, certificate_pem)], ca_pem, require_client_auth=True)


def answer(
    port: int, ca_pem: bytes, key_pem: bytes | None, certificate_pem: bytes | None, *, expected: str = "bank"
) -> str:
    """What a caller gets that expects a party at a port: its own word back, or a status."""
    import grpc

    credentials = grpc.ssl_channel_credentials(ca_pem, key_pem, certificate_pem)
    options = [("grpc.ssl_target_name_override", host_of(expected))]
    with grpc.secure_channel(f"127.0.0.1:{port}", credentials, options) as channel:
        try:
            return channel.unary_unary("/test/echo")(b"hello", timeout=20).decode()
        except grpc.RpcError as error:
            return error.code().name


@pytest.fixture(scope="module")
def bank(made: Path) -> Iterator[tuple[int, list[dict[str, list[bytes]]]]]:
    """Bank's server, with its port and its callers."""
    with listening(serving(*files(made, "bank"))) as server:
        yield server


@pytest.mark.network
@pytest.mark.parametrize("name", NAMES)
def test_a_server_sees_who_calls(name: str, made: Path, bank, tmp_path: Path) -> None:
    certs.issue(made, name, out=tmp_path)
    shown = Credentials.read(tmp_path, name)
    port, callers = bank
    assert answer(port, shown.ca_pem, shown.key_pem, shown.certificate_pem) == "hello"
    assert identity_of(callers[-1]["x509_pem_cert"][0]) == shown.identity
    assert callers[-1]["x509_subject_alternative_name"][0].decode() == host_of(name)


@pytest.mark.network
@pytest.mark.parametrize("name", NAMES)
def test_a_caller_reaches_the_party_that_it_expects(name: str, made: Path, tmp_path: Path) -> None:
    certs.issue(made, name, out=tmp_path)
    shown = Credentials.read(tmp_path, name)
    with listening(serving(shown.ca_pem, shown.key_pem, shown.certificate_pem)) as (port, _):
        assert answer(port, *files(made, "shop"), expected=name) == "hello"


@pytest.mark.network
@pytest.mark.parametrize("spoil", [expire, postpone])
def test_a_caller_whose_certificate_does_not_hold_is_refused(spoil, folder: Path, bank) -> None:
    port, callers = bank
    assert answer(port, *files(folder, "shop")) == "hello"
    before = len(callers)
    spoil(folder, "shop")
    assert answer(port, *files(folder, "shop")) == "UNAVAILABLE"
    assert len(callers) == before


@pytest.mark.network
def test_a_caller_without_a_certificate_is_refused(made: Path, bank) -> None:
    port, callers = bank
    before = len(callers)
    assert answer(port, (made / "ca.pem").read_bytes(), None, None) == "UNAVAILABLE"
    assert len(callers) == before


@pytest.mark.network
def test_a_caller_with_a_certificate_of_another_authority_is_refused(made: Path, bank, tmp_path: Path) -> None:
    certs.init(tmp_path, federation="credit")
    certs.issue(tmp_path, "shop")
    port, callers = bank
    before = len(callers)
    _, key_pem, certificate_pem = files(tmp_path, "shop")
    assert answer(port, (made / "ca.pem").read_bytes(), key_pem, certificate_pem) == "UNAVAILABLE"
    assert len(callers) == before


@pytest.mark.network
def test_a_caller_refuses_a_server_of_another_authority(made: Path, bank, tmp_path: Path) -> None:
    port, callers = bank
    before = len(callers)
    _, key_pem, certificate_pem = files(made, "shop")
    other = certs.init(tmp_path, federation="credit").read_bytes()
    assert answer(port, other, key_pem, certificate_pem) == "UNAVAILABLE"
    assert len(callers) == before


@pytest.mark.network
@pytest.mark.parametrize("expected", ["shop", "Bank", "ban", "bank2"])
def test_a_caller_refuses_a_server_of_another_name(expected: str, made: Path, bank) -> None:
    port, callers = bank
    before = len(callers)
    assert answer(port, *files(made, "shop"), expected=expected) == "UNAVAILABLE"
    assert len(callers) == before


@pytest.mark.network
@pytest.mark.parametrize("spoil", [expire, postpone])
def test_a_caller_refuses_a_server_whose_certificate_does_not_hold(spoil, folder: Path) -> None:
    spoil(folder, "bank")
    with listening(serving(*files(folder, "bank"))) as (port, callers):
        assert answer(port, *files(folder, "shop")) == "UNAVAILABLE"
        assert not callers


@pytest.mark.network
def test_a_server_takes_up_renewed_credentials_without_a_restart(folder: Path, tmp_path_factory) -> None:
    import grpc

    held = Credentials.read(folder, "bank")

    def configuration() -> object:
        return grpc.ssl_server_certificate_configuration([(held.key_pem, held.certificate_pem)], held.ca_pem)

    def renewed() -> object | None:
        nonlocal held
        if not held.changed():
            return None
        held = held.current()
        return configuration()

    later = tmp_path_factory.mktemp("later")
    certs.init(later, federation="credit")
    certs.issue(later, "shop")
    credentials = grpc.dynamic_ssl_server_credentials(configuration(), renewed, require_client_authentication=True)
    with listening(credentials) as (port, _):
        new, key_pem, certificate_pem = files(later, "shop")
        trusted = (folder / "ca.pem").read_bytes()
        assert answer(port, trusted, key_pem, certificate_pem) == "UNAVAILABLE"
        (folder / "ca.pem").write_bytes(trusted + new)
        assert answer(port, trusted, key_pem, certificate_pem) == "hello"
