"""Strongest: all guesses of one attacker about the same labels, joined into one without a look at the truth.

    guesses, own columns ──▶ cells ───────┬──▶ what each cell says of the classes ──▶ beliefs about all rows ─┐
    known labels, agreement ──▶ skills ───┘                 └───◀── each guess by the others' beliefs ◀───────┘

What the attacker's own columns say, with all labels that it was told, is one guess more: joined attacks should seldom
do worse than the attacker alone. There, a known row is judged by the other known rows.

A guess puts each row into a cell: a class with less or more confidence, or a level of its score. What a cell says of
the classes is counted on known labels, and on what the *other* attacks believe of all other rows: no attack vouches for
itself. The name that an attack gives a class counts as well, as far as the attack has skill. Of a score only the mean
of each class is counted, so that its order within a class still tells something where no other attack knows it. An
inverted score so tells as much as a right one.

Attacks that share what they say share one vote. Where several say nearly the same, they hand their votes to the most
skilled of them, which so overrules the others in the few rows that they differ in. Two witnesses tell skill, and each
counts as far as it is sure: labels that are known but were not told to the attack itself, which are few; and how
an attack agrees with attacks unlike it, on all rows. Two attacks that err independently agree by the product of their
skills, and the products of many pairs tell each skill. A row that too few of the votes are about, such as one that was
held out, is not guessed.

Beliefs from the agreement of many: Dawid and Skene 1979, "Maximum likelihood estimation of observer error-rates using
the EM algorithm". Skills from products: Parisi et al. 2014, "Ranking and combining multiple predictors without labeled
data".
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from colonnade.attacks.base import Attack, Grant, Guess, Needs, View
from colonnade.attacks.labels.cotraining import believed
from colonnade.attacks.labels.discriminants import log_normalised
from colonnade.attacks.points import KNOWN_PER_CLASS, Points, chosen_rows
from colonnade.errors import PrivacyError
from colonnade.wire.message import Float64Array, Int64Array

# Labels per class that no single attack is told, and labels in all that anybody is told, at least: what attacks are
# weighed by. Two classes need more of each, because few rows tell an attack that is always right from a good one.
KEPT_PER_CLASS, KNOWN_IN_ALL = 8, 56
# In how many parts known rows are judged by own columns, and with how many other rows.
FOLDS, BESIDE = 4, 2_000
ROUNDS = 5
LEVELS = 8
# How many rows a cell of ordinary classes counts as having seen at the start.
PRIOR = 4.0
# What all known labels weigh, relative to all other rows, and the names of a skilled attack relative to both.
KNOWN_WEIGHT, NAMES_WEIGHT = 0.5, 0.5
# The share of all votes that must be about a row.
LEAST_SAID = 1 / 3
# Beyond these quantiles a score is taken for the quantile.
TAILS = (0.01, 0.99)
# How much more than others of its kind a skilled attack weighs: the power of its skill, over its distance from 1.
SHARPNESS, SLACK = 2.0, 0.05
# The standard error of a skill that agreement tells: about so much with two classes, because attacks that see the same
# columns err together, and a third of it with ten.
AGREEMENT_DOUBT = 0.3
FITS = 100
# The least variance that one known row counts for: a few rows that are all right prove no perfect attack.
LEAST_VARIANCE = 0.1
# Two attacks judge each other's skill by this power of what they do not share.
UNLIKENESS = 2
# Attacks that share more than this of what they say hand over votes, all of them where they share everything.
NEARLY = 0.7
# How many times as much an attack is handed for every known row more that it is right about: this power of e.
HANDED = 1.0


class Strongest(Attack):
    """All attacks of this party and its own columns joined into one guess, weighed by known labels and agreement."""

    needs = Needs(
        guesses=True,
        own_features=True,
        table_optional=True,
        known_labels=KNOWN_PER_CLASS + KEPT_PER_CLASS,
        known_in_all=KNOWN_IN_ALL,
    )

    def guess(self, view: View) -> Guess:
        if len(view.guesses) < 2:
            raise PrivacyError(f"it joins the guesses of two attacks or more, and there are {len(view.guesses)}")
        grant, n_classes = view.grant, view.grant.n_classes
        rows = np.unique(np.concatenate([guess.rows for guess in view.guesses]))
        guesses = [*view.guesses, *_by_own_columns(view, rows)]
        is_rated = np.isin(grant.rows, rows)
        known, labels = np.searchsorted(rows, grant.rows[is_rated]), grant.labels[is_rated]
        cells = [_cells(guess, rows, n_classes) for guess in guesses]
        names = [_names(guess, n_classes) for guess in guesses]
        skills, alike = _skills(guesses, grant, cells, names)
        about = np.stack([each.sum(axis=1) for each in cells])
        weights = _handed(_weights(skills, alike), skills, alike, about, len(known))
        is_said = weights @ about >= LEAST_SAID * weights.sum()
        said, named = [], []
        for guess, each, name, skill in zip(guesses, cells, names, skills, strict=True):
            scored = guess.scores is not None
            said.append(_line(guess, rows) if scored else each)
            usual = each.sum(axis=0)[:, None] / max(float(each.sum()), 1.0)
            named.append(np.zeros((2, n_classes)) if scored else NAMES_WEIGHT * skill * usual * name)
        beliefs = _beliefs(said, named, weights, known, np.eye(n_classes)[labels])
        return Guess.rated(rows, beliefs).only(is_said)


def _by_own_columns(view: View, rows: Int64Array) -> list[Guess]:
    """What own columns and known labels say of some rows, and of a known row what the other known rows say; if any."""
    grant, random = view.grant, view.random
    if not view.own.has_table:
        return []
    asked = np.union1d(rows, grant.rows)
    points = Points(asked, Points.of_columns(view).at(asked))
    known, labels = points.known(grant)
    found = believed(points, known, labels, grant.n_classes, random)
    fold = np.zeros(len(known), np.int64)
    for number in range(grant.n_classes):
        mine = random.permutation(np.flatnonzero(labels == number))
        fold[mine] = np.arange(len(mine)) % FOLDS
    few = chosen_rows(len(asked), BESIDE + len(known), known, random)
    sample, at = Points(asked[few], points.values[few]), np.searchsorted(few, known)
    for number in range(FOLDS):
        told = fold != number
        said = believed(sample, at[told], labels[told], grant.n_classes, random)
        found[known[~told]] = said[at[~told]]
    return [Guess.rated(asked, np.log(found)).only(np.isin(asked, rows))]


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


def _names(guess: Guess, n_classes: int) -> Float64Array:
    """The class that a guess itself calls each of its cells by (cells, classes); of a score, how far to the last."""
    if guess.scores is None:
        return np.repeat(np.eye(n_classes), 2, axis=0)
    level = np.arange(LEVELS) - (LEVELS - 1) / 2
    return np.stack([-level / (n_classes - 1)] * (n_classes - 1) + [level], axis=1)


def _line(guess: Guess, rows: Int64Array) -> Float64Array:
    """Whether a guess is about each row, and the row's score from its mean on (rows, 2)."""
    assert guess.scores is not None
    scores = np.clip(guess.scores, *np.quantile(guess.scores, TAILS))
    found = np.zeros((len(rows), 2))
    found[np.searchsorted(rows, guess.rows)] = np.stack(
        [np.ones(len(scores)), (scores - scores.mean()) / max(float(scores.std()), 1e-12)], axis=1
    )
    return found


