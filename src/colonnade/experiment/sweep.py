"""Many trials: run side by side, written down one by one, run again only where something is missing.

    Trial ──▶ Journal ── claim ──▶ Executor ──▶ function(trial) in a worker
                 ◀── finish ────────────────────────── result

`sweep` joins the three. Kill it at any moment and start it again, and it runs what is not done yet. Several processes
of one machine may sweep over one journal.
"""

from __future__ import annotations

import errno
import hashlib
import importlib.util
import json
import os
import random
import sqlite3
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property, partial
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any, Self

import numpy as np
import pyarrow as pa

from colonnade._version import code_version
from colonnade.errors import PlanError, StorageError
from colonnade.progress import Bars
from colonnade.runtime.checkpoint import GlobalGenerators
from colonnade.runtime.executor import Executor, Outcome
from colonnade.storage import open_private
from colonnade.text import duration

_POLL_SECONDS = 0.2
_LOCK_SECONDS = 60.0

_SCHEMA = """
CREATE TABLE IF NOT EXISTS trial (
    key TEXT PRIMARY KEY,
    configuration TEXT NOT NULL,
    seed INTEGER NOT NULL,
    code_version TEXT NOT NULL,
    function TEXT NOT NULL,
    state TEXT NOT NULL DEFAULT 'queued' CHECK (state IN ('queued', 'running', 'done', 'quarantined')),
    attempts INTEGER NOT NULL DEFAULT 0,
    owner TEXT,
    started REAL,
    seconds REAL,
    result TEXT,
    traceback TEXT
)
"""


@dataclass(frozen=True)
class Trial:
    """One configuration with one seed: what a sweep runs once.

    The configuration holds what JSON can hold. Everything that shapes the result belongs into it.

    >>> Trial({"noise": 0.1, "rows": 100}, seed=3).key == Trial({"rows": 100, "noise": 0.1}, seed=3).key
    True
    """

    configuration: Mapping[str, Any] = field(hash=False)
    seed: int

    def __post_init__(self) -> None:
        configuration, seed = plain_mapping(self.configuration, "configuration"), self.seed
        refuse_clashes([name for name, _ in flat(configuration)])
        if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or not 0 <= seed < 2**63:
            raise PlanError(f"A trial's seed should be an integer from 0 to 2**63 - 1, but it is {seed!r}. Change it.")
        object.__setattr__(self, "configuration", configuration)
        object.__setattr__(self, "seed", int(seed))

    @cached_property
    def key(self) -> str:
        """The hash of configuration, seed and code version; the order of names and `1` or `1.0` make no difference."""
        return hashlib.sha256(code_version().encode() + self.digest).hexdigest()

    @property
    def digest(self) -> bytes:
        """The hash of configuration and seed alone: the same under any version of the code."""
        text = json.dumps([_canonical(self.configuration), self.seed], sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).digest()


