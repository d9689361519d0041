import numpy as np
import pytest

from colonnade.data import datasets
from colonnade.roles import Roles
from colonnade.runtime.simulate import simulate

BOTH = Roles(label="bank", features=("shop",))


@pytest.fixture(scope="session")
def cancer():
    return datasets.load("breast-cancer").split()


@pytest.fixture(scope="session")
def digits():
    return datasets.load("digits").split()


@pytest.fixture(scope="session")
def numbers():
    """A regression that takes both parties' columns."""
    generator = np.random.default_rng(0)
    x = generator.standard_normal((400, 6)).astype(np.float32)
    y = 100 + 10 * (x @ np.arange(1, 7)) + generator.standard_normal(400)
    from colonnade.tables.table import Table

    bank = {"id": np.arange(400), "y": y, **{f"b{i}": x[:, i] for i in range(3)}}
    shop = {"id": np.arange(400), **{f"s{i}": x[:, 3 + i] for i in range(3)}}
    return {"bank": Table.of(bank, labels="y", owner="bank"), "shop": Table.of(shop, owner="shop")}


@pytest.fixture(scope="session")
def predicted():
    """What the label party predicts with the shares of a run."""

    def predict(run, tables, *, roles=BOTH, head=None, **more):
        from functools import partial

        protocols = {
            name: share.predict if head is None else partial(share.predict, head=head)
            for name, share in run.results.items()
        }
        return simulate(protocols, tables, roles=roles, **more).results[roles.label]

    return predict


def labels_of(tables):
    return np.asarray(tables["bank"].labels)
