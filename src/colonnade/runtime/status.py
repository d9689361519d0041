"""Status: what a run is and how it stands, in its folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from colonnade.errors import PlanError, StorageError
from colonnade.storage import explained, write_atomically


class Status:
    """What a run is and how it stands, in its folder.

    Attributes:
        finished: Whether the folder holds a finished run, whose status stays until another one is written.
    """

    def __init__(self, directory: Path | None, identity: Mapping[str, Any]) -> None:
        self._path = None if directory is None else directory / "run.json"
        self._identity = json.loads(json.dumps(identity))
        self.finished = False
        if self._path is not None and self._path.exists():
            found = self._found()
            different = [key for key, value in self._identity.items() if found.get(key) != value]
            if different:
                raise PlanError(
                    f"{directory} holds another run than this one: its {', '.join(different)} differ. "
                    "Choose another folder, or delete this one to start again."
                )
            self.finished = found.get("status") == "finished"
        if not self.finished:
            self.write("running")

    def _found(self) -> dict[str, Any]:
        assert self._path is not None
        with explained("read run.json"):
            text = self._path.read_text()
        try:
            found: dict[str, Any] = json.loads(text)
        except ValueError as error:
            raise StorageError(
                f"{self._path.parent} should hold a run, but its run.json cannot be read. Delete it to start anew."
            ) from error
        return found

    def write(self, status: str, error: BaseException | None = None) -> None:
        """Write down how the run stands."""
        if self._path is None:
            return
        words = None if error is None else f"{type(error).__name__}: {error}"
        write_atomically(self._path, json.dumps({**self._identity, "status": status, "error": words}).encode())
        self.finished = status == "finished"
