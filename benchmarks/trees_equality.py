"""Trees on real data against xgboost's, node by node and by what whole forests predict.

Node by node: xgboost grows a forest on the numbers of bins; each of its trees is grown again from xgboost's own scores
before that tree, and nodes are compared from the root down. Nodes below a node that differs count as different. Ties
are counted apart: splits that gain exactly as much as xgboost's, and splits with a child whose whole-number hessians
sum to exactly min_child_weight, so that rounding alone decides whether the child is heavy enough. Whole forests: both
grow from their own scores on seven tenths of the rows, and areas under the ROC curve are those of the other rows,
averaged over classes against the rest where there are more than two. Beside the same bins xgboost is given raw columns,
and then the difference is a mean over seeds: 6,000 held-out rows tell areas to about 0.006 each. Trees are grown on one
table, which the forest of several parties equals.

Data sets are those of `colonnade.data` that are present, at most 20,000 rows of each; without any, generated rows.
Levels of categorical columns count as numbers here, since xgboost puts levels in another order. Figures without a data
set are the worst of all: shares of nodes are of all seeds together, distances of areas the largest over seeds.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from colonnade.data import available, load
from colonnade.models.trees.bins import BinMatrix, Bins, Column
from colonnade.models.trees.grow import PlainSums, Tree, grow
from colonnade.models.trees.losses import Gradients, Logistic, Loss, Poisson, Softmax, Squared
from colonnade.models.trees.splits import Split, TreeParameters
from colonnade.tables.table import Table

TARGETS: Mapping[str, float] = {"different_share": 0.001, "auc_off": 1e-4, "auc_off_raw": 3e-3}
SEEDS, ROWS, BINS, DEPTH = 3, 20_000, 32, 5
OBJECTIVES: Mapping[str, Loss] = {
    "binary:logistic": Logistic(),
    "reg:squarederror": Squared(),
    "count:poisson": Poisson(),
}
# What xgboost calls as `TreeParameters` does.
SHARED = {"gamma", "eta", "reg_lambda", "reg_alpha", "min_child_weight", "max_delta_step", "max_depth", "max_leaves"}
START: Mapping[str, float] = {"reg:squarederror": 0.5, "count:poisson": float(np.log(0.5))}


@dataclass(frozen=True)
class Task:
    """A data set, and the one class to tell from the rest; all classes where that is None."""

    data: str
    one: int | None = None

    @property
    def name(self) -> str:
        """What the task is called in figures."""
        return self.data if self.one is None else f"{self.data}-{self.one}"

    def rows(self, n_rows: int, seed: int) -> tuple[Table, NDArray[np.float64]]:
        """Some rows with all columns, and their classes counted from 0."""
        most = next(info.rows for info in available() if info.name == self.data)
        table = load(self.data, rows=min(n_rows, most), seed=seed).joined()
        labels = np.asarray(table.labels)
        labels = np.unique(labels if self.one is None else labels == self.one, return_inverse=True)[1]
        return table, labels.astype(np.float64)


# Of the kinds of cover the second is the most frequent.
REAL = (Task("credit-default"), Task("bank-marketing"), Task("adult"), Task("covtype", one=2), Task("covtype"))
GENERATED = (Task("bank-shop-telco"),)


def binned(table: Table, train: NDArray[np.int64]) -> BinMatrix:
    """All rows in bins that some of them give, levels as if they were numbers."""
    encoded = Bins.learned(table, train, max_bin=BINS).encode(table)
    return BinMatrix(tuple(Column(each.n_bins, each.missing) for each in encoded.columns), encoded.codes)


def raw(table: Table) -> NDArray[np.float32]:
    """Columns as they are, levels as if they were numbers."""
    found = {name: table.to_arrow().column(name) for name in table.columns}
    for name, kind in table.kinds.items():
        if kind == "categorical":
            found[name] = found[name].combine_chunks().dictionary_encode().indices
    return np.stack([each.cast("float32").to_numpy(zero_copy_only=False) for each in found.values()], axis=1)


class Theirs:
    """One tree of xgboost's.

    Args:
        model: The tree as xgboost writes it.
        gaps: For each column whether values are missing.
    """

    def __init__(self, model: Mapping[str, Any], gaps: Sequence[bool]) -> None:
        self._tree, self._gaps = model, gaps

    def split(self, node: int) -> Split | None:
        """A node's split, or None for a leaf."""
        if self._tree["left_children"][node] < 0:
            return None
        column = self._tree["split_indices"][node]
        # Bins are whole numbers, and the values below a condition go to the left.
        last = int(np.ceil(self._tree["split_conditions"][node])) - 1
        return Split(column, last, None, bool(self._tree["default_left"][node]) and self._gaps[column])

    def children(self, node: int) -> tuple[int, int]:
        """A node's children."""
        return self._tree["left_children"][node], self._tree["right_children"][node]

    def size(self, node: int) -> int:
        """How many nodes there are from a node down."""
        if self._tree["left_children"][node] < 0:
            return 1
        return 1 + sum(self.size(child) for child in self.children(node))


