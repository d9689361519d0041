"""Encoders: a party's columns as an embedding that is learned without labels.

The number of components depends only on the columns: enough to explain the requested share of variance, at most 64. Of
very many columns the last components are mostly noise, which helps only an attacker who rebuilds columns.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar, Literal, Self, TypeAlias

import numpy as np
import torch
from torch import nn

from colonnade.models.batches import Batches
from colonnade.models.networks.modules import perceptron
from colonnade.models.networks.training import EpochSchedule, NetworkSide, OptimizerSettings, copied, loaded
from colonnade.runtime.party import Party
from colonnade.storage import Tree
from colonnade.tables.placement import Placement, total
from colonnade.wire.message import Float32Array, Float64Array, Int64Array

EncoderName: TypeAlias = Literal["pca", "rff", "autoencoder"]
EPOCHS = 60
MOST_BY_VARIANCE = 64


class Encoder(ABC):
    """A map from columns to an embedding, learned without labels."""

    per_component: ClassVar[int] = 1
    """How many numbers of an embedding there are for each of its components."""

    @classmethod
    @abstractmethod
    def learned(cls, x: Placement[Float64Array], mean: Float64Array, directions: Float64Array, party: Party) -> Self:
        """Learn the map from a party's columns.

        Args:
            x: The columns.
            mean: Their mean.
            directions: What gives components of unit variance, one for each column.
            party: Whose columns they are.
        """

    @property
    @abstractmethod
    def width(self) -> int:
        """How many numbers an embedding has."""

    @abstractmethod
    def encode(self, x: Float64Array) -> Float32Array:
        """The embedding of some rows."""

    def state(self) -> Tree:
        """What was learned, as a tree."""
        return dict(vars(self))

    @classmethod
    def of(cls, tree: Tree) -> Self:
        """The encoder that `state` wrote down."""
        return cls(**tree)


@dataclass(eq=False)
class PCA(Encoder):
    """Whitened principal components.

    >>> x = np.random.default_rng(0).standard_normal((50, 3))
    >>> PCA(x.mean(axis=0), np.eye(3)[:, :2]).encode(x).shape
    (50, 2)
    """

    mean: Float64Array
    directions: Float64Array

    @classmethod
    def learned(cls, x: Placement[Float64Array], mean: Float64Array, directions: Float64Array, party: Party) -> Self:
        """The components themselves."""
        return cls(mean, directions)

    @property
    def width(self) -> int:
        return int(self.directions.shape[1])

    def encode(self, x: Float64Array) -> Float32Array:
        return ((x - self.mean) @ self.directions).astype(np.float32)


@dataclass(eq=False)
class RandomFourier(Encoder):
    """Random Fourier features of whitened principal components (Rahimi and Recht 2007), twice as many as these.

    >>> first = PCA(np.zeros(2), np.eye(2))
    >>> RandomFourier(first, np.ones((2, 4)), np.zeros(4)).encode(np.zeros((1, 2))).tolist()
    [[1.0, 1.0, 1.0, 1.0]]
    """

    per_component: ClassVar[int] = 2

    first: PCA
    frequencies: Float64Array
    phases: Float64Array

    @classmethod
    def learned(cls, x: Placement[Float64Array], mean: Float64Array, directions: Float64Array, party: Party) -> Self:
        """Draw frequencies with standard deviation 1 / (median pairwise distance)."""
        random, n_components = party.random.generator("fourier"), directions.shape[1]
        first = PCA(mean, directions)
        (drawn,) = rows_of(x, random.permutation(x.bounds[-1])[:300])
        sample = first.encode(drawn).astype(np.float64)
        distances = np.linalg.norm(sample[:, None] - sample[None], axis=-1)
        scale = 1 / max(float(np.median(distances)), 1e-12)
        width = cls.per_component * n_components
        return cls(first, scale * random.standard_normal((n_components, width)), 2 * np.pi * random.random(width))

    @property
    def width(self) -> int:
        return len(self.phases)

    def encode(self, x: Float64Array) -> Float32Array:
        return np.cos(self.first.encode(x) @ self.frequencies + self.phases).astype(np.float32)

    def state(self) -> Tree:
        return {**super().state(), "first": self.first.state()}

    @classmethod
    def of(cls, tree: Tree) -> Self:
        return super().of({**tree, "first": PCA.of(tree["first"])})


@dataclass(eq=False)
class Autoencoder(Encoder):
    """The narrow middle of a network that learns to rebuild the columns.

    >>> Autoencoder(np.zeros(3), np.zeros(2), np.ones(2), _Rebuilding(3, 2)).encode(np.zeros((4, 3))).shape
    (4, 2)
    """

    mean: Float64Array
    centre: Float64Array
    scale: Float64Array
    network: _Rebuilding

    @classmethod
    def learned(cls, x: Placement[Float64Array], mean: Float64Array, directions: Float64Array, party: Party) -> Self:
        """Train on all rows, alone; the number of steps stays private. Only the number of components counts.

        The network is trained in this process, which holds all numbers meanwhile.
        """
        n_components = directions.shape[1]
        network = _Rebuilding(len(mean), n_components)
        values = np.concatenate(list(x.map(_centred, mean)))
        side = _AutoencoderSide(party, network, torch.from_numpy(values))
        batches = Batches(np.arange(len(values)), 256, party.random.child("autoencoder"))
        network = side.run_epochs(EpochSchedule(batches, [], EPOCHS), name="encode", shared=False)
        made = cls(mean, np.zeros(n_components), np.ones(n_components), network)
        embedding = np.concatenate(list(x.map(encoded, made)))
        made.centre, made.scale = embedding.mean(axis=0), np.maximum(embedding.std(axis=0), 1e-6)
        return made

    @property
    def width(self) -> int:
        return len(self.centre)

    def encode(self, x: Float64Array) -> Float32Array:
        with torch.no_grad():
            middle = self.network.encoder(torch.from_numpy((x - self.mean).astype(np.float32))).numpy()
        return np.asarray((middle - self.centre) / self.scale, dtype=np.float32)

    def state(self) -> Tree:
        return {**super().state(), "network": copied(self.network.state_dict())}

    @classmethod
    def of(cls, tree: Tree) -> Self:
        network = loaded(_Rebuilding(len(tree["mean"]), len(tree["centre"])), tree["network"])
        return super().of({**tree, "network": network})


class _Rebuilding(nn.Module):
    def __init__(self, n_columns: int, width: int) -> None:
        super().__init__()
        self.encoder = perceptron(n_columns, (64,), width)
        self.decoder = perceptron(width, (64,), n_columns)


class _AutoencoderSide(NetworkSide[_Rebuilding]):
    def __init__(self, party: Party, network: _Rebuilding, values: torch.Tensor) -> None:
        self.network, self.values = network, values
        super().__init__(party, {"autoencoder": network}, OptimizerSettings(), network, with_defences=False)

    def train(self, step: int, epoch: int, rows: Int64Array) -> dict[str, float]:
        x = self.values[torch.from_numpy(rows)]
        loss = nn.functional.mse_loss(self.network.decoder(self.network.encoder(x)), x)
        self.optimizers.forget_gradients()
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizers.step()
        return {}

    def ends_by(self, epoch: int, held_out: Sequence[Int64Array]) -> bool:
        return False  # All epochs are run: no rows are held out.


ENCODERS: Mapping[str, type[Encoder]] = {"pca": PCA, "rff": RandomFourier, "autoencoder": Autoencoder}


@dataclass(frozen=True)
class ColumnMoments:
    """How many rows of numbers there are, their mean, and the sum over rows of products of deviations from the mean."""

    n: int
    mean: Float64Array
    scatter: Float64Array

    @classmethod
    def of(cls, x: Placement[Any]) -> ColumnMoments:
        """The moments of all rows; of tuples of numbers, those of all numbers beside each other.

        >>> from colonnade.tables.placement import InMemory
        >>> ColumnMoments.of(InMemory((0, 2), [np.array([[1.0], [3.0]])])).scatter
        array([[2.]])
        """
        n = x.bounds[-1]
        mean = total(x.map(_sum)) / n
        return cls(n, mean, total(x.map(_scatter, mean)))

    def principal_directions(self) -> tuple[Float64Array, Float64Array]:
        """The variances along the principal directions, the largest first, and these; none if nothing varies."""
        variances, directions = np.linalg.eigh(self.scatter / max(self.n - 1, 1))
        order = np.argsort(-variances)
        kept = order[variances[order] > 1e-10 * max(float(variances.max(initial=0.0)), 1e-300)]
        # A direction and its opposite are as good; the sign must not depend on the library.
        signs = np.sign(directions[np.abs(directions).argmax(axis=0), np.arange(directions.shape[1])])
        return variances[kept], (directions * signs)[:, kept]

    def whitened_directions(self) -> Float64Array:
        """The principal directions, each scaled so that its component has unit variance; none without variance."""
        variances, directions = self.principal_directions()
        return np.asarray(directions / np.sqrt(variances))

    def width_by_variance(self, share: float) -> int:
        """How many principal components explain a share of the columns' variance, up to 64; 0 if nothing varies."""
        variances, _ = self.principal_directions()
        explained = np.cumsum(variances) / variances.sum() if len(variances) else np.ones(0)
        return min(int(np.searchsorted(explained, share - 1e-12) + 1), len(variances), MOST_BY_VARIANCE)


