"""Attack, ActiveAttack, Guess: an attack gets a view and returns a guess."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from colonnade.attacks.view import Grant, Needs, View
from colonnade.runtime.party import Party
from colonnade.runtime.protocol import Protocol
from colonnade.secret import Secret
from colonnade.wire.message import Float64Array, Int64Array

__all__ = ["ActiveAttack", "AnyAttack", "Attack", "ExampleRun", "Grant", "Guess", "Needs", "View"]


@dataclass(frozen=True)
class Guess:
    """What an attack says about some rows: exactly one of classes, scores and values.

    Attributes:
        rows: The rows it is about.
        classes: A class for each row.
        scores: A number for each row that grows with the chance of the last class, or of membership.
        values: The numbers of each row's record, in the order of `Grant.columns`.
        ratings: Beside classes, how likely each class of each row is (rows, classes), so that guesses can be joined;
            the likeliest is the class.

    >>> Guess(np.array([4, 7]), classes=np.array([0, 1])).rows.tolist()
    [4, 7]
    """

    rows: Int64Array
    classes: Int64Array | None = None
    scores: Float64Array | None = None
    values: Float64Array | None = None
    ratings: Float64Array | None = None

    @classmethod
    def rated(cls, rows: Int64Array, ratings: Float64Array) -> Guess:
        """The guess that ratings (rows, classes) lead to: scores of two classes, or classes of more.

        >>> Guess.rated(np.array([4]), np.array([[0.5, 0.25]])).scores
        array([-0.25])
        """
        if ratings.shape[1] == 2:
            return cls(rows, scores=ratings[:, 1] - ratings[:, 0])
        return cls.classified(rows, ratings)

    @classmethod
    def classified(cls, rows: Int64Array, ratings: Float64Array) -> Guess:
        """The class that is rated highest, for each row."""
        return cls(rows, classes=ratings.argmax(axis=1).astype(np.int64), ratings=ratings)

    def __post_init__(self) -> None:
        """Refuse two guesses: the better one could be chosen afterwards."""
        said = [part for part in (self.classes, self.scores, self.values) if part is not None]
        assert len(said) == 1, "a guess is either classes or scores or values"
        wanted = self.rows.shape if self.values is None else (len(self.rows), *said[0].shape[1:2])
        assert said[0].shape == wanted, "a guess has one value or one record per row"
        if self.ratings is not None:
            assert self.classes is not None, "ratings stand beside classes"
            assert np.array_equal(self.ratings.argmax(axis=1), self.classes), "the class is the one rated highest"

    @property
    def said(self) -> NDArray[Any]:
        """The classes, scores or values."""
        return next(part for part in (self.classes, self.scores, self.values) if part is not None)

    def by_class(self, n_classes: int) -> Float64Array:
        """How the guess rates each class of each row (rows, classes): higher is likelier."""
        if self.ratings is not None:
            return self.ratings
        if self.classes is not None:
            return np.eye(n_classes)[self.classes]
        assert self.scores is not None, "only guesses about classes rate classes"
        assert n_classes == 2, "scores tell two classes apart"
        return np.stack([-self.scores, self.scores], axis=1)

    def only(self, kept: NDArray[np.bool_]) -> Guess:
        """The same guess about some of its rows."""
        parts: dict[str, Any] = {name: part if part is None else part[kept] for name, part in vars(self).items()}
        return Guess(**parts)


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
