"""Estimate: what a training will send, read off a dry run of the model in memory.

A party trains the model on some hundred of its own rows, with stand-ins for the other parties that have columns like
its own. Messages are counted by line and kind, and scaled to the real number of rows and epochs. Nothing leaves the
party but the sizes of messages on the line to a peer, which this peer would see in the run anyway.

A party knows only its own table, so the two ends of a line compare their estimates. An estimate is sure if other
stand-ins would not change it, as far as one trial shows. A sure estimate beats the other end's. Of two equals the
larger counts, because a stand-in may be narrower than the party in whose place it stands.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import astuple, dataclass
from itertools import pairwise
from typing import Any, TypeAlias, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from colonnade.curves import CurvesType
from colonnade.errors import ColonnadeError
from colonnade.models.base import Estimator
from colonnade.roles import Roles
from colonnade.runtime.simulate import simulate
from colonnade.tables.table import Table
from colonnade.wire.recording.frames import Entry

EPOCHS = ("epochs", "max_iter", "n_estimators")
"""The parameters that say how often a model repeats its exchange."""
STOPPING = ("n_iter_no_change", "tol", "early_stopping_rounds")
"""The parameters by which a model may stop before its last epoch."""
# Ciphertexts hold thousands of numbers, so their count grows by steps: the two sizes lie far apart.
FEW_ROWS, MANY_ROWS = 512, 8192
FEW_BATCHES, MANY_BATCHES = 2, 8
SLOW_S = 4.0

_Tally: TypeAlias = "Counter[tuple[bool, str]]"
_TURNS = (False, "turns")
_QUIET = threading.RLock()


@dataclass(frozen=True)
class TrafficEstimate:
    """What a training sends over the line between this party and a peer.

    Attributes:
        sent: Bytes from this party to the peer.
        received: Bytes from the peer to this party.
        round_trips: How often one of them waits for the other's answer.
        sure: 1 if the other parties' tables do not matter, 0 if they may.

    >>> TrafficEstimate(10**6, 10**6, 10).seconds(latency=0.05, bandwidth=10**6)
    2.5
    """

    sent: int = 0
    received: int = 0
    round_trips: int = 0
    sure: int = 0

    @property
    def total(self) -> int:
        """Bytes both ways."""
        return self.sent + self.received

    def seconds(self, latency: float, bandwidth: float) -> float:
        """How long a line needs for the traffic, besides what the parties compute.

        Args:
            latency: Of a message and its answer, in seconds.
            bandwidth: In bytes per second, each way.
        """
        return self.round_trips * latency + self.total / bandwidth

    def compared(self, peers: TrafficEstimate) -> TrafficEstimate:
        """The better of this estimate and that of the peer at the other end of the line."""
        theirs = TrafficEstimate(peers.received, peers.sent, peers.round_trips, peers.sure)
        if self.sure != theirs.sure:
            return self if self.sure else theirs
        return TrafficEstimate(*(max(mine, other) for mine, other in zip(astuple(self), astuple(theirs), strict=True)))


def estimate(model: Estimator, roles: Roles, name: str, table: Table) -> dict[str, TrafficEstimate]:
    """What a real training of a model, in its real roles, sends over each line of one party, by peer."""
    epochs = next((key for key in EPOCHS if key in model.get_params()), None)
    chosen: Any = 1 if epochs is None else getattr(model, epochs)
    counted: dict[str, Any] = {} if epochs is None else {epochs: chosen}
    if chosen == "auto":
        # What the model counts by itself depends on all rows, of which a dry run has some.
        counted = cast(Any, model).counted_on(len(table))
    n_epochs = 1 if epochs is None else int(counted[epochs])
    batch = model.get_params().get("batch_size")
    few, many = (FEW_BATCHES * batch, MANY_BATCHES * batch) if batch else (FEW_ROWS, MANY_ROWS)
    order, n_needed = _covering(table)
    few = max(few, n_needed)
    if len(table) <= max(many, 2 * few):
        few = len(table)

    def entries(n_rows: int, repeats: int, *, narrow: bool = False) -> tuple[Entry, ...]:
        repeated = {} if epochs is None else counted | {epochs: repeats}
        small = model.clone().set_params(**model.dry_run_params, **repeated)
        tables = _tables(small, roles, name, table.take(np.sort(order[:n_rows])), narrow=narrow)
        with unlogged():
            return simulate(small.fit, tables, roles=roles, keep="digests").transcripts[name].entries

    begun = time.process_time()
    small = entries(few, min(n_epochs, 2))
    slow = time.process_time() - begun > SLOW_S
    many = 2 * few if slow else max(many, 2 * few)
    large = None if few == len(table) else entries(many, 1)
    other: tuple[Entry, ...] = ()
    # Some networks take no table but one like this party's: then nothing is sure.
    with suppress(ColonnadeError):
        other = () if slow else entries(few, 1, narrow=True)
    found = {}
    for peer in roles.parties:
        line = [entry for entry in small if entry.peer == peer]
        if not line:
            continue
        total, first = _tally(line), _tally(entry for entry in line if not entry.epoch)
        repeated = _tally(_repeated(line))
        repeated[_TURNS] = total[_TURNS] - first[_TURNS]
        for key, count in repeated.items():
            total[key] += max(0, n_epochs - 2) * count
        sure = _without_turns(first) == _without_turns(_tally(entry for entry in other if entry.peer == peer))
        if large is not None:
            wider, growth = _tally(entry for entry in large if entry.peer == peer), (len(table) - few) / (many - few)
            for key in total:
                if wider[key] > first[key] > 0:
                    total[key] = round(total[key] * (1 + growth * (wider[key] - first[key]) / first[key]))
        turns = (total.pop(_TURNS) + 1) // 2
        sent = sum(count for (is_sent, _), count in total.items() if is_sent)
        found[peer] = TrafficEstimate(sent, sum(total.values()) - sent, turns, int(sure))
    return found


@contextmanager
def unlogged() -> Iterator[None]:
    """Let models log errors only: what they would warn of is expected here, or was told before."""
    log = logging.getLogger("colonnade.models")
    # Two at a time would each take the other's level for the one to restore, and models would never warn again.
    with _QUIET:
        before = log.level
        log.setLevel(logging.ERROR)
        try:
            yield
        finally:
            log.setLevel(before)


def is_at_most(model: Estimator) -> bool:
    """Whether training may send less than its estimate: it may end early, or the label party's columns spare some."""
    return model.label_columns_spare or any(model.get_params().get(key) for key in STOPPING)