class Compared:
    """How many nodes of xgboost's trees are ours too; nodes below one that differs count as different."""

    def __init__(self) -> None:
        self.equal = self.different = self.tied = 0

    @property
    def share(self) -> float:
        """The share of equal nodes, apart from ties."""
        return self.equal / (self.equal + self.different)

    def add(self, tree: Tree, theirs: Theirs, ties: Callable[[int, Split], bool]) -> None:
        """Compare one tree; `ties` says whether nothing but rounding decides between a node's split and another."""
        self._walk(tree, 0, theirs, 0, ties)

    def _walk(self, tree: Tree, ours: int, theirs: Theirs, node: int, ties: Callable[[int, Split], bool]) -> None:
        split = theirs.split(node)
        if tree.splits[ours] == split:
            self.equal += 1
            if split is not None:
                for mine, other in zip(tree.children[ours], theirs.children(node), strict=True):
                    self._walk(tree, mine, theirs, other, ties)
        elif split is not None and ties(ours, split):
            self.tied += 1
        else:
            self.different += theirs.size(node)


def fed(bins: BinMatrix) -> NDArray[np.float32]:
    """Codes of bins as numbers, missing ones as no number."""
    gaps = bins.codes == np.array([column.n_bins for column in bins.columns])
    return np.where(gaps, np.nan, bins.codes).astype(np.float32)


def given(objective: str, parameters: TreeParameters, n_classes: int) -> dict[str, Any]:
    """Parameters of xgboost's that mean the same."""
    shared = {name: value for name, value in vars(parameters).items() if name in SHARED}
    fixed = {"objective": objective, "tree_method": "hist", "max_bin": 256, "nthread": 1, "base_score": 0.5}
    return (
        shared | fixed | {"grow_policy": parameters.grow_policy} | ({"num_class": n_classes} if n_classes > 1 else {})
    )


def compared(
    bins: BinMatrix,
    labels: NDArray[np.float64],
    objective: str,
    n_rounds: int,
    parameters: TreeParameters,
    n_classes: int = 1,
    grown_on: BinMatrix | None = None,
    theirs: Mapping[str, float] | None = None,
) -> Compared:
    """Grow every tree of a run of xgboost's again, each from xgboost's scores before it, on the same bins or others.

    `theirs` are parameters that xgboost is given and our trees are not.
    """
    import xgboost

    loss = OBJECTIVES.get(objective) or Softmax(n_classes)
    if isinstance(loss, Poisson):
        parameters = replace(parameters, max_delta_step=loss.max_delta_step)
    data = xgboost.DMatrix(fed(bins), label=labels)
    booster = xgboost.train({**given(objective, parameters, n_classes), **(theirs or {})}, data, n_rounds)
    model = json.loads(booster.save_raw("json"))["learner"]["gradient_booster"]["model"]["trees"]
    source, out = PlainSums(grown_on or bins), Compared()
    gaps = [column.missing for column in bins.columns]
    for number in range(n_rounds):
        scores = np.full((len(labels), loss.n_scores), START.get(objective, 0.0))
        if number:
            margins = booster.predict(data, output_margin=True, iteration_range=(0, number))
            scores = margins.reshape(len(labels), -1).astype(np.float64)
        g, h = loss.gradients(scores, labels)
        for score in range(loss.n_scores):
            gradients = Gradients.of(g[:, score], h[:, score])
            tree, _ = grow(gradients, source, parameters)
            at = rows_of_nodes(tree, source, len(labels))

            def tied(
                node: int,
                split: Split,
                tree: Tree = tree,
                gradients: Gradients = gradients,
                at: Mapping[int, NDArray[np.int64]] = at,
            ) -> bool:
                """Whether xgboost's split gains exactly as much as ours, or one of our children is at its limit."""
                limit = parameters.min_child_weight * 2.0**gradients.h_bits
                if tree.splits[node] is not None and limit in [tree.totals[each][1] for each in tree.children[node]]:
                    return True
                (side,) = source.left([(split, at[node])])
                totals = np.array(tree.totals[node])
                left = np.array([gradients.g[at[node][side]].sum(), gradients.h[at[node][side]].sum()])
                gain, other, whole = (parameters.gains(gradients.reals(each)) for each in (left, totals - left, totals))
                return bool(gain + other - whole == tree.gains[node])

            out.add(tree, Theirs(model[number * loss.n_scores + score], gaps), tied)
    return out


