"""Of each connection TLS 1.3 is required on both sides, and whom a party is shown is at the other end of it."""

import socket
import ssl
import subprocess
import sys
import tempfile
import threading
from contextlib import ExitStack, suppress
from types import SimpleNamespace

import pytest

from colonnade.errors import AuthError, PeerUnreachable
from colonnade.testing.ports import free_port
from colonnade.wire.certs import authority as certs
from colonnade.wire.certs.credentials import Credentials, host_of, revoke
from colonnade.wire.grpc.link import Patience
from colonnade.wire.grpc.tls import Tls, diagnose, shown_certificate
from colonnade.wire.grpc.transport import GrpcTransport
from colonnade.wire.transport import NAME_BYTES, HeldCheckpoint

pytestmark = pytest.mark.network

BRIEF = Patience(start=1, rejoin=1, silence=10, message=10, heartbeat=0.1)


@pytest.fixture(scope="module")
def trusted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("certs")
    certs.init(folder)
    for name in ("bank", "shop"):
        certs.issue(folder, name)
    return {name: Credentials.read(folder, name) for name in ("bank", "shop")}


def context_of(credentials, purpose, version):
    """TLS of one version only, with a party's own certificate."""
    context = ssl.create_default_context(purpose, cadata=credentials.ca_pem.decode())
    context.verify_mode = ssl.CERT_REQUIRED
    context.minimum_version = context.maximum_version = version
    context.set_alpn_protocols(["h2"])
    stem = credentials.directory / credentials.name
    context.load_cert_chain(f"{stem}.pem", f"{stem}.key")
    return context


class Relay:
    """Stands before an address, opens or adds TLS of one version, and passes everything on.

    `route` says for each connection, counted from 0, where it goes, if not to the address.
    """

    def __init__(self, address, *, outside=None, inside=None, route=None):
        self.route, self.n_connections = route or (lambda number: address), 0
        self.outside, self.inside, self.versions = outside, inside, []
        self.server, self.ended, self.threads = socket.create_server(("127.0.0.1", 0)), threading.Event(), []
        self.address = f"127.0.0.1:{self.server.getsockname()[1]}"

    def __enter__(self):
        self.begin(self.accept)
        return self

    def __exit__(self, *exception):
        self.ended.set()
        self.server.shutdown(socket.SHUT_RDWR)
        self.server.close()
        for thread in self.threads:
            thread.join(10)

    def begin(self, target, *args):
        self.threads.append(threading.Thread(target=target, args=args, daemon=True))
        self.threads[-1].start()

    def accept(self):
        with suppress(OSError):
            while True:
                near = self.server.accept()[0]
                host, _, port = self.route(self.n_connections).partition(":")
                self.n_connections += 1
                self.begin(self.relay, near, (host, int(port)))

    def relay(self, near, target):
        with ExitStack() as stack, suppress(OSError):
            stack.enter_context(near)
            far = stack.enter_context(socket.create_connection(target, timeout=5))
            if self.outside is not None:
                near = stack.enter_context(self.outside.wrap_socket(near, server_side=True))
                self.versions.append(near.version())
            if self.inside is not None:
                far = stack.enter_context(self.inside.wrap_socket(far, server_hostname=host_of("bank")))
                self.versions.append(far.version())
            while not self.ended.is_set():
                # One thread for both directions: a TLS connection is not to be read and written by two at once.
                for source, sink in ((near, far), (far, near)):
                    source.settimeout(0.01)
                    with suppress(TimeoutError):
                        data = source.recv(65536)
                        if not data:
                            return
                        sink.settimeout(5)
                        sink.sendall(data)


