"""A table that is placed on workers gives the same bytes as one in memory, whoever of the workers is lost."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from colonnade.align import Align, Aligned, Limits
from colonnade.crypto.profiles import SHARES
from colonnade.deploy.doctor.columns import told_place
from colonnade.errors import DataError, PrivacyError, StorageError
from colonnade.experiment.run_folder import RunFolder
from colonnade.models import LogisticRegression
from colonnade.models.glm.rows import BatchedRows
from colonnade.models.networks.oneshot import OneShotClassifier
from colonnade.plans.plan import Plan
from colonnade.roles import PublicPlan, Roles
from colonnade.runtime.party import Party
from colonnade.runtime.placed import placed_table, released
from colonnade.runtime.simulate import simulate
from colonnade.runtime.workers import Crew
from colonnade.tables.table import Table
from tests.runtime.tasks import BANK_AND_SHOP as ROLES
from tests.runtime.tasks import is_running, own_pid, wait_until

RUN = {
    "capture_output": True,
    "text": True,
    "check": True,
    "cwd": Path(__file__).parents[2],
    "env": {**os.environ, "OMP_NUM_THREADS": "1"},
}
N, PARTITION_ROWS = 1000, 128


@pytest.fixture(scope="module")
def shop_parts(tmp_path_factory):
    """The shop's table as a folder of Parquet parts, whose groups of rows end where no partition does."""
    folder, drawn = tmp_path_factory.mktemp("placed") / "shop", np.random.default_rng(0)
    folder.mkdir()
    x = drawn.standard_normal((N, 3)) @ drawn.standard_normal((3, 4))
    columns = {f"x{i}": pa.array(x[:, i], mask=drawn.random(N) < 0.05) for i in range(4)}
    job = pa.array(drawn.choice(["cook", "nurse", "clerk"], N))
    table = pa.table({"customer": [f"id {i:05d}" for i in drawn.permutation(N)], **columns, "job": job})
    for number, begin in enumerate(range(0, N, 300)):
        pq.write_table(table.slice(begin, 300), folder / f"part-{number}.parquet", row_group_size=70)
    return folder


@pytest.fixture(scope="module")
def bank():
    drawn = np.random.default_rng(1)
    ids = [f"ID {i:05d}" for i in drawn.permutation(N + 200)[:N]]
    return Table.of({"id": ids, "age": drawn.random(N), "bad": drawn.integers(0, 2, N)}, labels="bad", owner="bank")


def in_memory(path):
    return Table.read(path, ids="customer", owner="shop")


def placed(path, crew):
    return placed_table(path, crew, ids="customer", owner="shop")


def names_held(part):
    from colonnade.runtime.answers import _HELD

    return {name for held in _HELD.values() for name in held}


def kill_one(table):
    os.kill(random.choice(list(table.map(own_pid))), signal.SIGKILL)


def test_a_placed_table_has_the_same_rows_columns_and_kinds_in_any_order(shop_parts, crew):
    near, far = in_memory(shop_parts), placed(shop_parts, crew)
    rows = np.random.default_rng(2).permutation(N)[:700]
    absent = np.where(rows % 7, rows, -1)
    for here, there in (
        (near, far),
        (near.take(rows), far.take(rows)),
        (near.arranged(absent).select(["job", "x1"]), far.arranged(absent).select(["job", "x1"])),
        (near.hashed({"job": 2}).take(rows), far.hashed({"job": 2}).take(rows)),
    ):
        assert len(here) == len(there)
        assert here.columns == there.columns
        assert here.kinds == there.kinds
        assert here.id_digest() == there.id_digest()
        assert there.to_arrow().equals(here.to_arrow())
        assert list(here.map(len)) == list(there.map(len))


def test_only_ids_and_labels_are_in_the_process_that_asks(shop_parts, crew):
    table = placed_table(shop_parts, crew, ids="customer", labels="x0", owner="shop")
    assert table._arrow.column_names == ["customer", "x0"]
    assert table.columns == ("x1", "x2", "x3", "job")
    assert os.getpid() not in set(table.map(own_pid))
    assert len(set(table.map(own_pid))) == 2


def test_a_lost_worker_makes_its_partitions_again(shop_parts, crew):
    table, expected = placed(shop_parts, crew), in_memory(shop_parts).column("x2")
    numbers = table.partitions.then(Table.column, "x2")
    for _ in range(2):
        kill_one(table)
        np.testing.assert_array_equal(np.concatenate(list(numbers.map(np.copy))), expected)


def test_workers_drop_what_nobody_refers_to_any_more(shop_parts, crew):
    table = placed(shop_parts, crew)
    made = table.partitions.then(Table.column, "x2")
    list(made.map(len))
    held = set().union(*table.map(names_held))
    del made
    list(table.map(len))
    assert set().union(*table.map(names_held)) < held


