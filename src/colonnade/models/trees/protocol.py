"""Boosted trees across parties, both roles of training side by side: one tree is read here, top to bottom.

    feature party                    label party
         ColumnOutline ────────────────────────────▶          once
         ◀──────────────────────────── ForestOutline          once
         Hint and what sums need ──────────────────▶          once; see `hinted_sums`
         ◀──────────────────────────── TransferPoint          once
         TransferPoints ───────────────────────────▶          once
                                       a tree:
         ◀──────────────────────────────── QueryKeys          ahead of gradients
         ◀────────────────────────────────── NextAct          sums, chosen splits, or the end of the tree
         ◀──────────────────────────────── SumsQuery          sums: one query for all nodes of a level
         SumsAnswer ───────────────────────────────▶
         ◀───────────────────────────── ChosenSplits          chosen splits: those by this party's columns
         ◀────────────────────────────── SideChoices          one oblivious transfer for each row
         RowSides ─────────────────────────────────▶
         ◀───────────────────────────── RoundVerdict          where rows are held out: whether boosting ends
         ◀─────────────────────────────── ForestSize          at the end: how many trees are kept

What the label party learns, with `sums="exact"`: for each node and each bin of each column the sums of gradients and of
hessians; how many bins columns have; and of each row the side of each split that the row meets. What a feature party
learns: how many nodes a level has, which of its splits were chosen, how many trees are kept; of rows, labels, gradients
and other parties' columns nothing. `budgets` counts what sums and sides tell; `docs/protocols/trees.md` has it in
numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import ceil
from typing import Literal, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from colonnade.crypto.shares import Share
from colonnade.errors import DataError, ProtocolError
from colonnade.models.trees.bins import MOST_BINS, BinMatrix, Column, told_columns
from colonnade.models.trees.boosting import Boosting, BoostSettings, Sampling
from colonnade.models.trees.budgets import EQUATIONS_PER_NODE, LeakBudget
from colonnade.models.trees.grow import PlainSums, Tree
from colonnade.models.trees.hidden import filled
from colonnade.models.trees.hidden_lines import HiddenAnswering, HiddenAsking
from colonnade.models.trees.hinted_sums import HintedAnswering, HintedAsking, Told, asked_lines, slots_of
from colonnade.models.trees.losses import Gradients
from colonnade.models.trees.messages import (
    ChosenSplits,
    ColumnOutline,
    ForestOutline,
    ForestSize,
    GradientBounds,
    NextAct,
    RoundVerdict,
)
from colonnade.models.trees.noise import MOST_WIDTHS, NoiseSettings, SumNoise, mechanism, most_releases, widest
from colonnade.models.trees.paillier_sums import PaillierAnswering, PaillierAsking
from colonnade.models.trees.record import ForestRecord, SeenTree, Sides
from colonnade.models.trees.rows import BinnedRows
from colonnade.models.trees.sides import MOST_SPLITS, SideFetching, SideServing
from colonnade.models.trees.splits import Split, TreeParameters
from colonnade.models.trees.storage import splits_array, splits_of
from colonnade.privacy.ledger import Event
from colonnade.runtime.party import Party
from colonnade.secret import Secret
from colonnade.storage import Tree as Stored
from colonnade.wire.channel import Channel
from colonnade.wire.message import Int64Array

T = TypeVar("T")

END, SUMS, SIDES = range(3)
MOST_COLUMNS = 2**16
MOST_CLASSES = 2**10
_MOST = 2**26
_GRADIENT_BOUNDS = {"g": (0, 2**44), "h": (0, 2**44)}
_OUTLINE_BOUNDS = {"n_scores": (1, MOST_CLASSES), "first_column": (0, _MOST), "n_columns": (1, _MOST)}


@dataclass(frozen=True)
class ForestSettings:
    """What both roles must know of a forest; `SecureBoost` explains each."""

    boost: BoostSettings
    leak_budget: float | None
    side_budget: int | None = None
    sums: Literal["exact", "noisy", "hidden"] = "exact"
    noise: NoiseSettings | None = None
    keep_record: bool = False
    backend: Literal["hinted", "paillier"] = "hinted"
    membership: Literal["hidden", "revealed"] = "hidden"
    device: str = "cpu"

    @property
    def revealed(self) -> bool:
        """Whether feature parties are told which rows a node has."""
        return self.membership == "revealed"

    @property
    def hidden(self) -> bool:
        """Whether sums stay shares."""
        return self.sums == "hidden"


def most_numbers(parameters: TreeParameters, nodes_per_number: int) -> tuple[int, int]:
    """How many encrypted numbers a tree asks for at most, and a query of it.

    Of each pair of children one is asked for, on all levels but the last.

    >>> most_numbers(TreeParameters(max_depth=5), nodes_per_number=2)
    (9, 4)
    """
    splits = parameters.most_splits
    if parameters.max_depth:
        splits = min(splits, 2 ** (parameters.max_depth - 1) - 1)
    if parameters.grow_policy == "lossguide":
        return 1 + splits, 1
    asked, level = [1], 1
    while parameters.max_depth == 0 or len(asked) < parameters.max_depth:
        if splits <= 0:
            break
        asked.append(min(level, splits))
        level, splits = 2 * level, splits - asked[-1]
    numbers = [-(-nodes // nodes_per_number) for nodes in asked]
    return sum(numbers), max(numbers)


class SumsAsking(Protocol):
    """The label party's half of a scheme under which sums cross."""

    def prepare(self, tree: int, fold: int, told: Mapping[str, Told]) -> None:
        """Exchange what a tree needs before there are gradients; of each party's columns some are told."""

    def begin(self, gradients: Gradients, reach: tuple[int, int] = (0, 0)) -> None:
        """Take the gradients of the tree, and how far noise on sums of gradients and of hessians may reach."""

    def ask(self, tree: int, nodes: Sequence[Int64Array]) -> None:
        """Ask all feature parties for the sums of nodes, given by their rows."""

    def read(self, tree: int, line: Channel) -> NDArray[np.int64]:
        """The sums (nodes, bins without the last one of each column, 2) in a feature party's answer, or shares."""


