"""Streams: the gRPC connections that carry the links, made by listening or dialling, and made again after a cut.

    dialling party                          listening party
         HELLO ─────────────────────────────▶         who it is, which process, what must be equal
         ◀───────────── HELLO, or REFUSAL             the same, and the TLS version; or the reason
         DATA, CONTROL, ACK, HEARTBEAT ⇄

Nothing else crosses before both have accepted. Of two parties that could both listen, the later one of the roles dials.

TLS 1.3 is required of each connection on both sides. gRPC tells the listening side which version a connection has; the
listener refuses any other one, and says the version in its HELLO. gRPC tells the dialling side nothing, so the dialling
side refuses a listener whose HELLO does not say 1.3. TLS has shown by then who the listener is, and both ends of one
connection have the same version.

gRPC does not tell the dialling side either which certificate the listener showed. So the dialling side looks at it
first, by a connection of its own, and then lets gRPC trust exactly this certificate in place of the authority. Whom
`identity` names is thus at the other end of the connection that carries the frames, whoever routes connections on the
way. A peer keeps its key for as long as this process runs; a certificate of another key is refused.
"""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from colonnade.errors import (
    AuthError,
    ColonnadeError,
    MissingExtra,
    PeerUnreachable,
    ProtocolError,
    StorageError,
    WireError,
)
from colonnade.wire.certs.credentials import Credentials, Identity, host_of, identity_of
from colonnade.wire.epoch import NAME_BYTES, agree
from colonnade.wire.grpc.envelope import CHUNK_BYTES, Envelope, Type
from colonnade.wire.grpc.link import Connection, Gap, Link
from colonnade.wire.grpc.patience import Patience
from colonnade.wire.grpc.rendezvous import Rendezvous
from colonnade.wire.grpc.tls_check import diagnose, shown_certificate
from colonnade.wire.notes import pack_note

try:
    import grpc
except ImportError as error:
    raise MissingExtra("net", "A run between machines") from error

TLS_VERSION = "TLSv1.3"
_METHOD = "/colonnade.Wire/Exchange"
_AGREE = "agree "
_SOON_S = 5.0
_OPTIONS = (
    ("grpc.max_receive_message_length", 8 * CHUNK_BYTES),
    ("grpc.max_send_message_length", 8 * CHUNK_BYTES),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
    ("grpc.http2.lookahead_bytes", 16 * CHUNK_BYTES),
    ("grpc.so_reuseport", 0),
)


