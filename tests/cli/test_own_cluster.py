"""A plan may come from another party, and must not choose the cluster that a party's rows go to."""

import socket

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from colonnade.cli.main import app
from colonnade.errors import PlanError
from colonnade.plans.plan import Plan

PLAN = """
[data.shop]
path = "shop.parquet"
ids = "customer"
placed = {placed}
[roles]
label = "bank"
features = ["shop"]
[align]
[model]
name = "split-classifier"
[network.bank]
address = "127.0.0.1:{bank}"
[engine]
name = "dask"
address = "tcp://127.0.0.1:{cluster}"
"""


@pytest.fixture
def cluster():
    """Where another party's cluster listens."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(0.1)
        yield listening


@pytest.fixture
def plan(tmp_path, cluster):
    pq.write_table(pa.table({"customer": np.arange(200), "x": np.arange(200.0)}), tmp_path / "shop.parquet")

    def write(placed="true"):
        path = tmp_path / "plan.toml"
        path.write_text(PLAN.format(placed=placed, bank=1, cluster=cluster.getsockname()[1]))
        return path

    return write


@pytest.mark.network
@pytest.mark.parametrize("command", ["doctor", "align", "join"])
def test_rows_do_not_go_to_a_cluster_that_only_the_plan_names(plan, cluster, command):
    path, address = plan(), f"tcp://127.0.0.1:{cluster.getsockname()[1]}"
    told = CliRunner().invoke(app, [command, str(path), "--as", "shop", "--insecure"])
    assert told.exit_code == PlanError.exit_code
    assert f"add --engine dask:{address}" in " ".join(told.output.split())
    with pytest.raises(PlanError) as found:
        Plan.read(path).on_own_engine("shop", None)
    assert str(found.value) == (
        "The rows of shop should go to a cluster that shop's operator names, but only the plan names one: [engine] "
        f"address is {address!r}. If it is your own, add --engine dask:{address}"
    )
    with pytest.raises(TimeoutError):
        cluster.accept()


def test_the_command_line_names_a_cluster(plan):
    planned = Plan.read(plan())
    assert planned.on_own_engine("shop", "ray:10.0.0.7:6379").engine.address == "10.0.0.7:6379"
    assert planned.on_own_engine("shop", "local").engine.address is None
    assert planned.on_own_engine("shop", "local").hash == planned.hash


def test_a_plan_whose_table_is_not_placed_may_name_a_cluster_for_other_things(plan):
    planned = Plan.read(plan(placed="false"))
    assert planned.on_own_engine("shop", None) is planned
