"""Certificates: how a party shows the others, over mutual TLS, that it is who it says.

One organisation of a federation runs `init` and keeps ``ca.key``, the authority's key, to itself. Every party then gets
a certificate that names it, in one of two ways:

    issue      the authority makes the party's key and certificate, and hands the folder over
    request    the party makes its key, which never leaves it, and a request for a certificate;
    sign       the authority signs the request once both have compared its fingerprint

A certificate names its party twice: by the DNS name that the dialling side checks (`host_of`), and by a URI with the
name itself, ``colonnade://federation/name``. Keys are ECDSA P-256; gRPC does not take Ed25519.

TLS shows that the authority vouches for a name, and whoever holds ``ca.key`` can vouch for any. Parties that trust no
third compare fingerprints by telephone: SHA-256 of the certificate, its first 128 bits read as eight words of sixteen
bits, consonant-vowel-consonant-vowel-consonant, and a ninth that checks the eight.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from urllib.parse import quote, unquote

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from colonnade.errors import AuthError, PlanError, StorageError
from colonnade.storage import write_atomically

DOMAIN = ".party.colonnade"
ENCODED_DOMAIN = f".encoded{DOMAIN}"

# No h, which many speakers leave out, and no e, which is heard as i.
CONSONANTS = "bdfgjklmnprstvxz"
VOWELS = "aiou"
WORD = (CONSONANTS, VOWELS, CONSONANTS, VOWELS, CONSONANTS)
N_WORDS = 8

# In bytes of UTF-8: an X.509 subject holds no more, and a file name and a DNS name hold as much in encoded form.
LONGEST_NAME = 64

# The clocks of two organisations differ; a certificate in use a moment after its issue must not seem to lie ahead.
CLOCK_SKEW = timedelta(hours=1)


@dataclass(frozen=True)
class Identity:
    """Whom a certificate names, and for how long.

    >>> day = datetime(2030, 1, 1, tzinfo=UTC)
    >>> bank = Identity("bank", "credit", bytes(range(32)), day, day + timedelta(days=1), issuer=bytes(32))
    >>> bank.words
    'babad banag bibak binam bobap bonas bubav bunaz kajuv'
    >>> bank.matches("Babad-banag-bibak-binam bobap bonas bubav bunaz kajuv")
    True

    Attributes:
        name: The party, or None for the authority itself.
        federation: Whose authority has signed.
        fingerprint: SHA-256 of the certificate.
        not_before: From when it holds.
        not_after: Until when it holds.
        issuer: SHA-256 of the public key of the authority by which the certificate claims to be signed.
    """

    name: str | None
    federation: str
    fingerprint: bytes
    not_before: datetime
    not_after: datetime
    issuer: bytes

    @property
    def owner(self) -> str:
        """Whom to name in a sentence."""
        return self.name or f"the authority of {self.federation}"

    @property
    def words(self) -> str:
        """The fingerprint as people read it out."""
        return to_words(self.fingerprint)

    def matches(self, words: str) -> bool:
        """Whether the fingerprint is the one that somebody read out.

        Raises:
            AuthError: If the words were misheard or mistyped and are nobody's fingerprint.
        """
        return hmac.compare_digest(self.fingerprint[: 2 * N_WORDS], from_words(words))

    def check_dates(self) -> None:
        """Refuse a certificate that has expired or does not hold yet."""
        now = datetime.now(UTC)
        if now < self.not_before:
            raise AuthError(
                f"Expected a certificate of {self.owner} that holds at {now:%Y-%m-%d %H:%M} UTC, but it holds from "
                f"{self.not_before:%Y-%m-%d %H:%M} UTC only. Set this machine's clock right, or wait."
            )
        if now > self.not_after:
            raise AuthError(
                f"Expected a certificate of {self.owner} that holds at {now:%Y-%m-%d %H:%M} UTC, but it expired at "
                f"{self.not_after:%Y-%m-%d %H:%M} UTC. Have it issued again, or set this machine's clock right."
            )


@dataclass(frozen=True)
class Credentials:
    """What one party needs for mutual TLS: read from its folder, and found to fit together.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     authority = init(folder, federation="credit")
    ...     certificate = issue(folder, "bank")
    ...     credentials = Credentials.read(folder, "bank")
    >>> credentials.name, credentials.identity.federation, "PRIVATE" in repr(credentials)
    ('bank', 'credit', False)
    """

    directory: Path
    name: str
    identity: Identity
    ca_pem: bytes = field(repr=False)
    certificate_pem: bytes = field(repr=False)
    key_pem: bytes = field(repr=False)
    _stamps: tuple[tuple[int, ...], ...] = field(repr=False, compare=False)

    @classmethod
    def read(cls, directory: str | Path, name: str) -> Credentials:
        """The credentials of a party: ``ca.pem`` and the party's own certificate and key.

        Raises:
            StorageError: If a file is missing or cannot be read.
            AuthError: If a file is not what it should be, or does not fit the others.
        """
        directory = Path(directory)
        paths = ca_path, certificate_path, key_path = _paths(directory, name)
        # Stamped before they are read, so that whatever is written in between counts as a change.
        stamps = tuple(_stamp(path) for path in paths)
        ca_pem, certificate_pem, key_pem = (_read(path) for path in paths)

        identity = identity_of(certificate_pem, certificate_path)
        if identity.name != name:
            raise AuthError(
                f"Expected {certificate_path} to be the certificate of {name}, but it is that of {identity.owner}. "
                f"Put the certificate of {name} there, or take part as {identity.owner}."
            )
        identity.check_dates()
        _check_signed(certificate_pem, ca_path, ca_pem, name)
        _check_fit(_private_key(key_path, key_pem), key_path, certificate_pem, certificate_path)
        return cls(directory, name, identity, ca_pem, certificate_pem, key_pem, stamps)

    def changed(self) -> bool:
        """Whether the files hold something else by now; cheap enough to ask at every connection."""
        paths = _paths(self.directory, self.name)
        if tuple(_stamp(path) for path in paths) == self._stamps:
            return False
        try:
            return [path.read_bytes() for path in paths] != [self.ca_pem, self.certificate_pem, self.key_pem]
        except OSError:
            return True

    def current(self) -> Credentials:
        """These credentials, or the ones in the folder if that has changed.

        Raises:
            ColonnadeError: As `read` does, for instance halfway through a replacement; these here are still good.
        """
        return Credentials.read(self.directory, self.name) if self.changed() else self

    def handed_over(self, peer: str) -> bytes | None:
        """The certificate that a peer has handed over, if it lies in the folder: no other one is good for this peer."""
        path = certificate_path(self.directory, peer)
        return _read(path) if path.exists() else None

    def recognise(self, peer: str, shown: Identity) -> None:
        """Refuse a peer that shows another certificate than the one it has handed over.

        Raises:
            AuthError: The fingerprints differ.
        """
        pem = self.handed_over(peer)
        path = certificate_path(self.directory, peer)
        if pem is not None and (expected := identity_of(pem, path)).fingerprint != shown.fingerprint:
            raise AuthError(
                f"Expected {peer} to show the certificate in {path}, whose words are '{expected.words}', but it shows "
                f"one whose words are '{shown.words}'. If {peer} has a new one, compare the words by telephone, then "
                "replace or delete the file."
            )


def init(directory: str | Path, *, federation: str = "colonnade", days: int = 3650) -> Path:
    """Make the authority of a federation: ``ca.pem`` for everybody, ``ca.key`` for its keeper alone.

    Returns:
        The path of ``ca.pem``.

    Raises:
        StorageError: If the folder holds an authority already.
    """
    _check_name(federation)
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
    key = _new_key(key_path)
    pem = _certificate(subject, key.public_key(), [_uri(federation)], until, signer=key)
    write_atomically(path, pem)
    return path


def issue(directory: str | Path, name: str, *, days: int = 397, out: str | Path | None = None) -> Path:
    """Make a party's key and certificate, signed by the authority in a folder.

    A key that lies there already is kept, so that a certificate is renewed by issuing it again.

    Args:
        directory: Where the authority is.
        name: The party.
        days: How long the certificate holds; never longer than the authority's own.
        out: Where to write ``name.pem``, ``name.key`` and a copy of ``ca.pem``; the authority's folder if None.

    Returns:
        The path of the certificate.
    """
    authority, out = _Authority.read(Path(directory)), Path(out or directory)
    until = _until(days)
    return authority.certify(name, _own_key(out, name).public_key(), until, out)


def request(directory: str | Path, name: str) -> Path:
    """Make a party's key, unless it lies there already, and a request that the authority may sign.

    Returns:
        The path of the request, ``name.csr``; the key beside it is for the party alone.
    """
    key = _own_key(Path(directory), name)
    csr = x509.CertificateSigningRequestBuilder().subject_name(_subject(name)).sign(key, SHA256())
    path = _paths(Path(directory), name)[1].with_suffix(".csr")
    write_atomically(path, csr.public_bytes(Encoding.PEM))
    return path


def sign(directory: str | Path, name: str, csr: str | Path, *, days: int = 397, out: str | Path | None = None) -> Path:
    """Sign a party's request, once its `words_of` have been compared with the party.

    Args:
        directory: Where the authority is.
        name: The party that the authority knows the request to come from.
        csr: The path of the request.
        days: How long the certificate holds; never longer than the authority's own.
        out: Where to write ``name.pem`` and a copy of ``ca.pem``; beside the request if None.

    Returns:
        The path of the certificate.

    Raises:
        AuthError: If the request names another party, or its sender does not hold the key.
    """
    csr = Path(csr)
    pem = _read(csr)
    with _understood(f"{csr} to be a request for a certificate of an ECDSA P-256 key"):
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
    return _Authority.read(Path(directory)).certify(name, key, _until(days), Path(out or csr.parent))


def certificate_path(directory: str | Path, name: str) -> Path:
    """Where the certificate of a party lies in a folder, if it does."""
    return _paths(Path(directory), name)[1]


def show(path: str | Path) -> Identity:
    """Whom the certificate in a file names; its `words` are for the telephone."""
    return identity_of(_read(Path(path)), path)


def identity_of(pem: bytes, origin: str | Path = "the certificate") -> Identity:
    """Whom a certificate names, read and not verified: TLS verifies a peer's, `Credentials.read` one's own.

    Args:
        pem: The certificate.
        origin: What to call it in an error.

    Raises:
        AuthError: If it is not a certificate, or not one that a Colonnade authority makes.
    """
    with _understood(f"{origin} to be one that a Colonnade authority made"):
        certificate = x509.load_pem_x509_certificate(pem)
        extensions = certificate.extensions
        names = extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        (uri,) = names.get_values_for_type(x509.UniformResourceIdentifier)
        federation, name = _parse(uri)
        issuer = extensions.get_extension_for_class(x509.AuthorityKeyIdentifier).value.key_identifier
        authority = extensions.get_extension_for_class(x509.BasicConstraints).value.ca
        # The dialling side reads the DNS name and the listening side the URI: they must be one party.
        hosts = [] if name is None else [host_of(name)]
        if names.get_values_for_type(x509.DNSName) != hosts or authority != (name is None) or issuer is None:
            raise ValueError("its parts do not name one party")
        return Identity(
            name,
            federation,
            certificate.fingerprint(SHA256()),
            certificate.not_valid_before_utc,
            certificate.not_valid_after_utc,
            issuer,
        )


def words_of(pem: bytes) -> str:
    """The fingerprint of a certificate or of a request, as people read it out."""
    with _understood("a certificate or a request for one"):
        if b"REQUEST" in pem:
            return to_words(sha256(x509.load_pem_x509_csr(pem).public_bytes(Encoding.DER)).digest())
        return to_words(x509.load_pem_x509_certificate(pem).fingerprint(SHA256()))


def host_of(name: str) -> str:
    """The DNS name in a party's certificate: one of its own for every name.

    Lower-case letters, digits and inner hyphens stay as they are; any other name is written in base 32.

    >>> host_of("bank"), host_of("Bank")
    ('bank.party.colonnade', 'ijqw42y.encoded.party.colonnade')
    """
    _check_name(name)
    if len(name) < 64 and re.fullmatch(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?", name):
        return name + DOMAIN
    letters = base64.b32encode(name.encode()).decode().rstrip("=").lower()
    return ".".join(letters[i : i + 63] for i in range(0, len(letters), 63)) + ENCODED_DOMAIN


def party_of(host: str) -> str:
    """The party with this DNS name in its certificate.

    >>> party_of("bank.party.colonnade"), party_of("ijqw42y.encoded.party.colonnade")
    ('bank', 'Bank')
    """
    name = host.removesuffix(DOMAIN)
    try:
        if host.endswith(ENCODED_DOMAIN):
            letters = host.removesuffix(ENCODED_DOMAIN).replace(".", "").upper()
            name = base64.b32decode(letters + "=" * (-len(letters) % 8)).decode()
        if host_of(name) == host:
            return name
    except (ValueError, PlanError):
        pass
    raise AuthError(
        f"Expected the host name of a party, such as bank{DOMAIN}, got {host!r}. Use a certificate that Colonnade made."
    )


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
    """The 128 bits that were read out as words; capitals and hyphens between the words do not matter.

    Raises:
        AuthError: If a word was misheard or mistyped.
    """
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


def _check_name(name: str) -> None:
    if not name.isprintable() or not 0 < len(name.encode(errors="replace")) <= LONGEST_NAME:
        raise PlanError(
            f"Expected a name of 1 to {LONGEST_NAME} bytes without control characters, got {name!r}. "
            "Give the party or federation another name."
        )


def _paths(directory: Path, name: str) -> tuple[Path, Path, Path]:
    """Where the authority's certificate, the party's certificate and the party's key are."""
    _check_name(name)
    if name.lower() == "ca":
        raise PlanError(
            f"Expected a party whose files are not the authority's, got {name!r}, for which ca.pem and ca.key are "
            "taken. Give the party another name."
        )
    stem = quote(name, safe="")
    return directory / "ca.pem", directory / f"{stem}.pem", directory / f"{stem}.key"


