"""The sums of boosted trees under encryption: the kernel of `secureboost`.

Both parties run in this process, by one thread, and all times are processor seconds. xgboost (hist, one thread) runs
beside them on the same bins, its own binning excluded as ours is. Every tree is compared with the one grown from plain
sums. What is prepared ahead depends on secrets only; online is what waits for gradients. Growth itself, that is
choosing splits and sending rows to their sides, is left out of both parties' times.

The same with hidden sums: queries, what is prepared ahead for comparisons, and the comparisons themselves, in processor
seconds and megabytes of both parties for one tree.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from time import process_time
from typing import Any

import numpy as np

from benchmarks.comparisons import counted
from colonnade.crypto import hinted
from colonnade.crypto.histograms import HistogramBins
from colonnade.crypto.profiles import HISTOGRAM, Budget
from colonnade.crypto.reserves import Reserve, begin_first, begin_second, fill_first, fill_second
from colonnade.crypto.transfers import in_turns
from colonnade.models.trees.bins import BinMatrix, Column, starts
from colonnade.models.trees.grow import PlainSums, Tree, grow
from colonnade.models.trees.hidden import (
    MOST_TOTAL,
    HiddenChooser,
    HiddenShares,
    filled,
    hidden_parameters,
    n_candidates,
    needed_for_tree,
)
from colonnade.models.trees.losses import Gradients, Logistic
from colonnade.models.trees.splits import TreeParameters


@dataclass(frozen=True)
class Size:
    """What a forest is grown on, and how deep."""

    rows: int = 100_000
    columns: int = 20
    bins: int = 32
    depth: int = 5

    @property
    def numbers(self) -> int:
        """How many encrypted numbers of two nodes a full tree asks for."""
        return 1 + sum(-(-(1 << level) // 4) for level in range(1, self.depth))

    def data(self) -> tuple[BinMatrix, np.ndarray[Any, Any]]:
        """Bins, and labels that depend on half of the columns."""
        random = np.random.default_rng(0)
        codes = random.integers(0, self.bins, (self.rows, self.columns)).astype(np.uint8)
        strength = random.normal(size=self.columns) * (np.arange(self.columns) % 2)
        score = (codes - self.bins / 2) @ strength / self.bins + random.normal(size=self.rows)
        return BinMatrix((Column(self.bins),) * self.columns, codes), (score > 0).astype(np.float64)


TREES_AHEAD = 8
AHEAD = ("label: secrets", "label: pads", "feature: keys")


class EncryptedSums:
    """A feature party's sums by the hinted scheme, both sides in one process, timed by phase."""

    def __init__(self, bins: BinMatrix) -> None:
        self._plain = PlainSums(bins)
        self.columns, self.seconds, self.n_bytes = bins.columns, defaultdict[str, float](float), 0
        with self.timed("once: public"):
            self._public = hinted.PublicMatrix(bytes(32), len(bins.codes))
        with self.timed("once: bare hints"):
            private = HistogramBins(np.ascontiguousarray(bins.codes.T), [column.width for column in bins.columns])
            self._holder = hinted.Holder(private, self._public, Budget(HISTOGRAM, peer="bank"))
        with self.timed("once: hint"):
            hint = self._holder.hint()
        self.hint_bytes = hint.nbytes
        with self.timed("once: reader"):
            self._reader = hinted.Reader(self._public, hint)
        self._queries = hinted.Queries(self._public)
        ends = starts(bins.columns)
        self._kept = np.setdiff1d(np.arange(ends[-1]), ends[1:] - 1)
        self._ends = ends
        self._messages: Any = None

    @contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        """Add the processor time of what is done inside to a phase."""
        start = process_time()
        yield
        self.seconds[phase] += process_time() - start

    def prepare(self, n_queries: int) -> None:
        """Draw the secrets of the next trees."""
        with self.timed("label: secrets"):
            keys = self._queries.prepare(n_queries, [self._reader])
        self.n_bytes += keys.data.nbytes
        with self.timed("feature: keys"):
            self._holder.prepare(keys)

    def begin(self, gradients: Gradients, n_queries: int) -> None:
        """Pads and messages of one tree."""
        with self.timed("label: pads"):
            self._queries.pad(n_queries)
        with self.timed("label: messages"):
            self._messages = hinted.Messages(self._public, gradients.g, gradients.h)

    def sums(self, gradients: Gradients, nodes: Sequence[Any]) -> Any:
        """The sums of nodes, exact."""
        with self.timed("label: ask"):
            places = np.full(len(gradients.g), -1, np.int32)
            for place, rows in enumerate(nodes):
                places[rows] = place
            query = self._queries.ask(self._messages, places, len(nodes))
        with self.timed("feature: answer"):
            answer = self._holder.answer(query)
        self.n_bytes += query.words.nbytes + query.tails.nbytes + answer.nbytes
        with self.timed("label: read"):
            found = self._reader.read(query, len(nodes), self._messages, answer)
            out = np.zeros((len(nodes), int(self._ends[-1]), 2), np.int64)
            out[:, self._kept] = found
            totals = np.array([(gradients.g[rows].sum(), gradients.h[rows].sum()) for rows in nodes])
            filled = np.add.reduceat(out, self._ends[:-1], axis=1)
            out[:, self._ends[1:] - 1] = totals[:, None] - filled
        return out

    def left(self, asked: Sequence[Any]) -> Any:
        """The sides of rows, in the clear: what fetches them privately is not measured here."""
        return self._plain.left(asked)


