"""Two processes of one machine exchange bytes under mutual TLS: as Colonnade does, by bare gRPC, and by bare TLS.

A step is 256 KiB there and back. A transfer is 64 MiB one way, in pieces of 1 MiB, and a word back; Colonnade's is one
frame, which arrives as a whole, while the others' pieces are dropped as they come. All three ways take turns, so that
whatever else the machine does slows all of them.
"""

from __future__ import annotations

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
from random import randbytes
from statistics import median
from time import perf_counter

import psutil

from benchmarks.loopback import BANK, SHOP, free_port, issue_certificates
from colonnade.wire.certs import Credentials, host_of
from colonnade.wire.grpc import GrpcTransport

# Imported after Colonnade, which restricts gRPC to TLS 1.3 before gRPC is first imported.
import grpc  # isort: skip

# A transfer at 80 % of bare gRPC's speed takes 1.25 times as long.
TARGETS: Mapping[str, float] = {"step_ratio": 1.3, "bulk_ratio": 1.25, "receiver_mb": 120.0}
STEP_BYTES, TRANSFER_BYTES, PIECE_BYTES = 2**18, 2**26, 2**20
METHOD = "Exchange"


@dataclass(frozen=True)
class Way:
    """One way to send bytes to the other process and to wait for its answer."""

    send: Callable[[bytes], object]
    receive: Callable[[], bytes]
    pieces: Sequence[bytes]

    def step(self, payload: bytes) -> None:
        """Send some bytes and take them back."""
        self.send(payload)
        if len(self.receive()) != len(payload):
            raise RuntimeError("The answer should be as long as the question.")

    def transfer(self) -> None:
        """Send the pieces and wait until the other process has them all."""
        for piece in self.pieces:
            self.send(piece)
        self.receive()


def answers(received: Iterator[bytes]) -> Iterator[bytes]:
    """Steps come back as they are, and a word comes back for each transfer."""
    pending = 0
    for piece in received:
        size = len(piece)
        if size == STEP_BYTES:
            yield piece
        else:
            pending = (pending + size) % TRANSFER_BYTES
            # What has been counted should not lie in memory while the next piece arrives.
            del piece
            if not pending:
                yield b"received"


@dataclass(frozen=True)
class Addresses:
    """At which port of this machine each way is answered, and where the certificates lie."""

    colonnade: int
    grpcio: int
    tls: int
    certificates: Path


def transport(name: str, addresses: Addresses) -> GrpcTransport:
    """A party's end of Colonnade's line."""
    made = GrpcTransport(
        name,
        {BANK: f"127.0.0.1:{addresses.colonnade}", SHOP: None},
        agreement={},
        credentials=Credentials.read(addresses.certificates, name),
    )
    made.open()
    return made


def tls_context(name: str, side: ssl.Purpose, certificates: Path) -> ssl.SSLContext:
    """TLS in which both sides show certificates."""
    context = ssl.create_default_context(side, cafile=str(certificates / "ca.pem"))
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(certificates / f"{name}.pem", certificates / f"{name}.key")
    return context


def tls_way(line: ssl.SSLSocket, pieces: Sequence[bytes] = ()) -> Way:
    """Bytes over a socket, each lot behind its length."""
    line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(data: bytes) -> None:
        line.sendall(len(data).to_bytes(8, "little"))
        line.sendall(data)

    def read(size: int) -> bytes:
        buffer = bytearray(size)
        view, done = memoryview(buffer), 0
        while done < size:
            got = line.recv_into(view[done:])
            if not got:
                raise EOFError
            done += got
        return bytes(buffer)

    return Way(send, lambda: read(int.from_bytes(read(8), "little")), pieces)