def _uri(federation: str, name: str | None = None) -> x509.UniformResourceIdentifier:
    parts = [federation] if name is None else [federation, name]
    return x509.UniformResourceIdentifier("colonnade://" + "/".join(quote(part, safe="") for part in parts))


def _parse(uri: str) -> tuple[str, str | None]:
    federation, slash, name = uri.removeprefix("colonnade://").partition("/")
    parts = unquote(federation, errors="strict"), unquote(name, errors="strict") if slash else None
    if _uri(*parts).value != uri:
        raise ValueError("it holds no name as Colonnade writes it")
    return parts


def _subject(name: str) -> x509.Name:
    # An organisation's name: a common name would be taken for a host where the certificate gave no other.
    return x509.Name([x509.NameAttribute(NameOID.ORGANIZATION_NAME, name)])


def _key_identifier(key: ec.EllipticCurvePublicKey) -> bytes:
    return sha256(key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).digest()


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
        .add_extension(x509.SubjectKeyIdentifier(_key_identifier(key)), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier(_key_identifier(signer.public_key()), None, None), critical=False)
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
    def read(cls, directory: Path) -> _Authority:
        path, key_path = directory / "ca.pem", directory / "ca.key"
        pem, key = _read(path), _private_key(key_path, _read(key_path))
        identity = identity_of(pem, path)
        identity.check_dates()
        _check_fit(key, key_path, pem, path)
        return cls(identity, pem, key)

    def certify(self, name: str, key: ec.EllipticCurvePublicKey, until: datetime, out: Path) -> Path:
        """Write a party's certificate, and the authority's beside it."""
        ca_path, path, _ = _paths(out, name)
        names = [x509.DNSName(host_of(name)), _uri(self.identity.federation, name)]
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


