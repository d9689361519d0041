"""Strongest: all guesses of one attacker about the same labels, joined into one without a look at the truth.

    guesses of single attacks ──▶ cells ──┬──▶ what each cell says of the classes ──▶ beliefs about all rows ─┐
    known labels ──▶ skill of each attack ┘                 └───◀── each attack by the others' beliefs ◀──────┘

A guess puts each row into a cell: a class with less or more confidence, or a level of its score. What a cell says of
the classes is counted on known labels, and on what the *other* attacks believe of all other rows: no attack vouches for
itself. An inverted score so tells as much as a right one. An attack's vote weighs as much as its skill on known labels
that it was not told itself, and attacks that say nearly the same share one vote.

Beliefs from the agreement of many: Dawid and Skene 1979, "Maximum likelihood estimation of observer error-rates using
the EM algorithm".
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from colonnade.attacks.base import Attack, Guess, Needs, View
from colonnade.attacks.labels.discriminants import log_normalised
from colonnade.attacks.points import KNOWN_PER_CLASS
from colonnade.errors import PrivacyError
from colonnade.wire.message import Float64Array, Int64Array

# Labels per class that no single attack is told: what attacks are weighed by.
KEPT_PER_CLASS = 8
ROUNDS = 5
LEVELS = 8
# How many rows a cell of ordinary classes counts as having seen at the start.
PRIOR = 4.0
# What all known labels weigh, relative to all other rows.
KNOWN_WEIGHT = 0.5
# A perfect attack weighs this many times as much as its neighbours of the same kind.
SHARPNESS, SLACK = 1.5, 0.05


class Strongest(Attack):
    """All attacks of this party joined into one guess, weighed by known labels and by how they agree."""

    needs = Needs(guesses=True, known_labels=KNOWN_PER_CLASS + KEPT_PER_CLASS)

    def guess(self, view: View) -> Guess:
        if len(view.guesses) < 2:
            raise PrivacyError(f"it joins the guesses of two attacks or more, and there are {len(view.guesses)}")
        grant, n_classes = view.grant, view.grant.n_classes
        rows = np.unique(np.concatenate([guess.rows for guess in view.guesses]))
        is_rated = np.isin(grant.rows, rows)
        known, labels = np.searchsorted(rows, grant.rows[is_rated]), grant.labels[is_rated]
        cells = [_cells(guess, rows, n_classes) for guess in view.guesses]
        skills = np.array([_skill(guess, grant.rows, grant.labels, n_classes) for guess in view.guesses])
        return Guess.rated(rows, _beliefs(cells, _weights(cells, skills), known, np.eye(n_classes)[labels]))


def _cells(guess: Guess, rows: Int64Array, n_classes: int) -> Float64Array:
    """Which cell (rows, cells) a guess puts each row into; rows that it leaves out are in none."""
    from scipy.stats import rankdata

    if guess.scores is not None:
        cell, n_cells = ((rankdata(guess.scores) - 0.5) * LEVELS / len(guess.rows)).astype(np.int64), LEVELS
    else:
        assert guess.classes is not None, "only guesses about classes are joined"
        first, second = -np.partition(-guess.by_class(n_classes), 1, axis=1)[:, :2].T
        lead, sure = first - second, np.zeros(len(guess.rows), np.int64)
        for number in np.unique(guess.classes):
            mine = guess.classes == number
            sure[mine] = lead[mine] > np.median(lead[mine])
        cell, n_cells = 2 * guess.classes + sure, 2 * n_classes
    found = np.zeros((len(rows), n_cells))
    found[np.searchsorted(rows, guess.rows), cell] = 1.0
    return found


def _skill(guess: Guess, known: Int64Array, labels: Int64Array, n_classes: int) -> float:
    """How well a guess does on known rows that it was not told, from 0 at chance to 1; 0.5 where there are too few."""
    order = np.argsort(guess.rows)
    asked = np.isin(known, guess.rows)
    at, labels = order[np.searchsorted(guess.rows[order], known[asked])], labels[asked]
    if len(np.unique(labels)) < n_classes:
        return 0.5
    if guess.scores is not None:
        last, others = (guess.scores[at][chosen] for chosen in (labels == n_classes - 1, labels < n_classes - 1))
        # A score that is wrong too often tells as much as one that is right.
        return abs(float(np.sign(last[:, None] - others).mean()))
    assert guess.classes is not None
    right = guess.classes[at] == labels
    share = np.mean([right[labels == number].mean() for number in range(n_classes)])
    return max(0.0, float((n_classes * share - 1) / (n_classes - 1)))


def _weights(cells: Sequence[Float64Array], skills: Float64Array) -> Float64Array:
    """How much each attack's vote weighs: more with skill, less where skilled attacks say the same."""
    strength = np.maximum(skills, 1e-3) ** SHARPNESS / (1 + SLACK - skills)
    alike = np.array([[_shared(one, other) for other in cells] for one in cells])
    np.fill_diagonal(alike, 1.0)  # A constant guess shares nothing, not even with itself.
    return np.asarray(strength / (alike @ strength))


def _shared(one: Float64Array, other: Float64Array) -> float:
    """Which share of what the vaguer of two guesses says is said by the other as well: their mutual information."""
    both = one.T @ other
    both /= max(both.sum(), 1.0)
    first, second = (_entropy(both.sum(axis=axis)) for axis in (1, 0))
    return float(np.clip((first + second - _entropy(both.ravel())) / max(min(first, second), 1e-9), 0, 1))


def _entropy(shares: Float64Array) -> float:
    return float(-(shares[shares > 0] * np.log(shares[shares > 0])).sum())


def _beliefs(
    cells: Sequence[Float64Array], weights: Float64Array, known: Int64Array, told: Float64Array
) -> Float64Array:
    """Log-probabilities (rows, classes) of all rows, from the votes of all cells; `told` has those of known rows."""
    n_rows = len(cells[0])
    counts = np.ones((n_rows, 1))
    counts[known] = KNOWN_WEIGHT * n_rows / max(len(known), 1)
    said = [_said(each[known], told) for each in cells]
    for _ in range(ROUNDS):
        votes = [weight * (each @ says) for weight, each, says in zip(weights, cells, said, strict=True)]
        total = np.sum(votes, axis=0)
        for number, vote in enumerate(votes):
            others = np.exp(log_normalised(total - vote))
            others[known] = told
            said[number] = _said(cells[number], counts * others)
    total = np.sum([weight * (each @ says) for weight, each, says in zip(weights, cells, said, strict=True)], axis=0)
    return log_normalised(total)


def _said(cells: Float64Array, beliefs: Float64Array) -> Float64Array:
    """How likely each class is to put a row into each cell (cells, classes), as a logarithm."""
    counts = cells.T @ beliefs
    usual = counts.sum(axis=1, keepdims=True) / max(counts.sum(), 1e-9)
    counts = counts + PRIOR * (usual + 1e-3)
    return np.asarray(np.log(counts / counts.sum(axis=0)))
