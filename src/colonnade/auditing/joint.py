"""The joint audit: after a deployed run, by consent, one party attacks and the owner of the labels scores.

    owner of the labels                          attacker
         LabelGrant ─────────────────────────────────▶         for each attack
         ◀──────────────────────────────── LabelGuess
         ◀────────────────────────────── AloneRatings          if it made a guess

The attacker looks at its own recording of the earlier run, which must have kept what it received. It learns the labels
it is told, which are charged to the owner's ledger as not private, and how many classes there are; it never learns a
score. The owner learns the guesses, and what the attacker's columns say by themselves. How strong the attacker was, the
owner knows only as far as it trusts the attacker to have done what both agreed on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from colonnade.attacks.base import ActiveAttack, Attack, Grant, Guess
from colonnade.auditing.alone import Alone, attacker_alone
from colonnade.auditing.attempt import Attempt, Side, attack_seed, grant_for, name_of, too_few
from colonnade.auditing.disclosure import budget, disclosures
from colonnade.auditing.finding import finding_of, never_attacked, scored_part, unscorable
from colonnade.auditing.mirror import require_rows
from colonnade.auditing.null import numbered, permuted_truth_values, require_permutations
from colonnade.auditing.report import Finding, Joint, PrivacyReport, RunIdentity
from colonnade.auditing.score import Truth
from colonnade.auditing.stated import statements
from colonnade.errors import PlanError, ProtocolError
from colonnade.models.base import Estimator
from colonnade.privacy.ledger import Event, Ledger
from colonnade.privacy.randomness import Randomness, Source
from colonnade.roles import PublicPlan, Roles
from colonnade.runtime.party import Party
from colonnade.secret import Secret
from colonnade.wire.channel import Channel
from colonnade.wire.message import Float64Array, Int64Array, Message
from colonnade.wire.recording.transcript import Transcript

LONGEST_REASON = 300
MOST_CLASSES = 10_000


@dataclass(frozen=True)
class LabelGrant(Message, kind="audit/grant", reveals={Secret.LABELS}):
    """The labels that an attack is told; whether a guess is wanted at all."""

    attack: int
    wanted: int
    n_classes: int
    rows: Int64Array
    labels: Int64Array


@dataclass(frozen=True)
class LabelGuess(Message, kind="audit/guess", reveals={Secret.FEATURES, Secret.MODEL}):
    """What an attack says: classes or scores, the other being empty; or why it does not apply."""

    attack: int
    unfit: str
    rows: Int64Array
    classes: Int64Array
    scores: Float64Array


@dataclass(frozen=True)
class AloneRatings(Message, kind="audit/alone", reveals={Secret.FEATURES}):
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
        seed: This party's own, and no other's to know: from the seed of a grant, labels could be inferred that were
            not told. None takes the party's own randomness.
        delta: At which the privacy budget is told.
        randomness: At the owner: how its noise was drawn in that run, as its `run.json` says.
        insecure: At the owner: whether that run was without TLS, as its `run.json` says.
    """

    audited: PublicPlan
    attacks: Sequence[Attack | ActiveAttack]
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
        """Refuse what has no owner or no attacker."""
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
        """Play this party's side."""
        if party.name not in (self.owner, self.attacker):
            return None
        if self.transcript.party != party.name:
            raise PlanError(
                f"{party.name} should bring its own recording of the audited run, but this one is "
                f"{self.transcript.party}'s. Name the folder of its own run."
            )
        if party.table is not None:
            require_rows(self.transcript, party.table)
        random = party.random.child("audit") if self.seed is None else Randomness.seeded(self.seed)
        if party.name == self.owner:
            return self._own(party, random)
        self._attack(party, random)
        return None

    def _own(self, party: Party, random: Randomness) -> PrivacyReport:
        line, table = party.peers[self.attacker], party.own_table
        seen = self.transcript.mirrored(self.attacker)
        findings: list[Finding] = []
        untested: list[str] = []
        for number, attack in enumerate(self.attacks):
            if isinstance(attack, ActiveAttack):
                late = "it takes part in a run, and the one that a joint audit looks at is over"
                untested.append(f"{name_of(attack)} by {self.attacker}: {late}")
                continue
            grant, reason = None, unscorable(attack, self.owner, table.labels)
            if reason is None:
                labels, n_classes = numbered(np.asarray(table.labels))
                grant = grant_for(attack, seen, labels, n_classes, random)
            if grant is None:
                nothing = np.zeros(0, np.int64)
                line.send(LabelGrant(number, 0, 0, nothing, nothing))
                untested.append(f"{name_of(attack)} by {self.attacker}: {reason or too_few(attack)}")
                continue
            if len(grant.rows):
                told = Event.not_private(Secret.LABELS, f"labels told to {self.attacker} in a joint audit")
                party.ledger.spend(told, len(grant.rows), identity=f"{self.audited.hash} {number}".encode())
            line.send(LabelGrant(number, 1, n_classes, grant.rows, grant.labels))
            found = self._score(attack, number, line, Truth.of(labels, grant), grant, random)
            if isinstance(found, Finding):
                findings.append(found)
            else:
                untested.append(f"{name_of(attack)} by {self.attacker}: {found}")
        sent = tuple(d for d in disclosures({self.owner: self.transcript}) if d.receiver == self.attacker)
        ledgers = {self.owner: self.ledger or Ledger(), "the audit itself": party.ledger}
        run = RunIdentity.of(
            self.audited,
            Joint(self.attacker, self.owner),
            n_rows=len(table),
            randomness=self.randomness,
            insecure=self.insecure,
        )
        return PrivacyReport(
            run=run,
            disclosures=sent,
            budget=budget(sent, ledgers, self.delta),
            attacks=tuple(findings),
            untested=(*untested, *never_attacked(sent, findings)),
            stated=statements({self.owner: self.transcript}),
        )

    def _score(
        self, attack: Attack, number: int, line: Channel, truth: Truth, grant: Grant, random: Randomness
    ) -> Finding | str:
        """What the attacker's guess is worth, or why there is none."""
        name = name_of(attack)
        said = line.receive(LabelGuess)
        _require_turn(said.attack, number, line)
        if said.unfit:
            return said.unfit[:LONGEST_REASON]
        alone = _alone(line.receive(AloneRatings), truth.n_classes, line)
        attempt = Attempt(attack, self.attacker, grant, seed=0)
        guess = scored_part(attempt, _guess(said, line), truth)
        if isinstance(guess, str):
            return guess
        null = permuted_truth_values(guess, truth, self.nulls, random.generator("null", name, self.attacker))
        interval = random.generator("interval", name, self.attacker)
        return finding_of(attempt, guess, truth, owner=self.owner, null=null, alone=alone, random=interval)

    def _attack(self, party: Party, random: Randomness) -> None:
        line = party.peers[self.owner]
        side = Side(self.audited, self.transcript, party.table, self.model)
        for number, attack in enumerate(self.attacks):
            if isinstance(attack, ActiveAttack):
                continue
            told = line.receive(LabelGrant)
            _require_turn(told.attack, number, line)
            if not told.wanted:
                continue
            grant = _grant(told, attack, None if party.table is None else len(party.table), line)
            attempt = Attempt(attack, party.name, grant, attack_seed(random, attack, party.name))
            if reason := attempt.unfit_for(side, setting="keep_received='audit'"):
                nothing = np.zeros(0, np.int64)
                line.send(LabelGuess(number, reason, nothing, nothing, np.zeros(0)))
                continue
            guess = attack.guess(attempt.view_of(side))
            classes = np.zeros(0, np.int64) if guess.classes is None else guess.classes
            scores = np.zeros(0) if guess.scores is None else guess.scores
            line.send(LabelGuess(number, "", guess.rows, classes, scores))
            generator = random.generator("alone", party.name, attack.needs.known_labels)
            alone = attacker_alone(party.table, grant, guess.rows, generator)
            methods = {**alone.named, **alone.unnamed}
            line.send(AloneRatings(number, alone.rows, list(methods), len(alone.named), list(methods.values())))


