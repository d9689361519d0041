"""A message with 256 KiB of float32 becomes a frame, and a message again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from benchmarks.clock import median_time
from colonnade.wire.codec import decode, encode
from colonnade.wire.message import Float32Array, Message

TARGETS: Mapping[str, float] = {"encode_us": 12.0, "decode_us": 5.0}


@dataclass(frozen=True)
class Block(Message, kind="benchmark/block", per_row="values"):
    """Numbers, one row per sample of a batch: the shape of what split networks exchange."""

    step: int
    values: Float32Array


def block(rows: int = 1024) -> Block:
    """A message with 256 bytes of numbers per row: 256 KiB by default."""
    return Block(0, np.random.default_rng(0).standard_normal((rows, 64), np.float32))


def measure(*, quick: bool) -> dict[str, float]:
    """The median time of one encoding and of one decoding; of copying as many bytes, for comparison."""
    times = 100 if quick else 5_000
    message = block()
    frame = encode(message)
    return {
        "encode_us": 1e6 * median_time(lambda: encode(message), times=times),
        "decode_us": 1e6 * median_time(lambda: decode(frame, Block), times=times),
        "copy_us": 1e6 * median_time(message.values.tobytes, times=times),
    }
