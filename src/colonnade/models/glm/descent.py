"""Descent: gradient steps on one party's coefficients, each taken a little ahead of them (Nesterov 1983)."""

from __future__ import annotations

import numpy as np

from colonnade.storage import Tree
from colonnade.wire.message import Float64Array


def lookahead(step: int, momentum: float) -> float:
    """How much of the last move is taken again before the next gradient: little at first, `momentum` in the end.

    >>> [lookahead(step, 0.9) for step in (0, 2, 100)]
    [0.25, 0.5, 0.9]
    """
    return min((step + 1) / (step + 4), momentum)


class GradientDescent:
    """Minimises `factor` times a smooth loss plus a penalty, knowing only the loss's gradients at `point`.

    Attributes:
        coefficients: What was found so far.
        point: Where the next gradient is taken.
        gradients: All gradients so far.

    >>> descent = GradientDescent(np.ones(1), penalty=0.0, factor=1.0, learning_rate=0.5, momentum=0.0)
    >>> for _ in range(30):
    ...     descent.step(descent.point - 3)
    >>> round(float(descent.coefficients[0]), 6)
    3.0
    """

    def __init__(
        self, penalised: Float64Array, *, penalty: float, factor: float, learning_rate: float, momentum: float
    ) -> None:
        self.penalties, self.factor = penalty * penalised, factor
        self.learning_rate, self.momentum = learning_rate, momentum
        self.coefficients = self.point = np.zeros(len(penalised))
        self.gradients: list[Float64Array] = []

    def step(self, gradient: Float64Array) -> None:
        """Take one step, given the gradient of the loss at the point, without factor and penalty."""
        ahead = lookahead(len(self.gradients), self.momentum)
        self.gradients.append(gradient)
        direction = self.factor * gradient + self.penalties * self.point
        before, self.coefficients = self.coefficients, self.point - self.learning_rate * direction
        self.point = self.coefficients + ahead * (self.coefficients - before)

    def state(self) -> Tree:
        return {"coefficients": self.coefficients, "point": self.point, "gradients": list(self.gradients)}

    def restore(self, tree: Tree) -> None:
        self.coefficients, self.point = tree["coefficients"], tree["point"]
        self.gradients = list(tree["gradients"])
