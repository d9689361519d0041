"""Subject: what attacks of one kind are about. Truth: what a guess about it is compared with.

A subject says who attacks whom, what is granted, what is true, how a guess is scored, and which controls stand beside
the score. It knows nothing of who audits: the settings of an audit (`colonnade.auditing.settings`) hand it tables.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self, TypeAlias

import numpy as np

from colonnade.attacks.base import AnyAttack, Attack, Grant, Guess, Needs
from colonnade.auditing.attempt import Attempt, PartyRecord, training_rows
from colonnade.auditing.contents import Evidence, Measure
from colonnade.errors import PlanError
from colonnade.privacy.ledger import Ledger
from colonnade.privacy.randomness import Randomness
from colonnade.roles import Roles
from colonnade.runtime.simulate import Run
from colonnade.secret import Secret
from colonnade.tables.table import Table
from colonnade.wire.message import Float64Array, Int64Array

Tables: TypeAlias = Mapping[str, Table]

RESAMPLES = 1000
TAILS = (0.025, 0.975)
GRANTABLE = ("known_labels", "known_records", "prior", "candidates")


@dataclass(frozen=True)
class Values:
    """What one guess is worth: under its own names of the classes, and under the best ones."""

    plain: float
    up_to_naming: float


class Truth(ABC):
    """What a guess is compared with; it knows which rows were given away and are never scored."""

    granted: Int64Array

    @property
    @abstractmethod
    def n_rows(self) -> int:
        """How many rows there are."""

    @abstractmethod
    def measure(self, guess: Guess) -> Measure:
        """What a guess is scored by."""

    @abstractmethod
    def wrong_values(self, guess: Guess) -> tuple[np.ndarray[Any, Any], str]:
        """Which rows of a guess have values that cannot be compared with the truth, and what was wanted."""

    @abstractmethod
    def too_little(self, guess: Guess) -> str | None:
        """Why what is left of a guess without the granted rows tells nothing; None if it may."""

    @abstractmethod
    def scores(self, guess: Guess) -> Values:
        """What a guess is worth."""

    @abstractmethod
    def permuted(self, random: np.random.Generator) -> Self:
        """The same with the truth shuffled among the rows that are scored."""

    @abstractmethod
    def deviation(self, guess: Guess) -> float:
        """By how many standard deviations a guess exceeds its mean over all orders of the truth."""

    @property
    def scored_rows(self) -> Int64Array:
        """The rows that may be scored."""
        return np.setdiff1d(np.arange(self.n_rows), self.granted)

    def without(self, rows: Int64Array) -> Self:
        """The same where some more rows are not scored."""
        return replace(self, granted=np.union1d(self.granted, rows))  # type: ignore[type-var]

    def why_not(self, guess: Guess) -> str | None:
        """Why a guess cannot be compared with the truth; None if it can."""
        outside = int(((guess.rows < 0) | (guess.rows >= self.n_rows)).sum())
        repeated = len(guess.rows) - len(np.unique(guess.rows))
        if outside or repeated:
            return (
                f"it should guess each of {self.n_rows} rows at most once, but {outside} of its rows do not exist and "
                f"{repeated} are repeated"
            )
        wrong, wanted = self.wrong_values(guess)
        if wrong.any():
            return f"it should guess {wanted}, but {int(wrong.sum())} of {len(wrong)} values are something else"
        return None

    def scorable(self, guess: Guess, *, attack: str) -> Guess:
        """The part of a guess that may be scored: without the granted rows.

        Args:
            guess: What the attack said.
            attack: What the attack is called in an error.
        """
        if reason := self.why_not(guess):
            raise PlanError(
                f"{attack} cannot be scored: {reason}. Correct the attack, or let it leave out the rows it cannot "
                "guess."
            )
        return guess.only(~np.isin(guess.rows, self.granted))

    def scored_part(self, guess: Guess) -> Guess | str:
        """The part of a guess that can be scored, or why there is none."""
        if reason := self.why_not(guess):
            return reason
        kept = guess.only(~np.isin(guess.rows, self.granted))
        if not len(kept.rows):
            return "it guessed no row that had not been granted"
        return self.too_little(kept) or kept


@dataclass(frozen=True)
class Made:
    """A guess that was made: by which attempt, compared with what, on a run that left which ledgers."""

    attempt: Attempt
    truth: Truth
    guess: Guess
    ledgers: Mapping[str, Ledger]


def read_by(attempt: Attempt, made: Iterable[Made]) -> list[Made]:
    """What an attempt that reads other guesses is given: those of the same attacker's honest part in the run."""

    def key(attempt: Attempt) -> tuple[str, str, Secret]:
        return attempt.attacker, attempt.grant.owner, attempt.attack.about

    others = [
        each for each in made if isinstance(each.attempt.attack, Attack) and not each.attempt.attack.needs.guesses
    ]
    return [each for each in others if attempt.attack.needs.guesses and key(each.attempt) == key(attempt)]


