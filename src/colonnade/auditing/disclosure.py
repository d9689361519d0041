"""Disclosures: who sent whom what, as the recordings say, what that costs in privacy, and what senders say of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from colonnade.auditing.contents import Disclosure, Finding, SelfReportedLeak
from colonnade.models.networks.messages import LeakStatement
from colonnade.privacy.ledger import Event, Ledger, Spent, compose
from colonnade.secret import Secret
from colonnade.wire.recording.transcript import Transcript


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


def self_reported_leaks(transcripts: Mapping[str, Transcript]) -> tuple[SelfReportedLeak, ...]:
    """Every statement that was kept in the recordings of its sender or its receiver."""
    found: dict[tuple[str, str], SelfReportedLeak] = {}
    for party, transcript in transcripts.items():
        for recorded in transcript.messages(LeakStatement):
            pair = (party, recorded.peer) if recorded.sent else (recorded.peer, party)
            said = recorded.message
            found[pair] = SelfReportedLeak(*pair, said.width, said.relative_mse, said.worst_r2)
    return tuple(found.values())
