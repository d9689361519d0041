"""Status: what a run is and how it stands, in run.json of its folder, and where it is just now, in live.json."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from math import inf
from pathlib import Path
from typing import Any

from colonnade.errors import PlanError, StorageError
from colonnade.runtime.checkpoint import Watcher
from colonnade.storage import explained, write_atomically

MOST_NAMED = 8


class Status:
    """What a run is and how it stands, written into its folder; nothing is written where there is no folder.

    Attributes:
        finished: Whether the folder holds a finished run, whose status stays until another one is written.
        met: Whether all parties have met; a run that never met has told nothing to anybody.
    """

    def __init__(self, directory: Path | None, identity: Mapping[str, Any]) -> None:
        self._directory = directory
        self._identity = json.loads(json.dumps(identity))
        self._noted: dict[str, Any] = {"begun": _now()}
        self.finished = self.met = False
        if directory is not None and has_begun(directory):
            found = read_status(directory)
            self.met = bool(found.get("met", True))
            different = [key for key, value in self._identity.items() if found.get(key) != value]
            # A run that ended before it met anybody has told nothing, so its folder serves any other run.
            if different and (self.met or found["status"] not in ("failed", "stopped")):
                raise PlanError(
                    f"{directory} holds another run than this one: its {', '.join(different)} differ. "
                    "Choose another folder, or delete this one to start again."
                )
            self.finished = found.get("status") == "finished"
            self._noted["begun"] = found.get("begun", self._noted["begun"])
        if not self.finished:
            self.write("running")

    def write(self, status: str, error: BaseException | None = None) -> None:
        """Write down how the run stands."""
        if self._directory is not None:
            words = None if error is None else f"{type(error).__name__}: {error}"
            tree = {**self._identity, **self._noted, "met": self.met, "at": _now(), "status": status, "error": words}
            write_atomically(self._directory / "run.json", json.dumps(tree).encode())
            self.finished = status == "finished"

    def note(self, **facts: Any) -> None:
        """Write down more about a run that goes on, under names that do not say which run it is."""
        assert not facts.keys() & self._identity.keys(), facts
        self._noted |= facts
        self.write("running")


class LiveStatus:
    """Where a run is just now, in the file live.json of its folder: which step, for whom it waits, who is gone.

    The file is written now and then, so that a long run does not wait for its disk.

    Args:
        folder: The folder of the run.
        shown_wait: Called with every wait too.
        shown_step: Called with every step too.
        every_s: How many seconds there are between two writes at least, unless something has changed.
    """

    def __init__(
        self,
        folder: Path,
        shown_wait: Callable[[Sequence[str], float], None] | None = None,
        shown_step: Watcher | None = None,
        *,
        every_s: float = 2.0,
    ) -> None:
        self._shown_wait, self._shown_step = shown_wait, shown_step
        self._path, self._every_s, self._last = folder / "live.json", every_s, -inf
        self._facts: dict[str, Any] = {"gone": []}

    def wait(self, names: Sequence[str], seconds: float) -> None:
        """Note for whom the party waits at the beginning, and for how long still."""
        self._write({"waiting_for": list(names), "seconds_left": round(seconds)})
        if self._shown_wait is not None:
            self._shown_wait(names, seconds)

    def step(self, party: str, loop: str, done: int, total: int, figures: Mapping[str, float]) -> None:
        """Note how far a loop has come."""
        self._facts |= {"waiting_for": [], "seconds_left": 0}
        self._write({"loop": loop, "done": done, "total": total, "figures": dict(figures)}, now=done == total)
        if self._shown_step is not None:
            self._shown_step(party, loop, done, total, figures)

    def line(self, peer: str, is_there: bool) -> None:
        """Note that a peer was lost, or has come back."""
        self._write({"gone": sorted({*self._facts["gone"], peer} - ({peer} if is_there else set()))}, now=True)

    def _write(self, facts: Mapping[str, Any], *, now: bool = False) -> None:
        self._facts |= facts
        if not now and time.monotonic() - self._last < self._every_s:
            return
        self._last = time.monotonic()
        # No run ends because somebody cannot look at it.
        with suppress(StorageError):
            write_atomically(self._path, json.dumps({"at": _now(), **self._facts}).encode())


def read_live(folder: Path) -> dict[str, Any]:
    """Where the run in a folder is just now, or was when it ended; empty if that is not known."""
    with suppress(OSError, ValueError):
        found = json.loads((folder / "live.json").read_text(encoding="utf-8"))
        if isinstance(found, dict):
            return found
    return {}


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def has_begun(folder: Path) -> bool:
    """Whether a folder holds a run."""
    with explained(f"read {folder / 'run.json'}"):
        return (folder / "run.json").is_file()


def status_of(folder: Path) -> str:
    """How far the run in a folder has come: "planned", "running", "failed", "stopped" or "finished"."""
    return str(read_status(folder)["status"]) if has_begun(folder) else "planned"


def read_status(folder: Path, *keys: str) -> dict[str, Any]:
    """What the folder of a run says about the run: its status, its plan, and at least these keys."""
    path = folder / "run.json"
    if folder.is_dir() and not has_begun(folder):
        below = sorted(str(each.parent) for depth in ("*", "*/*") for each in folder.glob(f"{depth}/run.json"))
        more = " and others" if len(below) > MOST_NAMED else ""
        known = f" Below it are {', '.join(below[:MOST_NAMED])}{more}." if below else ""
        raise StorageError(
            f"{folder} should be the folder of a run, as `colonnade join` or `colonnade simulate` makes it, but has no "
            f"run.json.{known} Name the folder of a run."
        )
    try:
        with explained(f"read {path}"):
            found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return {**found, **{key: found[key] for key in ("status", "plan", *keys)}}
    except (ValueError, KeyError, TypeError) as error:
        raise StorageError(
            f"{path} should say how a run stands, but is damaged. Restore it, or delete the folder to start again."
        ) from error