def test_workers_end_with_the_block_that_a_table_is_released_in(shop_parts):
    """What lies with a worker after a run is rows that nobody looks after."""
    with released(placed(shop_parts, Crew(n=1))) as table:
        workers = set(table.map(own_pid))
    until = time.monotonic() + 20
    while any(Path(f"/proc/{each}").exists() for each in workers) and time.monotonic() < until:
        time.sleep(0.02)
    assert workers
    assert [each for each in workers if Path(f"/proc/{each}").exists()] == []


def test_workers_of_a_simulated_plan_end_with_it_also_where_it_fails(tmp_path):
    numbers = {"id": np.arange(400), "x": np.random.default_rng(0).standard_normal(400)}
    pq.write_table(pa.table(numbers), tmp_path / "numbers.parquet")
    data = 'path = "numbers.parquet"\nids = "id"\nplaced = true\n'
    (tmp_path / "plan.toml").write_text(
        f'[data.shop]\n{data}[data.bank]\n{data}labels = "x"\n[roles]\nlabel = "bank"\nfeatures = ["shop"]\n'
        '[model]\nname = "secureboost-regressor"\n[engine]\njobs = 1\n'
    )
    folder = RunFolder.create(Plan.read(tmp_path / "plan.toml"), tmp_path)
    tables = folder.tables()
    workers = {pid for table in tables.held.values() for pid in table.map(own_pid)}
    with pytest.raises(PrivacyError, match="leak_budget"):
        folder.simulate(tables=tables)
    assert len(workers) == 2
    wait_until(lambda: not any(map(is_running, workers)))


def test_files_that_change_during_a_run_are_refused(shop_parts, crew, tmp_path):
    path = tmp_path / "shop.parquet"
    pq.write_table(in_memory(shop_parts).to_arrow(), path)
    table = placed(path, crew)
    pq.write_table(in_memory(shop_parts).take(np.arange(N)[::-1]).to_arrow(), path)
    with pytest.raises(StorageError, match="the same Parquet files as when the run began"):
        list(table.map(len))


def test_a_value_that_changes_where_nothing_else_does_is_noticed(crew, tmp_path):
    """A run that goes on from its checkpoints would hide the new value under masks that hid the old one."""
    path, x = tmp_path / "shop.parquet", np.random.default_rng(0).standard_normal(N)
    pq.write_table(pa.table({"customer": np.arange(N), "x": x}), path)
    size, footer = path.stat().st_size, pq.read_metadata(path)
    table = placed(path, crew)
    identity = table.digest()
    x[700] = 0.123
    pq.write_table(pa.table({"customer": np.arange(N), "x": x}), path)
    assert path.stat().st_size == size
    assert pq.read_metadata(path).equals(footer)
    assert placed(path, crew).digest() != identity
    with pytest.raises(StorageError, match=r"^shop\.parquet should hold the same Parquet files as when the run began"):
        list(table.map(len))


def test_answers_about_the_same_rows_are_counted_together_however_their_files_are_written(shop_parts, crew, tmp_path):
    """Otherwise every export of a placed table would let a peer ask for as much again."""
    pq.write_table(in_memory(shop_parts).to_arrow(), tmp_path / "again.parquet", compression="zstd")
    once, again = placed(shop_parts, crew), placed(tmp_path / "again.parquet", crew)
    plan, log = PublicPlan(ROLES, "example"), tmp_path / "answers"
    asked = [
        Party.alone(plan, "shop", table, answer_log=log).budget(SHARES, "bank", most=100) for table in (once, again)
    ]
    asked[0].spend(70)
    with pytest.raises(PrivacyError, match="70"):
        asked[1].spend(40)
    others = once.take(np.arange(1, N))
    Party.alone(plan, "shop", others, answer_log=log).budget(SHARES, "bank", most=100).spend(40)


def test_a_csv_is_not_placed(tmp_path, crew):
    path = tmp_path / "shop.csv"
    path.write_text("customer,x\n1,2\n")
    with pytest.raises(DataError, match=r"Parquet file or a folder of Parquet parts, but is shop\.csv"):
        placed(path, crew)


def one_shot(bank, shop, **simulated):
    align = Align(limits=Limits(fewest=1))
    model = OneShotClassifier(leak_budget={"shop": 1.0}, epochs=2, batch_size=256)
    return simulate(Aligned(align, model.fit), {"bank": bank, "shop": shop}, roles=ROLES, seed=3, **simulated)


def messages(run):
    return [(entry.kind, entry.digest) for entry in run.transcripts["shop"].entries if "align" not in entry.kind]


def test_an_alignment_and_a_one_shot_model_send_the_same_bytes(shop_parts, bank, crew):
    near, far = one_shot(bank, in_memory(shop_parts)), one_shot(bank, placed(shop_parts, crew))
    assert messages(near) == messages(far) != []
    weights = [run.results["bank"].share()["network"] for run in (near, far)]
    assert all((weights[0][name] == weights[1][name]).all() for name in weights[0])


