"""Labels: every other party guesses the label party's classes.

Granted: some labels of each class. Null: the run again with shuffled labels, scored against the true ones.

Baseline: a suite of ordinary methods on the attacker's own columns, with the same known labels. The best method is
chosen *by the truth*. That choice favours the control: an attack must beat the best that its party could have done at
home. With known labels: nearest known row, class centroids, logistic regression, a network, self-training, label
spreading and clusters named by the known rows, each on the columns, on their principal components and on the code of
an autoencoder; distillation; and what co-training starts from. An attack that joins own columns with messages leans on
the last two; its null runs do so less, because shuffled gradients mislead it. Clusters and principal components without
names are compared up to naming only.
Without a single known label nothing at home says which cluster is which class, so alone means chance.
"""

from __future__ import annotations

import warnings
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Any

import numpy as np

from colonnade.attacks.base import AnyAttack, Grant, Guess, Inapplicable
from colonnade.attacks.labels.cotraining import believed
from colonnade.attacks.labels.discriminants import compressed, foretold
from colonnade.attacks.points import Points, cluster_votes, distances, k_means
from colonnade.auditing.attempt import Attempt, PartyRecord
from colonnade.auditing.contents import BestBaseline, Evidence, Leakage, Measure, Score
from colonnade.auditing.subjects.base import TAILS, Judgement, Made, Subject, Tables, Values
from colonnade.auditing.subjects.classes import (
    ClassTruth,
    best_named,
    chance,
    paired_values,
    value,
    with_interval,
)
from colonnade.curves import CurvesType
from colonnade.privacy.randomness import Randomness
from colonnade.roles import Roles
from colonnade.secret import Secret
from colonnade.tables.encode import filled
from colonnade.tables.table import Table
from colonnade.wire.message import Float64Array, Int64Array

ROWS = 5_000
COMPONENTS = 16
HIDDEN = 64
CODED_ROWS, CODED_EPOCHS = 2_000, 30
# Where all labels say less than this beyond a few of them, no share of the way between is told.
LEAST_WAY = 0.01


