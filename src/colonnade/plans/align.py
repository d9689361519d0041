"""The section [align] of a plan: how the parties find their common rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar

from colonnade.align.identifiers import Identifiers
from colonnade.align.limits import Limits
from colonnade.align.protocol import Align
from colonnade.align.rr22 import SideProcess
from colonnade.align.settings import Settings, check_features, column_names
from colonnade.errors import PlanError
from colonnade.parameters import Limit, count, optional
from colonnade.text import nearest
from colonnade.wire.transport import check_address


@dataclass(frozen=True)
class PlannedAlign(Settings):
    """How the parties of a run find their common rows: the settings that all share, and what each party decides alone.

    Attributes:
        columns: For each party the columns of its keys, several joined by `+`; its id column if it has no entry. Where
            each feature party has a key of its own, the label party's columns by feature party.
        features: For each party the columns of its keys that are features too.
        fewest: How many ids each party's set must have.
        most_runs: How many alignments with one peer for training this party's log may hold.
        most_predictions: How many alignments with one peer for predictions there may be within `days`.
        most_lookups: How many people the label party may look up here within `days`.
        days: How many days predictions and lookups count.
        finished: The folder of a finished alignment of the same lists, whose rows are taken; None aligns.
        most_ids: How many ids a peer may bring under each key; None sets no number.
        most_times: How many times as many ids as this party has a peer may bring under each key.
        fewest_common: How many ids must be common; a tenth of `fewest` if None.
        most_common: How many ids may be common; None sets no number.
        workers: How many processes compute; one per core if None.
        addresses: Where each party's side process of the engine rr22 listens; a party uses its own entry only.

    >>> PlannedAlign(keys=("email",), columns={"bank": ("mail",)}).build().settings.keys
    ('email',)
    """

    columns: Mapping[str, tuple[str, ...] | Mapping[str, str]] = field(default_factory=dict, hash=False)
    features: Mapping[str, tuple[str, ...]] = field(default_factory=dict, hash=False)
    fewest: int = Limits.fewest
    most_runs: int = Limits.most_runs
    most_ids: int | None = Limits.most_ids
    most_times: float = Limits.most_times
    fewest_common: int | None = Limits.fewest_common
    most_common: int | None = Limits.most_common
    most_predictions: int = Limits.most_predictions
    most_lookups: int = Limits.most_lookups
    days: int = Limits.days
    finished: Path | None = None
    workers: int | None = None
    addresses: Mapping[str, str] = field(default_factory=dict, hash=False)

    limits: ClassVar[Mapping[str, Limit]] = {**Settings.limits, **Limits.limits, "workers": optional(count())}

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.finished is not None:
            object.__setattr__(self, "finished", self.finished.absolute())
        for address in self.addresses.values():
            check_address(address, "[align.addresses]")
        check_features(self.features, self.columns)
        for columns in self.columns.values():
            if self.rules is not None and not self.by_party and not isinstance(columns, Mapping):
                Identifiers(self.rules, columns)

    def key_columns(self, party: str, ids: str) -> tuple[str, ...]:
        """The columns that a party is matched by."""
        return column_names(self.columns.get(party, (ids,)))

    @property
    def settings(self) -> Settings:
        """What all parties must agree on."""
        return Settings(**{each.name: getattr(self, each.name) for each in fields(Settings)})

    def build(self, party: str = "", certificates: tuple[Path, Path, Path] | None = None) -> Align:
        """The protocol."""
        process = SideProcess(address=self.addresses.get(party), certificates=certificates)
        limits = Limits(**{name: getattr(self, name) for name in Limits.limits})
        return Align(self.settings, self.columns, limits, self.workers, process, self.features)

    def check(self, holders: tuple[str, ...]) -> None:
        """Refuse entries of parties without a table, and a feature party without a key where others have one."""
        self.check_parties(holders)
        for key, entries in (("columns", self.columns), ("features", self.features), ("addresses", self.addresses)):
            for party in (name for name in entries if name not in holders):
                raise PlanError(
                    f"[align.{key}] has an entry for {party}, who brings no table; the parties with tables are "
                    f"{', '.join(holders)}.{nearest(party, holders)} Correct the party."
                )

    def written(self) -> dict[str, Any]:
        """The section as plain values."""
        tree = {each.name: getattr(self, each.name) for each in fields(self)}
        # A plan that says nothing of these has the hash that it had before the keys existed.
        later = {name for name in Limits.limits if tree[name] == getattr(Limits, name)} - {"fewest", "most_runs"}
        later |= {"finished"} if self.finished is None else set()
        return {name: value for name, value in tree.items() if value != {} and name not in later}
