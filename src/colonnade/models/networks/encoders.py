"""Encoders: a party's columns as an embedding that is learned without labels.

The number of components depends only on the columns: enough to explain the requested share of variance, at most 64. Of
very many columns the last components are mostly noise, which helps only an attacker who rebuilds columns.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, Self, TypeAlias

import numpy as np
import torch
from torch import nn

from colonnade.models.batches import Batches
from colonnade.models.networks.modules import perceptron
from colonnade.models.networks.training import EpochSchedule, NetworkSide, OptimizerSettings, copied, loaded
from colonnade.runtime.party import Party
from colonnade.storage import Tree
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
    def learned(cls, x: Float64Array, directions: Float64Array, party: Party) -> Self:
        """Learn the map from a party's columns; `directions` give components of unit variance, one for each column."""

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
    def learned(cls, x: Float64Array, directions: Float64Array, party: Party) -> Self:
        """The components themselves."""
        return cls(x.mean(axis=0), directions)

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
    def learned(cls, x: Float64Array, directions: Float64Array, party: Party) -> Self:
        """Draw frequencies with standard deviation 1 / (median pairwise distance)."""
        random, n_components = party.random.generator("fourier"), directions.shape[1]
        first = PCA.learned(x, directions, party)
        sample = first.encode(x[random.permutation(len(x))[:300]]).astype(np.float64)
        distances = np.linalg.norm(sample[:, None] - sample[None], axis=-1)
        scale = 1 / max(float(np.median(distances)), 1e-12)
        width = cls.per_component * n_components
        return cls(first, scale * random.standard_normal((n_components, width)), 2 * np.pi * random.random(width))

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
    def learned(cls, x: Float64Array, directions: Float64Array, party: Party) -> Self:
        """Train on all rows, alone; the number of steps stays private. Only the number of components counts."""
        n_components = directions.shape[1]
        network = _Rebuilding(x.shape[1], n_components)
        mean = x.mean(axis=0)
        side = _AutoencoderSide(party, network, torch.from_numpy((x - mean).astype(np.float32)))
        batches = Batches(np.arange(len(x)), 256, party.random.child("autoencoder"))
        network = side.run_epochs(EpochSchedule(batches, [], EPOCHS), name="encode", shared=False)
        made = cls(mean, np.zeros(n_components), np.ones(n_components), network)
        embedding = made.encode(x)
        made.centre, made.scale = embedding.mean(axis=0), np.maximum(embedding.std(axis=0), 1e-6)
        return made

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


def principal_directions(x: Float64Array) -> tuple[Float64Array, Float64Array]:
    """The variances along the principal directions, and these as columns, the largest first; none without variance."""
    centred = x - x.mean(axis=0)
    variances, directions = np.linalg.eigh(centred.T @ centred / max(len(x) - 1, 1))
    order = np.argsort(-variances)
    kept = order[variances[order] > 1e-10 * max(float(variances.max(initial=0.0)), 1e-300)]
    # A direction and its opposite are as good; the sign must not depend on the library.
    signs = np.sign(directions[np.abs(directions).argmax(axis=0), np.arange(directions.shape[1])])
    return variances[kept], (directions * signs)[:, kept]


def whitened_directions(x: Float64Array) -> Float64Array:
    """The principal directions, each scaled so that its component has unit variance; none without variance."""
    variances, directions = principal_directions(x)
    return np.asarray(directions / np.sqrt(variances))


def width_by_variance(x: Float64Array, share: float) -> int:
    """How many principal components explain a share of the columns' variance, up to 64; 0 if nothing varies."""
    variances, _ = principal_directions(x)
    explained = np.cumsum(variances) / variances.sum() if len(variances) else np.ones(0)
    return min(int(np.searchsorted(explained, share - 1e-12) + 1), len(variances), MOST_BY_VARIANCE)
