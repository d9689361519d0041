"""Credentials: a party's certificate and key, read and checked, and whom a certificate names.

A certificate names its party twice: by the DNS name that the dialling side checks (`host_of`), and by a URI with the
name itself, ``colonnade://federation/name``. Keys are ECDSA P-256; gRPC does not take Ed25519.

Certificates that are good no more are listed in ``revoked.txt`` beside a party's own certificate, for all its runs, and
beside a plan, for runs of this plan. A line holds the SHA-256 of a certificate or of its public key, in hexadecimal, or
the nine words of a certificate. What follows a ``#`` is a remark. Lists are each party's own: a party whose key was
stolen tells the others, and each adds the lines. Both sides of a connection read the lists whenever a connection is
made.
"""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from urllib.parse import quote, unquote

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import PublicKeyTypes
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key

from colonnade.errors import AuthError, PlanError, StorageError
from colonnade.storage import append_durably, explained
from colonnade.text import printable
from colonnade.wire.certs.words import N_WORDS, from_words, to_words

DOMAIN = ".party.colonnade"
LIST = "revoked.txt"
ENCODED_DOMAIN = f".encoded{DOMAIN}"

# In bytes of UTF-8: an X.509 subject holds no more, and a file name and a DNS name hold as much in encoded form.
LONGEST_NAME = 64


@dataclass(frozen=True)
class Identity:
    """Whom a certificate names, and for how long.

    >>> from datetime import timedelta
    >>> day = datetime(2030, 1, 1, tzinfo=UTC)
    >>> bank = Identity("bank", "credit", bytes(range(32)), day, day + timedelta(days=1), bytes(32), bytes(32))
    >>> bank.words
    'babad banag bibak binam bobap bonas bubav bunaz kajuv'

    Attributes:
        name: The party, or None for the authority itself.
        federation: Whose authority has signed.
        fingerprint: SHA-256 of the certificate.
        not_before: From when it holds.
        not_after: Until when it holds.
        issuer: SHA-256 of the public key of the authority by which the certificate claims to be signed.
        key: SHA-256 of the public key, which stays the same when a certificate is renewed.
    """

    name: str | None
    federation: str
    fingerprint: bytes
    not_before: datetime
    not_after: datetime
    issuer: bytes
    key: bytes

    @property
    def owner(self) -> str:
        """Whom to name in a sentence."""
        return self.name or f"the authority of {self.federation}"

    @property
    def words(self) -> str:
        """The fingerprint as people read it out."""
        return to_words(self.fingerprint)

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

    def check_revoked(self, lists: Iterable[Path]) -> None:
        """Refuse a certificate that one of some lists names."""
        for path in lists:
            if is_revoked(path, self.fingerprint, self.key):
                raise AuthError(
                    f"Expected a certificate of {self.owner} that is not revoked, but {path} names the one whose words "
                    f"are '{self.words}'. Have {self.owner} make a new key and get a new certificate."
                )


