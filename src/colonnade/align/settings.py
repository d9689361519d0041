"""Settings: what all parties of an alignment agree on beforehand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal, TypeAlias, get_args

from colonnade.align.buckets import n_buckets
from colonnade.align.identifiers import check_keys
from colonnade.errors import PlanError
from colonnade.parameters import Limit, check_parameters, choice, count, optional

Topology: TypeAlias = Literal["star", "ring"]
Reveal: TypeAlias = Literal["both", "one", "size"]
Join: TypeAlias = Literal["inner", "left"]
Duplicates: TypeAlias = Literal["error", "first", "all"]
Engine: TypeAlias = Literal["ecdh", "rr22"]

# Starting a side process costs as much as matching many ids, so its buckets are larger.
IDS_PER_BUCKET: Mapping[Engine, int] = {"ecdh": 1 << 17, "rr22": 1 << 20}

# A number that is told of each bucket says little about single ids if this many ids of every party are in it.
FEWEST_COUNTED = 1 << 14


@dataclass(frozen=True)
class Settings:
    """How rows are aligned; part of the public plan.

    Attributes:
        keys: How ids are read, one key after the other; by the type of the id column if None.
        topology: "star" compares the label party's ids with each other party's; "ring" compares all at once.
        reveal: Who learns which ids are common: all parties ("both"), the label party ("one"), or nobody, only how
            many there are ("size").
        join: Whether rows of the label party without a partner are left out ("inner") or kept ("left").
        duplicates: What to do if several rows of a party have one id: refuse them ("error"), use the first row, or
            combine "all" rows with all rows of the other parties. "all" shows every party how often each common id
            occurs at the others; with `join="left"`, how often each id of the label party does.
        engine: "ecdh" is built in; "rr22" needs the extra `psi-fast`.
        pad: Whether the number of ids is rounded up to a power of two before it is shown.
        ids_per_bucket: How many ids are matched at a time; if None, as many as suit the engine. A ring and
            `reveal="size"` tell a number about each bucket, so they use fewer buckets if a party would otherwise have
            less than 16,384 ids in each.

    >>> Settings(join="left").describe()["join"]
    'left'
    """

    keys: tuple[str, ...] | None = None
    topology: Topology = "star"
    reveal: Reveal = "both"
    join: Join = "inner"
    duplicates: Duplicates = "error"
    engine: Engine = "ecdh"
    pad: bool = False
    ids_per_bucket: int | None = None

    limits: ClassVar[Mapping[str, Limit]] = {
        "topology": choice(*get_args(Topology)),
        "reveal": choice(*get_args(Reveal)),
        "join": choice(*get_args(Join)),
        "duplicates": choice(*get_args(Duplicates)),
        "engine": choice(*get_args(Engine)),
        "ids_per_bucket": optional(count()),
    }

    def __post_init__(self) -> None:
        """Raise `PlanError` for values that do not exist or do not go together."""
        check_parameters(self, called="[align]")
        if self.keys is not None:
            check_keys(self.keys)
        n_keys = 0 if self.keys is None else len(self.keys)
        revealed, ring = f"reveal is {self.reveal!r}", "topology is 'ring'"
        for wrong, chosen, required, found in (
            (self.reveal != "both" and self.join == "left", "join = 'left'", "reveal = 'both'", revealed),
            (self.reveal != "both" and self.duplicates == "all", "duplicates = 'all'", "reveal = 'both'", revealed),
            (self.reveal != "both" and n_keys > 1, "more than one key", "reveal = 'both'", revealed),
            (self.topology == "ring" and self.join == "left", "join = 'left'", "topology = 'star'", ring),
            (self.topology == "ring" and self.duplicates == "all", "duplicates = 'all'", "topology = 'star'", ring),
            (self.topology == "ring" and self.engine == "rr22", "engine = 'rr22'", "topology = 'star'", ring),
            (self.reveal == "size" and self.engine == "rr22", "engine = 'rr22'", "reveal = 'both' or 'one'", revealed),
            (n_keys > 1 and self.duplicates == "all", "duplicates = 'all'", "one key", f"there are {n_keys} keys"),
        ):
            if wrong:
                raise PlanError(f"[align] {chosen} requires {required}, but {found}. Change one of the two.")

    def n_buckets(self, ids: Sequence[int]) -> int:
        """The number of buckets that sets of these sizes are cut into.

        >>> Settings(ids_per_bucket=1000).n_buckets([5000, 70]), Settings(reveal="size").n_buckets([10_000_000, 70])
        (5, 1)
        """
        n, fewest = n_buckets(max(ids), self.bucket_size), min(ids)
        if self.counts_by_bucket:
            # A size that was rounded up may stand for little more than its half.
            return max(1, min(n, (fewest // 2 if self.pad else fewest) // FEWEST_COUNTED))
        return n

    @property
    def counts_by_bucket(self) -> bool:
        """Whether a party is told how many ids are common in each bucket, but not which ones."""
        return self.topology == "ring" or self.reveal == "size"

    @property
    def bucket_size(self) -> int:
        """The number of ids that a bucket should have."""
        return self.ids_per_bucket or IDS_PER_BUCKET[self.engine]

    def describe(self) -> dict[str, Any]:
        """What all parties agree on, as plain data."""
        named = {each.name: getattr(self, each.name) for each in fields(Settings)}
        return named | {"keys": None if self.keys is None else list(self.keys)}
