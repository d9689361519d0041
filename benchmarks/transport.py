"""Two processes of one machine exchange bytes under mutual TLS: as Colonnade does, by bare gRPC, and by bare TLS.

A step is 256 KiB there and back. A transfer is 64 MiB one way and a word back. Colonnade's receiver ends up with one
frame; bare gRPC's gets pieces of 1 MiB and drops each as it comes, and once more puts them together, which is what the
`gathering` figures are about. All ways take turns, so that whatever else the machine does slows all of them.
"""

from __future__ import annotations

import io
import multiprocessing
import socket
import ssl
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from multiprocessing.synchronize import Event
from pathlib import Path
from queue import SimpleQueue
from random import randbytes, sample
from statistics import median
from time import perf_counter
from typing import Any, TypeAlias

import grpc
import psutil

from benchmarks.loopback import BANK, SHOP, free_port, issue_certificates
from colonnade.wire.certs.credentials import Credentials, host_of
from colonnade.wire.grpc.link import Patience
from colonnade.wire.grpc.transport import GrpcTransport
from colonnade.wire.transport import NAME_BYTES, HeldCheckpoint

# A transfer at 80 % of bare gRPC's speed takes 1.25 times as long.
TARGETS: Mapping[str, float] = {"step_ratio": 1.3, "bulk_ratio": 1.25, "receiver_mb": 120.0}
LEAST: Mapping[str, float] = {"step_ratio": 1.0, "bulk_ratio": 1.0}
Bytes: TypeAlias = bytes | bytearray | memoryview
STEP_BYTES, TRANSFER_BYTES, PIECE_BYTES = 2**18, 2**26, 2**20


@dataclass(frozen=True)
class Way:
    """One way to send bytes to the other process and to wait for its answer."""

    send: Callable[[Any], object]
    receive: Callable[[], Bytes]
    transferred: Sequence[bytes] = ()

    def step(self, payload: bytes) -> None:
        """Send some bytes and take them back."""
        self.send(payload)
        if len(self.receive()) != len(payload):
            raise RuntimeError("The answer to a step should be as long as the question.")

    def transfer(self) -> None:
        """Send many bytes and wait until the other process has them all."""
        for piece in self.transferred:
            self.send(piece)
        if len(self.receive()) == STEP_BYTES:
            raise RuntimeError("The answer to a transfer should be a word.")

    def answer(self) -> None:
        """Be the other process: send steps back as they are, and a word for each transfer."""
        while True:
            received = self.receive()
            self.send(answer_to(received))
            # What has been answered should not lie in memory while the next thing arrives.
            del received


def answer_to(received: Bytes) -> Bytes:
    """What the other process says to what it received as a whole."""
    return received if len(received) == STEP_BYTES else b"received"


def answers_to_pieces(pieces: Iterator[bytes], context: object, *, gather: bool) -> Iterator[Bytes]:
    """What the other process says to what comes in pieces."""
    gathered, size = io.BytesIO(), 0
    for piece in pieces:
        if len(piece) == STEP_BYTES:
            yield answer_to(piece)
            continue
        size += len(piece)
        if gather:
            gathered.write(piece)
        if size == TRANSFER_BYTES:
            yield answer_to(gathered.getvalue())
            gathered, size = io.BytesIO(), 0


@dataclass(frozen=True)
class Meeting:
    """At which ports of this machine the bank listens, and where the certificates lie."""

    certificates: Path
    colonnade: int
    grpcio: int
    tls: int

    def credentials(self, name: str) -> Credentials:
        """A party's certificate and key."""
        return Credentials.read(self.certificates, name)

    def transport(self, name: str) -> GrpcTransport:
        """A party's end of Colonnade's line, when both have met."""
        transport = GrpcTransport(
            {BANK: f"127.0.0.1:{self.colonnade}", SHOP: None},
            credentials=self.credentials(name),
            patience=Patience(start=60, rejoin=10, message=60),
        )
        transport.bind(name, (BANK, SHOP), {})
        transport.open()
        transport.meet(HeldCheckpoint(0, bytes(NAME_BYTES)))
        return transport

    def tls_context(self, name: str, peer_is: ssl.Purpose) -> ssl.SSLContext:
        """TLS in which both sides show certificates."""
        context = ssl.create_default_context(peer_is, cafile=str(self.certificates / "ca.pem"))
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_cert_chain(self.certificates / f"{name}.pem", self.certificates / f"{name}.key")
        return context


def tls_way(line: ssl.SSLSocket, transferred: Sequence[bytes] = ()) -> Way:
    """Bytes over a socket, behind their length."""
    line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(data: bytes) -> None:
        line.sendall(len(data).to_bytes(8, "little"))
        line.sendall(data)

    def read(size: int) -> bytearray:
        buffer, done = bytearray(size), 0
        with memoryview(buffer) as view:
            while done < size:
                got = line.recv_into(view[done:])
                if not got:
                    raise EOFError
                done += got
        return buffer

    return Way(send, lambda: read(int.from_bytes(read(8), "little")), transferred)


