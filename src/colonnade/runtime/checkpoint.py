"""Checkpoints: what a party keeps so that a run can go on after a crash.

A protocol loops over `Steps`; at agreed steps each party writes down everything that the next step depends on. After a
crash the protocol is entered again: loops that had ended are skipped, the interrupted one goes on from the newest
checkpoint that all parties hold. A protocol need only keep two rules: messages do not cross the boundary of a step, and
what it draws before a loop and must not draw again goes through `once`.

All secrets of a run lie in the folder of checkpoints and nowhere else on the disk: keys, shares, seeds, and the key of
the party's randomness. The folder is erased as soon as the run has finished at all parties.
"""

from __future__ import annotations

import re
import secrets
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.random.mtrand import get_bit_generator, set_bit_generator

from colonnade.errors import PlanError, StorageError
from colonnade.storage import Tree, erase, explained, pack, read_tree, unpack, write_atomically, write_tree

T = TypeVar("T")

SAID = "said"
"""The file with the digests of what peers said in this run (`colonnade.runtime.replay`)."""

# NumPy crashes where one thread exchanges its generator while another reads its state.
_LOCK = threading.Lock()


class Resumable(Protocol):
    """Something that can write down all it needs to go on, and take it up again."""

    def state(self) -> Tree:
        """A tree of arrays and plain values."""

    def restore(self, tree: Tree) -> None:
        """Go back to what `state` said."""


class Watcher(Protocol):
    """Somebody who is told how far a run has come."""

    def __call__(self, party: str, loop: str, done: int, total: int, figures: Mapping[str, float]) -> None:
        """Called after each step."""


