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

The share of a gradient that the penalty explains says how far a batch can be believed: in later batches the loss's own
gradient drowns the penalty's. Rows of batches that are explained well teach networks on the attacker's own columns, and
all names at once are exchanged as the known rows ask. What the networks say then names each batch, and is where batches
that were explained badly are solved from once more; there, wandering has a mean gradient of each class beside it, as
the loss has. A row's classes are rated by the gradient and by the networks together.

The penalties: `defences.wandering`; Zheng et al. 2024, "PELoss", arXiv 2210.09617; Vepakomma et al. 2020, "NoPeek",
arXiv 2008.09161. That their gradients give the classes away was found here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal, Self, TypeAlias

import numpy as np

from colonnade.attacks.base import Attack, Grant, Guess, Needs, View
from colonnade.attacks.labels.cotraining import TOLD, believed
from colonnade.attacks.labels.randomised import NETWORKS, foretold_true
from colonnade.attacks.points import FITTED_ROWS, KNOWN_PER_CLASS, LANDMARKS, Points, k_means, why_no_gradients
from colonnade.models.networks.messages import Embedding, Gradient
from colonnade.parameters import Limit, check_parameters, choice, count
from colonnade.wire.message import Float32Array, Float64Array, Int64Array

Penalty: TypeAlias = Literal["wandering", "potential-energy", "distance-correlation"]
PENALTIES: tuple[Penalty, ...] = ("wandering", "potential-energy", "distance-correlation")
STARTS, ROUNDS = 8, 30
# A batch of fewer rows is solved from so many times as many clusterings: from few rows most end in a wrong cut.
SMALL_BATCH, MORE_STARTS = 256, 8
# A cut that leaves a smaller share unexplained is the right one.
ALL_EXPLAINED = 1e-6
# How often networks learn from the batches of which this share is explained at least, and how sure these labels are.
LESSONS, EXPLAINED, SURE = 2, 0.8, 0.95
SOFTENED = 0.05
TINY = 1e-12