class HiddenSums:
    """A feature party's sums that stay shares, both sides in one process, with what they cost."""

    def __init__(self, bins: BinMatrix) -> None:
        self._plain, self.columns = PlainSums(bins), bins.columns
        self._public = hinted.PublicMatrix(bytes(32), len(bins.codes))
        private = HistogramBins(np.ascontiguousarray(bins.codes.T), [column.width for column in bins.columns])
        self._holder = hinted.Holder(private, self._public, Budget(HISTOGRAM, peer="bank"))
        self._reader = hinted.Reader(self._public, self._holder.hint())
        self._queries = hinted.Queries(self._public)
        self._sessions = in_turns(begin_first(), begin_second())
        self._reserves = Reserve(leading=True), Reserve(leading=False)
        self.seconds, self.n_bytes, self.turns = defaultdict[str, float](float), defaultdict[str, int](int), 0
        self._messages: Any = None
        self._found: Any = None

    @contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        """Add the processor time of what is done inside to a phase."""
        start = process_time()
        yield
        self.seconds[phase] += process_time() - start

    def prepare(self, depth: int) -> None:
        """Secrets of queries, and what comparisons take, for the next tree."""
        with self.timed("queries"):
            keys = self._queries.prepare(2 ** (depth - 1), [self._reader])
            self._holder.prepare(keys)
        self.n_bytes["queries"] += keys.data.nbytes
        amount = needed_for_tree(2**depth - 1, n_candidates(self.columns))
        (first, second), (one, other) = self._sessions, self._reserves
        self._between("ahead", fill_first(first, one, amount), fill_second(second, other, amount))

    def tree(self, gradients: Gradients, parameters: TreeParameters) -> Tree:
        """One tree from shares."""
        self._messages = hinted.Messages(self._public, gradients.g, gradients.h, shared=True)
        shares = HiddenShares(self.columns, self._reserves[1])
        bests: list[Any] = []

        def exchange(turns: Sequence[Any]) -> list[Any]:
            other = shares.decide([bests.pop()]) if bests else shares.rank(self._found)
            own, best = self._between("online", turns[0], other)
            if best is not None:
                bests.append(best)
            return [own]

        chooser = HiddenChooser((), [self.columns], gradients, parameters, self._reserves[:1], exchange)
        return grow(gradients, self, parameters, chooser=chooser)[0]

    def sums(self, gradients: Gradients, nodes: Sequence[Any]) -> Any:
        """The label party's shares of the sums of nodes."""
        places = np.full(len(gradients.g), -1, np.int32)
        for place, rows in enumerate(nodes):
            places[rows] = place
        with self.timed("queries"):
            query = self._queries.ask(self._messages, places, len(nodes))
            answer, self._found = self._holder.share(query)
            shares = self._reader.share(query, len(nodes), answer)
        self.n_bytes["queries"] += query.words.nbytes + query.tails.nbytes + answer.nbytes
        totals = np.array([(gradients.g[rows].sum(), gradients.h[rows].sum()) for rows in nodes]).view(np.uint64)
        return filled(shares, self.columns, totals).view(np.int64)

    def left(self, asked: Sequence[Any]) -> Any:
        """The sides of rows, in the clear: what fetches them privately is not measured here."""
        return self._plain.left(asked)

    def _between(self, phase: str, one: Any, other: Any) -> Any:
        sent: list[int] = []
        with self.timed(phase):
            found = in_turns(counted(one, sent), counted(other, sent))
        self.n_bytes[phase] += sum(sent)
        self.turns += len(sent) // 2 if phase == "online" else 0
        return found