class Checkpoints:
    """A party's own folder of checkpoints; without a folder, nothing is kept.

    Shared checkpoints are numbered alike at all parties. `resume_from` is the newest one that all hold; the runner
    finds it before the protocol starts. `at` says in which step of which shared loop the party is, if in any.

    >>> Checkpoints(None).once("key", lambda: 7)
    7
    """

    def __init__(self, directory: Path | None, *, every: int = 50) -> None:
        self.directory, self.every = directory, every
        self.resume_from = 0
        self.at = ""
        self.on_write: Callable[[int], None] = lambda number: None
        self._written = 0
        self._made: dict[str, Any] = {}
        self._begun: set[str] = set()

    @property
    def newest(self) -> int:
        """The number of the newest shared checkpoint in the folder; 0 if there is none."""
        return max(self._files(), default=0)

    @property
    def folder(self) -> bytes:
        """A number that was drawn when the folder was made."""
        return bytes.fromhex(self.once("folder", lambda: secrets.token_hex(16)))

    @property
    def run(self) -> bytes:
        """What all parties call the run that the checkpoints are of; empty if there are none."""
        return self._noted_run() if self.newest else b""

    def belong_to(self, run: bytes) -> bool:
        """Note which run the checkpoints from here on are of; all that this party drew for another run is forgotten.

        Returns:
            Whether there was another run before.
        """
        if self.directory is None or (before := self._noted_run()) == run:
            return False
        self._made.clear()
        with explained("delete what another run needed"):
            for pattern in ("local-*.safetensors", "once-*.safetensors", SAID):
                for path in self.directory.glob(pattern):
                    if not path.name.startswith("once-folder"):
                        path.unlink()
        write_atomically(self.directory / "run", run)
        return before != b""

    def _noted_run(self) -> bytes:
        if self.directory is None or not (self.directory / "run").exists():
            return b""
        with explained("read which run the checkpoints are of"):
            return (self.directory / "run").read_bytes()

    def resume(self, number: int) -> None:
        """Go back to a shared checkpoint and forget those after it."""
        if self.directory is not None and number and number not in self._files():
            raise StorageError(
                f"All should go on from checkpoint {number}, but {self.directory} no longer holds it: another party "
                "came with an older copy of its folder. Give that party its newest folder, or delete it to start again."
            )
        self.at = ""
        self.resume_from = self._written = number
        self._made.clear()
        self._begun.clear()
        with explained("delete checkpoints"):
            # The newest first: a party that is killed in between must not lack a checkpoint older than its newest.
            for other, path in reversed(self._files().items()):
                if other > number:
                    path.unlink(missing_ok=True)

    def forget_before(self, number: int) -> None:
        """Delete shared checkpoints that nobody will go back to; the newest and the ends of loops stay."""
        with explained("delete checkpoints"):
            for other, path in self._files().items():
                if other < min(number, self.newest) and not _ends_loop(path):
                    path.unlink(missing_ok=True)

    def write(self, loop: str, tree: Tree, *, finished: bool) -> None:
        """Write the next shared checkpoint."""
        assert self.directory is not None
        self._written += 1
        suffix = "end" if finished else "step"
        write_tree(self.directory / f"{self._written:08d}.{_safe(loop)}.{suffix}.safetensors", tree)
        self.on_write(self._written)

    def find(self, loop: str) -> tuple[int, Path] | None:
        """Where a loop is to be taken up: its end if it had ended, else the newest checkpoint if that is inside it."""
        for number, path in self._files().items():
            inside = path.name.split(".")[1] == _safe(loop)
            if inside and (number == self.resume_from or (number < self.resume_from and _ends_loop(path))):
                return number, path
        return None

    def once(self, name: str, make: Callable[[], T]) -> T:
        """A value made once in the life of a run and written down before it is used.

        The states of the libraries' generators after it was made are written down too, so that a run which does not
        make it again goes on with the same numbers. When the run gives way to another run, the value is forgotten,
        unless its name begins with "folder": then it is made once in the life of the folder.
        """
        if name not in self._made:
            path = None if self.directory is None else self.directory / f"once-{_safe(name)}.safetensors"
            generators = GlobalGenerators()
            if path is not None and path.exists():
                tree = read_tree(path)
                generators.restore(tree["generators"])
            else:
                tree = unpack(pack({"value": make(), "generators": generators.state()}))
                if path is not None:
                    write_tree(path, tree)
            self._made[name] = tree["value"]
        value: T = self._made[name]
        return value

    def made(self, name: str) -> Any:
        """What `once` has made under a name in this run; None if nothing."""
        if name in self._made or self.directory is None:
            return self._made.get(name)
        path = self.directory / f"once-{_safe(name)}.safetensors"
        return read_tree(path)["value"] if path.exists() else None

    def erase(self) -> None:
        """Delete all of it, the keys, shares and seeds of the run: all parties have finished, and nobody goes back.

        What a library or the interpreter still holds of them in memory is freed, not overwritten.
        """
        self._made.clear()
        if self.directory is not None:
            erase(self.directory)

    def begin(self, loop: str) -> None:
        """Note that a loop begins; two of one name could not be told apart when a run resumes."""
        if loop in self._begun:
            raise PlanError(
                f"The loop {loop!r} was begun twice in one run. Give every loop of a protocol its own name."
            )
        self._begun.add(loop)

    def local(self, loop: str) -> Path | None:
        """Where a loop that one party runs alone keeps its only checkpoint."""
        return None if self.directory is None else self.directory / f"local-{_safe(loop)}.safetensors"

    def _files(self) -> dict[int, Path]:
        if self.directory is None:
            return {}
        return {int(path.name[:8]): path for path in sorted(self.directory.glob("[0-9]*.safetensors"))}