class PenaltyClasses(Attack):
    """The classes under which a penalty's own gradient would be the one that was received.

    Args:
        penalty: Which one the label party added to its loss.
        starts: From how many clusterings of a batch's gradients to start, and eight times as many where a batch has
            fewer than 256 rows.

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
        grant, random = view.grant, view.random
        columns = Points.of_columns(view)
        beliefs = _with_known(believed(columns, grant.rows, grant.labels, grant.n_classes, random), grant)
        batches = [_Batch(*each, grant.n_classes, self.penalty) for each in first_batches(view)]
        for batch in batches:
            batch.solve(beliefs, random, self.starts)
        for _ in range(LESSONS):
            clear = [batch for batch in batches if batch.explained >= EXPLAINED]
            if not clear:
                break
            beliefs = _with_known(_learned(columns, clear, beliefs, grant, random), grant)
            for batch in batches:
                if batch.explained < EXPLAINED:
                    batch.solve(beliefs, random, 0, beside_loss=True)
        ratings = [batch.rated(beliefs) + beliefs[batch.rows] for batch in batches]
        return Guess.rated(np.concatenate([batch.rows for batch in batches]), np.concatenate(ratings))


@dataclass
class _Batch:
    """One batch of the first epoch, and how it was solved last.

    Attributes:
        unlike: How unlike each row's gradient is to what each class would lead to, before classes have names.
        explained: The share of the gradients that the penalty explains.
    """

    rows: Int64Array
    z: Float64Array
    g: Float64Array
    n_classes: int
    penalty: Penalty
    unlike: Float64Array = field(init=False)
    explained: float = field(init=False)

    def solve(
        self, beliefs: Float64Array, random: np.random.Generator, n_starts: int, *, beside_loss: bool = False
    ) -> None:
        """Cut the batch into classes, starting from the likeliest ones and from clusters."""
        start = beliefs[self.rows].argmax(axis=1)
        self.unlike, self.explained = solved(
            self.z, self.g, self.n_classes, self.penalty, start, random, n_starts, beside_loss=beside_loss
        )

    def rated(self, beliefs: Float64Array) -> Float64Array:
        """How likely each class is (rows, classes), under the names that beliefs about the rows find likeliest."""
        from scipy.optimize import linear_sum_assignment

        member = np.eye(self.n_classes)[self.unlike.argmin(axis=1)]
        _, name = linear_sum_assignment(member.T @ beliefs[self.rows], maximize=True)
        rated = np.empty_like(self.unlike)
        rated[:, name] = -self.unlike / max(float(self.unlike.min(axis=1).mean()), TINY)
        return rated


def _with_known(chances: Float64Array, grant: Grant) -> Float64Array:
    """Chances of all rows as logarithms, and nearly certain ones of the known rows."""
    chances[grant.rows] = (TOLD * np.eye(grant.n_classes) + (1 - TOLD) / grant.n_classes)[grant.labels]
    return np.asarray(np.log(chances))


def _learned(
    columns: Points, clear: Sequence[_Batch], beliefs: Float64Array, grant: Grant, random: np.random.Generator
) -> Float64Array:
    """The chances of all rows (rows, classes) that networks learn from some batches, named as the known rows ask."""
    from scipy.optimize import linear_sum_assignment

    shown = np.concatenate([batch.rows for batch in clear])
    classes = np.zeros(len(columns.rows), np.int64)
    classes[shown] = np.concatenate([batch.rated(beliefs).argmax(axis=1) for batch in clear])
    said = foretold_true(columns.values, classes, grant.n_classes, [SURE] * NETWORKS, random, shown=shown).mean(axis=0)
    read = np.eye(grant.n_classes)[classes[grant.rows]] * np.isin(grant.rows, shown)[:, None]
    votes = np.eye(grant.n_classes)[grant.labels].T @ (read + said[grant.rows])
    _, name = linear_sum_assignment(votes, maximize=True)
    return np.asarray(said[:, name])


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
    *,
    beside_loss: bool = False,
) -> tuple[Float64Array, float]:
    """How unlike the gradient of each row is to what each class would lead to (rows, classes), by the best cut.

    The second number is the share of all gradients that this cut explains.

    Args:
        z: The embeddings of a batch.
        g: Their gradients.
        n_classes: How many classes there are.
        penalty: What the label party added to its loss.
        believed_classes: Classes to start from, besides clusters of gradients.
        random: Where clusters start.
        n_starts: How many clusterings to start from; a small batch takes more. None is made once a cut explains all.
        beside_loss: Whether wandering has a mean gradient of each class beside it. Penalties on pairs always have.
    """
    lengths = np.linalg.norm(z, axis=1, keepdims=True)
    units = z / np.maximum(lengths, TINY)
    angular = penalty != "distance-correlation"
    pull = g * lengths if angular else g
    pull = pull / max(float(np.abs(pull).mean()), TINY)
    n_starts *= MORE_STARTS if len(z) < SMALL_BATCH else 1
    pushes = None if penalty == "wandering" else _pushes(units if angular else z, penalty)
    stretched = lengths / max(float(lengths.mean()), TINY) if beside_loss else np.zeros_like(lengths)
    in_all = max(float((pull**2).sum()), TINY)
    best, found = np.inf, np.zeros((len(z), n_classes))
    for classes in _starts(pull, n_classes, believed_classes, random, n_starts):
        for _ in range(ROUNDS):
            if pushes is None:
                unlike = _unlike_sums(units, stretched, pull, classes, n_classes)
            else:
                unlike = _unlike_pushes(pushes, pull, classes, n_classes, penalty)
            following = unlike.argmin(axis=1)
            if (following == classes).all():
                break
            classes = following
        left = float(unlike.min(axis=1).sum())
        if left < best:
            best, found = left, unlike
        if best < ALL_EXPLAINED * in_all:
            break
    return found, 1 - best / in_all


def _starts(
    pull: Float64Array, n_classes: int, believed_classes: Int64Array | None, random: np.random.Generator, n_starts: int
) -> Iterator[Int64Array]:
    """Classes to start from: those that are believed, if any, and clusters of gradients."""
    if believed_classes is not None:
        yield believed_classes
    for _ in range(n_starts if len(pull) >= n_classes else 0):
        yield k_means(pull, n_classes, random, restarts=1)[0]


def _unlike_sums(
    units: Float64Array, stretched: Float64Array, pull: Float64Array, classes: Int64Array, n_classes: int
) -> Float64Array:
    """How unlike pulls are to P_i S_k + l_i m_k, with the S_k and m_k that suit the classes best by least squares.

    `stretched` are the l_i: the loss's gradient m_k is stretched by the length of an embedding as all gradients are.
    """
    width, unlike = units.shape[1], []
    for k in range(n_classes):
        mine = classes == k
        u, length, pulled = units[mine], stretched[mine], pull[mine]
        one = np.eye(width)
        turned = length.sum() * one - (u * length).T @ u
        both = np.block([[mine.sum() * one - u.T @ u, turned], [turned, (length**2).sum() * one]])
        # P_i takes away the part along the row itself.
        across = pulled - (pulled * u).sum(axis=1, keepdims=True) * u
        aims = np.concatenate([across.sum(axis=0), (length * pulled).sum(axis=0)])
        shared, mean = np.linalg.lstsq(both, aims, rcond=None)[0].reshape(2, width)
        implied = shared - (units @ shared)[:, None] * units + stretched * mean
        unlike.append(((pull - implied) ** 2).sum(axis=1))
    return np.stack(unlike, axis=1)


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
