"""The contents of a privacy report: which run, what was sent and spent, what attacks found, what was not tested.

A finding rests on evidence: a score beside all that the score must exceed. The verdict follows from the evidence.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Literal, TypeAlias, get_args

import numpy as np

from colonnade._version import __version__
from colonnade.models.quality import Quality
from colonnade.privacy.ledger import Spent
from colonnade.privacy.randomness import Source
from colonnade.roles import PublicPlan
from colonnade.secret import Secret

# Plain accuracy occurs only in early reports.
Measure: TypeAlias = Literal["balanced accuracy", "AUC", "R²", "accuracy"]
# The worst first.
Verdict: TypeAlias = Literal[
    "leaks", "leaks, classes unnamed", "leaks, nobody singled out", "no more than alone", "no leak found"
]

NULL_QUANTILE = 0.95
# Rows are singled out if this many times as many as by chance are nearest to what was rebuilt of them.
SINGLED_OUT = 5
# The method of a baseline that takes honest part in the run; others need nobody else.
HONEST_RIDGE = "an honest ridge regression"
# The owner of a secret that all parties hold together.
EVERYBODY = "everybody"


@dataclass(frozen=True)
class RunIdentity:
    """Which run a report is about.

    Attributes:
        parties: Each party's role.
        randomness: "seeded" where all noise follows from a seed; "system" where nobody can know it.
        mode: Who could audit what: "simulated", "mirror" or "joint".
        insecure: Whether messages crossed between machines without TLS.
        date: The day of the audit, as 2026-05-31; empty in early reports. Two audits that differ in nothing else are
            equal.
        n_classes: How many classes labels have; 0 where they are no classes. None where whoever audited does not hold
            them, and in early reports.

    >>> RunIdentity("0" * 64, "SplitClassifier.fit", {"bank": "label party"}, 9, 0, "seeded", "simulated").mode
    'simulated'
    """

    plan: str
    protocol: str
    parties: Mapping[str, str]
    n_rows: int
    seed: int
    randomness: str
    mode: str
    code_version: str = __version__
    insecure: bool = False
    date: str = field(default="", compare=False)
    n_classes: int | None = None

    @property
    def noise_is_known(self) -> bool:
        """Whether parties on several machines drew noise that everybody who knows the plan can compute."""
        return self.mode != "simulated" and self.randomness == "seeded"

    @classmethod
    def of(
        cls,
        plan: PublicPlan,
        mode: str,
        *,
        n_rows: int,
        randomness: Source,
        seed: int | None = None,
        insecure: bool = False,
        n_classes: int | None = None,
    ) -> RunIdentity:
        """The identity of a plan's run. Without a seed of its own a run has the plan's, which is public."""
        roles = plan.roles
        special = {roles.label: "label party", roles.arbiter: "arbiter", roles.server: "server"}
        return cls(
            plan=plan.hash,
            protocol=plan.protocol,
            parties={name: special.get(name, "feature party") for name in roles.parties},
            n_rows=n_rows,
            seed=plan.seed if seed is None else seed,
            randomness=randomness,
            insecure=insecure,
            mode=mode,
            date=datetime.now(UTC).date().isoformat(),
            n_classes=n_classes,
        )


@dataclass(frozen=True)
class Disclosure:
    """All messages of one kind from one party to another that went out under the same protections.

    Attributes:
        reveals: Which secrets the messages depend on: the sender's, or the label party's labels.
        under: The protections applied to each of them; none if empty.
        confirmed: Whether the receiver recorded the very same messages of this kind, in the same order; None where its
            recording is not at hand.

    >>> Disclosure("bank", "shop", "split/gradient", (Secret.LABELS,), (), 40, 81_920, True).under
    ()
    """

    sender: str
    receiver: str
    kind: str
    reveals: tuple[Secret, ...]
    under: tuple[str, ...]
    messages: int
    bytes: int
    confirmed: bool | None


def revealed(sent: Iterable[Disclosure], parties: Mapping[str, str]) -> dict[tuple[str, str, Secret], tuple[str, ...]]:
    """The kinds of messages that depend on a secret, by receiver, owner and secret; `parties` has each party's role.

    Labels are the label party's, whoever passes on what depends on them. What the label party is told about its own
    labels is no disclosure.

    >>> opening = Disclosure("shop", "telco", "glm/opening", (Secret.LABELS,), (), 1, 64, True)
    >>> list(revealed([opening], {"bank": "label party", "shop": "feature party", "telco": "feature party"}))
    [('telco', 'bank', <Secret.LABELS: 'labels'>)]
    """
    label = next((name for name, role in parties.items() if role == "label party"), None)
    kinds: dict[tuple[str, str, Secret], tuple[str, ...]] = {}
    for each in sent:
        for secret in each.reveals:
            owner = each.sender if label is None or secret is not Secret.LABELS else label
            if owner == each.receiver:
                continue
            key = each.receiver, owner, secret
            kinds[key] = tuple(dict.fromkeys((*kinds.get(key, ()), each.kind)))
    return kinds


@dataclass(frozen=True)
class SelfReportedLeak:
    """How well a party's columns can be rebuilt from the embedding that it sent, by its own measurement.

    Attributes:
        width: How many numbers the embedding has for each row.
        relative_mse: The squared error of what is rebuilt, relative to the columns' variance: 0 is all, 1 is nothing.
        worst_r2: The share of its variance that is rebuilt (R²), of the column that is rebuilt best.

    >>> print(SelfReportedLeak("shop", "bank", 16, 0.25, 0.875))
    By shop's own measurement, its columns can be rebuilt from its embedding of width 16 with relative MSE 0.25 (0 is \
everything, 1 nothing) and worst column R² 0.88. bank's own columns, and better attacks, may tell more.
    """

    owner: str
    receiver: str
    width: int
    relative_mse: float
    worst_r2: float

    def __str__(self) -> str:
        return (
            f"By {self.owner}'s own measurement, its columns can be rebuilt from its embedding of width {self.width} "
            f"with relative MSE {self.relative_mse:.2f} (0 is everything, 1 nothing) and worst column R² "
            f"{self.worst_r2:.2f}. {self.receiver}'s own columns, and better attacks, may tell more."
        )


@dataclass(frozen=True)
class GuardRecord:
    """What a party's guard saw of the gradients that it received.

    Attributes:
        batches: How many it looked at.
        alarms: What looked like an attack, by check.
        figures: The largest value of each check.
        rows: The party's rows whose gradients stand out most, over all epochs.

    >>> print(GuardRecord("shop", "GradientGuard", 40, {}, {"zero rows": 0.0}, ()))
    shop's GradientGuard looked at 40 batches of gradients and raised no alarm. A hidden attack raises none either.
    """

    party: str
    by: str
    batches: int
    alarms: Mapping[str, str]
    figures: Mapping[str, float]
    rows: tuple[int, ...]

    def __str__(self) -> str:
        looked = f"{self.party}'s {self.by} looked at {self.batches:,} batches of gradients and raised"
        if not self.alarms:
            return f"{looked} no alarm. A hidden attack raises none either."
        return f"{looked} the alarm: {'; '.join(self.alarms.values())}."


@dataclass(frozen=True)
class Score:
    """A score with its interval.

    >>> Score(0.9, low=0.85, high=0.94).value
    0.9
    """

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class BestBaseline:
    """The best that the attacker reaches by itself, and the method that reaches it.

    >>> BestBaseline(0.62, "logistic regression").method
    'logistic regression'
    """

    value: float
    method: str


@dataclass(frozen=True)
class Granted:
    """What an attack was given: of what it had declared, what its party had, and what it was told.

    Attributes:
        messages: The kinds of messages it read.
        own_features: Whether it had its party's own table.
        own_model: Whether it had its party's own share of the model.
        known_labels: How many labels of each class it was told.
        known_records: How many records it was told.
        forest: The kinds of messages it read from what the attacker saw of a forest.
        prior: How many whole records it was told without their rows.

    >>> Granted(("split/gradient",), own_features=False, own_model=False, known_labels=1).known_labels
    1
    """

    messages: tuple[str, ...]
    own_features: bool
    own_model: bool
    known_labels: int
    known_records: int = 0
    forest: tuple[str, ...] = ()
    prior: int = 0


@dataclass(frozen=True)
class Evidence:
    """A score beside everything that it must exceed to count as a leak.

    Attributes:
        null: What the same attack scores where the messages tell nothing; where nothing can be run again, what the
            same guess scores against a shuffled truth.
        alone: The best that the attacker could do by itself; None where only the attacker could measure it.

    >>> Evidence(Score(0.9, 0.85, 0.94), 0.5, (0.48, 0.6), BestBaseline(0.7, "label spreading")).leaks
    True
    """

    score: Score
    chance: float
    null: tuple[float, ...]
    alone: BestBaseline | None

    @property
    def null_high(self) -> float:
        """The null's 95th percentile; with fewer than 39 null runs this is their maximum."""
        return sorted(self.null)[self._null_rank - 1]

    @property
    def false_positive_rate(self) -> float:
        """How likely a score exceeds `null_high` where there is nothing to find: about 0.05."""
        return (len(self.null) + 1 - self._null_rank) / (len(self.null) + 1)

    @property
    def _null_rank(self) -> int:
        n = len(self.null)
        return min(n, math.ceil(NULL_QUANTILE * (n + 1)))

    @property
    def null_threshold(self) -> float:
        """The higher of chance and null: what can be reached where the messages tell nothing."""
        return max(self.chance, self.null_high)

    @property
    def exceeds_null(self) -> bool:
        """Whether the whole interval lies above chance and null, whatever the attacker could do alone."""
        return self.score.low > self.null_threshold

    @property
    def threshold(self) -> float:
        """The highest of chance, null and, where it was measured, the attacker alone."""
        return self.null_threshold if self.alone is None else max(self.null_threshold, self.alone.value)

    @property
    def excess(self) -> float:
        """By how much the score exceeds the threshold."""
        return self.score.value - self.threshold

    @property
    def leaks(self) -> bool:
        """Whether the whole interval lies above the threshold."""
        return self.score.low > self.threshold

    @property
    def skill(self) -> float:
        """The score on a scale from 0 at chance to 1 where nothing is wrong, which all measures share."""
        return (self.score.value - self.chance) / max(1 - self.chance, 1e-9)


