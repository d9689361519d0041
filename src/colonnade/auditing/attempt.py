"""Attempt: one attack by one party, with what it is told beforehand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from inspect import signature
from typing import Any, TypeVar

import numpy as np

from colonnade.attacks.base import ActiveAttack, AnyAttack, Attack, Grant, Guess, Inapplicable
from colonnade.attacks.view import View
from colonnade.errors import PlanError, PrivacyError, UndeclaredAccess
from colonnade.models.base import Estimator
from colonnade.models.trees.record import ForestRecord, SawForest
from colonnade.privacy.randomness import Randomness
from colonnade.roles import PublicPlan
from colonnade.runtime.party import Party
from colonnade.runtime.protocol import Protocol, describe
from colonnade.runtime.simulate import Run, Simulation
from colonnade.tables.table import Table
from colonnade.wire.message import Int64Array
from colonnade.wire.recording.recording import Transcript

T = TypeVar("T")


@dataclass(frozen=True)
class PartyRecord:
    """What one party has of a run when it is over: all that an attack by this party may be given."""

    plan: PublicPlan
    transcript: Transcript
    table: Table | None = None
    model: Estimator | None = None

    @property
    def forest(self) -> ForestRecord | None:
        """What the party saw of a forest, as far as its share of the model holds it."""
        return self.model.forest_record if isinstance(self.model, SawForest) else None

    @classmethod
    def of(cls, run: Run[Any], party: str) -> PartyRecord:
        """One party's record of a simulated run."""
        model = run.results[party]
        return cls(
            run.plan,
            run.transcripts[party],
            run.simulation.tables.get(party),
            model if isinstance(model, Estimator) else None,
        )


@dataclass(frozen=True)
class Attempt:
    """One attack by one party, with what it is told beforehand.

    The same attempt is made on the run that is audited and on its nulls.
    """

    attack: AnyAttack
    attacker: str
    grant: Grant
    seed: int

    @property
    def name(self) -> str:
        """What the attack is called."""
        return name_of(self.attack)

    def why_not(self, record: PartyRecord, *, setting: str = "keep='audit'") -> str | None:
        """Why the attempt cannot be made from what the attacker has of a run; None if it can.

        Args:
            record: What the attacker has.
            setting: What would have kept the messages that are missing.
        """
        needs, attacker = self.attack.needs, self.attacker
        if needs.needs_table and record.table is None:
            return Inapplicable(f"it needs a table and {attacker} has none")
        if needs.own_model and record.model is None:
            return f"it needs {attacker}'s share of the model, and this run left none"
        if needs.forest and record.forest is None:
            return Inapplicable(f"it needs what {attacker} saw of a forest, and this run left none")
        kinds = {message.kind for message in needs.messages}
        if kinds and not kinds & {entry.kind for entry in record.transcript.entries}:
            return Inapplicable(f"{attacker} sent and received no {' or '.join(sorted(kinds))}")
        if kinds and not any(is_kept(record.transcript, kind) for kind in kinds):
            return f"the run kept only digests of {' and '.join(sorted(kinds))}; run with {setting}"
        return tried(partial(self.attack.why_not, self.view_on(record)))

    def guess(self, simulation: Simulation[Any], run: Callable[[], Run[Any]], said: Sequence[Guess] = ()) -> Guess:
        """The attack's one guess: about a run, or by taking part in the same simulation.

        Args:
            simulation: What the attacker would take part in.
            run: The run that the attacker looks at.
            said: What other attacks of the attacker guessed, each without the rows that it was told.
        """
        if isinstance(self.attack, Attack):
            return self.attack.guess(self.view(run(), said))
        instead = {**simulation.instead, self.attacker: self._play}
        guess = simulation.changed(instead=instead).run().results[self.attacker]
        if not isinstance(guess, Guess):
            raise PlanError(
                f"{self.name} should return a Guess from play, but returned a {type(guess).__name__}. "
                "Correct the attack."
            )
        return guess

    def view(self, run: Run[Any], said: Sequence[Guess] = ()) -> View:
        """What the attacker saw of a run, cut to what the attack declared."""
        return self.view_on(PartyRecord.of(run, self.attacker), said)

    def view_on(self, record: PartyRecord, said: Sequence[Guess] = ()) -> View:
        """What the attacker has of a run, cut to what the attack declared."""
        return View.cut(
            self.attack.needs,
            record.transcript,
            public=record.plan,
            grant=self.grant,
            table=record.table,
            model=record.model,
            forest=record.forest,
            seed=self.seed,
            guesses=said,
        )

    def _play(self, party: Party, honest: Protocol[Any]) -> Guess:
        assert isinstance(self.attack, ActiveAttack)
        return self.attack.play(party, honest, self.grant)


def tried(act: Callable[[], T]) -> T | str:
    """What an attack returns, or why it returns nothing: it read several lines as one, for instance."""
    try:
        return act()
    except UndeclaredAccess:
        raise
    except PrivacyError as error:
        return str(error)


def name_of(attack: AnyAttack) -> str:
    """An attack's class, with those of its arguments that differ from their defaults."""
    defaults = {name: describe(each.default) for name, each in signature(type(attack)).parameters.items()}
    given = {name: describe(value) for name, value in vars(attack).items() if name in defaults}
    settings = ", ".join(f"{name}={value}" for name, value in given.items() if value != defaults[name])
    return type(attack).__name__ + (f"({settings})" if settings else "")


def attack_seed(random: Randomness, attack: AnyAttack, attacker: str) -> int:
    """What an attack's own randomness starts from."""
    return random.seed("attack", name_of(attack), attacker)


def training_rows(transcript: Transcript, n_rows: int) -> Int64Array:
    """The rows that a party's messages in training were about; all where the recording does not say."""
    # Embeddings also cross for rows that are held out; only rows that were trained on are in every line.
    seen = np.full(n_rows, bool(transcript.means))
    for means in transcript.means:
        counts = np.zeros(n_rows, np.int64)
        counts[: len(means.counts)] = means.counts
        seen &= counts > 0
    return np.flatnonzero(seen) if seen.any() else np.arange(n_rows)


def is_kept(transcript: Transcript, kind: str) -> bool:
    """Whether messages of a kind were kept, whole or as means."""
    return any(means.kind == kind for means in transcript.means) or any(
        entry.kind == kind and entry.place is not None for entry in transcript.entries
    )
