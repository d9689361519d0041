"""One party's side of training a generalised linear model: its settings, what it learns, what both protocols share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from colonnade.errors import ProtocolError
from colonnade.models.base import own_labels, row_weights
from colonnade.models.batches import fixed_batches
from colonnade.models.glm.approximation import Approximation
from colonnade.models.glm.families import Family, RegressionLoss, of_all_classes
from colonnade.models.glm.matrix import StepBasis
from colonnade.models.glm.messages import EncryptedMessage, StopVerdict
from colonnade.runtime.party import Party
from colonnade.storage import Tree
from colonnade.wire.channel import Channel
from colonnade.wire.message import Float64Array, Int64Array, Message, unsealed

if TYPE_CHECKING:
    from colonnade.crypto.additive import Data, PublicKey
    from colonnade.models.glm.gradient_privacy import GradientPrivacy

Backend: TypeAlias = Literal["rlwe", "paillier"]

STILL_EPOCHS = 10
"""After how many still epochs in a row training ends: coefficients that turn round stand still for a few."""

LONG_STEPS, LONGER = 200, 3.0
"""With more than two classes: how many steps are long ones, and by how much (`ColumnSide.n_long_steps`)."""
LEAST_MOMENTUM = 0.9
"""The least momentum under which long steps are stable by a margin of a quarter."""

A = TypeVar("A", bound=NDArray[np.generic])


@dataclass(frozen=True)
class RegressionSettings:
    """The parameters of a regression that its training depends on; `GeneralisedLinearModel` explains each."""

    family: Family
    alpha: float
    max_iter: int
    batch_size: int | None
    learning_rate: float | None
    momentum: float
    tol: float
    fit_intercept: bool
    sample_weight: str | None
    backend: Backend
    alarm: float | None
    rows_per_column: int
    gradient_bits: int | None
    gradient_privacy: GradientPrivacy | None


@dataclass(frozen=True)
class LearnedRegression:
    """What one party's side learns in training.

    Attributes:
        approximation: How far the means of training may be from the exact ones.
        coefficients: Of the party's own columns (outputs, columns), the intercept last where the party has one.
        gradients: The party's own gradient at each step (steps, outputs, columns), where the protocol shows gradients.
        centre: What is added to every score, at the label party.
        n_opened: How many sums the arbiter decrypted.
    """

    approximation: Approximation
    coefficients: Float64Array = field(default_factory=lambda: np.zeros((1, 0)))
    gradients: Float64Array = field(default_factory=lambda: np.zeros((0, 1, 0)))
    centre: float = 0.0
    n_opened: int = 0


class RegressionSide(ABC):
    """One party's side of training: what the party does in a step, and all that it needs to go on after a crash."""

    n_batches: int
    n_outputs: int
    n_epochs = n_still = 0
    converged = False

    def __init__(self, settings: RegressionSettings, party: Party) -> None:
        self.settings, self.party = settings, party

    @abstractmethod
    def begin(self) -> None:
        """Exchange what is needed before the first step."""

    @abstractmethod
    def train(self, step: int) -> None:
        """Do one step."""

    @abstractmethod
    def stands_still(self, epoch: int) -> bool:
        """Find out with the other parties whether an epoch moved all coefficients so little that training ends."""

    def ends_after(self, epoch: int) -> bool:
        """Close an epoch; returns whether training ends with it."""
        self.n_epochs = epoch + 1
        self.converged = self.settings.tol > 0 and self.stands_still(epoch)
        return self.converged

    def state(self) -> Tree:
        """All that the next step depends on."""
        return {"n_epochs": self.n_epochs, "n_still": self.n_still, "converged": self.converged}

    def restore(self, tree: Tree) -> None:
        """Go back to what `state` gave."""
        vars(self).update(tree)

    @abstractmethod
    def finish(self) -> LearnedRegression:
        """Exchange what is left when training has ended; returns what this side learned."""

    def epoch_of(self, step: int) -> int:
        """The epoch of a step. Recordings keep the first and the last epoch in full."""
        return step // self.n_batches

    def received(
        self,
        line: Channel,
        kind: type[Message],
        step: int,
        key: PublicKey,
        size: int,
        rows: Int64Array | None = None,
    ) -> Data:
        """The ciphertexts of the next message, which must belong to this step and this key and be `size` many."""
        message = line.receive(kind, fields={"step": step}, rows=rows, epoch=self.epoch_of(step))
        assert isinstance(message, EncryptedMessage)
        return unsealed(message.ciphertexts, key, size, line.peer)

    def decide(self, epoch: int, *, still: bool) -> bool:
        """Decide, as the label party, whether training ends with this epoch, and tell all others."""
        self.n_still = self.n_still + 1 if still else 0
        stop = self.n_still >= STILL_EPOCHS
        for name in self.party.roles.parties:
            if name != self.party.name:
                self.party.peers[name].send(StopVerdict(epoch, int(stop)), epoch=epoch)
        return stop

    def received_verdict(self, epoch: int) -> bool:
        """Whether the label party says that training ends with this epoch."""
        return bool(self.party.label_party.receive(StopVerdict, fields={"epoch": epoch}, epoch=epoch).stop)


