"""simulate: a protocol with all its parties in one process, one party at a time."""

from __future__ import annotations

import contextlib
import copy
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

import numpy as np

from colonnade._version import __version__
from colonnade.curves.plots import plot_history
from colonnade.errors import PlanError, StorageError
from colonnade.privacy.history import History, Records, history_path
from colonnade.privacy.ledger import Ledger
from colonnade.privacy.randomness import PublicRandomness
from colonnade.progress import Bars
from colonnade.roles import PublicPlan, Roles
from colonnade.runtime.alignment import Alignment
from colonnade.runtime.checkpoint import Checkpoints, GlobalGenerators, Watcher
from colonnade.runtime.join import join
from colonnade.runtime.party import Defence, Party, shared_randomness
from colonnade.runtime.protocol import (
    Protocol,
    after_alignment,
    aligns_rows,
    describe,
    describe_protocol,
    own_copy,
    private_randomness,
    public_plan,
)
from colonnade.runtime.replay import ReplayGuard
from colonnade.runtime.status import Status
from colonnade.secret import Secret
from colonnade.tables.table import Table
from colonnade.wire.channel import Channel
from colonnade.wire.memory import MemoryNetwork, MemoryTransport
from colonnade.wire.recording.recording import Digests, Keep, Recording, Transcript

if TYPE_CHECKING:
    from matplotlib.axes import Axes

R_co = TypeVar("R_co", covariant=True)


def simulate(
    protocol: Protocol[R_co] | Mapping[str, Protocol[R_co]],
    tables: Mapping[str, Table],
    *,
    roles: Roles,
    seed: int = 0,
    defences: Mapping[str, Sequence[Defence]] | None = None,
    budgets: Mapping[str, Mapping[Secret, tuple[float, float]]] | None = None,
    histories: Path | str | None = None,
    instead: Mapping[str, Callable[[Party, Protocol[R_co]], Any]] | None = None,
    keep: Keep = "audit",
    directory: Path | str | None = None,
    checkpoint_every: int = 50,
    progress: bool | None = False,
) -> Run[R_co]:
    """Run a protocol with all its parties in this process, one party at a time.

    A method of an estimator is run on a clone of it for each party; a mapping is run as given.

    Args:
        protocol: What every party runs, or what each runs, by name.
        tables: The parties' rows, equally many and in the same order unless the protocol begins by aligning them.
        roles: Who does what.
        seed: All randomness follows from it, each party's own separately.
        defences: What each party holds to protect itself.
        budgets: The (epsilon, delta) that each party may spend, by secret.
        histories: A folder in which a file for each party counts its privacy events over all runs on the same records;
            budgets are then for all these runs together. None counts this run only.
        instead: A party that runs something else than the protocol: it is given the honest one to play with.
        keep: How much of the messages is kept for the audit.
        directory: A folder for checkpoints and transcripts. A run that was interrupted there goes on where it stopped;
            a finished one, whose checkpoints are erased, is run again from its beginning.
        checkpoint_every: After how many steps a checkpoint is written.
        progress: Whether to show a bar; None shows it on a terminal only.
    """
    simulation = Simulation(
        protocol,
        dict(tables),
        roles,
        seed,
        {name: tuple(held) for name, held in (defences or {}).items()},
        dict(instead or {}),
        keep,
        dict(budgets or {}),
    )
    return simulation.run(
        None if directory is None else Path(directory),
        checkpoint_every,
        progress,
        None if histories is None else Path(histories),
    )


