"""View: what one party saw in one run, cut to what one attack declared (`Needs`) and was told besides (`Grant`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Literal, TypeVar

import numpy as np

from colonnade.attacks.guess import Guess
from colonnade.errors import PlanError, PrivacyError, UndeclaredAccess
from colonnade.models.base import Estimator
from colonnade.models.trees.record import ForestRecord
from colonnade.roles import PublicPlan
from colonnade.storage import read_tree, write_tree
from colonnade.tables.table import Table
from colonnade.wire.message import Float32Array, Float64Array, Int64Array, Message
from colonnade.wire.recording.recording import Recorded, Transcript

M = TypeVar("M", bound=Message)


@dataclass(frozen=True)
class Needs:
    """What an attack asks for. What is not named here is not in the view.

    An attack that takes part in the run has its own table and share of the model in any case; it names what it cannot
    do without.

    Attributes:
        messages: The kinds of messages it reads, on all of the attacker's lines.
        own_features: Whether it reads the attacker's own table.
        table_optional: Whether it also works for an attacker that has no table, or whose table is not at hand.
        own_model: Whether it uses the attacker's own share of the model.
        forest: The kinds of messages whose content it reads from what the attacker saw of a forest.
        known_labels: How many labels per class it must be told; the audit draws them and never scores them.
        known_in_all: How many labels it is told in all where `known_labels` per class are fewer: as many of each class,
            but beyond `known_labels` no more than a quarter of the rarest class.
        known_records: How many records it must be told, with their rows; the audit never scores them.
        prior: How many whole records it must be told without their rows, as a sample of the population; never scored.
        inference_rows: Whether rows that were not trained on are scored as well, in attacks on columns.
        candidates: What it must be told of people who may or may not have been in the run: one party's "curves", or
            whole "records", with everybody's curves and the output; None if nothing.
        guesses: Whether it reads what the attacker's other attacks on the same secret said.
    """

    messages: tuple[type[Message], ...] = ()
    own_features: bool = False
    table_optional: bool = False
    own_model: bool = False
    forest: tuple[type[Message], ...] = ()
    known_labels: int = 0
    known_in_all: int = 0
    known_records: int = 0
    prior: int = 0
    inference_rows: bool = False
    candidates: Literal["curves", "records"] | None = None
    guesses: bool = False

    def __post_init__(self) -> None:
        for more, of in (("known_in_all", "known_labels"), ("table_optional", "own_features")):
            if getattr(self, more) and not getattr(self, of):
                raise PlanError(
                    f"{more} = {getattr(self, more)} requires {of}, but {of} is {getattr(self, of)}. Declare {of} as "
                    f"well, or leave out {more}."
                )

    @property
    def needs_table(self) -> bool:
        """Whether an attacker without a table cannot make the attack."""
        return self.own_features and not self.table_optional

    def most_per_class(self, n_classes: int) -> int:
        """How many labels of each class it is told at most."""
        return max(self.known_labels, -(-self.known_in_all // n_classes))


@dataclass(frozen=True)
class Grant:
    """What the audit tells an attacker beyond its own view.

    Attributes:
        n_classes: How many classes there are; 0 where the attack is not about classes.
        rows: The rows whose labels or records are told.
        labels: Their class numbers, 0 to `n_classes` - 1, in the sorted order of the classes.
        candidates: Curves in coordinates, by column; those of the output have an empty name.
        owner: The party whose secret the attack is about.
        columns: For each number of a record, the column that it comes from.
        records: The records of `rows`, as standardised numbers; text is one number per level.
        prior: Whole records of nobody knows which rows, by party: the owner's as in `records`, those of others with
            their labels, as `filled_with_labels` gives them.
    """

    n_classes: int
    rows: Int64Array = field(default_factory=lambda: np.zeros(0, np.int64))
    labels: Int64Array = field(default_factory=lambda: np.zeros(0, np.int64))
    candidates: Mapping[str, Float64Array] = field(default_factory=dict)
    owner: str = ""
    columns: Sequence[str] = ()
    records: Float64Array = field(default_factory=lambda: np.zeros((0, 0)))
    prior: Mapping[str, Float64Array] = field(default_factory=dict)

    @property
    def labels_per_class(self) -> int:
        """How many labels of each class are told."""
        return len(self.labels) // max(self.n_classes, 1)

    def cut(self, needs: Needs) -> Grant:
        """As much of this grant as an attack declared."""
        declared = {
            "rows": needs.known_labels or needs.known_records,
            "labels": needs.known_labels,
            "records": needs.known_records,
            "prior": needs.prior,
            "candidates": needs.candidates,
        }
        nothing = Grant(self.n_classes)
        dropped = {name for name, wanted in declared.items() if not wanted and len(getattr(self, name))}
        return replace(self, **{name: getattr(nothing, name) for name in dropped}) if dropped else self


class Own:
    """What the attacker itself holds, as far as declared: its table, its part of the model, what it saw of a forest."""

    def __init__(self, needs: Needs, table: Table | None, model: Estimator | None, forest: ForestRecord | None) -> None:
        self._reads_table = needs.own_features
        self._table = table if needs.own_features else None
        self._model = model if needs.own_model else None
        self._forest = forest if needs.forest else None

    @property
    def table(self) -> Table:
        """The attacker's own rows."""
        if not self._reads_table:
            raise _undeclared("the attacker's own table", "own_features=True")
        if self._table is None:
            raise PrivacyError(
                "own.table should be the attacker's own rows, but this attacker has none. Ask own.has_table first."
            )
        return self._table

    @property
    def has_table(self) -> bool:
        """Whether there are rows of the attacker's own that it may read."""
        return self._table is not None

    @property
    def model(self) -> Estimator:
        """The attacker's own share of the model."""
        if self._model is None:
            raise _undeclared("the attacker's own model", "own_model=True")
        return self._model

    @property
    def forest(self) -> ForestRecord:
        """What the attacker saw of a forest."""
        if self._forest is None:
            raise _undeclared("what the attacker saw of a forest", "forest=(RowSides,)")
        return self._forest


