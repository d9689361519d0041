"""Scores: how right a guess was.

    a guess of classes    accuracy    chance: the best constant guess, the share of the most frequent class
    a guess of scores     ROC AUC     chance: 0.5

Rows whose labels were granted are never scored. A guess is scored on the rows it is about, and the report says what
share of the rows that is; chance is taken over all rows that could have been guessed. The interval comes from
resampling rows.

A guess that is wrong too often to be chance tells as much as one that is right: below-chance accuracy is a leak up to
the names of the classes. So each guess is scored a second time *up to naming*, under the names (or the sign) that suit
it best. That choice uses the truth; such a score is only compared with others that were given the same help.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from colonnade.attacks.base import Grant, Guess
from colonnade.errors import PlanError
from colonnade.wire.message import Float64Array, Int64Array

Measure: TypeAlias = Literal["accuracy", "AUC"]

RESAMPLES = 1000
CONFIDENCE = 0.95
LEVELS = 1000


@dataclass(frozen=True)
class Truth:
    """The labels a guess is compared with, as class numbers, and the rows that were given away.

    >>> Truth(np.array([0, 1, 1, 1]), 2, granted=np.array([3])).scored_rows.tolist()
    [0, 1, 2]
    """

    labels: Int64Array
    n_classes: int
    granted: Int64Array

    @classmethod
    def of(cls, labels: Int64Array, grant: Grant) -> Truth:
        """The truth behind a grant."""
        return cls(labels, grant.n_classes, grant.rows)

    @property
    def scored_rows(self) -> Int64Array:
        """The rows that may be scored."""
        return np.setdiff1d(np.arange(len(self.labels)), self.granted)


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
class Values:
    """What one guess is worth: under its own names of the classes, and under the best ones.

    >>> values(Guess(np.arange(2), classes=np.array([1, 0])), Truth(np.array([0, 1]), 2, granted=np.array([], int)))
    Values(plain=0.0, up_to_naming=1.0)
    """

    plain: float
    up_to_naming: float


def measure_of(guess: Guess) -> Measure:
    """What a guess is scored by."""
    return "accuracy" if guess.scores is None else "AUC"


def chance(measure: Measure, truth: Truth) -> float:
    """What whoever knows nothing about single rows can reach."""
    if measure == "AUC":
        return 0.5
    counts = np.bincount(truth.labels[truth.scored_rows], minlength=truth.n_classes)
    return float(counts.max() / counts.sum())


def scorable(guess: Guess, truth: Truth, *, attack: str) -> Guess:
    """The part of a guess that may be scored: without the granted rows.

    Args:
        guess: What the attack said.
        truth: What it is about.
        attack: What the attack is called in an error.
    """
    n_rows = len(truth.labels)
    outside = int(((guess.rows < 0) | (guess.rows >= n_rows)).sum())
    repeated = len(guess.rows) - len(np.unique(guess.rows))
    if outside or repeated:
        raise PlanError(
            f"{attack} should guess each of {n_rows} rows at most once, but {outside} of its rows do not exist and "
            f"{repeated} are repeated. Correct the attack."
        )
    if guess.scores is None:
        assert guess.classes is not None
        unusable, wanted = (guess.classes < 0) | (guess.classes >= truth.n_classes), f"classes below {truth.n_classes}"
    else:
        unusable, wanted = ~np.isfinite(guess.scores), "finite scores"
    if unusable.any():
        raise PlanError(
            f"{attack} should guess {wanted}, but {int(unusable.sum())} of {len(unusable)} values are something else. "
            "Let it leave out the rows it cannot guess."
        )
    return _take(guess, ~np.isin(guess.rows, truth.granted))


def value(guess: Guess, truth: Truth) -> float:
    """Accuracy or ROC AUC; chance where nothing was guessed, 0.5 where all rows are of one class."""
    if not len(guess.rows):
        return chance(measure_of(guess), truth)
    return float(_values(_cells(guess, truth)[None], measure_of(guess))[0])


def values(guess: Guess, truth: Truth) -> Values:
    """The value of a guess as it is, and up to naming."""
    return Values(value(guess, truth), value(best_named(guess, truth), truth))


def with_interval(guess: Guess, truth: Truth, random: np.random.Generator) -> Score:
    """The value with its interval."""
    cells = _coarsened(_cells(guess, truth))
    n = cells.sum()
    # Rows that fall into one cell are alike, so drawing rows with replacement is drawing cells.
    resampled = random.multinomial(n, cells.ravel() / n, size=RESAMPLES).reshape(-1, *cells.shape)
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(_values(resampled, measure_of(guess)), [tail, 1 - tail])
    exact = value(guess, truth)
    return Score(exact, min(exact, float(low)), max(exact, float(high)))


def best_named(guess: Guess, truth: Truth) -> Guess:
    """The same guess under the names of classes, or the sign of scores, that suit it best."""
    if guess.scores is not None:
        return Guess(guess.rows, scores=guess.scores if value(guess, truth) >= 0.5 else -guess.scores)
    from scipy.optimize import linear_sum_assignment

    assert guess.classes is not None
    met = np.zeros((truth.n_classes, truth.n_classes), np.int64)
    np.add.at(met, (guess.classes, truth.labels[guess.rows]), 1)
    _, name = linear_sum_assignment(met, maximize=True)
    return Guess(guess.rows, classes=name[guess.classes])


def _take(guess: Guess, kept: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> Guess:
    if guess.scores is not None:
        return Guess(guess.rows[kept], scores=guess.scores[kept])
    assert guess.classes is not None
    return Guess(guess.rows[kept], classes=guess.classes[kept])


def _cells(guess: Guess, truth: Truth) -> Int64Array:
    """How many rows of two kinds are at each level: wrong and right, or other and last class by rising score."""
    labels = truth.labels[guess.rows]
    if guess.scores is None:
        assert guess.classes is not None
        level, kind, n_levels = np.zeros(len(labels), np.int64), guess.classes == labels, 1
    else:
        level, kind = np.unique(guess.scores, return_inverse=True)[1], labels == truth.n_classes - 1
        n_levels = int(level.max(initial=0)) + 1
    cells = np.zeros((2, n_levels), np.int64)
    np.add.at(cells, (kind.astype(np.int64), level), 1)
    return cells


def _coarsened(cells: Int64Array) -> Int64Array:
    """The same with neighbouring levels joined where there are very many, which keeps resampling cheap."""
    n_levels = cells.shape[1]
    if n_levels <= LEVELS:
        return cells
    return np.add.reduceat(cells, np.arange(LEVELS) * n_levels // LEVELS, axis=1)


def _values(cells: Int64Array, measure: Measure) -> Float64Array:
    """The value of each table of cells."""
    others, hits = cells[:, 0].astype(np.float64), cells[:, 1].astype(np.float64)
    if measure == "accuracy":
        return np.asarray(hits.sum(axis=1) / (hits + others).sum(axis=1))
    below = others.cumsum(axis=1) - others / 2
    pairs = others.sum(axis=1) * hits.sum(axis=1)
    return np.where(pairs > 0, (hits * below).sum(axis=1) / np.where(pairs > 0, pairs, 1), 0.5)