def rows_of(x: Placement[Any], numbers: Int64Array) -> list[Any]:
    """Some rows of numbers, in the order of `numbers`; of tuples of numbers, as a list with one array of each."""
    at = [np.flatnonzero((numbers >= begin) & (numbers < end)) for begin, end in pairwise(x.bounds)]
    local = [numbers[where] - begin for where, begin in zip(at, x.bounds, strict=False)]
    back = np.argsort(np.concatenate(at), kind="stable")
    parts = list(x.map(_rows, per_part=local))
    return [np.concatenate(each)[back] for each in zip(*parts, strict=True)]


def _rows(part: Any, rows: Int64Array) -> tuple[Any, ...]:
    return tuple(each[rows] for each in _as_tuple(part))


def _as_tuple(part: Any) -> tuple[Any, ...]:
    return part if isinstance(part, tuple) else (part,)


def encoded(x: Float64Array, encoder: Encoder) -> Float32Array:
    """The embedding of some rows."""
    return encoder.encode(x)


def _centred(x: Float64Array, mean: Float64Array) -> Float32Array:
    return (x - mean).astype(np.float32)


def _sum(part: Any) -> Float64Array:
    return np.hstack([each.sum(axis=0) for each in _as_tuple(part)])


def _scatter(part: Any, mean: Float64Array) -> Float64Array:
    centred = np.hstack(_as_tuple(part)) - mean
    return np.asarray(centred.T @ centred)