def _check_signed(certificate_pem: bytes, ca_path: Path, ca_pem: bytes, name: str) -> None:
    """Refuse a certificate that no authority in ``ca.pem`` has signed; there are two while one replaces the other."""
    certificate = x509.load_pem_x509_certificate(certificate_pem)
    with _understood(f"{ca_path} to hold the certificate of an authority"):
        authorities = x509.load_pem_x509_certificates(ca_pem)
    for authority in authorities:
        try:
            certificate.verify_directly_issued_by(authority)
        except (ValueError, TypeError, InvalidSignature):
            continue
        identity_of(authority.public_bytes(Encoding.PEM), ca_path).check_dates()
        return
    raise AuthError(
        f"Expected the certificate of {name} to be signed by the authority in {ca_path}, but another one has signed "
        f"it. Put the right authority's ca.pem there, or have this one issue a certificate for {name}."
    )


def _check_fit(key: ec.EllipticCurvePrivateKey, key_path: Path, certificate_pem: bytes, certificate_path: Path) -> None:
    if key.public_key() != x509.load_pem_x509_certificate(certificate_pem).public_key():
        raise AuthError(
            f"Expected {key_path} to be the key of the certificate in {certificate_path.name}, but it is another one. "
            "Put back the key that belongs to the certificate, or have the certificate issued again."
        )


