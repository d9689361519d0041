"""Frames that earlier versions wrote are read by this one. Golden files are added to, never changed."""

import json
from pathlib import Path

import numpy as np
import pytest

from colonnade.align.messages import (
    Agreed,
    Chosen,
    Common,
    Copies,
    Doubled,
    Finished,
    Masked,
    Meeting,
    Opening,
    OrderDigest,
    Places,
    Size,
    Terms,
)
from colonnade.audit.joint import AloneRatings, LabelGrant, LabelGuess
from colonnade.experiment.visit import Probe, Report
from colonnade.models.split import Embedding, Gradient, Outline, Verdict
from colonnade.wire.codec import decode, encode
from colonnade.wire.message import Message

GOLDEN = Path(__file__).parent.parent / "wire_golden"
ROWS = np.array([[0.0, -1.5, 2.25], [1e-30, 3e38, 0.1]], np.float32)
NUMBERS = np.array([5, 0, 2**40])
POINTS = np.arange(64, dtype=np.uint8).reshape(2, 32)
SAMPLES = [
    Outline(16),
    Embedding(7, ROWS),
    Gradient(7, ROWS),
    Verdict(2, 1, 0),
    Report('{"version": "0.1.0"}'),
    Probe(3, 1, 1.5, np.array([0, 255], np.uint8)),
    LabelGrant(1, 1, 3, NUMBERS, np.array([2, 0, 1])),
    LabelGuess(1, "", NUMBERS, np.zeros(0, np.int64), np.array([0.5, -1e300, 0.0])),
    Terms("run", "rules", ["email", "text+integer"], [7, 5]),
    Opening(bytes(range(32)), 2, 3, ["bank"], [7, 2**40]),
    Masked(2, 8192, POINTS),
    Doubled(2, 8192, POINTS[:, :16].copy()),
    Common(1, POINTS[:, 16:].copy()),
    Places(1, NUMBERS),
    Chosen(9, 3, NUMBERS, np.array([-1, 2, 0])),
    Copies(2, 0, np.array([[1, 2], [3, 1]])),
    OrderDigest(bytes(range(32))),
    Agreed([bytes(32), bytes(range(32))], bytes(32), 9),
    Size(-1),
    Meeting("bank.example:7432", 0),
    Finished(1),
    AloneRatings(1, NUMBERS, ["class centroids", "2 clusters"], 1, [ROWS.astype(np.float64), np.zeros((2, 3))]),
]


def frames():
    return [
        (path.stem, kind, bytes.fromhex(frame))
        for path in sorted(GOLDEN.glob("*.json"))
        for kind, frame in json.loads(path.read_text()).items()
    ]


@pytest.mark.parametrize(("version", "kind", "frame"), frames())
def test_an_old_frame_still_says_the_same(version, kind, frame):
    (sample,) = (sample for sample in SAMPLES if sample.kind == kind)
    message = decode(frame, type(sample))
    for name, value in vars(sample).items():
        np.testing.assert_array_equal(getattr(message, name), value)
    assert encode(sample) == frame


def test_every_kind_of_message_has_a_golden_frame():
    ours = (kind for kind, message in Message.kinds.items() if message.__module__.startswith("colonnade."))
    kinds = {kind for kind in ours if not kind.startswith("example/")}  # those of doctests
    assert {kind for _, kind, _ in frames()} >= kinds
