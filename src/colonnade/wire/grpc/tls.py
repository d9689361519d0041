"""TLS: one party's credentials on its connections, and whom the certificates of its peers name.

TLS 1.3 is required of each connection on both sides. gRPC tells the listening side which version a connection has; the
listener refuses any other one, and says the version in its HELLO. gRPC tells the dialling side nothing, so the dialling
side refuses a listener whose HELLO does not say 1.3. TLS has shown by then who the listener is, and both ends of one
connection have the same version.

gRPC does not tell the dialling side either which certificate the listener showed, or why a connection failed. So the
dialling side makes a handshake of its own first, to look at the certificate, and then lets gRPC trust exactly this
certificate in place of the authority. Whom `identity` names is thus at the other end of the connection that carries the
frames, even if somebody reroutes connections on the way. A peer keeps its key for as long as this process runs; a
certificate of another key is refused.
"""

from __future__ import annotations

import os
import socket
import ssl
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import grpc

from colonnade.errors import AuthError, ColonnadeError
from colonnade.wire.certs.credentials import Credentials, Identity, host_of, identity_of

_SOON_S = 5.0


class Tls:
    """One party's credentials, which are read again when their folder changes, and the certificates of its peers.

    Attributes:
        failed_handshakes: How many connections never got through: gRPC says only that a handshake began.
    """

    version = "TLSv1.3"

    def __init__(self, name: str, credentials: Credentials) -> None:
        self._name, self._credentials = name, credentials
        self._identities: dict[str, Identity] = {}
        self._changed = threading.Condition()
        self.failed_handshakes = 0

    def server_credentials(self) -> grpc.ServerCredentials:
        """What the listening side shows, and requires of everybody who connects."""

        def configuration(credentials: Credentials) -> Any:
            pair = (credentials.key_pem, credentials.certificate_pem)
            return grpc.ssl_server_certificate_configuration((pair,), credentials.ca_pem)

        def refreshed() -> Any:
            with self._changed:
                self.failed_handshakes += 1  # until its stream begins
            before = self._credentials
            now = self._renewed()
            return None if now is before else configuration(now)

        return grpc.dynamic_ssl_server_credentials(
            configuration(self._renewed()), refreshed, require_client_authentication=True
        )

    def channel(self, peer: str, address: str, options: tuple[tuple[str, Any], ...]) -> tuple[grpc.Channel, Identity]:
        """A channel to a peer, and whom the only certificate names over which the channel connects.

        Raises:
            AuthError: The certificate is not the peer's.
            OSError: The peer cannot be reached, or does not show a certificate of the authority.
        """
        current = self._renewed()
        # This certificate is trusted in place of the authority, so gRPC accepts no other one.
        trusted = current.handed_over(peer) or shown_certificate(address, peer, current)
        identity = identity_of(trusted)
        current.recognise(peer, identity)
        self._require_same_key(peer, identity)
        secure = grpc.ssl_channel_credentials(trusted, current.key_pem, current.certificate_pem)
        named = (("grpc.ssl_target_name_override", host_of(peer)),)
        return grpc.secure_channel(address, secure, options=(*options, *named)), identity

    def shown(self, context: Mapping[str, list[bytes]]) -> Identity:
        """Whom the certificate of a connection names that came in, which must be over TLS 1.3."""
        with self._changed:
            self.failed_handshakes -= 1
        if context.get("ssl_tls_version") != [self.version.encode()]:
            version = b", ".join(context.get("ssl_tls_version", [])).decode(errors="replace") or "an unknown version"
            raise AuthError(
                f"{self._name} expects {self.version}, but a peer connected over {version}. Let nothing on the way "
                "open TLS, and install the same version of Colonnade at both."
            )
        # A resumed TLS session does not show that the certificate still holds, so its dates are looked at here.
        identity = identity_of(context["x509_pem_cert"][0])
        identity.check_dates()
        return identity

    def recognise(self, peer: str, identity: Identity) -> None:
        """Refuse a peer that shows a revoked certificate, or another one than before or than it has handed over."""
        self._credentials.recognise(peer, identity)
        self._require_same_key(peer, identity)

    def remember(self, peer: str, identity: Identity) -> None:
        """Note whom a peer's certificate names on the connection of the run."""
        with self._changed:
            self._identities[peer] = identity
            self._changed.notify_all()

    def identity(self, peer: str) -> Identity | None:
        """Whom the certificate names that a peer showed on the connection of the run.

        Two parties that do not lead may connect a moment after the leader has called the start; they are waited for.
        """
        with self._changed:
            self._changed.wait_for(lambda: peer in self._identities, timeout=_SOON_S)
            return self._identities.get(peer)

    def diagnose(self, peer: str, address: str) -> str | None:
        """Why a TLS connection to a peer fails, in words; None if the cause is not TLS."""
        return diagnose(address, peer, self._credentials)

    def _renewed(self) -> Credentials:
        """The credentials as they lie in their folder by now, or the old ones while the folder is being changed."""
        with suppress(ColonnadeError):
            self._credentials = self._credentials.current()
        return self._credentials

    def _require_same_key(self, peer: str, identity: Identity) -> None:
        """Refuse another key than the one whose certificate this party's operator was shown."""
        with self._changed:
            before = self._identities.get(peer)
        if before is not None and before.key != identity.key:
            raise AuthError(
                f"Expected {peer} to keep the key of the certificate whose words are '{before.words}', but it shows a "
                f"certificate of another key, whose words are '{identity.words}'. If {peer} has a new key, compare the "
                "words by telephone, then start again with --resume."
            )


