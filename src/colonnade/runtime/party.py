"""Party and Defence: one organisation's side of a run, and what it holds to protect itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar
from typing import Protocol as StructuralType

import numpy as np
import numpy.typing as npt

from colonnade.crypto.profiles import Budget, Profile
from colonnade.errors import DataError, PlanError
from colonnade.privacy.ledger import Ledger
from colonnade.privacy.randomness import PublicRandomness, Randomness
from colonnade.roles import PublicPlan, Roles
from colonnade.runtime.checkpoint import Checkpoints, GlobalGenerators, Resumable, Steps, Watcher
from colonnade.runtime.workers import Workers
from colonnade.secret import Secret
from colonnade.storage import Tree
from colonnade.tables.table import Table
from colonnade.wire.channel import Channel
from colonnade.wire.message import Message
from colonnade.wire.recording.recording import Recording

if TYPE_CHECKING:
    from colonnade.runtime.alignment import Alignment
    from colonnade.runtime.context import HookContext, Tensor

T = TypeVar("T")


class Session(StructuralType):
    """What takes a party through a run between machines, as often as the run has to be taken up."""

    def begin(self, party: Party) -> Party:
        """Wait for all others; returns the party ready to go on from the common checkpoint."""

    def note(self, **facts: Any) -> None:
        """Write down more about the run, beside how it stands."""

    def finish(self, party: Party) -> None:
        """Write down what was seen, and wait until all others have finished too."""

    def fail(self, party: Party, error: BaseException) -> None:
        """Tell the others why this party stops, and write it down."""

    def close(self) -> None:
        """End all connections."""


class Defence:
    """What a party does, on its own side, to what it learns from, sends or accepts.

    Every hook defaults to no change. Defences are held by a party and applied in order.

    >>> class Halve(Defence):
    ...     def outgoing(self, tensor, at):
    ...         return tensor / 2
    >>> sorted(Halve().overridden())
    ['outgoing']
    """

    acts_on: ClassVar[tuple[type[Message], ...]] = ()
    """The kinds of messages it changes before they leave; empty if it may be any."""
    reads_labels: ClassVar[bool] = False
    """Whether it is of use only where labels are."""
    named_by: ClassVar[str] = ""
    """The parameter whose value is part of the name; none if empty."""
    known_by: tuple[tuple[str, Mapping[str, Any]], ...] = ()
    """The attacks that know how it works: names of the catalogue with settings; empty where there are none."""

    @property
    def name(self) -> str:
        """What the message ledger calls it."""
        value = f"({self.named_by}={getattr(self, self.named_by):g})" if self.named_by else ""
        return type(self).__name__ + value

    def __repr__(self) -> str:
        return self.name

    def before_run(self, party: Party) -> None:
        """Called once, before the first step."""

    def labels(self, labels: Tensor, at: HookContext) -> Tensor:
        """The labels the party learns from."""
        return labels

    def outgoing(self, tensor: Tensor, at: HookContext) -> Tensor:
        """An embedding or a gradient about to be sent."""
        return tensor

    def incoming(self, tensor: Tensor, at: HookContext) -> Tensor:
        """One that has just arrived; a guard looks here."""
        return tensor

    def loss(self, loss: Tensor, at: HookContext) -> Tensor:
        """The loss the party minimises."""
        return loss

    def prediction(self, prediction: Tensor, at: HookContext) -> Tensor:
        """A prediction about to be used or given away."""
        return prediction

    def modules(self) -> Sequence[Any]:
        """Networks to be trained together with the owner's model."""
        return ()

    def state(self) -> Tree:
        return {}

    def restore(self, tree: Tree) -> None:
        """Go back to what `state` said."""

    def overridden(self) -> frozenset[str]:
        """The hooks this defence makes use of."""
        return frozenset(name for name in HOOKS if getattr(type(self), name) is not getattr(Defence, name))

    def affects_predictions(self, sent: Sequence[type[Message]]) -> bool:
        """Whether predictions depend on it, and so need it as it was when training ended.

        Args:
            sent: The kinds of messages that go through `outgoing` on its side.
        """
        hooks = self.overridden()
        # What is sent to predict is about features. Gradients are not, and are sent in training only.
        about_features = [kind for kind in sent if Secret.FEATURES in kind.reveals]
        changes_them = any(not self.acts_on or kind in self.acts_on for kind in about_features)
        return bool(hooks & {"incoming", "prediction", "modules"}) or ("outgoing" in hooks and changes_them)


HOOKS = ("labels", "outgoing", "incoming", "loss", "prediction", "modules")