@dataclass(frozen=True)
class Picture:
    """One row's columns as an image, and what was rebuilt of it.

    A line of pixels is a text: two hexadecimal digits for each pixel, from 00 to ff, or two dots where there is none.

    >>> Picture(("00ff",), ("0af0",)).true
    ('00ff',)
    """

    true: tuple[str, ...]
    rebuilt: tuple[str, ...]


@dataclass(frozen=True)
class Reconstruction:
    """How well whole records were rebuilt, beside controls.

    Attributes:
        relative_mse: The squared error relative to that of the column's mean, averaged over columns.
        controls: The same of a random guess, of the mean, of imputation from the attacker's own columns and labels, and
            of an honest ridge regression from embeddings to the same known records, as far as they could be had.
        worst_column: The column that is rebuilt best beyond the controls.
        near: The share of numbers within a tenth of their column's range.
        singled_out: The share of rows whose own record is the nearest to what was rebuilt.
        singled_out_at_best: The same share if everything were rebuilt exactly; below 1 where records are equal.
        median_rank: How many records are nearer than a row's own, in the median.
        rows: Among how many rows.
        categories: For each column of text, how often its level is named, and how often the commonest level is right.
        psnr: The peak signal-to-noise ratio in dB where columns are the pixels of images.
        ssim: The structural similarity of these images, on average.
        pictures: Some of these images, in a simulated audit only: a reader of the report sees true records.

    >>> controls = {"random guess": 5.0, "mean": 1.0, "imputation": 0.6, "honest ridge": 0.5}
    >>> print(Reconstruction(0.3, controls, "age", 0.7, 0.1, 1.0, 3.0, 200))
    Relative MSE 0.30 over all columns (random guess 5.00, mean 1.00, imputation 0.60, honest ridge 0.50). Own record \
nearest for 10.0% of 200 rows (by chance 0.5%), median rank 3. 70% of numbers within a tenth of their range.
    """

    relative_mse: float
    controls: Mapping[str, float]
    worst_column: str
    near: float
    singled_out: float
    singled_out_at_best: float
    median_rank: float
    rows: int
    categories: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    psnr: float | None = None
    ssim: float | None = None
    pictures: tuple[Picture, ...] = ()

    @property
    def singles_out(self) -> bool:
        """Whether rows are re-identified five times as often as by chance, or half as often as records allow."""
        return self.singled_out >= min(SINGLED_OUT / self.rows, self.singled_out_at_best / 2)

    @property
    def failed(self) -> tuple[str, ...]:
        """The controls that the attack does not beat."""
        # The honest ridge regression is an attack as well, which ties with itself.
        ties = {name for name, error in self.controls.items() if self.relative_mse == error} - {"honest ridge"}
        return tuple(name for name, error in self.controls.items() if self.relative_mse > error or name in ties)

    def __str__(self) -> str:
        controls = ", ".join(f"{name} {error:.2f}" for name, error in self.controls.items())
        said = [
            f"Relative MSE {self.relative_mse:.2f} over all columns ({controls}).",
            *([f"That is no better than {' and '.join(self.failed)}."] if self.failed else []),
            f"Own record nearest for {self.singled_out:.1%} of {self.rows:,} rows (by chance {1 / self.rows:.1%}), "
            f"median rank {self.median_rank:.0f}.",
            f"{self.near:.0%} of numbers within a tenth of their range.",
            *(
                f"{name!r} named for {right:.0%} (commonest level {commonest:.0%})."
                for name, (right, commonest) in self.categories.items()
            ),
        ]
        if self.psnr is not None and self.ssim is not None:
            said.append(f"Images: PSNR {self.psnr:.1f} dB, SSIM {self.ssim:.2f}.")
        return " ".join(said)


