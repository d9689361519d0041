"""A visit: two parties that prepare a run tell each other about themselves, and measure the line between them.

    every party                               every other party
         Report ⇄ Report                                      what `SelfReport` holds
         Probe ─────────────────────────────▶ Probe           latency, bandwidth, clock; then the other way round

It takes the same lines as a run, but agrees on nothing beforehand, so that what differs is shown instead of refused.
"""

from __future__ import annotations

import queue
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from statistics import median
from typing import TYPE_CHECKING

import numpy as np

from colonnade.deploy.doctor.checklist import Check, Checklist
from colonnade.deploy.doctor.self_report import SelfReport, compare, compare_rows
from colonnade.errors import AuthError, PeerRestarted, PeerUnreachable, ProtocolError, WireError
from colonnade.models.estimate import TrafficEstimate, is_at_most
from colonnade.plans.plan import Plan
from colonnade.secret import Secret
from colonnade.text import data_size
from colonnade.wire.certs.credentials import Credentials
from colonnade.wire.channel import Channel
from colonnade.wire.message import Message, UInt8Array
from colonnade.wire.recording.recording import Recording

if TYPE_CHECKING:
    from colonnade.wire.grpc.transport import GrpcTransport

MOST_SKEW_S = 60.0
SMALL_BYTES = 256 * 1024
LARGE_BYTES = 4 * 1024 * 1024
N_PINGS = 5
MOST_PROBES = 16


@dataclass(frozen=True)
class Report(Message, kind="doctor/report", reveals={Secret.IDS}):
    """What a party tells about itself: an `SelfReport` as JSON."""

    text: str


@dataclass(frozen=True)
class Probe(Message, kind="doctor/probe"):
    """Something to be sent back at once, with the sender's clock; the last one is marked."""

    number: int
    last: int
    clock: float
    payload: UInt8Array


@dataclass(frozen=True)
class LineMeasurement:
    """What was measured of the line to a peer: seconds of a round trip, bytes per second, seconds its clock is ahead.

    >>> LineMeasurement(latency=0.05, bandwidth=1e7, ahead=-0.2).ahead
    -0.2
    """

    latency: float
    bandwidth: float
    ahead: float


