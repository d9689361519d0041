"""Splits: which one gains most at a node, with the mathematics of xgboost and one rule for ties.

    weight(G, H)   -T(G) / (H + reg_lambda), between -max_delta_step and max_delta_step unless that is 0
    gain(G, H)     T(G)^2 / (H + reg_lambda);  with max_delta_step  -(2 G w + (H + reg_lambda) w^2)
    T(G)           G moved towards 0 by reg_alpha
    a split gains  gain(left) + gain(right) - gain(node)

A split needs hessians of at least min_child_weight, and above 0, on both sides, a gain above min_split_gain, and one of
at least gamma. A candidate of a numeric column sends bins up to b to the left. Levels of a categorical column are first
put in the order of G / (H + reg_lambda), by level where these are equal, and then treated alike; a column with fewer
than max_cat_to_onehot levels sends one level to the left instead. Missing values go to the right or to the left,
whichever gains more.

Ties: the first candidate wins, in the order of columns; within a column missing values to the right come first, from
the lowest bin to the highest, then missing values to the left, from the highest bin to the lowest. This is xgboost's
order. Gains are compared as doubles, which are the same wherever the sums are the same whole numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from colonnade.errors import PlanError
from colonnade.models.trees.bins import BinMatrix, Column, starts
from colonnade.models.trees.losses import Gradients
from colonnade.wire.message import Float64Array, Int64Array


@dataclass(frozen=True)
class TreeParameters:
    """How a tree grows, under xgboost's names; `SecureBoost` explains each, `eta` as `learning_rate`."""

    eta: float = 0.3
    gamma: float = 0.0
    min_split_gain: float = 1e-6
    reg_lambda: float = 1.0
    reg_alpha: float = 0.0
    min_child_weight: float = 1.0
    max_delta_step: float = 0.0
    max_depth: int = 6
    max_leaves: int = 0
    grow_policy: Literal["depthwise", "lossguide"] = "depthwise"
    max_cat_to_onehot: int = 4

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if name != "grow_policy" and not value >= 0:
                raise PlanError(f"{name} should be at least 0, but is {value}. Choose another value.")
        if self.grow_policy not in ("depthwise", "lossguide"):
            raise PlanError(
                f"grow_policy should be 'depthwise' or 'lossguide', but is {self.grow_policy!r}. Choose one of the two."
            )
        if self.max_depth == 0 and self.max_leaves == 0:
            raise PlanError("max_depth and max_leaves are both 0, so a tree would have no bound. Set one of the two.")

    @property
    def most_splits(self) -> int:
        """How many splits a tree has at most."""
        by_depth, by_leaves = (1 << self.max_depth) - 1, self.max_leaves - 1
        if not (self.max_depth and self.max_leaves):
            return by_depth if self.max_depth else by_leaves
        return min(by_depth, by_leaves)

    @property
    def most_turns(self) -> int:
        """In how many turns a tree's splits are chosen at most: level by level, or one by one.

        >>> TreeParameters(max_depth=4).most_turns, TreeParameters(max_depth=4, grow_policy="lossguide").most_turns
        (4, 15)
        """
        by_levels = self.grow_policy == "depthwise" and self.max_depth
        return min(self.max_depth, self.most_splits) if by_levels else self.most_splits

    @property
    def most_nodes(self) -> int:
        """How many nodes of a tree a split is looked for at, at most.

        >>> TreeParameters(max_depth=4).most_nodes, TreeParameters(max_depth=4, max_leaves=6).most_nodes
        (15, 9)
        """
        by_depth, by_leaves = (1 << self.max_depth) - 1, max(1, 2 * self.max_leaves - 3)
        if not (self.max_depth and self.max_leaves):
            return by_depth if self.max_depth else by_leaves
        return min(by_depth, by_leaves)

    def weights(self, sums: Float64Array) -> Float64Array:
        """Weights of leaves with sums (..., 2), before eta."""
        g, h = sums[..., 0], sums[..., 1]
        raw = -np.sign(g) * np.maximum(np.abs(g) - self.reg_alpha, 0)
        with np.errstate(divide="ignore", invalid="ignore"):
            weight = np.where((h > 0) & (h >= self.min_child_weight), raw / (h + self.reg_lambda), 0.0)
        if self.max_delta_step:
            weight = np.clip(weight, -self.max_delta_step, self.max_delta_step)
        return np.asarray(weight + 0.0, np.float64)

    def gains(self, sums: Float64Array) -> Float64Array:
        """Gains of nodes with sums (..., 2)."""
        g, h = sums[..., 0], sums[..., 1]
        if self.max_delta_step:
            weight = self.weights(sums)
            gain = -(2 * g * weight + (h + self.reg_lambda) * weight * weight)
        else:
            moved = g if self.reg_alpha == 0 else np.maximum(np.abs(g) - self.reg_alpha, 0)
            with np.errstate(divide="ignore", invalid="ignore"):
                gain = moved * moved / (h + self.reg_lambda)
        return np.where(h > 0, gain, 0.0)


