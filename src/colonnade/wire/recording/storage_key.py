"""StorageKey: what a party keeps of its messages, encrypted under a key file that its operator names.

Each record is sealed by itself with ChaCha20-Poly1305 (RFC 8439) under a nonce drawn from the system. A nonce that
followed from the record's place would repeat, since files are cut back and written again when a run resumes. File and
place are authenticated with the record, so that no two records can be exchanged. One key is good for 2^32 records.
"""

from __future__ import annotations

import os
import secrets
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from colonnade.errors import AuthError, StorageError
from colonnade.storage import explained, make_private, sync_directory

KEY_BYTES = 32
NONCE_BYTES = 12


@dataclass(frozen=True)
class StorageKey:
    """A key under which a party's recording is kept.

    >>> key = StorageKey(bytes(32))
    >>> key.unseal(key.seal(b"a gradient", b"frames 0"), b"frames 0")
    b'a gradient'
    >>> key
    StorageKey()
    """

    secret: bytes = field(repr=False)
    overhead: ClassVar[int] = NONCE_BYTES + 16
    """By how many bytes a sealed record is longer than what is in it."""

    @classmethod
    def read(cls, path: Path | str) -> StorageKey:
        """Read a key file that `make_key` made."""
        path = Path(path)
        try:
            mode = path.stat().st_mode
            text = path.read_bytes()
        except OSError as error:
            raise StorageError(
                f"Expected to read the key file {path}, but got: {error.strerror}. "
                "Name the key file of the run, or make one with make_key."
            ) from error
        if os.name == "posix" and mode & 0o077:
            raise AuthError(
                f"Expected the key file {path} to be readable by its owner alone, but its mode is {mode & 0o777:03o}. "
                f"Run: chmod 600 '{path}'; if somebody else may have read it, use a new key for the next run."
            )
        try:
            secret = bytes.fromhex(text.decode("ascii"))
        except ValueError:
            secret = b""
        if len(secret) != KEY_BYTES:
            raise AuthError(
                f"Expected the key file {path} to hold {2 * KEY_BYTES} hexadecimal digits, but it holds something "
                "else. Restore it, or name the file that make_key made."
            )
        return cls(secret)

    def seal(self, data: bytes, place: bytes) -> bytes:
        """Encrypt a record; it can be read at its own place only."""
        nonce = secrets.token_bytes(NONCE_BYTES)
        return nonce + ChaCha20Poly1305(self.secret).encrypt(nonce, data, place)

    def unseal(self, sealed: bytes, place: bytes) -> bytes:
        """Decrypt a record, which must have been sealed under this key and at this place."""
        try:
            return ChaCha20Poly1305(self.secret).decrypt(sealed[:NONCE_BYTES], sealed[NONCE_BYTES:], place)
        except (InvalidTag, ValueError) as error:
            raise StorageError(
                "A recording should open under the key that it was written with, but does not open under this one. "
                "Name the key file of its run; if that is the one, the recording is damaged."
            ) from error


def make_key(path: Path | str) -> Path:
    """Make a key file that only its owner can read; one that exists is never overwritten."""
    path = Path(path)
    with explained(f"write the key file {path}"):
        make_private(path.parent)
        try:
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError as error:
            raise StorageError(
                f"Expected no file at {path}, but there is one, and a key is never overwritten, because all that was "
                "written under it would be lost. Choose another path, or use this key."
            ) from error
        with os.fdopen(handle, "w") as file:
            file.write(secrets.token_hex(KEY_BYTES) + "\n")
            file.flush()
            os.fsync(file.fileno())
        sync_directory(path.parent)
    return path