class Journal:
    """A SQLite file that remembers every trial: queued, running, done or quarantined.

    A claimed trial belongs to its journal object until that finishes it, releases it or dies. To tell a dead owner from
    a living one, each owner locks a small file of its own beside the database; the system drops the lock of a process
    that was killed. The path must be on a disk of this machine.

    Args:
        path: The file.
        read_only: Whether to look only: nothing is made or changed, so the folder need not be one that can be written.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder, Journal(Path(folder) / "journal.sqlite") as journal:
    ...     trial = Trial({"noise": 0.1}, seed=0)
    ...     journal.add([trial], function="train")
    ...     journal.claim(trial), journal.claim(trial)
    (True, False)
    """

    def __init__(self, path: str | Path, *, read_only: bool = False) -> None:
        self.path, self._read_only = Path(path).absolute(), read_only
        self._owner = f"{os.getpid()}-{os.urandom(4).hex()}"
        self._lock: sqlite3.Connection | None = None
        with self._explained():
            self._database = _opened_to_read(self.path) if read_only else _opened_to_write(self.path)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the files; others may then claim what this journal had claimed and not finished."""
        self._database.close()
        if self._lock is not None:
            self._lock.close()
            self._lock = None
            self._lock_path(self._owner).unlink(missing_ok=True)

    def add(self, trials: Iterable[Trial], *, function: str) -> None:
        """Queue those trials that are not in the journal yet, to be run by the function of that name."""
        rows = {
            trial.key: (trial.key, json.dumps(trial.configuration), trial.seed, code_version(), function)
            for trial in trials
        }
        others = {other for key, other in self._execute("SELECT key, function FROM trial") if key in rows} - {function}
        if others:
            raise PlanError(
                f"The trials of this sweep should belong to {function}, but in the journal {self.path} some belong to "
                f"{', '.join(sorted(others))}. Give each function its own journal."
            )
        with self._explained(), self._database:
            self._database.execute("BEGIN IMMEDIATE")
            self._database.executemany(
                "INSERT OR IGNORE INTO trial (key, configuration, seed, code_version, function) VALUES (?, ?, ?, ?, ?)",
                rows.values(),
            )

    def states(self) -> dict[str, str]:
        """The state of every trial by its key."""
        return dict(self._execute("SELECT key, state FROM trial"))

    def claim(self, trial: Trial) -> bool:
        """Take a queued trial for this journal object; False if somebody else was faster."""
        self._hold_lock()
        claimed = self._execute(
            "UPDATE trial SET state = 'running', owner = ?, started = ?, attempts = attempts + 1 "
            "WHERE key = ? AND state = 'queued' RETURNING key",
            (self._owner, time.time(), trial.key),
        )
        return bool(claimed)

    def finish(self, trial: Trial, outcome: Outcome) -> None:
        """Write down what became of a claimed trial: done, or quarantined with its traceback."""
        self._execute(
            "UPDATE trial SET state = ?, owner = NULL, attempts = attempts + ?, seconds = ?, result = ?, traceback = ? "
            "WHERE key = ? AND owner = ?",
            (
                "quarantined" if outcome.failed else "done",
                outcome.attempts - 1,
                outcome.seconds,
                None if outcome.failed else json.dumps(outcome.value),
                outcome.traceback and outcome.traceback.encode(errors="backslashreplace").decode(),
                trial.key,
                self._owner,
            ),
        )

    def release(self) -> None:
        """Queue again what this journal object has claimed and not finished."""
        self._requeue("owner = ?", self._owner)

    def requeue_abandoned(self) -> None:
        """Queue again what was running in processes that are no more."""
        for (owner,) in self._execute("SELECT DISTINCT owner FROM trial WHERE state = 'running'"):
            if owner != self._owner and not self._is_alive(owner):
                self._requeue("owner = ?", owner)
                self._lock_path(owner).unlink(missing_ok=True)

    def requeue_quarantined(self) -> None:
        """Queue again what had failed, for use after the cause outside the code is gone."""
        self._requeue("state = ?", "quarantined")

    def table(self, trials: Sequence[Trial] | None = None, *, complete: bool = True) -> pa.Table:
        """One row per trial: its configuration, its result, and what happened in the columns `trial.*`.

        Names inside of nested mappings are joined by dots. A column whose values have no common type holds JSON text.

        Args:
            trials: Which trials; all, in the order they were added, if None.
            complete: Whether a trial that the journal does not have is refused, or told as queued.
        """
        columns = "key, seed, code_version, state, attempts, started, seconds, traceback, configuration, result"
        rows = {row[0]: row for row in self._execute(f"SELECT {columns} FROM trial ORDER BY rowid")}
        keys = list(rows) if trials is None else [trial.key for trial in trials]
        if not complete:
            rows = {trial.key: _queued(trial) for trial in trials or ()} | rows
        if n_missing := sum(key not in rows for key in keys):
            raise PlanError(
                f"The journal {self.path} should hold all {len(keys)} trials asked for, but {n_missing} of them are "
                "missing. Sweep over them first, with this version of the code."
            )
        *happened, configurations, results = zip(*(rows[key] for key in keys), strict=True) if keys else [()] * 10
        types = (pa.string(), pa.int64(), pa.string(), pa.string(), pa.int64(), pa.float64(), pa.float64(), pa.string())
        return pa.table(
            {
                **columns_of([json.loads(text) for text in configurations]),
                **columns_of([json.loads(text or "{}") for text in results]),
                **{
                    f"trial.{name}": pa.array(values, type)
                    for name, values, type in zip(columns.split(", ")[:-2], happened, types, strict=True)
                },
            }
        )

    def _requeue(self, condition: str, value: str) -> None:
        self._execute(
            f"UPDATE trial SET state = 'queued', owner = NULL, traceback = NULL WHERE state != 'done' AND {condition}",
            (value,),
        )

    def _execute(self, statement: str, values: Sequence[Any] = ()) -> list[Any]:
        with self._explained():
            return self._database.execute(statement, values).fetchall()

    def _hold_lock(self) -> None:
        if self._lock is None:
            with self._explained():
                self._lock = sqlite3.connect(self._lock_path(self._owner), isolation_level=None)
                self._lock.execute("BEGIN EXCLUSIVE")

    def _is_alive(self, owner: str) -> bool:
        path = self._lock_path(owner)
        if not path.exists():
            return False
        try:
            with closing(sqlite3.connect(f"{path.as_uri()}?mode=rw", uri=True, timeout=0)) as lock:
                lock.execute("BEGIN EXCLUSIVE")
        except sqlite3.OperationalError:
            return True
        return False

    def _lock_path(self, owner: str) -> Path:
        return self.path.with_name(f"{self.path.name}.{owner}.lock")

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            reading = "read", "Check the path and who may read it."
            act, remedy = reading if self._read_only else ("written", _remedy(error))
            raise StorageError(
                f"The journal {self.path} should be a SQLite file that can be {act}, but SQLite or the system says: "
                f"{error}. {remedy}"
            ) from error


def _remedy(error: sqlite3.Error | OSError) -> str:
    """What to do about a journal that cannot be written."""
    if isinstance(error, OSError):
        is_full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        is_shut = error.errno in (errno.EROFS, errno.EACCES, errno.EPERM)
    else:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        is_full = code in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR)
        is_shut = code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN)
    act = "Free some space" if is_full else "Choose a folder that can be written" if is_shut else "Choose another path"
    return f"{act}, then run again; finished trials are kept."


def _opened_to_write(path: Path) -> sqlite3.Connection:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    # A traceback may quote a value. SQLite's other files get the mode of this one; SQLite says what is wrong.
    with suppress(OSError):
        open_private(path, "ab").close()
    database = sqlite3.connect(path, timeout=_LOCK_SECONDS, isolation_level=None)
    try:
        _use_write_ahead_log(database)
        database.execute(_SCHEMA)
    except sqlite3.Error:
        database.close()
        raise
    return database


def _opened_to_read(path: Path) -> sqlite3.Connection:
    # While nobody has the journal open there is no log beside it. SQLite would make one even to read, unless it is told
    # that the file changes no more.
    how = "mode=ro" if log_of(path).exists() else "mode=ro&immutable=1"
    return sqlite3.connect(f"{path.as_uri()}?{how}", uri=True, timeout=_LOCK_SECONDS, isolation_level=None)


def log_of(path: Path) -> Path:
    """What SQLite has not moved into a journal's file yet."""
    return path.with_name(f"{path.name}-wal")