class LabelsSubject(Subject):
    """The label party's classes."""

    secret = Secret.LABELS
    grants = frozenset({"known_labels"})
    one_owner = True

    def owners(self, attack: AnyAttack, roles: Roles) -> Sequence[str | None]:
        return (roles.label,)

    def why_not_scorable(self, owner: str | None, tables: Tables) -> str | None:
        labels = None if owner is None else tables[owner].labels
        if labels is None:
            return Inapplicable("nobody in this run holds labels" if owner is None else f"{owner} holds no labels")
        if isinstance(labels.type, CurvesType):
            return Inapplicable(f"{owner}'s labels are curves, and it guesses classes")
        values = np.asarray(labels)
        if values.dtype.kind == "f" and (values % 1 != 0).any():
            return Inapplicable(f"{owner}'s labels are measurements, and it guesses classes")
        return None

    def grant(self, attack: AnyAttack, owner: str, tables: Tables, rows: Int64Array, random: Randomness) -> Grant | str:
        labels, n_classes = class_numbers(tables[owner])
        order, needs = random.generator("grant").permutation(len(labels)), attack.needs
        rarest = int(np.bincount(labels[rows], minlength=n_classes).min())
        known = max(needs.known_labels, min(needs.most_per_class(n_classes), rarest // 4))
        grant = draw_grant(labels, n_classes, known, rows, order, owner)
        return grant or f"it must be told {known} labels per class, and one class has fewer"

    def truth(self, attempt: Attempt, tables: Tables, rows: Int64Array, random: Randomness) -> ClassTruth:
        return ClassTruth.of(class_numbers(tables[attempt.grant.owner])[0], attempt.grant)

    def shuffled(self, tables: Tables, roles: Roles, attacker: str, random: Randomness) -> dict[str, Table]:
        assert roles.label is not None
        table = tables[roles.label]
        return {roles.label: table.with_labels(random.generator("labels").permutation(np.asarray(table.labels)))}

    def baseline(self, attempt: Attempt, rows: Int64Array, record: PartyRecord, random: Randomness) -> Baseline:
        generator = random.generator("alone", attempt.attacker, attempt.grant.labels_per_class)
        return attacker_alone(record.table, attempt.grant, rows, generator)

    def baseline_needs(self, attempt: Attempt, rows: Int64Array, record: PartyRecord) -> Hashable:
        is_sample = record.table is not None and len(record.table) > ROWS
        return attempt.grant.rows.tobytes(), np.sort(rows).tobytes() if is_sample else b""

    def judge(
        self, made: Made, null: Sequence[Values], baseline: Any, random: np.random.Generator, delta: float
    ) -> Judgement:
        guess, truth = made.guess, made.truth
        assert isinstance(truth, ClassTruth)
        measure, renamed_guess = truth.measure(guess), best_named(guess, truth)
        score = with_interval(guess, truth, random)
        is_named = np.array_equal(renamed_guess.said, guess.said)
        renamed_score = score if is_named else with_interval(renamed_guess, truth, random)

        def evidence(*, up_to_naming: bool) -> Evidence:
            return Evidence(
                renamed_score if up_to_naming else score,
                chance(measure, truth, guess.rows),
                tuple(values.up_to_naming if up_to_naming else values.plain for values in null),
                None if baseline is None else baseline.best(guess.rows, measure, truth, up_to_naming=up_to_naming),
            )

        plain, renamed = evidence(up_to_naming=False), evidence(up_to_naming=True)
        if not made.attempt.attack.needs.guesses:
            return Judgement(plain, renamed)
        none = Leakage((), 1.0)
        return Judgement(plain, renamed, measured=none if baseline is None else baseline.leakage(guess, truth, random))


def class_numbers(table: Table) -> tuple[Int64Array, int]:
    """A table's labels as class numbers in the sorted order of the classes, and how many classes there are."""
    classes, numbers = np.unique(np.asarray(table.labels), return_inverse=True)
    return numbers.astype(np.int64), len(classes)


def draw_grant(
    labels: Int64Array, n_classes: int, per_class: int, rows: Int64Array, order: Int64Array, owner: str = ""
) -> Grant | None:
    """Tell some labels of each class among some rows, in a random order; None where a class has too few.

    A larger grant from the same order contains the smaller one.
    """
    candidates = order[np.isin(order, rows)]
    of_class = [candidates[labels[candidates] == number][:per_class] for number in range(n_classes)]
    if any(len(drawn) < per_class for drawn in of_class):
        return None
    granted = np.sort(np.concatenate(of_class))
    return Grant(n_classes, granted, labels[granted], owner=owner)


@dataclass(frozen=True)
class Baseline:
    """How each method of the suite rates every class for some rows; higher is likelier.

    Attributes:
        named: The ratings (rows, classes) of methods that were told labels.
        unnamed: Those of methods that were told none.
        columns: The attacker's own columns in these rows; None where only the attacker has them.

    >>> alone = Baseline(np.arange(2), named={"nearest known row": np.array([[0.9, 0.1], [0.2, 0.8]])}, unnamed={})
    >>> alone.best(np.arange(2), "balanced accuracy", ClassTruth(np.array([0, 1]), 2, granted=np.array([], int)))
    BestBaseline(value=1.0, method='nearest known row')
    """

    rows: Int64Array
    named: Mapping[str, Float64Array]
    unnamed: Mapping[str, Float64Array]
    columns: Float64Array | None = None

    def best(
        self, guessed: Int64Array, measure: Measure, truth: ClassTruth, *, up_to_naming: bool = False
    ) -> BestBaseline:
        """The best of the suite on the rows that an attack guessed, each method under the best names if asked for."""
        common = np.isin(self.rows, guessed)
        scored = [BestBaseline(chance(measure, truth, guessed), "chance")]
        for method, ratings in {**self.named, **(self.unnamed if up_to_naming else {})}.items():
            guess = measured_by(measure, self.rows[common], ratings[common])
            scored.append(BestBaseline(value(best_named(guess, truth) if up_to_naming else guess, truth), method))
        return max(scored, key=lambda best: best.value)

    def leakage(self, joined: Guess, truth: ClassTruth, random: np.random.Generator) -> Leakage:
        """How far a joined guess goes beyond the attacker alone, beside what columns say with all labels known."""
        if self.columns is None:
            return Leakage((), 1.0)
        joined = joined.only(np.isin(joined.rows, self.rows))
        order = np.argsort(joined.rows)
        at, measure = np.searchsorted(self.rows, joined.rows[order]), truth.measure(joined)
        joined = Guess.rated(joined.rows[order], joined.by_class(truth.n_classes)[order])
        alone = self.best(joined.rows, measure, truth)
        guesses = [joined]
        if alone.method in self.named:
            guesses.append(measured_by(measure, joined.rows, self.named[alone.method][at]))
        values = paired_values(guesses, truth, random)
        beyond = values[:, 0] - (values[:, 1] if len(guesses) > 1 else alone.value)
        exact = value(joined, truth) - alone.value
        low, high = np.quantile(beyond, TAILS)
        excess = Score(exact, min(exact, float(low)), max(exact, float(high)))
        most = _with_all_labels(self.columns[at], truth.labels[joined.rows], truth.n_classes, random)
        reached = [alone] + [
            BestBaseline(value(measured_by(measure, joined.rows, ratings), truth), method)
            for method, ratings in most.items()
        ]
        all_labels = max(reached, key=lambda best: best.value)
        way = all_labels.value - alone.value
        normalised = None if way < LEAST_WAY else Score(*(part / way for part in astuple(excess)))
        return Leakage((), 1.0, excess, all_labels, normalised)


def measured_by(measure: Measure, rows: Int64Array, ratings: Float64Array) -> Guess:
    """The guess that ratings of classes lead to, in the form that a measure scores."""
    if measure == "AUC":
        return Guess(rows, scores=ratings[:, -1] - ratings[:, :-1].max(axis=1))
    return Guess(rows, classes=ratings.argmax(axis=1).astype(np.int64))


def _with_all_labels(
    x: Float64Array, labels: Int64Array, n_classes: int, random: np.random.Generator
) -> dict[str, Float64Array]:
    """How columns rate the classes of each row, learned from the labels of other rows."""
    from sklearn.ensemble import RandomForestClassifier

    shares = np.maximum(np.bincount(labels, minlength=n_classes), 1) / len(labels)
    forest = RandomForestClassifier(
        100, min_samples_leaf=2, oob_score=True, class_weight="balanced", random_state=int(random.integers(2**31))
    )
    voted = np.zeros((len(x), n_classes))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        forest.fit(x, labels)
    voted[:, forest.classes_] = _finite(forest.oob_decision_function_)
    return {
        "logistic regression on all other labels": foretold(x, labels, n_classes, random) / shares,
        "random forest on all other labels": voted,
    }


def attacker_alone(table: Table | None, grant: Grant, about: Int64Array, random: np.random.Generator) -> Baseline:
    """Run the suite on the attacker's table; without one only chance is left.

    Of very many rows a sample is used, which takes the rows that the attack guessed first.
    """
    if table is None:
        return Baseline(np.zeros(0, np.int64), {}, {})
    rows = np.arange(len(table))
    if len(rows) > ROWS:
        guessed = np.setdiff1d(np.intersect1d(rows, about), grant.rows)
        first, then = random.permutation(guessed), random.permutation(np.setdiff1d(rows, guessed))
        rows = np.union1d(np.concatenate([first, then])[:ROWS], grant.rows)
    features = filled(table.take(rows))
    if not features.shape[1]:
        return Baseline(rows, {}, {})
    known = np.searchsorted(rows, grant.rows)
    spaces = {"": features}
    if features.shape[1] > COMPONENTS:
        spaces[" on principal components"] = _principal_components(features, COMPONENTS)
    seed = int(random.integers(2**31))
    if len(known) and features.shape[1] > 1:
        spaces[" on an autoencoder's code"] = _code(features, seed)
    named: dict[str, Float64Array] = {}
    unnamed: dict[str, Float64Array] = {}
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        # The suite runs at fixed effort; what has not converged counts as it is.
        warnings.simplefilter("ignore")
        for space, x in spaces.items():
            if len(known):
                named |= {m + space: r for m, r in _from_known(x, known, grant, seed)}
            unnamed |= {m + space: r for m, r in _from_nothing(x, grant.n_classes, seed)}
        if len(known):
            named |= dict(_as_attacks_begin(features, known, grant, seed))
    named, unnamed = ({m: _finite(r) for m, r in rated.items()} for rated in (named, unnamed))
    return Baseline(rows, named, unnamed, features)


def _from_known(x: Float64Array, known: Int64Array, grant: Grant, seed: int) -> Iterator[tuple[str, Float64Array]]:
    from sklearn.linear_model import LogisticRegression
    from sklearn.neural_network import MLPClassifier
    from sklearn.semi_supervised import LabelSpreading, SelfTrainingClassifier

    n, k = len(x), grant.n_classes
    is_class = grant.labels[:, None] == np.arange(k)
    lengths = np.linalg.norm(x, axis=1, keepdims=True)
    for metric, points in {"distance": x, "angle": x / np.where(lengths > 0, lengths, 1)}.items():
        near = -distances(points, points[known])
        yield f"nearest known row by {metric}", np.stack([near[:, c].max(axis=1) for c in is_class.T], axis=1)
        centroids = np.stack([points[known[c]].mean(axis=0) for c in is_class.T])
        yield f"class centroids by {metric}", -distances(points, centroids)
    for strength in (0.01, 1.0):
        model = LogisticRegression(C=strength).fit(x[known], grant.labels)
        yield f"logistic regression (C={strength:g})", model.predict_proba(x)
    network = MLPClassifier((HIDDEN,), solver="lbfgs", max_iter=100, random_state=seed).fit(x[known], grant.labels)
    yield "network", network.predict_proba(x)
    partly = np.full(n, -1)
    partly[known] = grant.labels
    yield "self-training", SelfTrainingClassifier(LogisticRegression(), threshold=0.8).fit(x, partly).predict_proba(x)
    if n > 10:
        spreading = LabelSpreading(kernel="knn", n_neighbors=min(10, n - 1), max_iter=50).fit(x, partly)
        yield "label spreading", spreading.label_distributions_
    for factor in (1, 2, 4):
        if factor * k <= n:
            member, centres = k_means(x, factor * k, np.random.default_rng(seed))
            votes = cluster_votes(member, known, grant.labels, distances(centres, x[known]), k)
            yield f"{factor * k} named clusters", votes[member]


def _as_attacks_begin(
    x: Float64Array, known: Int64Array, grant: Grant, seed: int
) -> Iterator[tuple[str, Float64Array]]:
    """What attacks that join own columns with messages make of the columns alone."""
    columns, random, k = Points(np.arange(len(x)), x), np.random.default_rng(seed), grant.n_classes
    yield "first beliefs of co-training", believed(columns, known, grant.labels, k, random)
    white = compressed(columns).values
    if white.shape[1]:
        centroids = np.stack([white[known[grant.labels == number]].mean(axis=0) for number in range(k)])
        guessed = distances(white, centroids).argmin(axis=1)
        guessed[known] = grant.labels
        yield "distillation", foretold(white, guessed, k, random)


def _from_nothing(x: Float64Array, n_classes: int, seed: int) -> Iterator[tuple[str, Float64Array]]:
    if n_classes <= len(x):
        _, centres = k_means(x, n_classes, np.random.default_rng(seed))
        yield f"{n_classes} clusters", -distances(x, centres)
    if n_classes == 2:
        for number, component in enumerate(_principal_components(x, 3).T, start=1):
            yield f"principal component {number}", np.stack([-component, component], axis=1)


def _principal_components(x: Float64Array, n: int) -> Float64Array:
    from scipy.linalg import eigh

    width = x.shape[1]
    _, directions = eigh(x.T @ x, subset_by_index=(max(0, width - n), width - 1))
    return np.asarray(x @ directions[:, ::-1])


def _code(x: Float64Array, seed: int) -> Float64Array:
    """The numbers that an autoencoder squeezes each row through; fitted to a sample of the rows."""
    from sklearn.neural_network import MLPRegressor

    width = min(COMPONENTS, -(-x.shape[1] // 2))
    shown = np.random.default_rng(seed).permutation(len(x))[:CODED_ROWS]
    layers = HIDDEN, width, HIDDEN
    network = MLPRegressor(hidden_layer_sizes=layers, max_iter=CODED_EPOCHS, random_state=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # It runs at fixed effort.
        network.fit(x[shown], x[shown])
    hidden = np.maximum(x @ network.coefs_[0] + network.intercepts_[0], 0)
    code = hidden @ network.coefs_[1] + network.intercepts_[1]
    return np.asarray(code / max(float(code.std()), 1e-9))


def _finite(ratings: Float64Array) -> Float64Array:
    return np.nan_to_num(ratings, nan=0.0)
