"""Settings of an audit: who has what.

    Simulated    all parties' tables and recordings in one process, and the power to run again
    Mirror       a deployed party, alone: what it itself sent is what its peers received
    Joint        deployed parties by consent: the attacker guesses, the owner of the labels scores (`joint`)

A setting says who may attack whom, gives each attacker what it has, and knows which controls can be had. The loop over
attacks is the same in all of them (`engine`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, ClassVar

from colonnade.attacks.base import ActiveAttack, AnyAttack, Attack, Guess, Inapplicable
from colonnade.auditing.attempt import Attempt, PartyRecord, attack_seed, is_kept, name_of, training_rows
from colonnade.auditing.contents import Disclosure, Finding, RunIdentity
from colonnade.auditing.epochs import leak_over_epochs
from colonnade.auditing.null import NullJournal, null_values, permuted_truth_values
from colonnade.auditing.report import disclosures
from colonnade.auditing.subjects.base import Made, Subject, Truth, Values
from colonnade.auditing.subjects.by_secret import SUBJECTS
from colonnade.auditing.subjects.labels import class_numbers
from colonnade.catalogue import MODELS
from colonnade.errors import DataError, PlanError
from colonnade.privacy.ledger import Ledger
from colonnade.privacy.randomness import Randomness, Source
from colonnade.roles import PublicPlan
from colonnade.runtime.executor import Executor
from colonnade.runtime.simulate import Run
from colonnade.secret import Secret
from colonnade.tables.table import Table
from colonnade.wire.message import Int64Array
from colonnade.wire.recording.recording import Transcript


class Setting(ABC):
    """Who has what in an audit: tables, recordings and ledgers by party; and what grants and shuffles follow from.

    Attributes:
        joins: Whether all guesses of one attacker are joined into one more, which takes labels that nobody was told.
        progress: Whether to show bars; None shows them on a terminal only.
    """

    mode: ClassVar[str]
    joins: ClassVar[bool] = False
    identity: RunIdentity
    plan: PublicPlan
    tables: Mapping[str, Table]
    transcripts: Mapping[str, Transcript]
    ledgers: Mapping[str, Ledger]
    random: Randomness
    nulls: int
    delta: float
    progress: bool | None = False

    @abstractmethod
    def owners(self, subject: Subject, attack: AnyAttack) -> Sequence[str | None]:
        """The parties whose secret is at stake."""

    @abstractmethod
    def record(self, attacker: str) -> PartyRecord:
        """What an attacker has of the run."""

    def has_table(self, attacker: str) -> bool:
        """Whether the attacker's own table was there where its guesses were made."""
        return self.record(attacker).table is not None

    @abstractmethod
    def guess(self, attempt: Attempt, said: Sequence[Guess] = ()) -> Guess:
        """The attempt's guess; `said` is what other attempts of the attacker guessed about the same secret."""

    def attackers(self, owner: str) -> Sequence[str]:
        """The parties that may attack an owner."""
        return [party for party in self.plan.roles.parties if party != owner]

    @property
    def all_attackers(self) -> tuple[str, ...]:
        """The parties that may attack somebody."""
        allowed = {name for owner in self.tables for name in self.attackers(owner)}
        return tuple(name for name in self.plan.roles.parties if name in allowed)

    def title(self, attack: AnyAttack) -> str:
        """What an attack is called where it could not be made by anybody."""
        return name_of(attack)

    def why_not_audited(self, attack: AnyAttack) -> str | None:
        """Why an attack cannot be audited at all in this setting; None if it may."""
        subject = SUBJECTS.get(attack.about)
        if subject is None:
            return f"guesses about {attack.about} cannot be scored, only those about {', '.join(SUBJECTS)}"
        return subject.why_not_grantable(attack.needs)

    def why_not(self, attempt: Attempt, record: PartyRecord) -> str | None:
        """Why an attempt cannot be made in this setting; None if it can."""
        return attempt.why_not(record)

    def attempt(self, subject: Subject, attack: AnyAttack, attacker: str, owner: str) -> Attempt | str:
        """One attack by one party on one owner, or why it cannot be made."""
        record = self.record(attacker)
        grant = subject.grant(attack, owner, self.tables, self.training_rows(record), self.random)
        if isinstance(grant, str):
            return grant
        attempt = Attempt(attack, attacker, grant, attack_seed(self.random, attack, attacker))
        return self.why_not(attempt, record) or attempt

    def truth(self, attempt: Attempt) -> Truth:
        """What the attempt's guess is compared with."""
        rows = self.training_rows(self.record(attempt.attacker))
        return SUBJECTS[attempt.attack.about].truth(attempt, self.tables, rows, self.random)

    def training_rows(self, record: PartyRecord) -> Int64Array:
        """The rows that were trained on, as far as an attacker's recording says."""
        return training_rows(record.transcript, len(next(iter(self.tables.values()))))

    def attacked_ledgers(self, attempt: Attempt) -> Mapping[str, Ledger]:
        """The ledgers of the run that the attempt's guess was made on."""
        return self.ledgers

    def null(self, made: Sequence[Made]) -> list[list[Values] | str]:
        """What each attempt scores where there is nothing to find, or why that cannot be said."""
        return [permuted_truth_values(each, self.nulls, self.random) for each in made]

    def baseline(self, made: Made) -> Any:
        """What the attacker could do by itself; None where that is not known."""
        return None

    def unmeasured(self, findings: Sequence[Finding]) -> Iterable[str]:
        """What this setting cannot measure beside its findings."""
        return ()

    def over_epochs(self, made: Made, *, up_to_naming: bool) -> tuple[tuple[int, float], ...]:
        """The score of an attack on the messages of single epochs; none where these are not asked for or not kept."""
        return ()

    @property
    def disclosures(self) -> tuple[Disclosure, ...]:
        """What was sent, as far as the recordings at hand say."""
        return disclosures(self.transcripts)


