"""Files: trees of arrays and plain values, without pickle, each file whole or absent; and logs that only grow.

A *tree* is what a model or checkpoint is made of: nested dictionaries and lists of numbers, text, bytes and arrays.
It is written as one safetensors file whose metadata holds the nesting as JSON.

Files that this module makes are readable by their owner alone (0600), and folders likewise (0700).
"""

from __future__ import annotations

import base64
import errno
import fcntl
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Literal, TypeAlias, cast

import numpy as np

from colonnade.errors import StorageError

Tree: TypeAlias = Any
Entry: TypeAlias = dict[str, Any]


def write_tree(path: Path, tree: Tree) -> None:
    """Write a tree to one file; a crash leaves the old file or the new one, never half of one."""
    write_atomically(path, pack(tree))


def read_tree(path: Path) -> Tree:
    """Read a tree that `write_tree` wrote; arrays come back as NumPy arrays."""
    with explained(f"read {path.name}"):
        data = path.read_bytes()
    return unpack(data, path.name)


def pack(tree: Tree) -> bytes:
    """The bytes of a tree.

    >>> unpack(pack({"weights": np.ones(2), "step": 3}))
    {'weights': array([1., 1.]), 'step': 3}
    """
    from safetensors.numpy import save

    arrays: dict[str, np.ndarray] = {}
    return save(arrays, metadata={"tree": json.dumps(_flatten(tree, arrays, "tree"))})


def unpack(data: bytes, name: str = "the file") -> Tree:
    """The tree that `pack` turned into bytes."""
    from safetensors import SafetensorError
    from safetensors.numpy import load

    try:
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
        return _unflatten(json.loads(header["__metadata__"]["tree"]), load(data))
    except (SafetensorError, ValueError, KeyError) as error:
        raise StorageError(
            f"{name} should be a tree of arrays but cannot be read ({type(error).__name__}). "
            "It is damaged or of another origin; delete it or restore a copy."
        ) from error


def make_private(folder: Path) -> None:
    """Make a folder that its owner alone can enter, with all folders above that are missing.

    A folder that is there already keeps its mode: it may be shared for a reason, as a home or a mounted disk is.
    """
    missing: list[Path] = []
    while not folder.is_dir() and folder != folder.parent:
        # Looked at again: another process may have made the folder in between.
        if missing and folder.exists() and not folder.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder))
        missing.append(folder)
        folder = folder.parent
    for new in reversed(missing):
        new.mkdir(mode=0o700, exist_ok=True)


def open_private(path: Path, mode: Literal["ab", "wb"]) -> BinaryIO:
    """Open a file for writing that its owner alone can read and write, if the file is new."""

    def opener(name: str, flags: int) -> int:
        return os.open(name, flags, 0o600)

    return cast(BinaryIO, open(path, mode, opener=opener))


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file by temporary file, flush and rename; its owner alone can read it."""
    with explained(f"write {path.name}"):
        make_private(path.parent)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
        sync_directory(path.parent)


def append_durably(path: Path, text: str) -> None:
    """Add text to the end of a file and wait until it is on the disk; what fails leaves the file as it was."""
    with explained(f"write {path.name}"):
        make_private(path.parent)
        handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        size = os.fstat(handle).st_size
        try:
            _append(handle, text.encode(), size)
        finally:
            os.close(handle)
        if not size:
            sync_directory(path.parent)


def _append(handle: int, data: bytes, size: int) -> None:
    """Write to the end of an open file of this size; what fails leaves the file as it was."""
    try:
        while data:
            data = data[os.write(handle, data) :]
        os.fsync(handle)
    except OSError:
        os.ftruncate(handle, size)
        raise


def drop_unfinished(path: Path) -> None:
    """Remove a partial last line that a crash left in an append-only log."""
    with explained(f"read {path}"):
        *lines, unfinished = path.read_bytes().split(b"\n")
    if unfinished:
        write_atomically(path, b"".join(line + b"\n" for line in lines))


def sync_directory(path: Path) -> None:
    """Make renames and new files inside a directory survive a power cut."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def erase(folder: Path) -> None:
    """Delete a folder; a crash leaves it whole under its name, or without its name for the next `erase` to delete.

    Files are not overwritten: modern disks and file systems write elsewhere, so the old bytes would stay all the same.
    Only an encrypted disk protects what a disk may still hold of deleted files.
    """
    nameless = _nameless(folder)
    with explained(f"erase {folder}"):
        if nameless.exists():
            shutil.rmtree(nameless)
        if folder.exists():
            os.replace(folder, nameless)
            sync_directory(folder.parent)
            shutil.rmtree(nameless)
            sync_directory(folder.parent)


def is_erased(folder: Path) -> bool:
    """Whether nothing is left of a folder, of an `erase` that a crash interrupted either."""
    return not folder.exists() and not _nameless(folder).exists()


