"""Penalties on received embeddings: the penalty's own gradient is computed from classes, so solve for the classes.

A penalty that pushes rows of one class apart moves each row away from the other rows of its class. The attacker knows
all embeddings of a batch. For each way to cut the batch into classes it can compute where each row would be moved, and
the cut under which rows are moved as they were is the true one, up to names.

    wandering              row i moves along P_i S_k: the sum of its class's directions, less the part along itself
    potential energy       along the sum of (z_i - z_j) / distance^3 over its class
    distance correlation   along the sum of b_kj (z_i - z_j) / distance, where b says who shares a class with whom

Classes and what they share (S_k, or the strength of the penalty and the mean gradient of each class) are found in turn,
from several starts (expectation-maximisation with hard classes). Each batch of the first epoch is solved by itself, and
the names of its classes are those that the attacker's own columns and a few known labels find likeliest. Batches are
solved until they have 20,000 rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar, Literal, Self, TypeAlias

import numpy as np

from colonnade.attacks.base import Attack, Guess, Needs, View
from colonnade.attacks.labels.cotraining import believed
from colonnade.attacks.points import FITTED_ROWS, KNOWN_PER_CLASS, LANDMARKS, Points, k_means, why_no_gradients
from colonnade.models.networks.messages import Embedding, Gradient
from colonnade.parameters import Limit, check_parameters, choice, count
from colonnade.wire.message import Float32Array, Float64Array, Int64Array

Penalty: TypeAlias = Literal["wandering", "potential-energy", "distance-correlation"]
PENALTIES: tuple[Penalty, ...] = ("wandering", "potential-energy", "distance-correlation")
STARTS, ROUNDS = 8, 30
SOFTENED = 0.05
TINY = 1e-12


class PenaltyClasses(Attack):
    """The classes under which a penalty's own gradient would be the one that was received.

    Args:
        penalty: Which one the label party added to its loss.
        starts: From how many clusterings of a batch's gradients to start.

    >>> PenaltyClasses(penalty="potential-energy").needs.known_labels
    4
    """

    needs = Needs(messages=(Embedding, Gradient), own_features=True, known_labels=KNOWN_PER_CLASS)
    limits: ClassVar[Mapping[str, Limit]] = {"penalty": choice(*PENALTIES), "starts": count()}

    def __init__(self, *, penalty: Penalty = "wandering", starts: int = STARTS) -> None:
        self.penalty, self.starts = penalty, starts
        check_parameters(self)

    @classmethod
    def example(cls) -> Self:
        return cls(starts=1)

    @classmethod
    def variants(cls) -> Sequence[Self]:
        return [cls(penalty=penalty) for penalty in PENALTIES]

    def why_not(self, view: View) -> str | None:
        first = next(first_batches(view), None)
        if first is None:
            return why_no_gradients(view) or "no embeddings and gradients of the first epoch were kept"
        if self.penalty != "wandering" and len(first[0]) > LANDMARKS:
            return f"batches have {len(first[0]):,} rows, and it compares at most {LANDMARKS:,} with one another"
        return Points.of_gradients(view, "first").why_not(view.grant)

    def guess(self, view: View) -> Guess:
        from scipy.optimize import linear_sum_assignment

        n_classes, columns = view.grant.n_classes, Points.of_columns(view)
        beliefs = np.log(believed(columns, view.grant.rows, view.grant.labels, n_classes, view.random))
        beliefs[view.grant.rows] = np.log(0.01 / n_classes + 0.99 * np.eye(n_classes))[view.grant.labels]
        rows, ratings = [], []
        for about, z, g in first_batches(view):
            unlike = solved(z, g, n_classes, self.penalty, beliefs[about].argmax(axis=1), view.random, self.starts)
            member = np.eye(n_classes)[unlike.argmin(axis=1)]
            _, name = linear_sum_assignment(member.T @ beliefs[about], maximize=True)
            rated = np.empty_like(unlike)
            rated[:, name] = -unlike / max(float(unlike.min(axis=1).mean()), TINY)
            rows.append(about)
            ratings.append(rated)
        return Guess.rated(np.concatenate(rows), np.concatenate(ratings))


def first_batches(view: View) -> Iterator[tuple[Int64Array, Float64Array, Float64Array]]:
    """Rows, embeddings and gradients of the first batches of the first epoch."""
    sent: dict[int, Float32Array] = {}
    n_rows = 0
    for each in view.messages(Embedding, sent=True):
        if n_rows >= FITTED_ROWS:
            break
        step, values = each.message.step, each.message.values
        if each.epoch == 0 and each.rows is not None and step not in sent:
            sent[step] = values
            n_rows += len(values)
    for recorded in view.messages(Gradient, sent=False):
        if not sent:
            break
        step = recorded.message.step
        if recorded.epoch == 0 and recorded.rows is not None and step in sent:
            yield recorded.rows, sent.pop(step).astype(np.float64), recorded.message.values.astype(np.float64)


def solved(
    z: Float64Array,
    g: Float64Array,
    n_classes: int,
    penalty: Penalty,
    believed_classes: Int64Array | None,
    random: np.random.Generator,
    n_starts: int = STARTS,
) -> Float64Array:
    """How unlike the gradient of each row is to what each class would lead to (rows, classes), by the best cut.

    Args:
        z: The embeddings of a batch.
        g: Their gradients.
        n_classes: How many classes there are.
        penalty: What the label party added to its loss.
        believed_classes: Classes to start from, besides clusters of gradients.
        random: Where clusters start.
        n_starts: How many clusterings to start from.
    """
    lengths = np.linalg.norm(z, axis=1, keepdims=True)
    units = z / np.maximum(lengths, TINY)
    angular = penalty != "distance-correlation"
    pull = g * lengths if angular else g
    pull = pull / max(float(np.abs(pull).mean()), TINY)
    starts = [] if believed_classes is None else [believed_classes]
    if len(z) >= n_classes:
        starts += [k_means(pull, n_classes, random, restarts=1)[0] for _ in range(n_starts)]
    pushes = None if penalty == "wandering" else _pushes(units if angular else z, penalty)
    best, found = np.inf, np.zeros((len(z), n_classes))
    for classes in starts:
        for _ in range(ROUNDS):
            if pushes is None:
                unlike = _unlike_sums(units, pull, classes, n_classes)
            else:
                unlike = _unlike_pushes(pushes, pull, classes, n_classes, penalty)
            following = unlike.argmin(axis=1)
            if (following == classes).all():
                break
            classes = following
        left = float(unlike.min(axis=1).sum())
        if left < best:
            best, found = left, unlike
    return found


def _unlike_sums(units: Float64Array, pull: Float64Array, classes: Int64Array, n_classes: int) -> Float64Array:
    """How unlike pulls are to P_i S_k, with the S_k that suit the classes best by least squares."""
    width, sums = units.shape[1], []
    for k in range(n_classes):
        mine = classes == k
        crossed = mine.sum() * np.eye(width) - units[mine].T @ units[mine]
        sums.append(np.linalg.lstsq(crossed, pull[mine].sum(axis=0), rcond=None)[0])
    shared = np.stack(sums)
    along = units @ shared.T
    # |pull - P_i S|^2, where P_i takes away the part along the row itself.
    squared = (pull**2).sum(axis=1)[:, None] - 2 * (pull @ shared.T - along * (pull * units).sum(axis=1)[:, None])
    return np.asarray(np.maximum(squared + (shared**2).sum(axis=1) - along**2, 0.0))


def _pushes(z: Float64Array, penalty: Penalty) -> Float64Array:
    """By how much each row (first) is pushed by each other row (second) of its class, before any weight."""
    apart = z[:, None] - z
    squared = (apart**2).sum(axis=2, keepdims=True)
    if penalty == "potential-energy":
        pushed = -apart * (squared + SOFTENED**2) ** -1.5
        # Only what turns a unit vector shows in the gradient.
        return np.asarray(pushed - (pushed * z[:, None]).sum(axis=2, keepdims=True) * z[:, None])
    return np.asarray(apart / np.sqrt(squared + TINY))


def _unlike_pushes(
    pushes: Float64Array, pull: Float64Array, classes: Int64Array, n_classes: int, penalty: Penalty
) -> Float64Array:
    """How unlike pulls are to the pushes of each class, with the strength and class means that suit best."""
    n = len(pull)
    member = np.eye(n_classes)[classes].T
    sizes = member.sum(axis=1)
    if penalty == "potential-energy":
        weights = member / np.maximum(sizes - 1, 1)[:, None]
    else:
        weights = (sizes[:, None] + sizes[classes]) / n - member - (sizes**2).sum() / n**2
    moved = np.tensordot(weights, pushes, axes=(1, 1)).transpose(1, 0, 2)
    own = moved[np.arange(n), classes]
    counts = np.maximum(sizes, 1)[:, None]
    mean_pull, mean_own = member @ pull / counts, member @ own / counts
    free_pull, free_own = pull - mean_pull[classes], own - mean_own[classes]
    strength = (free_pull * free_own).sum() / max(float((free_own**2).sum()), TINY)
    implied = strength * (moved - mean_own) + mean_pull
    return np.asarray(((pull[:, None] - implied) ** 2).sum(axis=2))
