"""State: what one party holds during an alignment, whatever the topology: its ids, its secrets, its durable steps."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from colonnade.align.buckets import Bucket, BucketResults, Buckets, DigestArray, PaddedBucket
from colonnade.align.identifiers import Identifiers
from colonnade.align.limits import Limits
from colonnade.align.matching import encrypted
from colonnade.align.messages import VALUE_BYTES, MaskedIds, receive_list
from colonnade.align.opening import Agreement, Participants
from colonnade.align.settings import Settings
from colonnade.crypto.curve import Points, hash_to_curve, make_key, multiply
from colonnade.privacy.randomness import Randomness
from colonnade.runtime.party import Party
from colonnade.runtime.workers import Crew, ThisProcess, Workers, n_cores
from colonnade.storage import Tree, explained
from colonnade.wire.channel import Channel

# The names of secrets and of steps of buckets begin with this word.
PREFIX = "align"

UNDER = ("masked with a secret of this run",)

CHUNK = 1 << 13
"""How many points a worker multiplies at a time."""
FEW_POINTS = 1 << 15
"""For fewer points no process is started."""


class DurableStep:
    """A piece of work whose result is stored when it is done; a resumed run skips the work and reads the result.

    Every party of the run goes through the same steps, each with its own work.

    Attributes:
        result: What the work leaves.
    """

    def __init__(self, party: Party, name: str) -> None:
        self.result: Tree = None
        self._party, self._name = party, name

    def __iter__(self) -> Iterator[int]:
        """Yield once if the work is still to be done."""
        # These steps are not shown as progress: the points that are multiplied are. The steps refer to this object, so
        # this object must not refer to them: a cycle would keep the recording of an abandoned attempt open, and what
        # it has not flushed yet would be written into the recording of the next attempt.
        return iter(replace(self._party, watcher=None).steps(1, self, name=self._name))

    def state(self) -> Tree:
        return self.result

    def restore(self, tree: Tree) -> None:
        self.result = tree


@dataclass
class AlignState:
    """What a party holds during an alignment.

    Attributes:
        known: Which of its rows have an id under any key.
        folder: Where buckets are kept that do not fit into memory; nothing else is in it.
        limits: What this party refuses.
        run: The name of this run in the log of alignments.
        accept: Called with how many rows are common, before this party agrees to them.
    """

    party: Party
    settings: Settings
    participants: Participants
    agreement: Agreement
    identifiers: Identifiers
    known: npt.NDArray[np.bool_]
    folder: Path
    n_workers: int | None
    limits: Limits
    run: str
    accept: Callable[[int], None] = lambda n_common: None
    _buckets: tuple[int, Buckets] | None = None
    _done: int = 0

    def __post_init__(self) -> None:
        agreement = self.agreement
        self.n_points = self._count_points()
        self.workers = workers_for(self.n_points, self.n_workers, self.party)
        # By one key a person is in the same bucket everywhere, so the order goes bucket by bucket and one bucket at a
        # time is in memory. By several keys a person may be in any bucket. If rows without a partner are kept, the
        # length of a bucket's stretch would tell how many ids are in the bucket.
        whole = agreement.n_keys > 1 or self.settings.join == "left" or bool(self.settings.by_party)
        in_memory = agreement.n_keys * agreement.n_buckets == 1
        self.results = BucketResults(self.folder / "left", in_memory=in_memory, whole=whole)

    def _count_points(self) -> int:
        """How many points this party multiplies: its own once per list that it sends, and those of its peers."""
        names = self.participants
        n_lists = len(names.compared) if names.star and not self.settings.by_party else 1
        own = n_lists * self.agreement.total(names.me)
        if self.settings.engine == "rr22":
            return own  # ids are matched, not points
        return own + sum(self.agreement.total(name) for name in self.agreement.ids if name != names.me)

    @property
    def leader(self) -> Channel:
        """The line to the leader."""
        return self.party.peers[self.participants.leader]

    @property
    def others(self) -> tuple[Channel, ...]:
        """The lines to the other parties with tables."""
        return tuple(self.party.peers[name] for name in self.participants.others)

    def compared(self, key: int) -> tuple[Channel, ...]:
        """The lines to the parties that the leader compares ids with by a key."""
        return tuple(line for line in self.others if self.settings.matches(line.peer, key))

    @property
    def bystanders(self) -> tuple[Channel, ...]:
        """The lines to parties without tables."""
        return tuple(self.party.peers[name] for name in self.participants.without_tables)

    def rounds(self) -> Iterator[tuple[int, int, DurableStep]]:
        """Yield every key and bucket with the step that matches it; keep in `results` what each step leaves."""
        for key, number in self.agreement.rounds:
            before = self._done
            step = DurableStep(self.party, bucket_step(key, number))
            yield key, number, step
            self.results.put(step.result)
            if self._done == before:
                # The work was done before the run was resumed.
                self.progress(self.n_points // (self.agreement.n_keys * self.agreement.n_buckets))

    def bucket(self, key: int, number: int) -> Bucket:
        """This party's ids of a bucket."""
        if self._buckets is None or self._buckets[0] != key:
            if self._buckets is not None:
                self._buckets[1].delete()  # an earlier key is done, and its files only take space
            agreement, table = self.agreement, self.party.own_table
            buckets = Buckets(self.identifiers, table, key, agreement.salt, n=agreement.n_buckets, folder=self.folder)
            self._buckets = key, buckets
        return self._buckets[1][number]

    def secret(self, whom: str) -> Randomness:
        """The source of this run's secrets towards a party, drawn from the system once and stored before its use."""
        return Randomness.from_key(self.party.once(f"{PREFIX} {whom}", make_key), source="system")

    def meet(self, peer: str, key: int, number: int) -> None:
        """Note that side processes meet over a bucket, and say so if they met over the bucket before a crash."""
        first: list[bool] = []
        self.party.once(f"{PREFIX} meeting {peer} {key} {number}", lambda: first.append(True))
        if not first:
            self.limits.admit(self.party.name, peer, f"{self.run} again {make_key().hex()[:16]}")

    def masking_key(self, whom: str, key: int) -> bytes:
        """The secret that points of a key are multiplied by, towards a party."""
        return self.secret(whom).child("key", key).key

    def padded(self, bucket: Bucket, key: int, number: int, whom: str) -> PaddedBucket:
        """A bucket as it goes out to a party."""
        slots = self.agreement.slots(self.party.name, key)
        return PaddedBucket.of(bucket, slots, self.secret(whom).child("list", key, number))

    def send_masked(self, line: Channel, number: int, masked: Iterator[DigestArray]) -> None:
        """Send the points of a bucket, which `workers` multiplies, as they come."""
        begin = 0
        for points in masked:
            line.send(MaskedIds(number, begin, points), under=UNDER)
            begin += len(points)
            self.progress(len(points))

    def receive_masked(self, line: Channel, number: int, total: int, masking: bytes) -> Iterator[DigestArray]:
        """Yield the values of a masked list that comes, multiplied by this party's secret and cut."""
        for points in self.multiply(receive_list(line, MaskedIds, number, total), masking):
            self.progress(len(points))
            yield points[:, :VALUE_BYTES]

    def mask(self, padded: PaddedBucket, masking: bytes) -> Iterator[DigestArray]:
        """Yield the points of a list, multiplied by this party's secret."""
        return self.workers.map(masked, padded.chunks(CHUNK), masking)

    def multiply(self, points: Iterable[Points], masking: bytes) -> Iterator[Points]:
        """Yield points, chunk by chunk, multiplied by this party's secret."""
        return self.workers.map(multiplied, points, masking)

    def tags(self, digests: DigestArray) -> npt.NDArray[np.uint64]:
        """What the common order is sorted by: digests encrypted under a secret, whatever the order of the file."""
        tagged = encrypted(digests, self.party.random.child("align", "order").key)
        return tagged.view("<u8")[:, 0].astype(np.uint64)

    def check_common(self, peer: str, n_common: int, *, told: bool) -> None:
        """Raise `PrivacyError` if too few or too many ids are common; `told` says whether the peer may know which."""
        self.limits.check_common(self.party.name, peer, n_common, self.run, told=told)

    def progress(self, n: int) -> None:
        """Report n more multiplied points."""
        self._done += n
        if self.party.watcher is not None:
            self.party.watcher(self.party.name, "align", self._done, self.n_points, {})

    def close(self) -> None:
        """Delete all files of buckets, those of an earlier crash included."""
        if self._done < self.n_points:
            self.progress(self.n_points - self._done)
        if self.workers is not self.party.workers:
            self.workers.end()
        with explained("delete the buckets of an alignment"):
            if self.folder.exists():
                shutil.rmtree(self.folder)


def bucket_step(key: int, bucket: int) -> str:
    """The name of the step that matches a bucket."""
    return f"{PREFIX} key {key} bucket {bucket}"


def workers_for(n_points: int, n: int | None, party: Party) -> Workers:
    """What multiplies points: the party's own workers, or processes that end with the alignment.

    Args:
        n_points: How many points there are to multiply.
        n: How many processes; one per core if None. One works in this process.
        party: Whose points they are.
    """
    if party.workers is not None:
        return party.workers
    n = 1 if n_points < FEW_POINTS else n or n_cores()
    return ThisProcess() if n == 1 else Crew(n=n)


def masked(digests: Points, key: bytes) -> Points:
    """The ids of these digests, hashed to the curve and multiplied by a key."""
    return multiply(key, hash_to_curve(digests))


def multiplied(points: Points, key: bytes) -> Points:
    """These points multiplied by a key."""
    return multiply(key, points)
