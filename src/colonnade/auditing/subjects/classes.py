"""Guesses of classes: how right they were.

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

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from colonnade.attacks.base import Grant, Guess
from colonnade.auditing.contents import Measure, Score
from colonnade.auditing.subjects.base import RESAMPLES, TAILS, Truth, Values, deviation
from colonnade.wire.message import Float64Array, Int64Array

LEVELS = 1000


@dataclass(frozen=True)
class ClassTruth(Truth):
    """The labels a guess is compared with, as class numbers, and the rows that were given away.

    >>> ClassTruth(np.array([0, 1, 1, 1]), 2, granted=np.array([3])).scored_rows.tolist()
    [0, 1, 2]
    """

    labels: Int64Array
    n_classes: int
    granted: Int64Array

    @classmethod
    def of(cls, labels: Int64Array, grant: Grant) -> ClassTruth:
        """The truth behind a grant."""
        return cls(labels, grant.n_classes, grant.rows)

    @property
    def n_rows(self) -> int:
        return len(self.labels)

    def measure(self, guess: Guess) -> Measure:
        return "balanced accuracy" if guess.scores is None else "AUC"

    def wrong_values(self, guess: Guess) -> tuple[np.ndarray[Any, Any], str]:
        if guess.values is not None:
            return np.ones(len(guess.rows), bool), "classes or scores"
        if guess.classes is not None:
            return (guess.classes < 0) | (guess.classes >= self.n_classes), f"classes below {self.n_classes}"
        return ~np.isfinite(guess.said), "finite scores"

    def too_little(self, guess: Guess) -> str | None:
        counts = _cells(guess, self).sum(axis=1)
        if (counts > 0).sum() < 2:
            return "all rows it could be scored on are of one class"
        if (counts == 1).any():
            return "it could be scored on a single row of one class"
        return None

    def scores(self, guess: Guess) -> Values:
        return Values(value(guess, self), value(best_named(guess, self), self))

    def permuted(self, random: np.random.Generator) -> ClassTruth:
        labels, rows = self.labels.copy(), self.scored_rows
        labels[rows] = random.permutation(labels[rows])
        return replace(self, labels=labels)

    def deviation(self, guess: Guess) -> float:
        labels = self.labels[guess.rows]
        if guess.classes is not None:
            return deviation(np.eye(self.n_classes)[guess.classes], np.eye(self.n_classes)[labels])
        from scipy.stats import rankdata

        is_last = (labels == self.n_classes - 1).astype(np.float64)
        return deviation(rankdata(guess.scores)[:, None], is_last[:, None])


def chance(measure: Measure, truth: ClassTruth, rows: Int64Array) -> float:
    """What can be reached on the scored rows without knowing anything about single rows."""
    return 0.5 if measure == "AUC" else 1 / len(np.unique(truth.labels[rows]))


def value(guess: Guess, truth: ClassTruth) -> float:
    """Balanced accuracy or ROC AUC; chance where nothing was guessed, and an AUC of 0.5 where there is one class."""
    if not len(guess.rows):
        return chance(truth.measure(guess), truth, truth.scored_rows)
    return float(_values(_cells(guess, truth)[None], truth.measure(guess))[0])


def with_interval(guess: Guess, truth: ClassTruth, random: np.random.Generator) -> Score:
    """The value with its interval."""
    cells = _coarsened(_cells(guess, truth))
    n = cells.sum(axis=1)
    # Rows of one class that fall into one cell are alike, so drawing its rows with replacement is drawing cells. Drawn
    # from all rows together, a rare class would be missing from some resamples.
    resampled = random.multinomial(n, cells / np.maximum(n, 1)[:, None], size=(RESAMPLES, len(n)))
    low, high = np.quantile(_values(resampled, truth.measure(guess)), TAILS)
    exact = value(guess, truth)
    return Score(exact, min(exact, float(low)), max(exact, float(high)))


def paired_values(guesses: Sequence[Guess], truth: ClassTruth, random: np.random.Generator) -> Float64Array:
    """What guesses about the same rows are worth (resamples, guesses) on rows drawn alike for all of them."""
    from scipy.sparse import csr_array

    rows = guesses[0].rows
    drawn = np.zeros((RESAMPLES, len(rows)))
    for number in np.unique(truth.labels[rows]):
        of_class = np.flatnonzero(truth.labels[rows] == number)
        drawn[:, of_class] = random.multinomial(
            len(of_class), np.full(len(of_class), 1 / len(of_class)), size=RESAMPLES
        )
    found = []
    for guess in guesses:
        assert np.array_equal(guess.rows, rows), "paired guesses are about the same rows, in the same order"
        kind, level, shape = _places(guess, truth)
        cell = csr_array(
            (np.ones(len(rows)), (kind * shape[1] + level, np.arange(len(rows)))), (shape[0] * shape[1], len(rows))
        )
        found.append(_values((cell @ drawn.T).T.reshape(RESAMPLES, *shape), truth.measure(guess)))
    return np.stack(found, axis=1)


def best_named(guess: Guess, truth: ClassTruth) -> Guess:
    """The same guess under the names of classes, or the sign of scores, that suit it best."""
    if guess.scores is not None:
        return Guess(guess.rows, scores=guess.scores if value(guess, truth) >= 0.5 else -guess.scores)
    from scipy.optimize import linear_sum_assignment

    assert guess.classes is not None
    met = np.zeros((truth.n_classes, truth.n_classes))
    np.add.at(met, (guess.classes, truth.labels[guess.rows]), 1)
    _, name = linear_sum_assignment(met / np.maximum(met.sum(axis=0), 1), maximize=True)
    return Guess(guess.rows, classes=name[guess.classes])


def _places(guess: Guess, truth: ClassTruth) -> tuple[Int64Array, Int64Array, tuple[int, int]]:
    """The class of each row and whether it is right; or whether it is of the last class and the rank of its score."""
    labels = truth.labels[guess.rows]
    if guess.scores is None:
        assert guess.classes is not None
        return labels, (guess.classes == labels).astype(np.int64), (truth.n_classes, 2)
    level = np.unique(guess.scores, return_inverse=True)[1]
    return (labels == truth.n_classes - 1).astype(np.int64), level, (2, int(level.max(initial=0)) + 1)


def _cells(guess: Guess, truth: ClassTruth) -> Int64Array:
    """How many rows of each class are wrong and right, or of the other classes and the last at each rising score."""
    kind, level, shape = _places(guess, truth)
    cells = np.zeros(shape, np.int64)
    np.add.at(cells, (kind, level), 1)
    return cells


def _coarsened(cells: Int64Array) -> Int64Array:
    """The same with neighbouring levels joined where there are very many, which keeps resampling cheap."""
    n_levels = cells.shape[1]
    if n_levels <= LEVELS:
        return cells
    return np.add.reduceat(cells, np.arange(LEVELS) * n_levels // LEVELS, axis=1)


def _values(cells: Int64Array | Float64Array, measure: Measure) -> Float64Array:
    """The value of each table of cells."""
    if measure != "AUC":
        n = cells.sum(axis=2)
        return np.asarray((cells[:, :, 1] / np.maximum(n, 1)).sum(axis=1) / (n > 0).sum(axis=1))
    others, hits = cells[:, 0].astype(np.float64), cells[:, 1].astype(np.float64)
    below = others.cumsum(axis=1) - others / 2
    pairs = others.sum(axis=1) * hits.sum(axis=1)
    return np.where(pairs > 0, (hits * below).sum(axis=1) / np.where(pairs > 0, pairs, 1), 0.5)
