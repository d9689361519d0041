"""What both protocols of generalised linear models have in common: some messages, and one party's side of training."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

from colonnade.crypto.additive import Data, PublicKey
from colonnade.errors import ProtocolError
from colonnade.models.glm.ciphertexts import unsealed
from colonnade.runtime.party import Party
from colonnade.secret import Secret
from colonnade.storage import Tree
from colonnade.wire.message import Ciphertexts, Float64Array, Message, UInt8Array

if TYPE_CHECKING:
    from colonnade.models.glm.estimator import GeneralisedLinearModel


@dataclass(frozen=True)
class Columns(Message, kind="glm/columns", reveals={Secret.FEATURES}):
    """How many columns a feature party has, and the largest eigenvalue of their covariance, for the step size."""

    count: int
    curvature: float


@dataclass(frozen=True)
class Key(Message, kind="glm/key", fresh=True):
    """A public key: the arbiter's for one epoch, or a computing party's for the whole training."""

    key: UInt8Array


@dataclass(frozen=True)
class Verdict(Message, kind="glm/verdict", reveals={Secret.FEATURES, Secret.LABELS}):
    """Whether training ends with this epoch."""

    epoch: int
    stop: int


@dataclass(frozen=True)
class Descending:
    """What all parties must know to take steps of the right length.

    Attributes:
        scale: The power of two that linear regression divides labels by.
        curvature: How strongly the loss bends; for Poisson regression the mean of the labels.
        learning_rate: The length of a step.
        weights: The weight of each row, if rows are weighted.
    """

    scale: float
    curvature: float
    learning_rate: float
    weights: Float64Array


@dataclass(frozen=True)
class Encrypted:
    """Ciphertexts that belong to a step."""

    step: int
    ciphertexts: Ciphertexts


class Side(ABC):
    """One party's side of training: what it does in a step, and all it needs to go on after a crash."""

    def __init__(self, model: GeneralisedLinearModel, party: Party) -> None:
        self.model, self.party = model, party
        self.n_batches = 0

    def epoch_of(self, step: int) -> int:
        """The epoch of a step; recordings keep the first and the last in full, and no other."""
        return step // self.n_batches

    def begin(self) -> None:  # noqa: B027 - most sides have nothing more to exchange
        """Exchange what is needed before the first step."""

    @abstractmethod
    def train(self, step: int) -> dict[str, float]:
        """Do one step; returns figures to be shown."""

    @abstractmethod
    def ends_after(self, epoch: int) -> bool:
        """Close an epoch; returns whether training ends with it."""

    @abstractmethod
    def state(self) -> Tree:
        """All that the next step depends on."""

    @abstractmethod
    def restore(self, tree: Tree) -> None:
        """Go back to what `state` said."""

    @abstractmethod
    def finish(self) -> None:
        """Put what was learned into the model."""


def accepted(message: Encrypted, step: int, key: PublicKey, size: int, sender: str) -> Data:
    """The ciphertexts of a message, if they belong to this step and this key and are as many as expected."""
    if message.step != step:
        raise ProtocolError(
            f"Expected {type(message).__name__} for step {step} from {sender}, got one for step {message.step}. "
            "Check that both parties run the same plan."
        )
    return unsealed(message.ciphertexts, key, size, sender)


def told(party: Party, epoch: int) -> bool:
    """Whether the label party says that training ends."""
    line = party.label_party
    verdict = line.receive(Verdict, epoch=epoch)
    if verdict.epoch != epoch:
        raise ProtocolError(
            f"Expected the verdict on epoch {epoch} from {line.peer}, got one on epoch {verdict.epoch}. "
            "Check that both parties run the same plan."
        )
    return bool(verdict.stop)
