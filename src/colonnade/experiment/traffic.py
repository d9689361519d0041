"""Traffic: what a training will send, known before it runs, and how long a line needs for it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from colonnade.wire.codec import encode
from colonnade.wire.message import Message

if TYPE_CHECKING:
    from colonnade.models.base import Estimator

# Where an integer takes one more byte in a frame.
_LONGER = np.array([2**7, 2**8, 2**16, 2**32])


@dataclass(frozen=True)
class Traffic:
    """What a training sends between the label party and one feature party.

    Attributes:
        up: Bytes of the feature party's messages.
        down: Bytes of the label party's.
        round_trips: How often one of them waits for the other's answer.
        exact: Whether it is certain; otherwise it is the most, reached if training does not stop early.

    >>> Traffic(up=10**6, down=10**6, round_trips=10, exact=True).seconds(latency=0.05, bandwidth=10**6)
    2.5
    """

    up: int
    down: int
    round_trips: int
    exact: bool

    def seconds(self, latency: float, bandwidth: float) -> float:
        """How long a line needs for it, besides what the parties compute.

        Args:
            latency: Of a message and its answer, in seconds.
            bandwidth: In bytes per second, each way.
        """
        return self.round_trips * latency + (self.up + self.down) / bandwidth


def traffic(model: Estimator, n_rows: int, n_classes: int) -> Traffic | None:
    """What training a model on so many rows sends; None for a model of which this is not known.

    Args:
        model: The model, not fitted.
        n_rows: The rows of every party.
        n_classes: Needed where embeddings are shares of the logits.
    """
    from colonnade.models.split import Embedding, Gradient, Outline, SplitClassifier, Verdict

    if not isinstance(model, SplitClassifier):
        return None
    width = n_classes if model.top is None else model.embedding
    n_held_out = round(model.validation * n_rows) if model.patience else 0
    train = _batches(n_rows - n_held_out, model.batch_size)
    held_out = _batches(n_held_out, model.batch_size)
    steps = [*train] * model.epochs

    def of(kind: type[Embedding] | type[Gradient]) -> Callable[[int, int], Message]:
        return lambda step, rows: kind(step, np.zeros((rows, width), np.float32))

    up = _size(of(Embedding), steps) + model.epochs * _size(of(Embedding), held_out)
    down = _size(of(Gradient), steps) + len(encode(Outline(width)))
    if held_out:
        down += _size(lambda epoch, _: Verdict(epoch, 0, 0), [0] * model.epochs)
    waits = 1 + len(steps) + (model.epochs if held_out else 0)
    return Traffic(up, down, waits, exact=model.patience is None)


def needs_classes(model: Estimator) -> bool:
    """Whether the number of classes says how wide a model's messages are, and is public with it."""
    from colonnade.models.split import SplitClassifier

    return isinstance(model, SplitClassifier) and model.top is None


def _batches(n_rows: int, size: int) -> list[int]:
    """How many rows each batch of an epoch has."""
    return [min(size, n_rows - start) for start in range(0, n_rows, size)]


def _size(message: Callable[[int, int], Message], rows_of_steps: list[int]) -> int:
    """The bytes of the messages of all steps; those that differ in nothing that takes bytes are encoded once."""
    lengths = np.searchsorted(_LONGER, np.arange(len(rows_of_steps)), side="right")
    counts = Counter(zip(lengths.tolist(), rows_of_steps, strict=True))
    starts = [0, *_LONGER.tolist()]
    return sum(n * len(encode(message(starts[length], rows))) for (length, rows), n in counts.items())