@dataclass(frozen=True)
class Split:
    """Which rows of a node go to the left; whole numbers only, so that a split can cross between parties.

    Attributes:
        column: The column's number among all columns of all parties.
        bin: Numeric columns: the last bin on the left side.
        levels: Categorical columns: the bins on the left side, in ascending order; None for numeric columns.
        missing_left: Whether missing values go to the left.
    """

    column: int
    bin: int
    levels: tuple[int, ...] | None
    missing_left: bool

    def left(self, codes: NDArray[np.unsignedinteger], n_bins: int) -> NDArray[np.bool_]:
        """Which rows go to the left, from the codes of the split's column.

        >>> Split(0, 1, None, True).left(np.array([0, 1, 2, 3], np.uint8), n_bins=3).tolist()
        [True, True, False, True]
        """
        table = np.zeros(n_bins + 1, np.bool_)
        table[: self.bin + 1] = self.levels is None
        if self.levels is not None:
            table[list(self.levels)] = True
        table[n_bins] = self.missing_left
        return np.asarray(table[codes], np.bool_)

    def left_rows(self, bins: BinMatrix, rows: Int64Array | slice) -> NDArray[np.bool_]:
        """Which of some rows go to the left, where the split is by one of the party's own columns."""
        return self.left(bins.codes[rows, self.column], bins.columns[self.column].n_bins)


@dataclass(frozen=True)
class Choice:
    """The best split of a node, and what it gains by the sums that it was chosen by."""

    split: Split
    gain: float


