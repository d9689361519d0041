"""The authority of a federation, which vouches for the names of its parties over mutual TLS.

One organisation of a federation runs `init` and keeps ``ca.key``, the authority's key, to itself. Every party then gets
a certificate that names it, in one of two ways:

    issue      the authority makes the party's key and certificate, and hands the folder over
    request    the party makes its key, which never leaves it, and a request for a certificate;
    sign       the authority signs the request once both have compared its fingerprint

TLS shows that the authority vouches for a name, and anybody who holds ``ca.key`` can vouch for any name. Parties that
do not want to trust its keeper compare fingerprints by telephone (`colonnade.wire.certs.words`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    KeySerializationEncryption,
    NoEncryption,
    PrivateFormat,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from colonnade.errors import AuthError, PlanError, StorageError
from colonnade.storage import write_atomically
from colonnade.wire.certs.credentials import (
    Identity,
    check_fit,
    check_name,
    host_of,
    identity_of,
    key_digest,
    party_files,
    party_uri,
    private_key,
    read_file,
    understood,
)

# The clocks of two organisations differ; a certificate in use a moment after its issue must not seem to lie ahead.
CLOCK_SKEW = timedelta(hours=1)

# The format derives the encryption key with few rounds, so that a short passphrase would be guessed; the library that
# reads it takes no longer one.
SHORTEST_PASSPHRASE, LONGEST_PASSPHRASE = 12, 1023


def init(
    directory: str | Path, *, federation: str = "colonnade", days: int = 3650, passphrase: bytes | None = None
) -> Path:
    """Make the authority of a federation: ``ca.pem`` for everybody, ``ca.key`` for its keeper alone.

    Args:
        directory: A folder for the authority; best apart from any party's.
        federation: What the parties call themselves together.
        days: How long the authority holds.
        passphrase: What encrypts ``ca.key``; None leaves the key in the clear, readable by its owner alone.
    """
    check_name(federation)
    path, key_path = Path(directory) / "ca.pem", Path(directory) / "ca.key"
    for taken in (path, key_path):
        if taken.exists():
            raise StorageError(
                f"Expected a folder without an authority, but {taken} exists and is never overwritten, because every "
                "certificate signed with it would be lost. Choose another folder, or use this authority."
            )
    until = _until(days)
    subject = x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, federation),
            x509.NameAttribute(NameOID.COMMON_NAME, "Colonnade authority"),
        ]
    )
    key = _new_key(key_path, passphrase)
    pem = _certificate(subject, key.public_key(), [party_uri(federation)], until, signer=key)
    write_atomically(path, pem)
    return path


def issue(
    directory: str | Path,
    name: str,
    *,
    days: int = 397,
    out: str | Path | None = None,
    passphrase: bytes | None = None,
) -> Path:
    """Make a party's key and certificate, signed by the authority in a folder.

    A key that lies there already is kept, so that a certificate is renewed by issuing it again.

    Args:
        directory: Where the authority is.
        name: The party.
        days: How long the certificate holds; never longer than the authority's own.
        out: Where to write ``name.pem``, ``name.key`` and a copy of ``ca.pem``; the authority's folder if None.
        passphrase: Of the authority's key, if the key has one.
    """
    authority, out = _Authority.read(Path(directory), passphrase), Path(out or directory)
    until = _until(days)
    return authority.certify(name, _own_key(out, name).public_key(), until, out)


def request(directory: str | Path, name: str) -> Path:
    """Make a party's key, unless it lies there already, and a request that the authority may sign.

    Returns:
        The path of the request, ``name.csr``; the key beside it is for the party alone.
    """
    key = _own_key(Path(directory), name)
    csr = x509.CertificateSigningRequestBuilder().subject_name(_subject(name)).sign(key, SHA256())
    path = party_files(Path(directory), name)[1].with_suffix(".csr")
    write_atomically(path, csr.public_bytes(Encoding.PEM))
    return path


def sign(
    directory: str | Path,
    name: str,
    csr: str | Path,
    *,
    days: int = 397,
    out: str | Path | None = None,
    passphrase: bytes | None = None,
) -> Path:
    """Sign a party's request, once its `words_of` have been compared with the party.

    Args:
        directory: Where the authority is.
        name: The party that the authority knows the request to come from.
        csr: The path of the request.
        days: How long the certificate holds; never longer than the authority's own.
        out: Where to write ``name.pem`` and a copy of ``ca.pem``; beside the request if None.
        passphrase: Of the authority's key, if the key has one.

    Raises:
        AuthError: If the request names another party, or its sender does not hold the key.
    """
    csr = Path(csr)
    pem = read_file(csr)
    with understood(f"{csr} to be a request for a certificate of an ECDSA P-256 key"):
        asked = x509.load_pem_x509_csr(pem)
        intact, subject, key = asked.is_signature_valid, asked.subject, asked.public_key()
        if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
            raise ValueError("its key is of another kind")
    if not intact:
        raise AuthError(
            f"Expected a request by {name} that is signed with its own key, but the signature in {csr} does not fit. "
            f"Ask {name} to send it again."
        )
    if subject != _subject(name):
        raise AuthError(
            f"Expected a request by {name}, but {csr} is for {subject.rfc4514_string()!r}. "
            "Sign it under that name if you know its sender to be that party; otherwise throw it away."
        )
    return _Authority.read(Path(directory), passphrase).certify(name, key, _until(days), Path(out or csr.parent))


def has_passphrase(key_pem: bytes) -> bool:
    """Whether a key is encrypted."""
    return b"BEGIN ENCRYPTED PRIVATE KEY" in key_pem


def _subject(name: str) -> x509.Name:
    # An organisation's name: a common name would be taken for a host where the certificate gave no other.
    return x509.Name([x509.NameAttribute(NameOID.ORGANIZATION_NAME, name)])


def _certificate(
    subject: x509.Name,
    key: ec.EllipticCurvePublicKey,
    names: Sequence[x509.GeneralName],
    until: datetime,
    *,
    signer: ec.EllipticCurvePrivateKey,
    issuer: x509.Name | None = None,
) -> bytes:
    """A signed certificate: a party's, or that of an authority, which is its own issuer."""
    authority = issuer is None
    builder = (
        x509.CertificateBuilder(issuer or subject, subject, key, x509.random_serial_number())
        .not_valid_before(datetime.now(UTC) - CLOCK_SKEW)
        .not_valid_after(until)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.SubjectKeyIdentifier(key_digest(key)), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier(key_digest(signer.public_key()), None, None), critical=False)
        .add_extension(x509.BasicConstraints(ca=authority, path_length=0 if authority else None), critical=True)
        .add_extension(
            x509.KeyUsage(
                digital_signature=not authority,
                key_cert_sign=authority,
                crl_sign=authority,
                content_commitment=False,
                key_encipherment=False,
                data_encipherment=False,
                key_agreement=False,
                encipher_only=False,
                decipher_only=False,
            ),
            critical=True,
        )
    )
    if not authority:
        both_sides = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        builder = builder.add_extension(x509.ExtendedKeyUsage(both_sides), critical=False)
    return builder.sign(signer, SHA256()).public_bytes(Encoding.PEM)