@dataclass(frozen=True)
class PeerProbe:
    """A party on its round."""

    plan: Plan
    name: str
    mine: SelfReport
    credentials: Credentials | None
    listen: str | None
    wait: float
    clock: Callable[[], float] = time.time
    traffic: Mapping[str, TrafficEstimate] = field(default_factory=dict)

    def visit_all(self, told: Callable[[Check], None]) -> dict[str, list[Check]]:
        """Visit everybody at the same time; returns what was found, by peer."""
        transports = self._transports()
        done: queue.Queue[tuple[str, list[Check]]] = queue.Queue()
        by_peer: dict[str, list[Check]] = {}
        try:
            for transport in dict.fromkeys(transports.values()):
                transport.open()
            for peer in transports:
                visit = threading.Thread(
                    target=lambda peer: done.put((peer, self._visit(peer, transports[peer]))), args=(peer,), daemon=True
                )
                visit.start()
            while len(by_peer) < len(transports):
                peer, checks = done.get()
                by_peer[peer] = checks
                for check in checks:
                    told(check)
            return by_peer
        finally:
            for transport in dict.fromkeys(transports.values()):
                transport.close()

    @property
    def _addresses(self) -> dict[str, str | None]:
        assert self.plan.network is not None
        return self.plan.network.addresses(self.plan.roles.parties)

    def _dials(self, peer: str) -> bool:
        """Whether this party dials the peer; as in a run, where both could listen, the later one of the roles does."""
        names = self.plan.roles.parties
        earlier = names.index(peer) < names.index(self.name)
        return self._addresses[peer] is not None and (self.listen is None or earlier)

    def _transports(self) -> dict[str, GrpcTransport]:
        """For every peer one of its own, so that what goes wrong with one stays there, but one for all who dial."""
        from colonnade.wire.grpc.link import Patience
        from colonnade.wire.grpc.transport import GrpcTransport

        # Frequent signs of life carry the acknowledgements that the last messages wait for.
        patience = Patience(self.wait, self.wait, silence=10.0, message=max(self.wait, 120.0), heartbeat=0.25)

        def transport(addresses: Mapping[str, str | None]) -> GrpcTransport:
            made = GrpcTransport(addresses, credentials=self.credentials, patience=patience)
            made.bind(self.name, tuple(addresses), {"protocol": "colonnade doctor"})
            return made

        others = [peer for peer in self.plan.roles.parties if peer != self.name]
        transports = {
            peer: transport({peer: self._addresses[peer], self.name: None}) for peer in others if self._dials(peer)
        }
        coming = [peer for peer in others if peer not in transports]
        if coming and self.listen is not None:
            transports |= dict.fromkeys(coming, transport({self.name: self.listen, **dict.fromkeys(coming)}))
        return transports

    def _visit(self, peer: str, transport: GrpcTransport) -> list[Check]:
        found = Checklist(peer)
        try:
            self._talk(peer, transport, found)
        except PeerRestarted:
            error = PeerUnreachable(f"The doctor at {peer} was restarted. Start it again at both parties.")
            found.fail("reach", error)
        except PeerUnreachable:
            found.fail("reach", self._explained(peer, transport))
        except WireError as error:
            found.fail("reach", error)
        return found.all

    def _talk(self, peer: str, transport: GrpcTransport, found: Checklist) -> None:
        channel, dials, holders = self._channel(peer, transport), self._dials(peer), self.plan.roles.holders
        mine = replace(self.mine, sizes=asdict(self.traffic.get(peer, TrafficEstimate())))
        channel.send(Report(mine.to_json()))
        theirs = SelfReport.read(channel.receive(Report).text, peer)
        found.good("reach", f"{self.name} reaches {peer}" if dials else f"{peer} reaches {self.name}")
        self._look_at_certificate(peer, transport, found)
        compare(self.name, self.mine, peer, theirs, found)
        if {self.name, peer} <= set(holders):
            compare_rows(self.name, self.mine, peer, theirs, found)
        # The party that dials asks last: it then has all it needs, and may leave.
        if dials:
            self._answer(channel)
        link = self._ask(channel)
        if not dials:
            self._answer(channel)
        transport.flush(peer, 3.0)
        self._judge(peer, link, theirs, found)

    def _channel(self, peer: str, transport: GrpcTransport) -> Channel:
        return Channel(peer, transport, Recording(self.name, "digests"))

    def _look_at_certificate(self, peer: str, transport: GrpcTransport, found: Checklist) -> None:
        if self.credentials is None:
            return
        shown = transport.identity(peer)
        assert shown is not None, "this peer was just spoken with over TLS"
        found.good("certificate", f"TLS on, peer {peer}, fingerprint {shown.words}")

    def _ask(self, channel: Channel) -> LineMeasurement:
        """Measure the line."""
        ahead: list[float] = []

        def trip(number: int, n_bytes: int, *, last: bool = False) -> float:
            begun, at = time.perf_counter(), self.clock()
            channel.send(Probe(number, int(last), at, np.zeros(n_bytes, np.uint8)))
            answer = channel.receive(Probe)
            took = time.perf_counter() - begun
            ahead.append(answer.clock - at - took / 2)
            return took

        latency = median([trip(number, 0) for number in range(N_PINGS)])
        size, took = SMALL_BYTES, trip(N_PINGS, SMALL_BYTES)
        if took < 1.0:
            size, took = LARGE_BYTES, trip(N_PINGS + 1, LARGE_BYTES)
        trip(N_PINGS + 2, 0, last=True)
        return LineMeasurement(latency, 2 * size / max(took - latency, 1e-6), median(ahead[:N_PINGS]))

    def _answer(self, channel: Channel) -> None:
        """Let the peer measure the line."""
        for _ in range(MOST_PROBES):
            probe = channel.receive(Probe)
            channel.send(replace(probe, clock=self.clock()))
            if probe.last:
                return
        raise ProtocolError(f"{channel.peer} asks without end. Install the same version at both.")

    def _judge(self, peer: str, link: LineMeasurement, theirs: SelfReport, found: Checklist) -> None:
        if abs(link.ahead) > MOST_SKEW_S:
            words = f"{peer}'s clock is {abs(link.ahead):.0f} s {'ahead' if link.ahead > 0 else 'behind'}"
            found.fail("clock", AuthError(f"{words}. Set both by a time server, for certificates go by the clock."))
        else:
            found.good("clock", f"{abs(link.ahead):.1f} s apart")
        found.good("line", f"{1000 * link.latency:.1f} ms for a round trip, {link.bandwidth / 1e6:.1f} MB/s")
        if self.plan.model is None:
            return
        expected = self.traffic.get(peer, TrafficEstimate()).compared(theirs.traffic)
        if not expected.total:
            return
        most = "at most about" if is_at_most(self.plan.model.build()) else "about"
        seconds = expected.seconds(link.latency, link.bandwidth)
        words = f"training sends {most} {data_size(expected.total)} in {expected.round_trips:,} round trips"
        found.note("estimate", f"{words}, which takes this line {most} {_duration(seconds)}, besides computing")

    def _explained(self, peer: str, transport: GrpcTransport) -> WireError:
        """Why a peer did not answer."""
        because = transport.refused.get(peer) or transport.refused.get("Somebody")
        if because is not None:
            return AuthError(f"{self.name} turned {peer} away: {because}")
        if not self._dials(peer):
            return PeerUnreachable(
                f"{peer} did not come to {self.listen} within {self.wait:g} s. Run the doctor there at the same "
                "time and read what it says; let the firewall of this machine pass the port."
            )
        address = self._addresses[peer]
        assert address is not None
        return PeerUnreachable(f"{peer} did not answer at {address} within {self.wait:g} s: {_trouble(address)}")


def _trouble(address: str) -> str:
    """Why an address cannot be reached, and what to do."""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=5):
            return "something listens there, but it is not the doctor. Run the doctor there at the same time."
    except socket.gaierror:
        return "its name is not known. Correct the address in the plan, or have the name published."
    except ConnectionRefusedError:
        return "the machine is there, but nothing listens. Run the doctor there at the same time, with the same plan."
    except TimeoutError:
        return "nothing comes back. Let the firewalls on the way pass the port, and check the address."
    except OSError as error:
        return f"{error.strerror or error}. Check the address and the network."


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
