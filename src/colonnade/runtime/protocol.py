"""What a party runs: a function of one party, and what the runner may ask of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Self, TypeAlias, TypeVar, cast, runtime_checkable
from typing import Protocol as StructuralType

from colonnade.runtime.describe import describe
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
