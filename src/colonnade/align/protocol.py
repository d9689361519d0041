"""Align: the protocol by which parties find their common rows, and what runs on them afterwards."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from colonnade.align.bound import Said
from colonnade.align.buckets import MOST_BUCKETS
from colonnade.align.identifiers import Identifiers
from colonnade.align.limits import Limits
from colonnade.align.messages import Opening, Size, Terms
from colonnade.align.ring import Ring
from colonnade.align.rr22 import FastFollower, FastLeader, SideProcess
from colonnade.align.settings import Settings
from colonnade.align.shelf import Shelf
from colonnade.align.star import Found, StarFollower, StarLeader
from colonnade.align.state import PREFIX, Own, Settled, bucket_step, durable, hear_agreed
from colonnade.crypto.curve import make_key
from colonnade.errors import PlanError, ProtocolError
from colonnade.privacy.ledger import Event
from colonnade.runtime.alignment import Alignment
from colonnade.runtime.party import Party, Protocol
from colonnade.runtime.simulate import describe_protocol, own_copy
from colonnade.secret import Secret
from colonnade.text import printable
from colonnade.wire.channel import Channel

R = TypeVar("R")

MOST_IDS = 1 << 34
ORDER_STEP = "order of aligned rows"


@dataclass(frozen=True)
class Align:
    """The protocol by which parties find their common rows; a function of one party that returns its `Alignment`.

    Attributes:
        settings: What all parties agree on.
        columns: For each party, where it reads its keys: a column for each, several joined by `+`. Only the own entry
            is used; a party without one is matched by its id column.
        limits: What this party refuses.
        workers: How many processes compute; one per core if None.
        process: Where the side process of the engine rr22 finds what it needs.

    >>> from colonnade import Roles, Table, simulate
    >>> bank = Table.of({"id": ["Ann", "Bob", "Cyd"], "income": [1, 2, 3]})
    >>> shop = Table.of({"id": ["dan", "cyd ", "ann"], "spend": [4, 5, 6]})
    >>> align = Align(limits=Limits(fewest=1))
    >>> run = simulate(align, {"bank": bank, "shop": shop}, roles=Roles(label="bank", features=("shop",)))
    >>> sorted(run.results["shop"].take(shop).ids.to_pylist())
    ['ann', 'cyd ']
    """

    settings: Settings = field(default_factory=Settings)
    columns: Mapping[str, Sequence[str]] = field(default_factory=dict, hash=False)
    limits: Limits = field(default_factory=Limits)
    workers: int | None = None
    process: SideProcess = field(default_factory=SideProcess)

    aligns_rows: ClassVar[bool] = True

    def __call__(self, party: Party) -> Alignment:
        """Align this party's rows with the others'.

        Raises:
            PlanError: The parties read ids differently, or the roles do not fit the settings.
            DataError: Ids repeat and must not.
            PrivacyError: Somebody brings too few ids, or asks too often.
            ProtocolError: The others have another order of the common rows.
        """
        return _Alignment(self, party).run()

    def described(self) -> tuple[str, dict[str, Any]]:
        """Its name and public settings, as a plan holds them."""
        return "Align", self.settings.describe()


def align(party: Party) -> Alignment:
    """Align a party's rows with the others' by their id columns, with the settings that suit most."""
    return Align()(party)


align.aligns_rows = True  # type: ignore[attr-defined]


@dataclass(frozen=True)
class Aligned(Generic[R]):
    """A protocol that is run on rows which are aligned first.

    Attributes:
        align: How.
        then: What runs on the aligned rows.
        keep: Called with the alignment once all parties agree on it, to write it down.

    >>> from colonnade.models import SplitClassifier
    >>> Aligned(Align(), SplitClassifier(epochs=3).fit).described()[0]
    'SplitClassifier.fit'
    """

    align: Align
    then: Protocol[R]
    keep: Callable[[Alignment], None] = lambda alignment: None

    aligns_rows: ClassVar[bool] = True

    def __call__(self, party: Party) -> R:
        """Align the rows, then run the protocol on them."""
        alignment = self.align(party)
        self.keep(alignment)
        return self.then(party.aligned(alignment))

    def own_copy(self) -> Aligned[R]:
        """The same for one party, with nothing that it shares with others."""
        return Aligned(self.align, own_copy(self.then), self.keep)

    def described(self) -> tuple[str, dict[str, Any]]:
        """The name of what runs, with its settings and those of the alignment."""
        name, settings = describe_protocol(self.then)
        return name, {**settings, "align": self.align.settings.describe()}


class _Alignment:
    """One run of an alignment at one party."""

    def __init__(self, align: Align, party: Party) -> None:
        self.align, self.settings, self.limits = align, align.settings, align.limits.between_machines(party)
        directory = party.checkpoints.directory
        path = None if directory is None else directory / "said"
        # Drawn by the system, so that two runs of one seed count as two.
        self.run_name = party.once("name of the alignment", lambda: make_key().hex()[:16])
        self.said = Said(path, self.limits, party.name, self.run_name)
        lines = {name: line.heard_by(self.said.keep) for name, line in party.peers.items()}
        # Defences are the model's: they are not ready yet, and checkpoints would ask for their state.
        self.party = replace(party, peers=lines, defences=())
        holders = party.roles.holders
        if len(holders) < 2:
            raise PlanError(
                f"An alignment needs two parties with tables, but there is only {holders[0]}. Name another."
            )
        self.order = (holders[0], *holders[1:])
        self.leader = self.order[0]
        if self.settings.reveal == "size" and self.settings.topology == "star" and len(self.order) > 2:
            raise PlanError(
                f"In a star {self.leader} can count what it has in common with each other party, but not with all "
                f"{len(self.order) - 1} at once. Use topology = 'ring'."
            )

    @property
    def leads(self) -> bool:
        return self.party.name == self.leader

    @property
    def followers(self) -> tuple[Channel, ...]:
        """The leader's lines to the other parties with tables."""
        return tuple(self.party.peers[name] for name in self.order[1:])

    @property
    def bystanders(self) -> tuple[Channel, ...]:
        """The leader's lines to parties without tables."""
        return tuple(self.party.peers[name] for name in self.without_tables)

    @property
    def without_tables(self) -> tuple[str, ...]:
        """Who only goes along: an arbiter or a server."""
        return tuple(name for name in self.party.roles.parties if name not in self.order)

    def run(self) -> Alignment:
        if self.party.table is None:
            return self._stand_by()
        party, table = self.party, self.party.own_table
        identifiers = Identifiers.of(table, self.settings.keys, self.align.columns.get(party.name))
        known = np.zeros(len(table), bool)
        counted = [self._count(identifiers, key, known) for key in range(len(identifiers.keys))]
        ids = [n_ids for n_ids, _ in counted]
        self._check_sizes(party.name, ids)
        for peer in self._asking:
            self.limits.admit(party.name, peer, self.run_name)
        shown = [_padded(n) for n in ids] if self.settings.pad else ids
        with self._folder() as folder:
            if self.settings.engine == "rr22":
                self.align.process.find(folder)
            self._spend_sizes(shown)
            terms = Terms(party.plan.hash, identifiers.hash, list(identifiers.keys), shown)
            settled = self._open(terms) if self.leads else self._accept(terms)
            points = self._n_points(settled)
            own = Own(party, identifiers, settled, known, self.said, folder, self.align.workers, points)
            side = self._side(own)
            self._spend_outcome(settled)
            # The steps of buckets lie within this one, so that what they left is no longer needed when it is done.
            tree = durable(party, ORDER_STEP, lambda: _tree(self._settled(side, side.match())))
            own.close()
            party.checkpoints.forget_at_the_end(PREFIX)
        found = _found(tree)
        learned = self._learned(settled, found)
        extra = {name for key in range(len(identifiers.keys)) for name in identifiers.columns_of(key)}
        return Alignment(
            rows=found.rows,
            size=found.size,
            digest=found.digest,
            schedule=found.schedule,
            partners=found.partners,
            keys=tuple(sorted(extra - {table.id_name, table.label_name})),
            learned=learned,
            missing=int((~known).sum()),
            repeated=counted[0][1],
        )

    @property
    def _asking(self) -> tuple[str, ...]:
        """Whom this party compares ids with."""
        if self.settings.topology == "star" and not self.leads:
            return (self.leader,)
        return tuple(name for name in self.order if name != self.party.name)

    @property
    def _mark(self) -> str:
        """What tells this run of this party from others, in its ledger."""
        return self.party.random.child("align", "mark").key.hex()[:16]

    def _count(self, identifiers: Identifiers, key: int, known: npt.NDArray[np.bool_]) -> tuple[int, int]:
        """How many different ids there are under a key, and how many rows repeat one; marks rows that have an id."""
        table = self.party.own_table
        n_ids, repeated = identifiers.count(table, key, known)
        if repeated and self.settings.duplicates == "error":
            raise identifiers.repetition(table, key, repeated, self.party.name)
        if not n_ids and len(table) and self.limits.fewest > 0:
            # It would be refused as too small, but this says why.
            raise identifiers.absence(table, key, self.party.name)
        return n_ids, repeated

    def _open(self, mine: Terms) -> Settled:
        """Hear everybody's terms, and settle how it goes on."""
        party, name = self.party, self.party.name
        ids = {name: tuple(mine.ids)}
        for line in self.followers:
            terms = line.receive(Terms)
            self._check_terms(mine, terms, line.peer)
            ids[line.peer] = tuple(terms.ids)
        salt, veil = party.random.child("align", "salt").key, party.once("veil of the alignment", make_key)
        n = self.settings.n_buckets([count for counts in ids.values() for count in counts])
        if n > MOST_BUCKETS:
            raise PlanError(
                f"At most {MOST_BUCKETS:,} buckets can be matched, but this would take {n:,}. Raise ids_per_bucket "
                "under [align]."
            )
        settled = Settled(salt, veil, len(mine.ids), n, ids)
        everybody = self.settings.topology == "ring"
        for line in self.followers:
            known = self.order if everybody else (name,)
            shown = [count for each in known for count in ids[each]]
            line.send(Opening(salt, veil, settled.n_keys, n, list(known), shown))
        for line in self.bystanders:
            line.send(Opening(b"", b"", settled.n_keys, n, [], []))
        return settled

    def _accept(self, mine: Terms) -> Settled:
        """Tell the leader one's terms, and take what it settles."""
        line, name, n_keys = self.party.peers[self.leader], self.party.name, len(mine.ids)
        line.send(mine)
        opening = line.receive(Opening)
        known = self.order if self.settings.topology == "ring" else (self.leader,)
        fits = opening.parties == list(known) and len(opening.ids) == n_keys * len(known) and opening.keys == n_keys
        fits = fits and len(opening.salt) == len(opening.veil) == 32 and all(0 <= n <= MOST_IDS for n in opening.ids)
        if not fits or not 1 <= opening.buckets <= MOST_BUCKETS:
            raise ProtocolError(
                f"Expected {self.leader} to open the alignment of {', '.join(known)} by {n_keys} keys, got something "
                "else. Both must run the same version."
            )
        counts = {each: tuple(opening.ids[i * n_keys : (i + 1) * n_keys]) for i, each in enumerate(opening.parties)}
        for peer in counts.keys() - {name}:
            self._check_sizes(peer, counts[peer])
        counts[name] = tuple(mine.ids)
        # Who knows all sizes knows how many buckets there are; each tells a number of its own.
        wanted = self.settings.n_buckets([count for each in counts.values() for count in each])
        if len(counts) == len(self.order) and opening.buckets != wanted:
            raise ProtocolError(
                f"Expected {self.leader} to cut sets of these sizes into {wanted:,} buckets, got {opening.buckets:,}. "
                "Both must run the same version; if they do, it does not keep to the protocol."
            )
        return Settled(opening.salt, opening.veil, n_keys, opening.buckets, counts)

    def _check_terms(self, mine: Terms, theirs: Terms, peer: str) -> None:
        name = self.party.name
        if theirs.run != mine.run:
            raise ProtocolError(
                f"{name} and {peer} should take part in the same run, but their plans have different hashes. Give both "
                "the same plan."
            )
        if theirs.rules != mine.rules:
            there = (
                ", ".join(theirs.keys) if theirs.keys != mine.keys else f"{', '.join(theirs.keys)} of another version"
            )
            raise PlanError(
                f"{name} and {peer} should read ids by the same rules, but {name} reads {', '.join(mine.keys)} and "
                f"{peer} reads {printable(there[:200])}. Name the same keys under [align] at both."
            )
        if len(theirs.ids) != len(mine.ids) or not all(0 <= n <= MOST_IDS for n in theirs.ids):
            raise ProtocolError(f"Expected {peer} to say how many ids it has for each key, got something else.")
        self._check_sizes(peer, theirs.ids)

    def _check_sizes(self, whose: str, ids: Sequence[int]) -> None:
        me, limits = self.party.name, self.limits
        for n in ids:
            limits.check_size(me, whose, n, self.run_name, padded=self.settings.pad and whose != me)

    def _n_points(self, settled: Settled) -> int:
        """How many points this party multiplies: its own, once for each that it compares with, and those of these."""
        lines = len(self.order) - 1 if self.leads and self.settings.topology == "star" else 1
        own = lines * settled.total(self.party.name)
        if self.settings.engine == "rr22":
            return own  # here it is ids that are matched, not points
        return own + sum(settled.total(name) for name in settled.ids if name != self.party.name)

    def _side(self, own: Own) -> StarLeader | StarFollower | Ring:
        if self.settings.topology == "ring":
            return Ring(own, self.settings, self.order, self.bystanders)
        leader, place = self.party.peers.get(self.leader), self.order.index(self.party.name)
        if self.settings.engine == "rr22":
            if leader is None:
                return FastLeader(own, self.settings, self.followers, self.bystanders, self.align.process)
            return FastFollower(own, self.settings, leader, place, self.align.process)
        if leader is None:
            return StarLeader(own, self.settings, self.followers, self.bystanders)
        return StarFollower(own, self.settings, leader, place)

    def _settled(self, side: StarLeader | StarFollower | Ring, kept: Shelf) -> Found:
        """The common order; where it is not told to all, the size takes its place."""
        found = side.settle(kept)
        if self.settings.reveal == "both":
            return found
        told = self.settings.reveal == "size"
        if self.leads:
            for line in (*self.followers, *self.bystanders):
                line.send(Size((found.size or 0) if told else -1))
            return found
        size = self.party.peers[self.leader].receive(Size).size
        return Found(None, size if size >= 0 else None)

    def _stand_by(self) -> Alignment:
        """Take part without a table: nothing is compared, but the steps are the same everywhere."""
        leader = self.party.peers[self.leader]
        opening = leader.receive(Opening)

        def settle() -> Any:
            for key, bucket in Settled(b"", b"", opening.keys, opening.buckets, {}).rounds:
                durable(self.party, bucket_step(key, bucket), dict)
            if self.settings.reveal != "both":
                return _tree(Found(None, leader.receive(Size).size))
            whole, agreed = hear_agreed(leader)
            return _tree(Found(None, agreed.size, whole, agreed.schedule.hex()))

        found = _found(durable(self.party, ORDER_STEP, settle))
        size = found.size if found.size is not None and found.size >= 0 else None
        return Alignment(None, size, found.digest, found.schedule, learned=(self._learned_without_tables,))

    @contextmanager
    def _folder(self) -> Iterator[Path]:
        directory = self.party.checkpoints.directory
        if directory is not None:
            yield directory / "buckets"
            return
        with tempfile.TemporaryDirectory(prefix="colonnade-") as folder:
            yield Path(folder)

    def _spend_sizes(self, ids: list[int]) -> None:
        counts = " and ".join(f"{n:,}" for n in ids)
        rounded = ", rounded up to a power of two" if self.settings.pad else ""
        for peer in self._asking:
            self._spend(f"alignment: {peer} learns that {self.party.name} has {counts} ids{rounded}")
        for peer in (*self._beside, *self.without_tables):
            self._spend(f"alignment: {peer} learns {self._cut}")

    def _spend_outcome(self, settled: Settled) -> None:
        """Write down what the others will learn from the comparison."""
        settings, me = self.settings, self.party.name
        star, several = settings.topology == "star", settled.n_keys > 1
        in_each = settled.in_each_bucket
        for peer in self._asking:
            if settings.reveal == "both" or (settings.reveal == "one" and peer == self.leader):
                of_pair = star and (self._shows_pairs(settled) or peer == self.leader)
                common = f"{me} has" if of_pair else "all parties have"
                by_key = ", and by which key" if several else ""
                self._spend(f"alignment: {peer} learns which of its own ids {common}{by_key}")
                if of_pair and peer != self.leader and self._tells_whole(settled):
                    self._spend(f"alignment: {peer} learns which of its own ids all parties have")
            elif settings.reveal == "size":
                by_bucket = in_each if peer == self.leader else ""
                self._spend(f"alignment: {peer} learns how many ids are common{by_bucket}")
            elif not star and peer == self.order[-1]:
                self._spend(f"alignment: {peer} learns how many ids are common in each bucket")
            if not star and peer == self.leader and len(self.order) > 2:
                self._spend(f"alignment: {peer} learns how many ids each group of parties has in common{in_each}")
            if settings.join == "left" and self.leads:
                self._spend(f"alignment: {peer} learns how many rows {me} keeps")
        if settings.reveal == "both" and settings.join == "inner":
            for peer in self._beside:
                self._spend(f"alignment: {peer} learns which of its own ids all parties have")
        if settings.reveal != "one":
            for peer in self.without_tables:
                self._spend(f"alignment: {peer} learns {self._size_told}")
        if settings.duplicates == "all":
            # The leader tells every party's numbers to all.
            for peer in self.order:
                if peer != me:
                    self._spend(f"alignment: {peer} learns how many rows {me} has for each {self._counted_ids}")

    def _shows_pairs(self, settled: Settled) -> bool:
        """Whether a star shows each other party what it has in common with the leader alone."""
        return self.settings.engine == "rr22" or self.settings.join == "left" or settled.n_keys > 1

    def _tells_whole(self, settled: Settled) -> bool:
        """Whether a star that shows pairs also tells the others which of their ids all parties have."""
        return self._shows_pairs(settled) and self.settings.join == "inner" and len(self.order) > 2

    @property
    def _beside(self) -> tuple[str, ...]:
        """Whom this party compares no ids with, though both bring some: the others at the end of a ray."""
        return tuple(name for name in self.order if name != self.party.name and name not in self._asking)

    @property
    def _cut(self) -> str:
        """What the number of buckets tells those who do not know how long all lists are."""
        if self.settings.counts_by_bucket:
            return "into how many buckets lists are cut, hence about how long the longest or the shortest is"
        return f"into how many buckets of {self.settings.bucket_size:,} ids the longest list is cut"

    @property
    def _size_told(self) -> str:
        return "how many ids are common" if self.settings.reveal == "size" else "how many rows are aligned"

    @property
    def _learned_without_tables(self) -> str:
        told = "" if self.settings.reveal == "one" else f"{self._size_told}, and "
        return f"{' and '.join(self.without_tables)} learned {told}{self._cut}."

    @property
    def _counted_ids(self) -> str:
        """Which ids all parties learn the numbers of rows of, where repeated rows are combined."""
        return f"id that {self.leader} keeps" if self.settings.join == "left" else "common id"

    def _spend(self, note: str) -> None:
        """Write down, before it happens, what another one learns of this party."""
        self.party.ledger.spend(Event.not_private(Secret.IDS, note, unit="id"), identity=bytes.fromhex(self._mark))

    def _learned(self, settled: Settled, found: Found) -> tuple[str, ...]:
        """What each party learned, in sentences, as far as this party knows."""
        reveal, ring = self.settings.reveal, self.settings.topology == "ring"
        sizes = ", ".join(f"{name} {' and '.join(f'{n:,}' for n in n_ids)}" for name, n_ids in settled.ids.items())
        shown = "rounded up to a power of two, " if self.settings.pad else ""
        said = [f"Told to those who compare: how many ids there are ({shown}{sizes})."]
        by_key = ", and by which key" if settled.n_keys > 1 else ""
        rows = "" if found.size is None else f" ({found.size:,} rows)"
        if reveal == "size":
            said.append("Every party learned how many ids are common, and nobody which.")
            if settled.n_buckets > 1:
                said.append(f"{self.leader} learned besides how many are{settled.in_each_bucket}.")
        elif reveal == "one":
            said.append(f"{self.leader} learned which of its own ids are common to all{rows}.")
        elif ring or not self._shows_pairs(settled):
            said.append(f"Every party learned which of its own ids are common to all{rows}{by_key}.")
        else:
            said.append(f"Every other party learned which of its own ids {self.leader} has{by_key}.")
            said.append(
                f"Every party learned which of its own ids are common to all{rows}."
                if self._tells_whole(settled)
                else f"{self.leader} learned which of its own ids are common to all{by_key}."
            )
        if ring and reveal == "one":
            said.append(f"{self.order[-1]} learned how many ids are common in each bucket.")
        if len(self.order) > 2:
            said.append(
                f"{self.leader} learned besides how many ids each group of parties has in common"
                f"{settled.in_each_bucket}, but not which."
                if ring
                else f"{self.leader} learned besides which of its ids each other party has{by_key}."
            )
            if not ring:
                said.append(f"Every other party learned {self._cut}.")
        if self.settings.join == "left":
            said.append(f"Every other party learned how many rows {self.leader} keeps.")
        if self.without_tables:
            said.append(self._learned_without_tables)
        if self.settings.engine == "rr22":
            said.append("The side processes talked over a line of their own, which is not in the recording.")
        if self.settings.duplicates == "all":
            said.append(f"Every party learned how many rows each other party has for each {self._counted_ids}.")
        return tuple(said)


def _padded(n: int) -> int:
    return 1 << max(0, n - 1).bit_length() if n else 0


def _tree(found: Found) -> Any:
    return {**vars(found), "partners": dict(found.partners)}


def _found(tree: Any) -> Found:
    partners = {name: np.asarray(mask, bool) for name, mask in tree["partners"].items()}
    return Found(**{**tree, "partners": partners})
