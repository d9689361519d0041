"""GrpcTransport: frames between organisations, over one mutually authenticated stream per pair of parties.

    one side listens, the other dials                 both send HELLO first: who, which plan, rows and version
    HELLO ⇄ HELLO, or REFUSAL with the reason         nothing else crosses before both have accepted
    DATA, CONTROL ⇄ in one sequence per direction     resent after a cut, dropped when they come twice
    ACK, HEARTBEAT ⇄                                  credit, and a sign of life while a party computes

The first party of the roles leads: it collects how far everybody has come, and says from which checkpoint all go on. A
party that was started anew makes all others raise `PeerRestarted`, upon which `join` meets again.

TLS hides the traffic from others and proves who is at the other end; it does not protect against the peer itself. What
the peer may learn is a matter of the protocol above.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from colonnade.errors import (
    AuthError,
    ColonnadeError,
    MissingExtra,
    PeerFailed,
    PeerLeft,
    PeerRestarted,
    PeerUnreachable,
    PlanError,
    ProtocolError,
    StorageError,
    VersionMismatch,
    WireError,
)
from colonnade.wire.certs.authority import Credentials, Identity, host_of, identity_of
from colonnade.wire.codec import Frame
from colonnade.wire.grpc.envelope import CHUNK_BYTES, Envelope, Type, note_bytes
from colonnade.wire.grpc.link import HEARTBEAT_S, Connection, Gap, Line
from colonnade.wire.grpc.rendezvous import NAME_BYTES, Held, Start, next_start
from colonnade.wire.grpc.tls_check import diagnose, shown_identity
from colonnade.wire.transport import Transport

# gRPC has no setting for the oldest TLS version it accepts. With only this suite for TLS 1.2, which needs a key shared
# beforehand, no 1.2 handshake can succeed; TLS 1.3 chooses its suites by itself. Read when gRPC is first imported.
os.environ["GRPC_SSL_CIPHER_SUITES"] = "ECDHE-PSK-CHACHA20-POLY1305"
# Its log would stand between our sentences; what matters of it is raised.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

try:
    import grpc
except ImportError as error:
    raise MissingExtra("net", "A run between machines") from error

# glibc gives freed pieces of 1 MiB back to the system and asks for them again, cleared page by page: more work than
# encrypting them. It also keeps a heap for every thread, and gRPC has a thread for every core, so that pieces in all of
# these would add up to more than the frame they make up. Elsewhere there are no such settings, nor the need for them.
with contextlib.suppress(OSError, AttributeError):
    _M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
    for _setting, _value in (
        (_M_TRIM_THRESHOLD, 32 * CHUNK_BYTES),
        (_M_MMAP_THRESHOLD, 32 * CHUNK_BYTES),
        (_M_ARENA_MAX, 2),
    ):
        ctypes.CDLL(None).mallopt(_setting, _value)

_METHOD = "/colonnade.Wire/Exchange"
_MANY = 2**32
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


@dataclass(frozen=True)
class Patience:
    """How long a party waits, in seconds, before it gives up with a reason.

    Attributes:
        start: For all parties to come together at the beginning.
        rejoin: For a peer whose connection broke, or who crashed, to come back.
        silence: Without any sign of life before a connection counts as broken.
        message: For a message of a peer that is alive.
        heartbeat: Between two signs of life of one's own while there is nothing else to send.
    """

    start: float = 600.0
    rejoin: float = 1800.0
    silence: float = 30.0
    message: float = 3600.0
    heartbeat: float = HEARTBEAT_S


class GrpcTransport(Transport):
    """One party's end of the lines to its peers, over gRPC with mutual TLS.

    Args:
        name: This party.
        addresses: For every party, in the order of the roles, `host:port` where it listens, or None if it only dials.
        agreement: What must be equal at all parties, by name: plan, rows, version.
        credentials: Certificates; None sends everything in the clear, for tests on one machine.
        listen: Where to listen, if not at the own address.
        spill: A folder for messages that wait for a slow peer.
        patience: How long to wait for what.
        on_wait: Told now and then who is being waited for, and for how many more seconds.
    """

    def __init__(
        self,
        name: str,
        addresses: Mapping[str, str | None],
        *,
        agreement: Mapping[str, str],
        credentials: Credentials | None,
        listen: str | None = None,
        spill: Path | None = None,
        patience: Patience | None = None,
        on_wait: Callable[[Sequence[str], float], None] | None = None,
    ) -> None:
        self.name, self.leader = name, next(iter(addresses))
        self.epoch = 0
        # In the order in which the processes of a party begin.
        self.incarnation = time.time_ns().to_bytes(8, "big") + secrets.token_bytes(8)
        self.on_settled: Callable[[int], None] = lambda number: None
        self.agreement = dict(agreement)
        self._addresses, self._credentials = dict(addresses), credentials
        self._listen = listen or addresses[name]
        self._patience = patience or Patience()
        self._on_wait = on_wait or (lambda names, seconds: None)
        self._changed = threading.Condition()
        self._lines = {
            peer: Line(peer, spill=spill, on_control=self._control, heartbeat_s=self._patience.heartbeat)
            for peer in addresses
            if peer != name and (addresses[peer] or addresses[name])
        }
        if name != self.leader and self.leader not in self._lines:
            raise PlanError(
                f"{name} and {self.leader} both have no address, so neither can be reached. Give one of them one."
            )
        self._ready: dict[str, tuple[int, Held]] = {}
        self._begun: dict[str, int] = {}
        self._refused: dict[str, str] = {}
        self._handshakes = self._streams = 0
        self._identities: dict[str, Identity] = {}
        self._done: dict[str, int] = {}
        self._left: set[str] = set()
        self._checkpoints: dict[str, int] = {}
        self._settled: int | None = None
        self._settling = threading.Lock()
        self._start: Start | None = None
        self._ended = ""
        self._interrupted: str | None = None
        self._failure: Exception | None = None
        self._closing = threading.Event()
        self._server: grpc.Server | None = None
        self._threads: list[threading.Thread] = []

    def open(self) -> None:
        """Listen and dial; returns at once."""
        if self._listen is not None:
            self._serve(self._listen)
        names = list(self._addresses)
        for peer in self._lines:
            address = self._addresses[peer]
            # Where both could listen, the later one of the roles dials.
            if address is not None and (self._listen is None or names.index(peer) < names.index(self.name)):
                self._begin(self._dial, peer, address)
        self._begin(self._watch_silence)

    def close(self) -> None:
        """End all connections."""
        self._closing.set()
        connections = [line.close() for line in self._lines.values()]
        if self._server is not None:
            self._server.stop(grace=0.5).wait()
        for patience in (0.5, 5.0):
            for thread in self._threads:
                thread.join(patience)
            for connection in connections:
                if connection is not None:
                    connection.cancel()

    def send(self, peer: str, frame: Frame) -> None:
        """Put a frame into the outbox; never waits for the peer."""
        self.check()
        self._line(peer).put(frame, self.epoch)

    def receive(self, peer: str) -> Frame:
        """Wait for the next frame from one named peer."""
        line = self._line(peer)
        begun = time.monotonic()
        while True:
            # Asked before the frame, for a peer says so behind its last one.
            done = self._has_finished(peer)
            frame = line.take(self.epoch)
            if frame is not None:
                return frame
            self.check()
            if done:
                raise PeerLeft(
                    f"{self.name} waits for a message from {peer}, but {peer} has finished. "
                    "Check that both run the same protocol with the same settings."
                )
            self._require_back(line, begun)
            waited = time.monotonic() - begun
            if waited > self._patience.message:
                raise PeerUnreachable(
                    f"{self.name} waited {waited:.0f} s for {peer}, who is alive but sends nothing. "
                    "Look at its log, or allow more time in the plan."
                )
            line.news.wait(1.0 if line.connected else 0.2)

    def meet(self, held: Held) -> Start:
        """Wait until all parties are here; returns how all go on.

        Args:
            held: Which checkpoints this party holds.

        Raises:
            AuthError: As the leader: some go on with another run.
        """
        deadline = time.monotonic() + (self._patience.start if self.epoch == 0 else self._patience.rejoin)
        leads = self.name == self.leader
        self._ended = ""
        for line in self._lines.values():
            line.leave(self.epoch)
            line.drop_unsent()
            if leads:
                line.put_control({"restart": self.epoch})
        said = leads
        while True:
            with self._changed:
                if leads:
                    self._begin_if_all_ready(held)
                # Before anything else: who is called back right behind a beginning says so as one who has begun.
                start = self._start
                if start is not None and start.epoch > self.epoch:
                    self.epoch = start.epoch
                    break
                self._raise_failure()
                if not said or (self._interrupted is not None and not leads):
                    self._interrupted, said = None, True
                    self._lines[self.leader].put_control({"ready": list(held), "epoch": self.epoch})
                left = deadline - time.monotonic()
                if left > 0:
                    self._changed.wait(min(left, 1.0))
            if left <= 0:
                raise PeerUnreachable(self._explain_absence())
            self._on_wait(self._absent(), left)
        with self._settling, self._changed:
            self._settled = None
        return start

    def checkpointed(self, number: int) -> None:
        """Tell the leader that this party holds a checkpoint, so that older ones may be forgotten."""
        if self.name == self.leader:
            with self._changed:
                self._note_checkpoint(self.name, number)
            self._settle()
        else:
            self._lines[self.leader].put_control({"holds": number})

    def finish(self, on_end: Callable[[], None] = lambda: None) -> None:
        """Wait until all parties have come to the end and know it, for until then any of them may need this one again.

        Args:
            on_end: Called when all have come to the end. Whoever is killed before this has written that down, and is
                back within the silence that is allowed, finds the others still there.
        """
        for line in self._lines.values():
            line.put_control({"done": self.epoch})
        if self.name == self.leader:
            for peer, line in self._lines.items():
                self._await(line, partial(self._has_finished, peer))
            for line in self._lines.values():
                line.put_control({"end": self.epoch})
            self._linger(lambda: self._left.issuperset(self._lines))
            on_end()
            self._ended = "leave"
            for line in self._lines.values():
                line.put_control({"leave": self.epoch})
            self._drain(list(self._lines.values()), seconds=3.0, even_if_cut=False)
        else:
            line = self._lines[self.leader]
            self._await(line, lambda: self._ended in ("end", "leave"))
            on_end()
            line.put_control({"left": self.epoch})
            self._linger(lambda: self._ended == "leave")

    def _linger(self, condition: Callable[[], bool]) -> None:
        """Wait for the others to know that all is done, but not for those that do not come back."""
        deadline = time.monotonic() + self._patience.silence
        with self._changed:
            while not condition() and (left := deadline - time.monotonic()) > 0:
                self._heed()
                self._changed.wait(left)

    def _heed(self) -> None:
        """Raise what keeps a party that is done from leaving."""
        self._raise_failure()
        # Whether one that started anew is waited for is the leader's to say: it may have ended the run.
        if self.leader in (self.name, self._interrupted):
            self.check()

    def fail(self, error: BaseException, *, at: str = "") -> None:
        """Tell all peers why this party stops, and where in the protocol."""
        words = str(error) if isinstance(error, ColonnadeError) else type(error).__name__
        if isinstance(error, KeyboardInterrupt):
            words = "its operator ended it."
        met = [line for line in self._lines.values() if line.peer_incarnation is not None]
        for line in met:
            line.drop_unsent()
            line.put_control({"failed": words[:2000], "at": at})
        self._drain(met, seconds=3.0, even_if_cut=True)
        self._drain(met, seconds=7.0, even_if_cut=False)

    def flush(self, peer: str, seconds: float) -> None:
        """Wait until a peer, if it is connected, has everything that was sent to it."""
        self._drain([self._line(peer)], seconds=seconds, even_if_cut=False)

    @property
    def insecure(self) -> bool:
        """Whether traffic is in the clear."""
        return self._credentials is None

    @property
    def peers(self) -> tuple[str, ...]:
        """Those to whom there is a line."""
        return tuple(self._lines)

    @property
    def refused(self) -> Mapping[str, str]:
        """Who was turned away, and why."""
        return dict(self._refused)

    def identity(self, peer: str) -> Identity | None:
        """Whom the certificate of a connected peer names; None without TLS."""
        address = self._addresses[peer]
        if self._credentials is None or peer in self._identities or address is None:
            return self._identities.get(peer)
        return shown_identity(address, peer, self._credentials)

    # What peers say.

    def _control(self, peer: str, incarnation: bytes | None, note: dict[str, Any]) -> None:
        leads = self.name == self.leader
        with self._changed:
            if incarnation != self._lines[peer].peer_incarnation:
                return  # the peer was started anew since
            match note:
                case {"ready": [int(newest), bytes(folder), bytes(run)], "epoch": int(epoch)} if (
                    leads and newest >= 0 and 0 <= epoch < _MANY and len(folder) == NAME_BYTES
                ):
                    # What was said before the epoch that it is in by now is stale.
                    if epoch >= self._begun.get(peer, 0):
                        self._ready[peer] = epoch, Held(newest, folder, run)
                        self._interrupted = self._interrupted or peer
                case {"holds": int(number)} if leads:
                    self._note_checkpoint(peer, number)
                case {"left": int(epoch)} if leads:
                    if epoch == self.epoch:
                        self._left.add(peer)
                case {"restart": int(epoch)} if peer == self.leader:
                    if epoch and epoch >= self.epoch:
                        self._interrupted = peer
                case {"start": int(epoch), "from": int(common), "run": bytes(run), "processes": dict(processes)} if (
                    peer == self.leader
                    and 0 < epoch <= _MANY
                    and common >= 0
                    and len(run) == NAME_BYTES
                    and all(isinstance(process, bytes) and len(process) == NAME_BYTES for process in processes.values())
                ):
                    if self._start is None or epoch > self._start.epoch:
                        self._start = Start(epoch, common, run)
                        self._go_on_with({**processes, self.leader: incarnation})
                case {"settled": int(number)} if peer == self.leader:
                    self._settled = number
                case {"done": int(epoch)}:
                    self._done[peer] = epoch
                case {"end": int(epoch)} if peer == self.leader:
                    if epoch == self.epoch:
                        self._ended = "end"
                case {"leave": int(epoch)} if peer == self.leader:
                    if epoch == self.epoch:
                        self._ended = "leave"
                case {"failed": str(words), "at": str(at)}:
                    self._left.add(peer)
                    where = f" at {at[:100]}" if at else ""
                    self._failure = self._failure or PeerFailed(f"{peer} stopped{where}: {words[:2000]}")
                case _:
                    self._failure = self._failure or ProtocolError(
                        f"{peer} sent a control message that this version does not know."
                    )
            self._changed.notify_all()
        self._wake()

    def _begin_if_all_ready(self, held: Held) -> None:
        """As the leader: begin a new epoch; called under the lock, so that nobody starts anew in between."""
        if self._ready.keys() >= self._lines.keys():
            epoch = 1 + max([self.epoch, *(epoch for epoch, _ in self._ready.values())])
            all_held = {self.name: held, **{peer: theirs for peer, (_, theirs) in self._ready.items()}}
            self._start = next_start(epoch, all_held)
            self._ready.clear()
            self._left.clear()
            self._checkpoints.clear()
            self._begun = dict.fromkeys(self._lines, epoch)
            self._interrupted = None
            processes = {peer: line.peer_incarnation for peer, line in self._lines.items()}
            note = {"start": epoch, "from": self._start.common, "run": self._start.run, "processes": processes}
            for line in self._lines.values():
                line.put_control(note)

    def _go_on_with(self, processes: Mapping[str, Any]) -> None:
        """Take up the lines to the processes that an epoch begins with, be they connected already or not."""
        for peer, incarnation in processes.items():
            line = self._lines.get(peer)
            # One that was succeeded already interrupts this epoch as well.
            if line is not None and incarnation >= (line.peer_incarnation or b""):
                if line.peer_incarnation != incarnation:
                    self._succeed(line, incarnation)
                if self._interrupted == peer:
                    self._interrupted = None

    def _succeed(self, line: Line, incarnation: bytes) -> None:
        """Note that the peer is another process than before."""
        with line.lock:
            if line.peer_incarnation is not None:
                line.reset()
                for said in (self._ready, self._begun, self._done):
                    said.pop(line.peer, None)
                self._left.discard(line.peer)
            line.peer_incarnation = incarnation

    def _note_checkpoint(self, party: str, number: int) -> None:
        self._checkpoints[party] = number
        if len(self._checkpoints) == len(self._lines) + 1:
            settled = min(self._checkpoints.values())
            for line in self._lines.values():
                line.put_control({"settled": settled})
            self._settled = settled

    def _settle(self) -> None:
        """Act on what all parties hold by now; it takes a disk's time, which gRPC's thread does not have."""
        if self._settled is not None:
            with self._settling:
                with self._changed:
                    number, self._settled = self._settled, None
                if number is not None:
                    self.on_settled(number)

    def check(self) -> None:
        """Raise what keeps the run from going on: a failure somewhere, or a peer that was started anew."""
        self._raise_failure()
        interrupted = self._interrupted
        if interrupted is not None:
            raise PeerRestarted(f"{interrupted} started anew; {self.name} goes back to the last checkpoint.")

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _has_finished(self, peer: str) -> bool:
        return self._done.get(peer) == self.epoch

    def _require_back(self, line: Line, begun: float) -> None:
        away = 0.0 if line.connected else time.monotonic() - max(line.heard_at, begun)
        if away > self._patience.rejoin:
            raise PeerUnreachable(
                f"{self.name} waits for {line.peer}, whose connection broke and who did not come back within "
                f"{away:.0f} s. Start {line.peer} again with --resume, then this party likewise."
            )

    def _await(self, line: Line, condition: Callable[[], bool]) -> None:
        """Wait until a peer, who may have much to do before, has said something to this party's runner."""
        begun = time.monotonic()
        with self._changed:
            while not condition():
                self._heed()
                self._require_back(line, begun)
                self._changed.wait(0.2)

    def _drain(self, lines: Sequence[Line], *, seconds: float, even_if_cut: bool) -> None:
        """Wait until peers have acknowledged everything; if a connection is cut, unless its peer has left."""
        deadline = time.monotonic() + seconds
        for line in lines:
            while not line.drained and (line.connected or (even_if_cut and line.peer not in self._left)):
                if time.monotonic() > deadline:
                    return
                line.news.wait(0.1)

    def _absent(self) -> list[str]:
        if self.name == self.leader:
            absent = [peer for peer in self._lines if peer not in self._ready]
        else:
            absent = [] if self._lines[self.leader].connected else [self.leader]
        return [f"{peer} (refused: {self._refused[peer]})" if peer in self._refused else peer for peer in absent]

    def _explain_absence(self) -> str:
        absent = self._absent() or [f"{self.leader} (which waits for others)"]
        strangers = [f" {who} was refused: {why}" for who, why in self.refused.items() if who not in self._lines]
        # gRPC says nothing of a handshake that failed, only that one began; peers that were met before look, too.
        failed = self._handshakes - self._streams
        if failed > 0 and all(line.peer_incarnation is None for line in self._lines.values()):
            strangers.append(
                f" Somebody tried to connect {failed} times and did not get through TLS: its certificate is missing, "
                "has expired or is signed by another authority than this party's, or it finds the same of this party's."
            )
        return (
            f"{self.name} waited for {', '.join(absent)} and gave up. Start them with the same plan, check the "
            f"addresses, and run `colonnade doctor` on both sides.{''.join(strangers)}"
        )

    def _line(self, peer: str) -> Line:
        try:
            return self._lines[peer]
        except KeyError:
            raise PlanError(
                f"There is no line from {self.name} to {peer}. Check the names, and that one of the two has an address."
            ) from None

    def _wake(self) -> None:
        for line in self._lines.values():
            line.news.give()

    # Connections.

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
                f"{self.name} cannot listen at {address}. Another program may use the port; choose another one."
            ) from error
        assert port
        self._server.start()

    def _server_credentials(self) -> grpc.ServerCredentials:
        def configuration(credentials: Credentials) -> Any:
            pair = (credentials.key_pem, credentials.certificate_pem)
            return grpc.ssl_server_certificate_configuration((pair,), credentials.ca_pem)

        def refreshed() -> Any:
            self._handshakes += 1
            before = self._credentials
            now = self._renewed()
            return None if now is before else configuration(now)

        return grpc.dynamic_ssl_server_credentials(
            configuration(self._renewed()), refreshed, require_client_authentication=True
        )

    def _renewed(self) -> Credentials:
        """The credentials as they lie in their folder by now, or the old ones while that is being changed."""
        assert self._credentials is not None
        with contextlib.suppress(ColonnadeError):
            self._credentials = self._credentials.current()
        return self._credentials

    def _answer(self, arrivals: _Arrivals, requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        """The listening side of one stream."""
        who = None
        self._streams += 1
        if self._ended == "leave":
            return  # who calls now wants the next run of this party
        try:
            with _within(self._patience.silence, context.cancel):
                identity = self._identity(context)
                if identity is not None:
                    who = identity.name
                    self._recognise(identity)
                line, connection = self._accept(Envelope.unpack(next(requests)), who, context.cancel)
        except (StopIteration, grpc.RpcError):
            return
        except StorageError as error:
            self._fail_locally(error)
            return
        except WireError as error:
            self._refused[who or "Somebody"] = str(error)
            yield Envelope(Type.REFUSAL, payload=note_bytes({"because": str(error)})).pack()
            return
        self._refused.pop(line.peer, None)
        arrivals.go_to(partial(self._take_in, line, connection))
        try:
            yield self._hello(line)
            threading.Thread(target=self._read, args=(line, connection, requests), daemon=True).start()
            yield from self._write(line, connection)
        finally:
            line.detach(connection)

    def _dial(self, peer: str, address: str) -> None:
        """The dialling side of one line: connect, and connect again."""
        line, pause, doubts = self._lines[peer], 0.1, 0
        while not self._closing.is_set():
            try:
                channel = self._channel(peer, address)
            except ColonnadeError as error:
                self._fail_locally(error)
                return
            try:
                self._exchange(line, channel)
                pause, doubts = 0.1, 0
            except (AuthError, ProtocolError) as error:
                # Who has left may be at its next run already.
                if not self._ended:
                    self._fail_locally(error)
                    return
            except grpc.RpcError:
                reason = None if self._credentials is None else diagnose(address, peer, self._credentials)
                # A connection that breaks at the wrong moment looks like a refusal, but not each time. One that held
                # before is the more likely to have broken.
                doubts = 0 if reason is None else doubts + 1
                if doubts >= (3 if line.peer_incarnation is None else 10):
                    self._fail_locally(AuthError(f"{self.name} could not make sure that {address} is {peer}: {reason}"))
                    return
            finally:
                channel.close()
            self._closing.wait(pause * random.uniform(0.5, 1.0))
            pause = min(2 * pause, 5.0)

    def _exchange(self, line: Line, channel: grpc.Channel) -> None:
        accepted: list[Connection] = []
        ready, arrivals = threading.Event(), _Arrivals()

        def requests() -> Iterator[bytes]:
            yield self._hello(line)
            ready.wait()
            if accepted:
                yield from self._write(line, accepted[0])

        call = channel.stream_stream(_METHOD, response_deserializer=arrivals)(requests())
        try:
            with _within(self._patience.silence, call.cancel):
                answer = Envelope.unpack(next(call))
            if answer.type is Type.REFUSAL:
                raise AuthError(f"{line.peer} refused {self.name}: {str(answer.note.get('because'))[:2000]}")
            _, connection = self._accept(answer, line.peer, call.cancel)
            accepted.append(connection)
            if self._closing.is_set():
                return  # too late for `close` to end it
            arrivals.go_to(partial(self._take_in, line, connection))
            ready.set()
            self._read(line, accepted[0], call)
        except StopIteration:
            return
        finally:
            ready.set()
            for connection in accepted:
                line.detach(connection)
            call.cancel()

    def _write(self, line: Line, connection: Connection) -> Iterator[bytes]:
        try:
            yield from line.outgoing(connection)
        except Exception as error:
            self._fail_locally(error)
        finally:
            line.detach(connection)

    def _take_in(self, line: Line, connection: Connection, data: bytes) -> None:
        try:
            line.incoming(connection, Envelope.unpack(data))
        except Gap:
            line.detach(connection)  # it is taken up again, and what is missing is sent again
        except Exception as error:
            line.detach(connection)
            self._fail_locally(error)

    def _read(self, line: Line, connection: Connection, incoming: Iterator[bytes]) -> None:
        """Ask for one message after the other until the connection ends."""
        try:
            for _ in incoming:
                if connection.closed:
                    break
                self._settle()
        except grpc.RpcError:
            pass  # the connection is taken up again
        except Exception as error:
            self._fail_locally(error)
        finally:
            line.detach(connection)
            connection.cancel()

    def _hello(self, line: Line) -> bytes:
        note = {
            **{f"agree {key}": value for key, value in dict(self.agreement).items()},
            "name": self.name,
            "incarnation": self.incarnation,
            "knows": line.peer_incarnation or b"",
            "received": line.received,
        }
        return Envelope(Type.HELLO, payload=note_bytes(note)).pack()

    def _accept(self, hello: Envelope, expected: str | None, cancel: Callable[[], Any]) -> tuple[Line, Connection]:
        """Check who greets; returns its line, which goes on over this connection."""
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
        for key, value in dict(self.agreement).items():
            theirs = hello.note.get(f"agree {key}")
            if theirs is None and key == "rows":
                continue  # an arbiter or a server has none of its own
            if theirs != value:
                raise disagreement(key, self.name, value, name, theirs)
        if "agree rows" in hello.note:
            self.agreement.setdefault("rows", str(hello.note["agree rows"]))
        line = self._lines[name]
        with self._changed, line.lock:
            if line.connected and incarnation < (line.peer_incarnation or b""):
                raise AuthError(
                    f"{name} was started a second time while this process of it was running. Run each party once."
                )
            seen = received if knows == self.incarnation else 0
            if seen > line.sent:
                raise ProtocolError(f"{name} claims to have received what was never sent to it. It is faulty.")
            if incarnation != line.peer_incarnation:
                if line.peer_incarnation is not None:
                    self._interrupted = name if name == self.leader else self._interrupted or name
                    self._changed.notify_all()
                self._succeed(line, incarnation)
            connection = line.attach(seen, cancel)
        self._wake()
        return line, connection

    def _require_peer(self, name: str) -> None:
        if name not in self._lines:
            raise AuthError(
                f"{name} is not a party that {self.name} expects; the plan's parties are {', '.join(self._addresses)}. "
                "Take part under one of these names, each at its own machine."
            )

    def _identity(self, context: grpc.ServicerContext) -> Identity | None:
        if self._credentials is None:
            return None
        shown = context.auth_context()
        if shown.get("ssl_tls_version", [b"TLSv1.3"]) != [b"TLSv1.3"]:
            raise AuthError("A peer uses an older TLS version than 1.3. Install the same version of Colonnade at both.")
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
        self._identities[identity.name] = identity

    def _channel(self, peer: str, address: str) -> grpc.Channel:
        if self._credentials is None:
            return grpc.insecure_channel(address, options=_OPTIONS)
        current = self._renewed()
        # A certificate that the peer has handed over is trusted in place of the authority, hence no other one.
        trusted = current.handed_over(peer) or current.ca_pem
        secure = grpc.ssl_channel_credentials(trusted, current.key_pem, current.certificate_pem)
        named = (("grpc.ssl_target_name_override", host_of(peer)),)
        return grpc.secure_channel(address, secure, options=(*_OPTIONS, *named))

    def _watch_silence(self) -> None:
        while not self._closing.wait(min(1.0, self._patience.silence / 4)):
            for line in self._lines.values():
                line.cut_if_silent(self._patience.silence)

    def _fail_locally(self, error: Exception) -> None:
        with self._changed:
            self._failure = self._failure or error
            self._changed.notify_all()
        self._wake()

    def _begin(self, target: Callable[..., None], *args: Any) -> None:
        thread = threading.Thread(target=target, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()


class _Arrivals:
    """What comes over one stream: a greeting for who asks, and then messages that go to their place at once.

    It stands where gRPC unpacks messages, in gRPC's own thread. A thread of ours that waits for messages and hands them
    to a protocol, which waits as well, would be a second change of threads for each.
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


def disagreement(key: str, own: str, mine: str, peer: str, theirs: Any) -> WireError:
    """Why two parties cannot take part in the same run."""
    if key == "version":
        return VersionMismatch(
            f"{own} runs Colonnade {mine} and {peer} runs {theirs}. Install the same version at both."
        )
    if key == "protocol":
        return AuthError(f"{own} runs {mine} and {peer} runs {theirs}. Run the same command at both.")
    what = {"plan": "plans", "rows": "rows, or the same rows in another order"}.get(key, key)
    advice = {"plan": "Give both the same plan file.", "rows": "Align the tables first."}.get(key, "Make them equal.")
    return AuthError(f"{own} and {peer} have different {what}. {advice}")
