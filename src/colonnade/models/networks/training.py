"""Training of one party's networks: device, precision, optimizers, the loop over epochs, a state to resume from."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from inspect import unwrap
from typing import Any, Generic, Literal, TypeAlias, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from colonnade.devices import computes_on_gpu
from colonnade.errors import PlanError
from colonnade.models.batches import Batches
from colonnade.models.networks.messages import EpochVerdict
from colonnade.runtime.context import Tensor
from colonnade.runtime.party import Party
from colonnade.storage import Tree
from colonnade.text import nearest
from colonnade.wire.channel import Channel
from colonnade.wire.message import Float32Array, Int64Array

L = TypeVar("L")
M = TypeVar("M", bound=nn.Module)
T = TypeVar("T")
OptimizerName: TypeAlias = Literal["adam", "adamw", "sgd"]
PerNetwork: TypeAlias = T | Mapping[str, T]
"""One value for all networks, or values by the name of a network or a party, with the rest under "default"."""

OPTIMIZERS = ("adam", "adamw", "sgd")
PRECISIONS = ("float32", "bfloat16")
_DTYPES = {np.dtype(np.float32): torch.float32, np.dtype(np.int64): torch.int64}
NO_KERNEL = "could not create a primitive"
"""What oneDNN, PyTorch's library for processors, says where it fails to make a kernel."""
DEFENCE = "defence "
"""What the names of networks that defences bring begin with; their places follow."""


def chosen(value: PerNetwork[T], network: str, party: str, setting: str) -> T:
    """The value of a setting for one network of one party."""
    if not isinstance(value, Mapping):
        return value
    for key in (network, party, "default"):
        if key in value:
            found: T = value[key]
            return found
    raise PlanError(
        f"{setting} should have a value for the network {network!r} of {party}, but names only {', '.join(value)}. "
        "Add the network, the party or 'default'."
    )


def require_known(settings: Mapping[str, PerNetwork[Any]], names: Sequence[str]) -> None:
    """Raise `PlanError` if a setting that may differ between networks names an unknown network or party."""
    known = (*names, "default")
    for setting, value in settings.items():
        for name in value if isinstance(value, Mapping) else ():
            if name not in known and not str(name).startswith(DEFENCE):
                raise PlanError(
                    f"{setting} should be for networks and parties, which are {', '.join(known)}, but names {name!r}."
                    f"{nearest(str(name), known)} Correct the name, or leave it out."
                )