def _queued(trial: Trial) -> tuple[Any, ...]:
    """The line of a trial that nobody has added to a journal."""
    return trial.key, trial.seed, code_version(), "queued", 0, None, None, None, json.dumps(trial.configuration), None


def _use_write_ahead_log(database: sqlite3.Connection) -> None:
    # For all other statements SQLite itself waits until a lock is free; not for a change of mode.
    deadline = time.monotonic() + _LOCK_SECONDS
    while True:
        try:
            database.execute("PRAGMA journal_mode = WAL")
            break
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
        time.sleep(0.01)
    database.execute("PRAGMA synchronous = NORMAL")


def plain_mapping(value: Any, what: str) -> dict[str, Any]:
    """A mapping made of JSON's types only; `what` names it in an error."""
    if not isinstance(value, Mapping):
        raise PlanError(
            f"A trial's {what} should be a mapping of names to values, but it is a {type(value).__name__}. "
            "Give each value a name."
        )
    plain: dict[str, Any] = _plain(value, what)
    return plain


def _plain(value: Any, what: str, where: str = "") -> Any:
    """The same value made of JSON's types only; `what` and `where` name it in an error."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        return [_plain(inner, what, f"{where}[{index}]") for index, inner in enumerate(value)]
    if not isinstance(value, Mapping):
        raise PlanError(
            f"'{where}' in a trial's {what} should be a number, text, true or false, null, or a list or mapping of "
            f"these, but it is a {type(value).__name__}. Convert it first."
        )
    for key in value:
        if not isinstance(key, str):
            raise PlanError(f"The names in a trial's {what} should be text, but {key!r} is not. Turn it into text.")
    return {key: _plain(inner, what, f"{where}.{key}" if where else key) for key, inner in value.items()}


def _canonical(value: Any) -> Any:
    """Equal numbers written alike: 1.0 as 1, -0.0 as 0."""
    if isinstance(value, dict):
        return {key: _canonical(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_canonical(inner) for inner in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def flat(mapping: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The values of nested mappings by their names joined by dots."""
    for key, value in mapping.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def refuse_clashes(names: Sequence[str]) -> None:
    """Refuse names that cannot be columns of one table."""
    clashes = sorted({name for name in names if name.startswith("trial.") or names.count(name) > 1})
    if clashes:
        raise PlanError(
            "The names in a trial's configuration and result should be different columns outside of 'trial.', "
            f"but these are taken: {', '.join(clashes)}. Rename them."
        )


def columns_of(records: Sequence[Mapping[str, Any]]) -> dict[str, pa.Array]:
    """The values of several mappings by name; JSON text where they have no common type."""
    columns: dict[str, list[Any]] = {}
    for index, record in enumerate(records):
        for name, value in flat(record):
            columns.setdefault(name, [None] * len(records))[index] = value
    return {name: _array(values) for name, values in columns.items()}


