"""One shot: feature parties send an embedding that is learned without labels, once, and are sent nothing at all.

    feature party                             label party
         LeakStatement ────────────────────────────▶          once
         Embedding(rows) ──────────────────────────▶          once to train, once per prediction

A feature party learns nothing: no gradient, not how long training took, not how well it went. What it holds afterwards
is a function of its own columns and its own randomness, so no attack, present or future, can say more about labels than
the feature party could alone. This holds as long as the settings, the rows and the occasions of predictions were not
chosen by labels, and the feature party gets nothing computed from labels in another way.

The label party learns an embedding of every row. The wider the embedding, the better the columns can be reconstructed;
with as many components as columns, exactly. The feature party therefore measures what could be rebuilt before it sends
anything, states it, and refuses above the budget that its owner set. It tries what a label party could that knows some
records: ridge regression and kernel ridge regression from a twentieth of the rows, and least squares from all rows. The
worst result counts. It measures with its embedding alone, and stronger attacks may exist: this is a measurement, not a
bound. Where the label party's own columns are correlated with the feature party's, more can be rebuilt than was stated.

Principal components after Hotelling 1933; random Fourier features after Rahimi and Recht 2007.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import ClassVar, Self, TypeAlias

import numpy as np
import torch

from colonnade.errors import DataError, LeakBudgetSpent, PlanError
from colonnade.models.base import Prediction
from colonnade.models.networks.encoders import ENCODERS, PCA, ColumnMoments, Encoder, EncoderName, encoded, rows_of
from colonnade.models.networks.label_only import LabelOnlyModel, TrainingInputs
from colonnade.models.networks.messages import Embedding, LeakStatement
from colonnade.models.networks.share import require_columns
from colonnade.models.networks.targets import Classes, Numbers, learned_target
from colonnade.models.networks.training import as_array
from colonnade.parameters import Limit, choice, count, is_number, number, optional
from colonnade.runtime.context import HookContext, Phase
from colonnade.runtime.hooks import applied, is_used
from colonnade.runtime.party import Party
from colonnade.storage import Tree
from colonnade.tables.encode import Inputs
from colonnade.tables.placement import Placement, bounds_of
from colonnade.tables.table import Table
from colonnade.text import nearest
from colonnade.wire.message import Float32Array, Float64Array, Message

Pair: TypeAlias = tuple[Float64Array, Float64Array]
"""The embeddings of some rows beside their columns."""

STATEMENT_BOUNDS = {"width": (1, 100_000), "relative_mse": (0, 1), "worst_r2": (0, 1)}
MOST_LEVELS, STEADY, MOST_TURNS, MOST_MEASURED = 1_000, 1e-4, 20, 20
KNOWN_SHARE, LEAST_KNOWN, MOST_KNOWN, MOST_SCORED = 0.05, 50, 1_000, 2_000


@dataclass(frozen=True)
class Leak:
    """What can be rebuilt of a party's columns.

    Attributes:
        relative_mse: The squared error of what is rebuilt, relative to the columns' variance: 0 is all, 1 is nothing.
        columns: For each column the share of its variance that is rebuilt (R²).

    >>> Leak(0.25, {"age": 0.6, "income": 0.99}).worst_column
    'income'
    """

    relative_mse: float
    columns: Mapping[str, float]

    @property
    def rebuilt(self) -> float:
        """The share of all columns' variance that is rebuilt."""
        return 1 - self.relative_mse

    @property
    def worst_column(self) -> str:
        """The column that is rebuilt best."""
        return max(self.columns, key=lambda name: self.columns[name])

    @property
    def worst_r2(self) -> float:
        """How well that is rebuilt."""
        return max(self.columns.values())

    def __str__(self) -> str:
        """The two figures to judge an embedding by."""
        return f"relative MSE {self.relative_mse:.2f}, worst column R² {self.worst_r2:.2f}"