def rows_of_nodes(tree: Tree, source: PlainSums, n_rows: int) -> dict[int, NDArray[np.int64]]:
    """The rows of each node of a tree."""
    at = {0: np.arange(n_rows)}
    for node, split in enumerate(tree.splits):
        if split is not None:
            (side,) = source.left([(split, at[node])])
            at |= dict(zip(tree.children[node], (at[node][side], at[node][~side]), strict=True))
    return at


def boosted(
    bins: BinMatrix,
    labels: NDArray[np.float64],
    train: NDArray[np.int64],
    loss: Loss,
    n_rounds: int,
    parameters: TreeParameters,
) -> NDArray[np.float64]:
    """The scores of all rows under a forest that learns from some, from scores of 0."""
    source, scores = PlainSums(bins), np.zeros((len(labels), loss.n_scores))
    for _ in range(n_rounds):
        g, h = (np.zeros_like(scores) for _ in range(2))
        g[train], h[train] = loss.gradients(scores[train], labels[train])
        added = np.zeros_like(scores)
        for score in range(loss.n_scores):
            tree, _ = grow(Gradients.of(g[:, score], h[:, score]), source, parameters, rows=train)
            added[:, score] = np.array(tree.values)[tree.leaves(source, len(labels))]
        scores = scores + added
    return scores


def auc_off(
    bins: BinMatrix,
    labels: NDArray[np.float64],
    held: NDArray[np.bool_],
    objective: str,
    n_rounds: int,
    parameters: TreeParameters,
    n_classes: int = 1,
    columns: NDArray[np.float32] | None = None,
) -> list[float]:
    """How much larger the area under the ROC curve of our forest is than xgboost's, on rows that neither learns from.

    xgboost learns from the same bins, and in a second run from `columns` where these are given.
    """
    import xgboost
    from sklearn.metrics import roc_auc_score

    loss = OBJECTIVES.get(objective) or Softmax(n_classes)
    ours = boosted(bins, labels, np.flatnonzero(~held), loss, n_rounds, parameters)[held]
    predicted = [loss.predicted(ours)]
    for fed_with in (fed(bins), columns):
        if fed_with is not None:
            data = xgboost.DMatrix(fed_with[~held], label=labels[~held])
            booster = xgboost.train(given(objective, parameters, n_classes), data, n_rounds)
            predicted.append(booster.predict(xgboost.DMatrix(fed_with[held])).reshape(ours.shape))
    # Classes of which no row is held out have no curve.
    classes = [number for number in range(n_classes) if (labels[held] == number).any()] if n_classes > 1 else [1]
    places = classes if n_classes > 1 else [0]
    areas = [
        np.mean([roc_auc_score(labels[held] == number, each[:, k]) for number, k in zip(classes, places, strict=True)])
        for each in predicted
    ]
    return [float(areas[0] - area) for area in areas[1:]]


def measure(*, quick: bool) -> dict[str, float]:
    """The share of nodes that differ and the distance of areas under curves, the worst and those of each data set."""
    n_rows, n_seeds, n_rounds = (1000, 1, 2) if quick else (ROWS, SEEDS, 50)
    present = {info.name for info in available() if info.present}
    tasks = [task for task in REAL if task.data in present]
    parameters, figures = TreeParameters(max_depth=DEPTH), {}
    for task in tasks or GENERATED:
        nodes, off = Compared(), []
        for seed in range(n_seeds):
            table, labels = task.rows(n_rows, seed)
            held = np.random.default_rng(seed).random(len(labels)) < 0.3
            n_classes = int(labels.max()) + 1
            several = n_classes > 2
            objective = "multi:softprob" if several else "binary:logistic"
            # A round of several classes has a tree for each.
            rounds = max(1, n_rounds // n_classes) if several else n_rounds
            how = objective, rounds, parameters, n_classes if several else 1
            found = compared(binned(table, np.arange(len(table))), labels, *how)
            nodes.equal, nodes.different = nodes.equal + found.equal, nodes.different + found.different
            nodes.tied += found.tied
            learned = binned(table, np.flatnonzero(~held))
            off.append(auc_off(learned, labels, held, *how, raw(table)))
        figures[f"{task.name}.nodes"] = float(nodes.equal + nodes.different)
        figures[f"{task.name}.ties"] = float(nodes.tied)
        figures[f"{task.name}.different_share"] = 1 - nodes.share
        same, others = np.array(off).T
        figures[f"{task.name}.auc_off"] = float(np.abs(same).max())
        figures[f"{task.name}.auc_off_raw"] = float(abs(others.mean()))
        figures[f"{task.name}.auc_off_raw_of_one_seed"] = float(np.abs(others).max())
    worst = {key: max(value for name, value in figures.items() if name.endswith(f".{key}")) for key in TARGETS}
    return {**worst, "data_sets": float(len(tasks)), **figures}
