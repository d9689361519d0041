"""Attack, ActiveAttack: an attack gets a view and returns a guess."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self, TypeAlias

from colonnade.attacks.guess import Guess
from colonnade.attacks.view import Grant, Needs, View
from colonnade.runtime.party import Party
from colonnade.runtime.protocol import Protocol
from colonnade.secret import Secret

__all__ = ["ActiveAttack", "AnyAttack", "Attack", "ExampleRun", "Grant", "Guess", "Needs", "View"]


@dataclass(frozen=True)
class ExampleRun:
    """A small run on which an attack can be tried: a model of the catalogue with some parameters.

    Attributes:
        predicts: Whether the run is a prediction with the trained model, and not the training.

    >>> ExampleRun(parameters={"epochs": 2}).model
    'split-classifier'
    """

    model: str = "split-classifier"
    parameters: Mapping[str, Any] = field(default_factory=dict)
    predicts: bool = False


class Inapplicable(str):
    """Why an attack has nothing to work on in a run like this; any other reason is a gap in an audit.

    >>> Inapplicable("it tells two classes apart and this run has 3")
    'it tells two classes apart and this run has 3'
    """

    __slots__ = ()


class Attack(ABC):
    """A curious party: a function of what it saw.

    Vary an attack by its constructor's arguments, which have defaults.

    Attributes:
        needs: What it must be given.
        about: Which secret it guesses.
        example_run: A run that it applies to; contract tests try it there.
    """

    needs: ClassVar[Needs]
    about: ClassVar[Secret] = Secret.LABELS
    example_run: ClassVar[ExampleRun] = ExampleRun()

    @classmethod
    def example(cls) -> Self:
        """The attack with little effort, for contract tests."""
        return cls()

    @classmethod
    def variants(cls) -> Sequence[Self]:
        """The forms that a thorough audit makes; an ordinary audit makes the attack with its default settings."""
        return (cls(),)

    def why_not(self, view: View) -> str | None:
        """Why the attack cannot be made on this view, `Inapplicable` if on no view of such a run; None if it can."""
        return None

    @abstractmethod
    def guess(self, view: View) -> Guess:
        """The one guess this attack makes."""


class ActiveAttack(ABC):
    """A dishonest party: the honest protocol played with hostile hooks. Its attributes are those of `Attack`."""

    needs: ClassVar[Needs]
    about: ClassVar[Secret] = Secret.LABELS
    example_run: ClassVar[ExampleRun] = ExampleRun()

    @classmethod
    def example(cls) -> Self:
        """The attack with little effort, for contract tests."""
        return cls()

    @classmethod
    def variants(cls) -> Sequence[Self]:
        """The forms that a thorough audit makes; an ordinary audit makes the attack with its default settings."""
        return (cls(),)

    def why_not(self, view: View) -> str | None:
        """Why the attack does not apply, by what an honest attacker saw of the run; None if it does."""
        return None

    @abstractmethod
    def play(self, party: Party, honest: Protocol[Any], grant: Grant) -> Guess:
        """Take part in the run and return a guess."""


AnyAttack: TypeAlias = Attack | ActiveAttack
