"""The joint audit: after a deployed run, by consent, one party attacks and the owner of the labels scores.

    owner of the labels                          attacker
         LabelGrant ─────────────────────────────────▶         for each attack
         ◀──────────────────────────────── LabelGuess
         ◀────────────────────────────── AloneRatings          if it made a guess

The attacker looks at its own recording of the earlier run, which must have kept what it received. The attacker learns
the labels it is told, which are charged to the owner's ledger as not private, and how many classes there are; it never
learns a score. The owner learns the guesses, and what the attacker's columns say by themselves. The owner trusts the
attacker to have made the attacks that both agreed on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from colonnade.attacks.base import ActiveAttack, AnyAttack, Attack, Grant, Guess
from colonnade.auditing.attempt import Attempt, PartyRecord, attack_seed, name_of, tried
from colonnade.auditing.contents import Disclosure
from colonnade.auditing.engine import report_on
from colonnade.auditing.report import PrivacyReport
from colonnade.auditing.settings import OwnSide, require_permutations, require_rows
from colonnade.auditing.subjects.base import Made, Subject
from colonnade.auditing.subjects.by_secret import SUBJECTS
from colonnade.auditing.subjects.labels import Baseline
from colonnade.errors import PlanError, ProtocolError
from colonnade.models.base import Estimator
from colonnade.privacy.ledger import Event, Ledger
from colonnade.privacy.randomness import Randomness, Source
from colonnade.roles import PublicPlan, Roles
from colonnade.runtime.party import Party
from colonnade.secret import Secret
from colonnade.wire.channel import Channel
from colonnade.wire.message import Float64Array, Int64Array, Message
from colonnade.wire.recording.recording import Transcript

LONGEST_REASON = 300
MOST_CLASSES = 10_000
NOTHING: Int64Array = np.zeros(0, np.int64)


@dataclass(frozen=True)
class LabelGrant(Message, kind="audit/grant", reveals={Secret.LABELS}):
    """The labels that an attack is told; whether a guess is wanted at all."""

    attack: int
    wanted: int
    n_classes: int
    rows: Int64Array
    labels: Int64Array


@dataclass(frozen=True)
class LabelGuess(Message, kind="audit/guess", reveals={Secret.FEATURES, Secret.MODEL}, varies=True):
    """What an attack says: classes or scores, the other being empty; or why it does not apply."""

    attack: int
    unfit: str
    rows: Int64Array
    classes: Int64Array
    scores: Float64Array


@dataclass(frozen=True)
class AloneRatings(Message, kind="audit/alone", reveals={Secret.FEATURES}, varies=True):
    """How the attacker's columns alone rate every class for some rows, by each method; named ones come first."""

    attack: int
    rows: Int64Array
    methods: list[str]
    n_named: int
    ratings: list[Float64Array]


