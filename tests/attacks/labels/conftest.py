import numpy as np
import pytest

from colonnade.attacks.view import Grant, View
from colonnade.roles import PublicPlan, Roles
from colonnade.tables.table import Table
from colonnade.wire.recording.recording import RowMeans, Transcript


@pytest.fixture
def gradient_view():
    """What a shop saw that received these mean gradients, knows some labels of each class, and has some columns."""

    def view_of(attack, gradients, labels, per_class=4, columns=None, settings=None):
        values = np.asarray(gradients, np.float32)
        means = RowMeans("split/gradient", "bank", False, 0, values, np.ones(len(values), np.int64))
        rows = np.sort(np.concatenate([np.flatnonzero(labels == k)[:per_class] for k in np.unique(labels)]))
        plan = PublicPlan(Roles(label="bank", features=("shop",)), "SplitClassifier.fit", settings or {})
        table = None
        if columns is not None:
            named = {f"x{i}": column for i, column in enumerate(np.asarray(columns).T)}
            table = Table.of({"id": np.arange(len(values)), **named}, owner="shop")
        grant = Grant(len(np.unique(labels)), rows, labels[rows])
        return View.cut(attack.needs, Transcript("shop", means=(means,)), public=plan, grant=grant, table=table)

    return view_of
