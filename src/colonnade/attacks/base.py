"""Attack, ActiveAttack, Needs, Grant, Guess: an attack gets a view and returns a guess."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from colonnade.runtime.party import Party
from colonnade.runtime.protocol import Protocol
from colonnade.secret import Secret
from colonnade.wire.message import Float64Array, Int64Array, Message

if TYPE_CHECKING:
    from colonnade.attacks.view import View


@dataclass(frozen=True)
class Needs:
    """What an attack asks for. What is not named here is not in the view.

    Attributes:
        messages: The kinds of messages it reads.
        own_features: Whether it reads the attacker's own table.
        own_model: Whether it uses the attacker's own share of the model.
        known_labels: How many labels per class it must be told; the audit draws them and never scores them.
        candidates: What it must be told of people who may have been in the run or not: one party's "curves", or whole
            "records", with everybody's curves and the output; None if nothing.
    """

    messages: tuple[type[Message], ...] = ()
    own_features: bool = False
    own_model: bool = False
    known_labels: int = 0
    candidates: Literal["curves", "records"] | None = None


@dataclass(frozen=True)
class Grant:
    """What the audit tells an attacker beyond its own view: some labels, and how many classes there are.

    Labels are class numbers, 0 to `n_classes` - 1, in the sorted order of the classes. Candidates are curves in
    coordinates, by column; those of the output have an empty name.
    """

    n_classes: int
    rows: Int64Array = field(default_factory=lambda: np.zeros(0, np.int64))
    labels: Int64Array = field(default_factory=lambda: np.zeros(0, np.int64))
    candidates: Mapping[str, Float64Array] = field(default_factory=dict)


@dataclass(frozen=True)
class Guess:
    """What an attack says: a class for each row, or a score that grows with the chance of the last class.

    >>> Guess(np.array([4, 7]), classes=np.array([0, 1])).rows.tolist()
    [4, 7]
    """

    rows: Int64Array
    classes: Int64Array | None = None
    scores: Float64Array | None = None

    def __post_init__(self) -> None:
        """One guess, not two to choose from afterwards."""
        assert (self.classes is None) != (self.scores is None), "a guess is either classes or scores"
        said: NDArray[Any] | None = self.classes if self.scores is None else self.scores
        assert said is not None
        assert said.shape == self.rows.shape, "a guess has one value per row"


class Attack(ABC):
    """A curious party: a function of what it saw.

    Vary an attack by its constructor's arguments, which have defaults.
    """

    needs: ClassVar[Needs]
    about: ClassVar[Secret] = Secret.LABELS

    def unfit(self, view: View) -> str | None:
        """Why the attack does not apply to this view; None if it does."""
        return None

    @abstractmethod
    def guess(self, view: View) -> Guess:
        """The one guess this attack makes."""


class ActiveAttack(ABC):
    """A dishonest party: the honest protocol played with hostile hooks."""

    needs: ClassVar[Needs]
    about: ClassVar[Secret] = Secret.LABELS

    @abstractmethod
    def play(self, party: Party, honest: Protocol[Any], grant: Grant) -> Guess:
        """Take part in the run and return a guess."""
