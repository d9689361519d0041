"""Setup: a model with tables and roles to try it on, and what is compared when it is tried twice."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from colonnade.models.base import Estimator, Prediction
from colonnade.roles import Roles
from colonnade.runtime.context import HookContext
from colonnade.runtime.party import Defence
from colonnade.runtime.simulate import Run, simulate
from colonnade.storage import Tree, pack
from colonnade.tables.table import Table
from colonnade.wire.message import Message
from colonnade.wire.recording.frames import Entry
from colonnade.wire.recording.recording import Transcript

T = TypeVar("T")


@dataclass(frozen=True)
class Setup:
    """A model with tables and roles to try it on.

    >>> from colonnade.models.networks.split import SplitClassifier
    >>> tables = {name: Table.of({"id": range(4), "x": range(4)}) for name in ("bank", "shop")}
    >>> tables["bank"] = tables["bank"].with_labels([0, 1, 0, 1])
    >>> setup = Setup(SplitClassifier, tables, Roles(label="bank", features=("shop",)))
    >>> list(setup.fit().results)
    ['bank', 'shop']
    """

    make: Callable[[], Estimator]
    tables: Mapping[str, Table]
    roles: Roles

    def fit(self, tables: Mapping[str, Table] | None = None, **options: Any) -> Run[Estimator]:
        """Train a share for each party, with the options of `simulate`."""
        return simulate(self.make().fit, self.tables if tables is None else tables, roles=self.roles, **options)

    def predict(self, shares: Mapping[str, Estimator], **options: Any) -> Run[Prediction | None]:
        """Predict with the parties' shares."""
        protocols = {name: share.predict for name, share in shares.items()}
        return simulate(protocols, self.tables, roles=self.roles, **options)

    def both(self, **options: Any) -> tuple[Run[Estimator], Run[Prediction | None]]:
        """Train, then predict."""
        fitted = self.fit(**options)
        return fitted, self.predict(fitted.results, **options)

    @property
    def hooks(self) -> dict[str, frozenset[str]]:
        """The defence hooks that the model says it calls, by party; the first feature party stands for all."""
        return self._by_party(self.make().hooks)

    def holders(self, defence: Defence) -> list[str]:
        """The parties on whose side all hooks of a defence are called, and what it acts on and reads is there."""
        sends = self._by_party(self.make().sends)
        return [
            party
            for party, called in self.hooks.items()
            if defence.overridden() <= called
            and (not defence.acts_on or set(defence.acts_on) & set(sends[party]))
            and (not defence.reads_labels or "labels" in called)
        ]

    def _by_party(self, by_role: Mapping[str, T]) -> dict[str, T]:
        roles = self.roles
        parties = {"label": roles.label, "feature": roles.features[0], "arbiter": roles.arbiter, "server": roles.server}
        return {party: said for role, said in by_role.items() if (party := parties[role]) is not None}


def witness(hooks: Iterable[str], note: Callable[[str, Any, HookContext | None], None]) -> Defence:
    """A defence that changes nothing and says what passes its hooks."""

    def noting(hook: str) -> Callable[..., Any]:
        def pass_on(self: Defence, tensor: Any = (), at: HookContext | None = None) -> Any:
            note(hook, tensor, at)
            return tensor

        return pass_on

    defence: Defence = type("Witness", (Defence,), {hook: noting(hook) for hook in hooks})()
    return defence


def ending(run: Run[Any]) -> dict[str, Any]:
    """All that a run leaves behind, part by part, as far as it must be the same when the run is repeated."""
    parts: dict[str, Any] = {}
    for name, result in run.results.items():
        if isinstance(result, Estimator):
            parts[f"the share of {name}"] = pack(result.share())
        if isinstance(result, Prediction):
            probabilities = None if result.probabilities is None else result.probabilities.tobytes()
            parts[f"the prediction of {name}"] = result.values.tolist(), probabilities
        parts[f"the recording of {name}"] = list(_recorded(run.transcripts[name]))
        parts[f"the ledger of {name}"] = run.ledgers[name].to_json()
    return parts


def arrays(tree: Tree) -> Iterator[NDArray[Any]]:
    """The arrays in a tree."""
    if hasattr(tree, "detach"):
        tree = tree.detach().cpu().numpy()
    if isinstance(tree, np.ndarray):
        yield tree
    elif isinstance(tree, Mapping):
        for value in tree.values():
            yield from arrays(value)
    elif isinstance(tree, list | tuple):
        for value in tree:
            yield from arrays(value)


def is_finite(values: NDArray[Any]) -> bool:
    """Whether all numbers among some values are finite."""
    return values.dtype.kind != "f" or bool(np.isfinite(values).all())


def _recorded(transcript: Transcript) -> Iterator[tuple[Any, ...]]:
    for entry in transcript.entries:
        yield entry.sent, entry.peer, entry.kind, entry.under, entry.epoch, _contents(transcript, entry)
    for means in transcript.means:
        if not Message.kinds[means.kind].fresh:
            yield means.kind, means.peer, means.sent, means.sums.tobytes(), means.counts.tobytes()
    yield (pack(dict(transcript.notes)),)


def _contents(transcript: Transcript, entry: Entry) -> tuple[Any, ...] | None:
    if entry.fresh:
        return None
    kept = None if entry.place is None else transcript.frames.read(entry.section, entry.place)
    if kept is None:
        return (entry.digest,)
    frame, rows = kept
    return entry.digest, frame, None if rows is None else rows.tolist()