def _nameless(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.erased")


@contextmanager
def explained(act: str) -> Iterator[None]:
    """Turn the operating system's errors into ours, saying what was being done ("write this", "read that")."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or type(error).__name__
        reading = "Check the path and who may read it."
        writing = "Free some space or choose a folder that can be written, then run again."
        raise StorageError(f"Could not {act}: {reason}. {reading if act.startswith('read') else writing}") from error


class SharedLog:
    """An append-only file of JSON lines that counts something over all runs of a party, as one process uses it.

    Three counts outlive runs: encrypted values answered (`colonnade.crypto.profiles`), alignments
    (`colonnade.align.limits`) and privacy events (`colonnade.privacy.history`). Two runs of one party may count at the
    same time, so a cap is read, checked and written to under one lock of the operating system; a crash frees the lock.

    Args:
        path: The file; a missing file has no entries.
        holds: What a line is, in words, for the error that names a damaged file.

    >>> import tempfile
    >>> log = SharedLog(Path(tempfile.mkdtemp()) / "answers", "one portion of answers")
    >>> with log.locked() as held:
    ...     if not held.entries():
    ...         held.append({"values": 3})
    >>> log.entries()
    [{'values': 3}]
    """

    def __init__(self, path: Path, holds: str) -> None:
        self.path, self.holds = path, holds

    def entries(self) -> list[Entry]:
        """All whole lines; a line that a crash left unfinished is removed, because nothing followed from it."""
        if not self.path.exists():
            return []
        with self.locked() as held:
            return held.entries()

    @contextmanager
    def locked(self) -> Iterator[HeldLog]:
        """Keep all other processes and threads out of the log while its entries are checked and more are added.

        The lock is not re-entrant: a second `locked` inside the first waits for ever.
        """
        with explained(f"write {self.path.name}"):
            make_private(self.path.parent)
            new = not self.path.exists()
            # The log says who asked how much of whom.
            handle = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            if new:
                sync_directory(self.path.parent)
        try:
            with explained(f"write {self.path.name}"):
                fcntl.flock(handle, fcntl.LOCK_EX)
            yield HeldLog(self, handle)
        finally:
            # A process that was forked meanwhile has the file open too, and closing it here would not free the lock.
            fcntl.flock(handle, fcntl.LOCK_UN)
            os.close(handle)

    def damaged(self) -> StorageError:
        """The error of a file that cannot be read."""
        return StorageError(
            f"{self.path} should hold {self.holds} per line, but is damaged. Restore it; do not delete it, because it "
            "counts over all runs how much was told to whom."
        )

    def _parsed(self, data: bytes) -> list[Entry]:
        try:
            entries = [json.loads(line) for line in data.splitlines()]
        except ValueError as error:
            raise self.damaged() from error
        if not all(isinstance(entry, dict) for entry in entries):
            raise self.damaged()
        return entries


class HeldLog:
    """A log while its lock is held."""

    def __init__(self, log: SharedLog, handle: int) -> None:
        self._log, self._handle = log, handle

    @property
    def size(self) -> int:
        """How many bytes of whole lines there are; a line that a crash left unfinished is removed."""
        with explained(f"read {self._log.path}"):
            size = os.fstat(self._handle).st_size
            if not size or os.pread(self._handle, 1, size - 1) == b"\n":
                return size
            whole = self._read(0, size).rfind(b"\n") + 1
            os.ftruncate(self._handle, whole)
            return whole

    def entries(self, start: int = 0) -> list[Entry]:
        """The entries from a byte on at which a line begins."""
        with explained(f"read {self._log.path}"):
            data = self._read(start, self.size)
        return self._log._parsed(data)

    def append(self, entry: Entry) -> None:
        """Add a line and wait until it is on the disk; what fails leaves the file as it was."""
        size = self.size
        with explained(f"write {self._log.path.name}"):
            _append(self._handle, (json.dumps(entry) + "\n").encode(), size)

    def _read(self, start: int, end: int) -> bytes:
        parts = []
        while start < end and (part := os.pread(self._handle, end - start, start)):
            parts.append(part)
            start += len(part)
        return b"".join(parts)


def _flatten(node: Tree, arrays: dict[str, np.ndarray], where: str) -> Any:
    if node is None or isinstance(node, bool | int | float | str):
        return node
    if isinstance(node, bytes):
        return {"$bytes": base64.b64encode(node).decode()}
    if hasattr(node, "detach"):
        node = node.detach().cpu().numpy()
    if isinstance(node, np.ndarray | np.generic):
        key = str(len(arrays))
        arrays[key] = np.array(node, order="C")
        return {"$array": key}
    if isinstance(node, Mapping):
        return {"$map": [[key, _flatten(value, arrays, f"{where}.{key}")] for key, value in node.items()]}
    if isinstance(node, list | tuple):
        return [_flatten(value, arrays, f"{where}[{i}]") for i, value in enumerate(node)]
    raise StorageError(
        f"{where} should be a number, text, bytes, an array or a nesting of them, but is a {type(node).__name__}. "
        "Convert it before it is saved."
    )


def _unflatten(node: Any, arrays: Mapping[str, np.ndarray]) -> Tree:
    if isinstance(node, list):
        return [_unflatten(value, arrays) for value in node]
    if not isinstance(node, dict):
        return node
    if "$array" in node:
        return arrays[node["$array"]]
    if "$bytes" in node:
        return base64.b64decode(node["$bytes"])
    return {key: _unflatten(value, arrays) for key, value in node["$map"]}
