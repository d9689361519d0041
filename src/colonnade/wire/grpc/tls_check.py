"""A TLS handshake made beside gRPC's: to see which certificate a listener shows, or why a connection fails.

gRPC tells the dialling side neither. What such a handshake shows proves nothing about another connection; `streams.py`
makes the run's own connection trust the one certificate that was shown here, and no other.
"""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from colonnade.errors import AuthError
from colonnade.wire.certs.credentials import Credentials, host_of, identity_of


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
