"""Text columns of very many levels: hashed into buckets, or refused with the way out."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from colonnade import Roles, Table, simulate
from colonnade.errors import DataError, PlanError
from colonnade.models import OneShotClassifier, SplitClassifier
from colonnade.plans.plan import Plan
from colonnade.roles import PublicPlan
from colonnade.runtime.party import Party
from colonnade.tables.encode import Inputs, rare_levels

BOTH = Roles(label="bank", features=("shop",))
PUBLIC = PublicPlan(BOTH, "fit")


def streets(n_levels: int, n: int = 1_200) -> dict[str, Table]:
    random = np.random.default_rng(0)
    names = [f"street {number}" for number in np.arange(n) % n_levels]
    return {
        "bank": Table.of({"id": range(n), "own": random.normal(size=n), "late": np.arange(n) % 2}, labels="late"),
        "shop": Table.of({"id": range(n), "street": names, "spend": random.normal(size=n)}, owner="shop"),
    }


def test_a_level_is_in_the_same_bucket_in_every_table_and_a_missing_value_stays_missing():
    first = Table.of({"id": [1, 2, 3], "street": ["Elm", None, "Oak"], "n": [1, 2, 3]}).hashed({"street": 16})
    second = Table.of({"id": [4, 5], "street": ["Oak", "Elm"], "n": [4, 5]}).hashed({"street": 16})
    assert first.column("street")[[2, 0]].tolist() == second.column("street").tolist()
    assert first.column("street")[1] is None
    assert first.column("n").tolist() == [1, 2, 3]
    assert len(set(streets(1_000)["shop"].hashed({"street": 64}).column("street"))) == 64


def test_only_text_that_is_there_is_hashed():
    with pytest.raises(DataError, match="hashed should give column 'street' at least 2 buckets, but gives 0"):
        streets(3)["shop"].hashed({"street": 0})
    with pytest.raises(DataError, match="should have text in the column 'spend' to be hashed, but it holds numeric"):
        streets(3)["shop"].hashed({"spend": 8})
    with pytest.raises(DataError, match="'avenue'"):
        streets(3)["shop"].hashed({"avenue": 8})


def test_one_shot_refuses_thousands_of_levels_and_names_the_way_out():
    tables = streets(1_100)
    model = OneShotClassifier(leak_budget={"shop": 1.0}, epochs=1)
    words = r"at most 1,000 levels together.* have 1,100, 1,100 of them in 'street'. Hash it with Table.hashed"
    with pytest.raises(DataError, match=words):
        simulate(model.fit, tables, roles=BOTH)
    with pytest.raises(DataError, match=words):
        model.check_table(Party.alone(PUBLIC, "shop", tables["shop"]))
    hashed = {**tables, "shop": tables["shop"].hashed({"street": 8})}
    assert simulate(model.fit, hashed, roles=BOTH).results["bank"].is_fitted


PEAK = """
import resource
from colonnade import simulate
from colonnade.models import LogisticRegression, OneShotClassifier
from tests.tables.test_hashed import BOTH, streets

tables = streets(3_000, 14_000)
tables["shop"] = tables["shop"].hashed({{"street": {buckets}}})
run = simulate({model}.fit, tables, roles=BOTH, seed=0, keep="digests")
assert run.results["bank"].is_fitted
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
"""
# A program counts what the process used whose place it took. A shell uses little, a worker of pytest may use more than
# the training.
FROM_A_SHELL = ["sh", "-c", '"$0" -c "$1"; exit $?', sys.executable]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "buckets"),
    [("OneShotClassifier(leak_budget={'shop': 1.0})", 256), ("LogisticRegression(max_iter=3)", 128)],
)
def test_thousands_of_hashed_levels_train_in_less_than_a_gigabyte(model, buckets):
    script = PEAK.format(model=model, buckets=buckets)
    done = subprocess.run([*FROM_A_SHELL, script], cwd=Path(__file__).parents[2], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 1e9


def test_one_shot_refuses_the_same_levels_without_hashing():
    tables = streets(3_000, 14_000)
    with pytest.raises(DataError, match=r"but have 3,000, 3,000 of them in 'street'. Hash it with Table.hashed"):
        simulate(OneShotClassifier(leak_budget={"shop": 1.0}).fit, tables, roles=BOTH)


def test_a_split_network_warns_of_levels_that_it_would_learn_by_heart(caplog):
    tables = streets(400)
    with caplog.at_level(logging.WARNING):
        simulate(SplitClassifier(epochs=1).fit, tables, roles=BOTH)
    (said,) = [record.getMessage() for record in caplog.records]
    assert "shop's text column 'street' has 400 levels in 1,200 rows" in said
    assert "street = 256 under [data.shop.hashed]" in said
    assert SplitClassifier().check_table(Party.alone(PUBLIC, "shop", tables["shop"])) == (said,)
    assert list(rare_levels(tables["shop"].hashed({"street": 64}))) == []


def test_one_hot_columns_are_those_of_the_codes():
    table = Table.of({"id": [1, 2, 3], "a": [1.0, 2.0, None], "job": ["cook", None, "nurse"], "town": ["x", "y", "x"]})
    inputs = Inputs.learned(table, np.arange(3))
    numbers, owners = inputs.one_hot(table)
    assert owners == ("a", "a", "job", "job", "job", "town", "town", "town")
    assert numbers[:, 2:].tolist() == [[0, 1, 0, 0, 1, 0], [1, 0, 0, 0, 0, 1], [0, 0, 1, 0, 1, 0]]


PLAN = """
[data.bank]
path = "bank.parquet"
ids = "id"
labels = "late"
[data.shop]
path = "shop.parquet"
ids = "id"
[data.shop.hashed]
street = 8
[roles]
label = "bank"
features = ["shop"]
[model]
name = "split-classifier"
"""


def test_a_plan_hashes_columns_of_a_partys_file(tmp_path):
    import pyarrow.parquet as pq

    for name, table in streets(50).items():
        pq.write_table(table.to_arrow(), tmp_path / f"{name}.parquet")
    (tmp_path / "plan.toml").write_text(PLAN)
    plan = Plan.read(tmp_path / "plan.toml")
    assert set(plan.tables().train["shop"].column("street")) == {f"bucket {number}" for number in range(8)}
    (tmp_path / "again.toml").write_text(plan.to_toml())
    assert Plan.read(tmp_path / "again.toml").hash == plan.hash
    (tmp_path / "plan.toml").write_text(PLAN + '[align]\nkeys = ["text"]\n[align.columns]\nshop = ["street"]\n')
    with pytest.raises(PlanError, match="should name columns that nobody is matched by, but names 'street'"):
        Plan.read(tmp_path / "plan.toml").tables()
    (tmp_path / "plan.toml").write_text(PLAN.replace("street = 8", "street = 1"))
    with pytest.raises(PlanError, match="hashed should give column 'street' at least 2 buckets, but gives 1"):
        Plan.read(tmp_path / "plan.toml")