@dataclass(frozen=True)
class _Authority:
    """The authority in a folder, ready to sign."""

    identity: Identity
    pem: bytes
    key: ec.EllipticCurvePrivateKey = field(repr=False)

    @classmethod
    def read(cls, directory: Path, passphrase: bytes | None) -> _Authority:
        path, key_path = directory / "ca.pem", directory / "ca.key"
        pem, key_pem = read_file(path), read_file(key_path)
        encrypted = has_passphrase(key_pem)
        if encrypted and passphrase is None:
            raise AuthError(
                f"Expected the passphrase of {key_path}, but none was given. Name the file that holds it with "
                "--passphrase-file, or type it when asked."
            )
        key = private_key(key_path, key_pem, passphrase if encrypted else None)
        identity = identity_of(pem, path)
        identity.check_dates()
        check_fit(key, key_path, pem, path)
        return cls(identity, pem, key)

    def certify(self, name: str, key: ec.EllipticCurvePublicKey, until: datetime, out: Path) -> Path:
        """Write a party's certificate, and the authority's beside it."""
        ca_path, path, _ = party_files(out, name)
        names = [x509.DNSName(host_of(name)), party_uri(self.identity.federation, name)]
        issuer = x509.load_pem_x509_certificate(self.pem).subject
        until = min(until, self.identity.not_after)
        write_atomically(path, _certificate(_subject(name), key, names, until, signer=self.key, issuer=issuer))
        if not ca_path.exists():
            write_atomically(ca_path, self.pem)
        return path


def _until(days: int) -> datetime:
    if days < 1:
        raise PlanError(f"Expected a certificate that holds for at least 1 day, got {days}. Ask for more days.")
    return datetime.now(UTC) + timedelta(days=days)


def _own_key(directory: Path, name: str) -> ec.EllipticCurvePrivateKey:
    path = party_files(directory, name)[2]
    return private_key(path, read_file(path)) if path.exists() else _new_key(path)


def _new_key(path: Path, passphrase: bytes | None = None) -> ec.EllipticCurvePrivateKey:
    if passphrase is not None and not SHORTEST_PASSPHRASE <= len(passphrase) <= LONGEST_PASSPHRASE:
        raise PlanError(
            f"Expected a passphrase of {SHORTEST_PASSPHRASE} to {LONGEST_PASSPHRASE} bytes for {path}, got "
            f"{len(passphrase)} bytes. Choose another one."
        )
    key = ec.generate_private_key(ec.SECP256R1())
    hidden: KeySerializationEncryption = NoEncryption() if passphrase is None else BestAvailableEncryption(passphrase)
    # Readable by its owner alone: the temporary file that becomes this one is created so.
    write_atomically(path, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, hidden))
    return key