@dataclass(frozen=True)
class JointAudit:
    """A protocol: both parties run it, each with its own recording of the run that is audited.

    The owner of the labels gets a report, everybody else None.

    >>> audited = PublicPlan(Roles(label="bank", features=("shop", "telco")), "SplitClassifier.fit")
    >>> JointAudit(audited, (), attacker="shop", transcript=Transcript("bank")).plan.roles
    Roles(features=('shop',), label='bank', arbiter=None, server=None)

    Attributes:
        audited: The plan of the run that is audited.
        attacks: The attacks to make; the same at both parties.
        attacker: Who makes them.
        transcript: This party's own recording of that run.
        ledger: At the owner: what it spent in that run.
        model: At the attacker: its share of the model, if there is one.
        nulls: At the owner: against how many permutations of the labels each guess is scored.
        seed: This party's own, and secret: from the seed of a grant, labels could be inferred that were not told. None
            takes the party's own randomness.
        delta: At which the privacy budget is told.
        randomness: At the owner: how its noise was drawn in that run, as its `run.json` says.
        insecure: At the owner: whether that run was without TLS, as its `run.json` says.
    """

    audited: PublicPlan
    attacks: Sequence[AnyAttack]
    attacker: str
    transcript: Transcript
    ledger: Ledger | None = None
    model: Estimator | None = None
    nulls: int = 200
    seed: int | None = None
    delta: float = 1e-5
    randomness: Source = "system"
    insecure: bool = False

    def __post_init__(self) -> None:
        require_permutations(self.nulls)
        others = [name for name in self.audited.roles.parties if name != self.audited.roles.label]
        if self.audited.roles.label is None:
            raise PlanError(
                "A joint audit needs an owner of labels, but the audited run has no label party. Audit another run."
            )
        if self.attacker not in others:
            raise PlanError(
                f"A joint audit needs an attacker other than the label party, but {self.attacker} was named. "
                f"Name one of {', '.join(others) or 'another run'}."
            )

    @property
    def owner(self) -> str:
        """Whose labels are at stake."""
        assert self.audited.roles.label is not None
        return self.audited.roles.label

    @property
    def plan(self) -> PublicPlan:
        """What both parties agree on by taking part: which run, which attacks, by whom."""
        roles, attacker = self.audited.roles, self.attacker
        return PublicPlan(
            Roles(
                label=self.owner,
                features=tuple(name for name in roles.features if name == attacker),
                arbiter=attacker if attacker == roles.arbiter else None,
                server=attacker if attacker == roles.server else None,
            ),
            protocol="JointAudit",
            settings={
                "audits": self.audited.hash,
                "attacker": attacker,
                "attacks": [name_of(attack) for attack in self.attacks],
            },
            seed=self.audited.seed,
        )

    def __call__(self, party: Party) -> PrivacyReport | None:
        if party.name not in (self.owner, self.attacker):
            return None
        if self.transcript.party != party.name:
            raise PlanError(
                f"{party.name} should bring its own recording of the audited run, but this one is "
                f"{self.transcript.party}'s. Name the folder of its own run."
            )
        if party.table is not None:
            require_rows(self.transcript, party.table)
        if self.seed is None:
            # Of the folder, not of the run: an attacker that comes back in a new folder is told the same labels.
            drawn = party.once("folder audit", lambda: party.random.child("audit").key)
            random = Randomness.from_key(drawn, source=party.random.source)
        else:
            random = Randomness.seeded(self.seed)
        if party.name == self.owner:
            return report_on(Joint(self, party, random), self.attacks)
        self._attack(party, random)
        return None

    def _attack(self, party: Party, random: Randomness) -> None:
        line = party.peers[self.owner]
        record = PartyRecord(self.audited, self.transcript, party.table, self.model)
        for number, attack in enumerate(self.attacks):
            if isinstance(attack, ActiveAttack):
                continue
            told = line.receive(LabelGrant, fields={"attack": number})
            if not told.wanted:
                continue
            grant = _grant(told, attack, None if party.table is None else len(party.table), line)
            attempt = Attempt(attack, party.name, grant, attack_seed(random, attack, party.name))
            guess: Guess | str = attempt.why_not(record, setting="keep_received='audit'") or ""
            if not guess:
                guess = tried(partial(attack.guess, attempt.view_on(record)))
            if isinstance(guess, Guess) and guess.values is not None:
                guess = "it should guess classes or scores, but it guesses records"
            if isinstance(guess, str):
                line.send(LabelGuess(number, guess, NOTHING, NOTHING, np.zeros(0)))
                continue
            classes = NOTHING if guess.classes is None else guess.classes
            scores = np.zeros(0) if guess.scores is None else guess.scores
            line.send(LabelGuess(number, "", guess.rows, classes, scores))
            alone = SUBJECTS[Secret.LABELS].baseline(attempt, guess.rows, record, random)
            methods = {**alone.named, **alone.unnamed}
            line.send(AloneRatings(number, alone.rows, list(methods), len(alone.named), list(methods.values())))


