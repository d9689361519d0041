"""Parties in processes of their own."""

import json
import os
import random
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest

from colonnade.privacy.ledger import Ledger
from colonnade.testing.ports import free_port
from colonnade.wire.certs import authority as certs
from colonnade.wire.recording.recording import Transcript
from tests.e2e.forked import Forked

PARTY = Path(__file__).with_name("party.py")
collect_ignore = [PARTY.name]
SECONDS = 180


def start(config, log, before=()):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    if not before:
        return Forked(PARTY, [json.dumps(config)], environment, log)
    command = [*before, sys.executable, str(PARTY), json.dumps(config)]
    with log.open("ab") as file:
        return subprocess.Popen(command, env=environment, stdout=file, stderr=file)


def endings(folder, names):
    """All that must be equal when a run is repeated, and that somebody could look at afterwards."""
    left = {}
    for name in names:
        transcript = Transcript.load(folder / name / "transcript")
        left[name] = {
            "result": (folder / name / "result").read_bytes(),
            "messages": transcript.digests(),
            "numbers": Counter("send" if entry.sent else "receive" for entry in transcript.entries),
            # Between processes these runs are seeded, so their noise is known; in one process it counts as noise.
            "ledger": sum(
                (
                    Counter({event.with_known_noise(): n})
                    for event, n in Ledger(path=folder / name / "ledger").events.items()
                ),
                Counter(),
            ),
        }
    return left


def parties(features, arbiter=None, server=None, **_):
    """Who takes part."""
    return ("bank", *features, *(name for name in (arbiter, server) if name is not None))


class Federation:
    """The parties of one run, each of which can be started, disturbed and killed by itself."""

    def __init__(self, folder, protocol, features, **settings):
        self.folder, self.names, self.processes = folder, parties(features, **settings), {}
        self.config = {"protocol": protocol, "features": features, "folder": str(folder), **settings}
        # Those with features need not be reached: they have no line to each other.
        reached = {name: f"127.0.0.1:{free_port()}" for name in self.names if name not in features}
        self.config.setdefault("addresses", {**dict.fromkeys(self.names), **reached})

    def start(self, *names, before=(), **changes):
        for name in names or self.names:
            self.processes[name] = start({**self.config, "name": name, **changes}, self.log(name), before)

    def log(self, name):
        return self.folder / f"{name}.log"

    def wait(self, name):
        """How a party's process ends."""
        try:
            return self.processes[name].wait(SECONDS)
        except subprocess.TimeoutExpired:
            pytest.fail(f"{name} did not end within {SECONDS} s; the parties said:\n{self.said()}")

    def finish(self):
        """Wait until all have come to a good end; returns what they leave."""
        codes = {name: self.wait(name) for name in self.names}
        assert set(codes.values()) == {0}, f"{codes}; the parties said:\n{self.said()}"
        assert {self.status(name)["status"] for name in self.names} == {"finished"}
        return endings(self.folder, self.names)

    def status(self, name):
        return json.loads((self.folder / name / "run.json").read_text())

    def said(self):
        return "\n".join(f"{name}: {self.log(name).read_text()}" for name in self.names if self.log(name).exists())

    def stop(self):
        for process in self.processes.values():
            if process.poll() is None:
                process.kill()
            process.wait()


@pytest.fixture
def federation(tmp_path):
    """Makes federations whose processes end with the test."""
    made = []

    def make(protocol="walk", features=("shop",), **settings):
        made.append(Federation(tmp_path, protocol, list(features), **settings))
        return made[-1]

    yield make
    for each in made:
        each.stop()


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory):
    """What a protocol leaves when all its parties live undisturbed in one process, without any network."""
    known = {}

    def run(protocol="walk", features=("shop",), **settings):
        key = json.dumps([protocol, features, settings])
        if key not in known:
            folder = tmp_path_factory.mktemp("undisturbed")
            config = {"protocol": protocol, "features": features, "folder": str(folder), "name": None, **settings}
            process = start(config, folder / "log")
            assert process.wait(SECONDS) == 0, (folder / "log").read_text()
            known[key] = endings(folder, parties(features, **settings))
        return known[key]

    return run


@pytest.fixture(scope="session")
def certificates(tmp_path_factory):
    """A folder with certificates of all parties."""
    folder = tmp_path_factory.mktemp("certificates")
    certs.init(folder)
    for name in ("bank", "shop", "telco"):
        certs.issue(folder, name)
    return str(folder)


class Proxy:
    """A bad network: it delays everything, and cuts all connections now and then."""

    def __init__(self, target, *, delay=0.02, cuts=(0.2, 0.8), seed=0):
        host, _, port = target.rpartition(":")
        self.target, self.delay, self.cuts, self.draw = (host, int(port)), delay, cuts, random.Random(seed)
        self.open, self.n_cuts, self.closing = [], 0, threading.Event()
        self.server = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self.server.getsockname()[1]}"
        for act in (self.accept, self.cut):
            threading.Thread(target=act, daemon=True).start()

    def accept(self):
        while not self.closing.is_set():
            try:
                near, _ = self.server.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(self.target, timeout=5)
            except OSError:
                near.close()
                continue
            self.open += [near, far]
            for source, sink in ((near, far), (far, near)):
                threading.Thread(target=self.pump, args=(source, sink), daemon=True).start()

    def pump(self, source, sink):
        with suppress(OSError):
            while data := source.recv(65536):
                time.sleep(self.delay)
                sink.sendall(data)
        for end in (source, sink):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def cut(self):
        while not self.closing.wait(self.draw.uniform(*self.cuts)):
            cut, self.open = self.open, []
            self.n_cuts += len(cut) // 2
            for end in cut:
                with suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
                end.close()

    def close(self):
        self.closing.set()
        self.server.close()
        for end in self.open:
            end.close()


@pytest.fixture
def proxy():
    made = []

    def make(target, **settings):
        made.append(Proxy(target, **settings))
        return made[-1]

    yield make
    for each in made:
        each.close()
