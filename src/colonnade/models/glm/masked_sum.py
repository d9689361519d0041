"""Masked sum: one party, the asker, learns the sum of all parties' partial scores; nobody learns the summands.

    earlier sender                  later sender                     asker
         ScoreMaskSeed ─────────────────▶                                      for each pair of senders
         MaskedScores ───────────────────────────────────────────────▶         from each sender

Scores are in fixed point modulo 2^64. Each pair of senders shares a stream: the earlier sender adds the stream to its
scores, the later one subtracts it. The streams cancel in the sum and nowhere else. Where only one party sends, the sum
less the asker's own part is that party's partial score: no mask can hide the score.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import numpy as np

from colonnade.crypto.additive import encoded
from colonnade.crypto.sampling import SEED_BYTES, Stream
from colonnade.errors import ProtocolError
from colonnade.models.glm.messages import MaskedScores, PartialScores, ScoreMaskSeed
from colonnade.runtime.party import Party
from colonnade.wire.message import Float64Array

Sending: TypeAlias = Literal["masked", "plain"]

FRACTION_BITS = 32
MOST_BITS = 60


def masked_sum(party: Party, own: Float64Array | None, asker: str, sending: Sending) -> Float64Array | None:
    """The sum of the partial scores of all parties that have some, at the asker; None elsewhere.

    Args:
        party: This party.
        own: Its partial scores, if it has rows.
        asker: Who learns the sum.
        sending: Whether partial scores are masked.
    """
    senders = [name for name in party.roles.holders if name != asker]
    if party.name == asker:
        return _collected(party, own, senders, sending)
    if own is not None:
        _send(party, own, senders, asker, sending)
    return None


def _send(party: Party, own: Float64Array, senders: list[str], asker: str, sending: Sending) -> None:
    line, rows = party.peers[asker], np.arange(len(own))
    if sending == "plain":
        line.send(PartialScores(own), rows=rows)
        return
    values = encoded(own, FRACTION_BITS, MOST_BITS, f"{party.name}'s partial scores").view(np.uint64).copy()
    place = senders.index(party.name)
    for peer in senders[place + 1 :]:
        seed = Stream().raw(SEED_BYTES)
        party.peers[peer].send(ScoreMaskSeed(seed))
        values += Stream(seed).words(values.size).reshape(values.shape)
    for peer in senders[:place]:
        seed = party.peers[peer].receive(ScoreMaskSeed).seed
        if len(seed) != SEED_BYTES:
            raise ProtocolError(
                f"Expected a seed of {SEED_BYTES} bytes from {peer}, got {len(seed)}. "
                "Check that both parties run the same version."
            )
        values -= Stream(seed).words(values.size).reshape(values.shape)
    line.send(MaskedScores(values), under=("mask",) if len(senders) > 1 else (), rows=rows)


def _collected(party: Party, own: Float64Array | None, senders: list[str], sending: Sending) -> Float64Array:
    lines = [party.peers[name] for name in senders]
    shape = None if own is None else own.shape
    if sending == "plain":
        parts = [line.receive(PartialScores, shape=shape, finite=True).values for line in lines]
        return np.asarray(np.sum([*parts, *(() if own is None else (own,))], axis=0))
    total = np.uint64(0) + sum(line.receive(MaskedScores, shape=shape).values for line in lines)
    scores = np.ldexp(np.asarray(total, np.uint64).view(np.int64).astype(np.float64), -FRACTION_BITS)
    return scores if own is None else scores + own