def meet(bank, shop):
    """What a listening bank and a dialling shop end with when they try to meet."""
    outcomes = {}

    def live(transport):
        try:
            transport.open()
            outcomes[transport.name] = transport.meet(HeldCheckpoint(0, bytes(NAME_BYTES)))
        except Exception as error:
            outcomes[transport.name] = error

    threads = [threading.Thread(target=live, args=(transport,), daemon=True) for transport in (bank, shop)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    for transport in (bank, shop):
        transport.close()
    return outcomes["bank"], outcomes["shop"]


def transport(name, address, credentials):
    made = GrpcTransport({"bank": address, "shop": None}, credentials=credentials, patience=BRIEF)
    made.bind(name, ("bank", "shop"), {})
    return made


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_listening_party_refuses_a_connection_over_an_older_tls(trusted, version):
    """The shop's own certificate is shown; only the version of TLS differs."""
    address = f"127.0.0.1:{free_port()}"
    with Relay(address, inside=context_of(trusted["shop"], ssl.Purpose.SERVER_AUTH, version)) as relay:
        bank, shop = meet(transport("bank", address, trusted["bank"]), transport("shop", relay.address, None))
    if version is ssl.TLSVersion.TLSv1_3:
        assert bank == shop, "they meet"
        return
    assert relay.versions[0] == "TLSv1.2"
    assert isinstance(shop, AuthError)
    assert "bank refused shop: bank expects TLSv1.3, but a peer connected over TLSv1.2." in str(shop)
    assert isinstance(bank, PeerUnreachable)
    assert "Somebody was refused: bank expects TLSv1.3" in str(bank)


def test_a_dialling_party_refuses_a_listener_that_does_not_say_tls_1_3(trusted):
    """The bank's own certificate is shown, over TLS 1.2, by somebody who opens TLS before the bank."""
    address = f"127.0.0.1:{free_port()}"
    older = context_of(trusted["bank"], ssl.Purpose.CLIENT_AUTH, ssl.TLSVersion.TLSv1_2)
    with Relay(address, outside=older) as relay:
        _, shop = meet(transport("bank", address, None), transport("shop", relay.address, trusted["shop"]))
    assert relay.versions[0] == "TLSv1.2"
    assert isinstance(shop, AuthError)
    assert "shop expects bank to say that they are connected over TLSv1.3, but it does not." in str(shop)


@pytest.mark.parametrize("shown", [{}, {"ssl_tls_version": []}, {"ssl_tls_version": [b"TLSv1.2"]}])
def test_a_connection_whose_tls_version_is_not_known_to_be_1_3_is_refused(trusted, shown):
    bank = Tls("bank", trusted["bank"])
    with pytest.raises(AuthError, match=r"bank expects TLSv1\.3, but a peer connected over"):
        bank.shown({**shown, "x509_pem_cert": [trusted["shop"].certificate_pem]})


# Two banks, whose certificates name the same party and come from the same authority; somebody routes connections.


@pytest.fixture
def banks(trusted, tmp_path):
    """Credentials of the bank, of a fake bank, and of a shop to which no certificate was handed over."""
    folder = trusted["bank"].directory
    for who, name in (("real", "bank"), ("fake", "bank"), ("shop", "shop"), ("other shop", "shop")):
        certs.issue(folder, name, out=tmp_path / who)
    held = {who: Credentials.read(tmp_path / who, "bank") for who in ("real", "fake")}
    return held | {who: Credentials.read(tmp_path / who, "shop") for who in ("shop", "other shop")}


@pytest.fixture
def scene(banks):
    """The real bank and the fake one, both listening, and a relay before them whose `route` the test sets."""
    addresses = {who: f"127.0.0.1:{free_port()}" for who in ("real", "fake")}
    with ExitStack() as stack:
        opened = {who: transport("bank", addresses[who], banks[who]) for who in addresses}
        for bank in opened.values():
            stack.callback(bank.close)
            bank.open()
        relay = stack.enter_context(Relay("", route=lambda number: addresses["real"]))
        shop = transport("shop", relay.address, banks["shop"])
        stack.callback(shop.close)
        yield SimpleNamespace(addresses=addresses, relay=relay, shop=shop, **opened)


def met_by(scene):
    """Let all try to meet; returns which bank receives what the shop sends, or None if the shop meets nobody."""
    outcomes = {}

    def live(who, transport):
        try:
            if who == "shop":
                transport.open()
            transport.meet(HeldCheckpoint(0, bytes(NAME_BYTES)))
            if who == "shop":
                transport.send("bank", b"for the bank alone")
            else:
                outcomes[who] = transport.receive("shop")
        except Exception as error:
            outcomes[who] = error

    parties = {"real": scene.real, "fake": scene.fake, "shop": scene.shop}
    threads = [threading.Thread(target=live, args=pair, daemon=True) for pair in parties.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    received = [who for who in ("real", "fake") if outcomes[who] == b"for the bank alone"]
    return received[0] if received else None


@pytest.mark.parametrize(
    ("route", "receives"),
    [
        (["fake", "real"], "real"),
        (["real", "fake"], "fake"),
        (["fake"], "fake"),
    ],
)
def test_the_words_shown_are_of_the_bank_that_receives_the_frames(banks, scene, route, receives):
    """Connections go where the list says, and all further ones to its last bank.

    The fake bank may be met, for the authority vouches for it; but then its own words are shown.
    """
    scene.relay.route = lambda number: scene.addresses[route[min(number, len(route) - 1)]]
    assert met_by(scene) == receives
    assert scene.shop.identity("bank").words == banks[receives].identity.words


def test_a_relay_that_shows_one_bank_and_connects_to_the_other_connects_to_none(scene):
    looks_at_the_real_one = ["real", "fake", "real"]  # a look, the run's connection, and why it failed
    scene.relay.route = lambda number: scene.addresses[looks_at_the_real_one[number % 3]]
    assert met_by(scene) is None
    assert scene.relay.n_connections >= 3


def test_a_bank_that_takes_over_in_the_middle_of_a_run_is_refused(banks, scene):
    assert met_by(scene) == "real"
    scene.relay.route = lambda number: scene.addresses["fake"]
    scene.real.close()
    with pytest.raises(AuthError, match="Expected bank to keep the key") as refused:
        scene.shop.receive("bank")
    assert all(banks[who].identity.words in str(refused.value) for who in ("real", "fake"))


def test_a_shop_that_takes_over_in_the_middle_of_a_run_is_refused(banks, scene):
    assert met_by(scene) == "real"
    other = transport("shop", scene.addresses["real"], banks["other shop"])
    try:
        other.open()
        with pytest.raises(AuthError, match="bank refused shop: Expected shop to keep the key"):
            other.meet(HeldCheckpoint(0, bytes(NAME_BYTES)))
    finally:
        other.close()
    assert scene.real.identity("shop").words == banks["shop"].identity.words


@pytest.mark.parametrize("refusing", ["bank", "shop"])
def test_a_revoked_certificate_is_refused_by_the_side_that_listed_it(banks, refusing):
    address, held = f"127.0.0.1:{free_port()}", {"bank": banks["real"], "shop": banks["shop"]}
    stolen = "shop" if refusing == "bank" else "bank"
    identity = held[stolen].identity
    revoke(held[refusing].directory, identity.fingerprint, identity.key, stolen)
    bank, shop = meet(*(transport(name, address, held[name]) for name in ("bank", "shop")))
    words = f"Expected a certificate of {stolen} that is not revoked"
    assert isinstance(shop, AuthError)
    assert words in str(shop), "the dialling side is told, whichever of the two refuses"
    assert isinstance(bank, PeerUnreachable)
    assert (words in str(bank)) == (refusing == "bank")


def test_a_handshake_beside_the_run_writes_no_key_to_a_disk(banks, scene, monkeypatch):
    written = []
    monkeypatch.setattr(tempfile, "mkdtemp", lambda *given, **named: written.append(given))
    monkeypatch.setattr(tempfile, "mkstemp", lambda *given, **named: written.append(given))
    shown = shown_certificate(scene.addresses["real"], "bank", banks["shop"])
    assert shown == banks["real"].certificate_pem
    assert diagnose(scene.addresses["real"], "bank", banks["shop"]) is None
    assert not written


IMPORTS = """
import ctypes, os
before, libraries, load = dict(os.environ), [], ctypes.CDLL
ctypes.CDLL = lambda name, *rest, **named: libraries.append(name) or load(name, *rest, **named)
import colonnade.runtime.session, colonnade.wire.grpc.transport
assert None not in libraries, "the process's own library was loaded, whose settings are for all"
assert dict(os.environ) == before, "the environment has changed"
"""


def test_importing_the_transport_changes_nothing_in_the_process():
    subprocess.run([sys.executable, "-c", IMPORTS], check=True)
