"""Revocation: certificates that are good no more, listed in ``revoked.txt``.

One list lies beside a party's own certificate and holds for all its runs; another lies beside a plan and holds for runs
of this plan. A line holds the SHA-256 of a certificate or of its public key, in hexadecimal, or the nine words of a
certificate. What follows a ``#`` is a remark. Lists are each party's own: a party whose key was stolen tells the
others, and each adds the lines. Both sides of a connection read the lists whenever a connection is made.
"""

from __future__ import annotations

import re
from pathlib import Path

from colonnade.errors import AuthError, StorageError
from colonnade.storage import append_durably, explained
from colonnade.text import printable
from colonnade.wire.certs.words import N_WORDS, from_words

LIST = "revoked.txt"


def is_revoked(path: Path, fingerprint: bytes, key: bytes) -> bool:
    """Whether a list names a certificate or its key; nothing is revoked where there is no list.

    Args:
        path: The list.
        fingerprint: SHA-256 of the certificate.
        key: SHA-256 of its public key.

    Raises:
        StorageError: The list cannot be read or understood. Then nobody can say what is revoked.
    """
    if not path.exists():
        return False
    with explained(f"read {path}"):
        lines = path.read_bytes().decode(errors="replace").splitlines()
    listed = {_digest(line, path, number) for number, line in enumerate(lines, 1) if line.partition("#")[0].strip()}
    return not listed.isdisjoint((fingerprint, key, fingerprint[: 2 * N_WORDS]))


def revoke(directory: Path, fingerprint: bytes, key: bytes, remark: str) -> Path:
    """Add a certificate and its key to the list in a folder; returns the path of the list."""
    path = directory / LIST
    append_durably(path, f"{fingerprint.hex()}  # {printable(remark)}\n{key.hex()}  # its key\n")
    return path


def _digest(line: str, path: Path, number: int) -> bytes:
    text = line.partition("#")[0].strip()
    if re.fullmatch("[0-9a-fA-F]{64}", text):
        return bytes.fromhex(text)
    try:
        return from_words(text)
    except AuthError as error:
        raise StorageError(
            f"Expected line {number} of {path} to be a SHA-256 in hexadecimal or the {N_WORDS + 1} words of a "
            f"certificate, got {text[:80]!r}. Correct the line; until then no peer is accepted."
        ) from error