@dataclass(frozen=True)
class Simulation(Generic[R_co]):
    """All that is needed to run a protocol in one process, as often as one likes.

    `shared` is the randomness that all parties share; None lets it follow from the plan and the rows.
    """

    protocol: Protocol[R_co] | Mapping[str, Protocol[R_co]]
    tables: Mapping[str, Table]
    roles: Roles
    seed: int
    defences: Mapping[str, tuple[Defence, ...]]
    instead: Mapping[str, Callable[[Party, Protocol[R_co]], Any]]
    keep: Keep
    budgets: Mapping[str, Mapping[Secret, tuple[float, float]]] = field(default_factory=dict)
    shared: PublicRandomness | None = None

    @property
    def plan(self) -> PublicPlan:
        """What every party may know."""
        return public_plan(self.protocol, self.roles, self.seed)

    def run(
        self,
        directory: Path | None = None,
        checkpoint_every: int = 50,
        progress: bool | None = False,
        histories: Path | None = None,
    ) -> Run[R_co]:
        """Run all parties to their end."""
        self._check_names()
        aligns = aligns_rows(self.protocol)
        tables = {name: replace(self.tables[name], owner=name) for name in self.roles.holders}
        if aligns:
            digest = ""
        else:
            from colonnade.data.partition import require_same_rows

            tables = {name: table.checked(name) for name, table in tables.items()}
            require_same_rows(tables)
            digest = tables[self.roles.holders[0]].id_digest()
        plan = self.plan
        names = plan.roles.parties
        status = Status(directory, {} if directory is None else self._identity(tables, checkpoint_every))
        checkpoints = _prepare_checkpoints(names, directory, checkpoint_every, erased=status.finished)
        if status.finished:
            status.write("running")
        past: dict[str, History] = {}
        if histories is not None:
            run = "" if directory is None else directory.name
            past = {name: History(history_path(histories, name), Records.of(tables[name]), run) for name in tables}
        with Bars(progress) as bars:
            watcher = _leading(names[0], bars) if bars.shown else None
            parties: dict[str, Party] = {}
            alignments: dict[str, Alignment] = {}
            digests, generators = Digests(), GlobalGenerators()

            def live(name: str, transport: MemoryTransport) -> R_co:
                folder = None if directory is None else directory / name
                recording = Recording(name, self.keep, folder and folder / "transcript", digests=digests)
                guard = ReplayGuard(name, checkpoints[name])
                party = Party(
                    name=name,
                    plan=plan,
                    table=tables.get(name),
                    random=private_randomness(self.seed, name, plan),
                    shared=self.shared or shared_randomness(plan, digest),
                    peers={
                        peer: Channel(peer, transport, recording, on_arrival=generators.lose_half_draw, hear=guard.hear)
                        for peer in names
                        if peer != name
                    },
                    ledger=Ledger(self.budgets.get(name), path=folder and folder / "ledger", history=past.get(name)),
                    recording=recording,
                    defences=tuple(copy.deepcopy(held) for held in self.defences.get(name, ())),
                    checkpoints=checkpoints[name],
                    watcher=watcher,
                    answer_log=folder and folder / "answers",
                    on_aligned=partial(alignments.__setitem__, name),
                )
                parties[name] = party
                honest = self.protocol[name] if isinstance(self.protocol, Mapping) else own_copy(self.protocol)
                if name in self.instead:
                    return cast(R_co, join(lambda me: self.instead[name](me, honest), party))
                return join(honest, party)

            outside, held_back, modes = generators.capture(), generators.state(), _modes()
            try:
                network = MemoryNetwork(names, StateByTurn())
                results = network.run({name: partial(live, name) for name in names})
            except BaseException as error:
                with contextlib.suppress(StorageError):  # what went wrong first is what counts
                    status.write("failed", error)
                raise
            finally:
                generators.put(outside)
                generators.restore(held_back)
                _set_modes(modes)
        transcripts = {name: parties[name].recording.transcript() for name in names}
        status.write("finished")
        for held in checkpoints.values():
            held.erase()
        ledgers = {name: parties[name].ledger for name in names}
        return Run(results, transcripts, ledgers, self, plan, digest, alignments)

    def changed(
        self,
        *,
        tables: Mapping[str, Table] | None = None,
        labels: np.ndarray[Any, Any] | None = None,
        instead: Mapping[str, Callable[[Party, Protocol[R_co]], Any]] | None = None,
        seed: int | None = None,
    ) -> Simulation[R_co]:
        """The same with some tables, the labels, a replacement or the seed exchanged."""
        changed = {**self.tables, **(tables or {})}
        if labels is not None:
            if self.roles.label is None:
                raise PlanError("New labels were given, but the roles name no label party. Name one or give tables.")
            changed[self.roles.label] = changed[self.roles.label].with_labels(labels)
        return replace(
            self,
            tables=changed,
            instead=self.instead if instead is None else dict(instead),
            seed=self.seed if seed is None else seed,
            shared=self.shared if seed is None else None,
        )

    def _identity(self, tables: Mapping[str, Table], checkpoint_every: int) -> dict[str, Any]:
        """All that a run which is taken up again must have in common with the one that was interrupted."""
        protocols = self.protocol if isinstance(self.protocol, Mapping) else {"everybody": self.protocol}
        return {
            "plan": self.plan.hash,
            "seed": self.seed,
            "tables": {name: table.digest() for name, table in tables.items()},
            "protocols": {name: describe_protocol(protocol) for name, protocol in protocols.items()},
            "defences": describe(self.defences),
            "instead": sorted(self.instead),
            "keep": self.keep,
            "checkpoint_every": checkpoint_every,
            "version": __version__,
        }

    def _check_names(self) -> None:
        names, holders = self.roles.parties, self.roles.holders
        for name in holders:
            if name not in self.tables:
                raise PlanError(
                    f"The roles name {name}, but tables were given for {', '.join(self.tables) or 'nobody'} only. "
                    f"Add a table for {name} or take it out of the roles."
                )
        mappings: list[tuple[str, Mapping[str, Any]]] = [("table", self.tables)]
        mappings += [("defence", self.defences), ("replacement", self.instead), ("budget", self.budgets)]
        if isinstance(self.protocol, Mapping):
            mappings.append(("protocol", self.protocol))
            for name in names:
                if name not in self.protocol:
                    raise PlanError(f"{name} has a role but no protocol to run. Add one for {name}.")
        for what, mapping in mappings:
            allowed = holders if what == "table" else names
            for name in mapping:
                if name not in allowed:
                    raise PlanError(
                        f"There is a {what} for {name}, who has no role that takes one; those who have are "
                        f"{', '.join(allowed)}. Give {name} a role or leave it out."
                    )


