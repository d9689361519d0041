"""Traffic: what a training will send over the line between two parties, and how long the line needs for it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, Self, TypeAlias

import numpy as np

from colonnade.models.batches import batch_sizes
from colonnade.wire.codec import encode
from colonnade.wire.message import Message

Sizes: TypeAlias = Mapping[str, Mapping[str, int]]
"""What is known of parties' tables besides their rows, as far as a run tells it: by party, then by name."""

# Where an integer takes one more byte in a frame.
_LONGER = np.array([2**7, 2**8, 2**16, 2**32])


@dataclass(frozen=True)
class Traffic:
    """What a training sends over the line between two parties.

    Attributes:
        sent: Bytes of messages, by sender.
        round_trips: How often one of them waits for the other's answer.
        sure: How certain it is; what is sent at most is reached if training does not stop early.

    >>> Traffic({"shop": 10**6, "bank": 10**6}, round_trips=10).seconds(latency=0.05, bandwidth=10**6)
    2.5
    """

    sent: Mapping[str, int] = field(default_factory=dict)
    round_trips: int = 0
    sure: Literal["exactly", "at most", "about", "at most about"] = "exactly"

    @property
    def total(self) -> int:
        """Bytes both ways."""
        return sum(self.sent.values())

    def seconds(self, latency: float, bandwidth: float) -> float:
        """How long a line needs for it, besides what the parties compute.

        Args:
            latency: Of a message and its answer, in seconds.
            bandwidth: In bytes per second, each way.
        """
        return self.round_trips * latency + self.total / bandwidth


class TrainedInBatches(Protocol):
    """A network's settings that say how many batches there are."""

    batch_size: int
    epochs: int
    patience: int | None
    validation: float


@dataclass(frozen=True)
class Training:
    """The batches of a network's training, and how many bytes messages about them have.

    Attributes:
        epochs: How many there are at most.
        steps: The rows of each step.
        held_out: The rows of each batch on which the model is compared after each epoch.
    """

    epochs: int
    steps: list[int]
    held_out: list[int]

    @classmethod
    def of(cls, model: TrainedInBatches, n_rows: int) -> Self:
        """The batches that a model has on so many rows."""
        n_held_out = round(model.validation * n_rows) if model.patience else 0
        train = batch_sizes(n_rows - n_held_out, model.batch_size)
        return cls(model.epochs, train * model.epochs, in_batches(n_held_out, model.batch_size))

    @property
    def sure(self) -> Literal["exactly", "at most"]:
        """Whether training cannot stop early."""
        return "at most" if self.held_out else "exactly"

    @property
    def round_trips(self) -> int:
        """How often somebody waits who sends something in every step and after every epoch."""
        return len(self.steps) + (self.epochs if self.held_out else 0)

    def in_steps(self, kind: Callable[[int, Any], Message], width: int) -> int:
        """The bytes of a message of one row per sample in every step."""
        return per_batch(kind, width, self.steps)

    def in_all(self, kind: Callable[[int, Any], Message], width: int) -> int:
        """The bytes of a message of one row per sample in every step and for all held-out rows after every epoch."""
        return self.in_steps(kind, width) + self.epochs * per_batch(kind, width, self.held_out)

    def verdicts(self, kind: Callable[[int, int, int], Message]) -> int:
        """The bytes of a verdict after every epoch."""
        return _size(lambda epoch, _: kind(epoch, 0, 0), [0] * self.epochs) if self.held_out else 0


def per_batch(kind: Callable[[int, Any], Message], width: int, batches: list[int]) -> int:
    """The bytes of a message of one row per sample for each batch."""
    return _size(lambda step, rows: kind(step, np.zeros((rows, width), np.float32)), batches)


def in_batches(n_rows: int, size: int) -> list[int]:
    """How many rows each batch has where none is trained on.

    >>> in_batches(7, 3)
    [3, 3, 1]
    """
    return [min(size, n_rows - start) for start in range(0, n_rows, size)]


def _size(message: Callable[[int, int], Message], rows_of_steps: list[int]) -> int:
    """The bytes of the messages of all steps; those that differ in nothing that takes bytes are encoded once."""
    lengths = np.searchsorted(_LONGER, np.arange(len(rows_of_steps)), side="right")
    counts = Counter(zip(lengths.tolist(), rows_of_steps, strict=True))
    starts = [0, *_LONGER.tolist()]
    return sum(n * len(encode(message(starts[length], rows))) for (length, rows), n in counts.items())
