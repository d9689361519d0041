"""GradPerturb: each gradient leaves with a random mixture of the gradients that other labels would have led to.

A row's gradient is linear in its one-hot label: g = sum over classes c of y_c g(c), where g(c) is the gradient if the
label were c. Laplace numbers of scale 2 / epsilon on y make one step epsilon label-private, given all that g(c) depends
on. The ledger is not charged all the same: the label party's own networks learn from true labels, on which the g(c) of
later steps depend, and each epoch sends every row again.

The g(c) are those of the loss that compares outputs with labels; what other defences add to a gradient is not mixed.
With a penalty on received embeddings, or behind noise by the size of true gradients, not even one step is epsilon
label-private.

Yang et al. 2022, "Differentially private label protection in split learning", arXiv 2203.02073.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch

from colonnade.defences.noise import NoisyGradient
from colonnade.errors import PlanError
from colonnade.parameters import Limit, check_parameters, number
from colonnade.runtime.context import HookContext, Tensor


class GradientPerturbation(NoisyGradient):
    """Laplace noise on the labels that gradients are made of, row by row and step by step.

    Args:
        epsilon: Of a single step, where no other defence adds to the gradient; the noise has scale 2 / epsilon.

    >>> GradientPerturbation(epsilon=10.0).name
    'GradientPerturbation(noise=0.2)'
    """

    reads_labels = True
    limits: ClassVar[Mapping[str, Limit]] = {"epsilon": number(above=0)}

    def __init__(self, *, epsilon: float = 1.0) -> None:
        self.epsilon = epsilon
        check_parameters(self)

    @property
    def name(self) -> str:
        return f"GradientPerturbation(noise={2 / self.epsilon:g})"

    def noisy(self, gradient: Tensor, at: HookContext) -> Tensor:
        if at.gradient_if is None or at.labels is None or at.n_classes is None:
            raise PlanError(
                "GradientPerturbation mixes the gradients of all classes, but this run has no classes, or the labels "
                "are not where the gradients are made. Use another defence."
            )
        weights = self.drawn(gradient, at, 2 / self.epsilon, "laplace", width=at.n_classes)
        mixture = gradient.double()
        for label in range(at.n_classes):
            of_class = at.gradient_if(torch.full_like(at.labels, label))
            mixture = mixture + weights[:, label : label + 1] * of_class.to(mixture)
        return mixture.to(gradient)
