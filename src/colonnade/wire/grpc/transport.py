"""GrpcTransport: frames between organisations, over one mutually authenticated stream per pair of parties.

`streams.py` makes the connections, `tls.py` protects them, `link.py` numbers and resends what crosses them, and
`rendezvous.py` brings the parties together and lets them go.

TLS hides the traffic from others and proves who is at the other end; it does not protect against the peer itself. What
the peer may learn is a matter of the protocol above.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from colonnade.errors import PeerUnreachable, PlanError
from colonnade.memory import keep_freed_memory
from colonnade.wire.codec import Frame
from colonnade.wire.grpc.link import Link, Patience
from colonnade.wire.grpc.rendezvous import Rendezvous
from colonnade.wire.grpc.streams import Streams
from colonnade.wire.transport import EpochStart, HeldCheckpoint, RunTransport, failure_note, peer_left, require_loopback

if TYPE_CHECKING:
    from colonnade.wire.certs.credentials import Credentials, Identity
    from colonnade.wire.grpc.tls import Tls


class GrpcTransport(RunTransport):
    """One party's end of the traffic with its peers, over gRPC with mutual TLS.

    Args:
        addresses: For every party `host:port` where it listens, or None if it only dials.
        credentials: This party's certificate and key; None sends everything in the clear, which is refused unless all
            addresses are on this machine.
        listen: Where to listen, if not at this party's address.
        patience: How long to wait for what.
        on_wait: Called now and then with who is being waited for, and for how many more seconds.
        on_line: Called with a peer and whether it is there when its connection breaks in the middle of a run, and when
            it has come back.
    """

    def __init__(
        self,
        addresses: Mapping[str, str | None],
        *,
        credentials: Credentials | None,
        listen: str | None = None,
        patience: Patience | None = None,
        on_wait: Callable[[Sequence[str], float], None] | None = None,
        on_line: Callable[[str, bool], None] = lambda peer, is_there: None,
    ) -> None:
        self.insecure = credentials is None
        self._addresses, self._credentials, self._listen = dict(addresses), credentials, listen
        self._patience = patience or Patience()
        self._on_wait = on_wait or (lambda names, seconds: None)
        self._on_line = on_line

    def bind(
        self, name: str, parties: Sequence[str], agreement: Mapping[str, str], *, spill: Path | None = None
    ) -> None:
        if set(self._addresses) != set(parties):
            raise PlanError(
                f"Every party needs an address or None, but addresses were given for {', '.join(self._addresses)} and "
                f"the parties are {', '.join(parties)}. Name them all."
            )
        self._tls: Tls | None = None
        if self._credentials is None:
            require_loopback((*self._addresses.values(), self._listen))
        else:
            from colonnade.wire.grpc.tls import Tls

            self._tls = Tls(name, self._credentials)
        self.name, self.agreement, leader = name, dict(agreement), parties[0]
        own = self._addresses[name]
        peers = tuple(peer for peer in parties if peer != name and (self._addresses[peer] or own))
        if name != leader and leader not in peers:
            raise PlanError(
                f"{name} and {leader} both have no address, so neither can be reached. Give one of them one."
            )
        self._rendezvous = Rendezvous(name, leader, peers, self._patience, spill=spill, on_line=self._on_line)
        self._streams = Streams(
            {party: self._addresses[party] for party in parties},
            self.agreement,
            self._rendezvous,
            tls=self._tls,
            listen=self._listen or own,
            patience=self._patience,
        )

    def open(self, on_settled: Callable[[int], None] = lambda number: None) -> None:
        # In `benchmarks/transport.py` transfers take 1.2 to 1.6 times as long without; gRPC's threads share two heaps.
        keep_freed_memory(2**25, heaps=2)
        self._rendezvous.on_settled = on_settled
        self._streams.open()

    def close(self) -> None:
        self._streams.close()

    @property
    def epoch(self) -> int:
        return self._rendezvous.epoch

    @property
    def peers(self) -> tuple[str, ...]:
        return tuple(self._rendezvous.links)

    def send(self, peer: str, frame: Frame) -> None:
        self.check()
        self._link(peer).put(frame, self.epoch)

    def receive(self, peer: str) -> Frame:
        link = self._link(peer)
        begun = time.monotonic()
        while True:
            # Asked before the frame is taken: a peer says `done` behind its last frame.
            done = self._rendezvous.has_finished(peer)
            frame = link.take(self.epoch)
            if frame is not None:
                return frame
            self.check()
            if done:
                raise peer_left(self.name, peer)
            self._rendezvous.require_back(link, begun)
            waited = time.monotonic() - begun
            if waited > self._patience.message:
                raise PeerUnreachable(
                    f"{self.name} waited {waited:.0f} s for {peer}, who is alive but sends nothing. "
                    "Look at its log, or allow more time in the plan."
                )
            link.news.wait(1.0 if link.connected else 0.2)

    def check(self) -> None:
        self._rendezvous.check()

    def meet(self, held: HeldCheckpoint) -> EpochStart:
        deadline = time.monotonic() + (self._patience.start if self.epoch == 0 else self._patience.rejoin)
        self._rendezvous.call()
        while True:
            left = deadline - time.monotonic()
            start = self._rendezvous.await_start(held, max(0.0, min(left, 1.0)))
            if start is not None:
                return start
            if left <= 0:
                raise PeerUnreachable(self._explain_absence())
            self._on_wait(self._absent(), left)

    def checkpointed(self, number: int) -> None:
        self._rendezvous.checkpointed(number)

    def finish(self, on_end: Callable[[], None] = lambda: None) -> None:
        """Wait until all parties have come to the end and know it.

        Args:
            on_end: Called once every party has finished. A party killed before it has persisted this, and back within
                `patience.silence`, still finds the others.
        """
        self._rendezvous.finish(on_end)

    def fail(self, error: BaseException, *, at: str = "") -> None:
        self._rendezvous.tell_failure(failure_note(error, at))

    def flush(self, peer: str, seconds: float) -> None:
        """Wait until a peer, if it is connected, has everything that was sent to it."""
        self._rendezvous.drain([self._link(peer)], seconds=seconds, even_if_cut=False)

    @property
    def refused(self) -> Mapping[str, str]:
        """Who was turned away, and why."""
        return self._streams.refused

    def identity(self, peer: str) -> Identity | None:
        return None if self._tls is None else self._tls.identity(peer)

    def _link(self, peer: str) -> Link:
        try:
            return self._rendezvous.links[peer]
        except KeyError:
            raise PlanError(
                f"There is no line from {self.name} to {peer}. Check the names, and that one of the two has an address."
            ) from None

    def _absent(self) -> list[str]:
        refused = self.refused
        return [f"{peer} (refused: {refused[peer]})" if peer in refused else peer for peer in self._rendezvous.absent()]

    def _explain_absence(self) -> str:
        absent = self._absent() or [f"{self._rendezvous.leader} (which waits for others)"]
        links = self._rendezvous.links
        strangers = [f" {who} was refused: {why}" for who, why in self.refused.items() if who not in links]
        # A peer that got through TLS made one handshake more, without a stream: it looked at this party's certificate.
        failed = 0 if self._tls is None else self._tls.failed_handshakes
        if failed > 0 and not self.refused and all(link.peer_incarnation is None for link in links.values()):
            strangers.append(
                f" Somebody tried to connect {failed} times and did not get through TLS: its certificate is missing, "
                "has expired or is signed by another authority than this party's, or it finds the same of this party's."
            )
        return (
            f"{self.name} waited for {', '.join(absent)} and gave up. Start them with the same plan, check the "
            f"addresses, and run `colonnade doctor` on both sides.{''.join(strangers)}"
        )
