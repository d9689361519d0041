"""Compression: gradients leave with less in them. What is left may still tell the label.

Sparsification and DiscreteSGD as compared by Fu et al. 2022, "Label inference attacks against vertical federated
learning".
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar, Literal

import torch

from colonnade.models.networks.messages import GRADIENTS
from colonnade.parameters import Limit, check_parameters, choice, count, number, optional
from colonnade.runtime.context import HookContext, Tensor
from colonnade.runtime.party import Defence, Party
from colonnade.storage import Tree


class SparseGradient(Defence):
    """Only the largest entries of a batch's gradients leave; the others become 0.

    Args:
        keep: The share of entries that is kept.
        residual: What becomes of the others. "none": they are dropped. "row": they are added when the same row comes up
            again. "batch": they are added to the next batch, which is about other rows, as in published code; rows are
            then blurred with each other.

    >>> SparseGradient(keep=0.25).name
    'SparseGradient(keep=0.25)'
    """

    known_by = (("averaged-gradients", {}), ("co-training", {}))
    acts_on = GRADIENTS
    named_by = "keep"
    limits: ClassVar[Mapping[str, Limit]] = {
        "keep": number(above=0, below=1),
        "residual": choice("none", "row", "batch"),
    }

    def __init__(self, *, keep: float = 0.1, residual: Literal["none", "row", "batch"] = "none") -> None:
        self.keep, self.residual = keep, residual
        check_parameters(self)

    def before_run(self, party: Party) -> None:
        self._residuals: dict[str, Tensor] = {}

    def outgoing(self, tensor: Tensor, at: HookContext) -> Tensor:
        if at.message not in GRADIENTS:
            return tensor
        gradient = tensor.detach() + self._owed(tensor, at)
        sizes = gradient.abs().flatten()
        n_dropped = int((1 - self.keep) * len(sizes))
        kept = gradient
        if n_dropped:
            # Strictly above the largest that is dropped: where many are alike, as many as possible go.
            kept = torch.where(gradient.abs() > sizes.float().kthvalue(n_dropped).values, gradient, 0)
        if self.residual != "none":
            self._owe(gradient - kept, at)
        return kept.to(tensor.dtype)

    def state(self) -> Tree:
        return {"residuals": {peer: owed.cpu().numpy() for peer, owed in self._residuals.items()}}

    def restore(self, tree: Tree) -> None:
        self._residuals = {peer: torch.from_numpy(owed.copy()) for peer, owed in tree["residuals"].items()}

    def _owed(self, gradient: Tensor, at: HookContext) -> Tensor:
        owed = self._residuals.get(at.peer or "")
        if owed is None:
            return torch.zeros_like(gradient)
        if self.residual == "row":
            return self._with_room(owed, at)[torch.from_numpy(at.rows)].to(gradient)
        # The last batch of an epoch is shorter.
        added = torch.zeros_like(gradient)
        added[: len(owed)] = owed[: len(gradient)].to(gradient)
        return added

    def _owe(self, left: Tensor, at: HookContext) -> None:
        peer = at.peer or ""
        if self.residual == "batch":
            self._residuals[peer] = left.cpu().clone()
            return
        owed = self._with_room(self._residuals.get(peer, torch.zeros((0, left.shape[1]), dtype=left.dtype)), at)
        owed[torch.from_numpy(at.rows)] = left.cpu()
        self._residuals[peer] = owed

    def _with_room(self, owed: Tensor, at: HookContext) -> Tensor:
        missing = int(at.rows.max()) + 1 - len(owed)
        return owed if missing <= 0 else torch.nn.functional.pad(owed, (0, 0, 0, missing))


class DiscreteGradient(Defence):
    """Gradients leave rounded to a few levels (DiscreteSGD).

    Args:
        bins: How many steps the levels make from the lower bound to the upper.
        bound: Entries are cut off at plus and minus this; if None, at twice the standard deviation of the first batch
            sent to each party. A batch whose entries are all alike has none, and before there is a bound only zeros
            leave.

    >>> DiscreteGradient(bins=6).name
    'DiscreteGradient(bins=6)'
    """

    known_by = (("averaged-gradients", {}), ("co-training", {}))
    acts_on = GRADIENTS
    named_by = "bins"
    limits: ClassVar[Mapping[str, Limit]] = {"bins": count(), "bound": optional(number(above=0))}

    def __init__(self, *, bins: int = 12, bound: float | None = None) -> None:
        self.bins, self.bound = bins, bound
        check_parameters(self)

    def before_run(self, party: Party) -> None:
        self._bounds: dict[str, float] = {}

    def outgoing(self, tensor: Tensor, at: HookContext) -> Tensor:
        if at.message not in GRADIENTS:
            return tensor
        bound = self.bound or self._bounds.get(at.peer or "")
        if bound is None:
            bound = 2 * float(tensor.float().std(correction=0))
            if not 0 < bound < math.inf:
                # Any bound made of a single value would say exactly what it is. What is not finite the peer refuses.
                return tensor * 0
            self._bounds[at.peer or ""] = bound
        step = 2 * bound / self.bins
        return torch.round(tensor.clamp(-bound, bound) / step) * step

    def state(self) -> Tree:
        return {"bounds": dict(self._bounds)}

    def restore(self, tree: Tree) -> None:
        self._bounds = dict(tree["bounds"])


class AverageGradient(Defence):
    """Every row's gradient leaves as the mean over its batch.

    No row can be told from the others of its batch. Batches are public and drawn again each epoch, so a row's mean over
    epochs still leans to its class; and a feature party's network hardly learns anything.

    >>> AverageGradient().name
    'AverageGradient'
    """

    known_by = (("averaged-gradients", {}), ("randomised-posterior", {}), ("co-training", {}))
    acts_on = GRADIENTS

    def outgoing(self, tensor: Tensor, at: HookContext) -> Tensor:
        if at.message not in GRADIENTS:
            return tensor
        return tensor.mean(dim=0, keepdim=True).expand_as(tensor).contiguous()