def serve(meeting: Meeting, listening: Event) -> None:
    """The bank's process: answer all ways."""
    own = meeting.credentials(BANK)
    secure = grpc.ssl_server_credentials(((own.key_pem, own.certificate_pem),), own.ca_pem, require_client_auth=True)
    server = grpc.server(ThreadPoolExecutor(2))
    methods = {
        "Drop": grpc.stream_stream_rpc_method_handler(partial(answers_to_pieces, gather=False)),
        "Gather": grpc.stream_stream_rpc_method_handler(partial(answers_to_pieces, gather=True)),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("Bare", methods),))
    server.add_secure_port(f"127.0.0.1:{meeting.grpcio}", secure)
    server.start()

    listener = socket.create_server(("127.0.0.1", meeting.tls))
    listening.set()
    plain, _ = listener.accept()
    bare = tls_way(meeting.tls_context(BANK, ssl.Purpose.CLIENT_AUTH).wrap_socket(plain, server_side=True))
    threading.Thread(target=bare.answer, daemon=True).start()

    line = meeting.transport(BANK)
    Way(partial(line.send, SHOP), partial(line.receive, SHOP)).answer()


def connect(meeting: Meeting, stack: ExitStack) -> dict[str, Way]:
    """The shop's ends of all ways, until the stack is closed."""
    pieces = [randbytes(PIECE_BYTES) for _ in range(TRANSFER_BYTES // PIECE_BYTES)]
    whole = [b"".join(pieces)]
    own, host = meeting.credentials(SHOP), host_of(BANK)
    secure = grpc.ssl_channel_credentials(own.ca_pem, own.key_pem, own.certificate_pem)
    named = [("grpc.ssl_target_name_override", host)]
    channel = stack.enter_context(grpc.secure_channel(f"127.0.0.1:{meeting.grpcio}", secure, named))

    def bare(method: str) -> Way:
        queue: SimpleQueue[bytes] = SimpleQueue()
        call = channel.stream_stream(f"/Bare/{method}")(iter(queue.get, None))
        stack.callback(call.cancel)
        return Way(queue.put, call.__next__, pieces)

    plain = socket.create_connection(("127.0.0.1", meeting.tls))
    context = meeting.tls_context(SHOP, ssl.Purpose.SERVER_AUTH)
    socket_ = stack.enter_context(context.wrap_socket(plain, server_hostname=host))
    line = meeting.transport(SHOP)
    stack.callback(line.close)
    return {
        "colonnade": Way(partial(line.send, BANK), partial(line.receive, BANK), whole),
        "grpcio": bare("Drop"),
        "gathering_grpcio": bare("Gather"),
        "tls": tls_way(socket_, whole),
    }


def peak_memory(process: psutil.Process, act: Callable[[], object]) -> int:
    """The most memory that a process holds during an act, in bytes."""
    most: int = process.memory_info().rss
    over = threading.Event()

    def watch() -> None:
        nonlocal most
        while not over.wait(0.002):
            most = max(most, process.memory_info().rss)

    watcher = threading.Thread(target=watch)
    watcher.start()
    act()
    over.set()
    watcher.join()
    return most


def duration(act: Callable[[], object]) -> float:
    """How long an act takes, in seconds."""
    start = perf_counter()
    act()
    return perf_counter() - start


def measure(*, quick: bool) -> dict[str, float]:
    """Ratios of median times to those of bare gRPC; what a receiver holds beyond what it held when idle."""
    rounds, steps, transfers = (2, 20, 1) if quick else (12, 100, 2)
    payload = randbytes(STEP_BYTES)
    spawning = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        meeting = Meeting(Path(folder), free_port(), free_port(), free_port())
        issue_certificates(meeting.certificates)
        listening = spawning.Event()
        bank = spawning.Process(target=serve, args=(meeting, listening), daemon=True)
        bank.start()
        if not listening.wait(60):
            raise RuntimeError("The bank's process should listen by now and does not.")
        ways = connect(meeting, stack)
        stack.callback(bank.join)
        stack.callback(bank.kill)

        for way in ways.values():
            way.step(payload)
        receiver = psutil.Process(bank.pid)
        idle = receiver.memory_info().rss
        peak = max(peak_memory(receiver, ways["colonnade"].transfer) for _ in range(3))

        step_times: dict[str, list[float]] = {name: [] for name in ways}
        transfer_times: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(rounds):
            # In another order each time, for what one leaves behind the next has to clear away.
            for name, way in sample(list(ways.items()), len(ways)):
                step_times[name] += [duration(partial(way.step, payload)) for _ in range(steps)]
                transfer_times[name] += [duration(way.transfer) for _ in range(transfers)]
    step = {name: 1e3 * median(times) for name, times in step_times.items() if name != "gathering_grpcio"}
    transfer = {name: median(times) for name, times in transfer_times.items()}
    return {
        "step_ratio": step["colonnade"] / step["grpcio"],
        "bulk_ratio": transfer["colonnade"] / transfer["grpcio"],
        "receiver_mb": (peak - idle) / 1e6,
        "gathering_bulk_ratio": transfer["colonnade"] / transfer["gathering_grpcio"],
        **{f"{name}_step_ms": milliseconds for name, milliseconds in step.items()},
        **{f"{name}_mib_per_s": TRANSFER_BYTES / 2**20 / seconds for name, seconds in transfer.items()},
    }
