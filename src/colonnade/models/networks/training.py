"""What every party's side of training has: networks, optimisers, precision, a device, and a state to go on from."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, TypeVar

import numpy as np
import torch
from torch import nn

from colonnade.errors import PlanError
from colonnade.runtime.hooks import Tensor
from colonnade.runtime.party import Party
from colonnade.storage import Tree
from colonnade.text import nearest
from colonnade.wire.message import Float32Array, Int64Array

T = TypeVar("T")
OptimiserName: TypeAlias = Literal["adam", "adamw", "sgd"]
PerNetwork: TypeAlias = T | Mapping[str, T]
"""One value for all networks, or values by the name of a network or a party, with the rest under "default"."""

OPTIMISERS = ("adam", "adamw", "sgd")
DEVICES = ("cpu", "cuda", "auto")
PRECISIONS = ("float32", "bfloat16")
GUEST = "defence "
"""What the names of networks that defences bring begin with; their places follow."""


def chosen(value: PerNetwork[T], network: str, party: str, what: str) -> T:
    """The value of a setting for one network of one party."""
    if not isinstance(value, Mapping):
        return value
    for key in (network, party, "default"):
        if key in value:
            found: T = value[key]
            return found
    raise PlanError(
        f"{what} should have a value for the network {network!r} of {party}, but names only {', '.join(value)}. "
        "Add the network, the party or 'default'."
    )


def require_known(settings: Mapping[str, PerNetwork[Any]], names: Sequence[str]) -> None:
    """Refuse values for networks and parties that there are not: they would be for nobody.

    Args:
        settings: The settings that may differ between networks, by name.
        names: The networks and parties there are, besides the networks of defences.
    """
    known = (*names, "default")
    for setting, value in settings.items():
        for name in value if isinstance(value, Mapping) else ():
            if name not in known and not str(name).startswith(GUEST):
                raise PlanError(
                    f"{setting} should be for networks and parties, which are {', '.join(known)}, but names {name!r}."
                    f"{nearest(str(name), known)} Correct the name, or leave it out."
                )


def values_of(value: PerNetwork[T]) -> list[T]:
    """All values of a setting."""
    return list(value.values()) if isinstance(value, Mapping) else [value]


@dataclass(frozen=True)
class Machine:
    """Where a party computes, and how precisely."""

    device: torch.device
    precision: str

    @classmethod
    def of(cls, device: str, precision: str) -> Machine:
        """The device of a name; "auto" is a GPU where there is one."""
        found = torch.cuda.is_available()
        if device == "cuda" and not found:
            raise PlanError("The device 'cuda' needs an NVIDIA GPU, but there is none. Use device='auto' or 'cpu'.")
        return cls(torch.device("cuda" if found and device != "cpu" else "cpu"), precision)

    def autocast(self) -> AbstractContextManager[Any]:
        """The precision of what is computed inside."""
        if self.precision == "float32":
            return _NOTHING
        return torch.autocast(self.device.type, torch.bfloat16)

    def index(self, rows: Int64Array) -> Tensor:
        """Row numbers as an index on the device."""
        index = torch.from_numpy(rows)
        return index if self.device.type == "cpu" else index.to(self.device)

    def tensor(self, values: Float32Array, *, requires_grad: bool = False) -> Tensor:
        """A copy of an array on the device."""
        return torch.tensor(values, device=self.device, requires_grad=requires_grad)


_NOTHING = nullcontext()


def as_array(tensor: Tensor) -> Float32Array:
    """A tensor's numbers as they cross between parties."""
    detached = tensor.detach()
    return (detached if detached.device.type == "cpu" else detached.cpu()).numpy()


class Optimisers:
    """The optimisers of one party's networks: as few as their settings allow."""

    def __init__(
        self,
        networks: Mapping[str, nn.Module],
        party: str,
        *,
        optimiser: PerNetwork[OptimiserName],
        learning_rate: PerNetwork[float],
        momentum: float,
        weight_decay: float,
    ) -> None:
        groups: dict[str, dict[float, list[nn.Parameter]]] = {}
        for name, network in networks.items():
            kind = chosen(optimiser, name, party, "optimiser")
            rate = chosen(learning_rate, name, party, "learning_rate")
            trained = [p for p in network.parameters() if p.requires_grad]
            if trained:
                groups.setdefault(kind, {}).setdefault(rate, []).extend(trained)
        # The fused forms take a fifth of the time, but only real numbers.
        fused = all(p.is_floating_point() for network in networks.values() for p in network.parameters())
        make: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
            "adam": lambda given: torch.optim.Adam(given, weight_decay=weight_decay, fused=fused),
            "adamw": lambda given: torch.optim.AdamW(given, weight_decay=weight_decay, fused=fused),
            "sgd": lambda given: torch.optim.SGD(
                given, lr=0.0, momentum=momentum, weight_decay=weight_decay, fused=fused
            ),
        }
        self.all = [
            make[kind]([{"params": parameters, "lr": rate} for rate, parameters in by_rate.items()])
            for kind, by_rate in groups.items()
        ]
        self._parameters = [p for network in networks.values() for p in network.parameters()]

    def forget_gradients(self) -> None:
        """Before a step: no gradients yet."""
        # An optimiser's own zero_grad spends 30 microseconds on profiling, half as much as a message takes.
        for parameter in self._parameters:
            parameter.grad = None

    def step(self) -> None:
        """Move all parameters along their gradients."""
        for optimiser in self.all:
            optimiser.step()

    def state(self) -> Tree:
        """What the optimisers remember."""
        return [copied(optimiser.state_dict()) for optimiser in self.all]

    def restore(self, tree: Tree) -> None:
        """Remember what `state` said."""
        for optimiser, saved in zip(self.all, tree, strict=True):
            optimiser.load_state_dict(tensors(saved))