class Joint(OwnSide):
    """What the owner of the labels has in a joint audit: its own side, and a line over which guesses come."""

    mode = "joint"

    def __init__(self, joint: JointAudit, party: Party, random: Randomness) -> None:
        super().__init__(
            joint.audited,
            joint.transcript,
            party.own_table,
            {joint.owner: joint.ledger or Ledger(), "the audit itself": party.ledger},
            nulls=joint.nulls,
            random=random,
            delta=joint.delta,
            randomness=joint.randomness,
            insecure=joint.insecure,
        )
        self.attacker = joint.attacker
        self._line, self._spend = party.peers[self.attacker], party.ledger.spend
        self._number = -1
        self._answers: dict[int, tuple[Guess, Baseline]] = {}

    @property
    def disclosures(self) -> tuple[Disclosure, ...]:
        return tuple(each for each in super().disclosures if each.receiver == self.attacker)

    def attackers(self, owner: str) -> Sequence[str]:
        return (self.attacker,)

    def has_table(self, attacker: str) -> bool:
        # The table stays at the attacker, and `connect` sees to it that every holder brings one.
        return attacker in self.plan.roles.holders

    def title(self, attack: AnyAttack) -> str:
        return f"{name_of(attack)} by {self.attacker}"

    def why_not_audited(self, attack: AnyAttack) -> str | None:
        """The engine asks this once for each attack, in their order, which is the order of the messages."""
        self._number += 1
        if isinstance(attack, ActiveAttack):
            return "it takes part in a run, and the one that a joint audit looks at is over"
        reason = super().why_not_audited(attack)
        if reason is None and attack.about is not Secret.LABELS:
            reason = f"a joint audit scores guesses about labels, not about {attack.about}"
        reason = reason or SUBJECTS[attack.about].why_not_scorable(self.owner, self.tables)
        if reason:
            self._line.send(LabelGrant(self._number, 0, 0, NOTHING, NOTHING))
        return reason

    def attempt(self, subject: Subject, attack: AnyAttack, attacker: str, owner: str) -> Attempt | str:
        rows = self.training_rows(self.record(attacker))
        grant = subject.grant(attack, owner, self.tables, rows, self.random)
        if isinstance(grant, str):
            self._line.send(LabelGrant(self._number, 0, 0, NOTHING, NOTHING))
            return grant
        if len(grant.rows):
            told = Event.not_private(Secret.LABELS, f"labels told to {attacker} in a joint audit")
            self._spend(told, len(grant.rows), identity=f"{self.plan.hash} {self._number}".encode())
        self._line.send(LabelGrant(self._number, 1, grant.n_classes, grant.rows, grant.labels))
        said = self._line.receive(LabelGuess, fields={"attack": self._number})
        if said.unfit:
            return said.unfit[:LONGEST_REASON]
        ratings = self._line.receive(AloneRatings, fields={"attack": self._number})
        attempt = Attempt(attack, attacker, grant, seed=0)
        baseline = _baseline(ratings, grant.n_classes, self._line)
        self._answers[id(attempt)] = _guess(said, self._line), baseline
        return attempt

    def guess(self, attempt: Attempt, said: Sequence[Guess] = ()) -> Guess:
        return self._answers[id(attempt)][0]

    def baseline(self, made: Made) -> Baseline:
        return self._answers[id(made.attempt)][1]


def _grant(told: LabelGrant, attack: Attack, n_rows: int | None, line: Channel) -> Grant:
    """What the owner tells, as far as it is what the attack asks for."""
    rows, labels, needs = told.rows, told.labels, attack.needs
    n_classes = min(max(told.n_classes, 1), MOST_CLASSES)
    least, most, known = needs.known_labels, needs.most_per_class(n_classes), len(rows) // n_classes
    if (
        n_classes != told.n_classes
        or not least <= known <= most
        or rows.shape != (known * told.n_classes,)
        or labels.shape != rows.shape
        or not (np.sort(labels) == np.repeat(np.arange(told.n_classes), known)).all()
        or len(np.unique(rows)) != len(rows)
        or (rows < 0).any()
        or (n_rows is not None and (rows >= n_rows).any())
    ):
        expected = f"{least}" if least == most else f"{least} to {most}"
        raise ProtocolError(
            f"Expected {line.peer} to tell {expected} labels of each of {told.n_classes} classes, but it tells "
            f"something else in {len(rows)} labels. Check that both parties run the same version on the same rows."
        )
    return Grant(told.n_classes, rows, labels, owner=line.peer)


def _guess(said: LabelGuess, line: Channel) -> Guess:
    if said.rows.ndim == 1 and said.classes.shape == said.rows.shape and not said.scores.size:
        return Guess(said.rows, classes=said.classes)
    if said.rows.ndim == 1 and said.scores.shape == said.rows.shape and not said.classes.size:
        return Guess(said.rows, scores=said.scores)
    raise ProtocolError(
        f"Expected {line.peer} to guess one class or one score for each row, but it sent {said.rows.size} rows, "
        f"{said.classes.size} classes and {said.scores.size} scores. Check that both run the same version."
    )


def _baseline(said: AloneRatings, n_classes: int, line: Channel) -> Baseline:
    wanted = (len(said.rows), n_classes)
    if len(said.methods) != len(said.ratings) or any(rating.shape != wanted for rating in said.ratings):
        raise ProtocolError(
            f"Expected {line.peer} to rate {n_classes} classes for each of {len(said.rows)} rows by "
            f"{len(said.methods)} methods, but its {len(said.ratings)} ratings are of other shapes. "
            "Check that both run the same version."
        )
    by_method = list(zip(said.methods, said.ratings, strict=True))
    return Baseline(said.rows, dict(by_method[: said.n_named]), dict(by_method[said.n_named :]))
