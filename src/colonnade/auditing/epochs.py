"""Leak over epochs: what an attack finds in the messages of one epoch alone, epoch by epoch."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from colonnade.attacks.base import Attack
from colonnade.auditing.attempt import PartyRecord, tried
from colonnade.auditing.subjects.base import Made
from colonnade.runtime.simulate import Run
from colonnade.wire.codec import encode
from colonnade.wire.recording.recording import Recording, Transcript


def leak_over_epochs(run: Run[Any], made: Made, n: int, *, up_to_naming: bool) -> tuple[tuple[int, float], ...]:
    """The score of the same attack in each of at most n epochs, spread evenly; none where it cannot be made.

    Args:
        run: A run that kept every message.
        made: The attack, as it was made on all epochs.
        n: How many epochs to look at.
        up_to_naming: Whether the attack gets the names of classes that suit it best.
    """
    attempt, record = made.attempt, PartyRecord.of(run, made.attempt.attacker)
    attack = attempt.attack
    kinds = {message.kind for message in attack.needs.messages}
    epochs = sorted({e.epoch for e in record.transcript.entries if e.kind in kinds and e.epoch is not None})
    found = []
    if isinstance(attack, Attack) and len(epochs) > 1:
        for place in np.unique(np.linspace(0, len(epochs) - 1, n).round().astype(int)):
            seen = replace(record, transcript=_of_epoch(record.transcript, attack, epochs[place]))
            if attempt.why_not(seen) is not None:
                continue
            guess = tried(partial(attack.guess, attempt.view_on(seen)))
            kept = guess if isinstance(guess, str) else made.truth.scored_part(guess)
            if not isinstance(kept, str):
                values = made.truth.scores(kept)
                found.append((epochs[place], values.up_to_naming if up_to_naming else values.plain))
    return tuple(found)


def _of_epoch(transcript: Transcript, attack: Attack, epoch: int) -> Transcript:
    """What a party would have recorded of a run that had this one epoch."""
    recording = Recording(transcript.party, "all")
    seen = replace(transcript, entries=tuple(entry for entry in transcript.entries if entry.epoch == epoch))
    for kind in attack.needs.messages:
        for each in seen.messages(kind):
            recording.add(each.message, encode(each.message), sent=each.sent, peer=each.peer, rows=each.rows, epoch=0)
    return recording.transcript()