class SumsAnswering(Protocol):
    """A feature party's half of a scheme under which sums cross."""

    def prepare(self, tree: int, fold: int, told: Told) -> None:
        """Exchange what a tree needs before there are gradients; of this party's columns some are told."""

    def answer(self, tree: int, spend: Callable[[int, int], None]) -> Share:
        """Answer a query; `spend` is told of how many nodes and numbers, before anything is computed."""

    def forget(self) -> None:
        """Delete what only a run in progress needs."""


class LabelSide:
    """The label party's side of training: grows the forest, and is the source of sums for all parties' columns.

    Args:
        settings: The forest's.
        party: The label party.
        bins: Its own columns; there may be none.
        boosting: The forest in the making.
    """

    def __init__(self, settings: ForestSettings, party: Party, bins: BinMatrix, boosting: Boosting) -> None:
        self._settings, self._party, self._own, self.boosting = settings, party, PlainSums(bins), boosting
        self._lines = party.feature_parties
        self.parts: dict[str, tuple[Column, ...]] = {party.name: bins.columns}
        self._tree = 0
        self._gradients: Gradients | None = None
        self.record: ForestRecord | None = None

    @property
    def n_trees(self) -> int:
        """How many trees there are at most."""
        return self.boosting.n_trees

    def begin(self) -> None:
        """Exchange what is needed before the first tree."""
        for line in self._lines:
            self.parts[line.peer] = _received_columns(line)
        first = len(self.parts[self._party.name])
        for line in self._lines:
            line.send(ForestOutline(self.boosting.loss.n_scores, first, len(self.columns)))
            first += len(self.parts[line.peer])
        if self._settings.keep_record:
            self.record = ForestRecord(
                len(self._own.bins.codes), {each.peer: self.parts[each.peer] for each in self._lines}
            )
        sampling = self.boosting.sampling
        shared, folds = self._settings.hidden, sampling.folds
        most = most_numbers(self._settings.boost.trees, slots_of(folds, shared=shared).nodes)[0]
        self._asking: SumsAsking
        if self._settings.backend == "paillier":
            self._asking = PaillierAsking(self._party, self.parts, folds, revealed=self._settings.revealed)
        else:
            self._asking = HintedAsking(
                self._party, self.parts, sampling.n_rows, folds, most, shared=shared, device=self._settings.device
            )
        if self._settings.noise is not None:
            self._n_releases = most_releases(self._settings.boost, sampling, self.boosting.loss.n_scores)
            self._n_noisy = max(_n_columns(columns) for columns in self.parts.values())
            given = self._n_noisy, self._n_releases, self._settings.noise
            self.boosting.reach = lambda values: widest(values, *given)
        if shared:
            self._hidden = HiddenAsking(self._party, tuple(self.parts.values()), self._settings.boost.trees)
        self._fetching = {line.peer: SideFetching(line) for line in self._lines}
        for fetching in self._fetching.values():
            fetching.begin()

    def train(self, step: int) -> dict[str, float]:
        """Grow one tree; returns figures to be shown."""
        boosting, self._tree, self._gradients = self.boosting, step, None
        self._told = self._told_in(step)
        self._asking.prepare(step, boosting.sampling.fold_of(step // boosting.loss.n_scores), self._told)
        if self._settings.hidden:
            self._hidden.prepare(step, boosting.sampling.allowed(step, len(self.columns)))
            tree = boosting.grow(step, self, partial(self._hidden.chooser, step))
        else:
            tree = boosting.grow(step, self)
        self._say(END, self._lines)
        held_out = {"held-out loss": boosting.losses[-1]} if boosting.losses else {}
        return {"leaves": float(tree.n_leaves), "MB": self._party.recording.n_bytes / 1e6, **held_out}

    def ends_after(self, step: int) -> bool:
        """Whether boosting ends with this tree; tells the others where rows are held out."""
        stops = self.boosting.ends_after(step)
        if self._settings.boost.looks_after(step, self.boosting.loss.n_scores):
            for line in self._lines:
                line.send(RoundVerdict(step, int(stops)), epoch=step)
        return stops

    def finish(self) -> tuple[Tree, ...]:
        """Tell how many trees are kept; returns these."""
        n_kept = self.boosting.n_kept
        for line in self._lines:
            line.send(ForestSize(n_kept))
        return tuple(self.boosting.trees[:n_kept])

    def state(self) -> Stored:
        kept = {} if self.record is None else {"record": self.record.state()}
        return {"boosting": self.boosting.state(), **kept}

    def restore(self, tree: Stored) -> None:
        self.boosting.restore(tree["boosting"])
        if self.record is not None:
            self.record = ForestRecord.of(tree["record"])

    @property
    def columns(self) -> tuple[Column, ...]:
        """The label party's columns, then those of the feature parties in their order."""
        return tuple(column for columns in self.parts.values() for column in columns)

    def sums(self, gradients: Gradients, nodes: Sequence[Int64Array]) -> NDArray[np.int64]:
        """For each node the sums over all bins of all parties' columns (nodes, bins, 2); of others' columns shares."""
        if gradients is not self._gradients:
            self._gradients = gradients
            if self.record is not None:
                told = {name: each for name, each in self._told.items() if each is not None}
                self.record.trees.append(SeenTree(gradients, told=told))
            self._asking.begin(gradients, self._bounded(gradients))
        asked = asked_lines(self._party, self._told)
        self._say(SUMS, asked)
        if asked:
            self._asking.ask(self._tree, nodes)
        totals = np.array([(gradients.g[rows].sum(), gradients.h[rows].sum()) for rows in nodes], np.int64)
        found = [self._own.sums(gradients, nodes)]
        nothing = np.zeros((len(nodes), 0, 2), np.int64)
        for line in self._lines:
            sums = self._asking.read(self._tree, line) if line in asked else nothing
            found.append(filled(sums, self.parts[line.peer], totals, self._told[line.peer]))
        if self.record is not None and not self._settings.hidden:
            seen = self.record.trees[-1]
            seen.nodes += nodes
            for line, each in zip(self._lines, found[1:], strict=True):
                seen.sums.setdefault(line.peer, []).extend(each)
        return np.concatenate(found, axis=1)

    def left(self, asked: Sequence[tuple[Split, Int64Array]]) -> list[NDArray[np.bool_]]:
        """For each split and the rows of its node, which of these rows go to the left."""
        self._say(SIDES, self._lines)
        first, n_rows, owned = 0, self.boosting.sampling.n_rows, {}
        for name, columns in self.parts.items():
            owned[name] = [
                (place, replace(split, column=split.column - first), rows)
                for place, (split, rows) in enumerate(asked)
                if 0 <= split.column - first < len(columns)
            ]
            first += len(columns)
        for line in self._lines:
            splits, fetching = owned[line.peer], self._fetching[line.peer]
            line.send(ChosenSplits(self._tree, splits_array([split for _, split, _ in splits])), epoch=self._tree)
            for some in _by_batches(splits):
                fetching.ask(self._tree, [rows for *_, rows in some], n_rows)
        out: list[NDArray[np.bool_]] = [np.zeros(0, np.bool_)] * len(asked)
        for place, split, rows in owned[self._party.name]:
            out[place] = self._own.left([(split, rows)])[0]
        for line in self._lines:
            for some in _by_batches(owned[line.peer]):
                for (place, split, rows), side in zip(some, self._fetching[line.peer].read(self._tree), strict=True):
                    out[place] = side
                    if self.record is not None:
                        seen = self.record.trees[-1].sides.setdefault(line.peer, [])
                        seen.append(Sides(split, rows, side))
        return out

    def _bounded(self, gradients: Gradients) -> tuple[int, int]:
        """Tell the bounds that noise is made for; returns how far noise may reach."""
        if self._settings.noise is None:
            return 0, 0
        most = int(np.abs(gradients.g).max()), int(gradients.h.max())
        for line in self._lines:
            line.send(GradientBounds(self._tree, *most), epoch=self._tree)
        if self.record is not None:
            for line in self._lines:
                self.record.trees[-1].noise[line.peer] = self._deviations(most, _n_columns(self.parts[line.peer]))
        g, h = (ceil(MOST_WIDTHS * each) for each in self._deviations(most, self._n_noisy))
        return g, h

    def _deviations(self, most: tuple[int, int], n_columns: int) -> tuple[float, float]:
        """The deviations of noise on sums of gradients and of hessians over so many columns, for their bounds."""
        assert self._settings.noise is not None
        g, h = (mechanism(each, n_columns, self._n_releases, self._settings.noise).sigma for each in most)
        return float(g), float(h)

    def _told_in(self, tree: int) -> dict[str, Told]:
        """Of which columns of each party sums are told in a tree."""
        allowed, told, first = self.boosting.sampling.allowed(tree, len(self.columns)), {}, 0
        for name, columns in self.parts.items():
            some = None if allowed is None or self._settings.hidden else allowed[first : first + len(columns)]
            told[name] = told_columns(columns, some)
            first += len(columns)
        return told

    def _say(self, act: int, lines: Sequence[Channel]) -> None:
        for line in lines:
            line.send(NextAct(self._tree, act), epoch=self._tree)


class FeatureSide:
    """A feature party's side of training: answers for sums and sides, and keeps its splits.

    Args:
        settings: The forest's.
        party: The feature party.
        rows: Its rows.
        sampling: Which rows and columns a tree may learn from.
    """

    def __init__(self, settings: ForestSettings, party: Party, rows: BinnedRows, sampling: Sampling) -> None:
        self._settings, self._party, self._rows, self._sampling = settings, party, rows, sampling
        self._line = party.label_party
        self.splits: list[list[Split]] = []
        self.n_scores = 1
        self._noise: SumNoise | None = None
        peer = self._line.peer
        self._sums_budget = LeakBudget.of_sums(party, peer, len(sampling.parts[0]), settings.leak_budget)
        self._sides_budget = LeakBudget.of_sides(party, peer, settings.side_budget)

    @property
    def n_trees(self) -> int:
        """How many trees there are at most."""
        return self._settings.boost.n_estimators * self.n_scores

    def begin(self) -> None:
        """Exchange what is needed before the first tree."""
        columns = self._rows.columns
        require_varied(self._party.name, self._rows, self._sampling)
        flags = np.array([(column.missing, column.categorical) for column in columns], np.uint8)
        n_bins = np.array([column.n_bins for column in columns], np.int64)
        self._line.send(ColumnOutline(n_bins, flags[:, 0].copy(), flags[:, 1].copy()))
        self._outline = self._line.receive(ForestOutline, within=_OUTLINE_BOUNDS)
        self.n_scores, shared, folds = self._outline.n_scores, self._settings.hidden, self._sampling.folds
        most, self._most_at_once = most_numbers(self._settings.boost.trees, slots_of(folds, shared=shared).nodes)
        if self._settings.noise is not None:
            n_releases = most_releases(self._settings.boost, self._sampling, self.n_scores)
            self._noise = SumNoise(self._party, _n_columns(columns), n_releases, self._settings.noise)
        self._answering: SumsAnswering
        if self._settings.backend == "paillier":
            self._most_at_once = most_numbers(self._settings.boost.trees, 1)[1]
            codes, revealed = self._rows.collected(), self._settings.revealed
            self._answering = PaillierAnswering(self._party, codes, folds, revealed=revealed)
        else:
            self._answering = HintedAnswering(
                self._party,
                self._rows,
                folds,
                most,
                shared=shared,
                noise=self._noise,
                device=self._settings.device,
            )
        self._note_releases()
        if shared:
            self._hidden = HiddenAnswering(self._party, columns, self._settings.boost.trees)
        self._serving = SideServing(self._line)

    def train(self, step: int) -> dict[str, float]:
        """Help to grow one tree."""
        allowed = self._allowed(step)
        told = None if self._settings.hidden else told_columns(self._rows.columns, allowed)
        self._answering.prepare(step, self._sampling.fold_of(step // self.n_scores), told)
        if self._settings.hidden:
            self._hidden.prepare(step, allowed)
        if self._noise is not None:
            bounds = self._line.receive(GradientBounds, fields={"tree": step}, within=_GRADIENT_BOUNDS, epoch=step)
            self._noise.begin(bounds.g, bounds.h)
        chosen: list[Split] = []
        trees, n_turns = self._settings.boost.trees, 0
        while act := self._line.receive(NextAct, fields={"tree": step}, within={"act": (END, SIDES)}, epoch=step).act:
            if act == SUMS:
                if told is not None and not told.any():
                    raise ProtocolError(
                        f"Expected no query in tree {step} from {self._line.peer}, since no column of this party may "
                        "split there, got one. Check that both parties run the same plan."
                    )
                shares = self._answering.answer(step, self._spend)
                if self._settings.hidden:
                    self._hidden.rank(step, shares)
                continue
            message = self._line.receive(ChosenSplits, fields={"tree": step}, epoch=step)
            splits = _own_splits(message.splits, self._rows.columns, self._line.peer)
            # A turn tells a side of every row, so turns are counted as well as splits.
            n_turns += 1
            if len(chosen) + len(splits) > trees.most_splits or n_turns > trees.most_turns:
                raise ProtocolError(
                    f"Expected at most {trees.most_splits} splits in {trees.most_turns} turns in a tree from "
                    f"{self._line.peer}, got more. Check that both parties run the same plan."
                )
            for some in _by_batches(splits):
                self._sides_budget.spend(1)
                self._serving.serve(step, list(self._rows.left(some)))
            chosen += splits
        self.splits.append(chosen)
        return {"own splits": float(len(chosen))}

    def ends_after(self, step: int) -> bool:
        """Whether the label party says that boosting ends with this tree."""
        if not self._settings.boost.looks_after(step, self.n_scores):
            return False
        return bool(self._line.receive(RoundVerdict, fields={"tree": step}, epoch=step).stop)

    def finish(self) -> tuple[tuple[Split, ...], ...]:
        """This party's splits of the trees that are kept."""
        n_kept = self._line.receive(ForestSize, within={"n_trees": (0, len(self.splits))}).n_trees
        self._answering.forget()
        return tuple(tuple(splits) for splits in self.splits[:n_kept])

    def state(self) -> Stored:
        return {"splits": [splits_array(splits) for splits in self.splits]}

    def restore(self, tree: Stored) -> None:
        self.splits = [[split for split in splits_of(each) if split is not None] for each in tree["splits"]]

    def _note_releases(self) -> None:
        """Enter in the ledger what no noise hides; once, however often the run is taken up."""
        told = ["the side of each row at each split that the row meets"]
        if self._settings.sums == "exact":
            told.append(
                "exact sums over bins, which fit a million rows or few trees; noisy sums fit from 50,000 rows on, "
                "hidden sums fewer"
            )
        for each in told:
            note = f"{each}, told to {self._line.peer}"
            self._party.ledger.spend(Event.not_private(Secret.FEATURES, note), identity=note.encode())

    def _allowed(self, tree: int) -> NDArray[np.bool_] | None:
        """Which of this party's columns a tree may split by."""
        first, allowed = self._outline.first_column, self._sampling.allowed(tree, self._outline.n_columns)
        return None if allowed is None else allowed[first : first + len(self._rows.columns)]

    def _spend(self, n_nodes: int, n_numbers: int) -> None:
        if n_numbers > self._most_at_once:
            raise ProtocolError(
                f"Expected a query of at most {self._most_at_once} encrypted numbers from {self._line.peer}, got "
                f"{n_numbers}. Check that both parties run the same plan."
            )
        if self._settings.sums == "exact":
            self._sums_budget.spend(EQUATIONS_PER_NODE * n_nodes)


def _received_columns(line: Channel) -> tuple[Column, ...]:
    message = line.receive(ColumnOutline)
    n_columns = len(message.n_bins)
    fits = message.n_bins.shape == message.missing.shape == message.categorical.shape == (n_columns,)
    if not (fits and 0 < n_columns <= MOST_COLUMNS and ((message.n_bins > 0) & (message.n_bins <= MOST_BINS)).all()):
        raise ProtocolError(
            f"Expected the numbers of bins of up to {MOST_COLUMNS} columns from {line.peer}, got something else. "
            "Check that both parties run the same version."
        )
    flags = zip(message.n_bins.tolist(), message.missing.tolist(), message.categorical.tolist(), strict=True)
    return tuple(Column(n_bins, bool(missing), bool(categorical)) for n_bins, missing, categorical in flags)


def _own_splits(numbers: Int64Array, columns: Sequence[Column], sender: str) -> list[Split]:
    """Splits that came from the label party, if the columns have them."""
    try:
        found = splits_of(numbers)
    except ValueError:
        found = [None]
    splits = [split for split in found if split is not None and _exists(split, columns)]
    if len(splits) != len(found):
        raise ProtocolError(
            f"Expected splits of this party's {len(columns)} columns from {sender}, got something else. "
            "Check that both parties run the same version."
        )
    return splits


def _n_columns(columns: Sequence[Column]) -> int:
    """How many columns have sums that differ between rows."""
    return sum(column.width > 1 for column in columns)


def _exists(split: Split, columns: Sequence[Column]) -> bool:
    if not 0 <= split.column < len(columns):
        return False
    column = columns[split.column]
    if split.levels is None:
        return not column.categorical and 0 <= split.bin < column.n_bins
    return column.categorical and all(0 <= level < column.n_bins for level in split.levels)


def _by_batches(splits: Sequence[T]) -> Iterator[Sequence[T]]:
    """Splits by as many as one batch of transfers serves."""
    for start in range(0, len(splits), MOST_SPLITS):
        yield splits[start : start + MOST_SPLITS]


def require_varied(name: str, rows: BinnedRows, sampling: Sampling) -> None:
    """Refuse a feature party without a column that varies among the rows that trees learn from."""
    if not rows.vary(sampling.parts[0]):
        found = "each of its columns is constant or empty" if rows.columns else "has no columns besides the ids"
        raise DataError(
            f"{name} should bring a column with two different values at least, but {found}. Bring another column, or "
            "leave this party out."
        )
