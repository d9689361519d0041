"""Frames that earlier versions wrote are read by this one. Golden files are added to, never changed."""

import json
import random
import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from colonnade.align import messages as align
from colonnade.auditing.joint import AloneRatings, LabelGrant, LabelGuess
from colonnade.deploy.doctor.probe import Probe, Report
from colonnade.errors import ProtocolError
from colonnade.models.functional import messages as functional
from colonnade.models.glm import messages as glm
from colonnade.models.networks import messages as networks
from colonnade.models.trees import messages as trees
from colonnade.wire.codec import MAX_METADATA, decode, encode
from colonnade.wire.message import Ciphertexts, Message

GOLDEN = Path(__file__).parent.parent / "wire_golden"
ROWS = np.array([[0.0, -1.5, 2.25], [1e-30, 3e38, 0.1]], np.float32)
NUMBERS = np.array([5, 0, 2**40])
POINTS = np.arange(64, dtype=np.uint8).reshape(2, 32)
CIPHERTEXTS = Ciphertexts("rlwe-8192-156", b"fingerprint", np.array([[1, 2**63]], np.uint64))
WORDS = np.array([[0, 2**64 - 1]], np.uint64)
SAMPLES = [
    glm.ColumnSummary(3, 1.5),
    glm.ColumnToken(bytes(range(32)), bytes(32)),
    glm.OpenableSums(["bank", "shop"], np.array([3, 2]), [bytes(32), bytes(range(32))], 400, 130, WORDS[0], 3, 1.5),
    glm.Schedule(4, 2048, 18, 3),
    glm.StepOutline(0.5, 0.25, 0.125, np.array([1.0, 2.0]), bytes(range(32))),
    glm.PublicKeyBytes(np.array([0, 255], np.uint8)),
    glm.ScoreShare(7, WORDS[0]),
    glm.EncryptedMeans(7, CIPHERTEXTS),
    glm.EncryptedResiduals(7, CIPHERTEXTS),
    glm.StillVote(2, 1),
    glm.MaskedSums(7, CIPHERTEXTS, 2),
    glm.OpenedSums(7, np.array([0, 2**53 - 1], np.uint64)),
    glm.StopVerdict(2, 1),
    glm.SharesLayout(0.5, 0.25, 0.125, np.array([1.0, 2.0]), NUMBERS, 3),
    glm.SharedVector(7, CIPHERTEXTS),
    glm.MaskedProduct(7, CIPHERTEXTS),
    glm.PairedWords(7, WORDS[0]),
    glm.OpenedShare(np.array([0, 2**64 - 1], np.uint64)),
    glm.ScoreMaskSeed(bytes(range(32))),
    glm.MaskedScores(np.array([0, 2**64 - 1], np.uint64)),
    glm.PartialScores(np.array([0.0, -1e300])),
    networks.EmbeddingWidth(16),
    networks.Embedding(7, ROWS),
    networks.Gradient(7, ROWS),
    networks.EpochVerdict(2, 1, 0),
    networks.RowCount(1_797, 1),
    networks.Hidden(7, ROWS),
    networks.HiddenGradient(7, ROWS),
    networks.GivenLabels(3, ROWS[0]),
    networks.Outputs(7, ROWS),
    networks.LeakStatement(16, 0.25, 0.875),
    Report('{"version": "0.1.0"}'),
    Probe(3, 1, 1.5, np.array([0, 255], np.uint8)),
    LabelGrant(1, 1, 3, NUMBERS, np.array([2, 0, 1])),
    LabelGuess(1, "", NUMBERS, np.zeros(0, np.int64), np.array([0.5, -1e300, 0.0])),
    align.AlignTerms("run", "rules", ["email", "text+integer"], [7, 5]),
    align.AlignOpening(bytes(range(32)), bytes(32), 2, 3, ["bank"], [7, 2**40]),
    align.MaskedIds(2, 8192, POINTS),
    align.TwiceMaskedIds(2, 8192, POINTS[:, :16].copy()),
    align.Common(1, POINTS[:, 16:].copy()),
    align.Places(1, NUMBERS),
    align.ChosenRows(9, 3, NUMBERS),
    align.Copies(2, 0, np.array([[1, 2], [3, 1]])),
    align.OrderPoint(bytes(range(32))),
    align.OrderDigest(bytes(range(32))),
    align.Agreed([bytes(32), bytes(range(32))], bytes(32), 9),
    align.Size(-1),
    align.Meeting("bank.example:7432", 0),
    align.Finished(1),
    AloneRatings(1, NUMBERS, ["class centroids", "2 clusters"], 1, [ROWS.astype(np.float64), np.zeros((2, 3))]),
    functional.Offer(["temp"], np.array([123, 125], np.uint8), np.array([np.inf]), np.array([0.2])),
    functional.ReleasedCurves("temp", ROWS.astype(np.float64)),
    functional.Surface("temp", ROWS.astype(np.float64), np.array([0.5, -1.5])),
    functional.PartialPrediction(ROWS.astype(np.float64)),
    functional.Layout(500, np.array([2, 3]), 20, 10),
    functional.MaskSeed(bytes(range(32))),
    functional.Masked("shop", WORDS),
    functional.Terms(1, [WORDS, WORDS]),
    functional.Correction(2, [WORDS]),
    functional.Chosen(NUMBERS),
    functional.EncryptedOutputs(np.array([0, 255], np.uint8), CIPHERTEXTS),
    functional.MaskedProducts(1, CIPHERTEXTS),
    functional.NoisyShares(2, [WORDS, WORDS]),
    trees.ColumnOutline(np.array([32, 2]), np.array([1, 0], np.uint8), np.array([0, 1], np.uint8)),
    trees.ForestOutline(3, 4, 9),
    trees.SeedCommitment([bytes(32), bytes(range(32))]),
    trees.SeedNonce([bytes(range(32))]),
    trees.Hint(1, WORDS),
    trees.TransferPoint(POINTS[:1]),
    trees.TransferPoints(POINTS),
    trees.QueryKeys(4, 36, WORDS),
    trees.NextAct(4, 2),
    trees.GradientBounds(4, 2**20, 2**18),
    trees.SumsQuery(4, 36, WORDS, POINTS),
    trees.SumsAnswer(4, WORDS[0]),
    trees.SumsKey(np.array([0, 255], np.uint8)),
    trees.EncryptedRows(4, 2, CIPHERTEXTS),
    trees.NodeRows(4, np.array([3]), NUMBERS),
    trees.EncryptedSums(4, CIPHERTEXTS),
    trees.HiddenTurn(4, WORDS[0]),
    trees.BestShares(4, WORDS),
    trees.SharedSums(4, WORDS[0]),
    trees.ChosenSplits(4, NUMBERS),
    trees.SideChoices(4, WORDS, WORDS[0]),
    trees.RowSides(4, WORDS[0]),
    trees.RoundVerdict(4, 1),
    trees.ForestSize(3),
    trees.AskedSplits(2, 0, 100, NUMBERS, NUMBERS, NUMBERS),
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


def damaged(frame, draw):
    """A frame of which something was lost, changed, blown up or made up."""
    way = draw.randrange(5)
    if way == 0:
        return frame[: draw.randrange(len(frame))]
    if way == 1:
        return frame[: draw.randrange(9)] + draw.randbytes(draw.randrange(300))
    data = bytearray(frame)
    if way == 2:
        return bytes(data) + draw.randbytes(draw.randrange(1, 100))
    # Where lengths and shapes stand, or anywhere.
    length = struct.unpack_from("<I", frame, 4)[0]
    within = range(4, 8 + length) if way == 3 else range(len(frame))
    for _ in range(draw.randrange(1, 6)):
        data[draw.choice(within)] = draw.choice([0xFF, 0xDD, 0xDF, 0xC6, draw.randrange(256)])
    return bytes(data)


def test_ten_thousand_damaged_frames_are_refused_with_a_reason_or_read_in_little_memory():
    draw, whole = random.Random(0), [(Message.kinds[kind], frame) for _, kind, frame in frames()]
    read, most, reasons = 0, 0, []
    tracemalloc.start()
    try:
        for _ in range(10_000):
            expected, frame = draw.choice(whole)
            bad = damaged(frame, draw)
            tracemalloc.reset_peak()
            before, _ = tracemalloc.get_traced_memory()
            try:
                decode(bad, expected)
                read += 1
            except ProtocolError as error:
                reasons.append(str(error))
            most = max(most, tracemalloc.get_traced_memory()[1] - before)
    finally:
        tracemalloc.stop()
    # Numbers that were changed are still numbers.
    assert read < 4000
    assert all(". " in reason for reason in reasons)
    assert most < 2**20


@pytest.mark.parametrize("head", [b"\xdc\xff\xff", b"\xdd\x00\x00\xff\xff", b"\xdf\x00\x00\x7f\xff\x00"])
def test_a_frame_of_lists_in_lists_that_claim_to_be_long_takes_little_of_what_it_claims(head):
    metadata = (head * 1000).ljust(MAX_METADATA, b"\x00")
    tracemalloc.start()
    try:
        with pytest.raises(ProtocolError, match="metadata that is not msgpack"):
            decode(b"CLN1" + struct.pack("<I", MAX_METADATA) + metadata, networks.EmbeddingWidth)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 128 * 2**20
