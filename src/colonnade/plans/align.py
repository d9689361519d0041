"""The section [align] of a plan: how the parties find their common rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from colonnade.align.buckets import Duplicates
from colonnade.align.identifiers import Identifiers
from colonnade.align.limits import Limits
from colonnade.align.protocol import Align
from colonnade.align.rr22 import SideProcess
from colonnade.align.settings import Engine, Join, Reveal, Settings, Topology
from colonnade.errors import PlanError
from colonnade.plans.network import check_address
from colonnade.text import nearest


@dataclass(frozen=True)
class PlannedAlign:
    """How the parties of a run find their common rows before they go on.

    Attributes:
        keys: How ids are read, one key after the other; by the type of the id column if None.
        columns: For each party the columns of its keys, several joined by `+`; its id column if it has no entry.
        topology: "star" or "ring".
        reveal: Who learns which ids are common: "both", "one" or only the "size".
        join: "inner", or "left" to keep rows of the label party without a partner.
        duplicates: What to do with repeated ids: "error", "first" or "all".
        engine: "ecdh", or "rr22" with the extra `psi-fast`.
        pad: Whether sizes are rounded up to a power of two before they are shown.
        ids_per_bucket: How many ids are matched at a time; if None, as many as suit the engine.
        fewest: How many ids a set must have; this party's own business, like all that follows.
        most_runs: How many alignments with one peer this party's log may hold.
        workers: How many processes compute; one per core if None.
        addresses: Where each party's side process of the engine rr22 listens; a party uses its own only.

    >>> PlannedAlign(keys=("email",), columns={"bank": ("mail",)}).build().settings.keys
    ('email',)
    """

    keys: tuple[str, ...] | None = None
    columns: Mapping[str, tuple[str, ...]] = field(default_factory=dict, hash=False)
    topology: Topology = "star"
    reveal: Reveal = "both"
    join: Join = "inner"
    duplicates: Duplicates = "error"
    engine: Engine = "ecdh"
    pad: bool = False
    ids_per_bucket: int | None = None
    fewest: int = Limits.fewest
    most_runs: int = Limits.most_runs
    workers: int | None = None
    addresses: Mapping[str, str] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        """Refuse what no alignment could do."""
        self.build()
        if self.workers is not None and self.workers < 1:
            raise PlanError(f"[align] workers should be at least 1, but is {self.workers}. Raise it or leave it out.")
        for address in self.addresses.values():
            check_address(address, "[align.addresses]")
        for columns in self.columns.values():
            if self.keys is not None:
                Identifiers(self.keys, columns)

    def key_columns(self, party: str, ids: str) -> tuple[str, ...]:
        """The columns by which a party is matched."""
        named = self.columns.get(party, (ids,))
        return tuple(dict.fromkeys(name for columns in named for name in columns.split("+")))

    @property
    def settings(self) -> Settings:
        """What all parties must agree on."""
        return Settings(**{each.name: getattr(self, each.name) for each in fields(Settings)})

    def build(self, party: str = "", certificates: tuple[Path, Path, Path] | None = None) -> Align:
        """The protocol.

        Args:
            party: Whose side process listens at its address.
            certificates: The files of its certificate, its key and the authority.
        """
        process = SideProcess(address=self.addresses.get(party), certificates=certificates)
        return Align(self.settings, self.columns, Limits(self.fewest, self.most_runs), self.workers, process)

    def check(self, holders: tuple[str, ...]) -> None:
        """Refuse entries of parties without a table."""
        for key, party in [("columns", each) for each in self.columns] + [
            ("addresses", each) for each in self.addresses
        ]:
            if party not in holders:
                raise PlanError(
                    f"[align.{key}] has an entry for {party}, who brings no table; those who do are "
                    f"{', '.join(holders)}.{nearest(party, holders)} Correct the party."
                )

    def written(self) -> dict[str, Any]:
        """The section as plain values."""
        tree = {each.name: getattr(self, each.name) for each in fields(self)}
        return {name: value for name, value in tree.items() if value != {}}