def xgboost_seconds(size: Size, bins: BinMatrix, labels: np.ndarray[Any, Any], n_trees: int) -> float:
    """Processor seconds of xgboost for one tree."""
    import xgboost

    given: dict[str, Any] = {"objective": "binary:logistic", "tree_method": "hist", "max_bin": 256, "nthread": 1}
    given["max_depth"] = size.depth
    rows = xgboost.DMatrix(bins.codes.astype(np.float32), label=labels)
    xgboost.train(given, rows, 1)
    start = process_time()
    xgboost.train(given, rows, n_trees)
    return (process_time() - start) / n_trees


def forest(size: Size, source: EncryptedSums, bins: BinMatrix, labels: np.ndarray[Any, Any], n_trees: int) -> None:
    """Grow trees from encrypted sums, each compared with the one from plain sums."""
    parameters, loss = TreeParameters(max_depth=size.depth), Logistic()
    scores, per_tree = np.zeros((len(labels), 1)), size.numbers
    for tree in range(n_trees):
        if tree % TREES_AHEAD == 0:
            source.prepare(per_tree * min(TREES_AHEAD, n_trees - tree))
        g, h = loss.gradients(scores, labels)
        gradients = Gradients.of(g[:, 0], h[:, 0])
        source.begin(gradients, per_tree)
        grown, added = grow(gradients, source, parameters)
        if grown != grow(gradients, PlainSums(bins), parameters)[0]:
            raise RuntimeError("A tree grown from encrypted sums should equal the plain one and does not.")
        scores[:, 0] += added


def hidden_forest(size: Size, n_trees: int) -> dict[str, float]:
    """Seconds and megabytes for one tree with hidden sums, and the share of nodes that split as with plain sums."""
    bins, labels = size.data()
    source, parameters, loss = HiddenSums(bins), hidden_parameters(TreeParameters(max_depth=size.depth)), Logistic()
    scores, same, splits = np.zeros((len(labels), 1)), 0, 0
    for _ in range(n_trees):
        source.prepare(size.depth)
        g, h = loss.gradients(scores, labels)
        gradients = Gradients.of(g[:, 0], h[:, 0], most_total=MOST_TOTAL)
        grown = source.tree(gradients, parameters)
        plain, added = grow(gradients, PlainSums(bins), parameters)
        same += sum(one == other for one, other in zip(grown.splits, plain.splits, strict=False) if other is not None)
        splits += sum(split is not None for split in plain.splits)
        scores[:, 0] += added
    return {
        "hidden_cpu_s": sum(source.seconds.values()) / n_trees,
        "hidden_mb": sum(source.n_bytes.values()) / n_trees / 1e6,
        "hidden_turns": source.turns / n_trees,
        "hidden_same_splits": same / splits,
        **{f"hidden_{phase}_s": value / n_trees for phase, value in source.seconds.items()},
        **{f"hidden_{phase}_mb": value / n_trees / 1e6 for phase, value in source.n_bytes.items()},
    }


def encrypted_forest(size: Size, n_trees: int, n_plain: int) -> dict[str, float]:
    """Milliseconds per tree by phase, megabytes, and ratios to xgboost."""
    small = Size(100, 2, depth=size.depth)
    # Kernels are compiled at their first use.
    forest(small, EncryptedSums(small.data()[0]), *small.data(), 1)
    bins, labels = size.data()
    source = EncryptedSums(bins)
    forest(size, source, bins, labels, n_trees)
    plain = xgboost_seconds(size, bins, labels, n_plain)
    phases = {name: seconds / n_trees for name, seconds in source.seconds.items() if not name.startswith("once")}
    once = {name: seconds for name, seconds in source.seconds.items() if name.startswith("once")}
    parties = [sum(value for name, value in phases.items() if name.startswith(who)) for who in ("label", "feature")]
    ahead = sum(phases[name] for name in AHEAD)
    return {
        "all_ratio": sum(parties) / plain,
        "slower_party_ratio": max(parties) / plain,
        "online_ratio": (sum(parties) - ahead) / plain,
        "mb_per_tree": source.n_bytes / n_trees / 1e6,
        "hint_mb": source.hint_bytes / 1e6,
        "all_ms": 1e3 * sum(parties),
        "xgboost_ms": 1e3 * plain,
        **{f"{name.replace(': ', '_').replace(' ', '_')}_ms": 1e3 * value for name, value in phases.items()},
        **{f"{name.replace(': ', '_').replace(' ', '_')}_s": value for name, value in once.items()},
    }