@dataclass(kw_only=True, eq=False, repr=False)
class OneShotNetwork(LabelOnlyModel):
    """A network at the label party over its own columns and the embeddings that feature parties send once.

    Args:
        leak_budget: For each feature party, the most of its columns' variance that may be rebuilt from what it sends,
            from 0 to 1. It has no default: the owner of the columns sets it.
        column_budget: Likewise for any single column of a party, where its owner sets such a bound.
        encoder: "pca", "rff" for random Fourier features, or "autoencoder".
        components: How many components the embedding has; if None, as many principal components as explain
            `variance`, up to 64, turned so that least squares rebuild at most `most_rebuilt` of a column
            (`bounded_directions`). With "rff" the embedding is twice as wide, with the others as wide.
        variance: The share of the columns' variance that is explained.
        most_rebuilt: How much of a column's variance may be rebuilt from the components where `components` is None; 1
            sets no bound. A party's only column, and one of few values, cannot be hidden and is sent all the same:
            `leak_budget` and `column_budget` refuse.

    The other settings are those of `NetworkModel`, and are about the label party's networks.
    """

    hooks: ClassVar[Mapping[str, frozenset[str]]] = {
        # The label party trains alone: what protects labels from others would act on nothing that leaves.
        "label": frozenset({"incoming", "prediction"}),
        "feature": frozenset({"outgoing"}),
    }
    sends: ClassVar[Mapping[str, tuple[type[Message], ...]]] = {"label": (), "feature": (Embedding,)}
    limits: ClassVar[Mapping[str, Limit]] = {
        **LabelOnlyModel.limits,
        "encoder": choice(*ENCODERS),
        "components": optional(count()),
        "variance": number(above=0, most=1),
        "most_rebuilt": number(above=0, most=1),
    }

    leak_budget: Mapping[str, float] | None = None
    column_budget: Mapping[str, float] | None = None
    encoder: EncoderName = "pca"
    components: int | None = None
    variance: float = 0.95
    most_rebuilt: float = 0.95

    encoder_: Encoder | None = field(init=False)
    leak_: Leak | None = field(init=False)
    stated_: dict[str, dict[str, float]] = field(init=False)

    @classmethod
    def example(cls) -> Self:
        return super().example().set_params(leak_budget={"shop": 1.0, "telco": 1.0})

    def fit(self, party: Party) -> Self:
        """Send an embedding, or train on those that come."""
        self.check_setup(party)
        self.admit_defences(party)
        self.target_ = self.inputs_ = self.encoder_ = self.leak_ = self.network_ = None
        self.stated_, self.history_ = {}, []
        if party.holds_labels:
            self._train(party)
        else:
            self._encode(party)
        self.remember_defences(party)
        return self

    def predict(self, party: Party) -> Prediction | None:
        """Send an embedding of the rows, or predict from those that come; only the label party learns the result."""
        self.require_fitted("used to predict")
        self.restore_defences(party)
        if not party.holds_labels:
            _send(party, *self._sent(party, self._numbers(party), "predict"))
            return None
        received = {
            line.peer: _receive(party, line.peer, int(self.stated_[line.peer]["width"]))
            for line in party.feature_parties
        }
        return self.predict_alone(party, TrainingInputs.of(self.inputs_, party, received, "predict", self.machine()))

    def share(self) -> Tree:
        return {
            **super().share(),
            "encoder": None if self.encoder_ is None else self.encoder_.state(),
            "leak": None if self.leak_ is None else {"mse": self.leak_.relative_mse, "columns": self.leak_.columns},
            "stated": self.stated_,
            "defences": self.defences_,
        }

    def take_share(self, tree: Tree) -> None:
        self.encoder_ = None if tree["encoder"] is None else ENCODERS[self.encoder].of(tree["encoder"])
        self.leak_ = None if tree["leak"] is None else Leak(tree["leak"]["mse"], tree["leak"]["columns"])
        self.stated_, self.defences_ = tree["stated"], tree["defences"]
        super().take_share(tree)

    def summary(self) -> str:
        explaining = f"the components that explain {self.variance:.0%} of the variance"
        if self.most_rebuilt < 1:
            explaining += f", turned to let least squares rebuild at most {self.most_rebuilt:.0%} of a column"
        components = f"{self.components} components" if self.components else explaining
        lines = [
            f"{type(self).__name__}: an embedding by {self.encoder} of {components}, sent once.",
            "A feature party learns nothing about labels: it is sent nothing. Encryption: none.",
            "The label party learns an embedding of every row, from which columns can be rebuilt.",
        ]
        if self.is_fitted and self.leak_ is not None:
            lines.append(f"Of this party's columns: {self.leak_} (column {self.leak_.worst_column!r}).")
        if self.is_fitted:
            for peer, said in self.stated_.items():
                figures = f"relative MSE {said['relative_mse']:.2f}, worst column R² {said['worst_r2']:.2f}"
                lines.append(f"Of {peer}'s columns, by its own measurement: {figures}, at width {said['width']}.")
        return "\n".join(lines)

    def check_setup(self, party: Party) -> None:
        super().check_setup(party)
        require_budgets(self.leak_budget, self.column_budget, party.roles.features)

    def check_table(self, party: Party) -> tuple[str, ...]:
        if party.holds_labels:
            return super().check_table(party)
        _, _, leak = self.clone()._embedded(party)
        return (f"{party.name} would send an embedding: {leak}",)

    def _encode(self, party: Party) -> None:
        """Learn an encoder, see what its embedding gives away, and send it if that is allowed."""
        values, under, self.leak_ = self._embedded(party)
        party.label_party.send(LeakStatement(values.width, self.leak_.relative_mse, self.leak_.worst_r2))
        _send(party, values, under)

    def _embedded(self, party: Party) -> tuple[Embeddings, tuple[str, ...], Leak]:
        """The embedding of all rows, the defences that had a hand in it, and what it gives away, if that is allowed."""
        require_columns(party)
        self.inputs_ = Inputs.learned(party.own_table, np.arange(len(party.own_table)))
        self.inputs_.require_few_levels(party.own_table, MOST_LEVELS)
        x, owners = self._numbers(party), self.inputs_.owners
        moments = ColumnMoments.of(x)
        directions = moments.whitened_directions()
        if not directions.shape[1]:
            raise DataError(
                f"{party.name} should have a column whose values vary, but all {moments.n} rows are alike. "
                "Bring others."
            )
        if self.components is None:
            width, bound = moments.width_by_variance(self.variance), self.most_rebuilt
            directions = bounded_directions(x, moments, owners, directions, width, bound)
        else:
            directions = directions[:, : self.components]
        self.encoder_ = ENCODERS[self.encoder].learned(x, moments.mean, directions, party)
        values, under = self._sent(party, x, "train")
        leak = measured_leak(values.beside(x), owners)
        # Both were looked at before anything was computed.
        allowed, per_column = (self.leak_budget or {})[party.name], (self.column_budget or {}).get(party.name)
        require_within_budget(leak, party.name, allowed, per_column)
        return values, under, leak

    def _numbers(self, party: Party) -> Placement[Float64Array]:
        """The party's columns as numbers, where its rows lie."""
        return party.own_table.partitions.then(_one_hot, self.inputs_)

    def require_encoder(self) -> Encoder:
        """The encoder of a feature party, which has learned one."""
        assert self.encoder_ is not None
        return self.encoder_

    def _sent(self, party: Party, x: Placement[Float64Array], phase: Phase) -> tuple[Embeddings, tuple[str, ...]]:
        """The embedding of all rows as it will leave, and the defences that had a hand in it."""
        embeddings = Embeddings(x, self.require_encoder())
        if not is_used("outgoing", party.defences):
            return embeddings, ()
        # A defence sees the embeddings of all rows at once, in this process.
        embedding = torch.from_numpy(np.concatenate(list(embeddings)))
        inputs = torch.from_numpy(np.concatenate(list(x.map(_single))))
        at = HookContext(
            0,
            0,
            np.arange(len(inputs)),
            phase,
            party.roles.label,
            Embedding,
            own={"embedding": embedding},
            inputs=inputs,
        )
        sent, names = applied(party.defences, "outgoing", embedding, at)
        return replace(embeddings, changed=as_array(sent)), names

    def _train(self, party: Party) -> None:
        """Take in what feature parties send, and train alone."""
        self.target_, labels = learned_target(self.target, party)
        received = {}
        for line in party.feature_parties:
            said = line.receive(LeakStatement, within=STATEMENT_BOUNDS)
            self.stated_[line.peer] = dict(vars(said))
            received[line.peer] = _receive(party, line.peer, said.width)
        if party.own_table.columns:
            self.inputs_ = Inputs.learned(party.own_table, np.arange(len(labels)))
        inputs = TrainingInputs.of(self.inputs_, party, received, "train", self.machine())
        self.train_alone(party, inputs, labels)

    def widths(self) -> list[int]:
        return [int(said["width"]) for said in self.stated_.values()]


