"""Two parties on one machine: where they listen, and their certificates."""

from __future__ import annotations

from pathlib import Path

from colonnade.testing.ports import free_port
from colonnade.wire.certs import authority as certs

__all__ = ["BANK", "SHOP", "free_port", "issue_certificates"]

BANK, SHOP = "bank", "shop"


def issue_certificates(directory: Path) -> None:
    """Make both parties' certificates."""
    certs.init(directory)
    for name in (BANK, SHOP):
        certs.issue(directory, name)
