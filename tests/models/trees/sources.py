"""Sources of sums for tests of trees."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from colonnade.models.trees.bins import Column
from colonnade.models.trees.grow import Sums
from colonnade.models.trees.losses import Gradients
from colonnade.models.trees.splits import Split
from colonnade.wire.message import Int64Array


@dataclass(frozen=True)
class Joined:
    """Several sources as one: the columns of the first, then those of the second, and so on."""

    parts: tuple[Sums, ...]

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns of all parts."""
        return tuple(column for part in self.parts for column in part.columns)

    def sums(self, gradients: Gradients, nodes: Sequence[Int64Array]) -> NDArray[Any]:
        """The sums of all parts, one part after the other."""
        return np.concatenate([part.sums(gradients, nodes) for part in self.parts], axis=1)

    def left(self, asked: Sequence[tuple[Split, Int64Array]]) -> list[NDArray[np.bool_]]:
        """The sides of rows, each split asked of the part that has its column."""
        out: list[NDArray[np.bool_]] = [np.zeros(0, np.bool_)] * len(asked)
        first = 0
        for part in self.parts:
            end = first + len(part.columns)
            own = [place for place, (split, _) in enumerate(asked) if first <= split.column < end]
            moved = [
                (replace(asked[place][0], column=asked[place][0].column - first), asked[place][1]) for place in own
            ]
            for place, sides in zip(own, part.left(moved) if own else [], strict=True):
                out[place] = sides
            first = end
        return out
