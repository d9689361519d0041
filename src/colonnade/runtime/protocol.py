"""What a party runs: a function of one party, what the runner may ask of it, and how plans describe it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Self, TypeAlias, TypeVar, cast, runtime_checkable
from typing import Protocol as StructuralType

import numpy as np

from colonnade.privacy.randomness import Randomness
from colonnade.roles import PublicPlan, Roles
from colonnade.runtime.party import Party

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

Protocol: TypeAlias = Callable[[Party], R]
"""Alignment, training, prediction, an active attack: all are functions of one party."""


@runtime_checkable
class ProtocolObject(StructuralType[R_co]):
    """A protocol that is an object of its own, such as an alignment with what runs on the aligned rows."""

    @property
    def aligns_rows(self) -> bool:
        """Whether the protocol begins by aligning rows, so that the tables it starts from may differ."""

    @property
    def then(self) -> Protocol[R_co] | None:
        """What runs on the aligned rows; None if the protocol only aligns."""

    def own_copy(self) -> Self:
        """The same protocol for one party, sharing nothing with the others'."""

    def described(self) -> tuple[str, dict[str, Any]]:
        """The name and the public settings, as a plan holds them."""

    def __call__(self, party: Party) -> R_co:
        """Run one party's side."""


@runtime_checkable
class ProtocolOwner(StructuralType):
    """An object whose methods are protocols, such as an estimator."""

    local_params: frozenset[str]

    def clone(self) -> Self:
        """The same object, unfitted and sharing nothing."""

    def get_params(self) -> dict[str, Any]:
        """The constructor's arguments."""


def aligns_rows(protocol: Protocol[Any] | Mapping[str, Protocol[Any]]) -> bool:
    """Whether a protocol begins by aligning rows."""
    each = protocol.values() if isinstance(protocol, Mapping) else (protocol,)
    return all(isinstance(one, ProtocolObject) and one.aligns_rows for one in each)


def after_alignment(protocol: Protocol[R] | Mapping[str, Protocol[R]]) -> Protocol[R] | Mapping[str, Protocol[R]]:
    """What a protocol that begins by aligning rows runs on the aligned rows."""
    if isinstance(protocol, Mapping):
        return {name: cast("Protocol[R]", after_alignment(each)) for name, each in protocol.items()}
    assert isinstance(protocol, ProtocolObject)
    assert protocol.then is not None
    return cast("Protocol[R]", protocol.then)


def own_copy(protocol: Protocol[R]) -> Protocol[R]:
    """One party's protocol: an estimator's method is bound to a clone, so that no two parties share anything."""
    if isinstance(protocol, ProtocolObject):
        return protocol.own_copy()
    owner = getattr(protocol, "__self__", None)
    if isinstance(owner, ProtocolOwner):
        return cast("Protocol[R]", getattr(owner.clone(), cast(Any, protocol).__name__))
    return protocol


def describe_protocol(protocol: Protocol[Any] | Mapping[str, Protocol[Any]]) -> tuple[str, dict[str, Any]]:
    """A protocol's name and settings, as a public plan holds them: without the parameters that are a party's own."""
    if isinstance(protocol, Mapping):
        protocol = next(iter(protocol.values()))
    if isinstance(protocol, ProtocolObject):
        return protocol.described()
    owner = getattr(protocol, "__self__", None)
    if not isinstance(owner, ProtocolOwner):
        return getattr(protocol, "__qualname__", type(protocol).__qualname__), {}
    public = {key: value for key, value in owner.get_params().items() if key not in owner.local_params}
    return f"{type(owner).__name__}.{cast(Any, protocol).__name__}", describe(public)


def public_plan(protocol: Protocol[Any] | Mapping[str, Protocol[Any]], roles: Roles, seed: int) -> PublicPlan:
    """What every party may know: of the seed only what the public schedule follows from."""
    return PublicPlan(roles, *describe_protocol(protocol), Randomness.seeded(seed, "public").seed())


def private_randomness(seed: int, name: str, plan: PublicPlan) -> Randomness:
    """A party's own randomness in a seeded run."""
    return Randomness.seeded(seed, "party", name, plan.protocol)


def describe(value: Any) -> Any:
    """A parameter as plain data that is the same in every process.

    >>> describe({"rate": np.float64(0.5), "sizes": (1, 2)})
    {'rate': 0.5, 'sizes': [1, 2]}
    """
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        return {str(key): describe(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [describe(item) for item in value]
    if isinstance(value, partial):
        return {"is": describe(value.func), "with": describe([*value.args, value.keywords])}
    if hasattr(value, "__qualname__"):
        return stable_name(value)
    inside = value.get_params() if hasattr(value, "get_params") else getattr(value, "__dict__", {})
    plain = {name: part for name, part in inside.items() if not name.startswith("_")}
    return {"is": stable_name(type(value)), **describe(plain)}


def stable_name(named: Any) -> str:
    """What a class or function is called in plans and saved shares.

    Colonnade's own are called by their name alone, which no two share, so that a file can move to another folder.
    """
    if named.__module__.partition(".")[0] == "colonnade":
        return f"colonnade.{named.__qualname__}"
    return f"{named.__module__}.{named.__qualname__}"
