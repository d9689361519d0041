"""Roles and PublicPlan: what every party of a run may know of it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, TypeAlias

from blake3 import blake3

from colonnade.errors import PlanError


@dataclass(frozen=True)
class Roles:
    """Who does what; part of the plan's hash. The order of feature parties is the order everywhere.

    >>> Roles(label="bank", features=("shop", "telco")).parties
    ('bank', 'shop', 'telco')
    """

    features: tuple[str, ...]
    label: str | None = None
    arbiter: str | None = None
    server: str | None = None

    def __post_init__(self) -> None:
        if isinstance(self.features, str):
            raise PlanError(f"The feature parties should be a tuple of names, but are the text {self.features!r}.")
        object.__setattr__(self, "features", tuple(self.features))
        names = self.parties
        if not self.holders:
            raise PlanError(
                "A run needs a party that brings a table, but no label or feature party was named. Name one."
            )
        if not all(isinstance(name, str) and name for name in names):
            raise PlanError(f"Roles should name parties by non-empty text, got {names}. Give each party a name.")
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise PlanError(f"Each party has one role, but {', '.join(twice)} was given two. Use different parties.")

    @property
    def parties(self) -> tuple[str, ...]:
        """Everybody, the label party first, then feature parties in their order, arbiter, server."""
        return tuple(n for n in (self.label, *self.features, self.arbiter, self.server) if n is not None)

    @property
    def holders(self) -> tuple[str, ...]:
        """The parties that bring a table."""
        return tuple(n for n in (self.label, *self.features) if n is not None)


Lines: TypeAlias = frozenset[frozenset[str]]
"""Pairs of parties between which something is sent."""


def star(centre: str | None, others: Iterable[str]) -> Lines:
    """The lines between one party and others.

    >>> sorted(map(sorted, star("bank", ("bank", "shop", "telco"))))
    [['bank', 'shop'], ['bank', 'telco']]
    """
    return frozenset(frozenset((centre, other)) for other in others if centre not in (None, other))


@dataclass(frozen=True)
class PublicPlan:
    """What every party may know of a run before it starts.

    Two parties take part in the same run only if the hashes of their plans are equal.

    >>> plan = PublicPlan(Roles(label="bank", features=("shop",)), protocol="SplitClassifier.fit", seed=1)
    >>> plan == PublicPlan.from_json(plan.to_json()), len(plan.hash)
    (True, 64)
    """

    roles: Roles
    protocol: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0

    @property
    def hash(self) -> str:
        """A digest over everything in the plan."""
        return blake3(self.to_json().encode()).hexdigest()

    def to_json(self) -> str:
        """The plan as canonical JSON."""
        return json.dumps(asdict(self), sort_keys=True, ensure_ascii=True)

    @classmethod
    def from_json(cls, text: str) -> PublicPlan:
        """The plan that `to_json` wrote."""
        data = json.loads(text)
        return cls(Roles(**data["roles"]), data["protocol"], data["settings"], data["seed"])
