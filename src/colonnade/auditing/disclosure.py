"""Disclosures: who sent whom what, as the recordings say, what that costs in privacy, and what senders say of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from colonnade.auditing.evidence import Finding
from colonnade.models.networks.messages import LeakStatement
from colonnade.privacy.ledger import Event, Ledger, Spent, compose
from colonnade.secret import Secret
from colonnade.wire.recording.recording import Transcript


@dataclass(frozen=True)
class Disclosure:
    """All messages of one kind from one party to another that went out under the same protections.

    Attributes:
        reveals: Which secrets of the sender the messages depend on.
        under: The protections applied to each of them; none if empty.
        confirmed: Whether the receiver recorded the very same messages of this kind, in the same order; None where its
            recording is not at hand.

    >>> Disclosure("bank", "shop", "split/gradient", (Secret.LABELS,), (), 40, 81_920, True).under
    ()
    """

    sender: str
    receiver: str
    kind: str
    reveals: tuple[Secret, ...]
    under: tuple[str, ...]
    messages: int
    bytes: int
    confirmed: bool | None


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


def never_attacked(sent: Iterable[Disclosure], findings: Sequence[Finding]) -> Iterator[str]:
    """What was revealed to a party without an attack that made use of it."""
    kinds: dict[tuple[str, str, Secret], list[str]] = {}
    for disclosure in sent:
        for secret in disclosure.reveals:
            kinds.setdefault((disclosure.receiver, disclosure.sender, secret), []).append(disclosure.kind)
    for (receiver, sender, secret), revealing in kinds.items():
        made = [f for f in findings if (f.attacker, f.owner, f.about) == (receiver, sender, secret)]
        unread = [kind for kind in dict.fromkeys(revealing) if not any(finding.reads(kind) for finding in made)]
        if unread:
            reason = "no attack read them" if made else "no attack was made"
            yield f"{receiver} about {sender}'s {secret}, given {' and '.join(unread)}: {reason}"


@dataclass(frozen=True)
class SelfReportedLeak:
    """How well a party's columns can be rebuilt from the embedding that it sent, by its own measurement.

    Attributes:
        width: How many numbers the embedding has for each row.
        relative_mse: The squared error of what is rebuilt, relative to the columns' variance: 0 is all, 1 is nothing.
        worst_r2: The share of variance that is rebuilt (R²) of the column of which most is.

    >>> print(SelfReportedLeak("shop", "bank", 16, 0.25, 0.875))
    By shop's own measurement, its columns can be rebuilt from its embedding of width 16 with relative MSE 0.25 (0 is \
everything, 1 nothing) and worst column R² 0.88. bank's own columns, and better attacks, may tell more.
    """

    owner: str
    receiver: str
    width: int
    relative_mse: float
    worst_r2: float

    def __str__(self) -> str:
        return (
            f"By {self.owner}'s own measurement, its columns can be rebuilt from its embedding of width {self.width} "
            f"with relative MSE {self.relative_mse:.2f} (0 is everything, 1 nothing) and worst column R² "
            f"{self.worst_r2:.2f}. {self.receiver}'s own columns, and better attacks, may tell more."
        )


def self_reported_leaks(transcripts: Mapping[str, Transcript]) -> tuple[SelfReportedLeak, ...]:
    """Every statement that was kept in the recordings of its sender or its receiver."""
    found: dict[tuple[str, str], SelfReportedLeak] = {}
    for party, transcript in transcripts.items():
        for recorded in transcript.messages(LeakStatement):
            pair = (party, recorded.peer) if recorded.sent else (recorded.peer, party)
            said = recorded.message
            found[pair] = SelfReportedLeak(*pair, said.width, said.relative_mse, said.worst_r2)
    return tuple(found.values())
