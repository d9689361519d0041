"""Bottom and top networks: the parts a split network is made of."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise, product
from typing import TypeAlias, TypeVar

import torch
from torch import nn

from colonnade.errors import PlanError
from colonnade.tables.encode import Inputs

F = TypeVar("F")
BottomFactory: TypeAlias = Callable[[Inputs, int], nn.Module]
TopFactory: TypeAlias = Callable[[int, int], nn.Module]


class EmbeddedColumns(nn.Module):
    """Numbers as they are, and a learned vector for each category.

    >>> import numpy as np
    >>> inputs = Inputs(("age",), np.zeros(1), np.ones(1), (), {"job": ("cook", "nurse")})
    >>> EmbeddedColumns(inputs).width
    3
    """

    def __init__(self, inputs: Inputs) -> None:
        super().__init__()
        self.n_numbers = inputs.n_numbers
        sizes = [min(16, (count + 1) // 2) for count in inputs.level_counts]
        self.categories = nn.ModuleList(
            nn.Embedding(count, size) for count, size in zip(inputs.level_counts, sizes, strict=True)
        )
        self.width = inputs.n_numbers + sum(sizes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The numbers, and behind them what stands for the codes."""
        if not self.categories:
            return x
        codes = x[:, self.n_numbers :].long()
        embedded = [embed(codes[:, i]) for i, embed in enumerate(self.categories)]
        return torch.cat([x[:, : self.n_numbers], *embedded], dim=1)