class OneShotClassifier(OneShotNetwork):
    """A classifier for which feature parties send a label-free embedding once and are sent nothing.

    Its settings are those of `OneShotNetwork`. Nothing about labels reaches a feature party, by construction; what the
    label party could rebuild of a feature party's columns is measured, stated, and held to the owner's budget. It is
    measured from the embedding alone: with correlated columns of its own, the label party can rebuild more.

    >>> OneShotClassifier(leak_budget={"shop": 0.9}).encoder
    'pca'
    """

    task = "classification"
    target = Classes


class OneShotRegressor(OneShotNetwork):
    """A regression for which feature parties send a label-free embedding once and are sent nothing.

    Its settings are those of `OneShotNetwork`; what could be rebuilt is measured as for `OneShotClassifier`.

    >>> OneShotRegressor(leak_budget={"shop": 0.9}).variance
    0.95
    """

    task = "regression"
    target = Numbers


@dataclass(frozen=True)
class Embeddings:
    """The embeddings of all rows as they leave, partition by partition.

    Attributes:
        x: The columns as numbers.
        encoder: What makes embeddings of them.
        changed: What defences made of all embeddings; None where none had a hand in them.
    """

    x: Placement[Float64Array]
    encoder: Encoder
    changed: Float32Array | None = None

    @property
    def width(self) -> int:
        """How many numbers an embedding has."""
        return self.encoder.width if self.changed is None else self.changed.shape[1]

    def __iter__(self) -> Iterator[Float32Array]:
        """The embeddings of the rows of each partition."""
        return self.x.map(encoded, self.encoder) if self.changed is None else self.x.cut(self.changed)

    def beside(self, x: Placement[Float64Array]) -> Placement[Pair]:
        """The embeddings beside the columns, in double precision."""
        if self.changed is None:
            return x.then(_pair, self.encoder)
        return x.then(_pair_of, per_part=self.x.cut(self.changed))


