"""Opening: who takes part in an alignment, and what they agree on before any id is compared.

    leader                                    each other party
         ◀───────────────────────────── AlignTerms
         AlignOpening ───────────────────────────▶            once

The leader learns how many ids each other party has under each key. In a ring all parties learn all these numbers; in a
star the others learn the leader's numbers, and how many buckets there are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from colonnade.align.buckets import MOST_BUCKETS, slots
from colonnade.align.messages import AlignOpening, AlignTerms, unexpected
from colonnade.align.settings import Settings
from colonnade.crypto.curve import make_key
from colonnade.errors import PlanError, ProtocolError
from colonnade.roles import Roles
from colonnade.runtime.party import Party
from colonnade.text import printable

MOST_IDS = 1 << 34

CheckSizes = Callable[[str, Sequence[int]], None]


@dataclass(frozen=True)
class Participants:
    """The parties of an alignment, as one of them sees them.

    Attributes:
        me: The name of this party.
        order: The parties with tables, the leader first.
        without_tables: An arbiter or a server, which only hears the outcome.
        star: Whether only the leader compares its ids with the others'.

    >>> roles = Roles(label="bank", features=("shop", "telco"))
    >>> Participants.of(roles, Settings(), "shop").compared
    ('bank',)
    """

    me: str
    order: tuple[str, ...]
    without_tables: tuple[str, ...]
    star: bool

    @classmethod
    def of(cls, roles: Roles, settings: Settings, me: str) -> Participants:
        """The parties of these roles; raises `PlanError` if they are too few, or too many for the settings."""
        order, star = roles.holders, settings.topology == "star"
        settings.check_parties(order)
        if len(order) < 2:
            raise PlanError(f"An alignment needs two parties with tables, but there is only {order[0]}. Name another.")
        if settings.reveal == "size" and star and len(order) > 2:
            raise PlanError(
                f"In a star {order[0]} can count what it has in common with each other party, but not with all "
                f"{len(order) - 1} at once. Use topology = 'ring'."
            )
        return cls(me, order, tuple(name for name in roles.parties if name not in order), star)

    @property
    def leader(self) -> str:
        """The party that compares and decides on the order: the label party, if there is one."""
        return self.order[0]

    @property
    def leads(self) -> bool:
        """Whether this party leads."""
        return self.me == self.leader

    @property
    def others(self) -> tuple[str, ...]:
        """The other parties with tables."""
        return tuple(name for name in self.order if name != self.me)

    @property
    def compared(self) -> tuple[str, ...]:
        """The parties that this party compares ids with."""
        return (self.leader,) if self.star and not self.leads else self.others

    @property
    def apart(self) -> tuple[str, ...]:
        """The parties with tables that this party does not compare ids with: the other followers of a star."""
        return tuple(name for name in self.others if name not in self.compared)


@dataclass(frozen=True)
class Agreement:
    """What the parties agree on before they compare ids.

    Attributes:
        salt: The key of digests.
        veils: For each peer, what encrypts digests that leave Colonnade towards it. Unlike the salt, a veil differs in
            every run, and no third party knows it.
        n_keys: How many keys ids are compared by.
        n_buckets: How many buckets each key has.
        ids: How many ids each known party has under each key.
    """

    salt: bytes
    veils: Mapping[str, bytes]
    n_keys: int
    n_buckets: int
    ids: dict[str, tuple[int, ...]]

    def slots(self, party: str, key: int) -> int:
        """How many ids of a party go out in each bucket."""
        return slots(self.ids[party][key], self.n_buckets)

    def total(self, party: str) -> int:
        """The length of all lists of a party together."""
        return sum(self.n_buckets * self.slots(party, key) for key in range(self.n_keys))

    @property
    def rounds(self) -> Iterator[tuple[int, int]]:
        """Every key with every bucket."""
        return ((key, bucket) for key in range(self.n_keys) for bucket in range(self.n_buckets))


def open_as_leader(
    party: Party, participants: Participants, settings: Settings, mine: AlignTerms, check_sizes: CheckSizes
) -> Agreement:
    """Receive the terms of all others, and decide how to go on."""
    me = participants.me
    ids = {me: tuple(mine.ids)}
    for line in (party.peers[name] for name in participants.others):
        terms = line.receive(AlignTerms)
        _check_terms(me, mine, line.peer, terms)
        check_sizes(line.peer, terms.ids)
        ids[line.peer] = tuple(terms.ids)
    n = settings.n_buckets([count for counts in ids.values() for count in counts])
    if n > MOST_BUCKETS:
        raise PlanError(
            f"At most {MOST_BUCKETS:,} buckets can be matched, but these sets would need {n:,}. Raise ids_per_bucket "
            "under [align]."
        )
    salt = party.random.child("align", "salt").key
    veils = {name: party.once(f"veil of the alignment with {name}", make_key) for name in participants.others}
    shown = (me,) if participants.star else participants.order
    for name in participants.others:
        counts = [count * settings.matches(name, key) for one in shown for key, count in enumerate(ids[one])]
        party.peers[name].send(AlignOpening(salt, veils[name], len(mine.ids), n, list(shown), counts))
    for name in participants.without_tables:
        party.peers[name].send(AlignOpening(b"", b"", len(mine.ids), n, [], []))
    return Agreement(salt, veils, len(mine.ids), n, ids)


def open_as_follower(
    party: Party, participants: Participants, settings: Settings, mine: AlignTerms, check_sizes: CheckSizes
) -> Agreement:
    """Send the terms to the leader, and accept its decision."""
    leader, n_keys = party.peers[participants.leader], len(mine.ids)
    leader.send(mine)
    opening = leader.receive(AlignOpening)
    shown = (leader.peer,) if participants.star else participants.order
    fits = opening.parties == list(shown) and len(opening.ids) == n_keys * len(shown) and opening.keys == n_keys
    fits = fits and len(opening.salt) == len(opening.veil) == 32 and all(0 <= n <= MOST_IDS for n in opening.ids)
    if not fits or not 1 <= opening.buckets <= MOST_BUCKETS:
        raise unexpected(
            leader.peer, f"open the alignment of {', '.join(shown)} by {n_keys} keys", "an opening of another kind"
        )
    ids = {name: tuple(opening.ids[i * n_keys : (i + 1) * n_keys]) for i, name in enumerate(shown)}
    for name in ids.keys() - {participants.me}:
        check_sizes(name, ids[name])
    ids[participants.me] = tuple(mine.ids)
    # A party that knows all sizes knows how many buckets there must be. A leader that gave each party another number
    # would learn more from the numbers of common ids.
    known = [count for counts in ids.values() for count in counts]
    wanted = settings.n_buckets(known)
    # The list of a party whose size nobody tells this one may be the longest there is.
    most = wanted if len(ids) == len(participants.order) else settings.n_buckets([*known, MOST_IDS])
    if not wanted <= opening.buckets <= most:
        raise unexpected(leader.peer, f"cut sets of these sizes into {wanted:,} buckets", f"{opening.buckets:,}")
    return Agreement(opening.salt, {leader.peer: opening.veil}, n_keys, opening.buckets, ids)


def differing_rules(me: str, mine: Sequence[str], peer: str, theirs: Sequence[str]) -> PlanError:
    """The error of two parties that do not read ids by the same rules."""
    there = ", ".join(theirs) + (" of another version" if theirs == mine else "")
    return PlanError(
        f"{me} and {peer} should read ids by the same rules, but {me} reads {', '.join(mine)} and {peer} "
        f"reads {printable(there[:200])}. Name the same keys under [align] at both, and install the same versions."
    )


def _check_terms(me: str, mine: AlignTerms, peer: str, theirs: AlignTerms) -> None:
    if theirs.run != mine.run:
        raise ProtocolError(
            f"{me} and {peer} should take part in the same run, but their plans have different hashes. Give both the "
            "same plan."
        )
    if theirs.rules != mine.rules:
        raise differing_rules(me, mine.keys, peer, theirs.keys)
    if len(theirs.ids) != len(mine.ids) or not all(0 <= n <= MOST_IDS for n in theirs.ids):
        raise unexpected(peer, "say how many ids it has for each key", "other numbers")