@dataclass(frozen=True, repr=False)
class Run(Generic[R_co]):
    """One execution of a protocol by all its parties, with what each saw.

    Attributes:
        results: What each party got: of a training, its share of the model.
        transcripts: What each party sent and received.
        ledgers: What each party's releases cost.
        alignments: By party, which rows the protocol went on with, if it began by aligning them.
    """

    results: Mapping[str, R_co]
    transcripts: Mapping[str, Transcript]
    ledgers: Mapping[str, Ledger]
    simulation: Simulation[R_co]
    plan: PublicPlan
    id_digest: str
    alignments: Mapping[str, Alignment] = field(default_factory=dict)

    def __repr__(self) -> str:
        sent = [entry for transcript in self.transcripts.values() for entry in transcript.entries if entry.sent]
        got = ", ".join(dict.fromkeys(repr(result) for result in self.results.values() if result is not None))
        return (
            f"Run of {self.plan.protocol}, seed {self.simulation.seed}\n"
            f"  parties: {', '.join(self.plan.roles.parties)}\n"
            f"  sent: {len(sent):,} messages, {sum(entry.size for entry in sent) / 1e6:,.1f} MB\n"
            f"  results: {got or 'none'}"
        )

    def _repr_html_(self) -> str:
        return f"<pre>{escape(repr(self))}</pre>"

    @property
    def history_(self) -> dict[str, list[dict[str, float]]]:
        """Of a training, the figures of each epoch by party, where a party notes any."""
        return {name: result.history_ for name, result in self.results.items() if hasattr(result, "history_")}

    def plot_history(self, ax: Axes | None = None) -> Axes:
        """Draw the figures of each epoch by party; the extra `report`."""
        return plot_history(self.history_, ax, self.plan.protocol.removesuffix(".fit"))

    def predict(self, tables: Mapping[str, Table], *, seed: int | None = None) -> Any:
        """What the trained model predicts for rows of all parties, at the party that learns the prediction.

        Args:
            tables: The parties' rows, equally many and in the same order.
            seed: Another seed than that of the training.
        """
        protocols = {name: getattr(result, "predict", None) for name, result in self.results.items()}
        if None in protocols.values():
            raise PlanError(
                f"{self.plan.protocol} gave no models that predict. Call predict of a run of a model's fit."
            )
        run = simulate(
            cast(Mapping[str, Protocol[Any]], protocols),
            tables,
            roles=self.plan.roles,
            seed=self.simulation.seed if seed is None else seed,
            defences=self.simulation.defences,
            keep="digests",
        )
        name, prediction = next((name, result) for name, result in run.results.items() if result is not None)
        holder = name if name in tables else self.plan.roles.holders[0]
        return prediction.about(tables[holder], getattr(self.results[name], "classes_", None))

    def on_aligned_rows(self) -> Run[R_co]:
        """The same run as if its tables had been aligned beforehand; the run itself if it aligned nothing.

        Messages of training are about places in the common order, so whatever compares them with rows, or runs the
        training again, needs tables in this order. A row is known by its place, because parties may write the id of
        one person differently, and a row without a partner has none.

        Raises:
            PlanError: The run did nothing with the aligned rows.
        """
        simulation = self.simulation
        if not aligns_rows(simulation.protocol):
            return self
        if not self.alignments:
            raise PlanError(
                "A run should train on the rows that it aligned, but this run only aligned. Simulate "
                "Aligned(Align(), model.fit)."
            )
        tables = {name: self.alignments[name].take(table).numbered() for name, table in simulation.tables.items()}
        # The same rows are held out in every repetition, so that what is granted about trained rows helps there too.
        shared = shared_randomness(self.plan, next(iter(self.alignments.values())).schedule)
        changed = replace(simulation, protocol=after_alignment(simulation.protocol), tables=tables, shared=shared)
        return replace(self, simulation=changed, id_digest=tables[self.plan.roles.holders[0]].id_digest())

    def again(
        self,
        *,
        tables: Mapping[str, Table] | None = None,
        labels: np.ndarray[Any, Any] | None = None,
        instead: Mapping[str, Callable[[Party, Protocol[R_co]], Any]] | None = None,
        seed: int | None = None,
    ) -> Run[R_co]:
        """Run the same once more with something changed: for nulls and repeats.

        Args:
            tables: Other tables for some of the parties.
            labels: Other labels for the label party.
            instead: Other replacements of parties.
            seed: Another seed.
        """
        return self.simulation.changed(tables=tables, labels=labels, instead=instead, seed=seed).run()


