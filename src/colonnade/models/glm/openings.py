"""Openings: how many columns of a party may ever be opened on the same rows, kept in a log over all runs.

The gradient of a column is a sum of residuals, and in the first step residuals are little else than labels: each column
opened on n rows is one equation in n labels. Equations add up over runs, so the label party, which the limit protects,
and the arbiter, which opens, both keep a log. Per row, a run spends its columns divided by the rows of its smallest
batch; the sum over all runs that used the row stays below 1 / `rows_per_column`.

Rows are recognised by the smallest keyed hashes of their ids, so neither the log nor the arbiter sees an id, and rows
that come and go between two runs count for the part that stays. The same columns on the same rows with the same labels
are counted once: a party names its columns by a keyed hash. A party that lies about the name, or that takes other
columns in every step, deviates from the protocol, and nobody but that party can see this.
"""

from __future__ import annotations

import os
import secrets
from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
from blake3 import blake3

from colonnade.errors import PrivacyError, ProtocolError, StorageError
from colonnade.models.glm.gradient_privacy import WIDEST
from colonnade.models.glm.messages import OpenableSums
from colonnade.runtime.party import Party
from colonnade.storage import Entry, SharedLog, explained, make_private, sync_directory
from colonnade.tables.placement import bounds_of
from colonnade.tables.table import Table
from colonnade.wire.message import Float64Array, Int64Array, UInt64Array

MOST_HASHES = 1024
KEY_BYTES = 32


@dataclass(frozen=True)
class RowSketch:
    """Which rows a run uses, as far as two runs can be compared.

    >>> rows = RowSketch(np.arange(10, dtype=np.uint64), n_rows=10, batch_rows=5)
    >>> rows.share_in(RowSketch(np.arange(5, 15, dtype=np.uint64), n_rows=10, batch_rows=10))
    0.5

    Attributes:
        hashes: The smallest hashes of ids in ascending order, at most `MOST_HASHES`.
        n_rows: How many rows there are.
        batch_rows: How many rows the smallest batch has.
    """

    hashes: UInt64Array
    n_rows: int
    batch_rows: int

    @classmethod
    def of(cls, table: Table, batches: Sequence[Int64Array], key: bytes) -> RowSketch:
        """The sketch of a table's rows, under a key that the owner keeps."""
        least = np.zeros(0, np.uint64)
        for begin, end in pairwise(bounds_of(len(table))):
            ids = table.ids.slice(begin, end - begin).to_pylist()
            digests = b"".join(blake3(str(each).encode(), key=key).digest(8) for each in ids)
            least = np.sort(np.concatenate([least, np.frombuffer(digests, np.uint64)]))[:MOST_HASHES]
        return cls(least, len(table), min(map(len, batches)))

    def share_in(self, other: RowSketch) -> float:
        """The share of these rows that the other run used too; exact up to `MOST_HASHES` rows, else to about 3 %."""
        union = np.union1d(self.hashes, other.hashes)
        if max(self.n_rows, other.n_rows) > MOST_HASHES:
            union = union[:MOST_HASHES]
        both = np.isin(union, self.hashes) & np.isin(union, other.hashes)
        alike = float(both.mean()) if len(union) else 0.0
        common = alike / (1 + alike) * (self.n_rows + other.n_rows)
        return min(common / max(self.n_rows, 1), 1.0)


class Openings:
    """What was opened to whom on which rows, over all runs.

    Two runs of a party may count at the same time, so a log is read, checked and written to under its lock.

    Args:
        log: A file with one line for each party's columns in a run; None counts this run only, as in a simulation
            without a folder.
    """

    def __init__(self, log: Path | None) -> None:
        self._log = None if log is None else _log(log)
        self._unwritten: list[Entry] = []
        if self._log is not None:
            self._opened(self._log.entries())

    @classmethod
    def kept_by(cls, party: Party) -> Openings:
        """The log of a party, beside its log of answers."""
        return cls(_beside_answers(party, ""))

    def admit(self, peer: str, token: bytes, columns: int, rows: RowSketch, rows_per_column: int) -> None:
        """Write down that a party's columns are about to be opened on some rows.

        Raises:
            PrivacyError: Too many columns would have been opened on these rows; nothing was written down.
        """
        entry: Entry = {
            "peer": peer,
            "token": token.hex(),
            "columns": columns,
            "batch_rows": rows.batch_rows,
            "n_rows": rows.n_rows,
            "rows": b64encode(rows.hashes.astype("<u8").tobytes()).decode(),
        }
        if self._log is None:
            if self._is_new(entry, rows, self._unwritten, rows_per_column):
                self._unwritten.append(entry)
            return
        with self._log.locked() as held:
            if self._is_new(entry, rows, held.entries(), rows_per_column):
                held.append(entry)

    def _is_new(self, entry: Entry, rows: RowSketch, entries: list[Entry], rows_per_column: int) -> bool:
        """Whether an entry has to be added to others, which must leave room for its columns."""
        before = rows.batch_rows * sum(
            opened.columns / max(opened.rows.batch_rows, 1) * rows.share_in(opened.rows)
            for opened in self._opened(entries)
            if opened.peer == entry["peer"] and opened.token != entry["token"]
        )
        require_rows(entry["peer"], entry["columns"], rows.batch_rows, rows_per_column, before=before)
        return entry not in entries

    def _opened(self, entries: Iterable[Entry]) -> list[OpenedColumns]:
        try:
            return [OpenedColumns.of(entry) for entry in entries]
        except (ValueError, KeyError, TypeError) as error:
            assert self._log is not None
            raise self._log.damaged() from error