@dataclass(frozen=True)
class Credentials:
    """What one party needs for mutual TLS: read from its folder, and found to fit together.

    >>> from tempfile import TemporaryDirectory
    >>> from colonnade.wire.certs.authority import init, issue
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
    revoked: tuple[Path, ...] = ()

    @classmethod
    def read(cls, directory: str | Path, name: str, *, revoked: Path | None = None) -> Credentials:
        """The credentials of a party: ``ca.pem`` and the party's own certificate and key.

        `revoked` is a list of revoked certificates besides the one in the folder; neither need exist.
        """
        directory = Path(directory)
        files = ca_path, certificate_path, key_path = party_files(directory, name)
        # Stamped before they are read, so that whatever is written in between counts as a change.
        stamps = tuple(_stamp(path) for path in files)
        ca_pem, certificate_pem, key_pem = (read_file(path) for path in files)

        identity = identity_of(certificate_pem, certificate_path)
        if identity.name != name:
            raise AuthError(
                f"Expected {certificate_path} to be the certificate of {name}, but it is that of {identity.owner}. "
                f"Put the certificate of {name} there, or take part as {identity.owner}."
            )
        identity.check_dates()
        lists = (directory / LIST, *(() if revoked is None else (revoked,)))
        identity.check_revoked(lists)
        _check_signed(certificate_pem, ca_path, ca_pem, name)
        check_fit(private_key(key_path, key_pem), key_path, certificate_pem, certificate_path)
        return cls(directory, name, identity, ca_pem, certificate_pem, key_pem, stamps, lists)

    @property
    def files(self) -> tuple[Path, Path, Path]:
        """Where the authority's certificate, the party's certificate and the party's key are."""
        return party_files(self.directory, self.name)

    def changed(self) -> bool:
        """Whether the files hold something else by now; cheap enough to ask at every connection."""
        if tuple(_stamp(path) for path in self.files) == self._stamps:
            return False
        try:
            return [path.read_bytes() for path in self.files] != [self.ca_pem, self.certificate_pem, self.key_pem]
        except OSError:
            return True

    def current(self) -> Credentials:
        """These credentials, or the ones in the folder if that has changed.

        Raises:
            ColonnadeError: As `read` does, for instance halfway through a replacement; these here are still good.
        """
        if not self.changed():
            return self
        return Credentials.read(self.directory, self.name, revoked=self.revoked[-1])

    def handed_over(self, peer: str) -> bytes | None:
        """The certificate that a peer has handed over, if it lies in the folder: no other one is good for this peer."""
        path = party_files(self.directory, peer)[1]
        return read_file(path) if path.exists() else None

    def expected(self, peer: str) -> Identity | None:
        """Whom the certificate names that a peer has handed over, if it has."""
        pem = self.handed_over(peer)
        return None if pem is None else identity_of(pem, party_files(self.directory, peer)[1])

    def recognise(self, peer: str, shown: Identity) -> None:
        """Refuse a peer that shows a revoked certificate, or another one than it has handed over."""
        shown.check_revoked(self.revoked)
        expected = self.expected(peer)
        if expected is not None and expected.fingerprint != shown.fingerprint:
            path = party_files(self.directory, peer)[1]
            raise AuthError(
                f"Expected {peer} to show the certificate in {path}, whose words are '{expected.words}', but it shows "
                f"one whose words are '{shown.words}'. If {peer} has a new one, compare the words by telephone, then "
                "replace or delete the file."
            )


def show(path: str | Path) -> Identity:
    """Whom the certificate in a file names; its `words` are for the telephone."""
    return identity_of(read_file(Path(path)), path)


def identity_of(pem: bytes, origin: str | Path = "the certificate") -> Identity:
    """Whom a certificate names, read and not verified: TLS verifies a peer's, `Credentials.read` one's own."""
    with understood(f"{origin} to be one that a Colonnade authority made"):
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
            key_digest(certificate.public_key()),
        )


def key_digest(key: PublicKeyTypes) -> bytes:
    """SHA-256 of a public key, by which certificates name the key that signed them."""
    return sha256(key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).digest()


def words_of(pem: bytes) -> str:
    """The fingerprint of a certificate or of a request, as people read it out."""
    with understood("a certificate or a request for one"):
        if b"REQUEST" in pem:
            return to_words(sha256(x509.load_pem_x509_csr(pem).public_bytes(Encoding.DER)).digest())
        return to_words(x509.load_pem_x509_certificate(pem).fingerprint(SHA256()))


