"""HookContext: where in a run a defence's hook is called, with its owner's values only."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from colonnade.wire.message import Int64Array, Message

if TYPE_CHECKING:
    import torch

    Tensor: TypeAlias = torch.Tensor
else:
    Tensor: TypeAlias = Any

Phase: TypeAlias = Literal["train", "validate", "predict"]


@dataclass(frozen=True)
class HookContext:
    """Where in the run a hook is called, with its owner's values only.

    Within a run `phase`, `epoch`, `step`, `peer` and `track` together name one call, so noise drawn by them is drawn
    once.

    Attributes:
        track: "federated" for the track whose gradients go to feature parties, "local" for one that never leaves.
        own: The party's own embeddings by name: "embedding" of an only bottom; "public" and "private" of two.
        received: The peers' embeddings, by peer; at the label party in U-shape, which gets none, the server's output.
        held: Which rows a peer holds, by peer, where not all hold all; in the place of the others `received` has zeros.
        gradient_if: The gradient about to be sent, if the labels of the batch were others.
        inputs: The party's own columns of the batch, as its bottom reads them.
        outputs: What this track makes of the batch: logits, or predictions of a regression.
        n_classes: How many classes there are, where the party knows and the task is a classification.
    """

    step: int
    epoch: int
    rows: Int64Array
    phase: Phase
    peer: str | None = None
    message: type[Message] | None = None
    track: Literal["federated", "local"] = "federated"
    labels: Tensor | None = None
    own: Mapping[str, Tensor] = field(default_factory=dict)
    received: Mapping[str, Tensor] = field(default_factory=dict)
    held: Mapping[str, Tensor] = field(default_factory=dict)
    gradient_if: Callable[[Tensor], Tensor] | None = None
    inputs: Tensor | None = None
    outputs: Tensor | None = None
    n_classes: int | None = None

    def each_received(self) -> Iterator[tuple[Tensor, HookContext]]:
        """Yield each peer's embedding with a context limited to the rows that this peer holds."""
        for peer in self.received:
            at = self.about(self.held[peer]) if peer in self.held else self
            if len(at.rows):
                yield at.received[peer], at

    def about(self, kept: Tensor) -> HookContext:
        """The same, about some of the rows only."""

        def cut(tensor: Tensor | None) -> Tensor | None:
            return None if tensor is None else tensor[kept]

        asked, labels = self.gradient_if, self.labels

        def gradient_if(others: Tensor) -> Tensor:
            assert asked is not None
            assert labels is not None
            return asked(labels.masked_scatter(kept, others))[kept]

        return replace(
            self,
            rows=self.rows[kept.cpu().numpy()],
            labels=cut(labels),
            own={name: tensor[kept] for name, tensor in self.own.items()},
            received={peer: tensor[kept] for peer, tensor in self.received.items()},
            held={peer: tensor[kept] for peer, tensor in self.held.items()},
            gradient_if=None if asked is None else gradient_if,
            inputs=cut(self.inputs),
            outputs=cut(self.outputs),
        )