@dataclass(frozen=True)
class OpenedColumns:
    """The columns of a party that a run opened, as the log holds them."""

    peer: str
    token: str
    columns: int
    rows: RowSketch

    @classmethod
    def of(cls, entry: Entry) -> OpenedColumns:
        """The columns of one line."""
        hashes = np.frombuffer(b64decode(entry["rows"]), "<u8").astype(np.uint64)
        rows = RowSketch(hashes, int(entry["n_rows"]), int(entry["batch_rows"]))
        return cls(str(entry["peer"]), str(entry["token"]), int(entry["columns"]), rows)


def require_rows(party: str, columns: int, batch_rows: int, rows_per_column: int, *, before: float = 0.0) -> None:
    """Refuse batches with too few rows for the columns that are opened on these rows, now and in earlier runs.

    Args:
        party: Whose columns they are.
        columns: How many this run opens.
        batch_rows: How many rows the smallest batch has.
        rows_per_column: How many rows each column needs; 0 refuses nothing.
        before: How many columns earlier runs opened on these rows.
    """
    if not rows_per_column or batch_rows > rows_per_column * (columns + before):
        return
    needed = int(np.floor(rows_per_column * (columns + before)))
    if before:
        raise PrivacyError(
            f"{party} has {columns} columns and had about {before:.1f} others opened on these rows by earlier runs, so "
            f"a batch needs more than {needed} rows ({rows_per_column} per column ever opened) or the gradients of all "
            f"runs together would tell single labels, but the smallest has {batch_rows}. Train on the same columns as "
            "before, use other rows, larger batches or fewer columns, or train without an arbiter."
        )
    raise PrivacyError(
        f"{party} has {columns} columns, so a batch needs more than {needed} rows or its gradients would tell single "
        f"residuals, but the smallest has {batch_rows}. Use larger batches or fewer columns, or train without an "
        "arbiter."
    )


def openable(
    found: OpenableSums, holders: Sequence[str], sender: str, *, noisy: bool
) -> tuple[Mapping[str, int], RowSketch]:
    """How many sums each party may open in a step, and on which rows, if the message is what roles and plan say."""
    n = len(holders)
    sound = (
        tuple(found.parties) == tuple(holders)
        and found.counts.shape == (n,)
        and len(found.tokens) == n
        and (found.counts >= 0).all()
        and 0 < found.batch_rows <= found.n_rows
        and found.rows.shape == (min(found.n_rows, MOST_HASHES),)
        and all(len(token) == KEY_BYTES for token in found.tokens)
        and (found.sigma > 0) == (found.sensitivity > 0) == noisy
        and 0 <= found.sigma <= WIDEST
        and 0 <= found.sensitivity <= WIDEST
    )
    if not sound:
        raise ProtocolError(
            f"Expected from {sender} how many sums {', '.join(holders)} may open and on which rows, got numbers that "
            "do not fit together. Check that all parties run the same plan and version."
        )
    counts = dict(zip(found.parties, found.counts.tolist(), strict=True))
    return counts, RowSketch(np.sort(found.rows), found.n_rows, found.batch_rows)


def own_key(party: Party) -> bytes:
    """The key under which a party hashes ids and columns in all its runs; without a folder, a new one."""
    path, log = _beside_answers(party, ".key"), _beside_answers(party, "")
    if path is None or log is None:
        return secrets.token_bytes(KEY_BYTES)
    # The log's lock keeps a second run from reading the key before it is written.
    with _log(log).locked(), explained(f"keep the key {path}"):
        make_private(path.parent)
        if not path.exists():
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            try:
                os.write(handle, secrets.token_bytes(KEY_BYTES))
                os.fsync(handle)
            finally:
                os.close(handle)
            sync_directory(path.parent)
        key = path.read_bytes()
    if len(key) != KEY_BYTES:
        raise StorageError(
            f"{path} should hold {KEY_BYTES} bytes, but holds {len(key)}. Restore the file; without it earlier runs "
            "on the same rows are not recognised."
        )
    return key


def keyed(digest: bytes, key: bytes) -> bytes:
    """A name for what has a digest, which tells nothing else to those who lack the key."""
    return blake3(digest, key=key).digest()


def sums_token(token: bytes, weights: Float64Array, labels: Float64Array, key: bytes) -> bytes:
    """A name for the sums of some columns: with other weights or labels of rows, sums are other equations."""
    return blake3(token + weights.tobytes() + labels.tobytes(), key=key).digest()


def _beside_answers(party: Party, ending: str) -> Path | None:
    log = party.answer_log
    return None if log is None else log.with_name(f"openings-of-{party.name}{ending}")


def _log(path: Path) -> SharedLog:
    return SharedLog(path, "one party's opened columns")