def _array(values: list[Any]) -> pa.Array:
    try:
        return pa.array(values)
    except (pa.ArrowException, OverflowError):
        return pa.array([None if value is None else json.dumps(value) for value in values], pa.string())


def sweep(
    function: Callable[[Trial], Mapping[str, Any]],
    trials: Iterable[Trial],
    *,
    journal: Journal,
    executor: Executor,
    progress: bool = True,
) -> pa.Table:
    """Run the trials that the journal does not have yet and return the results of all, in the order given.

    Before each trial the global generators of Python, NumPy and PyTorch are seeded from its configuration and seed, so
    that results depend neither on the number of workers nor on what ran before. A trial that fails twice is
    quarantined: its row has a traceback instead of a result, and it rests until `Journal.requeue_quarantined`.

    Args:
        function: Turns a trial into a mapping of what JSON can hold. A change of code outside of this package goes
            unnoticed, so put a version of it into the configuration.
        trials: What to run.
        journal: Where results are kept. What another process runs at the moment is waited for.
        executor: What calls the function.
        progress: Whether to draw a bar, where standard error is a terminal.
    """
    trials = list(trials)
    journal.add(trials, function=_function_name(function))
    by_key = {trial.key: trial for trial in trials}
    call = partial(_run, function)
    ended_here, begun = 0, time.monotonic()
    try:
        with Bars(None if progress else False) as bars:
            while True:
                journal.requeue_abandoned()
                states = journal.states()
                unfinished = [trial for key, trial in by_key.items() if states[key] in ("queued", "running")]
                n_done = len(by_key) - len(unfinished)
                bars.update("trials", n_done, len(by_key))
                if not unfinished:
                    return journal.table(trials)
                claimed: list[Trial] = []
                with closing(executor.map_unordered(call, _claims(journal, unfinished, claimed))) as outcomes:
                    for index, outcome in outcomes:
                        journal.finish(claimed[index], outcome)
                        n_done, ended_here = n_done + 1, ended_here + 1
                        # Trials may be longer than the time over which a bar averages its speed.
                        left = (time.monotonic() - begun) / ended_here * (len(by_key) - n_done)
                        bars.update("trials", n_done, len(by_key), text=f"trials, about {duration(left)} left")
                if not claimed:
                    time.sleep(_POLL_SECONDS)
    finally:
        journal.release()


def _claims(journal: Journal, trials: Iterable[Trial], claimed: list[Trial]) -> Iterator[Trial]:
    for trial in trials:
        if journal.claim(trial):
            claimed.append(trial)
            yield trial


def _run(function: Callable[[Trial], Mapping[str, Any]], trial: Trial) -> dict[str, Any]:
    with _seeded(trial.digest):
        result = plain_mapping(function(trial), "result")
    refuse_clashes([name for name, _ in (*flat(trial.configuration), *flat(result))])
    return result


@contextmanager
def _seeded(digest: bytes) -> Iterator[None]:
    generators, seed = GlobalGenerators(), int.from_bytes(digest[:8]) >> 1
    later = None if "torch" in sys.modules or not importlib.util.find_spec("torch") else _SeededImport(seed)
    before = random.getstate(), generators.capture()
    random.seed(digest)
    if later is None:
        generators.seed(seed)
    else:
        generators.seed_numpy(seed)
        sys.meta_path.insert(0, later)
    try:
        yield
    finally:
        if later is not None:
            later.leave()
        random.setstate(before[0])
        generators.put(before[1])


class _SeededImport:
    """Seeds PyTorch in the moment in which a trial imports it; a trial that does not is spared seconds of loading."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._fresh: Any = None

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """As finders of `sys.meta_path` do: the specification of PyTorch, and None for all other modules."""
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module
            spec.loader.exec_module = partial(self._load, load)  # type: ignore[method-assign]
        return spec

    def _load(self, load: Callable[[ModuleType], None], module: ModuleType) -> None:
        # What is drawn while libraries load is drawn in the first trial of a worker only.
        before = random.getstate(), np.random.get_state()
        load(module)
        random.setstate(before[0])
        np.random.set_state(before[1])
        self._fresh = module.get_rng_state()
        module.manual_seed(self._seed)

    def leave(self) -> None:
        """Look at imports no more, and leave PyTorch as it would be after an import."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        if self._fresh is not None:
            sys.modules["torch"].set_rng_state(self._fresh)


def _function_name(function: Callable[..., Any]) -> str:
    """What a journal calls the function of its trials."""
    while isinstance(function, partial):
        function = function.func
    named = function if hasattr(function, "__qualname__") else type(function)
    return f"{named.__module__}.{named.__qualname__}"