@dataclass(frozen=True)
class View:
    """What one party saw in one run, cut to what one attack declared.

    Reading anything else raises `UndeclaredAccess`: a view holds nothing that the attack did not ask for.
    """

    party: str
    public: PublicPlan
    needs: Needs
    own: Own
    grant: Grant
    seed: int
    _transcript: Transcript
    _guesses: tuple[Guess, ...] = ()

    @classmethod
    def cut(
        cls,
        needs: Needs,
        transcript: Transcript,
        *,
        public: PublicPlan,
        grant: Grant,
        table: Table | None = None,
        model: Estimator | None = None,
        forest: ForestRecord | None = None,
        seed: int = 0,
        guesses: Sequence[Guess] = (),
    ) -> View:
        """Cut a party's recording to what an attack declared."""
        kinds = {message.kind for message in needs.messages}
        seen = replace(
            transcript,
            entries=tuple(entry for entry in transcript.entries if entry.kind in kinds),
            means=tuple(mean for mean in transcript.means if mean.kind in kinds),
        )
        own, told = Own(needs, table, model, forest), grant.cut(needs)
        return cls(transcript.party, public, needs, own, told, seed, seen, tuple(guesses) if needs.guesses else ())

    @cached_property
    def random(self) -> np.random.Generator:
        """The attack's own randomness."""
        return np.random.default_rng(self.seed)

    @property
    def guesses(self) -> tuple[Guess, ...]:
        """What the attacker's other attacks said, each without the rows that it was told."""
        if not self.needs.guesses:
            raise _undeclared("what other attacks said", "guesses=True")
        return self._guesses

    def messages(self, kind: type[M], *, peer: str | None = None, sent: bool | None = None) -> Iterator[Recorded[M]]:
        """The kept messages of a declared kind, on all lines of the attacker or on those to one peer."""
        self._require(kind)
        return self._transcript.messages(kind, peer=peer, sent=sent)

    def peers(self, kind: type[Message], *, sent: bool) -> tuple[str, ...]:
        """With whom messages of a declared kind crossed in one direction, as far as anything of them was kept."""
        self._require(kind)
        lines = [(entry.kind, entry.sent, entry.peer) for entry in self._transcript.entries if entry.place is not None]
        lines += [(means.kind, means.sent, means.peer) for means in self._transcript.means]
        return tuple(dict.fromkeys(peer for *line, peer in lines if line == [kind.kind, sent]))

    def row_means(self, kind: type[Message], *, peer: str | None = None, sent: bool | None = None) -> Float32Array:
        """The mean per row over epochs of a declared kind of message, on one line."""
        self._require(kind)
        return self._transcript.row_means(kind, peer=peer, sent=sent)

    def save(self, directory: Path) -> None:
        """Write the view into a folder, from which the attack can be repeated elsewhere."""
        self._transcript.save(directory / "transcript")
        tree = {
            "public": self.public.to_json(),
            "grant": {**vars(self.grant), "columns": list(self.grant.columns)},
            "seed": self.seed,
            "has_table": self.own.has_table,
        }
        if self.own.has_table:
            self.own.table.save(directory / "table.arrow")
        if self.needs.own_model:
            self.own.model.save(directory / "model.safetensors")
        if self.needs.forest:
            write_tree(directory / "forest.safetensors", self.own.forest.state())
        write_tree(directory / "view.safetensors", tree)

    @classmethod
    def load(cls, directory: Path, needs: Needs, load_model: Callable[[Path], Estimator]) -> View:
        """Read back what `save` wrote; `load_model` reads the attacker's share of the model."""
        tree = read_tree(directory / "view.safetensors")
        return cls.cut(
            needs,
            Transcript.load(directory / "transcript"),
            public=PublicPlan.from_json(tree["public"]),
            grant=Grant(**tree["grant"]),
            table=Table.load(directory / "table.arrow") if needs.own_features and tree["has_table"] else None,
            model=load_model(directory / "model.safetensors") if needs.own_model else None,
            forest=ForestRecord.of(read_tree(directory / "forest.safetensors")) if needs.forest else None,
            seed=tree["seed"],
        )

    def _require(self, kind: type[Message]) -> None:
        if kind not in self.needs.messages:
            raise _undeclared(f"messages of kind {kind.kind}", f"messages=({kind.__name__},)")


def _undeclared(what: str, declaration: str) -> UndeclaredAccess:
    return UndeclaredAccess(
        f"This attack read {what} but had not declared it. Add {declaration} to its Needs, so the report says so."
    )