@dataclass(frozen=True)
class Party:
    """One organisation's side of a run: its rows, its randomness, its lines to the others.

    `random` is the party's own, and between machines serves one run; `shared` is equal at all parties and no secret:
    the batch schedule comes from it, and nothing that hides. `answer_log` is the file in which the party counts, over
    all its runs, what it answered to whom about its rows. `on_aligned` is called with the alignment whose rows the
    party goes on with. `brought` is the table that the rows are taken from; None if they are all of it.
    """

    name: str
    plan: PublicPlan
    table: Table | None
    random: Randomness
    shared: PublicRandomness
    peers: Mapping[str, Channel]
    ledger: Ledger
    recording: Recording
    defences: tuple[Defence, ...] = ()
    checkpoints: Checkpoints = field(default_factory=lambda: Checkpoints(None), repr=False)
    watcher: Watcher | None = field(default=None, repr=False)
    session: Session | None = field(default=None, repr=False)
    answer_log: Path | None = None
    on_aligned: Callable[[Alignment], None] | None = field(default=None, repr=False)
    brought: Table | None = field(default=None, repr=False)

    @classmethod
    def alone(
        cls,
        plan: PublicPlan,
        name: str,
        table: Table | None,
        *,
        defences: tuple[Defence, ...] = (),
        answer_log: Path | None = None,
    ) -> Self:
        """A party without lines, for what it can see of a run before it meets anybody."""
        shared = shared_randomness(plan, "" if table is None else table.id_digest())
        own, recording = Randomness.system(), Recording(name, "digests")
        return cls(name, plan, table, own, shared, {}, Ledger(), recording, defences, answer_log=answer_log)

    @property
    def roles(self) -> Roles:
        """Who does what in this run."""
        return self.plan.roles

    @property
    def holds_labels(self) -> bool:
        """Whether this is the label party."""
        return self.name == self.roles.label

    @property
    def label_party(self) -> Channel:
        """The line to the label party."""
        return self._line(self.roles.label, "label party")

    @property
    def feature_parties(self) -> tuple[Channel, ...]:
        """The lines to the feature parties, in their order."""
        return tuple(self.peers[name] for name in self.roles.features if name != self.name)

    @property
    def arbiter(self) -> Channel:
        """The line to the arbiter."""
        return self._line(self.roles.arbiter, "arbiter")

    @property
    def server(self) -> Channel:
        """The line to the server."""
        return self._line(self.roles.server, "server")

    @property
    def own_table(self) -> Table:
        """This party's table, which a protocol that needs rows may count on."""
        if self.table is None:
            raise DataError(f"{self.name} should bring a table for its role but has none. Give it one in the plan.")
        return self.table

    @property
    def workers(self) -> Workers | None:
        """The workers that hold this party's columns; None if this process holds them."""
        if self.table is None or self.table.placed is None:
            return None
        workers: Workers = self.table.placed.placer.workers
        return workers

    @property
    def present(self) -> npt.NDArray[np.bool_] | None:
        """Which of the aligned rows this party has; None if it has them all."""
        return None if self.table is None else self.table.present

    @property
    def partners(self) -> Mapping[str, npt.NDArray[np.bool_]]:
        """At the label party, which of its rows each feature party has; empty if all have them all."""
        return {} if self.table is None else self.table.partners

    def aligned(self, alignment: Alignment) -> Party:
        """The same party with its rows in the order that all parties share.

        Raises:
            DataError: It was not told which rows are common, there are none, or they are not fit to train on.
        """
        table = None if self.table is None else alignment.take(self.table).checked(self.name, ids=False)
        if self.on_aligned is not None:
            self.on_aligned(alignment)
        return replace(self.on(table), shared=shared_randomness(self.plan, alignment.schedule))

    def on(self, table: Table | None) -> Party:
        """The same party on other rows of its table."""
        return replace(self, table=table, brought=self.table if self.brought is None else self.brought)

    def aside(self, name: str, defences: tuple[Defence, ...]) -> Party:
        """This party for a protocol after the run's own, on other rows: with draws and a recording of its own.

        What the run drew is used once, and messages about other rows are not taken for messages about the run's rows.
        """
        recording = self.recording.beside(name)
        return replace(
            self,
            random=self.random.child(name),
            shared=self.shared.child(name),
            peers={peer: line.recorded_by(recording) for peer, line in self.peers.items()},
            recording=recording,
            defences=defences,
        )

    def steps(self, n: int, state: Resumable, *, name: str, shared: bool = True) -> Steps:
        """The steps of a loop, checkpointed and resumed.

        Args:
            n: How many there are at most; `Steps.stop` ends earlier.
            state: All that the next step depends on: model, optimiser, best result so far.
            name: What the loop is called; no two loops of a protocol share a name.
            shared: False for a loop that this party runs alone: it says nothing to anyone about its length.
        """
        parts: dict[str, Resumable] = {"own": state, "generators": GlobalGenerators()}
        parts |= {f"defence {i}": defence for i, defence in enumerate(self.defences)}
        if shared:
            parts["recording"] = self.recording
        return Steps(name, n, parts, self.checkpoints, shared=shared, party=self.name, watcher=self.watcher)

    def once(self, name: str, make: Callable[[], T]) -> T:
        """A value made once in the life of a run and written down before its first use: keys, noise, releases.

        It comes back as plain data: tuples as lists, tensors as arrays.
        """
        return self.checkpoints.once(name, make)

    @property
    def alignment_log(self) -> Path | None:
        """The file in which this party counts its alignments, beside that of its answers; None in a simulation."""
        if self.session is None or self.answer_log is None:
            return None
        return self.answer_log.with_name(f"alignments-of-{self.name}")

    def budget(self, profile: Profile, peer: str, *, most: int | None = None) -> Budget:
        """How many encrypted values a peer may still be answered about this party's rows; at most the profile's cap."""
        # Whatever rows a plan holds out or aligns, they are of the same table, which is answered about once.
        brought = self.own_table if self.brought is None else self.brought
        data = "" if self.answer_log is None else brought.counted_as()
        return Budget(profile, peer=peer, data=data, log=self.answer_log, most=most)

    def _line(self, name: str | None, role: str) -> Channel:
        if name is None or name not in self.peers:
            raise PlanError(
                f"{self.name} asks for the line to the {role}, but this run has "
                f"{'no ' + role if name is None else f'{name}, which is itself,'} in that role. Check the roles."
            )
        return self.peers[name]


def shared_randomness(plan: PublicPlan, rows: str) -> PublicRandomness:
    """The randomness that all parties share and that holds no secret.

    Args:
        plan: What all parties know.
        rows: What stands for the rows: the digest of their ids, or what an alignment drew.
    """
    return PublicRandomness.seeded(plan.seed, "shared", plan.hash, rows)
