"""Disclosures: who sent whom what, read from the recordings, and what that costs in privacy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from colonnade.privacy.ledger import Event, Ledger, Spent, compose
from colonnade.secret import Secret
from colonnade.wire.recording.transcript import Transcript


@dataclass(frozen=True)
class Disclosure:
    """All messages of one kind from one party to another that went out under the same protections.

    Attributes:
        reveals: Which secrets of the sender the messages depend on.
        under: The protections applied to each of them; none if empty.
        confirmed: Whether the receiver recorded the very same messages of this kind, in the same order; None where its
            recording is not at hand.

    >>> Disclosure("bank", "shop", "split/gradient", (Secret.LABELS,), (), 40, 81_920, True).is_protected
    False
    """

    sender: str
    receiver: str
    kind: str
    reveals: tuple[Secret, ...]
    under: tuple[str, ...]
    messages: int
    bytes: int
    confirmed: bool | None

    @property
    def is_protected(self) -> bool:
        """Whether any protection was applied, of whatever strength."""
        return bool(self.under)


def disclosures(transcripts: Mapping[str, Transcript]) -> tuple[Disclosure, ...]:
    """Everything that was sent, as the senders' recordings say, checked against the receivers' that are given."""
    found = []
    for sender, transcript in transcripts.items():
        messages: Counter[tuple[str, str, tuple[str, ...], tuple[str, ...]]] = Counter()
        sizes: Counter[tuple[str, str, tuple[str, ...], tuple[str, ...]]] = Counter()
        for entry in transcript.entries:
            if entry.sent:
                group = (entry.peer, entry.kind, entry.reveals, entry.under)
                messages[group] += 1
                sizes[group] += entry.size
        for group, n in messages.items():
            receiver, kind, reveals, under = group
            secrets = tuple(Secret(name) for name in reveals)
            confirmed = None
            if receiver in transcripts:
                received = _digests(transcripts[receiver], sender, kind, sent=False)
                confirmed = _digests(transcript, receiver, kind, sent=True) == received
            found.append(Disclosure(sender, receiver, kind, secrets, under, n, sizes[group], confirmed))
    return tuple(found)


def budget(found: Iterable[Disclosure], ledgers: Mapping[str, Ledger], delta: float) -> dict[str, Spent]:
    """What was spent on each secret, from all ledgers.

    A message that reveals a secret counts as not private unless its sender's ledger holds a private event about that
    secret by a protection that the message went out under.
    """
    in_the_clear = Ledger()
    for disclosure in found:
        events = ledgers[disclosure.sender].events
        accounted = {event.protects for event in events if event.is_private and event.by in disclosure.under}
        for secret in disclosure.reveals:
            if secret not in accounted:
                note = f"{disclosure.kind} from {disclosure.sender} to {disclosure.receiver}"
                in_the_clear.spend(Event.not_private(secret, note), disclosure.messages)
    composed = compose([*ledgers.values(), in_the_clear], delta)
    return {str(secret): composed[secret] for secret in sorted(composed)}


def _digests(transcript: Transcript, peer: str, kind: str, *, sent: bool) -> list[str]:
    return [e.digest for e in transcript.entries if (e.peer, e.kind, e.sent) == (peer, kind, sent)]
