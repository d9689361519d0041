"""Addresses: where somebody listens, as `host:port`."""

from __future__ import annotations

import re


def is_address(value: str) -> bool:
    """Whether this is a host and a port.

    >>> is_address("bank.example:7431"), is_address("[2001:db8::1]:7431"), is_address("bank.example")
    (True, True, False)
    """
    found = re.fullmatch(r"(?:\[[0-9A-Fa-f:.]+\]|[^\s:\[\]]+):(\d{1,5})", value)
    return found is not None and 0 < int(found[1]) < 2**16