@pytest.fixture(scope="module")
def wide_tables(tmp_path_factory):
    """The tables of a regression, in the order of their ids, the shop's also as Parquet parts of other lengths."""
    folder, drawn, n = tmp_path_factory.mktemp("wide") / "shop", np.random.default_rng(5), 20_000
    folder.mkdir()
    x = drawn.standard_normal((n, 3))
    labels = (x.sum(axis=1) + drawn.standard_normal(n) > 0).astype(int)
    shop = pa.table({"id": np.arange(n), **{f"x{i}": x[:, i] for i in range(3)}, "job": drawn.choice(["a", "b"], n)})
    for number, begin in enumerate(range(0, n, 7000)):
        pq.write_table(shop.slice(begin, 7000), folder / f"{number}.parquet", row_group_size=3000)
    return Table.of({"id": np.arange(n), "age": drawn.random(n), "y": labels}, labels="y", owner="bank"), folder


def regression(bank, shop):
    roles = Roles(label="bank", features=("shop",), arbiter="keeper")
    model = LogisticRegression(max_iter=2, tol=0, batch_size=10_000)
    run = simulate(model.fit, {"bank": bank, "shop": shop}, roles=roles, seed=4)
    return [run.results[name].coef_.tobytes() for name in ("bank", "shop")]


@pytest.mark.slow
def test_a_regression_with_an_arbiter_has_the_same_coefficients(wide_tables, crew):
    bank, folder = wide_tables
    near, far = Table.read(folder, ids="id", owner="shop"), placed_table(folder, crew, ids="id", owner="shop")
    assert len(BatchedRows.of(far, [np.arange(10_000), np.arange(10_000, 20_000)]).parts) == 4
    assert regression(bank, near) == regression(bank, far)


@pytest.mark.slow
def test_workers_of_a_cluster_give_the_same_bytes_although_one_is_killed(shop_parts, bank, wide_tables, cluster):
    assert messages(one_shot(bank, in_memory(shop_parts))) == messages(one_shot(bank, placed(shop_parts, cluster)))
    people, folder = wide_tables
    table = placed_table(folder, cluster, ids="id", owner="shop")
    pids = set(table.map(own_pid))
    assert len(pids) == 2
    os.kill(pids.pop(), signal.SIGKILL)
    assert regression(people, table) == regression(people, Table.read(folder, ids="id", owner="shop"))


DRIVER = """
import sys
from benchmarks.scale import driver
print(driver(int(sys.argv[1]), int(sys.argv[2])))
"""


def grown(columns):
    """Bytes that each further row takes in the process that asks, for a table of some columns."""
    few, many = (
        float(subprocess.run([sys.executable, "-c", DRIVER, str(n), str(columns)], **RUN).stdout.split()[-1])
        for n in (100_000, 500_000)
    )
    return (many - few) / 400_000


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="only Linux tells the highest memory")
def test_each_row_takes_as_little_memory_here_whatever_number_of_columns_it_has():
    assert grown(4) < 128
    assert grown(24) < 128


@pytest.mark.slow
def test_workers_that_are_killed_at_random_calls_change_no_message(shop_parts, bank, unlucky):
    unlucky.kills = sorted(random.sample(range(1, 60), 3))
    expected = messages(one_shot(bank, in_memory(shop_parts)))
    assert messages(one_shot(bank, placed(shop_parts, unlucky))) == expected, unlucky.kills
    assert unlucky.n_calls > 60


def test_a_plan_places_a_table_and_says_where_its_rows_lie(shop_parts, tmp_path):
    path = tmp_path / "plan.toml"
    path.write_text(
        f'[data.shop]\npath = "{shop_parts}"\nids = "customer"\nexclude = ["x3"]\nplaced = true\n'
        f'[data.shop.hashed]\njob = 2\n[data.bank]\npath = "{shop_parts}"\nids = "customer"\nlabels = "x0"\n'
        '[roles]\nlabel = "bank"\nfeatures = ["shop"]\n[model]\nname = "split-classifier"\n'
        "[engine]\njobs = 1\n"
    )
    plan = Plan.read(path)
    table = plan.load(("shop",))["shop"]
    assert told_place(table) == (
        "1,000 rows lie with 1 worker (processes of this machine), 1,000 each; this process keeps ids, labels and row "
        "numbers, 24 bytes a row"
    )
    assert plan.load(("bank",))["bank"].placed is None
    with released(table):
        near = in_memory(shop_parts).select(["x0", "x1", "x2", "job"]).hashed({"job": 2})
        assert table.to_arrow().equals(near.to_arrow())
    assert "placed = true" in plan.to_toml()
    assert Plan.read(path).hash == plan.hash
