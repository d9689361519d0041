"""A TLS handshake made only to see why it fails, and whom the peer's certificate names; gRPC says little of either."""

from __future__ import annotations

import socket
import ssl
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from colonnade.errors import AuthError
from colonnade.wire.certs.credentials import Credentials, Identity, host_of, identity_of


def diagnose(address: str, peer: str, credentials: Credentials) -> str | None:
    """Why a TLS connection to a peer fails, in words; None if the cause is not TLS, such as nobody listening."""
    try:
        with _shaken_hands(address, peer, credentials) as secure:
            credentials.recognise(peer, _shown(secure))
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


def shown_identity(address: str, peer: str, credentials: Credentials) -> Identity | None:
    """Whom a listening peer's certificate names; None if the peer cannot be reached or does not prove who it is."""
    try:
        with _shaken_hands(address, peer, credentials) as secure:
            return _shown(secure)
    except OSError:
        return None


def _shown(secure: ssl.SSLSocket) -> Identity:
    shown = secure.getpeercert(binary_form=True)
    assert shown is not None
    return identity_of(ssl.DER_cert_to_PEM_cert(shown).encode())


@contextmanager
def _shaken_hands(address: str, peer: str, credentials: Credentials) -> Iterator[ssl.SSLSocket]:
    """A connection to a peer whose certificate was verified, for looking at it."""
    host, _, port = address.rpartition(":")
    context = ssl.create_default_context(cadata=credentials.ca_pem.decode())
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.set_alpn_protocols(["h2"])
    # The credentials in use, which may differ from those in the folder by now; `ssl` reads them from a file only.
    with tempfile.TemporaryDirectory() as folder:
        pair = Path(folder, "pair.pem")
        pair.touch(mode=0o600)
        pair.write_bytes(credentials.key_pem + b"\n" + credentials.certificate_pem)
        context.load_cert_chain(pair)
    with (
        socket.create_connection((host.strip("[]"), int(port)), timeout=5) as plain,
        context.wrap_socket(plain, server_hostname=host_of(peer)) as secure,
    ):
        yield secure
