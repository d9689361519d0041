"""Scores: how right a guess was.

    a guess of classes    balanced accuracy    chance: one over the number of classes
    a guess of scores     ROC AUC              chance: 0.5

Balanced accuracy is the mean, over the classes that occur, of the share of a class's rows that are named rightly: a
rare class counts as much as a frequent one, and a constant guess is worth chance. Rows whose labels were granted are
never scored. A guess is scored on the rows it is about, and the report says what share of the rows that is. The
interval comes from resampling the rows of each class.

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

# Plain accuracy occurs only in early reports.
Measure: TypeAlias = Literal["balanced accuracy", "AUC", "accuracy"]

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
    return "balanced accuracy" if guess.scores is None else "AUC"


def chance(measure: Measure, truth: Truth, rows: Int64Array) -> float:
    """What whoever knows nothing about single rows can reach on those that are scored."""
    return 0.5 if measure == "AUC" else 1 / len(np.unique(truth.labels[rows]))


def unusable(guess: Guess, truth: Truth) -> str | None:
    """Why a guess cannot be compared with the truth; None if it can."""
    n_rows = len(truth.labels)
    outside = int(((guess.rows < 0) | (guess.rows >= n_rows)).sum())
    repeated = len(guess.rows) - len(np.unique(guess.rows))
    if outside or repeated:
        return (
            f"it should guess each of {n_rows} rows at most once, but {outside} of its rows do not exist and "
            f"{repeated} are repeated"
        )
    if guess.scores is None:
        assert guess.classes is not None
        wrong, wanted = (guess.classes < 0) | (guess.classes >= truth.n_classes), f"classes below {truth.n_classes}"
    else:
        wrong, wanted = ~np.isfinite(guess.scores), "finite scores"
    if wrong.any():
        return f"it should guess {wanted}, but {int(wrong.sum())} of {len(wrong)} values are something else"
    return None


def scorable(guess: Guess, truth: Truth, *, attack: str) -> Guess:
    """The part of a guess that may be scored: without the granted rows.

    Args:
        guess: What the attack said.
        truth: What it is about.
        attack: What the attack is called in an error.
    """
    if reason := unusable(guess, truth):
        raise PlanError(
            f"{attack} cannot be scored: {reason}. Correct the attack, or let it leave out the rows it cannot guess."
        )
    return _take(guess, ~np.isin(guess.rows, truth.granted))


def too_little(guess: Guess, truth: Truth) -> str | None:
    """Why what is left of a guess without the granted rows tells nothing; None if it may."""
    if not len(guess.rows):
        return "it guessed no row that had not been granted"
    counts = _cells(guess, truth).sum(axis=1)
    if (counts > 0).sum() < 2:
        return "all rows it could be scored on are of one class"
    if (counts == 1).any():
        return "it could be scored on a single row of one class"
    return None


def value(guess: Guess, truth: Truth) -> float:
    """Balanced accuracy or ROC AUC; chance where nothing was guessed, and an AUC of 0.5 where there is one class."""
    if not len(guess.rows):
        return chance(measure_of(guess), truth, truth.scored_rows)
    return float(_values(_cells(guess, truth)[None], measure_of(guess))[0])


def values(guess: Guess, truth: Truth) -> Values:
    """The value of a guess as it is, and up to naming."""
    return Values(value(guess, truth), value(best_named(guess, truth), truth))


def with_interval(guess: Guess, truth: Truth, random: np.random.Generator) -> Score:
    """The value with its interval."""
    cells = _coarsened(_cells(guess, truth))
    n = cells.sum(axis=1)
    # Rows of one class that fall into one cell are alike, so drawing its rows with replacement is drawing cells. Drawn
    # from all rows together, a rare class would be missing from some resamples.
    resampled = random.multinomial(n, cells / np.maximum(n, 1)[:, None], size=(RESAMPLES, len(n)))
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
    met = np.zeros((truth.n_classes, truth.n_classes))
    np.add.at(met, (guess.classes, truth.labels[guess.rows]), 1)
    _, name = linear_sum_assignment(met / np.maximum(met.sum(axis=0), 1), maximize=True)
    return Guess(guess.rows, classes=name[guess.classes])


def _take(guess: Guess, kept: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> Guess:
    if guess.scores is not None:
        return Guess(guess.rows[kept], scores=guess.scores[kept])
    assert guess.classes is not None
    return Guess(guess.rows[kept], classes=guess.classes[kept])


def _cells(guess: Guess, truth: Truth) -> Int64Array:
    """How many rows of each class are wrong and right, or of the other classes and the last at each rising score."""
    labels = truth.labels[guess.rows]
    if guess.scores is None:
        assert guess.classes is not None
        kind, level, shape = labels, (guess.classes == labels).astype(np.int64), (truth.n_classes, 2)
    else:
        kind, level = (labels == truth.n_classes - 1).astype(np.int64), np.unique(guess.scores, return_inverse=True)[1]
        shape = (2, int(level.max(initial=0)) + 1)
    cells = np.zeros(shape, np.int64)
    np.add.at(cells, (kind, level), 1)
    return cells


def _coarsened(cells: Int64Array) -> Int64Array:
    """The same with neighbouring levels joined where there are very many, which keeps resampling cheap."""
    n_levels = cells.shape[1]
    if n_levels <= LEVELS:
        return cells
    return np.add.reduceat(cells, np.arange(LEVELS) * n_levels // LEVELS, axis=1)


def _values(cells: Int64Array, measure: Measure) -> Float64Array:
    """The value of each table of cells."""
    if measure != "AUC":
        n = cells.sum(axis=2)
        return np.asarray((cells[:, :, 1] / np.maximum(n, 1)).sum(axis=1) / (n > 0).sum(axis=1))
    others, hits = cells[:, 0].astype(np.float64), cells[:, 1].astype(np.float64)
    below = others.cumsum(axis=1) - others / 2
    pairs = others.sum(axis=1) * hits.sum(axis=1)
    return np.where(pairs > 0, (hits * below).sum(axis=1) / np.where(pairs > 0, pairs, 1), 0.5)