class ColumnSide(RegressionSide):
    """The side of a party with columns, in either protocol."""

    def __init__(self, settings: RegressionSettings, party: Party, shape: tuple[int, int]) -> None:
        super().__init__(settings, party)
        self.n_rows, self.n_columns = shape
        self.batches = fixed_batches(self.n_rows, settings.batch_size, party.shared)
        self.n_batches = len(self.batches)
        self.penalised = np.ones(self.n_columns, np.bool_)
        if self.has_intercept:
            self.penalised[-1] = False
        self.ridge = settings.family.shrinkage(settings.alpha, float(max(self.n_rows, 1))) / settings.family.bend

    @property
    def has_intercept(self) -> bool:
        """Whether the last column is the intercept."""
        return self.party.holds_labels and self.settings.fit_intercept

    def rate(self, loss: RegressionLoss, weights: Float64Array, eigenvalues: float) -> float:
        """The length of a step: the one that was set, or one that cannot diverge.

        Args:
            loss: What is minimised.
            weights: The weights of the rows.
            eigenvalues: The sum of all parties' largest eigenvalues, in the basis in which steps are taken.
        """
        bend = loss.curvature * float(weights.max(initial=1.0)) * eigenvalues
        return self.settings.learning_rate or 1 / (bend + self.settings.family.bend)

    @property
    def n_long_steps(self) -> int:
        """How many steps at the beginning go further than the rate, and repeat the last move after the gradient.

        Polyak's heavy ball. On a quadratic loss that bends by at most 1 / rate it is stable for steps of up to
        2 (1 + momentum) times the rate, Nesterov's for 1.3 times. The means of many classes bend far less than their
        bound, so that short steps take long. Later steps are short again: what tables round moves coefficients less.
        """
        is_by_default = self.settings.learning_rate is None and self.settings.gradient_privacy is None
        return LONG_STEPS if self.n_outputs > 1 and is_by_default and self.settings.momentum >= LEAST_MOMENTUM else 0

    def shortest(self, learning_rate: float) -> float:
        """The squared change of all coefficients in an epoch, in their basis, below which training ends.

        While gradients are g, an epoch of n steps changes coefficients by d = n rate g / (1 - momentum) and the mean
        loss by g d, which is |d|^2 (1 - momentum) / (n rate), and is to be less than `tol`.
        """
        return self.settings.tol * learning_rate * self.n_batches / (1 - self.settings.momentum)

    def shrinkage(self, weights: Float64Array) -> float:
        """What the penalty adds to the gradient of the mean loss, for each unit of a coefficient."""
        return self.settings.family.shrinkage(self.settings.alpha, self.total(weights))

    def total(self, weights: Float64Array) -> float:
        """The sum of the weights of all rows."""
        return float(weights.sum()) if len(weights) else float(self.n_rows)


