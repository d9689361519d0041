"""The messages of models of networks. Nothing here needs PyTorch, so attacks and audits read them without it."""

from __future__ import annotations

from dataclasses import dataclass

from colonnade.secret import Secret
from colonnade.wire.message import Float32Array, Message


@dataclass(frozen=True)
class BatchRows:
    """The fields of a message about one batch: the number of its step, and one row of numbers per sample."""

    step: int
    values: Float32Array


@dataclass(frozen=True)
class EmbeddingWidth(Message, kind="split/outline"):
    """How wide an embedding the label party expects; with summed logits, the number of classes, which is public."""

    width: int


class Embedding(BatchRows, Message, kind="split/embedding", reveals={Secret.FEATURES}, per_row="values", varies=True):
    """A party's output at the cut, one row per sample of the batch; NaN for a sample that the party does not hold."""


class Gradient(BatchRows, Message, kind="split/gradient", reveals={Secret.LABELS}, per_row="values", varies=True):
    """Loss gradient at the cut, one row per sample of the batch."""


@dataclass(frozen=True)
class EpochVerdict(Message, kind="split/verdict", reveals={Secret.LABELS}, varies=True):
    """Whether the model got better on held-out rows, and whether training ends here."""

    epoch: int
    improved: int
    stop: int


@dataclass(frozen=True)
class RowCount(Message, kind="split/rows"):
    """How many rows there are, and whether the label party sends embeddings of its own."""

    number: int
    with_embeddings: int


@dataclass(frozen=True)
class GivenLabels(Message, kind="split/labels", reveals={Secret.LABELS}, per_row="values"):
    """All labels: class numbers, or standardised numbers where there are no classes (`n_classes` is 0)."""

    n_classes: int
    values: Float32Array


class Outputs(
    BatchRows, Message, kind="split/outputs", reveals={Secret.FEATURES, Secret.LABELS}, per_row="values", varies=True
):
    """What the server's network predicts: logits or standardised numbers, one row per sample."""


class Hidden(BatchRows, Message, kind="split/hidden", reveals={Secret.FEATURES}, per_row="values", varies=True):
    """The server's output in a U-shape, one row per sample of the batch."""


class HiddenGradient(
    BatchRows, Message, kind="split/hidden-gradient", reveals={Secret.LABELS}, per_row="values", varies=True
):
    """Loss gradient at the server's output, one row per sample of the batch."""


@dataclass(frozen=True)
class LeakStatement(Message, kind="one-shot/statement", reveals={Secret.FEATURES}, varies=True):
    """How wide an embedding will come, and how much of its columns the sender could rebuild from the embedding."""

    width: int
    relative_mse: float
    worst_r2: float


GRADIENTS: tuple[type[Message], ...] = (Gradient, HiddenGradient)
"""The kinds that carry gradients by rows, at either cut."""