class Simulated(Setting):
    """All parties ran in one process: every attack can be made and scored.

    The arguments are those of `audit`.
    """

    mode = "simulated"
    joins = True

    def __init__(
        self,
        run: Run[Any],
        nulls: int = 20,
        seed: int = 0,
        delta: float = 1e-5,
        executor: Executor | None = None,
        progress: bool | None = False,
        epochs: int = 0,
        attackers: Collection[str] | None = None,
        journal: NullJournal | None = None,
    ) -> None:
        if nulls < 1:
            raise PlanError(
                "An audit needs at least one null run to tell a leak from what the attacker's own columns say, "
                f"but nulls is {nulls}. Use 20."
            )
        run = run.on_aligned_rows()
        self.run, self.plan, self.tables = run, run.plan, run.simulation.tables
        self.transcripts, self.ledgers = run.transcripts, run.ledgers
        self.random, self.nulls, self.delta = Randomness.seeded(seed), nulls, delta
        n_rows, seed = len(self.tables[self.plan.roles.holders[0]]), run.simulation.seed
        n_classes = _n_classes(self.plan, self.tables)
        self.identity = RunIdentity.of(
            self.plan, self.mode, n_rows=n_rows, randomness="seeded", seed=seed, n_classes=n_classes
        )
        self.progress = progress
        self._executor, self._epochs, self._journal = executor, epochs, journal
        self._attackers = self.plan.roles.parties if attackers is None else attackers
        for name in self._attackers:
            if name not in self.plan.roles.parties:
                raise PlanError(
                    f"An attacker should be a party of the run, one of {', '.join(self.plan.roles.parties)}, but "
                    f"{name} was named. Name another."
                )
        self._staged_runs: dict[Secret, Run[Any]] = {}
        self._baselines: dict[tuple[Any, ...], Any] = {}

    def owners(self, subject: Subject, attack: AnyAttack) -> Sequence[str | None]:
        return subject.owners(attack, self.plan.roles)

    def attackers(self, owner: str) -> Sequence[str]:
        return [party for party in super().attackers(owner) if party in self._attackers]

    def record(self, attacker: str) -> PartyRecord:
        return PartyRecord.of(self.run, attacker)

    def guess(self, attempt: Attempt, said: Sequence[Guess] = ()) -> Guess:
        staged = self._staged(attempt)
        return attempt.guess(staged.simulation, lambda: staged, said)

    def attacked_ledgers(self, attempt: Attempt) -> Mapping[str, Ledger]:
        return self._staged(attempt).ledgers

    def null(self, made: Sequence[Made]) -> list[list[Values] | str]:
        return null_values(
            self.run.simulation,
            made,
            n=self.nulls,
            random=self.random,
            executor=self._executor,
            progress=self.progress,
            journal=self._journal,
        )

    def baseline(self, made: Made) -> Any:
        attempt, rows, subject = made.attempt, made.guess.rows, SUBJECTS[made.attempt.attack.about]
        record = self.record(attempt.attacker)
        whose = attempt.attack.about, attempt.attacker, attempt.grant.owner
        key = (*whose, subject.baseline_needs(attempt, rows, record))
        if key not in self._baselines:
            self._baselines[key] = subject.baseline(attempt, rows, record, self.random)
        return self._baselines[key]

    def over_epochs(self, made: Made, *, up_to_naming: bool) -> tuple[tuple[int, float], ...]:
        return leak_over_epochs(self._kept_run, made, self._epochs, up_to_naming=up_to_naming) if self._epochs else ()

    @cached_property
    def _kept_run(self) -> Run[Any]:
        """The same run once more, with every message kept."""
        return replace(self.run.simulation, keep="all").run()

    def _staged(self, attempt: Attempt) -> Run[Any]:
        secret = attempt.attack.about
        if secret not in self._staged_runs:
            self._staged_runs[secret] = SUBJECTS[secret].stage(self.run, self.random)
        return self._staged_runs[secret]


