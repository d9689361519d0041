"""Guess: what an attack says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from colonnade.wire.message import Float64Array, Int64Array


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
