"""Streams: the gRPC connections that carry the links, made by listening or dialling, and made again after a cut.

    dialling party                          listening party
         HELLO ─────────────────────────────▶         who it is, which process, what must be equal
         ◀───────────── HELLO, or REFUSAL             the same, and the TLS version; or the reason
         DATA, CONTROL, ACK, HEARTBEAT ⇄

Nothing else crosses before both have accepted. Of two parties that could both listen, the later one of the roles dials.
`tls.py` says what is required of a connection.
"""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

from colonnade.errors import (
    AuthError,
    MissingExtra,
    PeerUnreachable,
    ProtocolError,
    StorageError,
    WireError,
)
from colonnade.wire.grpc.envelope import CHUNK_BYTES, Envelope, Type
from colonnade.wire.grpc.link import Connection, Gap, Link, Patience
from colonnade.wire.grpc.rendezvous import Rendezvous
from colonnade.wire.transport import NAME_BYTES, agree, pack_note, places_of

try:
    import grpc
except ImportError as error:
    raise MissingExtra("net", "A run between machines") from error

if TYPE_CHECKING:
    from colonnade.wire.certs.credentials import Identity
    from colonnade.wire.grpc.tls import Tls

_METHOD = "/colonnade.Wire/Exchange"
_AGREE = "agree "
_STOP_S = 10.0
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
        tls: What protects the connections; None sends everything in the clear.
        listen: Where this party listens, or None if it only dials.
        patience: How long to wait for what.
    """

    def __init__(
        self,
        addresses: Mapping[str, str | None],
        agreement: dict[str, str],
        rendezvous: Rendezvous,
        *,
        tls: Tls | None,
        listen: str | None,
        patience: Patience,
    ) -> None:
        self._addresses, self._agreement, self._rendezvous = dict(addresses), agreement, rendezvous
        self._tls, self._listen, self._patience = tls, listen, patience
        self._name, self._links = rendezvous.name, rendezvous.links
        self._lock = threading.Lock()
        self._refused: dict[str, str] = {}
        self._closing = threading.Event()
        self._server: grpc.Server | None = None
        self._pool = ThreadPoolExecutor(2 * len(self._addresses) + 2, thread_name_prefix="colonnade")
        self._threads: list[threading.Thread] = []
        self._greetings: set[Callable[[], Any]] = set()

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
        for cancel in list(self._greetings):
            cancel()
        connections = [link.close() for link in self._links.values()]
        # A thread of gRPC that hands a call to a pool that is shut down breaks: the server ends first.
        if self._server is None or self._server.stop(grace=0.5).wait(_STOP_S):
            self._pool.shutdown(wait=False)
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

    # The listening side.

    def _serve(self, address: str) -> None:
        self._server = grpc.server(self._pool, options=_OPTIONS)
        self._server.add_generic_rpc_handlers((_Service(self._answer),))
        for place in places_of(address):
            try:
                if self._tls is None:
                    port = self._server.add_insecure_port(place)
                else:
                    port = self._server.add_secure_port(place, self._tls.server_credentials())
            except RuntimeError as error:
                raise PeerUnreachable(
                    f"{self._name} cannot listen at {place}. Another program may use the port; choose another one."
                ) from error
            assert port
        self._server.start()

    def _answer(self, arrivals: _Arrivals, requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        """The listening side of one stream."""
        who = identity = None
        if self._rendezvous.over:
            return
        try:
            with self._greeting(context.cancel):
                if self._tls is not None:
                    identity = self._tls.shown(context.auth_context())
                    who = identity.name
                    if who is None:
                        raise AuthError(
                            "A peer shows an authority's certificate. Issue it one with `colonnade certs issue`."
                        )
                    self._require_peer(who)
                    self._tls.recognise(who, identity)
                link, connection = self._accept(Envelope.unpack(next(requests)), who, context.cancel)
                if self._tls is not None and identity is not None:
                    self._tls.remember(link.peer, identity)
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
            if self._closing.is_set():
                return  # too late for `close` to end it
            yield self._hello(link, listens=True)
            self._begin(self._read, link, connection, requests)
            yield from self._write(link, connection)
        finally:
            link.detach(connection)

    # The dialling side.

    def _dial(self, peer: str, address: str) -> None:
        """Connect to one peer, and connect again after each cut."""
        link, pause, doubts = self._links[peer], 0.1, 0
        while not self._closing.is_set():
            try:
                if self._tls is None:
                    channel, identity = grpc.insecure_channel(address, options=_OPTIONS), None
                else:
                    channel, identity = self._tls.channel(peer, address, _OPTIONS)
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
                if self._closing.is_set():
                    return
                reason = None if self._tls is None else self._tls.diagnose(peer, address)
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
            with self._greeting(call.cancel):
                answer = Envelope.unpack(next(call))
            if answer.type is Type.REFUSAL:
                raise AuthError(f"{link.peer} refused {self._name}: {str(answer.note.get('because'))[:2000]}")
            if self._tls is not None and answer.note.get("tls") != self._tls.version:
                raise AuthError(
                    f"{self._name} expects {link.peer} to say that they are connected over {self._tls.version}, but it "
                    "does not. Let nothing on the way open TLS, and install the same version of Colonnade at both."
                )
            _, connection = self._accept(answer, link.peer, call.cancel)
            accepted.append(connection)
            if self._tls is not None and identity is not None:
                self._tls.remember(link.peer, identity)
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

    @contextlib.contextmanager
    def _greeting(self, cancel: Callable[[], Any]) -> Iterator[None]:
        """Cancel a call unless the block ends in time and before this party closes."""
        timer = threading.Timer(self._patience.silence, cancel)
        timer.daemon = True
        timer.start()
        self._greetings.add(cancel)
        try:
            if self._closing.is_set():
                cancel()
            yield
        finally:
            self._greetings.discard(cancel)
            timer.cancel()

    def _hello(self, link: Link, *, listens: bool = False) -> bytes:
        note = {
            **{_AGREE + key: value for key, value in dict(self._agreement).items()},
            "name": self._name,
            "incarnation": self._rendezvous.incarnation,
            "knows": link.peer_incarnation or b"",
            "received": link.received,
        }
        if listens and self._tls is not None:
            note["tls"] = self._tls.version  # as `Tls.shown` has required of this connection
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
        thread.start()
        self._threads.append(thread)  # `close` may look at the list already, and cannot join what has not begun


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
