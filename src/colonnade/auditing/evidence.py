"""Evidence: a score beside all that it must exceed, the finding that rests on it, and the verdict."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, TypeAlias

from colonnade.secret import Secret

# Plain accuracy occurs only in early reports.
Measure: TypeAlias = Literal["balanced accuracy", "AUC", "R²", "accuracy"]
Verdict: TypeAlias = Literal["leaks", "leaks, classes unnamed", "no more than alone", "no leak found"]

NULL_QUANTILE = 0.95
# The owner of a secret that all parties hold together.
EVERYBODY = "everybody"


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
    """What an attack was given: what it had declared to need.

    Attributes:
        messages: The kinds of messages it read.
        known_labels: How many labels of each class it was told.
        known_records: How many records it was told.
        forest: Whether it read what the attacker saw of a forest.

    >>> Granted(("split/gradient",), own_features=False, own_model=False, known_labels=1).known_labels
    1
    """

    messages: tuple[str, ...]
    own_features: bool
    own_model: bool
    known_labels: int
    known_records: int = 0
    forest: bool = False


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


@dataclass(frozen=True)
class Finding:
    """What one attack by one party found out.

    Attributes:
        rows: How many rows were scored.
        coverage: Which share that is of all rows that could have been guessed.
        plain: The guess as it was made.
        up_to_naming: The guess under the names of classes, or the sign, that suit it best, beside controls that were
            given the same help; None where there are no names to choose.

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

    @property
    def tests(self) -> tuple[Evidence, ...]:
        """The evidence, one or two pieces."""
        return (self.plain,) if self.up_to_naming is None else (self.plain, self.up_to_naming)

    @property
    def verdict(self) -> Verdict:
        """What the evidence allows to say. It never says "safe": a stronger attack may exist."""
        if self.plain.leaks:
            return "leaks"
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
        return kind in self.granted.messages or (self.is_active and not self.granted.messages)