def _skills(
    guesses: Sequence[Guess], grant: Grant, cells: Sequence[Float64Array], names: Sequence[Float64Array]
) -> tuple[Float64Array, Float64Array]:
    """How skilled attacks are, from 0 at chance to 1, by known labels and agreement; and how much each pair shares."""
    places = range(len(cells))
    alike, agreed = np.eye(len(cells)), np.zeros((len(cells), len(cells)))
    for i, j in ((i, j) for i in places for j in places if i < j):
        met = cells[i].T @ cells[j]
        met /= max(met.sum(), 1.0)
        alike[i, j] = alike[j, i] = _shared(met, grant.n_classes)
        agreed[i, j] = agreed[j, i] = _agreed(met, names[i], names[j])
    tested, sure = np.array([_tested(guess, grant.rows, grant.labels, grant.n_classes) for guess in guesses]).T
    implied, known = _implied(agreed, alike)
    known = known / AGREEMENT_DOUBT**2
    return (sure * tested + known * implied) / (sure + known), alike


def _tested(guess: Guess, known: Int64Array, labels: Int64Array, n_classes: int) -> tuple[float, float]:
    """How well a guess does on known rows that it was not told, and how sure that is: one over its variance."""
    order = np.argsort(guess.rows)
    asked = np.isin(known, guess.rows)
    at, labels = order[np.searchsorted(guess.rows[order], known[asked])], labels[asked]
    if len(np.unique(labels)) < n_classes:
        return 0.5, 1.0
    if guess.scores is not None:
        last, others = (guess.scores[at][chosen] for chosen in (labels == n_classes - 1, labels < n_classes - 1))
        # A score that is wrong too often tells as much as one that is right.
        skill, n_asked = abs(float(np.sign(last[:, None] - others).mean())), min(len(last), len(others))
    else:
        assert guess.classes is not None
        right = guess.classes[at] == labels
        share = np.mean([right[labels == number].mean() for number in range(n_classes)])
        skill, n_asked = max(0.0, float((n_classes * share - 1) / (n_classes - 1))), len(labels)
    return skill, n_asked / max(1 - skill**2, LEAST_VARIANCE)


