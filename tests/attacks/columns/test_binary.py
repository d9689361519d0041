import numpy as np

from colonnade.attacks import BinaryColumns
from colonnade.attacks.columns.binary import binary_columns
from colonnade.models.networks.oneshot import OneShotClassifier
from colonnade.roles import Roles
from colonnade.runtime.simulate import simulate
from colonnade.tables.encode import centred
from colonnade.tables.table import Table
from colonnade.testing import attempt_on


def test_every_binary_column_of_a_linear_layer_is_found_and_nothing_else():
    random = np.random.default_rng(0)
    columns = np.column_stack([random.integers(0, 2, size=(300, 3)), random.normal(size=(300, 2))])
    embeddings = columns @ random.normal(size=(5, 5))
    found = binary_columns(np.column_stack([embeddings, np.ones(300)])).astype(int)
    # The constant is in the space as well, hence every column's opposite is.
    wanted = {tuple(each) for column in columns[:, :3].astype(int).T for each in (column, 1 - column)}
    assert {tuple(each) for each in found.tolist()} == wanted


def test_as_many_components_as_columns_give_binary_columns_away():
    random = np.random.default_rng(1)
    shop = {"member": random.integers(0, 2, 200), "spend": random.normal(size=200)}
    tables = {
        "bank": Table.of({"x": random.normal(size=200), "y": random.integers(0, 2, 200)}, ids=None, labels="y"),
        "shop": Table.of(shop, ids=None),
    }
    model = OneShotClassifier(leak_budget={"shop": 1.0}, components=2, epochs=1)
    run = simulate(model.fit, tables, roles=Roles(label="bank", features=("shop",)), seed=1)
    attempt = attempt_on(run, BinaryColumns(), "bank")
    guess = attempt.guess(run.simulation, lambda: run)
    truth, names = centred(tables["shop"])
    member = names.index("member")
    np.testing.assert_allclose(guess.values[:, member], truth[guess.rows, member])
    assert not guess.values[:, names.index("spend")].any()