def serve(addresses: Addresses, listening: Event) -> None:
    """The bank's process: answer all three ways."""
    credentials = Credentials.read(addresses.certificates, BANK)
    pair = ((credentials.key_pem, credentials.certificate_pem),)
    server = grpc.server(ThreadPoolExecutor(1))
    handler = grpc.stream_stream_rpc_method_handler(lambda requests, context: answers(requests))
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("Bare", {METHOD: handler}),))
    server.add_secure_port(
        f"127.0.0.1:{addresses.grpcio}",
        grpc.ssl_server_credentials(pair, credentials.ca_pem, require_client_auth=True),
    )
    server.start()

    listener = socket.create_server(("127.0.0.1", addresses.tls))
    listening.set()
    plain, _ = listener.accept()
    context = tls_context(BANK, ssl.Purpose.CLIENT_AUTH, addresses.certificates)
    bare = tls_way(context.wrap_socket(plain, server_side=True))
    threading.Thread(target=answer, args=(bare,), daemon=True).start()

    line = transport(BANK, addresses)
    line.meet(0)
    answer(Way(lambda data: line.send(SHOP, data), lambda: line.receive(SHOP), ()))


def answer(way: Way) -> None:
    """Answer all that comes one way."""

    def received() -> Iterator[bytes]:
        while True:
            yield way.receive()

    for data in answers(received()):
        way.send(data)


def connect(addresses: Addresses, stack: ExitStack) -> dict[str, Way]:
    """The shop's ends of all three ways, until the stack is closed."""
    address, host = f"127.0.0.1:{addresses.grpcio}", host_of(BANK)
    credentials = Credentials.read(addresses.certificates, SHOP)
    secure = grpc.ssl_channel_credentials(credentials.ca_pem, credentials.key_pem, credentials.certificate_pem)
    channel = stack.enter_context(grpc.secure_channel(address, secure, [("grpc.ssl_target_name_override", host)]))
    queue: SimpleQueue[bytes] = SimpleQueue()
    call = channel.stream_stream(f"/Bare/{METHOD}")(iter(queue.get, None))
    stack.callback(call.cancel)

    plain = socket.create_connection(("127.0.0.1", addresses.tls))
    context = tls_context(SHOP, ssl.Purpose.SERVER_AUTH, addresses.certificates)
    socket_ = stack.enter_context(context.wrap_socket(plain, server_hostname=host))

    line = transport(SHOP, addresses)
    stack.callback(line.close)
    line.meet(0)
    pieces = [randbytes(PIECE_BYTES) for _ in range(TRANSFER_BYTES // PIECE_BYTES)]
    return {
        "colonnade": Way(lambda data: line.send(BANK, data), lambda: line.receive(BANK), [b"".join(pieces)]),
        "grpcio": Way(queue.put, call.__next__, pieces),
        "tls": tls_way(socket_, pieces),
    }


def peak_memory(process: psutil.Process, act: Callable[[], object]) -> int:
    """The most memory that a process holds during an act, in bytes."""
    most, over = process.memory_info().rss, threading.Event()

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
    """Ratios to bare gRPC of the median times; what the receiver of transfers holds beyond what it held before."""
    rounds, steps, transfers = (2, 20, 1) if quick else (25, 100, 2)
    payload = randbytes(STEP_BYTES)
    spawning = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        addresses = Addresses(free_port(), free_port(), free_port(), Path(folder))
        issue_certificates(addresses.certificates)
        listening = spawning.Event()
        bank = spawning.Process(target=serve, args=(addresses, listening), daemon=True)
        bank.start()
        stack.callback(bank.join)
        stack.callback(bank.kill)
        listening.wait()
        ways = connect(addresses, stack)

        for way in ways.values():
            way.step(payload)
        receiver = psutil.Process(bank.pid)
        idle = receiver.memory_info().rss
        ours = ways["colonnade"]
        held = max(peak_memory(receiver, ours.transfer) for _ in range(3)) - idle

        step_times: dict[str, list[float]] = {name: [] for name in ways}
        transfer_times: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(rounds):
            for name, way in ways.items():
                step_times[name] += [duration(partial(way.step, payload)) for _ in range(steps)]
                transfer_times[name] += [duration(way.transfer) for _ in range(transfers)]
    step = {name: 1e3 * median(times) for name, times in step_times.items()}
    transfer = {name: median(times) for name, times in transfer_times.items()}
    return {
        "step_ratio": step["colonnade"] / step["grpcio"],
        "bulk_ratio": transfer["colonnade"] / transfer["grpcio"],
        "receiver_mb": held / 1e6,
        **{f"{name}_step_ms": milliseconds for name, milliseconds in step.items()},
        **{f"{name}_mib_per_s": TRANSFER_BYTES / 2**20 / seconds for name, seconds in transfer.items()},
    }
