"""GradientPrivacy: noise on opened gradients that hides each label, and what the noise costs.

The arbiter draws the noise, because the arbiter alone sees sums before their owner does, and the owner must not know
the noise. The label party says how wide the noise is and charges its own ledger, because its labels are protected. The
sums of the label party get noise too: its coefficients enter all later residuals, which other parties' sums show.

What one label moves. A gradient is the sum over rows of a row x of the owner's columns times a residual, both integers.
Given all that was opened before, a label enters the residual of its own row alone, as 0 or 1 with `fraction` bits
behind the point: the residual moves by 2^fraction, and with more than two classes so do the residuals of two models.
Each party clips its rows to the length `clip` and cuts columns off to `scale` bits behind the point, so x has a length
of at most clip * 2^scale; the label party's intercept adds 2^scale. All parties' sums of a step are one release of

    sensitivity^2 = min(n_outputs, 2) * 4^fraction * 4^scale * (n_parties * clip^2 + 1)

A row is in one batch of an epoch, so an epoch costs a label one release. How many classes there are is public. Nobody
but its owner can see that rows are clipped: the promise holds against parties that keep to the protocol.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import frexp, sqrt
from typing import Any, ClassVar

import numpy as np

from colonnade.crypto.additive import SUM_BITS
from colonnade.errors import PlanError
from colonnade.models.glm.matrix import Matrix, entries, squares, weighted, with_entries
from colonnade.parameters import Limit, check_parameters, number, settings_of
from colonnade.privacy.discrete_gaussian import root_above
from colonnade.privacy.gaussian import gaussian_mu
from colonnade.privacy.ledger import Ledger
from colonnade.privacy.mechanisms import DiscreteGaussianMechanism
from colonnade.privacy.randomness import Randomness
from colonnade.secret import Secret
from colonnade.wire.message import UInt64Array

GRADIENT_NOISE = "noise on opened gradients"
UNIT = "label"
# Sums are below 2^51 and are read between -2^52 and 2^52; noise beyond 16 widths never comes up.
WIDEST = 2.0**47
# Floating point makes a clipped row longer than it should be by less than this share.
_SLACK = 2.0**-40


@dataclass(frozen=True)
class GradientPrivacy:
    """How much all gradients that a training opens may tell about one label.

    Attributes:
        epsilon: What a label may cost in a training of `max_iter` epochs.
        delta: Likewise.
        clip: The length to which each party's rows are clipped, the intercept left out; it must not depend on labels.

    >>> noise = GradientPrivacy(epsilon=2.0)
    >>> mechanism = noise.mechanism(scale=10, fraction=15, n_parties=2, n_outputs=1, epochs=20)
    >>> mechanism.sensitivity == root_above(4**15 * 4**10 * (2 * 4**2 + 1))
    True
    """

    limits: ClassVar[Mapping[str, Limit]] = {
        "epsilon": number(above=0),
        "delta": number(above=0, below=1),
        "clip": number(1, most=2.0**10),
    }

    epsilon: float = 1.0
    delta: float = 1e-5
    clip: float = 4.0

    def __post_init__(self) -> None:
        """Refuse numbers for which there is no noise."""
        check_parameters(self)

    @classmethod
    def of(cls, choice: GradientPrivacy | Mapping[str, Any] | None, name: str) -> GradientPrivacy | None:
        """The noise that a model was given: none, itself, or a mapping of its fields."""
        return None if choice is None else settings_of(choice, cls(), name)

    def scale(self, column_bits: int) -> int:
        """The bits behind the point of all columns: those with which a row of the length `clip` just fits."""
        return column_bits - frexp(self.clip)[1]

    def clipped(self, matrix: Matrix, *, intercept: bool) -> Matrix:
        """Rows of at most the length `clip`; an intercept, the last column, stays and does not count."""
        lengths = np.sqrt(np.maximum(squares(matrix, axis=1) - intercept, 0.0))
        factors = np.minimum(1.0, self.clip * (1 - _SLACK) / np.maximum(lengths, 1e-300))
        found = weighted(matrix, factors)
        if not intercept:
            return found
        if isinstance(found, np.ndarray):
            found = found.copy()
            found[:, -1] = 1.0
            return found
        return with_entries(found, np.where(found.indices == found.shape[1] - 1, 1.0, entries(found)))

    def mechanism(
        self, *, scale: int, fraction: int, n_parties: int, n_outputs: int, epochs: int
    ) -> DiscreteGaussianMechanism:
        """The noise on the sums of a step.

        Args:
            scale: The bits behind the point of columns.
            fraction: The bits behind the point of residuals.
            n_parties: How many parties have columns.
            n_outputs: How many models are trained: one, or one for each class but the last.
            epochs: How many releases the budget is for.

        Raises:
            PlanError: The noise does not fit beside the sums.
        """
        squared = min(n_outputs, 2) * Fraction(4) ** (fraction + scale) * (n_parties * Fraction(self.clip) ** 2 + 1)
        mu = gaussian_mu(self.epsilon, self.delta) / sqrt(epochs)
        mechanism = DiscreteGaussianMechanism.of_loss(root_above(squared), mu)
        if mechanism.sigma > WIDEST:
            raise PlanError(
                f"gradient_privacy should fit beside sums of {SUM_BITS} bits, but epsilon {self.epsilon:g} over "
                f"{epochs} epochs needs noise of the width {float(mechanism.sigma):.3g}. Raise epsilon, or lower "
                "max_iter or clip."
            )
        return mechanism


def with_noise(
    sums: UInt64Array, mechanism: DiscreteGaussianMechanism, random: Randomness, step: int, peer: str
) -> UInt64Array:
    """Masked sums modulo 2^53 with noise that no other sums get.

    Masks are fresh in every step and after every crash, so noise that follows from masked sums is fresh as well. The
    arbiter has no records and keeps no account: the label party's ledger is charged for each step that the label party
    takes part in, repeated ones included.
    """
    noisy = mechanism.release(
        sums,
        random=random,
        ledger=Ledger(),
        protects=Secret.LABELS,
        unit=UNIT,
        path=("gradients", step, peer),
        by=GRADIENT_NOISE,
    )
    return np.asarray(noisy & np.uint64(2**SUM_BITS - 1))
