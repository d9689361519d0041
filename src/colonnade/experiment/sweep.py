"""Many trials: run side by side, written down one by one, run again only where something is missing.

    Trial ──▶ Journal ── claim ──▶ Executor ──▶ function(trial) in a worker
                 ◀── finish ────────────────────────── result

A `Trial` is a configuration with a seed. The `Journal` is a SQLite file with one row per trial, keyed by configuration,
seed and code version. An `Executor` calls a function on many tasks, survives workers that die, tries what failed once
more, and then reports the failure. `sweep` joins the three: kill it at any moment and start it again, and it runs what
is not done yet. Several processes of one machine may sweep over one journal.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import random
import signal
import sqlite3
import sys
import threading
import time
import traceback
import warnings
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any, Self, TypeVar

import numpy as np
import pyarrow as pa

from colonnade._version import __version__
from colonnade.errors import PlanError, StorageError
from colonnade.generators import GlobalGenerators

T = TypeVar("T")

ATTEMPTS = 2

_POLL_SECONDS = 0.2
_LOCK_SECONDS = 60.0

_THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "NUMBA_NUM_THREADS",
)

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
class Outcome:
    """What became of one task: its value, or the traceback of its last attempt.

    >>> Outcome(value=3).failed
    False
    """

    value: Any = None
    traceback: str | None = None
    seconds: float = 0.0
    attempts: int = 1

    @property
    def failed(self) -> bool:
        """Whether there is no value because the last attempt raised or lost its worker."""
        return self.traceback is not None


class Executor(ABC):
    """Calls a function on many tasks.

    >>> executor: Executor = Serial()
    >>> dict(executor.map_unordered(abs, [-1]))[0].value
    1
    """

    @abstractmethod
    def map_unordered(
        self, function: Callable[[T], Any], tasks: Iterable[T]
    ) -> Generator[tuple[int, Outcome], None, None]:
        """Yield the position and outcome of each task when it ends.

        A task is taken from `tasks` only when it can start at once. A task that raises or kills its worker is tried
        a second time, and never ends the others. Closing the generator stops the tasks that still run.
        """


class Serial(Executor):
    """Runs tasks one after the other in this process, with this process's threads: to debug, or for a few short tasks.

    >>> [(index, outcome.value) for index, outcome in Serial().map_unordered(abs, [-1, 2])]
    [(0, 1), (1, 2)]
    """

    def map_unordered(
        self, function: Callable[[T], Any], tasks: Iterable[T]
    ) -> Generator[tuple[int, Outcome], None, None]:
        """Yield the position and outcome of each task, in the order of the tasks."""
        for index, task in enumerate(tasks):
            outcome = _attempt(function, task)
            while outcome.failed and outcome.attempts < ATTEMPTS:
                outcome = replace(_attempt(function, task), attempts=outcome.attempts + 1)
            yield index, outcome


class Local(Executor):
    """Runs tasks in worker processes on this machine.

    Args:
        n_jobs: How many tasks run at the same time; as many as there are cores if not given.
        threads: How many threads the numerical libraries of each worker use. It changes the last digits of large sums
            and decompositions and therefore does not follow `n_jobs`: by default results are the same for any number
            of workers. Where tasks are fewer than cores, `threads` = cores / `n_jobs` is faster.

    >>> sorted((index, outcome.value) for index, outcome in Local(n_jobs=1).map_unordered(abs, [-1, 2]))
    [(0, 1), (1, 2)]
    """

    def __init__(self, n_jobs: int | None = None, *, threads: int = 1) -> None:
        if n_jobs is None:
            from joblib import cpu_count

            n_jobs = int(cpu_count())
        for name, number in {"n_jobs": n_jobs, "threads": threads}.items():
            if number < 1:
                raise PlanError(f"{name} should be 1 or more, but it is {number}. Raise it or leave it out.")
        self.n_jobs = n_jobs
        self.threads = threads

    def map_unordered(
        self, function: Callable[[T], Any], tasks: Iterable[T]
    ) -> Generator[tuple[int, Outcome], None, None]:
        """Yield the position and outcome of each task when it ends; second attempts come after all the first."""
        first = ((index, task, 1) for index, task in enumerate(tasks))
        again: deque[tuple[int, T, int]] = deque()
        idle: list[Any] = []
        busy: dict[Future[Outcome], tuple[Any, int, T, int]] = {}
        try:
            while True:
                while len(busy) < self.n_jobs:
                    job = next(first, None) or (again.popleft() if again else None)
                    if job is None:
                        break
                    worker, future = self._submit(idle, partial(_attempt, function, job[1]))
                    busy[future] = (worker, *job)
                if not busy:
                    return
                for future in wait(busy, return_when=FIRST_COMPLETED).done:
                    worker, index, task, attempt = busy.pop(future)
                    idle.append(worker)
                    outcome = replace(_outcome(future), attempts=attempt)
                    if outcome.failed and attempt < ATTEMPTS:
                        again.append((index, task, attempt + 1))
                    else:
                        yield index, outcome
        finally:
            for worker in (*idle, *(worker for worker, *_ in busy.values())):
                worker.shutdown(kill_workers=True)

    def _submit(self, idle: list[Any], call: Callable[[], Outcome]) -> tuple[Any, Future[Outcome]]:
        while idle:
            worker = idle.pop()
            try:
                return worker, worker.submit(call)
            except BrokenProcessPool:
                worker.shutdown()
        worker = self._new_worker()
        return worker, worker.submit(call)

    def _new_worker(self) -> Any:
        # One pool per process: a death then has exactly one task to blame and takes no other task with it.
        from joblib.externals.loky import ProcessPoolExecutor

        # Loky replaces a worker whose memory has grown and warns in its own thread, which a warning turned into an
        # error would end: the sweep would wait for ever.
        warnings.filterwarnings("ignore", message="A worker stopped while some jobs were given to the executor")
        return ProcessPoolExecutor(
            max_workers=1,
            env=dict.fromkeys(_THREAD_VARIABLES, str(self.threads)),
            initializer=_live_with_parent,
            initargs=(os.getpid(),),
        )


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
        configuration, seed = _plain_mapping(self.configuration, "configuration"), self.seed
        _refuse_clashes([name for name, _ in _flat(configuration)])
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

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder, Journal(Path(folder) / "journal.sqlite") as journal:
    ...     trial = Trial({"noise": 0.1}, seed=0)
    ...     journal.add([trial], function="train")
    ...     journal.claim(trial), journal.claim(trial)
    (True, False)
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path).absolute()
        self._owner = f"{os.getpid()}-{os.urandom(4).hex()}"
        self._lock: sqlite3.Connection | None = None
        with self._explained():
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._database = sqlite3.connect(self.path, timeout=_LOCK_SECONDS, isolation_level=None)
            try:
                _use_write_ahead_log(self._database)
                self._database.execute(_SCHEMA)
            except sqlite3.Error:
                self._database.close()
                raise

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

    def table(self, trials: Sequence[Trial] | None = None) -> pa.Table:
        """One row per trial: its configuration, its result, and what happened in the columns `trial.*`.

        Names inside of nested mappings are joined by dots. A column whose values have no common type holds JSON text.

        Args:
            trials: Which trials, in which order; all, in the order they were added, if not given.
        """
        columns = "key, seed, code_version, state, attempts, started, seconds, traceback, configuration, result"
        rows = {row[0]: row for row in self._execute(f"SELECT {columns} FROM trial ORDER BY rowid")}
        keys = list(rows) if trials is None else [trial.key for trial in trials]
        if n_missing := sum(key not in rows for key in keys):
            raise PlanError(
                f"The journal {self.path} should hold all {len(keys)} trials asked for, but {n_missing} of them are "
                "missing. Sweep over them first, with this version of the code."
            )
        *happened, configurations, results = zip(*(rows[key] for key in keys), strict=True) if keys else [()] * 10
        types = (pa.string(), pa.int64(), pa.string(), pa.string(), pa.int64(), pa.float64(), pa.float64(), pa.string())
        return pa.table(
            {
                **_columns([json.loads(text) for text in configurations]),
                **_columns([json.loads(text or "{}") for text in results]),
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
            raise StorageError(
                f"The journal {self.path} should be a SQLite file that can be written, but SQLite or the system says: "
                f"{error}. Free some space or choose another path, then run again; finished trials are kept."
            ) from error


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
    journal.add(trials, function=_name(function))
    by_key = {trial.key: trial for trial in trials}
    call = partial(_run, function)
    try:
        with _bar(len(by_key), shown=progress) as show:
            while True:
                journal.requeue_abandoned()
                states = journal.states()
                unfinished = [trial for key, trial in by_key.items() if states[key] in ("queued", "running")]
                n_done = len(by_key) - len(unfinished)
                show(n_done)
                if not unfinished:
                    return journal.table(trials)
                claimed: list[Trial] = []
                with closing(executor.map_unordered(call, _claims(journal, unfinished, claimed))) as outcomes:
                    for index, outcome in outcomes:
                        journal.finish(claimed[index], outcome)
                        n_done += 1
                        show(n_done)
                if not claimed:
                    time.sleep(_POLL_SECONDS)
    finally:
        journal.release()


@cache
def code_version() -> str:
    """The version of this package with a digest of its source files: changed code gives trials new keys."""
    package = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        digest.update(f"{path.relative_to(package).as_posix()}\n{path.stat().st_size}\n".encode())
        digest.update(path.read_bytes())
    return f"{__version__}+{digest.hexdigest()[:16]}"


def _attempt(function: Callable[[T], Any], task: T) -> Outcome:
    start = time.perf_counter()
    try:
        value, text = function(task), None
    except (Exception, SystemExit):
        value, text = None, traceback.format_exc()
    return Outcome(value, text, time.perf_counter() - start)


def _outcome(future: Future[Outcome]) -> Outcome:
    """What a worker sent; a failed attempt if it died, or if its task or value could not travel."""
    error = future.exception()
    return future.result() if error is None else Outcome(traceback="".join(traceback.format_exception(error)))


def _live_with_parent(parent: int) -> None:
    """Leave Ctrl-C to the parent, and end with it: a killed sweep would otherwise leave its workers behind for ever."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _claims(journal: Journal, trials: Iterable[Trial], claimed: list[Trial]) -> Iterator[Trial]:
    for trial in trials:
        if journal.claim(trial):
            claimed.append(trial)
            yield trial