def numeric_labels(party: Party, family: Family) -> Float64Array:
    """The label party's labels as the numbers of a family."""
    return family.checked(own_labels(party), party.name)


def mean_weights(party: Party, column: str | None) -> Float64Array:
    """The weight of each row with mean 1; empty without a column of weights."""
    if column is None:
        return np.zeros(0)
    values = row_weights(party, column)
    return np.asarray(values * (len(values) / values.sum()))


def of_length(values: A, length: int, what: str, sender: str) -> A:
    """An array that a peer sent, if it has as many numbers as expected."""
    if values.shape != (length,):
        raise ProtocolError(
            f"Expected {length} {what} from {sender}, got an array of shape {values.shape}. "
            "Check that all parties run the same plan."
        )
    return values


def lookahead(step: int, momentum: float) -> float:
    """How much of the last move is taken again before the next gradient: little at first, `momentum` in the end.

    >>> [lookahead(step, 0.9) for step in (0, 2, 100)]
    [0.25, 0.5, 0.9]
    """
    return min((step + 1) / (step + 4), momentum)


class GradientDescent:
    """Minimises `factor` times a smooth loss plus a penalty, knowing only the loss's gradients at `point`.

    Steps are taken in the basis that whitens the columns. The first `n_long_steps` are long ones.

    Attributes:
        gradients: All gradients so far, (columns, outputs) each.

    >>> basis = StepBasis(np.asarray(1.0))
    >>> descent = GradientDescent(
    ...     basis, np.ones(1), n_outputs=1, penalty=0.0, factor=1.0, learning_rate=0.5, momentum=0.0
    ... )
    >>> for _ in range(30):
    ...     descent.step(descent.point - 3)
    >>> round(float(descent.coefficients[0, 0]), 6)
    3.0
    """

    def __init__(
        self,
        basis: StepBasis,
        penalised: NDArray[Any],
        *,
        n_outputs: int,
        penalty: float,
        factor: float,
        learning_rate: float,
        momentum: float,
        n_long_steps: int = 0,
    ) -> None:
        self._n_long_steps = n_long_steps
        self._basis, self._penalties, self._factor = basis, penalty * penalised[:, None], factor
        self._rate, self._momentum = learning_rate, momentum
        self._found = self._ahead = self._before = np.zeros((len(penalised), n_outputs))
        self.gradients: list[Float64Array] = []

    @property
    def coefficients(self) -> Float64Array:
        """What was found so far, (columns, outputs)."""
        return self._basis.coefficients(self._found)

    @property
    def point(self) -> Float64Array:
        """Where the next gradient is taken, (columns, outputs)."""
        return self._basis.coefficients(self._found if self._is_long else self._ahead)

    @property
    def _is_long(self) -> bool:
        return len(self.gradients) < self._n_long_steps

    @property
    def length_of_step(self) -> float:
        """What a gradient is multiplied by, in the basis."""
        return self._rate * self._factor

    def step(self, gradient: Float64Array) -> None:
        """Take one step, given the gradient of the loss at the point, without factor and penalty."""
        again, rate = lookahead(len(self.gradients), self._momentum), self._rate * (LONGER if self._is_long else 1.0)
        # The basis is a symmetric matrix.
        direction = self._basis.coefficients(self._factor * gradient + self._penalties * self.point)
        self.gradients.append(gradient)
        before, self._found = self._found, self._ahead - rate * direction
        self._ahead = self._found + again * (self._found - before)

    def moved(self) -> float:
        """The squared change of the coefficients, in the basis, since this was asked last."""
        change, self._before = self._found - self._before, self._found
        return float((of_all_classes(change.T) ** 2).sum())

    def state(self) -> Tree:
        return {
            "found": self._found,
            "ahead": self._ahead,
            "before": self._before,
            "gradients": list(self.gradients),
        }

    def restore(self, tree: Tree) -> None:
        self._found, self._ahead, self._before = tree["found"], tree["ahead"], tree["before"]
        self.gradients = list(tree["gradients"])