@dataclass(frozen=True)
class Machine:
    """Where a party computes, and how precisely."""

    device: torch.device
    precision: str

    @classmethod
    def of(cls, device: str, precision: str) -> Machine:
        """The device of a name; "auto" is a GPU where there is one."""
        return cls(torch.device("cuda" if computes_on_gpu(device) else "cpu"), precision)

    @property
    def is_apart(self) -> bool:
        """Whether the device has memory of its own, and computes while the processor goes on."""
        return self.device.type != "cpu"

    def index(self, rows: Int64Array) -> Tensor:
        """Row numbers as an index on the device."""
        return self._uploaded(rows) if self.is_apart else torch.from_numpy(rows)

    def tensor(self, values: Float32Array, *, requires_grad: bool = False) -> Tensor:
        """A copy of an array on the device."""
        given = self._uploaded(values) if self.is_apart else torch.from_numpy(values.copy())
        return given.requires_grad_(requires_grad)

    def host_copy(self, tensor: Tensor) -> HostCopy:
        """A tensor's numbers on their way to the processor; the device goes on meanwhile."""
        values = tensor.detach()
        if not self.is_apart:
            return HostCopy(values)
        host = self._host_memory(values.shape, values.dtype).copy_(values, non_blocking=True)
        done = torch.cuda.Event() if values.is_cuda else None  # type: ignore[no-untyped-call]
        if done is not None:
            done.record()
        return HostCopy(host, done)

    def _uploaded(self, values: NDArray[Any]) -> Tensor:
        host = self._host_memory(values.shape, _DTYPES[values.dtype])
        np.copyto(host.numpy(), values)
        return host.to(self.device, non_blocking=True)

    def _host_memory(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        # A GPU copies to and from pinned memory by itself. PyTorch keeps such memory, and gives it out again only when
        # copies that were begun have ended.
        return torch.empty(shape, dtype=dtype, pin_memory=self.device.type == "cuda")

    def forward(self, network: nn.Module, *given: Any, train: bool) -> Tensor:
        """What a network makes of its inputs, in this precision; with a graph only in training."""
        # Going through all parts of a network takes time, so its mode is set only where it changes.
        if network.training != train:
            network.train(train)
        try:
            return self._passed(network, given, train)
        except RuntimeError as error:
            if self.is_apart or NO_KERNEL not in str(error):
                raise
            # oneDNN makes kernels while it runs, and some systems now and then refuse it. PyTorch has slower ones.
            torch.backends.mkldnn.enabled = False  # type: ignore[assignment]
            return self._passed(network, given, train)

    def _passed(self, network: nn.Module, given: Sequence[Any], train: bool) -> Tensor:
        mixed = torch.autocast(self.device.type, torch.bfloat16) if self.precision == "bfloat16" else nullcontext()
        with torch.set_grad_enabled(train), mixed:
            out: Tensor = network(*given)
        return out.float()


class HostCopy:
    """Numbers on their way from a device to the processor; on the processor they are there already."""

    def __init__(self, host: Tensor, done: torch.cuda.Event | None = None) -> None:
        self._host, self._done = host, done

    def array(self) -> Float32Array:
        """The numbers, once they are there."""
        if self._done is not None:
            self._done.synchronize()
        return self._host.numpy()

    def number(self) -> float:
        """The only number."""
        return float(self.array().item())


def as_array(tensor: Tensor) -> Float32Array:
    """A tensor's numbers as they cross between parties."""
    detached = tensor.detach()
    return (detached if detached.device.type == "cpu" else detached.cpu()).numpy()


@dataclass(frozen=True)
class OptimizerSettings:
    """What optimizers are made from; the first two may differ between networks and parties.

    Attributes:
        decoupled: Whether weights decay beside Adam's steps, as AdamW has it, and not through gradients. SGD, whose
            momentum would multiply the decay, has none then.
    """

    optimizer: PerNetwork[OptimizerName] = "adam"
    learning_rate: PerNetwork[float] = 3e-3
    momentum: float = 0.9
    weight_decay: float = 0.0
    decoupled: bool = False


class Optimizers:
    """The optimizers of one party's networks: as few as their settings allow."""

    def __init__(self, networks: Mapping[str, nn.Module], party: str, settings: OptimizerSettings) -> None:
        groups: dict[str, dict[float, list[nn.Parameter]]] = {}
        for name, network in networks.items():
            kind = chosen(settings.optimizer, name, party, "optimizer")
            rate = chosen(settings.learning_rate, name, party, "learning_rate")
            trained = [p for p in network.parameters() if p.requires_grad]
            if trained:
                groups.setdefault(kind, {}).setdefault(rate, []).extend(trained)
        # The fused forms take a fifth of the time, but only real numbers.
        fused = all(p.is_floating_point() for network in networks.values() for p in network.parameters())
        make: dict[str, Callable[..., torch.optim.Optimizer]] = {
            "adam": torch.optim.AdamW if settings.decoupled else torch.optim.Adam,
            "adamw": torch.optim.AdamW,
            "sgd": partial(torch.optim.SGD, lr=0.0, momentum=settings.momentum),
        }
        self.all = []
        for kind, by_rate in groups.items():
            given = [{"params": parameters, "lr": rate} for rate, parameters in by_rate.items()]
            decay = 0.0 if settings.decoupled and kind == "sgd" else settings.weight_decay
            self.all.append(make[kind](given, weight_decay=decay, fused=fused))
        self._kernels: dict[int, AdamKernel | None] = {}
        self._parameters = [p for network in networks.values() for p in network.parameters()]

    def forget_gradients(self) -> None:
        """Clear all gradients before a step."""
        # An optimizer's own zero_grad spends 30 microseconds on profiling, half as much as a message takes.
        for parameter in self._parameters:
            parameter.grad = None

    def step(self) -> None:
        """Move all parameters along their gradients."""
        # Around its step an optimizer calls PyTorch's profiler and compiler, which takes as long as the step itself.
        with torch.no_grad():
            for place, optimizer in enumerate(self.all):
                kernel = self._kernels.get(place)
                if kernel is None or not kernel.step():
                    unwrap(type(optimizer).step)(optimizer)
                    self._kernels[place] = kernel or AdamKernel.of(optimizer)

    def state(self) -> Tree:
        return [copied(optimizer.state_dict()) for optimizer in self.all]

    def restore(self, tree: Tree) -> None:
        for optimizer, saved in zip(self.all, tree, strict=True):
            optimizer.load_state_dict(tensors(saved))
        self._kernels = {}


class AdamKernel:
    """PyTorch's kernel of a fused Adam, with the tensors of every step: to find them takes longer than the step.

    The optimizer keeps all that it knows: it can make any step in the kernel's place, and its settings may change.
    """

    def __init__(self, optimizer: torch.optim.Adam) -> None:
        self._groups = []
        for group in optimizer.param_groups:
            states = [optimizer.state[parameter] for parameter in group["params"]]
            # All counts of steps as parts of one tensor, to which one is added at once.
            counts = torch.stack([state["step"] for state in states])
            for state, count in zip(states, counts.unbind(), strict=True):
                state["step"] = count
            # Before PyTorch 2.6 groups do not say so, and AdamW is no Adam.
            kernel = torch._fused_adamw_ if group.get("decoupled_weight_decay") else torch._fused_adam_
            kept = [[state[name] for state in states] for name in ("exp_avg", "exp_avg_sq")]
            self._groups.append((group, counts, kernel, (*kept, [], [state["step"] for state in states])))

    @classmethod
    def of(cls, optimizer: torch.optim.Optimizer) -> AdamKernel | None:
        """The kernel of an optimizer that has made a step; None where the optimizer has to make the next one, too.

        It is another one than a fused Adam, a parameter has had no gradient yet, or a group's parameters are of several
        kinds or on several devices, which a kernel does not take at once.
        """
        if not isinstance(optimizer, torch.optim.Adam):
            return None
        for group in optimizer.param_groups:
            parameters = group["params"]
            if not group["fused"] or group["amsgrad"] or len({(p.dtype, p.device) for p in parameters}) > 1:
                return None
            if not all(optimizer.state.get(parameter) for parameter in parameters):
                return None
        return cls(optimizer)

    def step(self) -> bool:
        """Move all parameters along their gradients; returns whether all have one, without which nothing is done."""
        gradients = [[parameter.grad for parameter in group["params"]] for group, *_ in self._groups]
        if any(gradient is None for each in gradients for gradient in each):
            return False
        for (group, counts, kernel, kept), each in zip(self._groups, gradients, strict=True):
            counts.add_(1)
            kernel(
                group["params"],
                each,
                *kept,
                lr=group["lr"],
                beta1=group["betas"][0],
                beta2=group["betas"][1],
                weight_decay=group["weight_decay"],
                eps=group["eps"],
                amsgrad=False,
                maximize=group["maximize"],
            )
        return True


def trace_back(tensor: Tensor, gradient: Tensor | None = None, *, retain_graph: bool = False) -> None:
    """Take the gradient in a tensor, 1 in a single number if there is none, through the graph that made the tensor.

    `Tensor.backward` comes to the same, but looks at its arguments for longer than a message takes, and waits for a
    thread of its own to give a GPU its work.
    """
    if gradient is None and tensor.numel() != 1:
        torch.autograd.backward(tensor)  # says what is wrong with a loss of several numbers
    given = torch.ones_like(tensor) if gradient is None else gradient
    engine: Any = torch.autograd.Variable._execution_engine
    here = torch.autograd.set_multithreading_enabled(False) if tensor.is_cuda else nullcontext()
    with here:
        engine.run_backward((tensor,), (given,), retain_graph, False, (), allow_unreachable=True, accumulate_grad=True)


@dataclass(frozen=True)
class EpochSchedule:
    """Which rows are trained on in which step, which are held out, and for how many epochs at most.

    Attributes:
        patience: After how many epochs without improvement on held-out rows training ends; None if none are held out.
    """

    batches: Batches
    held_out: list[Int64Array]
    epochs: int
    patience: int | None = None


class NetworkSide(ABC, Generic[L]):
    """One party's side of training: what it does in a step, what it has learned, and what it needs to resume.

    Networks go by the names that settings call them. The side owns what is learned until `run_epochs` gives it back.
    """

    def __init__(
        self,
        party: Party,
        networks: Mapping[str, nn.Module],
        optimizers: OptimizerSettings,
        learned: L,
        *,
        with_defences: bool = True,
    ) -> None:
        guests = [module for defence in party.defences for module in defence.modules()] if with_defences else []
        # Here and not at their first use: an optimizer's memory is restored to where the parameters are by then.
        devices = [p.device for network in networks.values() for p in network.parameters()]
        for module in guests if devices else ():
            module.to(devices[0])
        self.party, self.learned = party, learned
        self.networks = {**networks, **{f"{DEFENCE}{i}": module for i, module in enumerate(guests)}}
        self.optimizers = Optimizers(self.networks, party.name, optimizers)
        self.history: list[dict[str, float]] = []
        self.losses: dict[str, list[float]] = {}
        self.best: list[Tree] = []
        self.patience: int | None = None

    @abstractmethod
    def train(self, step: int, epoch: int, rows: Int64Array) -> dict[str, float]:
        """Do one step; returns figures to be shown."""

    @abstractmethod
    def ends_by(self, epoch: int, held_out: Sequence[Int64Array]) -> bool:
        """Whether training ends with an epoch, by what the model makes of held-out rows."""

    def run_epochs(self, schedule: EpochSchedule, *, name: str, shared: bool = True) -> L:
        """Train until the epochs are over, or the side ends them earlier; returns what was learned.

        Checkpoints call the loop by its name; it is shared if the other parties take the same steps.
        """
        batches, self.patience = schedule.batches, schedule.patience
        steps = self.party.steps(schedule.epochs * batches.per_epoch, self, name=name, shared=shared)
        for step in steps:
            epoch, rows = batches.at(step)
            steps.show(**self.train(step, epoch, rows))
            if (step + 1) % batches.per_epoch == 0 and self._ends_after(epoch, schedule.held_out):
                steps.stop()
        # The best epoch is what is learned, and is trained no more.
        for network, best in zip(self.networks.values(), self.best, strict=bool(self.best)):
            network.load_state_dict(tensors(best))
        for network in self.networks.values():
            network.eval()
        return self.learned

    def _ends_after(self, epoch: int, held_out: Sequence[Int64Array]) -> bool:
        """Put an epoch's mean losses into the history; returns whether training ends with it."""
        self.history.append({"epoch": epoch, **{name: float(np.mean(each)) for name, each in self.losses.items()}})
        self.losses = {}
        return bool(held_out) and self.ends_by(epoch, held_out)

    def note(self, figures: dict[str, float]) -> dict[str, float]:
        """Keep a step's losses for the epoch's record."""
        for name, value in figures.items():
            self.losses.setdefault(name, []).append(value)
        return figures

    def verdict(self, epoch: int, loss: float) -> EpochVerdict:
        """Judge an epoch by its loss on held-out rows, and keep the networks if it was the best."""
        assert self.patience is not None
        self.history[-1]["validation_loss"] = loss
        best = min(range(len(self.history)), key=lambda i: self.history[i]["validation_loss"])
        since = len(self.history) - 1 - best
        self._keep_if_best(not since)
        return EpochVerdict(epoch, int(not since), int(since >= self.patience))

    def await_verdict(self, epoch: int, judge: Channel) -> bool:
        """Wait for the verdict on an epoch, and keep the networks if it was the best; returns whether training ends."""
        verdict = judge.receive(EpochVerdict, fields={"epoch": epoch})
        self._keep_if_best(bool(verdict.improved))
        return bool(verdict.stop)

    def _keep_if_best(self, improved: bool) -> None:
        if improved:
            self.best = [copied(network.state_dict()) for network in self.networks.values()]

    def state(self) -> Tree:
        return {
            "networks": [copied(network.state_dict()) for network in self.networks.values()],
            "optimizers": self.optimizers.state(),
            "best": self.best,
            "history": self.history,
            "losses": self.losses,
        }

    def restore(self, tree: Tree) -> None:
        for network, saved in zip(self.networks.values(), tree["networks"], strict=True):
            network.load_state_dict(tensors(saved))
        self.optimizers.restore(tree["optimizers"])
        self.best, self.history, self.losses = tree["best"], tree["history"], tree["losses"]


def loaded(module: M, saved: Tree) -> M:
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