def _run(function: Callable[[Trial], Mapping[str, Any]], trial: Trial) -> dict[str, Any]:
    with _seeded(trial.digest):
        result = _plain_mapping(function(trial), "result")
    _refuse_clashes([name for name, _ in (*_flat(trial.configuration), *_flat(result))])
    return result


@contextmanager
def _seeded(digest: bytes) -> Iterator[None]:
    # Seeding reaches only what is loaded; torch imported during the trial would start from a state of its own.
    if importlib.util.find_spec("torch"):
        import torch  # noqa: F401
    generators = GlobalGenerators()
    before = random.getstate(), generators.capture()
    random.seed(digest)
    generators.seed(int.from_bytes(digest[:8]) >> 1)
    try:
        yield
    finally:
        random.setstate(before[0])
        generators.put(before[1])


@contextmanager
def _bar(total: int, *, shown: bool) -> Iterator[Callable[[int], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("trials"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    hidden = not (shown and sys.stderr.isatty())
    with Progress(*columns, console=Console(stderr=True), disable=hidden) as bar:
        task = bar.add_task("trials", total=total)
        yield lambda n_done: bar.update(task, completed=n_done)


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


def _name(function: Callable[..., Any]) -> str:
    while isinstance(function, partial):
        function = function.func
    named = function if hasattr(function, "__qualname__") else type(function)
    return f"{named.__module__}.{named.__qualname__}"


def _plain_mapping(value: Any, what: str) -> dict[str, Any]:
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


def _flat(mapping: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in mapping.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _refuse_clashes(names: Sequence[str]) -> None:
    clashes = sorted({name for name in names if name.startswith("trial.") or names.count(name) > 1})
    if clashes:
        raise PlanError(
            "The names in a trial's configuration and result should be different columns outside of 'trial.', "
            f"but these are taken: {', '.join(clashes)}. Rename them."
        )


def _columns(records: Sequence[Mapping[str, Any]]) -> dict[str, pa.Array]:
    columns: dict[str, list[Any]] = {}
    for index, record in enumerate(records):
        for name, value in _flat(record):
            columns.setdefault(name, [None] * len(records))[index] = value
    return {name: _array(values) for name, values in columns.items()}


def _array(values: list[Any]) -> pa.Array:
    try:
        return pa.array(values)
    except (pa.ArrowException, OverflowError):
        return pa.array([None if value is None else json.dumps(value) for value in values], pa.string())
