"""A party is killed in the middle of a run and started again at once: how soon the other one takes its next step.

The clock runs from the moment at which the survivor has accepted the greeting of the new process until it has done a
step that it had not done before. In between, both go back to the last checkpoint and repeat 25 steps. What comes before
is told apart: `start_up` until the new process is ready to join, `connect` from there until it is accepted, in which it
imports PyTorch where that is installed. Parties that dial are killed, and parties that listen.
"""

from __future__ import annotations

import multiprocessing
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from multiprocessing.queues import SimpleQueue
from pathlib import Path
from statistics import median
from time import monotonic
from typing import Any

import numpy as np

from benchmarks.codec import Block, block
from benchmarks.loopback import BANK, SHOP, free_port, issue_certificates
from colonnade import Party, Roles, Table, join
from colonnade.errors import PeerRestarted
from colonnade.roles import PublicPlan
from colonnade.runtime.session import connect
from colonnade.wire.certs.credentials import Credentials
from colonnade.wire.grpc.link import Patience
from colonnade.wire.grpc.transport import GrpcTransport

TARGETS: Mapping[str, float] = {"resume_s": 2.0}
SPAWNING = multiprocessing.get_context("spawn")
EVERY = 50


@dataclass(frozen=True)
class Federation:
    """Where both parties' folders and certificates are, where the bank listens, and how long the run is."""

    folder: Path
    port: int
    n_steps: int

    def party(self, name: str, **settings: Any) -> Party:
        """One party's side."""
        return connect(
            PublicPlan(Roles(label=BANK, features=(SHOP,)), "sum"),
            name,
            Table.of({"id": [1, 2], "x": [0.0, 1.0]}, owner=name),
            transport=GrpcTransport(
                {BANK: f"127.0.0.1:{self.port}", SHOP: None},
                credentials=Credentials.read(self.folder, name),
                patience=Patience(start=60, rejoin=60, message=60),
            ),
            directory=self.folder / name,
            checkpoint_every=EVERY,
            **settings,
        )

    def add_up(self, party: Party) -> None:
        """Exchange a message at each step, and add up what came."""
        total, message = Total(), block(rows=64)
        (line,) = party.peers.values()
        for _ in party.steps(self.n_steps, total, name="sum"):
            line.send(message)
            total.values += line.receive(Block).values.sum()


class Total:
    """What a party has after some steps."""

    def __init__(self) -> None:
        self.values = np.zeros(1)

    def state(self) -> dict[str, Any]:
        return {"values": self.values}

    def restore(self, tree: dict[str, Any]) -> None:
        self.values = tree["values"]


def take_part(federation: Federation, name: str, started: SimpleQueue[float]) -> None:
    """The life of the process that is killed."""
    party = federation.party(name)
    started.put(monotonic())
    join(federation.add_up, party)


@dataclass
class Survivor:
    """The party that stays: it kills the other one, starts it again, and takes the times."""

    federation: Federation
    name: str
    restarted: list[float] = field(default_factory=list)
    accepted: list[float] = field(default_factory=list)
    went_on: list[float] = field(default_factory=list)
    furthest: int = 0

    def __post_init__(self) -> None:
        self.started: SimpleQueue[float] = SPAWNING.SimpleQueue()
        self.begin()

    def begin(self) -> None:
        """Start the other party's process."""
        peer = SHOP if self.name == BANK else BANK
        self.peer = SPAWNING.Process(target=take_part, args=(self.federation, peer, self.started), daemon=True)
        self.peer.start()

    def live(self) -> None:
        """Go through the run."""
        join(self.add_up, self.federation.party(self.name, watcher=self.watch))
        self.peer.join()

    def add_up(self, party: Party) -> None:
        """Do what both parties do, and note when the other one turns out to be new."""
        try:
            self.federation.add_up(party)
        except PeerRestarted:
            self.accepted.append(monotonic())
            raise

    def watch(self, party: str, loop: str, done: int, total: int, figures: Mapping[str, float]) -> None:
        """Called after each step."""
        if done <= self.furthest:
            return
        self.furthest = done
        if len(self.went_on) < len(self.accepted):
            self.went_on.append(monotonic())
        if done % (2 * EVERY) == EVERY + EVERY // 2:
            self.peer.kill()
            self.peer.join()
            self.restarted.append(monotonic())
            self.begin()

    def durations(self) -> dict[str, list[float]]:
        """How long each part took, each time."""
        _, *started = [self.started.get() for _ in range(1 + len(self.restarted))]
        parts = {
            "resume": (self.accepted, self.went_on),
            "start_up": (self.restarted, started),
            "connect": (started, self.accepted),
            "total": (self.restarted, self.went_on),
        }
        return {name: [e - b for b, e in zip(begin, end, strict=True)] for name, (begin, end) in parts.items()}


def measure(*, quick: bool) -> dict[str, float]:
    """The longest time to resume; by who was killed, the medians of it and of what came before."""
    kills = 1 if quick else 5
    durations = {}
    for victim, name in (("dialler", BANK), ("listener", SHOP)):
        with tempfile.TemporaryDirectory() as folder:
            issue_certificates(Path(folder))
            survivor = Survivor(Federation(Path(folder), free_port(), 2 * EVERY * kills + EVERY), name)
            survivor.live()
            durations[victim] = survivor.durations()
    return {
        "resume_s": max(max(parts["resume"]) for parts in durations.values()),
        **{f"{who}_{part}_s": median(d) for who, parts in durations.items() for part, d in parts.items()},
    }