def diagnose(address: str, peer: str, credentials: Credentials) -> str | None:
    """Why a TLS connection to a peer fails, in words; None if the cause is not TLS, such as nobody listening."""
    try:
        with _shaken_hands(address, peer, credentials) as secure:
            credentials.recognise(peer, identity_of(_shown(secure)))
            secure.settimeout(2.0)
            if not secure.read(1):
                return (
                    "it refuses this party's certificate. Check both by `colonnade certs show`, and that ca.pem is one."
                )
    except AuthError as error:
        return str(error)
    except ssl.SSLCertVerificationError as error:
        return f"{error.verify_message}. Check its certificate with `colonnade certs show`."
    except (TimeoutError, ssl.SSLEOFError):
        return None
    except ssl.SSLError as error:
        alert = str(error.reason or error).replace("_", " ").lower()
        return f"it ended the handshake: {alert}. Check this party's certificate with `colonnade certs show`."
    except OSError:
        return None
    return None


def shown_certificate(address: str, peer: str, credentials: Credentials) -> bytes:
    """The certificate that a listener shows, which names the peer and is signed by the authority.

    Raises:
        OSError: Nobody can be reached, or the listener shows another certificate.
    """
    with _shaken_hands(address, peer, credentials) as secure:
        return _shown(secure)


def _shown(secure: ssl.SSLSocket) -> bytes:
    shown = secure.getpeercert(binary_form=True)
    assert shown is not None
    return ssl.DER_cert_to_PEM_cert(shown).encode()


@contextmanager
def _shaken_hands(address: str, peer: str, credentials: Credentials) -> Iterator[ssl.SSLSocket]:
    """A connection to a peer whose certificate was verified, for looking at it."""
    host, _, port = address.rpartition(":")
    context = ssl.create_default_context(cadata=credentials.ca_pem.decode())
    context.set_alpn_protocols(["h2"])
    # The credentials in use, which may differ from those in the folder by now. `ssl` reads them from a path only.
    with _piped(credentials.certificate_pem) as certificate, _piped(credentials.key_pem) as key:
        context.load_cert_chain(certificate, key)
    with (
        socket.create_connection((host.strip("[]"), int(port)), timeout=5) as plain,
        context.wrap_socket(plain, server_hostname=host_of(peer)) as secure,
    ):
        yield secure


@contextmanager
def _piped(data: bytes) -> Iterator[str]:
    """A path from which a few kilobytes can be read once, and that no disk holds: a kill leaves no key behind."""
    with ExitStack() as stack:
        reading, writing = os.pipe()
        stack.callback(os.close, reading)
        with open(writing, "wb") as file:
            file.write(data)
        yield f"/dev/fd/{reading}"
