"""Parties that are killed again and again, wherever chance has it, end as if nothing had been.

They are threads of one process here, which meet far more interleavings in a minute than processes do; those of
tests/e2e are killed for real.
"""

import random
import shutil
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from colonnade.roles import Roles
from colonnade.runtime import checkpoint
from colonnade.runtime.join import join
from colonnade.runtime.protocol import private_randomness
from colonnade.runtime.session import NetworkSession, connect
from colonnade.runtime.simulate import Simulation, simulate
from colonnade.secret import Secret
from colonnade.tables.table import Table
from colonnade.testing.ports import free_port
from colonnade.wire.channel import Channel
from colonnade.wire.grpc.link import Patience
from colonnade.wire.grpc.rendezvous import Rendezvous
from colonnade.wire.grpc.transport import GrpcTransport
from colonnade.wire.message import Float64Array, Message

pytestmark = [pytest.mark.network, pytest.mark.slow]

ROLES = Roles(label="bank", features=("shop", "telco"))
ROWS = Table.of({"id": (1, 2, 3), "x": [1.0, 2.0, 3.0]})
PATIENT = Patience(start=60, rejoin=60, silence=20, message=60, heartbeat=0.1)
SEED = 5

ANYWHERE = [
    (Channel, "send"),
    (Channel, "receive"),
    (GrpcTransport, "meet"),
    (checkpoint, "write_tree"),
    (checkpoint.Checkpoints, "belong_to"),
    (checkpoint.Checkpoints, "resume"),
]
AT_THE_END = [(GrpcTransport, "finish"), (Rendezvous, "_await"), (Rendezvous, "_linger")]


class Killed(BaseException):
    """A party ends here, without a word."""


@dataclass(frozen=True)
class Word(Message, kind="kills/word", reveals={Secret.FEATURES}):
    value: Float64Array


class Sum:
    """What a party has come to."""

    def __init__(self):
        self.value = np.zeros(2)

    def state(self):
        return {"value": self.value}

    def restore(self, tree):
        self.value = tree["value"]


def walk(party):
    """Everybody tells everybody what it has come to, step after step."""
    own, lines = Sum(), list(party.peers.values())
    secret = party.once("secret", lambda: party.random.generator("secret").random(2))
    for loop in ("out", "home"):
        for step in party.steps(9, own, name=loop):
            for line in lines:
                line.send(Word(own.value + secret + step))
            own.value = own.value / 2 + sum(line.receive(Word).value for line in lines) / 5
    return own.value


PLAN = Simulation(walk, {}, ROLES, SEED, {}, {}, "audit").plan


@pytest.fixture
def dying(monkeypatch):
    """Plants places where a party dies, as `death` says by thread: where, and how often it passes there before.

    Threads take turns often, and messages to the runner are heard late now and then: that is when it matters.
    """
    here = threading.local()

    def plant(owner, name):
        honest = getattr(owner, name)

        def act(*args, **options):
            place, left = getattr(here, "death", None) or ("", 0)
            if place == name and left == 0:
                here.death = None
                raise Killed
            if place == name:
                here.death = place, left - 1
            return honest(*args, **options)

        monkeypatch.setattr(owner, name, act)

    for owner, name in ANYWHERE + AT_THE_END:
        plant(owner, name)
    say = NetworkSession.fail
    monkeypatch.setattr(NetworkSession, "fail", lambda *args: None if isinstance(args[-1], Killed) else say(*args))
    hear = Rendezvous.hear

    def hear_late(*args):
        hear(*args)
        if random.random() < 0.1:
            time.sleep(0.02 * random.random())

    monkeypatch.setattr(Rendezvous, "hear", hear_late)
    before = sys.getswitchinterval()
    sys.setswitchinterval(0.0005)
    yield here
    sys.setswitchinterval(before)


def lives(folder: Path, addresses, name, deaths, dying, loses_folder):
    """One party from its first life to its last."""
    for death in (*deaths, None):
        dying.death = death
        party = connect(
            PLAN,
            name,
            ROWS,
            transport=GrpcTransport(addresses, credentials=None, patience=PATIENT),
            directory=folder / name,
            random=private_randomness(SEED, name, PLAN),
            checkpoint_every=2,
        )
        try:
            return join(walk, party)
        except Killed:
            if loses_folder():
                shutil.rmtree(folder / name)
    raise AssertionError("it dies in its last life, too")


@pytest.mark.parametrize("seed", range(30))
def test_parties_that_are_killed_again_and_again_end_as_if_nothing_had_been(seed, dying, tmp_path):
    chance = random.Random(seed)
    places = [name for _, name in (AT_THE_END if seed % 3 == 1 else ANYWHERE + AT_THE_END)]
    n_before = 1 if seed % 3 == 1 else 14
    loses_folder = (lambda: chance.random() < 0.2) if seed % 3 == 2 else (lambda: False)
    addresses = {name: f"127.0.0.1:{free_port()}" for name in ROLES.parties}
    deaths = {
        name: [(chance.choice(places), chance.randrange(n_before)) for _ in range(chance.randrange(4))]
        for name in ROLES.parties
    }
    ends = {}

    def live(name):
        try:
            ends[name] = lives(tmp_path, addresses, name, deaths[name], dying, loses_folder)
        except BaseException as error:
            ends[name] = error

    threads = [threading.Thread(target=live, args=(name,), daemon=True) for name in ROLES.parties]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    wanted = simulate(walk, dict.fromkeys(ROLES.parties, ROWS), roles=ROLES, seed=SEED).results
    assert {name: np.array_equal(ends.get(name), wanted[name]) for name in wanted} == dict.fromkeys(wanted, True), (
        f"killed at {deaths}, they ended as {ends}"
    )
