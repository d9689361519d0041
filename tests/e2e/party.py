"""One party in a process of its own, or a whole simulation: what the end-to-end tests start, disturb and kill.

python party.py '{"protocol": "walk", "name": "bank", "folder": ..., ...}'
"""

import itertools
import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from colonnade.align.rr22 import Running
from colonnade.errors import ColonnadeError, DataError
from colonnade.privacy import ledger
from colonnade.privacy.mechanisms import GaussianMechanism
from colonnade.roles import Roles
from colonnade.runtime.join import join
from colonnade.runtime.party import Party
from colonnade.runtime.protocol import private_randomness
from colonnade.runtime.session import connect
from colonnade.runtime.simulate import Simulation, simulate
from colonnade.secret import Secret
from colonnade.storage import pack, write_atomically
from colonnade.tables.table import Table
from colonnade.wire.certs.credentials import Credentials
from colonnade.wire.channel import Channel
from colonnade.wire.grpc.link import Patience
from colonnade.wire.grpc.rendezvous import Rendezvous
from colonnade.wire.grpc.streams import Streams
from colonnade.wire.grpc.transport import GrpcTransport
from colonnade.wire.message import Float64Array, Message

CONFIG = json.loads(sys.argv[1])
SEED = 3
ROLES = Roles(
    label="bank", features=tuple(CONFIG["features"]), arbiter=CONFIG.get("arbiter"), server=CONFIG.get("server")
)


@dataclass(frozen=True)
class There(Message, kind="walk/there", reveals={Secret.FEATURES}):
    value: Float64Array


@dataclass(frozen=True)
class Back(Message, kind="walk/back", reveals={Secret.LABELS}):
    value: Float64Array


class Walk:
    """A quick protocol with all that a crash could spoil.

    There is a value made once, noise that is paid for, numbers from the libraries' generators, two loops, and a last
    exchange with several messages in flight.
    """

    def __init__(self, party: Party) -> None:
        self.party, self.place = party, np.zeros(3)
        self.lines = party.feature_parties if party.holds_labels else (party.label_party,)
        self.secret = party.once("secret", lambda: self.released(np.random.rand(3), "secret"))

    def state(self):
        return {"place": self.place}

    def restore(self, tree):
        self.place = tree["place"]

    def released(self, values, *path):
        return GaussianMechanism(1.0, 2.0).release(
            values,
            random=self.party.random,
            ledger=self.party.ledger,
            protects=Secret.FEATURES,
            unit="record",
            path=path,
        )

    def go(self, loop, step):
        shown = self.released(self.place + self.secret + np.random.rand(3), loop, step)
        if self.party.holds_labels:
            self.place = self.place / 2 + sum(line.receive(There).value for line in self.lines)
            for line in self.lines:
                line.send(Back(shown / 4))
        else:
            self.lines[0].send(There(shown / 4))
            self.place = self.place / 2 + self.lines[0].receive(Back).value
        if [self.party.name, loop, step] == CONFIG.get("fails"):
            raise DataError("The vault is empty.")


def walk(party):
    walking = Walk(party)
    for loop in ("out", "home"):
        for step in party.steps(CONFIG.get("steps", 8), walking, name=loop):
            walking.go(loop, step)
    for number in range(5):
        if not party.holds_labels:
            party.label_party.send(There(walking.place * number))
    if party.holds_labels:
        for line in party.feature_parties:
            walking.place = walking.place + sum(line.receive(There).value for _ in range(5))
    return {"place": walking.place}


def split(party):
    """Train a split network, then predict with it."""
    from colonnade.models.networks.split import SplitClassifier

    model = SplitClassifier(epochs=3, batch_size=128, embedding=4, n_iter_no_change=2).fit(party)
    prediction = model.predict(party)
    return {"share": model.share(), "predicted": None if prediction is None else prediction.probabilities}


class AlignAndTell:
    """Align rows in several buckets, then tell what came of it."""

    __name__ = "align"
    aligns_rows = True
    then = None

    def own_copy(self):
        return self

    def described(self):
        return "align", {}

    def __call__(self, party):
        from colonnade.align import Align, Limits, Settings

        chosen = {name: CONFIG[name] for name in ("topology", "engine") if name in CONFIG}
        settings = Settings(**chosen, ids_per_bucket=30)
        alignment = Align(settings, limits=Limits(fewest=1))(party)
        aligned = party.aligned(alignment)
        return {"ids": aligned.own_table.ids.to_pylist(), "schedule": alignment.schedule, "learned": alignment.learned}


align = AlignAndTell()


def functional(party):
    """Boost curves, then predict with them."""
    from colonnade.models.functional.estimator import FunctionalBoost

    settings = {"protection": {"clip": 3.0, "noise": 0.1}, "stopping": {"max_steps": 12}}
    model = FunctionalBoost(**settings, inputs="partial").fit(party)
    prediction = model.predict(party)
    return {"share": model.share(), "predicted": None if prediction is None else prediction.values}