@dataclass(frozen=True)
class Judgement:
    """The evidence for a guess, what to say besides, and what a subject measures of its own."""

    plain: Evidence
    up_to_naming: Evidence | None = None
    remark: str = ""
    measured: Any = None


class Subject(ABC):
    """What attacks of one kind are about.

    Attributes:
        secret: The secret that is guessed.
        grants: The needs that an audit of this subject can grant.
        in_simulation_only: Why an audit needs a simulation for this subject; empty where it does not.
        one_owner: Whether there is one party whose secret this is, which needs no mention.
    """

    secret: ClassVar[Secret]
    grants: ClassVar[frozenset[str]] = frozenset()
    in_simulation_only: ClassVar[str] = ""
    one_owner: ClassVar[bool] = False

    def why_not_grantable(self, needs: Needs) -> str | None:
        """Why an attack cannot be given what it needs; None if it can."""
        for need in GRANTABLE:
            if getattr(needs, need) and need not in self.grants:
                return f"it needs {need}, which an audit of {self.secret} cannot grant"
        return None

    @abstractmethod
    def owners(self, attack: AnyAttack, roles: Roles) -> Sequence[str | None]:
        """The parties whose secret the attack may be about; None where nobody holds one."""

    @abstractmethod
    def why_not_scorable(self, owner: str | None, tables: Tables) -> str | None:
        """Why guesses about an owner's secret cannot be scored; None if they can."""

    @abstractmethod
    def grant(self, attack: AnyAttack, owner: str, tables: Tables, rows: Int64Array, random: Randomness) -> Grant | str:
        """What the attack is told about an owner's secret, or why it cannot be told what it needs.

        Known rows are drawn from `rows`, those that were trained on, alike for all attacks.
        """

    @abstractmethod
    def truth(self, attempt: Attempt, tables: Tables, rows: Int64Array, random: Randomness) -> Truth:
        """What the attempt's guess is compared with. The arguments are those of `grant`."""

    @abstractmethod
    def shuffled(self, tables: Tables, roles: Roles, attacker: str, random: Randomness) -> dict[str, Table]:
        """Tables in which the secret has nothing to do with the rows any more; the attacker's own stays as it is."""

    @abstractmethod
    def judge(
        self, made: Made, null: Sequence[Values], baseline: Any, random: np.random.Generator, delta: float
    ) -> Judgement:
        """The evidence for a guess, which has no granted rows.

        Controls stand beside it: `null` is scored where there is nothing to find, and `baseline` is what the method of
        this name returned, or None where nobody knows it.
        """

    def baseline(self, attempt: Attempt, rows: Int64Array, record: PartyRecord, random: Randomness) -> Any:
        """What an honest attacker could say about the guessed rows, given its record; None where not needed."""
        return None

    def baseline_needs(self, attempt: Attempt, rows: Int64Array, record: PartyRecord) -> Hashable:
        """What the attempt's baseline depends on beside its attacker and owner; the same is computed once."""
        return attempt.attack.needs, np.sort(rows).tobytes()

    def null_group(self, attempt: Attempt) -> str:
        """Attempts of one group share their null runs."""
        return ""

    def null(self, made: Made, n: int, random: np.random.Generator) -> list[Values] | None:
        """What is scored where there is nothing to find; None where only runs on shuffled tables tell."""
        return None

    def stage(self, run: Run[Any], random: Randomness) -> Run[Any]:
        """The run on which guesses are made."""
        return run

    def honest_trial(
        self, run: Run[Any], attack: AnyAttack, attacker: str, owner: str, random: Randomness, number: int
    ) -> tuple[Attempt, Truth] | str:
        """An attempt granted and scored from a shuffled truth, on which nothing else depends; or why there is none."""
        tables, random = run.simulation.tables, random.child(number)
        shuffled = {**tables, **self.shuffled(tables, run.plan.roles, attacker, random)}
        n_rows = len(tables[run.plan.roles.holders[0]])
        rows = training_rows(run.transcripts[attacker], n_rows)
        grant = self.grant(attack, owner, shuffled, rows, random)
        if isinstance(grant, str):
            return grant
        attempt = Attempt(attack, attacker, grant, random.seed("attack"))
        # A grant changes what is left among the rows it was drawn from, so only these are scored.
        return attempt, self.truth(attempt, shuffled, rows, random).without(np.setdiff1d(np.arange(n_rows), rows))


def deviation(x: Float64Array, y: Float64Array) -> float:
    """By how many standard deviations the sum of products of x and y exceeds its mean over all orders of y's rows.

    Mean and variance are the classical ones of linear permutation statistics (Hoeffding 1951).
    """
    x, y = x - x.mean(axis=0), y - y.mean(axis=0)
    variance = ((x.T @ x) * (y.T @ y)).sum() / max(len(x) - 1, 1)
    return float((x * y).sum() / math.sqrt(variance)) if variance > 0 else 0.0