class Streams:
    """One party's connections to its peers, which carry the links of its rendezvous.

    Args:
        addresses: For every party, in the order of the roles, where it listens, or None if it only dials.
        agreement: What must be equal at all parties; the rows are added if this party has none.
        rendezvous: Admits peers that have greeted.
        credentials: Certificates; None sends everything in the clear.
        listen: Where this party listens, or None if it only dials.
        patience: How long to wait for what.
    """

    def __init__(
        self,
        addresses: Mapping[str, str | None],
        agreement: dict[str, str],
        rendezvous: Rendezvous,
        *,
        credentials: Credentials | None,
        listen: str | None,
        patience: Patience,
    ) -> None:
        self._addresses, self._agreement, self._rendezvous = dict(addresses), agreement, rendezvous
        self._credentials, self._listen, self._patience = credentials, listen, patience
        self._name, self._links = rendezvous.name, rendezvous.links
        self._lock = threading.Lock()
        self._refused: dict[str, str] = {}
        self._identities: dict[str, Identity] = {}
        self._recognised = threading.Condition(self._lock)
        self._failed_handshakes = 0
        self._closing = threading.Event()
        self._server: grpc.Server | None = None
        self._threads: list[threading.Thread] = []

    def open(self) -> None:
        """Listen and dial; returns at once."""
        if self._listen is not None:
            self._serve(self._listen)
        names = list(self._addresses)
        for peer in self._links:
            address = self._addresses[peer]
            if address is not None and (self._listen is None or names.index(peer) < names.index(self._name)):
                self._begin(self._dial, peer, address)
        self._begin(self._watch_silence)

    def close(self) -> None:
        """End all connections."""
        self._closing.set()
        connections = [link.close() for link in self._links.values()]
        if self._server is not None:
            self._server.stop(grace=0.5).wait()
        for seconds in (0.5, 5.0):
            for thread in self._threads:
                thread.join(seconds)
            for connection in connections:
                if connection is not None:
                    connection.cancel()

    @property
    def refused(self) -> dict[str, str]:
        """Who was turned away, and why."""
        with self._lock:
            return dict(self._refused)

    @property
    def failed_handshakes(self) -> int:
        """How many connections never got through TLS: gRPC says only that a handshake began."""
        return self._failed_handshakes

    def identity(self, peer: str) -> Identity | None:
        """Whom the certificate names that a peer showed on the connection of the run; None without TLS.

        Two parties that do not lead may connect a moment after the leader has called the start; they are waited for.
        """
        if self._credentials is None:
            return None
        with self._lock:
            self._recognised.wait_for(lambda: peer in self._identities, timeout=_SOON_S)
            return self._identities.get(peer)

    # The listening side.

    def _serve(self, address: str) -> None:
        self._server = grpc.server(
            ThreadPoolExecutor(max_workers=2 * len(self._addresses) + 2, thread_name_prefix="colonnade"),
            options=_OPTIONS,
        )
        self._server.add_generic_rpc_handlers((_Service(self._answer),))
        try:
            if self._credentials is None:
                port = self._server.add_insecure_port(address)
            else:
                port = self._server.add_secure_port(address, self._server_credentials())
        except RuntimeError as error:
            raise PeerUnreachable(
                f"{self._name} cannot listen at {address}. Another program may use the port; choose another one."
            ) from error
        assert port
        self._server.start()

    def _server_credentials(self) -> grpc.ServerCredentials:
        def configuration(credentials: Credentials) -> Any:
            pair = (credentials.key_pem, credentials.certificate_pem)
            return grpc.ssl_server_certificate_configuration((pair,), credentials.ca_pem)

        def refreshed() -> Any:
            with self._lock:
                self._failed_handshakes += 1  # until its stream begins
            before = self._credentials
            now = self._renewed()
            return None if now is before else configuration(now)

        return grpc.dynamic_ssl_server_credentials(
            configuration(self._renewed()), refreshed, require_client_authentication=True
        )

    def _renewed(self) -> Credentials:
        """The credentials as they lie in their folder by now, or the old ones while the folder is being changed."""
        assert self._credentials is not None
        with contextlib.suppress(ColonnadeError):
            self._credentials = self._credentials.current()
        return self._credentials

    def _answer(self, arrivals: _Arrivals, requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        """The listening side of one stream."""
        who = identity = None
        with self._lock:
            self._failed_handshakes -= 1
        if self._rendezvous.over:
            return
        try:
            with _within(self._patience.silence, context.cancel):
                if self._credentials is not None:
                    identity = self._identity(context.auth_context())
                    who = identity.name
                    self._recognise(identity)
                link, connection = self._accept(Envelope.unpack(next(requests)), who, context.cancel)
                if identity is not None:
                    self._remember(link.peer, identity)
        except (StopIteration, grpc.RpcError):
            return
        except StorageError as error:
            self._rendezvous.fail_locally(error)
            return
        except WireError as error:
            with self._lock:
                self._refused[who or "Somebody"] = str(error)
            yield Envelope(Type.REFUSAL, payload=pack_note({"because": str(error)})).pack()
            return
        with self._lock:
            self._refused.pop(link.peer, None)
        arrivals.go_to(partial(self._take_in, link, connection))
        try:
            yield self._hello(link, listens=True)
            threading.Thread(target=self._read, args=(link, connection, requests), daemon=True).start()
            yield from self._write(link, connection)
        finally:
            link.detach(connection)

    def _identity(self, shown: Mapping[str, list[bytes]]) -> Identity:
        """Whom the certificate of a connection names, which must be over TLS 1.3."""
        if shown.get("ssl_tls_version") != [TLS_VERSION.encode()]:
            version = b", ".join(shown.get("ssl_tls_version", [])).decode(errors="replace") or "an unknown version"
            raise AuthError(
                f"{self._name} expects {TLS_VERSION}, but a peer connected over {version}. Let nothing on the way open "
                "TLS, and install the same version of Colonnade at both."
            )
        # A resumed TLS session does not show that the certificate still holds, so its dates are looked at here.
        identity = identity_of(shown["x509_pem_cert"][0])
        identity.check_dates()
        return identity

    def _recognise(self, identity: Identity) -> None:
        assert self._credentials is not None
        if identity.name is None:
            raise AuthError("A peer shows an authority's certificate. Issue it one with `colonnade certs issue`.")
        self._require_peer(identity.name)
        self._credentials.recognise(identity.name, identity)
        self._require_same_key(identity.name, identity)

    def _require_same_key(self, peer: str, identity: Identity) -> None:
        """Refuse another key than the one whose certificate this party's operator was shown."""
        with self._lock:
            before = self._identities.get(peer)
        if before is not None and before.key != identity.key:
            raise AuthError(
                f"Expected {peer} to keep the key of the certificate whose words are '{before.words}', but it shows a "
                f"certificate of another key, whose words are '{identity.words}'. If {peer} has a new key, compare the "
                "words by telephone, then start again with --resume."
            )

    def _remember(self, peer: str, identity: Identity) -> None:
        with self._lock:
            self._identities[peer] = identity
            self._recognised.notify_all()

    # The dialling side.

    def _dial(self, peer: str, address: str) -> None:
        """Connect to one peer, and connect again after each cut."""
        link, pause, doubts = self._links[peer], 0.1, 0
        while not self._closing.is_set():
            try:
                channel, identity = self._channel(peer, address)
                try:
                    self._exchange(link, channel, identity)
                finally:
                    channel.close()
                pause, doubts = 0.1, 0
            except (AuthError, ProtocolError, StorageError) as error:
                if not self._rendezvous.ending:
                    self._rendezvous.fail_locally(error)
                    return
            except (grpc.RpcError, OSError):
                reason = None if self._credentials is None else diagnose(address, peer, self._credentials)
                # A connection that breaks at the wrong moment looks like a refusal, but not each time. One that held
                # before is more likely to have broken.
                doubts = 0 if reason is None else doubts + 1
                if doubts >= (3 if link.peer_incarnation is None else 10):
                    self._rendezvous.fail_locally(
                        AuthError(f"{self._name} could not make sure that {address} is {peer}: {reason}")
                    )
                    return
            self._closing.wait(pause * random.uniform(0.5, 1.0))
            pause = min(2 * pause, 5.0)

    def _channel(self, peer: str, address: str) -> tuple[grpc.Channel, Identity | None]:
        """A channel to a peer, and whom the only certificate names over which the channel connects.

        Raises:
            AuthError: The certificate is not the peer's.
            OSError: The peer cannot be reached, or does not show a certificate of the authority.
        """
        if self._credentials is None:
            return grpc.insecure_channel(address, options=_OPTIONS), None
        current = self._renewed()
        # This certificate is trusted in place of the authority, so gRPC accepts no other one.
        trusted = current.handed_over(peer) or shown_certificate(address, peer, current)
        identity = identity_of(trusted)
        current.recognise(peer, identity)
        self._require_same_key(peer, identity)
        secure = grpc.ssl_channel_credentials(trusted, current.key_pem, current.certificate_pem)
        named = (("grpc.ssl_target_name_override", host_of(peer)),)
        return grpc.secure_channel(address, secure, options=(*_OPTIONS, *named)), identity

    def _exchange(self, link: Link, channel: grpc.Channel, identity: Identity | None) -> None:
        accepted: list[Connection] = []
        ready, arrivals = threading.Event(), _Arrivals()

        def requests() -> Iterator[bytes]:
            yield self._hello(link)
            ready.wait()
            if accepted:
                yield from self._write(link, accepted[0])

        call = channel.stream_stream(_METHOD, response_deserializer=arrivals)(requests())
        try:
            with _within(self._patience.silence, call.cancel):
                answer = Envelope.unpack(next(call))
            if answer.type is Type.REFUSAL:
                raise AuthError(f"{link.peer} refused {self._name}: {str(answer.note.get('because'))[:2000]}")
            if self._credentials is not None and answer.note.get("tls") != TLS_VERSION:
                raise AuthError(
                    f"{self._name} expects {link.peer} to say that they are connected over {TLS_VERSION}, but it does "
                    "not. Let nothing on the way open TLS, and install the same version of Colonnade at both."
                )
            _, connection = self._accept(answer, link.peer, call.cancel)
            accepted.append(connection)
            if identity is not None:
                self._remember(link.peer, identity)
            if self._closing.is_set():
                return  # too late for `close` to end it
            arrivals.go_to(partial(self._take_in, link, connection))
            ready.set()
            self._read(link, connection, call)
        except StopIteration:
            return
        finally:
            ready.set()
            for connection in accepted:
                link.detach(connection)
            call.cancel()

    # Both sides.

    def _hello(self, link: Link, *, listens: bool = False) -> bytes:
        note = {
            **{_AGREE + key: value for key, value in dict(self._agreement).items()},
            "name": self._name,
            "incarnation": self._rendezvous.incarnation,
            "knows": link.peer_incarnation or b"",
            "received": link.received,
        }
        if listens and self._credentials is not None:
            note["tls"] = TLS_VERSION  # as `_identity` has required of this connection
        return Envelope(Type.HELLO, payload=pack_note(note)).pack()

    def _accept(self, hello: Envelope, expected: str | None, cancel: Callable[[], Any]) -> tuple[Link, Connection]:
        """Check who greets; returns its link, which goes on over this connection."""
        match hello.note if hello.type is Type.HELLO else None:
            case {
                "name": str(name),
                "incarnation": bytes(incarnation),
                "knows": bytes(knows),
                "received": int(received),
            } if received >= 0 and len(incarnation) == NAME_BYTES:
                pass
            case _:
                raise ProtocolError("A peer should greet first and did not. It runs something else.")
        if expected is not None and name != expected:
            raise AuthError(
                f"A peer calls itself {name} but its certificate is {expected}'s. Give it its own certificate."
            )
        self._require_peer(name)
        theirs = {key.removeprefix(_AGREE): value for key, value in hello.note.items() if key.startswith(_AGREE)}
        with self._lock:
            agree(self._name, self._agreement, name, theirs)
        link = self._links[name]
        seen = received if knows == self._rendezvous.incarnation else 0
        return link, self._rendezvous.admit(link, incarnation, seen=seen, cancel=cancel)

    def _require_peer(self, name: str) -> None:
        if name not in self._links:
            raise AuthError(
                f"{name} is not a party that {self._name} expects; the plan's parties are "
                f"{', '.join(self._addresses)}. Take part under one of these names, each at its own machine."
            )

    def _write(self, link: Link, connection: Connection) -> Iterator[bytes]:
        try:
            yield from link.outgoing(connection)
        except Exception as error:
            self._rendezvous.fail_locally(error)
        finally:
            link.detach(connection)

    def _take_in(self, link: Link, connection: Connection, data: bytes) -> None:
        try:
            link.incoming(connection, Envelope.unpack(data))
        except Gap:
            link.detach(connection)  # made again, and what is missing is sent again
        except Exception as error:
            link.detach(connection)
            self._rendezvous.fail_locally(error)

    def _read(self, link: Link, connection: Connection, incoming: Iterator[bytes]) -> None:
        """Ask for one message after the other until the connection ends."""
        try:
            for _ in incoming:
                if connection.closed:
                    break
                self._rendezvous.settle()
        except grpc.RpcError:
            pass  # the connection is made again
        except Exception as error:
            self._rendezvous.fail_locally(error)
        finally:
            link.detach(connection)
            connection.cancel()

    def _watch_silence(self) -> None:
        while not self._closing.wait(min(1.0, self._patience.silence / 4)):
            for link in self._links.values():
                link.cut_if_silent(self._patience.silence)

    def _begin(self, target: Callable[..., None], *args: Any) -> None:
        thread = threading.Thread(target=target, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()


class _Arrivals:
    """What comes over one stream: a greeting, which is returned, and then messages, which are taken in at once.

    It stands where gRPC unpacks messages, in gRPC's own thread. A thread of ours that waits for messages and hands them
    to a protocol, which waits as well, would be a second change of threads for each message.
    """

    def __init__(self) -> None:
        self._take_in: Callable[[bytes], None] | None = None

    def go_to(self, take_in: Callable[[bytes], None]) -> None:
        """Say what takes in all that comes from now on; it must not raise."""
        self._take_in = take_in

    def __call__(self, data: bytes) -> bytes:
        if self._take_in is None:
            return data
        self._take_in(data)
        return b""


class _Service(grpc.GenericRpcHandler):  # type: ignore[misc]
    """The one method that peers call; every stream has arrivals of its own."""

    def __init__(self, answer: Callable[[_Arrivals, Iterator[bytes], grpc.ServicerContext], Iterator[bytes]]) -> None:
        self._answer = answer

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        """How gRPC is to handle a call."""
        if handler_call_details.method != _METHOD:
            return None
        arrivals = _Arrivals()
        return grpc.stream_stream_rpc_method_handler(partial(self._answer, arrivals), request_deserializer=arrivals)


@contextlib.contextmanager
def _within(seconds: float, cancel: Callable[[], Any]) -> Iterator[None]:
    """Cancel a call unless the block ends in time."""
    timer = threading.Timer(seconds, cancel)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
