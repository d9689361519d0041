"""Restarting a peer with other values: what the other parties say to it then.

A peer ends in the middle of a run and comes back with a label, a value of a column or an id that differs. It comes
either in a new folder, as a party does that lost its folder or corrected its table, or it claims to be in the run that
it left, which only a party does that breaks the rules (`claims`). Demanded is, of every other party:

- Somebody refuses, with the peer's name in the message.
- Or, of a peer in a new folder, nothing that was drawn serves twice: each message whose contents differ between two
  runs of the same tables differs from the message in the same place before the restart. If a party released something
  with noise before the restart, its ledger is charged for all of a run besides; if it answered encrypted values, the
  log of answers has grown.
- Or, of a peer that claims its run, the peer said the same again in all places, as far as a party can tell: a changed
  message that does not vary by itself (`Message.varies`) must have been refused.
"""

from __future__ import annotations

import itertools
import random
import shutil
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

from colonnade.curves.curves import Curves
from colonnade.errors import AuthError, ColonnadeError, PrivacyError
from colonnade.models.base import Estimator
from colonnade.privacy.ledger import Ledger
from colonnade.runtime.join import join
from colonnade.runtime.party import Defence, Party
from colonnade.runtime.session import NetworkSession, connect
from colonnade.runtime.simulate import Simulation, StateByTurn
from colonnade.tables.table import Table
from colonnade.testing.assertions import must
from colonnade.testing.ports import free_port
from colonnade.testing.setup import Setup
from colonnade.wire.channel import Channel
from colonnade.wire.codec import encode
from colonnade.wire.memory import MemoryNetwork
from colonnade.wire.message import Ciphertexts, Message
from colonnade.wire.transport import Transport

Change: TypeAlias = Literal["labels", "columns", "ids"]
Carrier: TypeAlias = Literal["memory", "grpc"]
Defences: TypeAlias = Mapping[str, Sequence[Defence]]

CHECKPOINT_EVERY = 2
COUNTS = "counts"
FEWEST_DRAWN = 4
"""How many bytes of a draw are not nought."""
SECONDS = 120.0


class Stopped(BaseException):
    """A party ends here, without a word."""


class Place(NamedTuple):
    """Where in a run a party says something."""

    sender: str
    receiver: str
    step: str
    number: int


@dataclass
class Life:
    """What one party does between two starts of its protocol.

    Attributes:
        said: Every message that the party sent, in its place.
        heard: Every message that the party received, in its place.
        n_acts: How many messages the party has sent or received.
        ledger: The party's ledger.
        n_counted: How many lines the log of answers had at the start.
    """

    said: dict[Place, Message] = field(default_factory=dict)
    heard: dict[Place, Message] = field(default_factory=dict)
    n_acts: int = 0
    ledger: Ledger = field(default_factory=Ledger)
    n_counted: int = 0

    @property
    def n_private(self) -> int:
        """How many private releases the ledger holds."""
        return sum(count for event, count in self.ledger.events.items() if event.is_private)


@dataclass
class Story:
    """All lives of all parties of one run, and how they ended.

    Attributes:
        lives: The lives of each party.
        ends: What each party's `join` returned or raised at last.
    """

    lives: dict[str, list[Life]] = field(default_factory=dict)
    ends: dict[str, Estimator | BaseException] = field(default_factory=dict)

    def last(self, name: str) -> Life:
        """A party's last life; an empty one if the party never began."""
        return (self.lives.get(name) or [Life()])[-1]

    def n_before(self, name: str) -> int:
        """How many of a party's lives were before the restart: none if it finished in its only one."""
        is_late = len(self.lives[name]) == 1 and not isinstance(self.ends.get(name), BaseException)
        return 0 if is_late else 1

    def refusal_of(self, peer: str) -> str | None:
        """What a party said that refused the peer by its name."""
        refusals = [str(end) for end in self.ends.values() if isinstance(end, PrivacyError | AuthError)]
        return next((words for words in refusals if peer in words), None)