class Side(ABC):
    """One party's side of training: what it does in a step, and all it needs to go on after a crash."""

    def __init__(
        self,
        party: Party,
        networks: Mapping[str, nn.Module],
        make_optimisers: Callable[[Mapping[str, nn.Module], str], Optimisers],
        *,
        with_defences: bool = True,
    ) -> None:
        guests = [module for defence in party.defences for module in defence.modules()] if with_defences else []
        # Here and not at their first use: an optimiser's memory is restored to where the parameters are by then.
        devices = [p.device for network in networks.values() for p in network.parameters()]
        for module in guests if devices else ():
            module.to(devices[0])
        self.party = party
        self.networks = {**networks, **{f"{GUEST}{i}": module for i, module in enumerate(guests)}}
        self.optimisers = make_optimisers(self.networks, party.name)
        self.history: list[dict[str, float]] = []
        self.best: list[Tree] = []

    @abstractmethod
    def train(self, step: int, epoch: int, rows: Int64Array) -> dict[str, float]:
        """Do one step; returns figures to be shown."""

    @abstractmethod
    def ends_after(self, epoch: int, held_out: Sequence[Int64Array]) -> bool:
        """Close an epoch; returns whether training ends with it."""

    def keep_if_best(self, improved: bool) -> None:
        """Remember the networks as they are, to go back to them in the end."""
        if improved:
            self.best = [copied(network.state_dict()) for network in self.networks.values()]

    def finish(self) -> None:
        """Go back to the best epoch, and train no more."""
        networks = self.networks.values()
        for network, best in zip(networks, self.best, strict=bool(self.best)):
            network.load_state_dict(tensors(best))
        for network in networks:
            network.eval()

    def state(self) -> Tree:
        """All that the next step depends on."""
        return {
            "networks": [copied(network.state_dict()) for network in self.networks.values()],
            "optimisers": self.optimisers.state(),
            "best": self.best,
            "history": self.history,
        }

    def restore(self, tree: Tree) -> None:
        """Go back to what `state` said."""
        for network, saved in zip(self.networks.values(), tree["networks"], strict=True):
            network.load_state_dict(tensors(saved))
        self.optimisers.restore(tree["optimisers"])
        self.best, self.history = tree["best"], tree["history"]


class Stopping:
    """Whether the loss on held-out rows got better, and when to stop."""

    def __init__(self, patience: int) -> None:
        self.patience = patience

    def verdict(self, history: Sequence[Mapping[str, float]]) -> tuple[bool, bool]:
        """Whether the last epoch is the best so far, and whether the best is too long ago."""
        best = min(range(len(history)), key=lambda i: history[i]["validation_loss"])
        last = len(history) - 1
        return best == last, last - best >= self.patience


def set_mode(module: nn.Module, *, train: bool) -> None:
    """Put a module into training or evaluation, unless it is there: going through all its parts takes time."""
    if module.training != train:
        module.train(train)


def loaded(module: nn.Module, saved: Tree) -> nn.Module:
    """A module with the weights that were saved."""
    module.load_state_dict(tensors(saved))
    return module.eval()


def copied(tree: Tree) -> Tree:
    """A state dictionary as arrays of its own, so that later steps do not change it."""
    if isinstance(tree, torch.Tensor):
        return tree.detach().cpu().numpy().copy()
    if isinstance(tree, Mapping):
        return {key: copied(value) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return [copied(value) for value in tree]
    return tree


def tensors(tree: Tree) -> Any:
    """The state dictionary that `copied` took apart."""
    if isinstance(tree, np.ndarray):
        return torch.from_numpy(tree.copy())
    if isinstance(tree, Mapping):
        return {key: tensors(value) for key, value in tree.items()}
    if isinstance(tree, list):
        return [tensors(value) for value in tree]
    return tree
