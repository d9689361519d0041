"""Descent: gradient steps with momentum on one party's coefficients."""

from __future__ import annotations

import numpy as np

from colonnade.storage import Tree
from colonnade.wire.message import Float64Array


class GradientDescent:
    """Minimises `factor` times a smooth loss plus a penalty, knowing only the loss's gradients.

    >>> descent = GradientDescent(np.ones(1), penalty=0.0, factor=1.0, learning_rate=0.5, momentum=0.0)
    >>> for _ in range(30):
    ...     descent.step(descent.coefficients - 3)
    >>> round(float(descent.coefficients[0]), 6)
    3.0
    """

    def __init__(
        self, penalised: Float64Array, *, penalty: float, factor: float, learning_rate: float, momentum: float
    ) -> None:
        self.penalties, self.factor = penalty * penalised, factor
        self.learning_rate, self.momentum = learning_rate, momentum
        self.coefficients = np.zeros(len(penalised))
        self.velocity = np.zeros(len(penalised))
        self.gradients: list[Float64Array] = []

    def step(self, gradient: Float64Array) -> None:
        """Take one step, given the gradient of the loss, without factor and penalty."""
        self.gradients.append(gradient)
        direction = self.factor * gradient + self.penalties * self.coefficients
        self.velocity = self.momentum * self.velocity + direction
        self.coefficients = self.coefficients - self.learning_rate * self.velocity

    def state(self) -> Tree:
        return {"coefficients": self.coefficients, "velocity": self.velocity, "gradients": list(self.gradients)}

    def restore(self, tree: Tree) -> None:
        self.coefficients, self.velocity = tree["coefficients"], tree["velocity"]
        self.gradients = list(tree["gradients"])
