"""Targets: what the label party predicts, classes or numbers, as a network's outputs and losses."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from colonnade.errors import DataError
from colonnade.models.base import Prediction, own_labels, require_classes
from colonnade.runtime.context import Tensor
from colonnade.runtime.party import Party
from colonnade.storage import Tree
from colonnade.wire.message import Float32Array

MOST_CLASSES = 10_000


class Target(ABC):
    """What is predicted: how labels become a tensor, outputs a loss, and outputs a prediction."""

    task: ClassVar[Literal["classification", "regression"]]
    widths: ClassVar[tuple[int, int]]
    """How few and how many outputs a network for this target could have."""
    n_outputs: int
    n_classes: int | None

    @classmethod
    @abstractmethod
    def learned(cls, labels: NDArray[Any], owner: str) -> Self:
        """What a party's labels say about the target."""

    @classmethod
    @abstractmethod
    def of(cls, tree: Tree) -> Self:
        """The target that `state` wrote down."""

    @abstractmethod
    def state(self) -> Tree:
        """What was learned, as a tree."""

    @abstractmethod
    def encode(self, labels: NDArray[Any]) -> Tensor:
        """Labels as the loss wants them."""

    @abstractmethod
    def loss(self, outputs: Tensor, labels: Tensor, reduction: str = "mean") -> Tensor:
        """How far outputs are from encoded labels."""

    @abstractmethod
    def scores(self, outputs: Tensor) -> Tensor:
        """What a defence may change of a prediction: probabilities, or predicted numbers."""

    @abstractmethod
    def prediction(self, scores: Float32Array) -> Prediction:
        """The prediction that scores stand for."""


def learned_target(kind: type[Target], party: Party) -> tuple[Target, Tensor]:
    """What the label party's labels say about the target, and these labels encoded."""
    labels = own_labels(party)
    target = kind.learned(labels, party.name)
    return target, target.encode(labels)


class Classes(Target):
    """Classes, predicted by cross-entropy.

    >>> Classes.learned(np.array(["no", "yes", "no"]), "bank").n_outputs
    2
    """

    task = "classification"
    widths = (2, MOST_CLASSES)

    def __init__(self, classes: NDArray[Any]) -> None:
        self.classes = classes
        self.n_outputs = self.n_classes = len(classes)

    @classmethod
    def learned(cls, labels: NDArray[Any], owner: str) -> Self:
        return cls(require_classes(labels, owner))

    @classmethod
    def of(cls, tree: Tree) -> Self:
        return cls(np.array(tree["classes"]))

    def state(self) -> Tree:
        return {"classes": self.classes.tolist()}

    def encode(self, labels: NDArray[Any]) -> Tensor:
        return torch.from_numpy(np.searchsorted(self.classes, labels))

    def loss(self, outputs: Tensor, labels: Tensor, reduction: str = "mean") -> Tensor:
        """Cross-entropy; labels may be class numbers or a probability for each class."""
        return nn.functional.cross_entropy(outputs, labels, reduction=reduction)

    def scores(self, outputs: Tensor) -> Tensor:
        return torch.softmax(outputs, dim=1)

    def prediction(self, scores: Float32Array) -> Prediction:
        return Prediction(self.classes[scores.argmax(axis=1)], scores.astype(np.float64))


class Numbers(Target):
    """Numbers, standardised and predicted by least squares.

    >>> Numbers.learned(np.array([1.0, 3.0]), "bank").encode(np.array([1.0, 3.0])).tolist()
    [-1.0, 1.0]
    """

    task = "regression"
    widths = (1, 1)
    n_outputs = 1
    n_classes = None

    def __init__(self, mean: float, scale: float) -> None:
        self.mean, self.scale = mean, scale

    @classmethod
    def learned(cls, labels: NDArray[Any], owner: str) -> Self:
        if labels.dtype.kind not in "biuf":
            raise DataError(
                f"{owner} should have numbers as labels to train a regression, but has {labels.dtype} values. "
                "Name another label column, or train a classifier."
            )
        numbers = labels.astype(np.float64)
        with np.errstate(over="ignore"):
            mean, scale = float(numbers.mean()), float(numbers.std())
        if not np.isfinite(scale):
            raise DataError(
                f"{owner} should have labels with a finite mean and deviation to train a regression, but some are too "
                "large. Clip these, or rescale the label column."
            )
        if not scale > 1e-12 * abs(mean):
            raise DataError(
                f"{owner} should have labels that vary to train a regression, but all {len(labels)} rows have the "
                "same. Check the label column."
            )
        return cls(mean, scale)

    @classmethod
    def of(cls, tree: Tree) -> Self:
        return cls(tree["mean"], tree["scale"])

    def state(self) -> Tree:
        return {"mean": self.mean, "scale": self.scale}

    def encode(self, labels: NDArray[Any]) -> Tensor:
        return torch.from_numpy(((labels.astype(np.float64) - self.mean) / self.scale).astype(np.float32))

    def loss(self, outputs: Tensor, labels: Tensor, reduction: str = "mean") -> Tensor:
        """Squared error, in units of the labels' variance."""
        return nn.functional.mse_loss(outputs[:, 0], labels, reduction=reduction)

    def scores(self, outputs: Tensor) -> Tensor:
        return outputs[:, 0] * self.scale + self.mean

    def prediction(self, scores: Float32Array) -> Prediction:
        return Prediction(scores.astype(np.float64))