def restarted_peers_learn_nothing(
    setup: Setup,
    *,
    defences: Defences | None = None,
    carrier: Carrier = "memory",
    peers: Sequence[str] | None = None,
    seeds: Sequence[int] = (0,),
) -> None:
    """Demand that a peer which restarts with other values is refused, or meets new draws and new charges.

    Args:
        setup: What is trained.
        defences: What each party holds.
        carrier: What moves frames: in memory all parties end and start again with the peer, over gRPC they live on.
        peers: Who restarts; the label party and the last feature party if None.
        seeds: From each a moment follows in which the peer ends.
    """
    given = defences or {}
    holders = peers or [name for name in (setup.roles.label, setup.roles.features[-1]) if name is not None]
    with tempfile.TemporaryDirectory() as directory:
        undisturbed = Path(directory) / "undisturbed"
        straight = _run_in_memory(setup, given, undisturbed, setup.tables)
        for name, end in straight.ends.items():
            must(not isinstance(end, BaseException), f"{name} should finish a run in peace, but ended with {end!r}.")
        (undisturbed / COUNTS).mkdir(exist_ok=True)  # A run that counts nothing leaves nothing there.
        for seed, peer in itertools.product(seeds, holders):
            moment = random.Random(f"{seed} {peer}").randrange(1, straight.last(peer).n_acts + 1)
            for change, claims in itertools.product(_changes(setup.tables[peer]), (False, True)):
                folder = Path(directory) / f"{seed} {peer} {change} {claims}"
                # A party counts over all its runs, and recognises its rows and columns by keys that outlive them.
                shutil.copytree(undisturbed / COUNTS, folder / COUNTS)
                _judge(_Restart(setup, given, folder, peer, moment, change, claims), carrier, straight)


@dataclass(frozen=True)
class _Restart:
    """One peer that ends after a number of acts and comes back with other values.

    Attributes:
        claims: Whether the peer claims to be in the run that it left.
    """

    setup: Setup
    defences: Defences
    folder: Path
    peer: str
    moment: int
    change: Change
    claims: bool

    @property
    def words(self) -> str:
        """What happens, for a sentence."""
        how = "claims to be in its run" if self.claims else "comes in a new folder"
        return f"{self.peer} restarts after act {self.moment} with other {self.change} and {how}"

    @property
    def tables(self) -> dict[str, Table]:
        """The tables after the restart."""
        return {**self.setup.tables, self.peer: changed(self.setup.tables[self.peer], self.change)}

    def move(self) -> None:
        """Let the peer lose its folder, or only the file that says which table the folder is of."""
        own = self.folder / self.peer
        if self.claims:
            (own / "run.json").unlink()
        else:
            shutil.rmtree(own)

    def in_memory(self) -> tuple[Story, Story]:
        """What all say before the restart and after it, if all parties end with the peer."""
        run = partial(_run_in_memory, self.setup, self.defences, self.folder)
        before = run(self.setup.tables, dying=(self.peer, self.moment))
        self.move()
        return before, run(self.tables, claiming=self.peer if self.claims else None)

    def over_grpc(self) -> tuple[Story, Story]:
        """What all say before the restart and after it, if all other parties live on."""
        from colonnade.wire.grpc.link import Patience
        from colonnade.wire.grpc.transport import GrpcTransport

        setup, story = self.setup, Story()
        addresses: dict[str, str | None] = {name: f"127.0.0.1:{free_port()}" for name in setup.roles.parties}
        # Other ids are refused in greetings, by whichever party is called; the other parties then wait in vain.
        wait = 3.0 if self.change == "ids" else SECONDS
        patience = Patience(start=SECONDS, rejoin=wait, silence=20, message=SECONDS, heartbeat=0.1)

        def live(name: str) -> None:
            line = partial(GrpcTransport, addresses, credentials=None)
            begin = partial(_live, setup, self.defences, self.folder, story, name)
            if name != self.peer:
                begin(setup.tables.get(name), line(patience=patience))
                return
            begin(setup.tables[name], line(patience=patience), dying=self.moment)
            self.move()
            claimed = setup.tables[name] if self.claims else None
            begin(self.tables[name], line(patience=replace(patience, start=wait)), claimed=claimed)

        threads = [threading.Thread(target=live, args=(name,), daemon=True) for name in setup.roles.parties]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(2 * SECONDS)
            must(not thread.is_alive(), f"If {self.words}, all parties should come to an end.")
        cuts = {name: story.n_before(name) for name in story.lives}
        before = Story({name: lives[: cuts[name]] for name, lives in story.lives.items()})
        return before, Story({name: lives[cuts[name] :] for name, lives in story.lives.items()}, story.ends)