def _require_turn(found: int, expected: int, line: Channel) -> None:
    if found != expected:
        raise ProtocolError(
            f"Expected {line.peer} to speak of attack {expected}, but it speaks of attack {found}. "
            "Check that both parties make the same attacks."
        )


def _grant(told: LabelGrant, attack: Attack, n_rows: int | None, line: Channel) -> Grant:
    """What the owner tells, as far as it is what the attack asks for."""
    rows, labels, known = told.rows, told.labels, attack.needs.known_labels
    if (
        not 0 < told.n_classes <= MOST_CLASSES
        or rows.shape != (known * told.n_classes,)
        or labels.shape != rows.shape
        or not (np.sort(labels) == np.repeat(np.arange(told.n_classes), known)).all()
        or len(np.unique(rows)) != len(rows)
        or (rows < 0).any()
        or (n_rows is not None and (rows >= n_rows).any())
    ):
        raise ProtocolError(
            f"Expected {line.peer} to tell {known} labels of each of {told.n_classes} classes, but it tells something "
            f"else in {len(rows)} labels. Check that both parties run the same version on the same rows."
        )
    return Grant(told.n_classes, rows, labels)


def _guess(said: LabelGuess, line: Channel) -> Guess:
    if said.rows.ndim == 1 and said.classes.shape == said.rows.shape and not said.scores.size:
        return Guess(said.rows, classes=said.classes)
    if said.rows.ndim == 1 and said.scores.shape == said.rows.shape and not said.classes.size:
        return Guess(said.rows, scores=said.scores)
    raise ProtocolError(
        f"Expected {line.peer} to guess one class or one score for each row, but it sent {said.rows.size} rows, "
        f"{said.classes.size} classes and {said.scores.size} scores. Check that both run the same version."
    )


def _alone(said: AloneRatings, n_classes: int, line: Channel) -> Alone:
    wanted = (len(said.rows), n_classes)
    if len(said.methods) != len(said.ratings) or any(rating.shape != wanted for rating in said.ratings):
        raise ProtocolError(
            f"Expected {line.peer} to rate {n_classes} classes for each of {len(said.rows)} rows by "
            f"{len(said.methods)} methods, but its {len(said.ratings)} ratings are of other shapes. "
            "Check that both run the same version."
        )
    by_method = list(zip(said.methods, said.ratings, strict=True))
    return Alone(said.rows, dict(by_method[: said.n_named]), dict(by_method[said.n_named :]))
