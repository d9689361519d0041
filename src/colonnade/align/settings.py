"""Settings: what all parties of an alignment agree on beforehand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Literal, TypeAlias, get_args

from colonnade.align.buckets import n_buckets
from colonnade.align.identifiers import Identifiers, check_keys
from colonnade.errors import DataError, PlanError
from colonnade.parameters import Limit, check_parameters, choice, count, optional
from colonnade.roles import Lines, Roles, star
from colonnade.tables.table import Table
from colonnade.text import nearest

Topology: TypeAlias = Literal["star", "ring"]
Reveal: TypeAlias = Literal["both", "one", "size"]
Join: TypeAlias = Literal["inner", "left"]
Duplicates: TypeAlias = Literal["error", "first", "all"]
KeyColumns: TypeAlias = Sequence[str] | Mapping[str, str]
Engine: TypeAlias = Literal["ecdh", "rr22"]

# Starting a side process costs as much as matching many ids, so its buckets are larger.
IDS_PER_BUCKET: Mapping[Engine, int] = {"ecdh": 1 << 17, "rr22": 1 << 20}

# A number that is told of each bucket says little about single ids if this many ids of every party are in it.
FEWEST_COUNTED = 1 << 14


@dataclass(frozen=True)
class Settings:
    """How rows are aligned; part of the public plan.

    Attributes:
        keys: How ids are read, one key after the other; by the type of the id column if None. A mapping gives each
            feature party a key of its own, by which the label party looks its rows up: flights have an aircraft by
            tail number and weather by airport and hour. Rows of the label party may then repeat an id; a feature party
            has one row for each of its ids, and learns in which rows each of its ids stands.
        topology: "star" compares the label party's ids with each other party's; "ring" compares all at once.
        reveal: Who learns which ids are common: all parties ("both"), the label party ("one"), or nobody, only how
            many there are ("size").
        join: Whether rows of the label party without a partner are left out ("inner") or kept ("left").
        duplicates: What to do if several rows of a party, with a key for each feature party of a feature party, have
            one id: refuse them ("error"), use the first row, or
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

    keys: tuple[str, ...] | Mapping[str, str] | None = field(default=None, hash=False)
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
        if self.rules is not None:
            check_keys(self.rules)
        n_keys = 0 if self.rules is None or self.by_party else len(self.rules)
        own, several = bool(self.by_party), "a key for each feature party"
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
            (own and self.reveal != "both", several, "reveal = 'both'", revealed),
            (own and self.topology == "ring", several, "topology = 'star'", ring),
            (own and self.engine == "rr22", several, "engine = 'ecdh'", "engine is 'rr22'"),
            (own and self.duplicates == "all", several, "duplicates = 'error' or 'first'", "duplicates is 'all'"),
        ):
            if wrong:
                raise PlanError(f"[align] {chosen} requires {required}, but {found}. Change one of the two.")

    @property
    def by_party(self) -> tuple[str, ...]:
        """The feature parties in the order of their keys, if each has a key of its own.

        >>> Settings(keys={"weather": "text+integer", "fleet": "text"}).by_party
        ('fleet', 'weather')
        """
        return tuple(sorted(self.keys)) if isinstance(self.keys, Mapping) else ()

    @property
    def rules(self) -> tuple[str, ...] | None:
        """All keys in their order; None if they follow from the type of ids."""
        return tuple(self.keys[name] for name in self.by_party) if isinstance(self.keys, Mapping) else self.keys

    @property
    def several_keys(self) -> bool:
        """Whether every party is matched by one key after the other."""
        return not self.by_party and self.rules is not None and len(self.rules) > 1

    def matches(self, feature_party: str, key: int) -> bool:
        """Whether a feature party is matched by a key."""
        return not self.by_party or self.by_party[key] == feature_party

    def check_parties(self, order: Sequence[str]) -> None:
        """Raise `PlanError` unless each feature party has a key, if any has one; `order` begins with the leader."""
        if self.by_party and set(self.by_party) != set(order[1:]):
            raise PlanError(
                f"[align.keys] should have a key for each of {', '.join(order[1:])}, whom {order[0]} is compared with, "
                f"but has keys for {', '.join(self.by_party)}. Add or correct the parties."
            )

    def check_table(self, table: Table, party: str, *, leads: bool) -> None:
        """Raise `DataError` if rows without a partner are kept and a feature party has columns that cannot miss."""
        curves = [name for name, kind in table.kinds.items() if kind == "curves"]
        if curves and self.join == "left" and not leads:
            raise DataError(
                f"join = 'left' gives {party} rows without values, but its column {curves[0]!r} holds curves, which "
                "have no missing values. Use join = 'inner'."
            )

    def identifiers(self, table: Table, columns: KeyColumns | None, party: str, *, leads: bool) -> Identifiers:
        """How a party reads its ids, from the columns that it names; raises `PlanError` if they do not fit the keys."""
        if not self.by_party:
            if isinstance(columns, Mapping):
                raise PlanError(
                    f"The columns of {party} should be a list with one for each key, but are given by party. Give each "
                    "feature party a key under [align.keys], or list the columns."
                )
            return Identifiers.of(table, self.rules, columns)
        if leads and (not isinstance(columns, Mapping) or set(columns) != set(self.by_party)):
            raise PlanError(
                f"{party} should name its columns for each of {', '.join(self.by_party)}, who have keys of their own, "
                f"but names {'none' if columns is None else ', '.join(columns)}. Write [align.columns.{party}], and "
                f'under it {self.by_party[0]} = "column".'
            )
        if leads and isinstance(columns, Mapping):
            return Identifiers.of(table, self.rules, [columns[name] for name in self.by_party])
        own = (table.id_name,) if columns is None else tuple(columns)
        if isinstance(columns, Mapping) or len(own) != 1:
            raise PlanError(
                f"{party} should name its columns for one key, as a list of one text with several joined by '+', but "
                f"names {', '.join(own) or 'none'}. Correct {party} under [align.columns]."
            )
        return Identifiers.of(table, self.rules, [own[0] if name == party else "" for name in self.by_party])

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

    def lines(self, roles: Roles) -> Lines:
        """The pairs of parties between which an alignment sends something."""
        order = roles.holders
        ring = {frozenset(pair) for pair in zip(order, (*order[1:], order[0]), strict=True)}
        return star(order[0], roles.parties) | (ring if self.topology == "ring" else frozenset())

    @property
    def bucket_size(self) -> int:
        """The number of ids that a bucket should have."""
        return self.ids_per_bucket or IDS_PER_BUCKET[self.engine]

    def describe(self) -> dict[str, Any]:
        """What all parties agree on, as plain data."""
        named = {each.name: getattr(self, each.name) for each in fields(Settings)}
        keys = dict(self.keys) if isinstance(self.keys, Mapping) else self.keys and list(self.keys)
        return named | {"keys": keys}


def column_names(columns: KeyColumns) -> tuple[str, ...]:
    """The names of a party's columns of keys, each once.

    >>> column_names({"fleet": "tail", "weather": "airport+hour"})
    ('tail', 'airport', 'hour')
    """
    joined = columns.values() if isinstance(columns, Mapping) else columns
    return tuple(dict.fromkeys(name for each in joined for name in each.split("+")))


def check_features(features: Mapping[str, Sequence[str]], columns: Mapping[str, KeyColumns]) -> None:
    """Raise `PlanError` for a feature that is no column of a key; other columns are features without being named."""
    for party, names in features.items():
        keys = column_names(columns.get(party, ()))
        for name in (name for name in names if name not in keys):
            raise PlanError(
                f"[align.features] of {party} should name columns of its keys, which are {', '.join(keys) or 'none'}, "
                f"but names {name!r}.{nearest(name, keys)} Name one of them, or leave it out: other columns are "
                "features anyway."
            )