def moments(party):
    """Fit curves to noisy products, then predict with them."""
    from colonnade.models.functional.moment_regression import MomentRegression

    model = MomentRegression(clip_x=3.0, clip_y=3.0, epsilon=300.0).fit(party)
    prediction = model.predict(party)
    return {"share": model.share(), "predicted": None if prediction is None else prediction.values}


def catalogued(party):
    """Train a model of the catalogue, then predict with it."""
    from colonnade.catalogue import MODELS

    model = MODELS[CONFIG["model"]](**CONFIG["settings"]).fit(party)
    prediction = model.predict(party)
    return {"share": model.share(), "predicted": None if prediction is None else prediction.values}


def clusters():
    """Classes that every holder's columns tell something about; numbers to a regression."""
    generator = np.random.default_rng(SEED)
    labels = np.arange(120) % CONFIG.get("classes", 2)
    tables = {}
    for name in ROLES.holders:
        values = generator.standard_normal((120, 3)) + labels[:, None]
        data = {"id": np.arange(120), **{f"{name}{i}": values[:, i] for i in range(3)}}
        named = {"y": labels} if name == ROLES.label else {}
        tables[name] = Table.of(data | named, labels="y" if named else None, owner=name)
    return tables


def curves():
    from colonnade.curves import BSplines
    from colonnade.data.functional.generator import FunctionalSetting

    setting = FunctionalSetting(n=120, p=4, active=(1, 2), basis=BSplines((0.0, 1.0), 6))
    dealt = setting.draw_one(1).tables(len(ROLES.features))
    return dict(zip(ROLES.holders, dealt.values(), strict=True))


def tables_and_defences():
    if CONFIG["protocol"] == "align":
        held = {"bank": range(0, 90), "shop": range(20, 110), "telco": range(10, 70)}
        return {name: Table.of({"id": list(held[name])}) for name in ROLES.parties}, {}
    if CONFIG["protocol"] in ("functional", "moments"):
        return curves(), {}
    if CONFIG["protocol"] == "walk":
        rows = {"id": range(3), "x": [1.0, 2.0, 3.0]}
        return {name: Table.of(rows) for name in ROLES.parties}, {}
    if CONFIG["protocol"] == "catalogued":
        return clusters(), {}
    from colonnade.data import load
    from colonnade.defences.noise import GradientNoise

    whole = load("bank-shop-telco", rows=400) if len(ROLES.features) > 1 else load("breast-cancer")
    return whole.split(), {"bank": [GradientNoise(ratio=0.5)]}


ACTS = {
    "send": (Channel, "send"),
    "receive": (Channel, "receive"),
    "rename": (os, "replace"),
    "charge": (ledger, "append_durably"),
    "greet": (Streams, "_hello"),
    "accept": (Streams, "_accept"),
    "meet": (GrpcTransport, "meet"),
    "finish": (GrpcTransport, "finish"),
    "await": (Rendezvous, "_await"),
    "spawn": (subprocess, "Popen"),
    "side": (Running, "wait"),
}


def plant(act, number, when, deed):
    """Do something to oneself before or after the n-th time of an act; one that fails has no after."""
    owner, name = ACTS[act]
    honest, times = getattr(owner, name), itertools.count(1)

    def act_or_end(*arguments, **named):
        if when == "before" and next(times) == number:
            os.kill(os.getpid(), getattr(signal, deed))
        outcome = honest(*arguments, **named)
        if when == "after" and next(times) == number:
            os.kill(os.getpid(), getattr(signal, deed))
        return outcome

    setattr(owner, name, act_or_end)


def main() -> int:
    protocols = (walk, split, align, functional, moments, catalogued)
    (protocol,) = (each for each in protocols if each.__name__ == CONFIG["protocol"])
    if protocol not in (split, catalogued):
        # Walking takes no networks, and their import takes seconds.
        sys.modules["torch"] = None
    elif "regression" not in CONFIG.get("model", ""):
        import torch

        torch.set_num_threads(1)
    folder = Path(CONFIG["folder"])
    tables, defences = tables_and_defences()
    if CONFIG["name"] is None:
        run = simulate(
            protocol, tables, roles=ROLES, seed=SEED, defences=defences, directory=folder, checkpoint_every=3
        )
        for name, result in run.results.items():
            write_atomically(folder / name / "result", pack(result))
        return 0
    name = CONFIG["name"]
    own = folder / name
    for planted in CONFIG.get("planted", ()):
        plant(*planted)
    plan = Simulation(protocol, tables, ROLES, SEED, {}, {}, "audit").plan
    party = connect(
        plan,
        name,
        tables.get(name),
        transport=GrpcTransport(
            CONFIG["addresses"],
            credentials=Credentials.read(CONFIG["certs"], name) if CONFIG.get("certs") else None,
            patience=Patience(**{"start": 90, "rejoin": 90, "silence": 60, **CONFIG.get("patience", {})}),
        ),
        directory=own,
        aligns=protocol is align,
        random=private_randomness(SEED, name, plan),
        defences=defences.get(name, ()),
        checkpoint_every=3,
    )
    try:
        join(protocol, party, keep=lambda result: write_atomically(own / "result", pack(result)))
    except ColonnadeError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return error.exit_code
    return 0


sys.exit(main())