def _own_key(directory: Path, name: str) -> ec.EllipticCurvePrivateKey:
    path = _paths(directory, name)[2]
    return _private_key(path, _read(path)) if path.exists() else _new_key(path)


def _new_key(path: Path) -> ec.EllipticCurvePrivateKey:
    key = ec.generate_private_key(ec.SECP256R1())
    # Readable by its owner alone: the temporary file that becomes this one is created so.
    write_atomically(path, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return key


def _private_key(path: Path, pem: bytes) -> ec.EllipticCurvePrivateKey:
    with _understood(f"{path} to be an ECDSA key without a passphrase"):
        key = load_pem_private_key(pem, password=None)
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise ValueError("it is a key of another kind")
        return key


def _read(path: Path) -> bytes:
    try:
        data = path.read_bytes()
        mode = path.stat().st_mode
    except OSError as error:
        raise StorageError(
            f"Expected to read {path}, but got: {error.strerror}. Name the folder that holds it, or have it made by "
            "'colonnade certs init' (the authority's files) or 'colonnade certs issue' (a party's)."
        ) from error
    if path.suffix == ".key" and os.name == "posix" and mode & 0o077:
        raise AuthError(
            f"Expected {path} to be readable by its owner alone, but its mode is {mode & 0o777:03o}. "
            f"Run: chmod 600 '{path}'; if somebody else may have read it, have a new key made."
        )
    return data


def _stamp(path: Path) -> tuple[int, ...]:
    try:
        status = path.stat()
    except OSError:
        return ()
    return status.st_mtime_ns, status.st_size, status.st_ino


@contextmanager
def _understood(expected: str) -> Iterator[None]:
    """Turn whatever the parser of certificates and keys raises, which is much, into an error that quotes nothing."""
    try:
        yield
    except Exception as error:
        raise AuthError(
            f"Expected {expected}, but it cannot be read as one ({type(error).__name__}). "
            "It is damaged or of another origin; restore a copy or have it made again."
        ) from error
