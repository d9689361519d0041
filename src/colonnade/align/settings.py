"""Settings: what all parties of an alignment agree on beforehand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeAlias, get_args

from colonnade.align.buckets import Duplicates, n_buckets
from colonnade.align.identifiers import check_keys
from colonnade.errors import PlanError
from colonnade.text import nearest

Topology: TypeAlias = Literal["star", "ring"]
Reveal: TypeAlias = Literal["both", "one", "size"]
Join: TypeAlias = Literal["inner", "left"]
Engine: TypeAlias = Literal["ecdh", "rr22"]

# A side process takes as long to start as it needs for many ids.
IDS_PER_BUCKET: Mapping[Engine, int] = {"ecdh": 1 << 17, "rr22": 1 << 20}

# Where only numbers are told, that of a bucket says something about the few ids in it.
FEWEST_COUNTED = 1 << 14

_CHOICES = {"topology": Topology, "reveal": Reveal, "join": Join, "duplicates": Duplicates, "engine": Engine}


@dataclass(frozen=True)
class Settings:
    """How rows are aligned; part of the public plan.

    Attributes:
        keys: How ids are read, one key after the other; by the type of the id column if None.
        topology: "star" compares the label party's ids with each other party's; "ring" compares all at once.
        reveal: Who learns which ids are common: all parties ("both"), the label party ("one"), or nobody, only how
            many there are ("size").
        join: Whether rows of the label party without a partner are left out ("inner") or kept ("left").
        duplicates: What to do where several rows of a party have one id: refuse, use the first, or combine all of them
            with all of the other parties'. The last shows every party how often each common id occurs at the others;
            with `join="left"` each id of the label party.
        engine: "ecdh" is built in; "rr22" needs the extra `psi-fast`.
        pad: Whether the number of ids is rounded up to a power of two before it is shown.
        ids_per_bucket: How many ids are matched at a time; if None, as many as suit the engine. In a ring, and with
            `reveal="size"`, there are never so many buckets that a party has less than 16,384 ids in each, for a number
            is told of every one.

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

    def __post_init__(self) -> None:
        """Refuse what does not go together."""
        for name, choices in _CHOICES.items():
            value, allowed = getattr(self, name), get_args(choices)
            if value not in allowed:
                raise PlanError(
                    f"[align] {name} should be one of {', '.join(map(repr, allowed))}, but is {value!r}."
                    f"{nearest(str(value), allowed)} Choose one of them."
                )
        if self.keys is not None:
            check_keys(self.keys)
        if self.ids_per_bucket is not None and self.ids_per_bucket < 1:
            raise PlanError(f"[align] ids_per_bucket should be at least 1, but is {self.ids_per_bucket}. Raise it.")
        several = self.keys is not None and len(self.keys) > 1
        for wrong, what, instead in (
            (self.reveal != "both" and self.join == "left", "join = 'left'", "reveal = 'both'"),
            (self.reveal != "both" and self.duplicates == "all", "duplicates = 'all'", "reveal = 'both'"),
            (self.reveal != "both" and several, "several keys", "reveal = 'both'"),
            (self.topology == "ring" and self.join == "left", "join = 'left'", "topology = 'star'"),
            (self.topology == "ring" and self.duplicates == "all", "duplicates = 'all'", "topology = 'star'"),
            (several and self.duplicates == "all", "duplicates = 'all'", "one key"),
            (self.engine == "rr22" and self.topology == "ring", "engine = 'rr22'", "topology = 'star'"),
            (self.engine == "rr22" and self.reveal == "size", "engine = 'rr22'", "reveal = 'both' or 'one'"),
        ):
            if wrong:
                raise PlanError(f"[align] {what} goes with {instead} only, but this plan has another one. Change one.")

    def n_buckets(self, ids: Sequence[int]) -> int:
        """Into how many buckets sets of these sizes are cut.

        >>> Settings(ids_per_bucket=1000).n_buckets([5000, 70]), Settings(reveal="size").n_buckets([10_000_000, 70])
        (5, 1)
        """
        n, fewest = n_buckets(max(ids), self.bucket_size), min(ids)
        if self.counts_by_bucket:
            # A number that was rounded up stands for any above its half.
            return max(1, min(n, (fewest // 2 if self.pad else fewest) // FEWEST_COUNTED))
        return n

    @property
    def counts_by_bucket(self) -> bool:
        """Whether somebody is told how many ids are common in each bucket, but not which."""
        return self.topology == "ring" or self.reveal == "size"

    @property
    def bucket_size(self) -> int:
        """How many ids a bucket is meant to have."""
        return self.ids_per_bucket or IDS_PER_BUCKET[self.engine]

    def describe(self) -> dict[str, Any]:
        """The settings as plain data."""
        return asdict(self) | {"keys": None if self.keys is None else list(self.keys)}