def _judge(restart: _Restart, carrier: Carrier, straight: Story) -> None:
    before, after = restart.in_memory() if carrier == "memory" else restart.over_grpc()
    peer = restart.peer
    if after.refusal_of(peer) is not None:
        return
    for name, end in after.ends.items():
        must(
            not isinstance(end, BaseException),
            f"If {restart.words}, {name} should refuse {peer} by name or finish: {end!r}",
        )
    for name in restart.setup.roles.parties:
        if name != peer and restart.claims:
            _demand_repetition(restart, name, before.last(name), after.last(name))
        elif name != peer:
            _demand_new_draws(restart, name, before.last(name), after.last(name), straight.last(name))


def _demand_repetition(restart: _Restart, name: str, before: Life, after: Life) -> None:
    """Of a party that went on: that the peer repeated what the party had heard of it, unless that varies by itself."""
    first, second = (_exact(life.heard, restart.peer) for life in (before, after))
    other = [place for place in first.keys() & second.keys() if encode(first[place]) != encode(second[place])]
    kinds = ", ".join(sorted({second[place].kind for place in other}))
    must(not other, f"If {restart.words}, {name} should refuse what {restart.peer} says otherwise: {kinds}.")


def _demand_new_draws(restart: _Restart, name: str, before: Life, after: Life, straight: Life) -> None:
    """Of a party that went on: that nothing it drew before the restart was of use again, and that all is charged."""
    for place in before.said.keys() & after.said.keys() & straight.said.keys():
        first, second, elsewhere = (_drawn(life.said[place]) for life in (before, after, straight))
        for one, other, apart in zip(first, second, elsewhere, strict=False):
            # A part of a few bits may be alike by chance.
            if one != apart and len(one) - one.count(0) >= FEWEST_DRAWN:
                kind = after.said[place].kind
                must(one != other, f"If {restart.words}, {name} should draw again for {kind}, but sent the same again.")
    if before.n_private:
        must(
            after.n_private >= before.n_private + straight.n_private,
            f"If {restart.words}, {name}'s ledger should be charged for all of another run besides the "
            f"{before.n_private} releases before, but holds {after.n_private}.",
        )
    if before.n_counted < after.n_counted:
        must(
            after.n_counted < _n_lines(restart.folder / COUNTS / name / "answers"),
            f"If {restart.words}, {name}'s answers after the restart should be counted besides those before.",
        )


def _exact(heard: Mapping[Place, Message], peer: str) -> dict[Place, Message]:
    """The messages of a peer that a resumed run must repeat, numbered among themselves."""
    numbers: Counter[str] = Counter()
    kept = {}
    for place, message in heard.items():
        if place.sender == peer and not message.varies:
            kept[place._replace(number=numbers[place.step])] = message
            numbers[place.step] += 1
    return kept


def _drawn(message: Message) -> list[bytes]:
    """The parts of a message that can hold draws, as bytes: not counts or choices, which may be alike by chance."""
    parts: list[bytes] = []
    for value in vars(message).values():
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, Ciphertexts):
                parts.append(each.data.tobytes())
            elif isinstance(each, bytes):
                parts.append(each)
            elif isinstance(each, np.ndarray) and each.dtype.kind in "fu" and each.nbytes >= 8:
                parts.append(each.tobytes())
    return parts


def _n_lines(path: Path) -> int:
    return len(path.read_text().splitlines()) if path.exists() else 0


def changed(table: Table, what: Change) -> Table:
    """A table in which one record differs.

    >>> table = Table.of({"id": [1, 2], "x": [0.5, 1.5], "y": [0, 1]}, labels="y")
    >>> changed(table, "columns").column("x").tolist()
    [0.75, 1.5]
    """
    arrow = table.to_arrow()
    if what == "ids":
        ids = table.ids.to_pylist()
        return _with_column(
            table, arrow, table.id_name, pa.array([*ids[:-1], type(ids[0])(f"{10**9}")], table.ids.type)
        )
    if what == "columns":
        return _with_column(table, arrow, *_moved(table, _numeric(table)))
    assert table.label_name is not None
    if isinstance(arrow.schema.field(table.label_name).type, pa.ExtensionType):
        return _with_column(table, arrow, *_moved(table, table.label_name))
    labels = table.labels.to_pylist() if table.labels is not None else []
    other = next(place for place, label in enumerate(labels) if label != labels[0])
    labels[0], labels[other] = labels[other], labels[0]
    return table.with_labels(labels)


def _changes(table: Table) -> list[Change]:
    """What can differ in a table."""
    found: list[Change] = ["ids"]
    if table.columns and _numeric(table):
        found.append("columns")
    return [*found, "labels"] if table.label_name is not None else found