@dataclass(frozen=True)
class Candidates:
    """All splits that columns allow, in the order of the rule for ties."""

    columns: tuple[Column, ...]
    max_cat_to_onehot: int = 4

    @cached_property
    def _table(self) -> NDArray[np.int64]:
        """One row per candidate: column, place of the last bin on the left side, missing to the left, one level."""
        rows: list[tuple[int, int, int, int]] = []
        for number, (start, column) in enumerate(zip(starts(self.columns), self.columns, strict=False)):
            single = int(column.categorical and column.n_bins < self.max_cat_to_onehot)
            # With two levels, one of them to the left and the other one to the left are the same.
            last = column.n_bins if column.missing or (single and column.n_bins > 2) else column.n_bins - 1
            rows += [(number, start + bin, 0, single) for bin in range(last)]
            if column.missing:
                backward = column.n_bins if single and column.n_bins > 1 else column.n_bins - 1
                rows += [(number, start + bin, 1, single) for bin in reversed(range(backward))]
        return np.array(rows, np.int64).reshape(-1, 4)

    def best(
        self,
        sums: NDArray[np.int64],
        totals: NDArray[np.int64],
        gradients: Gradients,
        parameters: TreeParameters,
        allowed: NDArray[np.bool_] | None = None,
    ) -> list[Choice | None]:
        """The best split of each node, or None where no split is good enough.

        Args:
            sums: For each node, bin and of gradients and hessians the sum (nodes, bins of all columns, 2).
            totals: The sums of nodes (nodes, 2).
            gradients: What the sums are sums of.
            parameters: How the tree grows.
            allowed: Which columns may split; None for all.
        """
        if not len(self) or not len(sums):
            return [None] * len(sums)
        order = self._order(sums, gradients, parameters)
        left = self.lefts(np.take_along_axis(sums, order[..., None], axis=1))
        gain = _gains(left, totals, gradients, parameters)
        if allowed is not None:
            gain[:, ~self.among(allowed)] = -np.inf
        found = []
        for node, best in enumerate(np.argmax(gain, axis=1)):
            most = float(gain[node, best])
            enough = most > parameters.min_split_gain and most >= parameters.gamma
            found.append(Choice(self.split(int(best), order[node]), most) if enough else None)
        return found

    def __len__(self) -> int:
        return len(self._table)

    def among(self, allowed: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Which candidates are of columns that may split."""
        return np.asarray(allowed[self._table[:, 0]], np.bool_)

    def lefts(self, sums: NDArray[Any]) -> NDArray[Any]:
        """The sums of each candidate's left side (nodes, candidates, 2), from those over bins (nodes, bins, 2).

        They are sums of sums over bins, so that shares of these give shares of those.
        """
        column, place, missing_left, single = self._table.T
        ends = np.cumsum(sums, axis=1, dtype=sums.dtype)
        first, nothing = starts(self.columns)[:-1][column], sums.dtype.type(0)
        before = np.where((first > 0)[:, None], ends[:, first - 1], nothing)
        left = np.where(single.astype(bool)[:, None], sums[:, place], ends[:, place] - before)
        # Missing values are the last bin of their column, wherever there is one.
        gap = starts(self.columns)[1:][column] - 1
        return np.asarray(left + np.where(missing_left.astype(bool)[:, None], sums[:, gap], nothing))

    def split(self, candidate: int, order: Int64Array | None = None) -> Split:
        """A candidate's split, with bins in the order in which they are added up; None for their own order."""
        number, place, missing_left, single = (int(value) for value in self._table[candidate])
        start = int(starts(self.columns)[number])
        levels = None
        if self.columns[number].categorical:
            chosen = slice(place, place + 1) if single else slice(start, place + 1)
            bins = np.arange(starts(self.columns)[-1]) if order is None else order
            levels = tuple(sorted(int(each) - start for each in bins[chosen]))
        return Split(number, place - start if levels is None else -1, levels, bool(missing_left))

    def _order(self, sums: NDArray[np.int64], gradients: Gradients, parameters: TreeParameters) -> Int64Array:
        """For each node the places of bins in the order in which they are added up (nodes, bins)."""
        order = np.tile(np.arange(sums.shape[1]), (len(sums), 1))
        for start, column in zip(starts(self.columns), self.columns, strict=False):
            if column.categorical and column.n_bins >= self.max_cat_to_onehot:
                bins = slice(start, start + column.n_bins)
                g, h = np.moveaxis(gradients.reals(sums[:, bins]), -1, 0)
                with np.errstate(divide="ignore", invalid="ignore"):
                    ratio = np.where(h + parameters.reg_lambda > 0, g / (h + parameters.reg_lambda), 0.0)
                order[:, bins] = start + np.argsort(ratio, axis=1, kind="stable")
        return order


def _gains(
    left: NDArray[np.int64], totals: NDArray[np.int64], gradients: Gradients, parameters: TreeParameters
) -> Float64Array:
    here, there = gradients.reals(left), gradients.reals(totals[:, None] - left)
    least = parameters.min_child_weight
    enough = (here[..., 1] >= least) & (there[..., 1] >= least) & (here[..., 1] > 0) & (there[..., 1] > 0)
    return np.where(enough, split_gains(left, totals[:, None], gradients, parameters), -np.inf)


def split_gains(
    left: NDArray[np.int64], totals: NDArray[np.int64], gradients: Gradients, parameters: TreeParameters
) -> Float64Array:
    """What splits gain, from the sums (..., 2) of their left sides and of their nodes."""
    sides = [parameters.gains(gradients.reals(some)) for some in (left, totals - left)]
    return np.asarray(sides[0] + sides[1] - parameters.gains(gradients.reals(totals)), np.float64)