def luck_of_best(tests: Sequence[Evidence]) -> float:
    """How likely the best of some attacks lies as far above its null as here, where there is nothing to find.

    Each attack's scores are standardised, the one of the run together with those of its null runs. The largest one of
    the run is compared with the largest one of each null run: with many attacks, the largest one is high by luck.
    """
    if not tests:
        return 1.0
    n = min(len(test.null) for test in tests)
    scores = np.array([[test.score.value, *test.null[:n]] for test in tests])
    spread = np.maximum(scores.std(axis=1, keepdims=True), 1e-9)
    best = ((scores - scores.mean(axis=1, keepdims=True)) / spread).max(axis=0)
    return float((best >= best[0]).mean())


@dataclass(frozen=True)
class Leakage:
    """What all attacks of one party find together, between what the party reaches alone and with every label.

    All figures are about the same rows, under the names of the classes as they were guessed. They are None where the
    audit does not have the party's own columns.

    Attributes:
        joined: The attacks whose guesses were joined, without a look at the truth.
        luck: How often, where there is nothing to find, the best of these attacks lies as far above its null as the
            best one here: the maximum over all attacks is compared with the same maximum in each null run.
        excess: By how much the joined guess exceeds the party alone; the interval resamples the rows of both at once.
        all_labels: The best that the party's own columns say of a row if the labels of all other rows are known: an
            upper bound of what columns can tell.
        normalised: Which share of the way from alone to all labels the excess is. More than 1: the messages tell what
            the columns never could. None as well where all labels tell no more than a few.

    >>> print(Leakage(("NormScore", "Residue"), 0.05).multiplicity)
    2 attacks were tried, so one of them may seem to find something by luck. Where there is nothing to find, the best \
of 2 lies as far above its null as here in 5% of null runs. Joined, they are one guess and one test.
    """

    joined: tuple[str, ...]
    luck: float
    excess: Score | None = None
    all_labels: BestBaseline | None = None
    normalised: Score | None = None

    @property
    def multiplicity(self) -> str:
        """How many attacks were tried, and what that does to the verdict."""
        n = len(self.joined)
        return (
            f"{n} attacks were tried, so one of them may seem to find something by luck. Where there is nothing to "
            f"find, the best of {n} lies as far above its null as here in {self.luck:.0%} of null runs. Joined, they "
            "are one guess and one test."
        )