def _agreed(met: Float64Array, mine: Float64Array, others: Float64Array) -> float:
    """How far two guesses name classes alike, from 0 at chance to 1: the correlation of their names, without sign.

    `met` is the share of rows in each cell of one and of the other, `mine` and `others` are the names of their cells.
    """
    first, second = met.sum(axis=1), met.sum(axis=0)
    mine, others = mine - first @ mine, others - second @ others
    spread = float(first @ (mine**2).sum(axis=1) * (second @ (others**2).sum(axis=1)))
    return abs(float((met * (mine @ others.T)).sum())) / max(math.sqrt(spread), 1e-12)


def _implied(agreed: Float64Array, alike: Float64Array) -> tuple[Float64Array, Float64Array]:
    """The skills whose products are nearest to how attacks agree; and from 0 to 1, how much unlike attacks say of each.

    Attacks that share what they say err together, and agree without any skill: such pairs count little.
    """
    trust = (1 - alike) ** UNLIKENESS
    skills = np.full(len(agreed), 0.5)
    for _ in range(FITS):
        fitted = (trust * agreed) @ skills / np.maximum(trust @ skills**2, 1e-9)
        # Half of the way: products of two attacks only say what both skills are together.
        skills = np.clip(np.sqrt(skills * fitted), 0.01, 0.99)
    return skills, np.minimum(trust.sum(axis=1), 1.0)


def _weights(skills: Float64Array, alike: Float64Array) -> Float64Array:
    """How much each attack's vote weighs: more with skill, less where skilled attacks say the same."""
    strength = np.maximum(skills, 1e-3) ** SHARPNESS / (1 + SLACK - skills)
    return np.asarray(strength / (alike @ strength))


def _handed(
    weights: Float64Array, skills: Float64Array, alike: Float64Array, about: Float64Array, n_known: int
) -> Float64Array:
    """The votes once each attack has handed its own to those that say nearly the same, by skill on the known rows.

    `about` says which rows each attack guesses (attacks, rows): nothing is handed to one that leaves some of them out.
    """
    leaves_out = about @ (1 - about.T) > 0
    near = np.where(leaves_out, 0.0, np.clip((alike - NEARLY) / (1 - NEARLY), 0, 1))
    more_right = n_known * (skills - skills[:, None])
    share = near * np.exp(np.clip(HANDED * more_right, -100, 100))
    return np.asarray(weights @ (share / share.sum(axis=1, keepdims=True)))


def _shared(met: Float64Array, n_classes: int) -> float:
    """Which share of what the vaguer of two guesses says of classes is said by the other: their mutual information."""
    first, second = (_entropy(met.sum(axis=axis)) for axis in (1, 0))
    most = min(first, second, math.log(n_classes))
    return float(np.clip((first + second - _entropy(met.ravel())) / max(most, 1e-9), 0, 1))


def _entropy(shares: Float64Array) -> float:
    return float(-(shares[shares > 0] * np.log(shares[shares > 0])).sum())


def _beliefs(
    cells: Sequence[Float64Array],
    named: Sequence[Float64Array],
    weights: Float64Array,
    known: Int64Array,
    told: Float64Array,
) -> Float64Array:
    """Log-probabilities (rows, classes) of all rows, from the votes of all cells.

    `named` is what the names of cells say of classes, and `told` what is known of the known rows.
    """
    n_rows = len(cells[0])
    counts = np.ones((n_rows, 1))
    counts[known] = KNOWN_WEIGHT * n_rows / max(len(known), 1)
    said = [_said(each[known], told, name) for each, name in zip(cells, named, strict=True)]
    for _ in range(ROUNDS):
        votes = [weight * (each @ says) for weight, each, says in zip(weights, cells, said, strict=True)]
        total = np.sum(votes, axis=0)
        for number, vote in enumerate(votes):
            others = np.exp(log_normalised(total - vote))
            others[known] = told
            said[number] = _said(cells[number], counts * others, named[number])
    total = np.sum([weight * (each @ says) for weight, each, says in zip(weights, cells, said, strict=True)], axis=0)
    return log_normalised(total)


def _said(cells: Float64Array, beliefs: Float64Array, named: Float64Array) -> Float64Array:
    """How likely each class is to put a row into each cell (cells, classes), as a logarithm; of `_line` its slopes."""
    counts = cells.T @ beliefs
    if len(counts) == 2:
        # Scores of each class are taken for normal, with one variance for all: the logarithm is a line.
        n_rows, means = counts[0] + 1e-9, counts[1] / (counts[0] + PRIOR)
        variance = float(beliefs.sum(axis=1) @ cells[:, 1] ** 2 - n_rows @ means**2) / n_rows.sum()
        return np.asarray(np.stack([-(means**2) / 2, means]) / max(variance, 1e-3))
    counts = counts + counts.sum() * named
    usual = counts.sum(axis=1, keepdims=True) / max(counts.sum(), 1e-9)
    counts = counts + PRIOR * (usual + 1e-3)
    return np.asarray(np.log(counts / counts.sum(axis=0)))
