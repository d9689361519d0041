"""Boosting: a forest, tree after tree, from any source of sums; plain mathematics of the label party.

    a round     gradients and hessians of all rows at their scores, one tree for each score of the loss
    a tree      the rows it learns from: a public fold of the training rows, of these those that GOSS keeps
                all other rows go along, so that the next round knows their scores too
    after it    the loss on the rows held out; without a better one for some rounds, boosting ends with the best round

Rows held out, folds and columns of a tree are drawn in public (`Sampling`), so all parties know them alike. GOSS is the
label party's own draw and depends on gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from colonnade.errors import PlanError
from colonnade.models.batches import hold_out
from colonnade.models.trees.grow import Chooser, Sums, Tree, grow
from colonnade.models.trees.losses import Gradients, Loss
from colonnade.models.trees.splits import TreeParameters
from colonnade.models.trees.storage import tree_of, tree_state
from colonnade.privacy.randomness import PublicRandomness, Randomness
from colonnade.storage import Tree as Stored
from colonnade.wire.message import Float64Array, Int64Array

ChooserOf: TypeAlias = Callable[[Gradients, NDArray[np.bool_] | None], Chooser]

MOST_FOLDS = 64


@dataclass(frozen=True)
class BoostSettings:
    """How a forest grows; `SecureBoost` explains each."""

    trees: TreeParameters
    n_estimators: int
    subsample: float = 1.0
    colsample_bytree: float = 1.0
    top_rate: float = 0.0
    other_rate: float = 0.0
    early_stopping_rounds: int | None = None
    validation_fraction: float = 0.1

    def __post_init__(self) -> None:
        if self.top_rate + self.other_rate > 1:
            raise PlanError(
                f"top_rate and other_rate should sum to at most 1, but are {self.top_rate:g} and {self.other_rate:g}. "
                "Lower one of the two."
            )
        if (self.top_rate > 0) != (self.other_rate > 0):
            raise PlanError(
                f"top_rate and other_rate should both be above 0 or both be 0, but are {self.top_rate:g} and "
                f"{self.other_rate:g}. Set both for GOSS, or neither."
            )

    def looks_after(self, tree: int, n_scores: int) -> bool:
        """Whether the loss on rows held out is looked at after a tree: after each round but the last."""
        ends_round, last = (tree + 1) % n_scores == 0, tree + 1 == self.n_estimators * n_scores
        return self.early_stopping_rounds is not None and ends_round and not last


@dataclass(frozen=True)
class Sampling:
    """Which rows and columns a tree may learn from; public, and the same at all parties.

    Where `subsample` is 1/2, 1/3 and so on, training rows are cut into as many folds, and rounds take them in turn: a
    round then costs a fold's share of bytes and time. Other shares are drawn for each round among all training rows and
    save nothing.

    >>> sampling = Sampling(BoostSettings(TreeParameters(), 10, subsample=0.5), 6, PublicRandomness.seeded(0))
    >>> [len(rows) for rows in sampling.folds], [sampling.fold_of(round) for round in range(3)]
    ([3, 3], [0, 1, 0])
    """

    settings: BoostSettings
    n_rows: int
    shared: PublicRandomness

    @cached_property
    def parts(self) -> tuple[Int64Array, Int64Array]:
        """The training rows and the rows held out."""
        if self.settings.early_stopping_rounds is None:
            return np.arange(self.n_rows), np.zeros(0, np.int64)
        return hold_out(self.n_rows, self.settings.validation_fraction, self.shared)

    @cached_property
    def folds(self) -> tuple[Int64Array, ...]:
        """The training rows in folds, each in ascending order."""
        n_folds = round(1 / self.settings.subsample)
        if n_folds > MOST_FOLDS or not np.isclose(n_folds * self.settings.subsample, 1):
            return (self.parts[0],)
        order = self.shared.generator("folds").permutation(self.parts[0])
        return tuple(np.sort(fold) for fold in np.array_split(order, n_folds))

    def fold_of(self, round: int) -> int:
        """The number of a round's fold."""
        return round % len(self.folds)

    def rows(self, round: int) -> Int64Array:
        """The rows that a round learns from."""
        fold = self.folds[self.fold_of(round)]
        if len(self.folds) > 1 or self.settings.subsample == 1:
            return fold
        wanted = max(1, int(self.settings.subsample * len(fold)))
        return np.sort(self.shared.generator("subsample", round).choice(fold, wanted, replace=False))

    def allowed(self, tree: int, n_columns: int) -> NDArray[np.bool_] | None:
        """Which columns a tree may split by; None for all."""
        if self.settings.colsample_bytree == 1:
            return None
        wanted = max(1, int(self.settings.colsample_bytree * n_columns))
        allowed = np.zeros(n_columns, np.bool_)
        allowed[self.shared.generator("columns", tree).choice(n_columns, wanted, replace=False)] = True
        return allowed