@dataclass(frozen=True)
class Finding:
    """What one attack by one party found out.

    Attributes:
        rows: How many rows were scored.
        coverage: Which share that is of all rows that could have been guessed.
        plain: The guess as it was made.
        up_to_naming: The guess under the names of classes, or the sign, that suit it best, beside controls that were
            given the same help; None where there are no names to choose.
        rebuilt: How well whole records were rebuilt, in attacks on columns.
        leakage: How much the party's messages tell beyond its own columns, where all its attacks were joined.
        over_epochs: The score of the same attack on the messages of single epochs, each with its epoch, if asked for.

    >>> evidence = Evidence(Score(0.9, 0.85, 0.94), 0.5, (0.48, 0.6), BestBaseline(0.7, "label spreading"))
    >>> granted = Granted(("split/gradient",), own_features=False, own_model=False, known_labels=0)
    >>> about = ("NormScore", "Long gradients.", "shop", "bank", Secret.LABELS, False, granted)
    >>> Finding(*about, "AUC", 100, 0.9, evidence, evidence).verdict
    'leaks'
    """

    attack: str
    summary: str
    attacker: str
    owner: str
    about: Secret
    is_active: bool
    granted: Granted
    measure: Measure
    rows: int
    coverage: float
    plain: Evidence
    up_to_naming: Evidence | None
    rebuilt: Reconstruction | None = None
    leakage: Leakage | None = None
    over_epochs: tuple[tuple[int, float], ...] = ()

    @property
    def tests(self) -> tuple[Evidence, ...]:
        """The evidence, one or two pieces."""
        return (self.plain,) if self.up_to_naming is None else (self.plain, self.up_to_naming)

    @property
    def verdict(self) -> Verdict:
        """What the evidence allows to say. It never says "safe": a stronger attack may exist."""
        if self.plain.leaks:
            told_apart = self.rebuilt is None or self.rebuilt.singles_out
            return "leaks" if told_apart else "leaks, nobody singled out"
        if any(evidence.leaks for evidence in self.tests):
            return "leaks, classes unnamed"
        return "no more than alone" if any(evidence.exceeds_null for evidence in self.tests) else "no leak found"

    @property
    def strongest(self) -> Evidence:
        """The evidence that the verdict rests on."""
        if self.verdict == "no more than alone":
            return next(evidence for evidence in self.tests if evidence.exceeds_null)
        return self.tests[-1] if self.verdict == "leaks, classes unnamed" else self.plain

    def reads(self, kind: str) -> bool:
        """Whether the attack may have used messages of a kind; one that takes part and names none sees them all."""
        read = (*self.granted.messages, *self.granted.forest)
        return kind in read or (self.is_active and not read)