def _prepare_checkpoints(
    names: Sequence[str], directory: Path | None, every: int, *, erased: bool
) -> dict[str, Checkpoints]:
    """Every party's checkpoints, set to go on from the newest one that all of them hold, or erased first."""
    if directory is None:
        return {name: Checkpoints(None) for name in names}
    every_party = {name: Checkpoints(directory / name / "checkpoints", every=every) for name in names}
    if erased:
        for checkpoints in every_party.values():
            checkpoints.erase()
    newest = {name: checkpoints.newest for name, checkpoints in every_party.items()}
    common = min(newest.values())

    def note(name: str, number: int) -> None:
        newest[name] = number
        for checkpoints in every_party.values():
            checkpoints.forget_before(min(newest.values()))

    for name, checkpoints in every_party.items():
        checkpoints.resume(common)
        newest[name] = common
        checkpoints.on_write = partial(note, name)
        if common == 0:
            shutil.rmtree(directory / name / "transcript", ignore_errors=True)
    return every_party


class StateByTurn:
    """Gives each party its own state of what libraries keep for all of a process or thread."""

    def __init__(self) -> None:
        self._generators = GlobalGenerators()
        self._captured: dict[str, Any] = {}

    def enter(self, name: str) -> None:
        """Put a party's state in place."""
        generators, modes = self._captured.get(name, (None, MODES_AT_FIRST))
        if generators is not None:
            self._generators.put(generators)
        _set_modes(modes)

    def leave(self, name: str) -> None:
        """Put a party's state away."""
        self._captured[name] = self._generators.capture(), _modes()


MODES_AT_FIRST = (True, False, False)


def _modes() -> tuple[bool, bool, bool]:
    """Whether PyTorch records gradients, and whether it computes with fewer digits, on each kind of device."""
    torch = sys.modules.get("torch")
    if torch is None:
        return MODES_AT_FIRST
    return torch.is_grad_enabled(), torch.is_autocast_enabled("cpu"), torch.is_autocast_enabled("cuda")


def _set_modes(modes: tuple[bool, bool, bool]) -> None:
    torch = sys.modules.get("torch")
    if torch is not None and modes != _modes():
        records, *reduced = modes
        torch.set_grad_enabled(records)
        for device, enabled in zip(("cpu", "cuda"), reduced, strict=True):
            torch.set_autocast_enabled(device, enabled)


def _leading(leader: str, bars: Bars) -> Watcher:
    """A watcher that draws the steps of one party only."""

    def watch(party: str, loop: str, done: int, total: int, figures: Mapping[str, float]) -> None:
        if party == leader:
            bars.update(loop, done, total, figures)

    return watch
