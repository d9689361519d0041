"""Groups of rows in trees: rows of one leaf have like labels, so who shares leaves with whom tells the labels.

With revealed membership a feature party is told which rows each node of a tree has. Rows that share deep nodes in many
trees are of one class. A few known labels, spread among rows that share nodes, name the others.

Where membership is hidden, a feature party is still told which splits of its own columns gain most. Splits are chosen
by the labels: of many columns they name those that matter, and where to cut them. Sides under these splits are columns
from which a few known labels tell more than from all columns.

No leaf weight and no prediction is ever sent to a feature party, so that there is nothing of these to attack.

Cheng et al. 2021, "SecureBoost", arXiv 1901.08755, reveals membership.
"""

from __future__ import annotations

import numpy as np

from colonnade.attacks.base import Attack, ExampleRun, Guess, Inapplicable, Needs, View
from colonnade.attacks.labels.cotraining import believed
from colonnade.attacks.labels.spreading import spread
from colonnade.attacks.points import KNOWN_PER_CLASS, Points
from colonnade.models.trees.estimator import SecureBoost
from colonnade.models.trees.messages import ChosenSplits, NodeRows
from colonnade.wire.message import Int64Array

COMPONENTS = 16


class SharedNodes(Attack):
    """Labels spread among rows that share nodes of trees."""

    needs = Needs(messages=(NodeRows,), known_labels=KNOWN_PER_CLASS)
    example_run = ExampleRun(
        "secureboost-classifier",
        {"n_estimators": 1, "backend": "paillier", "membership": "revealed", "early_stopping_rounds": None},
    )

    def why_not(self, view: View) -> str | None:
        if not view.peers(NodeRows, sent=False):
            return Inapplicable(f"{view.party} was not told which rows nodes have")
        return node_points(view).why_not(view.grant)

    def guess(self, view: View) -> Guess:
        points = node_points(view)
        known, labels = points.known(view.grant)
        return Guess.rated(points.rows, spread(points.values, known, labels, view.grant.n_classes, view.random))


class OwnSplits(Attack):
    """Labels learned from the sides of rows under the splits that were chosen of the attacker's own columns."""

    needs = Needs(messages=(ChosenSplits,), own_features=True, own_model=True, known_labels=KNOWN_PER_CLASS)
    example_run = ExampleRun("secureboost-classifier")

    def why_not(self, view: View) -> str | None:
        if not isinstance(view.own.model, SecureBoost):
            return Inapplicable("it reads the splits of a forest")
        return None if any(view.own.model.splits_) else f"no split of {view.party}'s columns was chosen"

    def guess(self, view: View) -> Guess:
        assert isinstance(view.own.model, SecureBoost)
        bins = view.own.model.bins_.encode(view.own.table)
        chosen = [split.left_rows(bins, slice(None)) for splits in view.own.model.splits_ for split in splits]
        # A split that was chosen often counts as often. In a null run perhaps none was chosen, and all rows are alike.
        chosen = chosen or [np.ones(len(bins.codes), np.bool_)]
        sides = Points(np.arange(len(bins.codes)), np.stack(chosen, axis=1).astype(np.float64))
        known, labels = sides.known(view.grant)
        return Guess.rated(sides.rows, np.log(believed(sides, known, labels, view.grant.n_classes, view.random)))


def node_points(view: View) -> Points:
    """A vector for each row, alike for rows that share nodes: the main components of who is in which node."""
    from scipy.sparse import csr_array
    from scipy.sparse.linalg import svds

    rows, nodes, weights, n_nodes = [], [], [], 0
    for recorded in view.messages(NodeRows, sent=False):
        if recorded.rows is None:
            continue
        counts = recorded.message.counts
        rows.append(recorded.rows[recorded.message.rows])
        nodes.append(n_nodes + np.repeat(np.arange(len(counts)), counts))
        # Sharing a small node tells more than sharing a large one.
        weights.append(np.repeat(1 / np.sqrt(np.maximum(counts, 1)), counts))
        n_nodes += len(counts)
    if not rows:
        return Points(np.zeros(0, np.int64), np.zeros((0, 0)))
    seen, place = np.unique(np.concatenate(rows), return_inverse=True)
    shape = (len(seen), n_nodes)
    shared = csr_array((np.concatenate(weights), (place, np.concatenate(nodes))), shape=shape)
    width = min(COMPONENTS, min(shape) - 1)
    if width < 1:
        return Points(_as_rows(seen), shared.toarray())
    left, strength, _ = svds(shared, k=width, v0=np.ones(min(shape)))
    return Points(_as_rows(seen), left * strength)


def _as_rows(rows: Int64Array) -> Int64Array:
    return rows.astype(np.int64)
