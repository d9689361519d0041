"""Rendezvous: how the parties of a run over gRPC come together, go on and leave, by notes between their runners.

The first party of the roles leads.

    every other party                       leader
         ready ─────────────────────────────▶         which checkpoints it holds; said again after `restart`
         ◀───────────────────────────── start         from which checkpoint all go on, with which processes
         holds ─────────────────────────────▶         the number of its newest checkpoint
         ◀─────────────────────────── settled         the newest checkpoint that all hold
         done ⇄ done                                  it has come to its end; every pair says so
         ◀─────────────────────────────── end         all have come to their end
         left ──────────────────────────────▶         it has written that down
         ◀───────────────────────────── leave         all have

A party that was started again makes all others raise `PeerRestarted`, upon which `join` meets again. Anybody may say
`failed`, with the reason.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable, Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from colonnade.errors import AuthError, PeerRestarted, PeerUnreachable, ProtocolError
from colonnade.wire.grpc.link import Connection, Link, Patience
from colonnade.wire.transport import NAME_BYTES, EpochStart, HeldCheckpoint, next_start, peer_failed

_MANY = 2**32

_log = logging.getLogger(__name__)


class Rendezvous:
    """One party's part in it, with its links to the others."""

    def __init__(
        self,
        name: str,
        leader: str,
        peers: tuple[str, ...],
        patience: Patience,
        *,
        spill: Path | None = None,
        on_line: Callable[[str, bool], None] = lambda peer, is_there: None,
    ) -> None:
        self.name, self.leader, self.leads = name, leader, name == leader
        self.epoch = 0
        # Incarnations of one party sort in the order in which its processes began.
        self.incarnation = time.time_ns().to_bytes(8, "big") + secrets.token_bytes(8)
        self.on_settled: Callable[[int], None] = lambda number: None
        self.links = {
            peer: Link(peer, spill=spill, on_control=self.hear, on_line=self._announce, heartbeat_s=patience.heartbeat)
            for peer in peers
        }
        self._patience, self._on_line, self._gone = patience, on_line, set[str]()
        self._changed = threading.Condition()
        self._ready: dict[str, tuple[int, HeldCheckpoint]] = {}
        self._begun: dict[str, int] = {}
        self._done: dict[str, int] = {}
        self._left: set[str] = set()
        self._checkpoints: dict[str, int] = {}
        self._settled: int | None = None
        self._settling = threading.Lock()
        self._start: EpochStart | None = None
        self._owes_ready = False
        self._ended = ""
        self._interrupted: str | None = None
        self._failure: Exception | None = None

    # Coming together.

    def call(self) -> None:
        """Leave the last epoch; as the leader, call the others together."""
        self._ended, self._owes_ready = "", not self.leads
        for link in self.links.values():
            link.leave(self.epoch)
            link.drop_unsent()
            if self.leads:
                link.put_control({"restart": self.epoch})

    def await_start(self, held: HeldCheckpoint, seconds: float) -> EpochStart | None:
        """Wait for all others, but not longer than this; returns how all go on, or None if some are still absent."""
        with self._changed:
            if (start := self._next_start(held)) is None:
                self._raise_failure()
                if self._owes_ready or (self._interrupted is not None and not self.leads):
                    self._interrupted, self._owes_ready = None, False
                    self.links[self.leader].put_control({"ready": list(held), "epoch": self.epoch})
                self._changed.wait(seconds)
                return None
        with self._settling, self._changed:
            self._settled = None
        return start

    def absent(self) -> list[str]:
        """The parties that this one waits for."""
        if self.leads:
            return [peer for peer in self.links if peer not in self._ready]
        return [] if self.links[self.leader].connected else [self.leader]

    def admit(self, link: Link, incarnation: bytes, *, seen: int, cancel: Callable[[], Any]) -> Connection:
        """Let a process of a peer go on over a new connection, behind the envelopes that it has seen."""
        with self._changed, link.lock:
            if link.connected and incarnation < (link.peer_incarnation or b""):
                raise AuthError(
                    f"{link.peer} was started a second time while this process of it was running. Run each party once."
                )
            if seen > link.sent:
                raise ProtocolError(f"{link.peer} claims to have received what was never sent to it. It is faulty.")
            if incarnation != link.peer_incarnation:
                if link.peer_incarnation is not None:
                    self._interrupted = link.peer if link.peer == self.leader else self._interrupted or link.peer
                    self._changed.notify_all()
                self._succeed(link, incarnation)
            connection = link.attach(seen, cancel)
        self._wake()
        return connection

    def _next_start(self, held: HeldCheckpoint) -> EpochStart | None:
        if self.leads:
            self._begin_if_all_ready(held)
        if self._start is None or self._start.epoch <= self.epoch:
            return None
        # Looked at before `restart`: a party called back right behind a beginning answers as one that has begun.
        self.epoch = self._start.epoch
        return self._start

    def _begin_if_all_ready(self, held: HeldCheckpoint) -> None:
        """As the leader: begin a new epoch; called under the lock, so that no peer starts again in between."""
        if self._ready.keys() >= self.links.keys():
            epoch = 1 + max([self.epoch, *(epoch for epoch, _ in self._ready.values())])
            all_held = {self.name: held, **{peer: theirs for peer, (_, theirs) in self._ready.items()}}
            self._start = next_start(epoch, all_held)
            self._ready.clear()
            self._left.clear()
            self._checkpoints.clear()
            self._begun = dict.fromkeys(self.links, epoch)
            self._interrupted = None
            processes = {peer: link.peer_incarnation for peer, link in self.links.items()}
            note = {"start": epoch, "from": self._start.common, "run": self._start.run, "processes": processes}
            for link in self.links.values():
                link.put_control(note)

    def _go_on_with(self, processes: Mapping[str, Any]) -> None:
        """Take up the links to the processes that an epoch begins with, be they connected already or not."""
        for peer, incarnation in processes.items():
            link = self.links.get(peer)
            # A process that has a successor already interrupts this epoch as well.
            if link is not None and incarnation >= (link.peer_incarnation or b""):
                if link.peer_incarnation != incarnation:
                    self._succeed(link, incarnation)
                if self._interrupted == peer:
                    self._interrupted = None

    def _succeed(self, link: Link, incarnation: bytes) -> None:
        """Note that the peer is another process than before."""
        with link.lock:
            if link.peer_incarnation is not None:
                link.reset()
                for said in (self._ready, self._begun, self._done):
                    said.pop(link.peer, None)
                self._left.discard(link.peer)
            link.peer_incarnation = incarnation

    # Checkpoints.

    def checkpointed(self, number: int) -> None:
        """Tell the leader that this party holds a checkpoint, so that older ones can be deleted."""
        if self.leads:
            with self._changed:
                self._note_checkpoint(self.name, number)
            self.settle()
        else:
            self.links[self.leader].put_control({"holds": number})

    def settle(self) -> None:
        """Act on what all parties hold by now; deleting files takes longer than gRPC's thread can spare."""
        if self._settled is not None:
            with self._settling:
                with self._changed:
                    number, self._settled = self._settled, None
                if number is not None:
                    self.on_settled(number)

    def _note_checkpoint(self, party: str, number: int) -> None:
        self._checkpoints[party] = number
        if len(self._checkpoints) == len(self.links) + 1:
            settled = min(self._checkpoints.values())
            for link in self.links.values():
                link.put_control({"settled": settled})
            self._settled = settled

    # The end.

    def finish(self, on_end: Callable[[], None]) -> None:
        """Wait until all parties have come to the end and know it: until then any of them may need this one again."""
        for link in self.links.values():
            link.put_control({"done": self.epoch})
        if self.leads:
            for peer, link in self.links.items():
                self._await(link, partial(self.has_finished, peer))
            for link in self.links.values():
                link.put_control({"end": self.epoch})
            self._linger(lambda: self._left.issuperset(self.links))
            on_end()
            self._ended = "leave"
            for link in self.links.values():
                link.put_control({"leave": self.epoch})
            self.drain(self.links.values(), seconds=3.0, even_if_cut=False)
        else:
            link = self.links[self.leader]
            self._await(link, lambda: self._ended in ("end", "leave"))
            on_end()
            link.put_control({"left": self.epoch})
            self._linger(lambda: self.over)

    @property
    def over(self) -> bool:
        """Whether all parties have written down the end; who calls now wants this party's next run."""
        return self._ended == "leave"

    @property
    def ending(self) -> bool:
        """Whether all parties have come to the end; a peer that has left may be at its next run already."""
        return bool(self._ended)

    def has_finished(self, peer: str) -> bool:
        """Whether a peer has come to its end in this epoch."""
        return self._done.get(peer) == self.epoch

    def tell_failure(self, note: Mapping[str, str]) -> None:
        """Tell all peers that were met why this party stops."""
        met = [link for link in self.links.values() if link.peer_incarnation is not None]
        for link in met:
            link.drop_unsent()
            link.put_control(dict(note))
        self.drain(met, seconds=3.0, even_if_cut=True)
        self.drain(met, seconds=7.0, even_if_cut=False)

    def drain(self, links: Collection[Link], *, seconds: float, even_if_cut: bool) -> None:
        """Wait until peers have acknowledged everything; `even_if_cut`, also peers cut off that have not left."""
        deadline = time.monotonic() + seconds
        for link in links:
            while not link.drained and (link.connected or (even_if_cut and link.peer not in self._left)):
                if time.monotonic() > deadline:
                    return
                link.news.wait(0.1)

    def _await(self, link: Link, condition: Callable[[], bool]) -> None:
        """Wait for a note of a peer, who may have much to do before."""
        begun = time.monotonic()
        with self._changed:
            while not condition():
                self._heed()
                self.require_back(link, begun)
                self._changed.wait(0.2)

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
        # Only the leader decides whether all wait for a peer that was started again: the run may have ended.
        if self.leader in (self.name, self._interrupted):
            self.check()

    # What goes wrong.

    def _announce(self, peer: str, is_there: bool) -> None:
        """Tell the operator at once that a peer was lost in the middle of a run, or has come back."""
        if is_there and peer in self._gone:
            self._gone.discard(peer)
            _log.warning("%s: %s is back.", self.name, peer)
            self._on_line(peer, True)
        elif not is_there and self.epoch and not (self._ended or self._failure or self._done.get(peer) == self.epoch):
            self._gone.add(peer)
            _log.warning(
                "%s: %s is gone, its connection broke. %s waits up to %.0f s. If %s does not come back by itself, "
                "start it again with --resume.",
                *(self.name, peer, self.name, self._patience.rejoin, peer),
            )
            self._on_line(peer, False)

    def check(self) -> None:
        """Raise what keeps the run from going on: a failure somewhere, or a peer that was started again."""
        self._raise_failure()
        interrupted = self._interrupted
        if interrupted is not None:
            raise PeerRestarted(f"{interrupted} was started again; {self.name} goes back to the last checkpoint.")

    def fail_locally(self, error: Exception) -> None:
        """Note an error of this party's own side, which its protocol raises at the next message."""
        with self._changed:
            self._failure = self._failure or error
            self._changed.notify_all()
        self._wake()

    def require_back(self, link: Link, begun: float) -> None:
        """Refuse to wait any longer for a peer whose connection broke."""
        away = 0.0 if link.connected else time.monotonic() - max(link.heard_at, begun)
        if away > self._patience.rejoin:
            raise PeerUnreachable(
                f"{self.name} waits for {link.peer}, whose connection broke and who did not come back within "
                f"{away:.0f} s. Start {link.peer} again with --resume, then this party likewise."
            )

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _wake(self) -> None:
        for link in self.links.values():
            link.news.give()

    # What peers say.

    def hear(self, peer: str, incarnation: bytes | None, note: dict[str, Any]) -> None:
        """Take in a note of a peer."""
        with self._changed:
            if incarnation != self.links[peer].peer_incarnation:
                return  # the peer was started again since
            match note:
                case {"ready": [int(newest), bytes(folder), bytes(run)], "epoch": int(epoch)} if (
                    self.leads and newest >= 0 and 0 <= epoch < _MANY and len(folder) == NAME_BYTES
                ):
                    # What was said before the peer's present epoch is stale.
                    if epoch >= self._begun.get(peer, 0):
                        self._ready[peer] = epoch, HeldCheckpoint(newest, folder, run)
                        self._interrupted = self._interrupted or peer
                case {"holds": int(number)} if self.leads:
                    self._note_checkpoint(peer, number)
                case {"left": int(epoch)} if self.leads:
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
                        self._start = EpochStart(epoch, common, run)
                        self._go_on_with({**processes, self.leader: incarnation})
                case {"settled": int(number)} if peer == self.leader:
                    self._settled = number
                case {"done": int(epoch)}:
                    self._done[peer] = epoch
                case {"end": int(epoch)} | {"leave": int(epoch)} if peer == self.leader:
                    if epoch == self.epoch:
                        self._ended = "end" if "end" in note else "leave"
                case {"failed": str(words), "at": str(at)}:
                    self._left.add(peer)
                    self._failure = self._failure or peer_failed(peer, words, at)
                case _:
                    self._failure = self._failure or ProtocolError(
                        f"{peer} sent a control message that this version does not know."
                    )
            self._changed.notify_all()
        self._wake()