def host_of(name: str) -> str:
    """The DNS name in a party's certificate: one of its own for every name.

    Lower-case letters, digits and inner hyphens stay as they are; any other name is written in base 32.

    >>> host_of("bank"), host_of("Bank")
    ('bank.party.colonnade', 'ijqw42y.encoded.party.colonnade')
    """
    check_name(name)
    if len(name) < 64 and re.fullmatch(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?", name):
        return name + DOMAIN
    letters = base64.b32encode(name.encode()).decode().rstrip("=").lower()
    return ".".join(letters[i : i + 63] for i in range(0, len(letters), 63)) + ENCODED_DOMAIN


def check_name(name: str) -> None:
    """Refuse the name of a party or federation that does not fit into a certificate."""
    if not name.isprintable() or not 0 < len(name.encode(errors="replace")) <= LONGEST_NAME:
        raise PlanError(
            f"Expected a name of 1 to {LONGEST_NAME} bytes without control characters, got {name!r}. "
            "Give the party or federation another name."
        )


def party_files(directory: Path, name: str) -> tuple[Path, Path, Path]:
    """Where the authority's certificate, the party's certificate and the party's key are."""
    check_name(name)
    if name.lower() == "ca":
        raise PlanError(
            f"Expected a party whose files are not the authority's, got {name!r}, for which ca.pem and ca.key are "
            "taken. Give the party another name."
        )
    stem = quote(name, safe="")
    return directory / "ca.pem", directory / f"{stem}.pem", directory / f"{stem}.key"


def party_uri(federation: str, name: str | None = None) -> x509.UniformResourceIdentifier:
    """The URI by which a certificate names a party, or the authority if there is no name."""
    parts = [federation] if name is None else [federation, name]
    return x509.UniformResourceIdentifier("colonnade://" + "/".join(quote(part, safe="") for part in parts))


def _parse(uri: str) -> tuple[str, str | None]:
    federation, slash, name = uri.removeprefix("colonnade://").partition("/")
    parts = unquote(federation, errors="strict"), unquote(name, errors="strict") if slash else None
    if party_uri(*parts).value != uri:
        raise ValueError("it holds no name as Colonnade writes it")
    return parts


def _check_signed(certificate_pem: bytes, ca_path: Path, ca_pem: bytes, name: str) -> None:
    """Refuse a certificate that no authority in ``ca.pem`` has signed; there are two while one replaces the other."""
    certificate = x509.load_pem_x509_certificate(certificate_pem)
    with understood(f"{ca_path} to hold the certificate of an authority"):
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


def check_fit(key: ec.EllipticCurvePrivateKey, key_path: Path, certificate_pem: bytes, certificate_path: Path) -> None:
    """Refuse a key that does not belong to the certificate."""
    if key.public_key() != x509.load_pem_x509_certificate(certificate_pem).public_key():
        raise AuthError(
            f"Expected {key_path} to be the key of the certificate in {certificate_path.name}, but it is another one. "
            "Put back the key that belongs to the certificate, or have the certificate issued again."
        )


def private_key(path: Path, pem: bytes, passphrase: bytes | None = None) -> ec.EllipticCurvePrivateKey:
    """The key in a file; an authority's may be encrypted under a passphrase."""
    with understood(f"{path} to be an ECDSA key {'without a' if passphrase is None else 'under this'} passphrase"):
        key = load_pem_private_key(pem, password=passphrase)
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise ValueError("it is a key of another kind")
        return key


def read_file(path: Path, *, secret: bool = False) -> bytes:
    """The bytes of a certificate, request or key; others must not be able to read a key, or what is called secret."""
    try:
        data = path.read_bytes()
        mode = path.stat().st_mode
    except OSError as error:
        raise StorageError(
            f"Expected to read {path}, but got: {error.strerror}. Name the folder that holds it, or have it made by "
            "'colonnade certs init' (the authority's files) or 'colonnade certs issue' (a party's)."
        ) from error
    if (secret or path.suffix == ".key") and os.name == "posix" and mode & 0o077:
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
def understood(expected: str) -> Iterator[None]:
    """Turn anything that the parser of certificates and keys raises into an error that quotes nothing."""
    try:
        yield
    except Exception as error:
        raise AuthError(
            f"Expected {expected}, but it cannot be read as one ({type(error).__name__}). "
            "It is damaged or of another origin; restore a copy or have it made again."
        ) from error


def is_revoked(path: Path, fingerprint: bytes, key: bytes) -> bool:
    """Whether a list names a certificate or its key; nothing is revoked where there is no list.

    Raises:
        StorageError: The list cannot be read or understood. Then nobody can say what is revoked.
    """
    if not path.exists():
        return False
    with explained(f"read {path}"):
        lines = path.read_bytes().decode(errors="replace").splitlines()
    listed = {_digest(line, path, number) for number, line in enumerate(lines, 1) if line.partition("#")[0].strip()}
    return not listed.isdisjoint((fingerprint, key, fingerprint[: 2 * N_WORDS]))


def revoke(directory: Path, fingerprint: bytes, key: bytes, remark: str) -> Path:
    """Add a certificate and its key to the list in a folder; returns the path of the list."""
    path = directory / LIST
    append_durably(path, f"{fingerprint.hex()}  # {printable(remark)}\n{key.hex()}  # its key\n")
    return path


def _digest(line: str, path: Path, number: int) -> bytes:
    text = line.partition("#")[0].strip()
    if re.fullmatch("[0-9a-fA-F]{64}", text):
        return bytes.fromhex(text)
    try:
        return from_words(text)
    except AuthError as error:
        raise StorageError(
            f"Expected line {number} of {path} to be a SHA-256 in hexadecimal or the {N_WORDS + 1} words of a "
            f"certificate, got {text[:80]!r}. Correct the line; until then no peer is accepted."
        ) from error