def worst_first(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Findings about one secret by their verdicts; of one verdict all attacks joined first, then the highest score."""

    def place(finding: Finding) -> tuple[int, bool, float, float]:
        evidence = finding.strongest
        verdict = get_args(Verdict).index(finding.verdict)
        return verdict, finding.leakage is None, -evidence.skill, -evidence.excess

    return tuple(sorted(findings, key=place))


@dataclass(frozen=True)
class ReportContents:
    """What a privacy report says, before it is put into words, a page or a file.

    Attributes:
        disclosures: Who sent whom what, from the recordings.
        budget: What was spent on each secret, from all ledgers; "not private" is spelled out.
        attacks: What the attacks found out.
        untested: Attacks that do not apply or were not made, and why.
        stated: What parties themselves found could be rebuilt of their columns.
        guarded: What guards saw of the gradients that their parties received.
        over_runs: For each party whose earlier runs are known, what all of them spent on each secret of its records.
        inapplicable: Those of `untested` that have nothing to work on in a run like this.
        tried: The secrets that the attacks of this audit are about, applicable or not.
        attackers: The parties that could make these attacks; empty in early reports, where every party could.
        quality: How well the model predicts rows that it was not trained on, if that was measured.
        partial: Whether it is of fewer attacks, attackers, null runs or epochs than the run's plan asks for, or less
            thorough.
    """

    run: RunIdentity
    disclosures: tuple[Disclosure, ...]
    budget: Mapping[str, Spent]
    attacks: tuple[Finding, ...]
    untested: tuple[str, ...]
    stated: tuple[SelfReportedLeak, ...] = ()
    over_runs: Mapping[str, Mapping[str, Spent]] = field(default_factory=dict)
    guarded: tuple[GuardRecord, ...] = ()
    inapplicable: tuple[str, ...] = ()
    tried: tuple[Secret, ...] = ()
    attackers: tuple[str, ...] = ()
    quality: Quality | None = None
    partial: bool = False

    def tries(self, attacker: str, about: Secret) -> bool:
        """Whether a party could make an attack of this audit on such a secret, applicable or not."""
        return about in self.tried and (not self.attackers or attacker in self.attackers)

    @property
    def figures(self) -> Mapping[str, float]:
        """The joint model's figures by measure; empty where nobody measured them."""
        return {} if self.quality is None else {name: each.together for name, each in self.quality.figures.items()}

    @property
    def gaps(self) -> tuple[str, ...]:
        """What an audit could have tested and did not."""
        return tuple(line for line in self.untested if line not in self.inapplicable)

    @property
    def strongest(self) -> tuple[Finding, ...]:
        """The findings in which all attacks of one party on one secret are joined: the headline of each party."""
        return tuple(finding for finding in self.attacks if finding.leakage is not None)
