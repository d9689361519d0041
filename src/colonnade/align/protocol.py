"""Align: the protocol by which parties find their common rows, and what runs on these rows afterwards.

`Align.__call__` is the whole of it: count the ids, open (opening.py), match and agree on the order (star.py, ring.py),
and say who learned what (learned.py).
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Generic, Self, TypeVar

import numpy as np
import numpy.typing as npt

from colonnade.align import ring, star
from colonnade.align.buckets import MOST_BUCKETS
from colonnade.align.identifiers import Identifiers, enumerable_warning
from colonnade.align.learned import Learned
from colonnade.align.limits import Limits
from colonnade.align.messages import AlignOpening, AlignTerms, unexpected
from colonnade.align.opening import MOST_IDS, Agreement, Participants, open_as_follower, open_as_leader
from colonnade.align.order import Match, hear_outcome
from colonnade.align.rr22 import SideProcess
from colonnade.align.settings import KeyColumns, Settings, check_features
from colonnade.align.state import AlignState, DurableStep, bucket_step
from colonnade.crypto.curve import make_key
from colonnade.privacy.ledger import Event
from colonnade.runtime.alignment import Alignment
from colonnade.runtime.party import Party
from colonnade.runtime.protocol import Protocol, describe_protocol, own_copy
from colonnade.secret import Secret
from colonnade.tables.table import Table

R = TypeVar("R")

ORDER_STEP = "order of aligned rows"

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Align:
    """The protocol by which parties find their common rows; a function of one party that returns its `Alignment`.

    Attributes:
        settings: What all parties agree on.
        columns: For each party the columns of its keys, one per key, several joined by `+`. A party uses its own entry
            only; a party without an entry is matched by its id column. If each feature party has a key of its own, the
            label party's entry is a mapping from feature parties to columns.
        features: For each party the columns of its keys that are features too; others are left out of the aligned
            table. A party uses its own entry only.
        limits: What this party refuses.
        workers: How many processes compute; one per core if None.
        process: Where the side process of the engine rr22 finds what it needs.
        accept: Called with how many of this party's rows are common, where all parties learn which, before this party
            agrees to them. It refuses by raising an error; then no party has an alignment.

    >>> from colonnade import Roles, Table, simulate
    >>> bank = Table.of({"id": ["Ann", "Bob", "Cyd"], "income": [1, 2, 3]})
    >>> shop = Table.of({"id": ["dan", "cyd ", "ann"], "spend": [4, 5, 6]})
    >>> align = Align(limits=Limits(fewest=1))
    >>> run = simulate(align, {"bank": bank, "shop": shop}, roles=Roles(label="bank", features=("shop",)))
    >>> sorted(run.results["shop"].take(shop).ids.to_pylist())
    ['ann', 'cyd ']
    """

    settings: Settings = field(default_factory=Settings)
    columns: Mapping[str, KeyColumns] = field(default_factory=dict, hash=False)
    limits: Limits = field(default_factory=Limits)
    workers: int | None = None
    process: SideProcess = field(default_factory=SideProcess)
    features: Mapping[str, Sequence[str]] = field(default_factory=dict, hash=False)
    accept: Callable[[int], None] = lambda n_common: None

    aligns_rows: ClassVar[bool] = True
    then: ClassVar[None] = None

    def __post_init__(self) -> None:
        """Raise `PlanError` for features that are no columns of keys."""
        check_features(self.features, self.columns)

    def __call__(self, party: Party) -> Alignment:
        """Align this party's rows with the others'.

        Raises:
            PlanError: The parties read ids differently, or the roles do not fit the settings.
            DataError: Ids repeat and must not.
            PrivacyError: A party brings too few ids or too many, too few or too many are common, or a party asks too
                often.
            ProtocolError: The others have another order of the common rows.
        """
        settings, me, folder = self.settings, party.name, party.checkpoints.directory
        limits, looks_up = self.limits.between_machines(party), self.limits.asked_for == "lookup"
        if looks_up:
            # The label party's list has a few people, of whom perhaps nobody is known.
            limits, settings = replace(limits, fewest_common=0), _counting_each(settings)
        names = Participants.of(party.roles, settings, me)
        learned = Learned(names, settings)
        # The system draws the name, so that two runs of one seed count as two.
        run = party.once("name of the alignment", lambda: make_key().hex()[:16])
        # Defences belong to the model. They are not ready yet, and checkpoints would ask for their state.
        party = replace(party, defences=())
        if party.table is None:
            with limits.logging_changes(me, run):
                return _stand_by(party, settings, learned)

        def check_sizes(whose: str, ids: Sequence[int]) -> None:
            follower = whose if names.leads else me
            for key, n in enumerate(ids):
                if whose != me and not settings.matches(follower, key):
                    # A number that no limit looks at would decide how many buckets all parties have.
                    if n:
                        raise unexpected(whose, "count ids under its pair's own key only", f"{n:,} under another key")
                elif key in identifiers.held:
                    if not looks_up or whose != names.leader:
                        limits.check_size(me, whose, n, run, padded=settings.pad and whose != me)
                    if whose != me and not (looks_up and names.leads):
                        limits.check_most(me, whose, n, n_own[key], run)

        table = party.table
        settings.check_table(table, me, leads=names.leads)
        identifiers = settings.identifiers(table, self.columns.get(me), me, leads=names.leads)
        known = np.zeros(len(table), bool)
        n_own, repeated = self._count(party, identifiers, known, may_repeat=bool(settings.by_party) and names.leads)
        check_sizes(me, n_own)
        if party.session is not None:
            for key in identifiers.enumerable:
                _log.warning("%s", enumerable_warning(me, key))
        # Who answers lookups decides how many; who asks has nothing to count.
        counted = () if looks_up and names.leads else (names.leader,) if looks_up else names.compared
        for peer in counted:
            limits.admit(me, peer, run, counts=False)
        n_ids = [_padded(n) for n in n_own] if settings.pad else n_own
        with limits.logging_changes(me, run), _bucket_folder(folder) as buckets:
            process = self.process if settings.engine == "rr22" else None
            if process is not None:
                process.find(buckets)
            _spend(party, learned.from_sizes(n_ids))
            terms = AlignTerms(party.plan.hash, identifiers.hash, identifiers.rules, n_ids)
            opened = open_as_leader if names.leads else open_as_follower
            agreement = opened(party, names, settings, terms, check_sizes)
            # Only now: until here no id has crossed, and what was refused should cost nothing.
            for peer in counted:
                # Different people may have ids under different keys. A list of nobody asks for sizes, and counts too.
                limits.admit(me, peer, run, max(1, sum(agreement.ids[peer])) if looks_up else 1)
            _spend(party, learned.from_comparison(agreement))
            state = AlignState(
                party, settings, names, agreement, identifiers, known, buckets, self.workers, limits, run, self.accept
            )
            # The steps of buckets lie within this step, so their results are no longer needed when it is done.
            step = DurableStep(party, ORDER_STEP)
            for _ in step:
                if not names.star:
                    step.result = ring.go_round(state).tree()
                elif names.leads:
                    step.result = star.lead(state, process).tree()
                else:
                    step.result = star.follow(state, process).tree()
            state.close()
        match = Match.of(step.result)
        return Alignment(
            **vars(match),
            keys=self._dropped(table, identifiers, me),
            learned=tuple(learned.by_all(agreement, match.size)),
            missing=int((~known).sum()),
            repeated=repeated,
        )

    def _count(
        self, party: Party, identifiers: Identifiers, known: npt.NDArray[np.bool_], *, may_repeat: bool
    ) -> tuple[list[int], int]:
        """How many different ids there are under each key, and how many rows repeat one under the first key.

        Marks in `known` the rows that have an id. A party that looks its rows up may repeat an id.
        """
        table, counted = party.own_table, []
        for key in range(len(identifiers.keys)):
            n_ids, repeated = identifiers.count(table, key, known)
            if repeated and self.settings.duplicates == "error" and not may_repeat:
                raise identifiers.repetition(table, key, repeated, party.name)
            if not n_ids and len(table) and self.limits.fewest > 0 and key in identifiers.held:
                # The set would be refused as too small, but this error says why it is.
                raise identifiers.absence(table, key, party.name)
            counted.append((n_ids, repeated))
        return [n_ids for n_ids, _ in counted], 0 if may_repeat else counted[0][1]

    def _dropped(self, table: Table, identifiers: Identifiers, me: str) -> tuple[str, ...]:
        """The columns of keys that are no features."""
        columns = {name for key in identifiers.held for name in identifiers.columns_of(key)}
        return tuple(sorted(columns - {*self.features.get(me, ()), table.id_name, table.label_name}))

    def own_copy(self) -> Self:
        """This alignment itself: it holds settings only."""
        return self

    def described(self) -> tuple[str, dict[str, Any]]:
        """Its name and public settings, as a plan holds them."""
        return "Align", self.settings.describe()


@dataclass(frozen=True)
class Aligned(Generic[R]):
    """A protocol that runs on rows which are aligned first.

    Attributes:
        align: How rows are aligned.
        then: The protocol that runs on the aligned rows.
        keep: Called with the alignment once all parties agree on it, to store it.

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
        """A copy for one party, which shares nothing with the copies of others."""
        return Aligned(self.align, own_copy(self.then), self.keep)

    def described(self) -> tuple[str, dict[str, Any]]:
        """The name of what runs, with its settings and those of the alignment."""
        name, settings = describe_protocol(self.then)
        return name, {**settings, "align": self.align.settings.describe()}


