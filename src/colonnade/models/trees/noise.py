"""Noise on sums: what a feature party adds to the sums over its bins before the label party may open them.

A record is in one bin of each column, and in one of the nodes that a level asks for at most. If a record's values at
the feature party change, then for each of C columns two sums move, by at most the record's gradient: by the root of 2 C
times the largest gradient in all. Noise is a discrete Gaussian in the unit of the sums, and gradients and hessians are
two releases. Each sum that the label party may open in a training is counted ahead, so that all of them together cost a
record (epsilon, delta). The sides of rows are told as they are, and no noise hides them: the ledger says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, sqrt

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from colonnade.models.trees.boosting import BoostSettings, Sampling
from colonnade.privacy.discrete_gaussian import root_above
from colonnade.privacy.gaussian import gaussian_mu
from colonnade.privacy.mechanisms import DiscreteGaussianMechanism
from colonnade.runtime.party import Party
from colonnade.secret import Secret
from colonnade.wire.message import Float64Array

BY = "noise on sums"
UNIT = "record"
# Draws beyond this number of widths have a probability below e^-72 each.
MOST_WIDTHS = 12


@dataclass(frozen=True)
class NoiseSettings:
    """How much noise: what all sums of a training together cost a record of a feature party."""

    epsilon: float
    delta: float


def most_releases(boost: BoostSettings, sampling: Sampling, n_scores: int) -> int:
    """How often a record may be in sums that are released, gradients and hessians counted apart."""
    rounds = ceil(boost.n_estimators / len(sampling.folds))
    bounds = [bound for bound in (boost.trees.max_depth, boost.trees.max_leaves) if bound]
    return 2 * rounds * n_scores * min(bounds)


def mechanism(most: int, n_columns: int, n_releases: int, settings: NoiseSettings) -> DiscreteGaussianMechanism:
    """The mechanism of one release.

    Args:
        most: The largest whole-number gradient, or hessian.
        n_columns: How many columns the feature party has.
        n_releases: How many releases there may be; see `most_releases`.
        settings: What all of them may cost.
    """
    mu = gaussian_mu(settings.epsilon, settings.delta) / sqrt(n_releases)
    return DiscreteGaussianMechanism.of_loss(root_above(2 * n_columns * max(1, most) ** 2), mu)


def widest(values: Float64Array, n_columns: int, n_releases: int, settings: NoiseSettings) -> float:
    """How far noise may reach, as a multiple of the sum of absolute values."""
    mu = gaussian_mu(settings.epsilon, settings.delta) / sqrt(n_releases)
    total = float(np.abs(values).sum())
    return 0.0 if total == 0 else MOST_WIDTHS * 1.01 * sqrt(2 * n_columns) / mu * float(np.abs(values).max()) / total


class SumNoise:
    """A feature party's noise.

    Args:
        party: The feature party.
        n_columns: How many columns it has.
        n_releases: How many releases there may be.
        settings: What all of them may cost.
    """

    def __init__(self, party: Party, n_columns: int, n_releases: int, settings: NoiseSettings) -> None:
        self._party, self._n_columns, self._n_releases, self._settings = party, n_columns, n_releases, settings

    def begin(self, most_g: int, most_h: int) -> None:
        """Take the largest whole-number gradient and hessian of a tree."""
        self._mechanisms = [
            mechanism(most, self._n_columns, self._n_releases, self._settings) for most in (most_g, most_h)
        ]

    def draw(self, shape: tuple[int, ...], query: bytes) -> NDArray[np.int64]:
        """Noise for gradients and hessians (*shape, 2), charged to the ledger before it is drawn.

        Args:
            shape: Of the sums.
            query: What the label party sent, so that another query has noise of its own.
        """
        digest, zeros = blake3(query).hexdigest(), np.zeros(shape, np.int64)
        drawn = [
            each.release(
                zeros,
                random=self._party.random,
                ledger=self._party.ledger,
                protects=Secret.FEATURES,
                unit=UNIT,
                path=(BY, what, digest),
                by=BY,
            )
            for what, each in zip(("gradients", "hessians"), self._mechanisms, strict=True)
        ]
        return np.stack(drawn, axis=-1)
