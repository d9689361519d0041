"""Bottom and top networks: the parts a split network is made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import TypeAlias, TypeVar

import torch
from torch import nn

from colonnade.errors import PlanError
from colonnade.models.inputs import Inputs

F = TypeVar("F")
BottomFactory: TypeAlias = Callable[[Inputs, int], nn.Module]
TopFactory: TypeAlias = Callable[[int, int], nn.Module]


class TabularMLP(nn.Module):
    """A multilayer perceptron over numbers and embedded categories.

    >>> import numpy as np
    >>> inputs = Inputs(("age",), np.zeros(1), np.ones(1), (), {"job": ("cook", "nurse")})
    >>> TabularMLP(inputs, 3)(torch.tensor([[0.5, 1.0], [0.0, 2.0]])).shape
    torch.Size([2, 3])
    """

    def __init__(self, inputs: Inputs, width: int, hidden: tuple[int, ...] = (64,)) -> None:
        super().__init__()
        self.n_numbers = inputs.n_numbers
        sizes = [min(16, (count + 1) // 2) for count in inputs.level_counts]
        self.categories = nn.ModuleList(
            nn.Embedding(count, size) for count, size in zip(inputs.level_counts, sizes, strict=True)
        )
        self.layers = perceptron(inputs.n_numbers + sum(sizes), hidden, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Embed the codes behind the numbers, then apply the layers."""
        if self.categories:
            codes = x[:, self.n_numbers :].long()
            embedded = [embed(codes[:, i]) for i, embed in enumerate(self.categories)]
            x = torch.cat([x[:, : self.n_numbers], *embedded], dim=1)
        out: torch.Tensor = self.layers(x)
        return out


def perceptron(n_in: int, hidden: tuple[int, ...], n_out: int) -> nn.Sequential:
    """Linear layers with ReLU between them."""
    sizes = (n_in, *hidden, n_out)
    layers: list[nn.Module] = []
    for size, following in pairwise(sizes):
        layers += [nn.Linear(size, following), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def mlp_top(n_in: int, n_out: int) -> nn.Module:
    """The default top: ReLU on the joined embeddings, one hidden layer."""
    return nn.Sequential(nn.ReLU(), perceptron(n_in, (64,), n_out))


def linear_top(n_in: int, n_out: int) -> nn.Module:
    """One linear layer."""
    return nn.Linear(n_in, n_out)


BOTTOMS: Mapping[str, BottomFactory] = {"mlp": TabularMLP}
TOPS: Mapping[str, TopFactory] = {"mlp": mlp_top, "linear": linear_top}


def bottom_named(choice: str | BottomFactory) -> BottomFactory:
    """The bottom network of a name, or the callable itself."""
    return choice if callable(choice) else _named(choice, BOTTOMS, "bottom")


def top_named(choice: str | TopFactory) -> TopFactory:
    """The top network of a name, or the callable itself."""
    return choice if callable(choice) else _named(choice, TOPS, "top")


def _named(choice: str, table: Mapping[str, F], what: str) -> F:
    if choice not in table:
        raise PlanError(f"There is no {what} network {choice!r}; there are {', '.join(table)}. Use one or a callable.")
    return table[choice]
