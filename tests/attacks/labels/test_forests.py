import numpy as np
from sklearn.metrics import roc_auc_score

from colonnade.attacks.labels.cotraining import believed
from colonnade.attacks.labels.forests import OwnSplits, SharedNodes
from colonnade.attacks.points import Points
from colonnade.attacks.view import Grant, View
from colonnade.models.trees.estimator import SecureBoostClassifier
from colonnade.models.trees.messages import NodeRows
from colonnade.roles import PublicPlan, Roles
from colonnade.runtime.simulate import simulate
from colonnade.tables.table import Table
from colonnade.testing import attempt_on
from colonnade.wire.codec import encode
from colonnade.wire.recording.recording import Recording

ROLES = Roles(label="bank", features=("shop",))


def view_of(nodes, fold, grant):
    """What a shop saw that was told the rows of these nodes, numbered within a fold."""
    recording = Recording("shop", keep="all")
    for tree, groups in enumerate(nodes):
        counts = np.array([len(group) for group in groups], np.int64)
        message = NodeRows(tree, counts, np.concatenate(groups).astype(np.int64))
        recording.add(message, encode(message), sent=False, peer="bank", rows=fold, epoch=tree)
    plan = PublicPlan(ROLES, "SecureBoostClassifier.fit")
    return View.cut(SharedNodes.needs, recording.transcript(), public=plan, grant=grant)


def test_rows_that_share_nodes_share_labels():
    random = np.random.default_rng(0)
    fold = np.arange(100, 200)
    labels = random.integers(2, size=200)
    places = np.arange(100)
    nodes = []
    for _ in range(4):
        leaves = 2 * labels[fold] + random.integers(2, size=100)
        nodes.append([places[leaves == leaf] for leaf in range(4)])
    known = np.concatenate([fold[labels[fold] == k][:4] for k in (0, 1)])
    known.sort()
    attack = SharedNodes()
    view = view_of(nodes, fold, Grant(2, known, labels[known]))
    assert attack.why_not(view) is None
    guess = attack.guess(view)
    assert guess.rows.tolist() == fold.tolist()
    assert ((guess.scores > 0) == labels[fold]).mean() > 0.95


def test_hidden_membership_leaves_nothing_to_attack():
    view = view_of([], np.arange(3), Grant(2))
    assert SharedNodes().why_not(view) == "shop was not told which rows nodes have"


def test_chosen_splits_tell_more_of_the_labels_than_all_columns_do():
    random = np.random.default_rng(0)
    labels = random.integers(2, size=400)
    columns = random.normal(size=(400, 30))
    columns[:, 7] += 2 * labels
    tables = {
        "bank": Table.of({"y": labels}, ids=None, labels="y"),
        "shop": Table.of({f"x{i}": column for i, column in enumerate(columns.T)}, ids=None),
    }
    model = SecureBoostClassifier(n_estimators=2, max_depth=1, early_stopping_rounds=None, leak_budget=0.1)
    run = simulate(model.fit, tables, roles=ROLES)
    attempt = attempt_on(run, OwnSplits())
    guess = attempt.guess(run.simulation, lambda: run)
    told = attempt.grant
    alone = believed(Points(guess.rows, columns), told.rows, told.labels, 2, random)
    assert roc_auc_score(labels, guess.scores) > roc_auc_score(labels, alone[:, 1]) + 0.05


def test_where_no_split_was_chosen_all_rows_are_alike():
    """A null run must not end an audit whose own run had splits."""
    random = np.random.default_rng(0)
    tables = {
        "bank": Table.of({"y": random.integers(2, size=60)}, ids=None, labels="y"),
        "shop": Table.of({"x": random.normal(size=60)}, ids=None),
    }
    model = SecureBoostClassifier(n_estimators=1, early_stopping_rounds=None, leak_budget=1.0)
    attempt = attempt_on(simulate(model.fit, tables, roles=ROLES), OwnSplits())
    model.gamma = 1e6
    unsplit = simulate(model.fit, tables, roles=ROLES)
    assert not any(unsplit.results["shop"].splits_)
    assert np.ptp(attempt.guess(unsplit.simulation, lambda: unsplit).scores) == 0