def _send(party: Party, values: Embeddings, under: tuple[str, ...]) -> None:
    begins = values.x.bounds
    for step, (begin, some) in enumerate(zip(begins, values, strict=False)):
        rows = np.arange(begin, begin + len(some))
        party.label_party.send(Embedding(step, some), under=under, rows=rows, epoch=0)


def _receive(party: Party, peer: str, width: int) -> Float32Array:
    parts = []
    for step, (begin, end) in enumerate(pairwise(bounds_of(len(party.own_table)))):
        rows = np.arange(begin, end)
        message = party.peers[peer].receive(
            Embedding, fields={"step": step}, shape=(len(rows), width), finite=True, rows=rows, epoch=0
        )
        parts.append(message.values)
    return np.concatenate(parts)


def measured_leak(pairs: Placement[Pair], owners: Sequence[str]) -> Leak:
    """Try to rebuild columns from embeddings, which come beside them; `owners` names the column that each number is of.

    The records that the rebuilding party knows are the same at each measurement, so that what is sent depends on the
    columns alone.
    """
    n = pairs.bounds[-1]
    order = np.random.default_rng(0).permutation(n)
    n_known = min(max(round(KNOWN_SHARE * n), LEAST_KNOWN), MOST_KNOWN, max(n // 2, 1))
    known, scored = order[:n_known], order[n_known : n_known + MOST_SCORED]
    if not len(scored):
        known = scored = order
    (told, truth), (seen, wanted) = rows_of(pairs, known), rows_of(pairs, scored)
    deviations = ((wanted - wanted.mean(axis=0)) ** 2).sum(axis=0)
    tried = [(rebuild(told, truth, seen) - wanted) ** 2 for rebuild in (_ridge, _kernel_ridge)]
    # From all rows, all are scored: of few, a value that is rare would count too much.
    all_errors, all_deviations = _ridge_of_all(ColumnMoments.of(pairs), len(owners))
    errors = np.stack([*(each.sum(axis=0) for each in tried), all_errors])
    spread = np.stack([deviations, deviations, all_deviations])
    relative = (errors.sum(axis=1) / np.maximum(spread.sum(axis=1), 1e-300)).min()
    names = np.array(owners)
    columns = {}
    for name in dict.fromkeys(owners):
        left, whole = (part[:, names == name].sum(axis=1) for part in (errors, spread))
        # A column that varies in no scored row is not rebuilt there.
        columns[name] = float(np.clip(1 - left / np.where(whole > 0, whole, np.inf), 0, 1)[whole > 0].max(initial=0))
    return Leak(float(np.clip(relative, 0, 1)), columns)


def _ridge_of_all(moments: ColumnMoments, n_columns: int) -> tuple[Float64Array, Float64Array]:
    """The squared errors of what ridge regression rebuilds of each column from all rows, and the squared deviations.

    The moments are those of the embeddings, each then divided by its deviation, and of the columns behind them.
    """
    width = len(moments.mean) - n_columns
    scales = np.maximum(np.sqrt(np.diag(moments.scatter)[:width] / moments.n), 1e-12)
    square = moments.scatter[:width, :width] / np.outer(scales, scales)
    product = moments.scatter[:width, width:] / scales[:, None]
    deviations = np.diag(moments.scatter)[width:]
    weights = np.linalg.solve(square + np.eye(width), product)
    errors = deviations - 2 * (weights * product).sum(axis=0) + (weights * (square @ weights)).sum(axis=0)
    return np.maximum(errors, 0.0), deviations


def bounded_directions(
    x: Placement[Float64Array],
    moments: ColumnMoments,
    owners: Sequence[str],
    directions: Float64Array,
    width: int,
    most_rebuilt: float,
) -> Float64Array:
    """Principal directions, turned as little as is needed for no column to be rebuilt above a bound.

    What is sent spans a part of the space of all components, and least squares rebuild a column as far as it lies in
    that part. While a column lies there by more than the bound, the sent direction that tells most about the column is
    turned towards what is not sent. Where turning does not reach the bound, one component fewer is sent. Where
    `measured_leak` finds more than least squares, the directions are turned further; if that does not help, as with
    columns of few values, which a reader recognises in any blend, they stay as they were. Components of next to no
    variance have no part in this, and a party's only component is sent as it is.
    """
    # A direction without variance to speak of would make a new row that leaves it an outlier.
    variances = 1 / (directions**2).sum(axis=0)
    n = int((variances > STEADY * variances[0]).sum())
    if most_rebuilt == 1 or n == 1:
        return directions[:, :width]
    directions, names = directions[:, :n], np.array(owners)
    correlations, spread = directions.T @ moments.scatter / moments.n, np.diag(moments.scatter) / moments.n
    lying = {
        name: correlations[:, names == name] / np.sqrt(spread[names == name].sum())
        for name in dict.fromkeys(owners)
        if spread[names == name].sum() > 0
    }
    bounds = dict.fromkeys(lying, most_rebuilt)
    for kept in range(min(width, n - 1), 0, -1):
        axes = np.eye(n)
        if _turned_within(axes, kept, lying, bounds):
            break
    turned = directions @ axes[:, :kept]
    linear = turned
    for _ in range(MOST_MEASURED):
        leak = measured_leak(x.then(_pair, PCA(moments.mean, turned)), owners)
        above = {name: r2 - most_rebuilt for name, r2 in leak.columns.items() if r2 > most_rebuilt}
        if not above:
            return turned
        for name, excess in above.items():
            bounds[name] -= 2 * excess + STEADY
        if not _turned_within(axes, kept, lying, bounds):
            break
        turned = directions @ axes[:, :kept]
    return linear


def _turned_within(
    axes: Float64Array, kept: int, lying: Mapping[str, Float64Array], bounds: Mapping[str, float]
) -> bool:
    """Turn the first axes, which are sent, against the others until each column's bound holds; whether it does now."""
    for _ in range(MOST_TURNS * len(lying)):
        excess = {name: ((axes[:, :kept].T @ lying[name]) ** 2).sum() - bounds[name] for name in lying}
        worst = max(excess, key=lambda name: excess[name])
        if excess[worst] <= STEADY / 10:
            return True
        inner, outer = axes[:, :kept], axes[:, kept:]
        # Bases of both parts begin with the two directions that are turned in their plane.
        inner[:] = inner @ np.linalg.svd(inner.T @ lying[worst])[0]
        pull = outer.T @ (lying[worst] @ (lying[worst].T @ inner[:, 0]))
        outer[:] = outer @ np.linalg.svd(pull[:, None])[0]
        plane = np.stack([inner[:, 0], outer[:, 0]], axis=1)
        (a, c), (_, b) = plane.T @ lying[worst] @ lying[worst].T @ plane
        # Along the turn, the column lies in the first direction by middle + reach * cos(2 * angle - start).
        middle, reach, start = (a + b) / 2, np.hypot((a - b) / 2, c), np.arctan2(c, (a - b) / 2)
        opening = np.arccos(np.clip((a - excess[worst] - middle) / reach, -1, 1))
        angle = min((start - opening) / 2, (start + opening) / 2, key=abs)
        inner[:, 0], outer[:, 0] = plane @ (np.cos(angle), np.sin(angle)), plane @ (-np.sin(angle), np.cos(angle))
    return False


def require_budgets(
    leak_budget: Mapping[str, float] | None, column_budget: Mapping[str, float] | None, parties: Sequence[str]
) -> None:
    """Raise `PlanError` for a budget of an unknown party, a budget outside 0 to 1, or a sender without a budget."""
    for name, budget in (("leak_budget", leak_budget), ("column_budget", column_budget)):
        if budget is None:
            continue
        if not isinstance(budget, Mapping):
            raise PlanError(
                f"{name} should give a share from 0 to 1 for each feature party, but is {budget!r}. "
                f"Write {{{parties[0]!r}: 0.9}}, with the share that {parties[0]}'s owner allows."
            )
        for party, allowed in budget.items():
            if party not in parties:
                raise PlanError(
                    f"{name} should name feature parties, which are {', '.join(parties)}, but names {party!r}."
                    f"{nearest(str(party), parties)} Correct the name, or leave it out."
                )
            if not is_number(allowed) or not 0 <= allowed <= 1:
                raise PlanError(
                    f"{name} should be a share from 0 to 1, but for {party} it is {allowed!r}. Have {party}'s owner "
                    "set another."
                )
    for party in parties:
        if party not in (leak_budget or {}):
            raise PlanError(
                f"{party} should say how much of its columns' variance may be rebuilt from what it sends, from 0 to 1, "
                f"but leak_budget has no value for it. There is no default: {party}'s owner sets it. With 0, {party} "
                "sends nothing and says how much could be rebuilt."
            )


def require_within_budget(leak: Leak, party: str, allowed: float, per_column: float | None) -> None:
    """Raise `LeakBudgetSpent` if more can be rebuilt, of all columns or of any single one, than their owner allows."""
    if leak.rebuilt > allowed:
        raise LeakBudgetSpent(
            f"{party} allows {allowed:.0%} of its columns' variance to be rebuilt from what it sends, but "
            f"{leak.rebuilt:.1%} could be ({leak}). Lower components or variance, drop columns, or raise the budget."
        )
    if per_column is not None and leak.worst_r2 > per_column:
        raise LeakBudgetSpent(
            f"{party} allows {per_column:.0%} of any column's variance to be rebuilt from what it sends, but of "
            f"{leak.worst_column!r} {leak.worst_r2:.1%} could be. Drop the column, lower components or variance, or "
            "raise the budget."
        )


def _one_hot(part: Table, inputs: Inputs) -> Float64Array:
    return inputs.one_hot(part)[0]


def _single(x: Float64Array) -> Float32Array:
    return x.astype(np.float32)


def _pair(x: Float64Array, encoder: Encoder) -> Pair:
    return _pair_of(x, encoder.encode(x))


def _pair_of(x: Float64Array, embedding: Float32Array) -> Pair:
    return embedding.astype(np.float64), x


def _ridge(known: Float64Array, truth: Float64Array, wanted: Float64Array) -> Float64Array:
    from sklearn.linear_model import Ridge

    return _predicted(Ridge(alpha=1.0), known, truth, wanted)


def _kernel_ridge(known: Float64Array, truth: Float64Array, wanted: Float64Array) -> Float64Array:
    from sklearn.kernel_ridge import KernelRidge

    return _predicted(KernelRidge(alpha=0.1, kernel="rbf", gamma=0.5 / known.shape[1]), known, truth, wanted)


def _predicted(model: object, known: Float64Array, truth: Float64Array, wanted: Float64Array) -> Float64Array:
    mean, scale = known.mean(axis=0), np.maximum(known.std(axis=0), 1e-12)
    centre = truth.mean(axis=0)
    with warnings.catch_warnings():
        # An ill-conditioned system makes a weak attack; the strongest of the three counts.
        warnings.simplefilter("ignore")
        fitted = model.fit((known - mean) / scale, truth - centre)  # type: ignore[attr-defined]
        found = fitted.predict((wanted - mean) / scale)
    return np.asarray(np.asarray(found).reshape(len(wanted), -1) + centre)