def _tally(entries: Iterable[Entry]) -> _Tally:
    """The bytes of messages by direction and kind, and how often the direction changes."""
    tally: _Tally = Counter()
    entries = list(entries)
    for entry in entries:
        tally[entry.sent, entry.kind] += entry.size
    tally[_TURNS] = sum(before.sent != after.sent for before, after in pairwise(entries))
    return tally


def _repeated(line: Sequence[Entry]) -> list[Entry]:
    """The messages of the first of two epochs, in loops that have a second."""
    loops = {entry.section[0] for entry in line if entry.section is not None and entry.section[1] == 1}
    return [e for e in line if e.section is not None and e.section[0] in loops and e.section[1] == 0]


def _without_turns(tally: _Tally) -> dict[tuple[bool, str], int]:
    return {key: count for key, count in tally.items() if key != _TURNS}


def _covering(table: Table) -> tuple[NDArray[np.int64], int]:
    """All rows, first those that show every level, every class and every column with missing values; and how many."""
    arrow, needed = table.to_arrow(), []
    for name in (*table.columns, *(() if table.label_name is None else (table.label_name,))):
        values = arrow.column(name)
        if isinstance(values.type, CurvesType):
            continue
        if pa.types.is_floating(values.type) or pa.types.is_temporal(values.type):
            missing = pc.index(values.is_null(nan_is_null=True), True).as_py()
            needed.append(np.array([missing] if missing >= 0 else [], np.int64))
        elif name == table.label_name or table.kinds[name] == "categorical":
            codes = values.combine_chunks().dictionary_encode().indices.fill_null(-1).to_numpy()
            needed.append(np.unique(codes, return_index=True)[1])
    first = np.unique(np.concatenate([np.zeros(0, np.int64), *needed]))
    others = np.setdiff1d(np.arange(len(table)), first)
    # Evenly spread, so that a sorted table is not read from its beginning only.
    others = others[np.random.default_rng(0).permutation(len(others))]
    return np.concatenate([first, others]), len(first)


def _tables(model: Estimator, roles: Roles, name: str, own: Table, *, narrow: bool) -> dict[str, Table]:
    """A party's rows, and stand-ins for the other holders of tables; `narrow` makes them different."""
    features = _stand_in(own)
    if narrow:
        features = _narrowed(features)
    tables = {holder: _of_holder(features, holder) for holder in roles.holders}
    if roles.label is not None:
        labels = _labels(model, features, n_classes=3 if narrow else 2)
        label = tables[roles.label].select([]) if "curves" in features.kinds.values() else tables[roles.label]
        tables[roles.label] = label.with_labels(labels)
    tables[name] = own
    if roles.label is not None and model.label_columns_spare:
        label, weights = tables[roles.label], model.get_params().get("sample_weight")
        tables[roles.label] = label.select([column for column in label.columns if column == weights])
    return tables


def _stand_in(own: Table) -> Table:
    if own.columns:
        return own.without_labels()
    if own.labels is not None and isinstance(own.labels.type, CurvesType):
        return Table.of({"id": own.ids, "x": own.labels})
    return Table.of({"id": own.ids, "x": np.random.default_rng(0).standard_normal(len(own))})


def _narrowed(features: Table) -> Table:
    """A stand-in with one column only; with two if it had one."""
    first = features.columns[0]
    if len(features.columns) > 1:
        return features.select([first])
    arrow = features.to_arrow()
    return Table.of(arrow.append_column(f"{first} again", arrow.column(first)), ids=features.id_name)


def _of_holder(features: Table, holder: str) -> Table:
    """The stand-in of one holder: columns of curves have different names at all parties."""
    arrow, kinds = features.to_arrow(), features.kinds
    names = [f"{name} of {holder}" if kinds.get(name) == "curves" else name for name in arrow.column_names]
    return Table.of(arrow.rename_columns(names), ids=features.id_name, owner=holder)


def _labels(model: Estimator, features: Table, *, n_classes: int) -> Any:
    curves: Sequence[str] = [name for name, kind in features.kinds.items() if kind == "curves"]
    if curves:
        return features.to_arrow().column(curves[0])
    places = np.arange(len(features))
    return places % n_classes if model.task == "classification" else (places % 3).astype(np.float64)
