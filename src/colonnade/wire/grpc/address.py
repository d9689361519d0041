"""Addresses: where somebody listens, as `host:port`."""

from __future__ import annotations

import re
from collections.abc import Iterable
from ipaddress import ip_address

from colonnade.errors import PlanError


def is_address(value: str) -> bool:
    """Whether this is a host and a port.

    >>> is_address("bank.example:7431"), is_address("[2001:db8::1]:7431"), is_address("bank.example")
    (True, True, False)
    """
    found = re.fullmatch(r"(?:\[[0-9A-Fa-f:.]+\]|[^\s:\[\]]+):(\d{1,5})", value)
    return found is not None and 0 < int(found[1]) < 2**16


def is_loopback(value: str) -> bool:
    """Whether an address is on this machine, whatever a name server says.

    >>> [is_loopback(f"{host}:7431") for host in ("127.0.0.1", "localhost", "[::1]", "bank")]
    [True, True, True, False]
    """
    host = value.rpartition(":")[0].strip("[]")
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def require_loopback(addresses: Iterable[str | None]) -> None:
    """Refuse to send in the clear over anything but this machine.

    Raises:
        PlanError: Some address is elsewhere.
    """
    for address in addresses:
        if address is not None and not is_loopback(address):
            raise PlanError(
                "A run without TLS needs addresses on this machine, such as 127.0.0.1:7431, but one of them is "
                f"{address!r}, where others could read and change everything. Leave out --insecure and give every "
                "party a certificate."
            )