@dataclass
class Boosting:
    """A forest in the making.

    Args:
        settings: How the forest grows.
        loss: What is boosted.
        labels: The label of each row, as the loss counts them.
        weights: The weight of each row.
        sampling: Which rows and columns a tree may learn from.
        random: Where GOSS draws from.
        most_total: What the whole-number gradients of a tree sum to at most, and hessians alike.
        reach: How far noise on sums may reach beside the sum of all absolute values, as a multiple of it.
    """

    settings: BoostSettings
    loss: Loss
    labels: Float64Array
    weights: Float64Array
    sampling: Sampling
    random: Randomness
    most_total: int
    reach: Callable[[Float64Array], float] = lambda values: 0.0
    trees: list[Tree] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        trained = self.sampling.parts[0]
        self.start = self.loss.start(self.labels[trained], self.weights[trained])
        self.scores = np.tile(self.start, (len(self.labels), 1))
        self._added = np.zeros_like(self.scores)

    @property
    def n_trees(self) -> int:
        """How many trees there are at most."""
        return self.settings.n_estimators * self.loss.n_scores

    @property
    def n_kept(self) -> int:
        """How many trees the forest has in the end: those up to the best round."""
        if not self.losses:
            return len(self.trees)
        return (int(np.argmin(self.losses)) + 1) * self.loss.n_scores

    def gradients(self, number: int) -> tuple[Gradients, Int64Array]:
        """Whole-number gradients of a tree, and the rows it learns from."""
        round, score = divmod(number, self.loss.n_scores)
        g, h = (each * self.weights[:, None] for each in self.loss.gradients(self.scores, self.labels))
        rows, factors = self._kept(round, g)
        masked = np.zeros((2, len(self.labels)))
        masked[:, rows] = g[rows, score] * factors, h[rows, score] * factors
        most_total = int(self.most_total / (1 + max(map(self.reach, masked))))
        return Gradients.of(*masked, most_total=most_total), rows

    def grow(self, number: int, source: Sums, chooser: ChooserOf | None = None) -> Tree:
        """Grow the next tree; the scores move at the end of its round.

        Args:
            number: The number of the tree.
            source: Where sums come from.
            chooser: Makes what chooses splits, from the tree's gradients and the columns that may split.
        """
        gradients, rows = self.gradients(number)
        along = np.setdiff1d(np.arange(len(self.labels)), rows)
        allowed = self.sampling.allowed(number, len(source.columns))
        chosen = None if chooser is None else chooser(gradients, allowed)
        tree, added = grow(
            gradients, source, self.settings.trees, rows=rows, along=along, allowed=allowed, chooser=chosen
        )
        self.trees.append(tree)
        self._added[:, number % self.loss.n_scores] = added
        if (number + 1) % self.loss.n_scores == 0:
            self.scores = self.scores + self._added
            self._look_at_held_out()
        return tree

    def ends_after(self, number: int) -> bool:
        """Whether boosting ends with this tree, before the last round."""
        patience = self.settings.early_stopping_rounds
        if patience is None or not self.settings.looks_after(number, self.loss.n_scores):
            return False
        return len(self.losses) - 1 - int(np.argmin(self.losses)) >= patience

    def state(self) -> Stored:
        return {
            "trees": [tree_state(tree) for tree in self.trees],
            "losses": list(self.losses),
            "scores": self.scores,
            "added": self._added,
        }

    def restore(self, tree: Mapping[str, Any]) -> None:
        self.trees = [tree_of(each) for each in tree["trees"]]
        self.losses = list(tree["losses"])
        self.scores, self._added = tree["scores"].copy(), tree["added"].copy()

    def _look_at_held_out(self) -> None:
        rows = self.sampling.parts[1]
        if len(rows):
            values = self.loss.values(self.scores[rows], self.labels[rows])
            self.losses.append(float(np.average(values, weights=self.weights[rows])))

    def _kept(self, round: int, g: Float64Array) -> tuple[Int64Array, Float64Array]:
        """The rows that a round learns from, and what gradients are multiplied by (GOSS, Ke et al. 2017)."""
        rows, settings = self.sampling.rows(round), self.settings
        if not settings.top_rate:
            return rows, np.ones(len(rows))
        order = rows[np.argsort(-np.abs(g[rows]).sum(axis=1), kind="stable")]
        n_top = max(1, int(settings.top_rate * len(rows)))
        n_others = min(max(1, int(settings.other_rate * len(rows))), len(rows) - n_top)
        others = self.random.generator("goss", round).choice(order[n_top:], n_others, replace=False)
        factors = np.ones(len(self.labels))
        factors[others] = (1 - settings.top_rate) / settings.other_rate
        kept = np.sort(np.concatenate([order[:n_top], others]))
        return kept, factors[kept]