class OwnSide(Setting):
    """What one deployed party has: its own table and recording, in which what it sent is what its peers received."""

    def __init__(
        self,
        plan: PublicPlan,
        transcript: Transcript,
        table: Table,
        ledgers: Mapping[str, Ledger],
        *,
        nulls: int,
        random: Randomness,
        delta: float,
        randomness: Source,
        insecure: bool,
    ) -> None:
        require_permutations(nulls)
        require_rows(transcript, table)
        self.plan, self.owner, self.ledgers = plan, transcript.party, ledgers
        self.tables, self.transcripts = {self.owner: table}, {self.owner: transcript}
        self.random, self.nulls, self.delta = random, nulls, delta
        self.identity = RunIdentity.of(
            plan,
            self.mode,
            n_rows=len(table),
            randomness=randomness,
            insecure=insecure,
            n_classes=_n_classes(plan, self.tables),
        )

    def owners(self, subject: Subject, attack: AnyAttack) -> Sequence[str | None]:
        return (self.owner,)

    def record(self, attacker: str) -> PartyRecord:
        return PartyRecord(self.plan, self.transcripts[self.owner].mirrored(attacker))


class Mirror(OwnSide):
    """A deployed party, alone, attacks what it itself sent, with the grants it can give.

    What bank sent to shop is what shop received, so an attack that needs nothing else can be made without shop: nobody
    is asked, nothing is run again. What needs shop's own columns, model or messages is untested, and so is what shop
    could do alone. The null is weaker than in a simulation: it rules out luck, but not that the messages tell only what
    shop's own columns say already.
    """

    mode = "mirror"

    def why_not_audited(self, attack: AnyAttack) -> str | None:
        return super().why_not_audited(attack) or SUBJECTS[attack.about].in_simulation_only or None

    def why_not(self, attempt: Attempt, record: PartyRecord) -> str | None:
        attack, attacker, owner, seen = attempt.attack, attempt.attacker, self.owner, record.transcript
        if isinstance(attack, ActiveAttack):
            return f"it needs {attacker}'s own part in a run, and a mirror audit runs nothing"
        sent = {entry.kind for entry in seen.entries}
        kinds = sorted(message.kind for message in attack.needs.messages)
        if kinds and sent.isdisjoint(kinds):
            return Inapplicable(f"it needs {' or '.join(kinds)}, but {owner} sent {attacker} none")
        if attack.needs.forest and not any(kind.startswith("trees/") for kind in sent):
            return Inapplicable(f"it needs what {attacker} saw of a forest, and {owner} and {attacker} grew none")
        own = ["columns"] * attack.needs.needs_table + ["model"] * attack.needs.own_model
        own += ["record of the forest"] * bool(attack.needs.forest)
        if own:
            return f"it needs {attacker}'s own {' and '.join(own)}"
        for kind in kinds:
            entries = [entry for entry in seen.entries if entry.kind == kind]
            if not entries:
                return f"it needs {kind}, but {owner} sent {attacker} none"
            if not is_kept(seen, kind):
                if all(entry.sent for entry in entries):
                    return f"it needs {attacker}'s own {kind}, but {owner} kept only digests"
                return f"it needs {kind}, but {owner} kept only digests; run with keep='audit'"
        return attempt.why_not(record)

    def guess(self, attempt: Attempt, said: Sequence[Guess] = ()) -> Guess:
        assert isinstance(attempt.attack, Attack)
        return attempt.attack.guess(attempt.view_on(self.record(attempt.attacker), said))

    def unmeasured(self, findings: Sequence[Finding]) -> Iterable[str]:
        for name in dict.fromkeys(finding.attacker for finding in findings):
            yield f"what {name} could do alone: it needs {name}'s own columns"


def _n_classes(plan: PublicPlan, tables: Mapping[str, Table]) -> int | None:
    """How many classes labels have; 0 where they are no classes, None where nobody here holds them."""
    label = plan.roles.label
    trained = plan.protocol.partition(".")[0]
    model = next((name for name in MODELS if MODELS.class_name(name) == trained), None)
    if model is not None and MODELS[model].task == "regression":
        return 0
    if label is None or label not in tables:
        return None
    return 0 if SUBJECTS[Secret.LABELS].why_not_scorable(label, tables) else class_numbers(tables[label])[1]


def require_permutations(nulls: int) -> None:
    """Refuse an audit without a null."""
    if nulls < 1:
        raise PlanError(
            "An audit needs at least one permutation of the labels to tell a leak from luck, "
            f"but nulls is {nulls}. Use 200."
        )


def require_rows(transcript: Transcript, table: Table) -> None:
    """Refuse a table that has fewer rows than a recording is about."""
    n = max((len(means.counts) for means in transcript.means), default=0)
    if n > len(table):
        raise DataError(
            f"{transcript.party}'s table should hold the rows of the run, and the recording is about at least {n} "
            f"rows, but the table has {len(table)}. Give the rows that the run was made on, in the same order."
        )