def _stand_by(party: Party, settings: Settings, learned: Learned) -> Alignment:
    """Take part without a table: compare nothing, but go through the same steps as all others."""
    leader = party.peers[learned.names.leader]
    n_keys = 1 if settings.rules is None else len(settings.rules)
    opening = leader.receive(AlignOpening, fields={"keys": n_keys}, within={"buckets": (1, MOST_BUCKETS)})
    step = DurableStep(party, ORDER_STEP)
    for _ in step:
        for key, bucket in Agreement(b"", {}, opening.keys, opening.buckets, {}).rounds:
            for _ in DurableStep(party, bucket_step(key, bucket)):
                pass
        step.result = hear_outcome(leader, settings.reveal).tree()
    return Alignment(**vars(Match.of(step.result)), learned=tuple(learned.by_bystanders()))


def _spend(party: Party, notes: Iterator[str]) -> None:
    """Enter in the ledger, before it happens, what others learn about this party."""
    mark = party.random.child("align", "mark").key[:8]
    for note in notes:
        party.ledger.spend(Event.not_private(Secret.IDS, f"alignment: {note}", unit="id"), identity=mark)


@contextmanager
def _bucket_folder(directory: Path | None) -> Iterator[Path]:
    """The folder of buckets: within that of the run, or a temporary one."""
    if directory is not None:
        yield directory / "buckets"
        return
    with tempfile.TemporaryDirectory(prefix="colonnade-") as folder:
        yield Path(folder)


def _counting_each(settings: Settings) -> Settings:
    """Settings under which a list has as many ids as it is counted for: several buckets, and rr22, take more."""
    return replace(settings, engine="ecdh", ids_per_bucket=MOST_IDS)


def _padded(n: int) -> int:
    return 1 << max(0, n - 1).bit_length() if n else 0
