"""Baseline: what the attacker could say about labels by itself, without any collaboration.

A suite of ordinary methods on the attacker's own columns, with the same known labels. The best method is chosen *by the
truth*. That choice favours the control: an attack must beat the best that its party could have done at home.

With known labels: nearest known row, class centroids, logistic regression, self-training, label spreading, and clusters
named by the known rows. Clusters and principal components without names are compared up to naming only. Without a
single known label nothing at home says which cluster is which class, so alone means chance.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from colonnade.attacks.base import Grant, Guess
from colonnade.auditing.evidence import BestBaseline, Measure
from colonnade.auditing.numbers import ColumnNumbers
from colonnade.auditing.subjects.classes import ClassTruth, best_named, chance, value
from colonnade.tables.table import Table
from colonnade.wire.message import Float64Array, Int64Array

ROWS = 5_000
COMPONENTS = 16


@dataclass(frozen=True)
class Baseline:
    """How each method of the suite rates every class for some rows; higher is likelier.

    >>> alone = Baseline(np.arange(2), named={"nearest known row": np.array([[0.9, 0.1], [0.2, 0.8]])}, unnamed={})
    >>> alone.best(np.arange(2), "balanced accuracy", ClassTruth(np.array([0, 1]), 2, granted=np.array([], int)))
    BestBaseline(value=1.0, method='nearest known row')
    """

    rows: Int64Array
    named: Mapping[str, Float64Array]
    unnamed: Mapping[str, Float64Array]

    def best(self, guessed: Int64Array, measure: Measure, truth: ClassTruth) -> BestBaseline:
        """The best of the suite on the rows that an attack guessed."""
        scored = [BestBaseline(chance(measure, truth, guessed), "chance")]
        for method, guess in self._guesses(self.named, guessed, measure):
            scored.append(BestBaseline(value(guess, truth), method))
        return max(scored, key=lambda best: best.value)

    def best_up_to_naming(self, guessed: Int64Array, measure: Measure, truth: ClassTruth) -> BestBaseline:
        """The best of the suite, each method under the names of classes that suit it best."""
        scored = [BestBaseline(chance(measure, truth, guessed), "chance")]
        for method, guess in self._guesses({**self.named, **self.unnamed}, guessed, measure):
            scored.append(BestBaseline(value(best_named(guess, truth), truth), method))
        return max(scored, key=lambda best: best.value)

    def _guesses(
        self, ratings: Mapping[str, Float64Array], guessed: Int64Array, measure: Measure
    ) -> Iterator[tuple[str, Guess]]:
        common = np.isin(self.rows, guessed)
        for method, rating in ratings.items():
            rows, rating = self.rows[common], rating[common]
            if measure != "AUC":
                yield method, Guess(rows, classes=rating.argmax(axis=1).astype(np.int64))
            else:
                yield method, Guess(rows, scores=rating[:, -1] - rating[:, :-1].max(axis=1))


def attacker_alone(table: Table | None, grant: Grant, about: Int64Array, random: np.random.Generator) -> Baseline:
    """Run the suite.

    Args:
        table: The attacker's own rows; None leaves only chance. Of very many rows a sample is used.
        grant: What the attacker is told.
        about: The rows that the attack guessed. A sample takes these rows first.
        random: For the sample and for methods that start at random.
    """
    if table is None:
        return Baseline(np.zeros(0, np.int64), {}, {})
    rows = np.arange(len(table))
    if len(rows) > ROWS:
        guessed = np.setdiff1d(np.intersect1d(rows, about), grant.rows)
        first, then = random.permutation(guessed), random.permutation(np.setdiff1d(rows, guessed))
        rows = np.union1d(np.concatenate([first, then])[:ROWS], grant.rows)
    features = ColumnNumbers.of(table.take(rows)).filled()
    if not features.shape[1]:
        return Baseline(rows, {}, {})
    known = np.searchsorted(rows, grant.rows)
    spaces = {"": features}
    if features.shape[1] > COMPONENTS:
        spaces[" on principal components"] = _principal_components(features, COMPONENTS)
    seed = int(random.integers(2**31))
    named: dict[str, Float64Array] = {}
    unnamed: dict[str, Float64Array] = {}
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        # The suite runs at fixed effort; what has not converged counts as it is.
        warnings.simplefilter("ignore")
        for space, x in spaces.items():
            if len(known):
                named |= {m + space: r for m, r in _from_known(x, known, grant, seed)}
            unnamed |= {m + space: r for m, r in _from_nothing(x, grant.n_classes, seed)}
    return Baseline(rows, {m: _finite(r) for m, r in named.items()}, {m: _finite(r) for m, r in unnamed.items()})


def _from_known(x: Float64Array, known: Int64Array, grant: Grant, seed: int) -> Iterator[tuple[str, Float64Array]]:
    from sklearn.linear_model import LogisticRegression
    from sklearn.semi_supervised import LabelSpreading, SelfTrainingClassifier

    n, k = len(x), grant.n_classes
    is_class = grant.labels[:, None] == np.arange(k)
    lengths = np.linalg.norm(x, axis=1, keepdims=True)
    for metric, points in {"distance": x, "angle": x / np.where(lengths > 0, lengths, 1)}.items():
        near = -_distances(points, points[known])
        yield f"nearest known row by {metric}", np.stack([near[:, c].max(axis=1) for c in is_class.T], axis=1)
        centroids = np.stack([points[known[c]].mean(axis=0) for c in is_class.T])
        yield f"class centroids by {metric}", -_distances(points, centroids)
    for strength in (0.01, 1.0):
        model = LogisticRegression(C=strength).fit(x[known], grant.labels)
        yield f"logistic regression (C={strength:g})", model.predict_proba(x)
    partly = np.full(n, -1)
    partly[known] = grant.labels
    yield "self-training", SelfTrainingClassifier(LogisticRegression(), threshold=0.8).fit(x, partly).predict_proba(x)
    if n > 10:
        spreading = LabelSpreading(kernel="knn", n_neighbors=min(10, n - 1), max_iter=50).fit(x, partly)
        yield "label spreading", spreading.label_distributions_
    for factor in (1, 2, 4):
        if factor * k <= n:
            member, centres = _clusters(x, factor * k, seed)
            votes = np.zeros((factor * k, k))
            np.add.at(votes, (member[known], grant.labels), 1)
            # A cluster without a known row takes the name of the nearest known row.
            nearest = grant.labels[_distances(centres, x[known]).argmin(axis=1)]
            votes[np.arange(factor * k), nearest] += 0.5
            yield f"{factor * k} named clusters", votes[member]


def _from_nothing(x: Float64Array, n_classes: int, seed: int) -> Iterator[tuple[str, Float64Array]]:
    if n_classes <= len(x):
        _, centres = _clusters(x, n_classes, seed)
        yield f"{n_classes} clusters", -_distances(x, centres)
    if n_classes == 2:
        for number, component in enumerate(_principal_components(x, 3).T, start=1):
            yield f"principal component {number}", np.stack([-component, component], axis=1)


def _clusters(x: Float64Array, n: int, seed: int) -> tuple[Int64Array, Float64Array]:
    from sklearn.cluster import KMeans

    model: Any = KMeans(n, n_init=3, random_state=seed).fit(x)
    return model.labels_.astype(np.int64), model.cluster_centers_


def _principal_components(x: Float64Array, n: int) -> Float64Array:
    from scipy.linalg import eigh

    width = x.shape[1]
    _, directions = eigh(x.T @ x, subset_by_index=(max(0, width - n), width - 1))
    return np.asarray(x @ directions[:, ::-1])


def _distances(x: Float64Array, centres: Float64Array) -> Float64Array:
    from scipy.spatial.distance import cdist

    return np.asarray(cdist(x, centres))


def _finite(ratings: Float64Array) -> Float64Array:
    return np.nan_to_num(ratings, nan=0.0)
