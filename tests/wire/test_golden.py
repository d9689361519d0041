"""Frames that earlier versions wrote are read by this one. Golden files are added to, never changed."""

import json
from pathlib import Path

import numpy as np
import pytest

from colonnade.audit.joint import AloneRatings, LabelGrant, LabelGuess
from colonnade.experiment.visit import Probe, Report
from colonnade.models.glm_arbiter import (
    Columns,
    EncryptedLoss,
    EncryptedResiduals,
    EncryptedScores,
    Key,
    Masked,
    Opened,
    Schedule,
)
from colonnade.models.glm_arbiter import Outline as RegressionOutline
from colonnade.models.glm_arbiter import Verdict as RegressionVerdict
from colonnade.models.glm_shares import Layout, MaskedProduct, Opening, Operands, SharedVector, SharesKey
from colonnade.models.scores import MaskedScores, MaskSeed, PartialScores
from colonnade.models.split import Embedding, Gradient, Outline, Verdict
from colonnade.wire.codec import decode, encode
from colonnade.wire.message import Ciphertexts, Message

GOLDEN = Path(__file__).parent.parent / "wire_golden"
ROWS = np.array([[0.0, -1.5, 2.25], [1e-30, 3e38, 0.1]], np.float32)
NUMBERS = np.array([5, 0, 2**40])
CIPHERTEXTS = Ciphertexts("rlwe-8192-156", b"fingerprint", np.array([[1, 2**63]], np.uint64))
SAMPLES = [
    Columns(3, 1.5),
    Schedule(4, 2048),
    RegressionOutline(0.5, 0.25, 5, 0.125, np.array([1.0, 2.0])),
    Key(np.array([0, 255], np.uint8)),
    EncryptedScores(7, CIPHERTEXTS),
    EncryptedResiduals(7, CIPHERTEXTS),
    EncryptedLoss(7, CIPHERTEXTS),
    Masked(7, 2, CIPHERTEXTS),
    Opened(7, np.array([0, 2**53 - 1], np.uint64)),
    RegressionVerdict(2, 1),
    Layout(NUMBERS, 0.5, 0.25, 0.125, np.array([1.0, 2.0])),
    SharesKey(np.array([0, 255], np.uint8)),
    SharedVector(7, CIPHERTEXTS),
    MaskedProduct(7, CIPHERTEXTS),
    Operands(7, CIPHERTEXTS),
    Opening(np.array([0, 2**64 - 1], np.uint64)),
    MaskSeed(bytes(range(32))),
    MaskedScores(np.array([0, 2**64 - 1], np.uint64)),
    PartialScores(np.array([0.0, -1e300])),
    Outline(16),
    Embedding(7, ROWS),
    Gradient(7, ROWS),
    Verdict(2, 1, 0),
    Report('{"version": "0.1.0"}'),
    Probe(3, 1, 1.5, np.array([0, 255], np.uint8)),
    LabelGrant(1, 1, 3, NUMBERS, np.array([2, 0, 1])),
    LabelGuess(1, "", NUMBERS, np.zeros(0, np.int64), np.array([0.5, -1e300, 0.0])),
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
        if isinstance(value, Ciphertexts):
            np.testing.assert_equal(vars(getattr(message, name)), vars(value))
            continue
        np.testing.assert_array_equal(getattr(message, name), value)
    assert encode(sample) == frame


def test_every_kind_of_message_has_a_golden_frame():
    ours = (kind for kind, message in Message.kinds.items() if message.__module__.startswith("colonnade."))
    kinds = {kind for kind in ours if not kind.startswith("example/")}  # those of doctests
    assert {kind for _, kind, _ in frames()} >= kinds