class TabularMLP(nn.Module):
    """A multilayer perceptron over numbers and embedded categories.

    >>> import numpy as np
    >>> inputs = Inputs(("age",), np.zeros(1), np.ones(1), (), {"job": ("cook", "nurse")})
    >>> TabularMLP(inputs, 3)(torch.tensor([[0.5, 1.0], [0.0, 2.0]])).shape
    torch.Size([2, 3])
    """

    def __init__(self, inputs: Inputs, width: int, hidden: tuple[int, ...] = (64,)) -> None:
        super().__init__()
        self.columns = EmbeddedColumns(inputs)
        self.layers = perceptron(self.columns.width, hidden, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Embed the codes behind the numbers, then apply the layers."""
        out: torch.Tensor = self.layers(self.columns(x))
        return out


class TabularResNet(nn.Module):
    """A ResNet-style perceptron over numbers and embedded categories: each block adds to what it was given.

    Normalised by layer and not by batch, so that a batch of one row can be trained on. After Gorishniy et al. 2021,
    "Revisiting deep learning models for tabular data".

    >>> import numpy as np
    >>> inputs = Inputs(("age",), np.zeros(1), np.ones(1), (), {})
    >>> TabularResNet(inputs, 3)(torch.zeros(2, 1)).shape
    torch.Size([2, 3])
    """

    def __init__(self, inputs: Inputs, width: int, hidden: int = 64, blocks: int = 2, dropout: float = 0.1) -> None:
        super().__init__()
        self.columns = EmbeddedColumns(inputs)
        self.first = nn.Linear(self.columns.width, hidden)
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.LayerNorm(hidden),
                nn.Linear(hidden, 2 * hidden),
                nn.ReLU(),
                nn.Dropout(dropout),
                nn.Linear(2 * hidden, hidden),
            )
            for _ in range(blocks)
        )
        self.last = nn.Sequential(nn.LayerNorm(hidden), nn.ReLU(), nn.Linear(hidden, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Embed the codes, then let every block add its part."""
        x = self.first(self.columns(x))
        for block in self.blocks:
            x = x + block(x)
        out: torch.Tensor = self.last(x)
        return out


class _Image(nn.Module):
    """Puts a party's columns into the places that their names say: channel, row, column."""

    def __init__(self, inputs: Inputs) -> None:
        super().__init__()
        self.shape, places = image_places(inputs)
        self.register_buffer("places", torch.tensor(places), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        places: torch.Tensor = self.places  # type: ignore[assignment]
        return x[:, places].reshape(-1, *self.shape)


def image_places(inputs: Inputs) -> tuple[tuple[int, int, int], list[int]]:
    """The shape of an image (channels, rows, columns) whose pixels are a party's columns, and where each pixel stands.

    Names end in the row and the column, `pixel_03_11`, and begin with the channel.
    """
    found = [re.fullmatch(r"(.*)_(\d+)_(\d+)", name) for name in inputs.numeric]
    pixels = [(m[1], int(m[2]), int(m[3])) for m in found if m is not None]
    channels = sorted({channel for channel, _, _ in pixels})
    rows, columns = sorted({row for _, row, _ in pixels}), sorted({column for _, _, column in pixels})
    shape = (len(channels), len(rows), len(columns))
    n_columns = len(found) + len(inputs.levels)
    if not pixels or len(pixels) < n_columns:
        raise PlanError(
            "A network for images needs columns of numbers that are named like pixel_03_11, but only "
            f"{len(pixels)} of {n_columns} are. Use the bottom network 'mlp', or leave out or rename the others."
        )
    if inputs.flagged:
        raise PlanError(
            "A network for images needs columns without missing values, but they are missing in some rows of "
            f"{len(inputs.flagged)} of {n_columns} columns, such as {inputs.flagged[0]!r}. Fill them in, or use the "
            "bottom network 'mlp', which is told where values are missing."
        )
    if sorted(pixels) != list(product(channels, rows, columns)):
        raise PlanError(
            f"A network for images needs columns that make up a grid, but of {shape[0]} x {shape[1]} x {shape[2]} "
            f"pixels there are {n_columns}. Use the bottom network 'mlp', or bring the whole grid; where tracks keep "
            "columns private, name whole rows of pixels with columns= instead of ranking single ones."
        )
    order = {pixel: place for place, pixel in enumerate(pixels)}
    return shape, [order[pixel] for pixel in product(channels, rows, columns)]


class _ImageNetwork(nn.Module):
    image: _Image
    layers: nn.Sequential

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """An embedding of each image."""
        out: torch.Tensor = self.layers(self.image(x))
        return out


class SmallCNN(_ImageNetwork):
    """Two convolutions over an image, then a linear layer.

    >>> import numpy as np
    >>> names = tuple(f"pixel_{row:02d}_{column:02d}" for row in range(8) for column in range(4))
    >>> inputs = Inputs(names, np.zeros(32), np.ones(32), (), {})
    >>> SmallCNN(inputs, 5)(torch.zeros(3, 32)).shape
    torch.Size([3, 5])
    """

    def __init__(self, inputs: Inputs, width: int, channels: tuple[int, int] = (16, 32)) -> None:
        super().__init__()
        self.image = _Image(inputs)
        first, second = channels
        self.layers = nn.Sequential(
            nn.Conv2d(self.image.shape[0], first, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2, ceil_mode=True),
            nn.Conv2d(first, second, 3, padding=1), nn.ReLU(), nn.AdaptiveMaxPool2d((4, 2)), nn.Flatten(),
            nn.Linear(8 * second, width),
        )  # fmt: skip


class ResNet20(_ImageNetwork):
    """The residual network of 20 layers for small images (He et al. 2016, arXiv 1512.03385).

    >>> import numpy as np
    >>> names = tuple(f"pixel_{row:02d}_{column:02d}" for row in range(8) for column in range(4))
    >>> inputs = Inputs(names, np.zeros(32), np.ones(32), (), {})
    >>> ResNet20(inputs, 5)(torch.zeros(3, 32)).shape
    torch.Size([3, 5])
    """

    def __init__(self, inputs: Inputs, width: int) -> None:
        super().__init__()
        self.image = _Image(inputs)
        layers: list[nn.Module] = [_convolution(self.image.shape[0], 16), nn.BatchNorm2d(16), nn.ReLU()]
        n_in = 16
        for n_out in (16, 32, 64):
            for block in range(3):
                layers.append(_Residual(n_in, n_out, stride=2 if block == 0 and n_out > 16 else 1))
                n_in = n_out
        self.layers = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, width))


