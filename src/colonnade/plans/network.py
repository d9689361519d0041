"""The section [network] of a plan: where the parties of a run find each other, and how long they wait."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from colonnade.errors import PlanError
from colonnade.text import nearest
from colonnade.wire.grpc.address import is_address

TIMES = ("start", "rejoin", "silence", "message")


@dataclass(frozen=True)
class PlannedAddress:
    """Where one party is found.

    Attributes:
        address: Where the others reach it, `host:port`; None for a party that only dials out.
        listen: Where it listens, if not at its address: behind a router, or on all interfaces.

    >>> PlannedAddress("bank.example:7431", listen="0.0.0.0:7431").address
    'bank.example:7431'
    """

    address: str | None = None
    listen: str | None = None

    def __post_init__(self) -> None:
        """Refuse what is no address."""
        for key, value in vars(self).items():
            if value is not None:
                check_address(value, key)


@dataclass(frozen=True)
class PlannedNetwork:
    """Where the parties of a run find each other; no part of what they must agree on.

    Attributes:
        parties: Where each party is found; one that is not named only dials out.
        certificates: The folder of this party's certificate and key.
        key_file: The key under which recordings are encrypted on disk; None keeps them in the clear.
        keep_received: Of what this party receives: digests, or what a joint audit needs, if [run] allows that.
        randomness: "system" draws a key that nobody else knows; "seeded" follows from the plan's seed, for tests.
        start: How many seconds to wait for all parties at the beginning.
        rejoin: How many seconds to wait for a party that broke off.
        silence: After how many seconds without a sign of life a connection counts as broken.
        message: How many seconds to wait for a message of a party that is alive.
        revoked: The list of certificates that this party refuses in runs of the plan, besides the list in the folder
            of its certificate; there need be none.

    >>> PlannedNetwork({"bank": PlannedAddress("bank.example:7431")}).addresses(("bank", "shop"))
    {'bank': 'bank.example:7431', 'shop': None}
    """

    parties: Mapping[str, PlannedAddress] = field(default_factory=dict, hash=False)
    certificates: Path = Path("certs")
    key_file: Path | None = None
    keep_received: Literal["digests", "audit"] = "digests"
    randomness: Literal["system", "seeded"] = "system"
    start: float = 600.0
    rejoin: float = 1800.0
    silence: float = 30.0
    message: float = 3600.0
    revoked: Path = Path("revoked.txt")

    def __post_init__(self) -> None:
        """Refuse waits without a length, and make the plan mean the same files wherever it is read."""
        for key in TIMES:
            if not getattr(self, key) > 0:
                raise PlanError(
                    f"[network] {key} should be above 0 seconds, but is {getattr(self, key):g}. Choose a longer time."
                )
        object.__setattr__(self, "certificates", self.certificates.absolute())
        object.__setattr__(self, "revoked", self.revoked.absolute())
        if self.key_file is not None:
            object.__setattr__(self, "key_file", self.key_file.absolute())

    def addresses(self, names: Iterable[str]) -> dict[str, str | None]:
        """Where each of these parties is reached."""
        return {name: self.parties[name].address if name in self.parties else None for name in names}

    def listen(self, name: str) -> str | None:
        """Where a party listens, if not at its address."""
        return self.parties[name].listen if name in self.parties else None

    def check(self, names: tuple[str, ...]) -> None:
        """Refuse parties without a role, and two that could not find each other.

        Args:
            names: The parties of the plan, in the order of the roles.
        """
        for name in self.parties:
            if name not in names:
                raise PlanError(
                    f"[network.{name}] names a party that has no role; those who have are {', '.join(names)}."
                    f"{nearest(name, names)} Correct the name or leave the section out."
                )
        found = self.addresses(names)
        for name in names[1:]:
            if found[name] is None and found[names[0]] is None:
                raise PlanError(
                    f"[network] gives neither {names[0]} nor {name} an address, so neither can reach the other. "
                    f'Write address = "host:port" under [network.{names[0]}].'
                )


def check_address(value: str, key: str) -> None:
    """Refuse what is not `host:port`.

    Args:
        value: What is to be an address.
        key: What it is called in the plan or on the command line.
    """
    if not is_address(value):
        raise PlanError(
            f"{key} should be a host and a port such as bank.example:7431 or [2001:db8::1]:7431, but is {value!r}. "
            "Correct it."
        )