def _numeric(table: Table) -> str:
    return next((name for name in table.columns if table.kinds[name] in ("numeric", "curves")), "")


def _moved(table: Table, name: str) -> tuple[str, Any]:
    """A column whose first value is somewhat larger."""
    if isinstance(table.to_arrow().schema.field(name).type, pa.ExtensionType):
        curves = table.curves(name)
        coefficients = curves.coefficients.copy()
        coefficients[0] += 0.01
        return name, Curves(coefficients, curves.basis)
    values = table.column(name).copy()
    values[0] = 0.25 if np.isnan(values[0]) else values[0] + 0.25
    return name, values


def _with_column(table: Table, arrow: pa.Table, name: str, values: Any) -> Table:
    columns = {each: arrow.column(each) for each in arrow.column_names} | {name: values}
    return Table.of(columns, ids=table.id_name, labels=table.label_name, owner=table.owner)


class _WatchedLine(Channel):
    """A line that notes what is said on it, and ends the party after a number of acts."""

    def __init__(self, line: Channel, own: str, life: Life, step: Callable[[], str], dying: int | None) -> None:
        vars(self).update(vars(line))
        self._own, self._life, self._step, self._dying = own, life, step, dying
        self._n_said: Counter[str] = Counter()
        self._n_heard: Counter[str] = Counter()

    def send(self, message: Message, **options: Any) -> None:
        step = self._step()
        self._life.said[Place(self._own, self.peer, step, self._n_said[step])] = message
        self._n_said[step] += 1
        super().send(message, **options)
        self._act()

    def receive(self, *arguments: Any, **options: Any) -> Any:
        message, step = super().receive(*arguments, **options), self._step()
        self._life.heard[Place(self.peer, self._own, step, self._n_heard[step])] = message
        self._n_heard[step] += 1
        self._act()
        return message

    def _act(self) -> None:
        self._life.n_acts += 1
        if self._life.n_acts == self._dying:
            raise Stopped


class _MortalSession(NetworkSession):
    """A session whose party may end without a word."""

    def fail(self, party: Party, error: BaseException) -> None:
        if not isinstance(error, Stopped):
            super().fail(party, error)


def _run_in_memory(
    setup: Setup,
    defences: Defences,
    folder: Path,
    tables: Mapping[str, Table],
    *,
    dying: tuple[str, int] | None = None,
    claiming: str | None = None,
) -> Story:
    """Let all parties live in this process until all have ended."""
    story = Story()

    def side(name: str, transport: Transport) -> None:
        moment = dying[1] if dying is not None and dying[0] == name else None
        claimed = setup.tables[name] if claiming == name else None
        _live(setup, defences, folder, story, name, tables.get(name), transport, dying=moment, claimed=claimed)

    names = setup.roles.parties
    MemoryNetwork(names, StateByTurn()).run({name: partial(side, name) for name in names})
    return story


def _live(
    setup: Setup,
    defences: Defences,
    folder: Path,
    story: Story,
    name: str,
    table: Table | None,
    transport: Transport,
    *,
    dying: int | None = None,
    claimed: Table | None = None,
) -> None:
    """One party from its start to its end, which the story tells."""
    estimator = setup.make()

    def watched(party: Party) -> Estimator:
        life = Life(ledger=party.ledger, n_counted=_n_lines(folder / COUNTS / name / "answers"))
        story.lives.setdefault(name, []).append(life)

        def step() -> str:
            return party.checkpoints.at

        lines = {peer: _WatchedLine(line, name, life, step, dying) for peer, line in party.peers.items()}
        return estimator.clone().fit(replace(party, peers=lines))

    plan = Simulation(estimator.fit, {}, setup.roles, 0, {}, {}, "audit").plan
    try:
        party = connect(
            plan,
            name,
            table,
            transport=transport,
            directory=folder / name,
            answers=folder / COUNTS / name / "answers",
            defences=defences.get(name, ()),
            checkpoint_every=CHECKPOINT_EVERY,
        )
        assert isinstance(party.session, NetworkSession)
        session = _MortalSession(**vars(party.session))
        if claimed is not None:
            session = replace(session, brought=claimed.checked(name).digest().encode())
        story.ends[name] = join(watched, replace(party, session=session))
    except (Stopped, ColonnadeError) as error:
        story.ends[name] = error
