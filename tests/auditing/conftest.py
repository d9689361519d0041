"""A toy run whose leak is known exactly: the label party tells each feature party a hint about every row."""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from colonnade.attacks.base import ActiveAttack, Attack, Grant, Guess, Needs
from colonnade.attacks.view import View
from colonnade.privacy.ledger import Event
from colonnade.roles import Roles
from colonnade.runtime.join import join
from colonnade.runtime.party import Party
from colonnade.runtime.protocol import private_randomness
from colonnade.runtime.simulate import Run, simulate
from colonnade.secret import Secret
from colonnade.tables.table import Table
from colonnade.testing.ports import free_port
from colonnade.wire.message import Float32Array, Message


@dataclass(frozen=True)
class Hint(Message, kind="audit-tests/hint", reveals={Secret.LABELS}, per_row="values"):
    values: Float32Array


@dataclass(frozen=True)
class Thanks(Message, kind="audit-tests/thanks"):
    text: str


def hinting(strength: float, under: tuple[str, ...], epsilon: float | None) -> Callable[[Party], None]:
    def protocol(party: Party) -> None:
        rows = np.arange(len(party.own_table))
        if not party.holds_labels:
            party.label_party.receive(Hint, rows=rows, epoch=0)
            party.label_party.send(Thanks("thank you"))
            return
        classes, numbers = np.unique(np.asarray(party.own_table.labels), return_inverse=True)
        noise = party.random.generator("hint").normal(size=(len(rows), len(classes)))
        values = strength * np.eye(len(classes))[numbers] + noise
        if epsilon is not None:
            parameters = (("epsilon", epsilon), ("n_classes", float(len(classes))))
            party.ledger.spend(Event(Secret.LABELS, "label", "randomised-response", parameters, by="RandomisedLabels"))
        for line in party.feature_parties:
            line.send(Hint(values.astype(np.float32)), under=under, rows=rows, epoch=0)
        for line in party.feature_parties:
            line.receive(Thanks)

    return protocol


class ReadHint(Attack):
    """The largest coordinate of the hint is the class."""

    needs = Needs(messages=(Hint,))

    def __init__(self, shift: int = 0) -> None:
        self.shift = shift

    def guess(self, view: View) -> Guess:
        classes = view.row_means(Hint).argmax(axis=1)
        return Guess(np.arange(len(classes)), classes=(classes + self.shift) % view.grant.n_classes)


class RankByHint(Attack):
    """The last coordinate of the hint ranks the rows."""

    needs = Needs(messages=(Hint,))

    def guess(self, view: View) -> Guess:
        values = view.row_means(Hint).astype(np.float64)
        return Guess(np.arange(len(values)), scores=values[:, -1] - values[:, 0])


class NearestKnown(Attack):
    """The class of the nearest known row by the attacker's own columns."""

    needs = Needs(own_features=True, known_labels=3)

    def guess(self, view: View) -> Guess:
        table = view.own.table
        x = np.stack([table.column(name) for name in table.columns], axis=1)
        distances = np.linalg.norm(x[:, None] - x[view.grant.rows][None], axis=2)
        return Guess(np.arange(len(x)), classes=view.grant.labels[distances.argmin(axis=1)])


class TakePart(ActiveAttack):
    """A dishonest party reads the hint that it is sent."""

    needs = Needs(known_labels=2)

    def play(self, party: Party, honest: Callable[[Party], Any], grant: Grant) -> Guess:
        rows = np.arange(len(party.own_table))
        hint = party.label_party.receive(Hint, rows=rows, epoch=0)
        party.label_party.send(Thanks("thank you"))
        classes = hint.values.argmax(axis=1).astype(np.int64)
        classes[grant.rows] = grant.labels
        return Guess(rows, classes=classes)


class AboutModel(Attack):
    """Guesses a model."""

    needs = Needs()
    about = Secret.MODEL

    def guess(self, view: View) -> Guess:
        raise AssertionError("nobody can score this")


class Silent(Attack):
    """Guesses only what it was told."""

    needs = Needs(known_labels=1)

    def guess(self, view: View) -> Guess:
        return Guess(view.grant.rows, classes=view.grant.labels)


def run_of(
    *,
    strength: float = 8.0,
    signal: float = 0.0,
    n: int = 200,
    n_classes: int = 2,
    parties: tuple[str, ...] = ("shop",),
    under: tuple[str, ...] = (),
    epsilon: float | None = None,
    seed: int = 0,
    keep: Any = "audit",
    label_party: str = "bank",
    labels: Any = None,
) -> Run[Any]:
    """A run in which hints are as strong as told, and the first two columns of each feature party tell `signal`."""
    random = np.random.default_rng([seed, n, n_classes])
    numbers = random.permutation(np.arange(n) % n_classes)
    names = np.array([f"class {number}" for number in range(n_classes)])
    ids = [f"person {row}" for row in range(n)]
    tables = {label_party: Table.of({"id": ids, "y": names[numbers] if labels is None else labels}, labels="y")}
    for name in parties:
        columns = random.normal(size=(n, 4))
        columns[:, 0] += signal * numbers
        columns[:, 1] -= signal * numbers
        tables[name] = Table.of({"id": ids, **{f"x{i}": columns[:, i] for i in range(4)}})
    roles = Roles(label=label_party, features=parties)
    return simulate(hinting(strength, under, epsilon), tables, roles=roles, seed=seed, keep=keep)


@pytest.fixture(scope="session")
def toy() -> SimpleNamespace:
    return SimpleNamespace(
        run=run_of,
        Hint=Hint,
        ReadHint=ReadHint,
        RankByHint=RankByHint,
        NearestKnown=NearestKnown,
        TakePart=TakePart,
        AboutModel=AboutModel,
        Silent=Silent,
    )


@pytest.fixture
def deployed(tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """Runs protocols over gRPC on the loopback interface, each party in a thread of its own, with its own folder."""
    from colonnade.runtime.session import connect
    from colonnade.wire.grpc.link import Patience
    from colonnade.wire.grpc.transport import GrpcTransport

    def run(
        protocols: dict[str, Any], tables: Any, plan: Any, folder: str, *, seed: int = 0, **settings: dict[str, Any]
    ) -> dict[str, Any]:
        addresses = {**dict.fromkeys(plan.roles.parties), plan.roles.label: f"127.0.0.1:{free_port()}"}
        outcomes: dict[str, Any] = {}

        def live(name: str) -> None:
            try:
                party = connect(
                    plan,
                    name,
                    tables[name],
                    transport=GrpcTransport(
                        addresses,
                        credentials=None,
                        patience=Patience(start=60, rejoin=60, message=60, heartbeat=0.1),
                    ),
                    directory=tmp_path / folder / name,
                    random=private_randomness(seed, name, plan),
                    **settings.get(name, {}),
                )
                outcomes[name] = join(protocols[name], party)
            except BaseException as error:
                outcomes[name] = error

        threads = [threading.Thread(target=live, args=(name,), daemon=True) for name in plan.roles.parties]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
        failed = [outcome for outcome in outcomes.values() if isinstance(outcome, BaseException)]
        if failed:
            raise failed[0]
        assert outcomes.keys() == set(plan.roles.parties), "not all parties came to their end"
        return outcomes

    return run