class _Residual(nn.Module):
    def __init__(self, n_in: int, n_out: int, *, stride: int) -> None:
        super().__init__()
        self.stride, self.n_more = stride, n_out - n_in
        self.layers = nn.Sequential(
            _convolution(n_in, n_out, stride), nn.BatchNorm2d(n_out), nn.ReLU(),
            _convolution(n_out, n_out), nn.BatchNorm2d(n_out),
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        # Where the shape changes, the shortcut skips pixels and pads channels with zeros: it has no weights.
        shortcut = nn.functional.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, 0, self.n_more))
        return nn.functional.relu(self.layers(x) + shortcut)


def _convolution(n_in: int, n_out: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(n_in, n_out, 3, stride=stride, padding=1, bias=False)


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


class LocalTrack(nn.Module):
    """The local track: a network over private columns, and a head that also takes what is cut off from the others."""

    def __init__(self, private: nn.Module, head: nn.Module, *, takes_received: bool, trains_head: bool = True) -> None:
        super().__init__()
        self.private, self.head = private, head
        self.takes_received = takes_received
        if not trains_head:
            head.requires_grad_(False)

    def forward(self, public: torch.Tensor, private: torch.Tensor, received: Sequence[torch.Tensor]) -> torch.Tensor:
        """The track's output, given the party's public embedding, its private one, and the received ones."""
        others = [each.detach() for each in received] if self.takes_received else []
        out: torch.Tensor = self.head(torch.cat([public.detach(), private, *others], dim=1))
        return out


BOTTOMS: Mapping[str, BottomFactory] = {
    "mlp": TabularMLP,
    "resnet-mlp": TabularResNet,
    "cnn": SmallCNN,
    "resnet-20": ResNet20,
}
TOPS: Mapping[str, TopFactory] = {"mlp": mlp_top, "linear": nn.Linear}


def bottom_named(choice: str | BottomFactory) -> BottomFactory:
    """The bottom network of a name, or one's own, which is refused if its output has another width than was asked."""
    make = _known(choice, BOTTOMS, "bottom", "`Inputs` and a width")
    return make if isinstance(choice, str) else lambda inputs, width: _of_width(make(inputs, width), width, "bottom")


def top_named(choice: str | TopFactory) -> TopFactory:
    """The top network of a name, or one's own, which is refused if its output has another width than was asked."""
    make = _known(choice, TOPS, "top", "two widths")
    return make if isinstance(choice, str) else lambda n_in, n_out: _of_width(make(n_in, n_out), n_out, "top")


def _known(choice: str | F, table: Mapping[str, F], what: str, given: str) -> F:
    if isinstance(choice, str) and choice in table:
        return table[choice]
    if isinstance(choice, str):
        raise PlanError(f"There is no {what} network {choice!r}; there are {', '.join(table)}. Use one or a callable.")
    # A module can be called, too, but not to make one.
    if isinstance(choice, nn.Module) or not callable(choice):
        raise PlanError(
            f"A {what} network should be given by name, or as a callable that makes one from {given}, but is an object "
            f"of the class {type(choice).__name__}. Give what makes it: each party makes its own."
        )
    return choice


def _of_width(network: nn.Module, width: int, what: str) -> nn.Module:
    """A user's own network with a check of its first output, whose width is not known earlier."""
    if not isinstance(network, nn.Module):
        raise PlanError(
            f"The callable for a {what} network should make a torch.nn.Module, but made an object of the class "
            f"{type(network).__name__}. Return the network."
        )

    def look(module: nn.Module, given: tuple[torch.Tensor, ...], output: object) -> None:
        n_rows = len(given[0])
        shape = tuple(output.shape) if isinstance(output, torch.Tensor) else type(output).__name__
        if shape != (n_rows, width):
            raise PlanError(
                f"A {what} network should put out {width} numbers for each row, so ({n_rows}, {width}) for {n_rows} "
                f"rows, but {type(module).__name__} puts out {shape}. Make its last layer as wide as the second "
                "argument of the callable says."
            )
        hook.remove()

    hook = network.register_forward_hook(look)
    return network
