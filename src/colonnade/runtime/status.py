"""Status: what a run is and how it stands, in the file run.json of its folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from colonnade.errors import PlanError, StorageError
from colonnade.storage import explained, write_atomically


class Status:
    """What a run is and how it stands, written into its folder; nothing is written where there is no folder.

    Attributes:
        finished: Whether the folder holds a finished run, whose status stays until another one is written.
        met: Whether all parties have met; a run that never met has told nothing to anybody.
    """

    def __init__(self, directory: Path | None, identity: Mapping[str, Any]) -> None:
        self._directory = directory
        self._identity = json.loads(json.dumps(identity))
        self._noted: dict[str, Any] = {}
        self.finished = self.met = False
        if directory is not None and has_begun(directory):
            found = read_status(directory)
            different = [key for key, value in self._identity.items() if found.get(key) != value]
            if different:
                raise PlanError(
                    f"{directory} holds another run than this one: its {', '.join(different)} differ. "
                    "Choose another folder, or delete this one to start again."
                )
            self.finished = found.get("status") == "finished"
            self.met = bool(found.get("met", True))
        if not self.finished:
            self.write("running")

    def write(self, status: str, error: BaseException | None = None) -> None:
        """Write down how the run stands."""
        if self._directory is not None:
            words = None if error is None else f"{type(error).__name__}: {error}"
            tree = {**self._identity, **self._noted, "met": self.met, "status": status, "error": words}
            write_atomically(self._directory / "run.json", json.dumps(tree).encode())
            self.finished = status == "finished"

    def note(self, **facts: Any) -> None:
        """Write down more about a run that goes on, under names that do not say which run it is."""
        assert not facts.keys() & self._identity.keys(), facts
        self._noted |= facts
        self.write("running")


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
    try:
        with explained(f"read {path}"):
            found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return {**found, **{key: found[key] for key in ("status", "plan", *keys)}}
    except (ValueError, KeyError, TypeError) as error:
        raise StorageError(
            f"{path} should say how a run stands, but is damaged. Restore it, or delete the folder to start again."
        ) from error