class Steps:
    """The steps of one loop of a protocol: an iterator that checkpoints and resumes.

    >>> for step in Steps("train", 3, {}, Checkpoints(None)):
    ...     print(step)
    0
    1
    2
    """

    def __init__(
        self,
        name: str,
        n: int,
        parts: Mapping[str, Resumable],
        checkpoints: Checkpoints,
        *,
        shared: bool = True,
        party: str = "",
        watcher: Watcher | None = None,
    ) -> None:
        self._name, self._n, self._parts, self._checkpoints = name, n, parts, checkpoints
        self._shared, self._party, self._watcher = shared, party, watcher
        self._stopped = False
        self._figures: dict[str, float] = {}

    def stop(self) -> None:
        """Make the current step the last one; all parties must agree on it. A `break` would not be remembered."""
        self._stopped = True

    def show(self, **figures: float) -> None:
        """Put figures beside the progress bar."""
        self._figures.update(figures)

    def __iter__(self) -> Iterator[int]:
        """Yield the numbers of the steps that are still to be done."""
        self._checkpoints.begin(self._name)
        around = self._checkpoints.at
        for step in range(self._resume(), self._n):
            if self._shared:
                self._checkpoints.at = f"step {step} of {self._name}"
            yield step
            finished = self._stopped or step + 1 == self._n
            if self._watcher is not None:
                self._watcher(self._party, self._name, self._n if finished else step + 1, self._n, self._figures)
            if finished or (step + 1) % self._checkpoints.every == 0:
                self._write(step + 1, finished)
            if self._shared:
                self._checkpoints.at = around
            if finished:
                return

    def _resume(self) -> int:
        if self._shared:
            found = self._checkpoints.find(self._name)
            if found is None:
                return 0
            number, path = found
            # The recording is cut back once only, to the newest checkpoint: cutting destroys what comes after.
            is_newest = number == self._checkpoints.resume_from
            wanted = [name for name in self._parts if is_newest or name != "recording"]
        else:
            local = self._checkpoints.local(self._name)
            if local is None or not local.exists():
                return 0
            path, wanted = local, list(self._parts)
        tree = read_tree(path)
        for name in wanted:
            self._parts[name].restore(tree["parts"][name])
        return self._n if tree["finished"] else int(tree["step"])

    def _write(self, step: int, finished: bool) -> None:
        if self._checkpoints.directory is None:
            return
        parts = {name: part.state() for name, part in self._parts.items()}
        tree = {"step": step, "finished": finished, "parts": parts}
        if self._shared:
            self._checkpoints.write(self._name, tree, finished=finished)
        else:
            path = self._checkpoints.local(self._name)
            assert path is not None
            write_tree(path, tree)


class GlobalGenerators:
    """The random generators that libraries share within a process: NumPy's and PyTorch's.

    They are exchanged between parties that take turns, so this has to be quick: of NumPy's the generator itself is
    taken away and put back, not its state.
    """

    def seed(self, seed: int) -> None:
        """Put fresh generators in place, which start from one number.

        PyTorch is imported for this where it is installed: a protocol that imports it later would draw from a state
        that depends on what ran before.
        """
        self.seed_numpy(seed)
        if find_spec("torch") is not None:
            import torch

            torch.manual_seed(seed)

    def seed_numpy(self, seed: int) -> None:
        """The same for NumPy's generator alone."""
        with _LOCK:
            set_bit_generator(np.random.MT19937(seed))

    def capture(self) -> tuple[Any, Any]:
        """The generators in place now, to be put back later; until then others must have been put in place."""
        torch = _imported_torch()
        with _LOCK:
            return get_bit_generator(), None if torch is None else torch.get_rng_state()

    def put(self, captured: tuple[Any, Any]) -> None:
        """Put captured generators back."""
        of_numpy, of_torch = captured
        with _LOCK:
            set_bit_generator(of_numpy)
        if of_torch is not None:
            sys.modules["torch"].set_rng_state(of_torch)

    def state(self) -> Tree:
        torch = _imported_torch()
        with _LOCK:
            of_numpy = list(np.random.get_state(legacy=True))
        return {"numpy": of_numpy, "torch": None if torch is None else torch.get_rng_state().numpy()}

    def lose_half_draw(self) -> None:
        """Lose the second of two normal numbers, which NumPy holds back where only one was asked for."""
        with _LOCK:
            set_bit_generator(get_bit_generator())

    def restore(self, tree: Tree) -> None:
        with _LOCK:
            np.random.set_state(tuple(tree["numpy"]))
        if tree["torch"] is not None:
            import torch

            torch.set_rng_state(torch.from_numpy(tree["torch"]))


def _imported_torch() -> Any:
    """PyTorch where it has been imported, or None; waits for a thread that is importing it."""
    # None in `sys.modules` is how an import is forbidden.
    return None if sys.modules.get("torch") is None else import_module("torch")


def _ends_loop(path: Path) -> bool:
    return path.name.endswith(".end.safetensors")


def _safe(name: str) -> str:
    assert re.fullmatch(r"[\w -]+", name), f"{name!r} cannot be part of a file name"
    return name.replace(" ", "-")
